"""Checks the tickets of updates before a workflow sees them. A ticket is checked also if none is needed.

The validator does it, by the worker's own clock: it does no I/O, and does not run on replay; it does run on updates
that a reset applies again, and finds their tickets expired. A machine's command names a warrant instead, which the
handler admits before it obeys (workflows/ticket_admission.py), as only an activity can look that up.

The signature is verified in a thread of its own. Inside the workflows' sandbox cryptography's native code ends the
whole process if it imports the error that it raises: one altered ticket would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import HandleUpdateInput, Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from activities.clock import Clock, utc_now
from activities.tickets.warrants import KeysOf
from models.access.signing import PublicKey
from models.access.ticket_checks import check_ticket
from models.base import Model
from models.errors import Refusal
from models.temporal_names import BRINGUP_WORKFLOW, FLEET_WORKFLOW, REQUEST_WORKFLOW, ROLLOUT_WORKFLOW

_OUTSIDE = ThreadPoolExecutor(4, "tickets")
_WHOSE: Mapping[str, str] = {
    ROLLOUT_WORKFLOW: "rollout",
    FLEET_WORKFLOW: "fleet",
    REQUEST_WORKFLOW: "request",
    BRINGUP_WORKFLOW: "bringup",
}
"""The table of rights' name for the commands of each workflow."""


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
