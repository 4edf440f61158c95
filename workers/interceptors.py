"""The interceptors of a worker: they send heartbeats, refuse arguments in clear, and check tickets.

Heartbeats: the server misses a killed worker's calls in seconds, not minutes. A call in a thread cannot send one while
it waits for a database. The worker's event loop sends it instead, so that silence means a dead worker and not a slow
call; a slow one has its own timeout.

Tickets: the validator of an update checks them, by the worker's own clock: it does no I/O, and does not run on replay;
it does run on updates that a reset applies again, and finds their tickets expired. A ticket is checked also if none is
needed. A machine's command names a warrant instead, which the handler admits before it obeys
(workflows/ticket_admission.py), as only an activity can look that up. The signature is verified in a thread of its own.
Inside the workflows' sandbox cryptography's native code ends the whole process if it imports the error that it raises:
one altered ticket would do.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from activities.clock import Clock, utc_now
from activities.tickets.warrants import KeysOf
from client.encryption import Encrypted, arrived_in_clear
from models.access.signing import PublicKey
from models.access.ticket_checks import check_ticket
from models.base import Model
from models.errors import Refusal, Unavailable
from models.temporal_names import BRINGUP_WORKFLOW, FLEET_WORKFLOW, REQUEST_WORKFLOW, ROLLOUT_WORKFLOW

_BEATS_A_TIMEOUT = 3


class Heartbeats(Interceptor):
    """Beats for every blocking activity that has a heartbeat timeout; asynchronous ones do it themselves."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Beating(next)


class _Beating(ActivityInboundInterceptor):
    _out: ActivityOutboundInterceptor

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._out = outbound
        super().init(outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        timeout = activity.info().heartbeat_timeout
        if timeout is None or inspect.iscoroutinefunction(input.fn):
            return await super().execute_activity(input)
        beat = asyncio.create_task(self._beat(timeout.total_seconds() / _BEATS_A_TIMEOUT))
        try:
            return await super().execute_activity(input)
        finally:
            beat.cancel()

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._out.heartbeat()


class NothingInClear(Interceptor):
    """Refuses arguments that came in clear, unless the activity was scheduled before payloads were encrypted.

    `since`: returns when payloads began to be encrypted, as it is known now.
    """

    def __init__(self, since: Callable[[], datetime]) -> None:
        self._since = since

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Hidden(next, self._since)


def nothing_in_clear(codec: Any) -> list[Interceptor]:
    """Return the interceptor for a client's codec; none if it does not encrypt."""
    return [NothingInClear(lambda: codec.ring.since)] if isinstance(codec, Encrypted) else []


class _Hidden(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, since: Callable[[], datetime]) -> None:
        super().__init__(following)
        self._since = since

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        # It is tried again: a worker without the keys may have scheduled it, and a person has to mend that.
        if arrived_in_clear.get() and activity.info().scheduled_time >= self._since():
            raise ApplicationError(
                "its arguments are not encrypted, but must be: give the process that scheduled it the payload keys",
                type=Unavailable.__name__,
            )
        return await super().execute_activity(input)


_OUTSIDE = ThreadPoolExecutor(4, "tickets")
_WHOSE: Mapping[str, str] = {
    ROLLOUT_WORKFLOW: "rollout",
    FLEET_WORKFLOW: "fleet",
    REQUEST_WORKFLOW: "request",
    BRINGUP_WORKFLOW: "bringup",
}
"""By workflow, the prefix of its commands in the table of rights."""


class TicketsChecked(Interceptor):
    """Checks tickets by the `keys`, and by whether every command needs one (`wanted`), as known in memory."""

    def __init__(self, keys: KeysOf, wanted: Callable[[], bool], now: Clock = utc_now) -> None:
        self._now = now
        self._keys = keys
        self._wanted = wanted

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        keys, wanted, now = self._keys, self._wanted, self._now

        class Checked(WorkflowInboundInterceptor):
            def handle_update_validator(self, input: HandleUpdateInput) -> None:
                refuse_unsigned(input.update, input.args, keys(), now, wanted=wanted())
                super().handle_update_validator(input)

        return Checked


def refuse_unsigned(update: str, args: Any, keys: Mapping[str, PublicKey], now: Clock, *, wanted: bool) -> None:
    """Raise ApplicationError of type Refusal, in one sentence, for an update without a valid ticket."""
    message = args[0] if args else None
    if not isinstance(message, Model) or "ticket" not in type(message).model_fields:
        return  # `launched` asks; an order of a request is judged when it is written
    info = workflow.info()
    bare = not str(getattr(message, "ticket", ""))
    if bare and (not wanted or str(getattr(message, "warrant", ""))):
        return
    command = f"{_WHOSE.get(info.workflow_type, '')}.{update}"
    try:
        with workflow.unsafe.sandbox_unrestricted():
            _OUTSIDE.submit(check_ticket, message, command, info.workflow_id, keys, now()).result()
    except Refusal as error:
        raise ApplicationError(error.message, type=Refusal.__name__, non_retryable=True) from None
