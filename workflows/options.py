"""How long a call of an activity may take, how soon a dead worker is noticed, and how often it is tried again.

Each set is spread into the call: `execute_activity_method(Some.activity, request, **CALL, summary="what it does")`.
A late attempt does no harm: it is fenced off, or made to be repeated.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from models.temporal_names import GUARD_QUEUE, NOTICE_QUEUE


class CallOptions(TypedDict):
    """Those of `workflow.ActivityConfig` that we set for many calls at once; the summary is each call's own."""

    start_to_close_timeout: timedelta
    """One attempt."""
    heartbeat_timeout: timedelta
    """A call whose worker has not been heard of for this long is made again elsewhere."""
    retry_policy: RetryPolicy
    task_queue: NotRequired[str]
    """Whose slots it takes; without one, those of the workflow's queue."""
    priority: NotRequired[Priority]
    cancellation_type: NotRequired[workflow.ActivityCancellationType]


_SECOND = timedelta(seconds=1)
_WITHOUT_LIMIT = RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=60))
"""Inverses, the archive, plans, mail."""
_FIRST = Priority(priority_key=1)
_NEXT = Priority(priority_key=2)
_SOON = Priority(priority_key=3)
_LATER = Priority(priority_key=4)
_LAST = Priority(priority_key=5)
"""Where calls queue for a worker: a breach's answer goes first, on whichever cluster it is, and mail last.

While many breach, each of them looks again and again; an answer that waits behind all looks is seconds late. And what
has begun is finished before more is begun: else all of them go on abreast, and the first is restored with the last.
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
"""A look that a breach waits for, whose time has come."""
FORWARD_CALL: CallOptions = {
    **CALL,
    "retry_policy": RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=30), maximum_attempts=10),
}
"""About three minutes of trying; waiting for a dead worker does not count. Then the step is undone."""
ASKED_CALL: CallOptions = {
    **CALL,
    "retry_policy": RetryPolicy(initial_interval=_SECOND, maximum_interval=timedelta(seconds=5), maximum_attempts=5),
}
"""Somebody waits for the answer."""

LONG_CALL: CallOptions = {**CALL, "start_to_close_timeout": timedelta(minutes=5)}
"""It reads all of one cluster, or tells many people."""
LONG_ASKED_CALL: CallOptions = {**LONG_CALL, "retry_policy": ASKED_CALL["retry_policy"]}
AIM_CALL: CallOptions = {**LONG_CALL, "task_queue": GUARD_QUEUE, "priority": _NEXT}
MAIL_CALL: CallOptions = {**LONG_CALL, "task_queue": NOTICE_QUEUE, "priority": _LAST}
"""A breach's notices must not stand before another one's rollback."""

ROUND_CALL: CallOptions = {**MAIL_CALL, "retry_policy": ASKED_CALL["retry_policy"]}

EFFECT_CALL: CallOptions = {
    **FORWARD_CALL,
    "task_queue": GUARD_QUEUE,
    "priority": _SOON,
    "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
"""Cancelled, it is waited for: else the undo would race what it undoes."""
INVERSE_CALL: CallOptions = {**EFFECT_CALL, "retry_policy": _WITHOUT_LIMIT, "priority": _FIRST}

FLEET_CALL: CallOptions = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=30),
    "retry_policy": _WITHOUT_LIMIT,
}
"""It names up to a batch of a fleet's clusters."""
LAST_FLEET_CALL: CallOptions = {**FLEET_CALL, "priority": _LAST}
FLEET_MAIL_CALL: CallOptions = {**LAST_FLEET_CALL, "task_queue": NOTICE_QUEUE}
WHOLE_FLEET_CALL: CallOptions = {**FLEET_CALL, "start_to_close_timeout": timedelta(hours=2)}
"""It goes through every cluster, or follows them for as long as it lives."""
LAST_WHOLE_FLEET_CALL: CallOptions = {**WHOLE_FLEET_CALL, "priority": _LAST}


class BareCallOptions(TypedDict):
    """As `CallOptions`, of calls that each say themselves on whose queue."""

    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


class LongCallOptions(TypedDict):
    """Of calls that also say themselves how long an attempt may take."""

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
"""One try: what became of an earlier one decides what the next one's refusal means."""
START_PAUSES = (timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20))
"""Before each further try of a start that was not answered: a runner finds a run by its key before it starts one."""
BRINGUP_LONG_CALL: LongCallOptions = {"heartbeat_timeout": timedelta(seconds=20), "retry_policy": _WITHOUT_LIMIT}

OVERDUE = timedelta(minutes=5)
"""From then on a new run begins even while a side loop's call is being tried."""
HASTE = timedelta(seconds=5)
"""How long they wait at most: an answer that does not get through has to be told."""
LINGER = timedelta(seconds=2)
"""How long what is archived waits at most for more that travels with it."""
GRANT_PATIENCE = timedelta(seconds=20)
"""How long a request's order waits for what is in its way; then whoever sent it comes again later."""
MAIL_PAUSE = timedelta(seconds=30)
"""After a try to tell people that somebody did not hear."""
LAST_MAIL = timedelta(minutes=5)
"""How long an ended rollout still tries to tell its teams."""
