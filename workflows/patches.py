"""Since when a rollout does what it did not do before: the patches of workflows/cluster_rollout.py, and of all (marks).

A history that began before one of them replays as it was. docs/change-a-workflow.md says when one may go.
"""

from __future__ import annotations

LEAVES_PROMPTLY = "leaves-promptly"
"""Neither a flood nor an outage keeps a rollout from its next run."""
UNDO_FIRST = "undo-first"
"""Archive and mail wait while a breach is answered."""
WARNS = "at-risk-told"
"""Teams are told of a quota that is at risk."""
LOOKS_FIRST = "told-after-a-look"
"""Teams are told of a rollback after a look at what stands behind their quotas then."""
CALLS_OWNER = "owner-told"
"""Owners are told of breaches, and of holds that come of commands and of time."""
OWNER_HEARS_OF_UNDO = "owner-told-of-rollbacks"
"""Owners are told of rollbacks, as teams are."""
ONE_OBJECTION = "one-objection"
"""An actor's objection takes the place of the one before."""
CONFIRMS_RISES = "rises-confirmed"
"""An implausible rise of health waits for more samples, as a drop does."""
RESTS = "rests"
"""A rollout at rest looks once a day; what happens meanwhile the shared watch tells."""
TOGETHER = "records-together"
"""What is archived while a rollout acts travels together, at most LINGER later."""
LEAVES_MARKS = "leaves-marks"
"""No workflow task leads to nothing (workflows/marks.py)."""
TRIES_IN_SIGHT = "tries-in-sight"
"""A bring-up repeats a start that was not answered by itself, in the sight of people (workflows/bringup_runs.py)."""
LEAVES_IN_TIME = "leaves-in-time"
"""A rollout that waits for its next run wakes as soon as it may begin, though nothing changed."""
