"""Commands from people to a fleet rollout: the reasons to refuse each, and the state after it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from pydantic import Field, field_validator

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import Name, Text, of_ordinary_size
from models.fleet.command_rows import FLEET_ROWS
from models.fleet.gates import rest_until
from models.fleet.pace_changes import change_pace, changes_text, counts_from
from models.fleet.state import PAUSED, FleetRollout, FleetStage, MemberState, Pace, Wave
from models.lifecycle.command_base import Order
from models.lifecycle.holds import Hold, HoldKind
from models.lifecycle.state_machine import STAY as _STAY
from models.lifecycle.state_machine import Refused, answers_by_cell
from models.texts import count_text, shorten, verb_of

FleetCommand = Literal["approve", "pause", "resume", "skip", "move", "promote", "pace", "abort"]
FLEET_COMMANDS: tuple[FleetCommand, ...] = get_args(FleetCommand)
_P, _R, _A = FleetStage.PLANNED, FleetStage.RUNNING, FleetStage.ABORTING
_APPROVED = Refused("plan {plan} is approved already, by {by}")
_ABORTING = Refused("the fleet rollout is being aborted, and that cannot be stopped")
_ENDED = Refused("the fleet rollout has ended ({stage}): launch a new one")

# fmt: off
_COLUMNS =                                                  (_P,    _R,        _A)
_GRID: dict[tuple[FleetCommand, ...], tuple[FleetStage | Refused | None, ...]] = {
    ("approve",):                                           (_R,    _APPROVED, _ABORTING),
    ("pause", "resume", "skip", "move", "promote", "pace"): (_STAY, _STAY,     _ABORTING),
    ("abort",):                                             (_A,    _A,        _ABORTING),
}
# fmt: on

FLEET_ANSWERS: dict[tuple[FleetStage, FleetCommand], FleetStage | Refused] = answers_by_cell(
    _COLUMNS, FLEET_COMMANDS, _GRID, _ENDED
)
_IN_FLIGHT = "; rollouts that are under way keep the budget that they were opened with"
_WORDS_BYTES = 200
"""Bytes of a skip's reason that a member keeps: there may be thousands of members; the archive has the whole text."""


class FleetCommandRequest(Order):
    """A command from one person. It decides which of the fields it needs."""

    plan_hash: Text = Field(default="", max_length=64)
    clusters: tuple[Name, ...] = Field(default=(), max_length=10_000)
    """For skip and move."""
    wave: Wave | None = None
    """For move."""
    undo: bool = False
    """For abort: also undo what the fleet rollout has done."""
    pace: dict[str, Any] = Field(default_factory=dict)
    """For pace: the settings to change, by name."""

    _sized = field_validator("pace")(of_ordinary_size)


class Seen(Protocol):
    """The part of a fleet rollout, or of its status, that decides which commands it takes."""

    @property
    def stage(self) -> FleetStage: ...
    @property
    def plan_hash(self) -> str: ...
    @property
    def approved_by(self) -> str: ...
    @property
    def holds(self) -> tuple[Hold, ...]: ...


def not_now(seen: Seen, command: FleetCommand, *, rests: bool) -> str:
    """Explain why it does not take the command now, whatever its fields are; empty: it may.

    `rests`: a soak or bake runs.
    """
    cell = FLEET_ANSWERS[seen.stage, command]
    if isinstance(cell, Refused):
        return cell.reason.format(stage=seen.stage, plan=seen.plan_hash, by=seen.approved_by)
    match command:
        case "approve" if not seen.plan_hash:
            return "no plan awaits approval: Backstop is making one; run `backstop fleet status` again in a moment"
        case "pause" if any(hold.id == PAUSED for hold in seen.holds):
            return "already paused"
        case "resume" if not seen.holds:
            return "nothing holds the fleet rollout"
        case "promote" if not rests:
            return "nothing to waive: no soak or bake is running"
    return ""


