"""A rollout's answer to a cancel from Temporal, which carries no signature."""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import AuditKind
from models.rollout.commands import CommandRequest, obey, refusal
from models.rollout.stages import Command
from models.rollout.state import Rollout

CANCEL_IGNORED = "a cancel from Temporal was ignored, because this rollout takes only commands with a ticket"


def apply_cancel(rollout: Rollout, now: datetime, *, by_ticket: bool) -> Rollout:
    """Abort on a cancel from Temporal; if an abort is refused, keep a rollback under way going.

    `by_ticket`: the launch came with a ticket, so only a ticket ends the rollout.
    """
    if rollout.ticketed or by_ticket:
        return rollout.record(AuditKind.COMMAND, CANCEL_IGNORED, now, actor="temporal")
    request = CommandRequest(actor="temporal", reason="the workflow was cancelled")
    if refusal(rollout, Command.ABORT, request) is None:
        return obey(rollout, Command.ABORT, request, now)[0]
    return rollout.record(AuditKind.COMMAND, f"cancel ignored while {rollout.stage}", now, actor="temporal")
