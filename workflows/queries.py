"""Queries are answered as of the moment they are asked: a workflow's own clock stands still while it waits."""

from __future__ import annotations

from datetime import datetime

from temporalio import workflow

from activities.clock import utc_now


def asked_at() -> datetime:
    """The worker's clock, never behind the workflow's."""
    with workflow.unsafe.sandbox_unrestricted():  # a query writes nothing that a replay could miss
        return max(workflow.now(), utc_now())