def refusal(fleet: FleetRollout, command: FleetCommand, request: FleetCommandRequest) -> str | None:
    """Explain in one sentence why the command cannot be taken now; None if it can."""
    if why := not_now(fleet, command, rests=rest_until(fleet) is not None):
        return why
    if FLEET_ROWS[command].needs_reason and not request.reason.strip():
        return f"{command} needs a reason"
    match command:
        case "approve" if request.plan_hash != fleet.plan_hash:
            named = request.plan_hash or "(none given)"
            return f"the plan is {fleet.plan_hash}, not {named}: look at the plan, then approve it"
        case "skip" | "move":
            return _refuse_members(fleet, command, request)
        case "pace":
            new = change_pace(fleet.pace, request.pace)
            return new if isinstance(new, str) else None
    return None


_UNMOVED = {
    MemberState.STARTING: "it is being launched",
    MemberState.RUNNING: "its rollout is under way",
    MemberState.DONE: "it is monitored already",
    MemberState.FAILED: "its rollout rolled back or is stuck",
    MemberState.ENDED: "its rollout has ended",
}


def _refuse_members(fleet: FleetRollout, command: FleetCommand, request: FleetCommandRequest) -> str | None:
    if not request.clusters:
        return f"{command} needs a cluster"
    if command == "move" and request.wave is None:
        return "move needs a wave"
    for cluster in request.clusters:
        member = fleet.members.get(cluster)
        if member is None:
            return f"{cluster} is not in this fleet rollout"
        if command == "move" and (member.state not in (MemberState.WAITING, MemberState.SKIPPED) or member.rollout):
            return f"{cluster} cannot be moved: {_UNMOVED.get(member.state, 'it already has a rollout')}"
        if command == "move" and request.wave is Wave.PILOT and fleet.wave is not Wave.PILOT:
            return f"{cluster} cannot become a pilot: wave {fleet.wave.number} ({fleet.wave}) has begun"
        if command == "skip" and member.state is MemberState.SKIPPED:
            return f"{cluster} is skipped already"
        if command == "skip" and member.state is MemberState.DONE:
            return f"{cluster} is monitored already: there is nothing to skip"
        if command == "skip" and member.state is MemberState.STARTING:
            return f"{cluster} is being launched: try again in a moment"
    return None


def obey(
    fleet: FleetRollout, command: FleetCommand, request: FleetCommandRequest, now: datetime
) -> tuple[FleetRollout, str]:
    """Return the fleet rollout after a command that is not refused, and one sentence about the consequence."""
    about = f" {', '.join(request.clusters[:20])}" if request.clusters else ""
    new = change_pace(fleet.pace, request.pace) if command == "pace" else fleet.pace
    assert isinstance(new, Pace)
    about += f" {changes_text(fleet.pace, new)}" if command == "pace" else ""
    fleet = fleet.record(
        AuditKind.COMMAND,
        f"{command}{about} by {request.actor}",
        now,
        actor=request.actor,
        reason=request.reason,
        **{
            "command": command,
            **request.model_dump(mode="json", exclude_defaults=True, exclude={"actor", "reason", "ticket"}),
            **warrant_in(request),
        },
    )
    match command:
        case "approve":
            begun = fleet.but(approved_by=request.actor).enter_stage(
                FleetStage.RUNNING, now, f"plan {fleet.plan_hash} is approved", request.actor
            )
            pilots = any(m.wave is Wave.PILOT for m in fleet.members.values())
            return (
                begun,
                f"plan {fleet.plan_hash} is approved; {'the pilots start' if pilots else 'the first wave starts'}",
            )
        case "pause":
            held = fleet.add_hold(PAUSED, HoldKind.PAUSED, request.reason, now, request.actor)
            return held, "paused: Backstop starts no more clusters; rollouts under way go on, each by its own gates"
        case "resume":
            return _resume(fleet, request, now)
        case "promote":
            return fleet.but(waived=True), "the rest of this soak or bake is waived"
        case "skip":
            opened = any(fleet.members[cluster].rollout for cluster in request.clusters)
            skipped = f"{count_text(len(request.clusters), 'cluster')} {verb_of(len(request.clusters))} skipped"
            return _skip(fleet, request), skipped + ("; a rollout that is open there goes on" if opened else "")
        case "move":
            return _move(fleet, request)
        case "pace":
            other = fleet.but(pace=new, found_none=False)
            return other, f"{changes_text(fleet.pace, new)}; {counts_from(fleet, other, now)}{_IN_FLIGHT}"
        case "abort":
            return _abort(fleet, request, now)


