"""Replays histories, however busy the machine is with other things."""

from __future__ import annotations

from collections.abc import Callable

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

NO_TIME = "TMPRL1101"
"""Of Temporal's watch for a workflow that does not yield within two seconds."""


async def replays(replayer: Callable[[], Replayer], history: WorkflowHistory) -> None:
    """Check that a history replays to the same commands. How long an activation takes is not checked."""
    await Replayer(**replayer().config() | {"debug_mode": True}).replay_workflow(history)
