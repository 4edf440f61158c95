"""Options of activity calls: how long each may take, how soon a dead worker is noticed, and how often it is retried.

Each set is spread into the call: `execute_activity_method(Some.activity, request, **CALL, summary="what it does")`. A
late attempt does no harm: a fence refuses it, or it is safe to repeat.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from models.temporal_names import GUARD_QUEUE, NOTICE_QUEUE


class CallOptions(TypedDict):
    """The fields of `workflow.ActivityConfig` that we set for many calls at once; each call has its own summary."""

    start_to_close_timeout: timedelta
    """The limit of one attempt."""
    heartbeat_timeout: timedelta
    """The time without a heartbeat after which the call is made again on another worker."""
    retry_policy: RetryPolicy
    task_queue: NotRequired[str]
    """The queue whose slots the call takes; missing: the workflow's queue."""
    priority: NotRequired[Priority]
    cancellation_type: NotRequired[workflow.ActivityCancellationType]


_SECOND = timedelta(seconds=1)
_WITHOUT_LIMIT = RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=60))
"""Retries without a limit, for inverses, the archive, plans and mail."""
_FIRST = Priority(priority_key=1)
_NEXT = Priority(priority_key=2)
_SOON = Priority(priority_key=3)
_LATER = Priority(priority_key=4)
_LAST = Priority(priority_key=5)
"""Priorities of calls in a queue: the answer to a breach goes first, on any cluster, and mail goes last.

While many clusters breach, each looks again and again; an answer queued behind all these looks would be seconds late.
Begun work is finished before new work begins: otherwise all rollbacks advance together, and the first one ends no
earlier than the last.
"""

CALL: CallOptions = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=15),
    "retry_policy": _WITHOUT_LIMIT,
}
READ_CALL: CallOptions = {
    **CALL,
    "task_queue": GUARD_QUEUE,
    "retry_policy": RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=10), maximum_attempts=4),
    "priority": _LATER,
}
DUE_READ_CALL: CallOptions = {**READ_CALL, "priority": _SOON}
"""The options of a look that a due breach waits for."""
FORWARD_CALL: CallOptions = {
    **CALL,
    "retry_policy": RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=30), maximum_attempts=10),
}
"""The options of a forward effect: tries for about three minutes, plus the wait for a dead worker; then an undo."""
ASKED_CALL: CallOptions = {
    **CALL,
    "retry_policy": RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=5), maximum_attempts=5),
}
"""The options of a call whose answer somebody waits for."""

LONG_CALL: CallOptions = {**CALL, "start_to_close_timeout": timedelta(minutes=5)}
"""The options of a call that reads one whole cluster, or notifies many people."""
LONG_ASKED_CALL: CallOptions = {**LONG_CALL, "retry_policy": ASKED_CALL["retry_policy"]}
AIM_CALL: CallOptions = {**LONG_CALL, "task_queue": GUARD_QUEUE, "priority": _NEXT}
MAIL_CALL: CallOptions = {**LONG_CALL, "task_queue": NOTICE_QUEUE, "priority": _LAST}
"""The options of notices, which have their own queue so that one breach's notices delay no other rollback."""

ROUND_CALL: CallOptions = {**MAIL_CALL, "retry_policy": ASKED_CALL["retry_policy"]}

EFFECT_CALL: CallOptions = {
    **FORWARD_CALL,
    "task_queue": GUARD_QUEUE,
    "priority": _SOON,
    "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
"""The options of an effect. A cancelled call is awaited, because the undo would race the effect otherwise."""
INVERSE_CALL: CallOptions = {**EFFECT_CALL, "retry_policy": _WITHOUT_LIMIT, "priority": _FIRST}

FLEET_CALL: CallOptions = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=30),
    "retry_policy": _WITHOUT_LIMIT,
}
"""The options of a call that names up to one batch of a fleet's clusters."""
LAST_FLEET_CALL: CallOptions = {**FLEET_CALL, "priority": _LAST}
FLEET_MAIL_CALL: CallOptions = {**LAST_FLEET_CALL, "task_queue": NOTICE_QUEUE}
WHOLE_FLEET_CALL: CallOptions = {**FLEET_CALL, "start_to_close_timeout": timedelta(hours=2)}
"""The options of a call that goes through every cluster, or follows the clusters as long as the call lasts."""
LAST_WHOLE_FLEET_CALL: CallOptions = {**WHOLE_FLEET_CALL, "priority": _LAST}


class BareCallOptions(TypedDict):
    """The fields of `CallOptions` for calls that each name their own queue."""

    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


class LongCallOptions(TypedDict):
    """The fields of `CallOptions` for calls that each name their own queue and the limit of an attempt."""

    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


BRINGUP_CALL: BareCallOptions = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=15),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(seconds=5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
}
BRINGUP_START_CALL: BareCallOptions = {**BRINGUP_CALL, "retry_policy": RetryPolicy(maximum_attempts=1)}
"""The options of a start: a single try, because the meaning of a refusal depends on the outcome of earlier tries."""
START_PAUSES = (timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20))
"""Pauses before further tries of a start without an answer; the runner looks for the key before it starts a run."""
BRINGUP_LONG_CALL: LongCallOptions = {"heartbeat_timeout": timedelta(seconds=20), "retry_policy": _WITHOUT_LIMIT}

OVERDUE = timedelta(minutes=5)
"""The time after which a new run begins even while a call of a side loop is being retried."""
HASTE = timedelta(seconds=5)
"""The longest wait of archive and mail for a breach's answer: people must hear of an answer that does not succeed."""
LINGER = timedelta(seconds=2)
"""The longest wait of an entry for others that go to the archive in the same call."""
GRANT_PATIENCE = timedelta(seconds=20)
"""The time that a request's order waits for its turn; after it the sender tries again later."""
MAIL_PAUSE = timedelta(seconds=30)
"""The pause after a try in which some notices were not received."""
LONGEST_MAIL_PAUSE = timedelta(minutes=10)
"""The longest pause between a request's tries to send notices; its pauses grow with each try."""
LAST_MAIL = timedelta(minutes=5)
"""The time for which an ended rollout still tries to notify its teams."""
