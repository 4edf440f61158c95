"""The start of a new history for a long-lived workflow: when it grows long, or for another build of the worker."""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.base import Model

_SETTLED = timedelta(seconds=10)
"""The age from which a run moves on to another build, so that frequent switches of builds start few runs."""


def next_run_is_due() -> bool:
    info = workflow.info()
    settled = workflow.now() - info.start_time >= _SETTLED
    return info.is_continue_as_new_suggested() or (settled and info.is_target_worker_deployment_version_changed())


def begin_next_run(run: Model) -> NoReturn:
    """Continue as new, on the newest build of the worker."""
    upgrade = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
    workflow.continue_as_new(run, initial_versioning_behavior=upgrade)
