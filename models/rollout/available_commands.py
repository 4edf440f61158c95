"""The commands that a rollout would take now, as people type them: notices, status and `doctor` print them.

Each line comes from the request that it would send, and is left out if the rollout would refuse that, so every printed
line works as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime

from models.lifecycle.holds import PROPOSAL, Hold, HoldKind
from models.rollout.commands import CommandRequest, may_lift, refusal
from models.rollout.gates import doubt_of, holds_standing
from models.rollout.stages import Command, command_line
from models.rollout.state import Rollout
from models.rollout.status_models import Choice

_REASON = "..."
"""A placeholder for the words of the person who types the line."""
_ENDS: dict[Command, str] = {
    Command.RETRY: "Try again",
    Command.ROLLBACK: "Undo the rollout",
    Command.ABORT: "Undo the rollout and end it",
    Command.CLOSE: "End the rollout and leave the quotas as they are",
}
_LIFTS: dict[HoldKind, str] = {
    HoldKind.OBJECTION: "Answer the objection and lift it",
    HoldKind.DRIFT: "Accept what others changed (with --how restore, Backstop writes its values again where it can)",
    HoldKind.BLAST_RADIUS: "Allow the write beyond the limit on moved GPUs",
    HoldKind.UNKNOWN_HEALTH: "Confirm that the health sample is right",
}

CONFIRMS = "Confirm that the source is right about all its clusters"


def choices_now(rollout: Rollout, now: datetime) -> tuple[Choice, ...]:
    """Return the commands that the owner could give, those that answer a hold first."""
    doubt = doubt_of(rollout)
    source = () if doubt is None else (Choice(command="confirm", line=doubt.confirm_line, does=CONFIRMS),)
    own = tuple(
        Choice(command=command.value, line=line_of(rollout.cluster, command, request), does=does)
        for command, request, does in _possible_commands(rollout, now)
        if refusal(rollout, command, request) is None
    )
    return source + own


def _possible_commands(rollout: Rollout, now: datetime) -> Iterator[tuple[Command, CommandRequest, str]]:
    plan = rollout.plan if rollout.proposal is None else rollout.proposal.plan
    if plan is not None:
        request = CommandRequest(actor=rollout.owner, plan_hash=plan.hash)
        yield Command.APPROVE, request, "Approve the plan"
    for hold in holds_standing(rollout, now):
        yield Command.RESOLVE, _resolve_request(rollout, hold), _LIFTS.get(hold.kind, f"Lift the hold ({hold.reason})")
    if rollout.proposal is not None:
        yield (
            Command.RESOLVE,
            CommandRequest(actor=rollout.owner, reason=_REASON, hold=PROPOSAL),
            "Decline the proposed plan",
        )
    yield Command.RESUME, CommandRequest(actor=rollout.owner), "Lift the pause"
    for command, does in _ENDS.items():
        yield command, CommandRequest(actor=rollout.owner, reason=_REASON), does


def lifts_by_hold(rollout: Rollout, now: datetime) -> dict[str, str]:
    """Return the command line that lifts each hold the owner could lift now, by hold."""
    standing, doubt = holds_standing(rollout, now), doubt_of(rollout)
    lines = {hold.id: lifting_line(rollout, hold) for hold in standing if lifts(rollout, hold)}
    if doubt is not None:
        lines |= {hold.id: doubt.confirm_line for hold in standing if hold.kind is HoldKind.UNKNOWN_HEALTH}
    return lines


def lifts(rollout: Rollout, hold: Hold) -> bool:
    """Return whether the owner could lift the hold now."""
    return refusal(rollout, *_lifting_command(rollout, hold)) is None


def lifting_line(rollout: Rollout, hold: Hold) -> str:
    """Return the command line with which the owner lifts the hold."""
    return line_of(rollout.cluster, *_lifting_command(rollout, hold))


def lifters(rollout: Rollout, needs: str, now: datetime) -> tuple[str, ...]:
    """Return the people who may give the needed `resolve` if no access file assigns rights; empty if none is needed."""
    resolved = (h for h in holds_standing(rollout, now) if h.kind is not HoldKind.PAUSED)
    hold = next((h for h in resolved if lifting_line(rollout, h) in needs), None)
    if hold is None or doubt_of(rollout) is not None:
        return ()
    return may_lift(rollout, objection=hold.kind is HoldKind.OBJECTION)


def lifters_by_hold(rollout: Rollout, now: datetime) -> dict[str, tuple[str, ...]]:
    """Return the people who may resolve each hold if no access file assigns rights; anybody ends a pause."""
    if doubt_of(rollout) is not None:
        return {}
    holds = (h for h in holds_standing(rollout, now) if h.kind is not HoldKind.PAUSED and lifts(rollout, h))
    return {h.id: may_lift(rollout, objection=h.kind is HoldKind.OBJECTION) for h in holds}


def _lifting_command(rollout: Rollout, hold: Hold) -> tuple[Command, CommandRequest]:
    if hold.kind is HoldKind.PAUSED:
        return Command.RESUME, CommandRequest(actor=rollout.owner)
    return Command.RESOLVE, _resolve_request(rollout, hold)


def _resolve_request(rollout: Rollout, hold: Hold) -> CommandRequest:
    return CommandRequest(actor=rollout.owner, reason=_REASON, hold=hold.id)


def line_of(cluster: str, command: Command, request: CommandRequest) -> str:
    """Return the command as people type it."""
    words = [command_line(command, cluster)]
    if request.plan_hash:
        words += ["--plan", request.plan_hash]
    if request.hold:
        words += ["--hold", shlex.quote(request.hold)]
    if request.reason:
        words += ["--reason", f'"{request.reason}"']
    return " ".join(words)
