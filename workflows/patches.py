"""The patches of all workflows: the marks of behaviour that histories from before do not have.

A history that began before a patch replays as it was. docs/change-a-workflow.md says when one may be removed.
"""

from __future__ import annotations

from temporalio import workflow

LEAVES_PROMPTLY = "leaves-promptly"
"""Neither a flood of events nor an outage keeps a rollout from its next run."""
UNDO_FIRST = "undo-first"
"""Archive and mail wait while a breach is answered."""
WARNS = "at-risk-told"
"""Teams are notified of a quota that is at risk."""
LOOKS_FIRST = "told-after-a-look"
"""Teams are notified of a rollback after a look at the backing of their quotas."""
CALLS_OWNER = "owner-told"
"""Owners are notified of breaches, and of holds set by commands or by time."""
OWNER_HEARS_OF_UNDO = "owner-told-of-rollbacks"
"""Owners are notified of rollbacks, as teams are."""
ONE_OBJECTION = "one-objection"
"""An actor's objection replaces the earlier one."""
CONFIRMS_RISES = "rises-confirmed"
"""An implausible rise of health waits for more samples, as a drop does."""
RESTS = "rests"
"""A rollout at rest looks once a day; the shared watch reports what happens meanwhile."""
TOGETHER = "records-together"
"""Entries of an acting rollout go to the archive together, at most LINGER later."""
LEAVES_MARKS = "leaves-marks"
"""Every workflow task leaves an event (workflows/no_empty_tasks.py)."""
GIVES_UP = "mail-given-up"
"""An ended request waits only some time for its mail; earlier runs try until their history ends."""
STEPS_IN_SIGHT = "steps-in-sight"
"""A bring-up retries a start itself, and notes that a step runs (workflows/bringup_runs.py)."""
LEAVES_IN_TIME = "leaves-in-time"
"""A rollout that waits for its next run wakes as soon as that run may begin, even if nothing changed."""
REFITS = "bound-refitted"
"""The limit above all quotas follows the values that a person accepts."""
NOTES_AT_REST = "noted-at-rest"
"""A resting rollout notes its changes in the registry, even if the archive gets no entry."""
AIMS_AGAIN = "aimed-again"
"""If others change a quota between a breach's aim and write, the breach is aimed once more."""
ASKS_OF_DRIFT = "drift-asked"
"""Quotas that others add, remove or raise wait for a person; a breach rollback subtracts them from its target."""
FEWER_EVENTS = "fewer-events"
"""A rollout's run asks for this patch first; if set, the run has the behaviour of all other rollout patches too."""

MARKS_LATE_MAIL = "late-mail-marked"
"""The end of a notice's wait leaves an event even if no mail may be sent then."""


def has_fewer_events() -> bool:
    return workflow.patched(FEWER_EVENTS)


def since(patch: str) -> bool:
    """Return whether a rollout's run has the behaviour of the patch: a marker of it is two events in history."""
    return has_fewer_events() or workflow.patched(patch)