def apply_cancel(fleet: FleetRollout, now: datetime, *, by_ticket: bool) -> FleetRollout:
    """Abort on a cancel from Temporal, without undoing anything.

    `by_ticket`: the launch came with a ticket, so only a ticket aborts it.
    """
    if by_ticket:
        return fleet.record(
            AuditKind.COMMAND,
            "a cancel from Temporal was ignored, because this fleet rollout takes only commands with a ticket",
            now,
        )
    request = FleetCommandRequest(actor="temporal", reason="the workflow was cancelled")
    return fleet if refusal(fleet, "abort", request) is not None else obey(fleet, "abort", request, now)[0]


def _resume(fleet: FleetRollout, request: FleetCommandRequest, now: datetime) -> tuple[FleetRollout, str]:
    """Lift every hold and forget the failures so far; a soak or bake under way starts again."""
    members = {c: m.but(forgiven=True) if m.failed_at is not None else m for c, m in fleet.members.items()}
    forgiven = len(fleet.failed_members)
    holds = fleet.holds
    lifted = ", ".join(h.id for h in holds)
    fleet = fleet.but(holds=(), members=members, settled_at=None, picked_at=None, found_none=False).record(
        AuditKind.HOLD, f"holds lifted: {lifted}", now, actor=request.actor, reason=request.reason
    )
    one = "the earlier failure no longer counts"
    more = f"; {one if forgiven == 1 else f'the {forgiven} earlier failures no longer count'}" if forgiven else ""
    what = ", ".join("pause" if h.id == PAUSED else h.id for h in holds)
    return fleet, f"resumed: {what} lifted{more}"


def _skip(fleet: FleetRollout, request: FleetCommandRequest) -> FleetRollout:
    members = dict(fleet.members)
    for cluster in request.clusters:
        members[cluster] = members[cluster].but(
            state=MemberState.SKIPPED, held=shorten(request.reason, _WORDS_BYTES), held_until=None
        )
    return fleet.but(members=members)


def _move(fleet: FleetRollout, request: FleetCommandRequest) -> tuple[FleetRollout, str]:
    assert request.wave is not None
    members = dict(fleet.members)
    for cluster in request.clusters:
        members[cluster] = members[cluster].but(
            wave=request.wave, moved=True, held="", held_until=None, state=MemberState.WAITING
        )
    sentence = f"{', '.join(request.clusters)}: {request.wave.place_text} from now on"
    return fleet.but(members=members, found_none=False), sentence


def _abort(fleet: FleetRollout, request: FleetCommandRequest, now: datetime) -> tuple[FleetRollout, str]:
    fleet = fleet.but(undo=request.undo, ended_because=request.reason, aborted_by=request.actor, holds=())
    aborting = fleet.enter_stage(FleetStage.ABORTING, now, request.reason, request.actor)
    ending = len(aborting.to_abort)
    if not ending:
        return aborting, "aborting: no rollout has to be ended"
    one = ending == 1
    rollouts, have = ("1 rollout", "has") if one else (f"{ending} rollouts", "have")
    if request.undo:
        baselines = (
            "those that have changed quotas go back to their baselines, even if today's hardware does not back these "
            "(`backstop fleet show` has the numbers)"
        )
        return aborting, f"aborting: Backstop undoes {rollouts}, the newest first: {baselines}"
    return aborting, f"aborting: Backstop ends {rollouts} that {have} changed nothing yet; the others go on"
