"""The time of a query: the moment it is asked, because a workflow's own clock stands still while it waits."""

from __future__ import annotations

from datetime import datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.clock import worker_clock


def query_time() -> datetime:
    """Return the worker's time, never behind the workflow's."""
    with workflow.unsafe.sandbox_unrestricted():  # a query writes nothing that a replay could miss
        return max(workflow.now(), worker_clock.get()())
