"""Marks that give every workflow task at least one event in history.

A worker that has just started replays the history, and Temporal's core then merges a task without commands with the
task after it. It delivers a command of the second before a message of the first, while the earlier worker had seen them
in turn, so the two may diverge (TMPRL1100; seen with temporalio 1.35 in every third hand-over of a bring-up).
tests/e2e/test_hand_over.py reads the histories.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import patches

_WITHOUT_END = timedelta(days=365)


def leave_mark() -> None:
    """Leave an event at the end of a side call, after which the main loop may have nothing to do."""
    if workflow.patched(patches.LEAVES_MARKS):
        write_mark()


def write_mark() -> None:
    workflow.upsert_memo({"marked": workflow.now()})


def patience(until: datetime | None) -> timedelta | None:
    """Return how long to wait until `until`; without one, a year, so that a timer leaves an event here too."""
    if until is not None:
        return max(timedelta(0), until - workflow.now())
    return _WITHOUT_END if workflow.patched(patches.LEAVES_MARKS) else None
