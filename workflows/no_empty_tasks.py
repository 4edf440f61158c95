"""No workflow task leads to nothing: each leaves an event in history.

A worker that has just come plays the history, and Temporal's core then takes a task that led to nothing and the one
after it for one. A command of the second is obeyed before what came with the first is heard, where the worker before
heard them in turn: the two may part ways (TMPRL1100; seen with temporalio 1.35 in every third hand-over of a bring-up).
tests/e2e/test_hand_over.py reads the histories.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import patches

_WITHOUT_END = timedelta(days=365)


def leave_mark() -> None:
    """At the end of a side call, after which the main loop may have nothing to do."""
    if workflow.patched(patches.LEAVES_MARKS):
        workflow.upsert_memo({"marked": workflow.now()})


def patience(until: datetime | None) -> timedelta | None:
    """How long to wait for something that may come before `until`: without an end for a year, by a timer as well."""
    if until is not None:
        return max(timedelta(0), until - workflow.now())
    return _WITHOUT_END if workflow.patched(patches.LEAVES_MARKS) else None
