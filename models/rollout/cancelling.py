"""What a cancel by Temporal comes to: its own word, which nobody signed."""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import AuditKind
from models.rollout.commands import CommandRequest, obey, refusal
from models.rollout.stages import Command
from models.rollout.state import Rollout

CANCEL_IGNORED = "a cancel from Temporal was ignored, because this rollout takes only commands with a ticket"


def apply_cancel(rollout: Rollout, now: datetime, *, by_ticket: bool = False) -> Rollout:
    """Temporal's own cancel is an abort by whoever sent it; where that is refused, a rollback under way goes on.

    `by_ticket`: it was launched so, and then only a ticket ends it.
    """
    if rollout.ticketed or by_ticket:
        return rollout.record(AuditKind.COMMAND, CANCEL_IGNORED, now, actor="temporal")
    request = CommandRequest(actor="temporal", reason="the workflow was cancelled")
    if refusal(rollout, Command.ABORT, request) is None:
        return obey(rollout, Command.ABORT, request, now)[0]
    return rollout.record(AuditKind.COMMAND, f"cancel ignored while {rollout.stage}", now, actor="temporal")
