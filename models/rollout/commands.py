"""Commands from people: the reasons to refuse each, and the state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pydantic import Field

from models.access.principals import is_one_of
from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import ActorGiven, Text, duration_text
from models.cluster.snapshot import on_islands
from models.lifecycle.command_base import Order
from models.lifecycle.holds import BREACH, PROPOSAL, RADIUS, REALIGN, REPLAN, ROLLBACK, UNMERGED, Hold, HoldKind
from models.lifecycle.state_machine import Refused
from models.notices import NoticeKind
from models.planning.backing import Backing, back
from models.planning.plan import envelope_of
from models.rollout import drift, objections
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.effect_table import INVERSE
from models.rollout.effects import EffectKind
from models.rollout.gates import beyond_of, doubt_of, find_foreign_changes
from models.rollout.promotion_text import promotion_text
from models.rollout.proposals import proposal_is_approved
from models.rollout.stages import Command, Stage, answer
from models.rollout.state import Approval, Rollout, Undo, UndoCause
from models.texts import gpus_text, verb_of


class CommandRequest(Order):
    """A command from one person. It decides which of the fields it needs."""

    plan_hash: Text = Field(default="", max_length=64)
    """approve: the hash of the plan that is meant."""
    team: ActorGiven = ""
    """ack, object: the team that speaks. resolve: the team that withdraws its objection; empty: a decider resolves."""
    hold: Text = Field(default="", max_length=300)
    """resolve: the id of the hold to lift."""
    how: Text = Field(default="", max_length=20)
    """resolve a drift: `accept` (keep the values of others) or `restore` (write Backstop's values again)."""
    warrant: str = Field(default="", max_length=200, exclude_if=lambda nonce: not nonce)
    """The nonce of the person's command to a fleet rollout or bring-up that gives this command; empty: none."""


GOES_BACK = frozenset({Command.ABORT, Command.ROLLBACK})


def refusal(rollout: Rollout, command: Command, request: CommandRequest, *, by_roles: bool | None = None) -> str | None:
    """Explain in one sentence why the command cannot be taken now; None if it can.

    `by_roles`: whether an access file assigns the right to give it, in place of the policy's owners and authorities.
    None: it does if the rollout was opened with a ticket.
    """
    cell = answer(rollout.stage, command, effects_stand=rollout.effects_stand)
    if isinstance(cell, Refused):
        return f"{command} is not possible while {rollout.cluster} is {rollout.stage}: {cell.reason}"
    if ROLLOUT_ROWS[command].needs_reason and not request.reason.strip():
        return f"{command} needs a reason"
    if command is Command.RESOLVE:
        return _refuse_resolve(rollout, request, by_roles=rollout.ticketed if by_roles is None else by_roles)
    refuse = _REFUSE.get(command)
    return None if refuse is None else refuse(rollout, request)


def _refuse_unknown_team(rollout: Rollout, request: CommandRequest) -> str | None:
    """Refuse a team without a quota. A quota that others added counts: its team is notified, so it may answer."""
    now = () if rollout.seen is None else (quota.team for quota in rollout.seen.reading.quotas)
    teams = {*rollout.written, *now, *(quota.team for quota in rollout.baseline.quotas)}
    return None if request.team in teams else f"team {request.team!r} has no quota in {rollout.cluster}"


def is_paused(rollout: Rollout) -> bool:
    return any(h.kind is HoldKind.PAUSED for h in rollout.holds)


def _refuse_object(rollout: Rollout, request: CommandRequest) -> str | None:
    return _refuse_unknown_team(rollout, request) or objections.objection_refusal(rollout, request.team, request.actor)


def _refuse_close(rollout: Rollout, request: CommandRequest) -> str | None:
    return reason_refusal(rollout.stage, at_risk=bool(rollout.at_risk or rollout.breach_of), reason=request.reason)


def reason_refusal(stage: Stage, *, at_risk: bool, reason: str) -> str | None:
    """Refuse to close a promise at risk, or a stuck rollout, without a reason."""
    if reason.strip() or not (at_risk or stage is Stage.STUCK):
        return None
    return f"close needs a reason while {'the rollout is stuck' if stage is Stage.STUCK else 'a quota is at risk'}"


def _refuse_retry(rollout: Rollout, _: CommandRequest) -> str | None:
    if rollout.stage is Stage.STUCK and rollout.superseded:
        return f"a newer rollout owns the cluster ({rollout.superseded}): only `close` is possible"
    return None


def _refuse_approve(rollout: Rollout, request: CommandRequest) -> str | None:
    if rollout.proposal is not None:
        return _refuse_proposal(rollout, rollout.proposal.plan.hash, request)
    if rollout.plan is None or rollout.stay.replan:
        return "no plan awaits approval: Backstop is making a new one; run `backstop status` again in a moment"
    if request.plan_hash != rollout.plan.hash:
        return other_plan(rollout.plan.hash, request.plan_hash)
    if not rollout.plan.honest:
        return f"plan {rollout.plan.hash} cannot be approved: {rollout.plan.fault}"
    if not rollout.plan.backed:
        return f"plan {rollout.plan.hash} is not backed by healthy GPUs, so it cannot be approved"
    if rollout.is_approved:
        return f"plan {rollout.plan.hash} is approved already, by {rollout.approved_by}"
    return None


def other_plan(stands: str, meant: str) -> str:
    """Tell an approver that another plan than the one they saw awaits approval."""
    return f"the plan is {stands}, not {meant or '(none given)'}: look at the plan, then approve it"


def _refuse_proposal(rollout: Rollout, proposed: str, request: CommandRequest) -> str | None:
    if request.plan_hash != proposed:
        meant = request.plan_hash or "(none given)"
        return f"the proposed plan is {proposed}, not {meant}: look at the proposed plan, then approve it"
    if proposal_is_approved(rollout):
        return f"plan {proposed} is approved already, by {rollout.approved_by}"
    return None


def _refuse_resolve(rollout: Rollout, request: CommandRequest, *, by_roles: bool) -> str | None:
    hold = rollout.hold(request.hold)
    if hold is None:
        return _refuse_resolve_of_none(rollout, request.hold)
    if hold.kind is HoldKind.PAUSED:
        return "a pause is lifted by `resume`"
    if hold.kind is HoldKind.MERGE:
        return "a merge ends this hold: merge the branch, or delete it to decline the effect"
    if request.team and request.team != hold.team:
        whose = f"the objection of {hold.team}, not of {request.team}" if hold.team else "not an objection"
        return f"hold {hold.id} is {whose}"
    objection = hold.kind is HoldKind.OBJECTION
    if not by_roles and not is_one_of(request.actor, may := may_lift(rollout, objection=objection)):
        what = f"{'an objection' if objection else f'hold {hold.id}'} here"
        return f"{request.actor} may not resolve {what}: ask {' or '.join(may)}"
    if hold.kind is HoldKind.DRIFT and hold.id != REPLAN and rollout.is_overtaken:
        # The last look is older than our last write, which would count as somebody else's change.
        if rollout.stage in (Stage.ROLLING_BACK, Stage.STUCK):
            return "the rollback does not touch what others changed: resolve the drift after the rollback"
        return "Backstop has not yet read back its own last write: look at the drift again in a moment"
    if request.how not in ("", "accept", "restore"):
        return f"how must be accept or restore, not {request.how!r}"
    if request.how == "restore" and (hold.id != "drift" or not rollout.stage.is_guarded or rollout.shadow):
        return (
            "--how restore is only for hold drift, while a rollout that is no shadow is buffered, enforced or "
            "monitored: give --how accept, or leave --how out"
        )
    return None


def may_lift(rollout: Rollout, *, objection: bool) -> tuple[str, ...]:
    """Return who may lift a hold: the owner, the authorities and, except for objections, the policy's owners."""
    owners = () if objection else rollout.policy.owners
    return tuple(dict.fromkeys((rollout.owner, *rollout.policy.authorities, *owners)))


def _refuse_resolve_of_none(rollout: Rollout, name: str) -> str | None:
    """Refuse a `resolve` that names no hold, unless it answers a proposal or a sample that awaits confirmation."""
    if name == PROPOSAL and rollout.proposal is not None:
        return None
    if name == "unknown_health" and (doubt := doubt_of(rollout)) is not None:
        return f"{doubt.why}: confirm it for the whole source with {doubt.confirm_line}"
    if name == "unknown_health" and (beyond := beyond_of(rollout)) is not None:
        return f"{beyond.text}: mend the source, or import the cluster's new total"
    if name == "unknown_health":
        lifted = "no sample awaits confirmation: the hold ends when the source sends current samples with correct times"
        return lifted if rollout.sight.suspect is None else None
    standing = ", ".join(h.id for h in rollout.holds if h.kind is not HoldKind.PAUSED) or "none to resolve"
    return f"no such hold: {name or '(none given)'}; the holds now: {standing}"


_REFUSE: dict[Command, Callable[[Rollout, CommandRequest], str | None]] = {
    Command.APPROVE: _refuse_approve,
    Command.ACK: _refuse_unknown_team,
    Command.OBJECT: _refuse_object,
    Command.PAUSE: lambda rollout, _: "already paused" if is_paused(rollout) else None,
    Command.RESUME: lambda rollout, _: None if is_paused(rollout) else "not paused",
    Command.PROMOTE: lambda rollout, _: _PROMOTED if rollout.stay.waived else None,
    Command.CLOSE: _refuse_close,
    Command.RETRY: _refuse_retry,
}
"""Further checks by command; other commands have only the check of their stage."""
_PROMOTED = "already promoted: the other conditions of this gate cannot be waived"


def accepts_bounded(rollout: Rollout, command: Command, request: CommandRequest) -> bool:
    """Return whether the command accepts a drift under a limit above all quotas, which must then follow."""
    accepts = command is Command.RESOLVE and request.hold == "drift" and request.how != "restore"
    return accepts and drift.is_bounded(rollout)


def obey(
    rollout: Rollout,
    command: Command,
    request: CommandRequest,
    now: datetime,
    *,
    one_objection: bool = True,
    refits: bool = True,
) -> tuple[Rollout, str]:
    """Return the rollout after a command that is not refused, and one sentence about the consequence.

    `one_objection`: an actor's objection replaces the earlier one (since patch `one-objection`). `refits`: the limit
    above all quotas follows the values a person accepts (since patch `bound-refitted`).
    """
    after = rollout.record(
        AuditKind.COMMAND,
        f"{command} by {request.actor}",
        now,
        actor=request.actor,
        reason=request.reason,
        command=command.value,
        **{field: value for field in ("plan_hash", "team", "hold", "how") if (value := getattr(request, field))},
        **warrant_in(request),
    )
    match command:
        case Command.APPROVE:
            return _approve(after, request, now)
        case Command.ACK:
            acks = tuple(sorted({*after.announced.acks, request.team}))
            return after.with_announced(acks=acks), f"{request.team} has acknowledged"
        case Command.OBJECT:
            return _object(after, request, now, one_objection)
        case Command.PAUSE:
            hold = Hold(id="paused", kind=HoldKind.PAUSED, reason=request.reason, actor=request.actor, at=now)
            return add_hold(after, hold, now), "paused: gates stay shut, effects under way finish, rollbacks still run"
        case Command.RESUME:
            soaks = rollout.stage in (Stage.BUFFERED, Stage.ENFORCED)
            return _resume(after, now), f"resumed{'; the soak starts anew' * soaks}"
        case Command.RESOLVE:
            return _resolve(after, request, now, refits)
        case Command.PROMOTE:
            return after.with_stay(waived=True), promotion_text(after, now)
        case Command.ABORT | Command.ROLLBACK:
            return _undo(after, command, request, now)
        case Command.RETRY:
            return _retry(after, request, now)
        case Command.CLOSE:
            after = after.but(ended_because=request.reason or f"closed by {request.actor}")
            closed = after.enter_stage(Stage.CLOSED, now, request.reason or "closed", request.actor)
            return closed, _close_text(rollout)


def without_approval(rollout: Rollout) -> Rollout:
    """Withdraw the approval. The ledger does so before anything is undone: the next plan needs a new one."""
    return rollout.but(approval=None)


def _close_text(rollout: Rollout) -> str:
    if rollout.stage is not Stage.STUCK:
        ends = "the promise ends and the values stay" if rollout.stage.promises else "the values stay"
        return f"closed; {ends}"
    if rollout.superseded:
        return "closed; nothing is written, and the cluster is left to the rollout that owns it now"
    return "closed as it is; the values and limits stay, and nothing more is undone"


def _approve(rollout: Rollout, request: CommandRequest, now: datetime) -> tuple[Rollout, str]:
    if rollout.proposal is not None:
        plan = rollout.proposal.plan
        agreed = rollout.but(approval=Approval(envelope=envelope_of(plan), by=request.actor), look_asked=True)
        agreed = agreed.with_outlook(proposal=rollout.proposal.but(approved=True))
        return agreed, f"plan {plan.hash} is approved, and Backstop writes it if today's health backs it"
    assert rollout.plan is not None
    approved = drift.approve_others(rollout).but(
        approval=Approval(envelope=envelope_of(rollout.plan), by=request.actor)
    )
    return lift_hold(approved, REALIGN, now, request.actor, "approved"), f"plan {rollout.plan.hash} is approved"


def _object(rollout: Rollout, request: CommandRequest, now: datetime, one_objection: bool) -> tuple[Rollout, str]:
    hold = objections.objection(rollout, request.team, request.actor, request.reason, now, one_each=one_objection)
    late = hold.after_enforced
    consequence = "recorded too late to hold the rollout: a person must answer it" if late else "holds the rollout"
    gone = objections.earlier_objections(rollout, hold) if one_objection else ()
    instead = "; it replaces the earlier one" if {*gone} - {hold.id} else ""
    held = add_hold(rollout.but(holds=tuple(h for h in rollout.holds if h.id not in gone)), hold, now)
    return held, f"the objection{f' of {request.team} is' * late} {consequence}{instead}"


def add_hold(rollout: Rollout, hold: Hold, now: datetime) -> Rollout:
    """Add a hold, or replace the one with the same id."""
    others = tuple(h for h in rollout.holds if h.id != hold.id)
    return rollout.but(holds=(*others, hold)).record(
        AuditKind.HOLD, f"hold {hold.id}: {hold.reason}", now, actor=hold.actor, hold=hold.id, kind_of_hold=hold.kind
    )


def add_breach_hold(
    rollout: Rollout, hold_id: str, reason: str, now: datetime, kind: HoldKind = HoldKind.BREACH
) -> Rollout:
    """Hold until a person decides or health is good again, and call the owner."""
    hold = Hold(id=hold_id, kind=kind, reason=reason, actor="guard", at=now)
    recovers = {"recovers": duration_text(rollout.policy.clear_after)} if rollout.breach_of else {}
    return add_hold(rollout, hold, now).notify(NoticeKind.HELD, [], detail=reason, facts=recovers)


def lift_hold(rollout: Rollout, hold_id: str, now: datetime, actor: str, reason: str) -> Rollout:
    """Lift a hold, if it is in force."""
    if rollout.hold(hold_id) is None:
        return rollout
    return rollout.but(holds=tuple(h for h in rollout.holds if h.id != hold_id)).record(
        AuditKind.HOLD, f"hold {hold_id} lifted", now, actor=actor, reason=reason, hold=hold_id
    )


def _resume(rollout: Rollout, now: datetime) -> Rollout:
    left = tuple(h for h in rollout.holds if h.kind is not HoldKind.PAUSED)
    return rollout.but(holds=left, look_asked=True).with_stay(soak_since=now)


def _resolve(rollout: Rollout, request: CommandRequest, now: datetime, refits: bool) -> tuple[Rollout, str]:
    hold = rollout.hold(request.hold)
    if hold is None and request.hold == PROPOSAL and rollout.proposal is not None:
        text = f"plan {rollout.proposal.plan.hash} is declined; the quotas and the plan in force stay as they are"
        return rollout.with_outlook(proposal=None), text
    if hold is None:  # unknown health: a person confirms what was seen
        confirmed = rollout.but(sight=rollout.sight.confirm_suspect(), look_asked=True)
        return confirmed, "the sample is confirmed and counts from now on"
    freed = lift_hold(rollout, hold.id, now, request.actor, request.reason).but(look_asked=True)
    if hold.id == REPLAN:
        return freed.with_stay(replan=f"asked again by {request.actor}"), "Backstop is making another plan"
    if hold.id == REALIGN:
        again = freed.but(plan=rollout.standing_plan).with_stay(realigning=None)
        return again, "Backstop makes another plan if quotas are still short"
    match hold.kind:
        case HoldKind.DRIFT:
            return drift.answer_hold(rollout, freed, request.how, now, refits=refits)
        case HoldKind.BLAST_RADIUS:
            return freed.with_stay(exempt=True), "the blast radius does not limit the next write"
        case HoldKind.BREACH:
            return freed, "the hold is lifted; the breach lasts until health has been good for long enough"
        case _:
            return freed, f"hold {hold.id} is lifted"


def _undo(rollout: Rollout, command: Command, request: CommandRequest, now: datetime) -> tuple[Rollout, str]:
    then = Stage.ABORTED if command is Command.ABORT else Stage.ROLLED_BACK
    if not rollout.effects_stand:
        ended = rollout.notify(NoticeKind.CLOSED, sorted(rollout.announced.cuts), detail=request.reason).but(
            ended_because=request.reason
        )
        had = "what it had applied is undone already" if rollout.rollbacks else "nothing had been applied"
        return ended.enter_stage(Stage.ABORTED, now, request.reason, request.actor), f"aborted; {had}"
    undone = start_undo(rollout, now, actor=request.actor, reason=request.reason, then=then)
    sentence = "rolling back to the baseline" + ("; then the rollout ends" if then is Stage.ABORTED else "")
    assert undone.undo is not None
    return undone, sentence + _lacking_text(undone.undo.unbacked_gpus, undone.undo.changed)


def _lacking_text(gpus: int, changed: Mapping[str, int]) -> str:
    """Say how many GPUs have no hardware after the undo. `changed`: the quotas that others changed, and that stay."""
    has = verb_of(gpus, "has", "have")
    what = "the baseline and of what others changed" if changed else "the baseline"
    return f"; {gpus_text(gpus)} of {what} {has} no healthy hardware today" if gpus else ""


def start_undo(rollout: Rollout, now: datetime, *, actor: str, reason: str, then: Stage = Stage.ROLLED_BACK) -> Rollout:
    """Start the rollback to exactly the baseline."""
    target, changed = _baseline_left_to(rollout), find_foreign_changes(rollout)
    backing = backing_for(rollout, {**target, **changed})
    missing = 0 if backing is None else backing.phantom_gpus
    undo = Undo(
        why=UndoCause.UNDO,
        actor=actor,
        reason=reason,
        at=now,
        then=then,
        target=target,
        changed=changed,
        unbacked_gpus=missing,
        owed=tuple(reversed(rollout.standing)),
    )
    moved = without_own_holds(rollout).but(undo=undo, breach_of=())
    return moved.enter_stage(Stage.ROLLING_BACK, now, f"undo: {reason}{_lacking_text(missing, changed)}", actor)


def backing_for(rollout: Rollout, values: dict[str, int]) -> Backing | None:
    """Compute how much of these values the believed health would back; None if no health is known."""
    if rollout.sight.known is None:
        return None
    return back(on_islands(rollout.baseline.with_values(values), rollout.sight.known.islands))


def _baseline_left_to(rollout: Rollout) -> dict[str, int]:
    """Return the baseline's values, except where others changed or deleted a quota after our write."""
    values = rollout.baseline.values
    theirs = {*rollout.foreign}
    return {
        t: rollout.written[t] if t in theirs else v
        for t, v in values.items()
        if t not in theirs or t in rollout.written
    }


def without_own_holds(rollout: Rollout) -> Rollout:
    """Drop the holds that stopped an attempt: they have no meaning once it is undone."""
    own = (BREACH, REALIGN, ROLLBACK, RADIUS, REPLAN, UNMERGED)
    return rollout.but(holds=tuple(h for h in rollout.holds if h.id not in own))


def _retry(rollout: Rollout, request: CommandRequest, now: datetime) -> tuple[Rollout, str]:
    if rollout.stage is Stage.STUCK:
        left = effects_to_undo(rollout)
        standing = tuple(k for k in INVERSE if k in {*rollout.standing, *left})
        undone = tuple(k for k in rollout.undone if k not in left)
        again = rollout.but(standing=standing).with_undo(owed=left, undone=undone, stuck_on=())
        return again.enter_stage(Stage.ROLLING_BACK, now, "retry of what was left to undo", request.actor), (
            f"running {', '.join(INVERSE[kind] for kind in left)} again; if that fails, the rollout is stuck as before"
        )
    return next_attempt(rollout, now, request.actor, request.reason or "retry"), "the next attempt makes a new plan"


def effects_to_undo(rollout: Rollout) -> tuple[EffectKind, ...]:
    """Return the effects that a stuck rollback still owes.

    Softening sets every quota soft, so the effect that restores the modes comes after it.
    """
    left = tuple(u.kind for u in rollout.stuck_on)
    if (
        rollout.undo is None
        or rollout.undo.why is not UndoCause.UNDO
        or EffectKind.HARDEN not in left
        or EffectKind.SET_SOFT in left
    ):
        return left
    after = left.index(EffectKind.HARDEN) + 1
    return (*left[:after], EffectKind.SET_SOFT, *left[after:])


def next_attempt(rollout: Rollout, now: datetime, actor: str, why: str) -> Rollout:
    """Return to planned, from the same baseline."""
    fresh = rollout.but(attempt=rollout.attempt + 1, undo=None, breach_of=())
    return fresh.enter_stage(Stage.PLANNED, now, f"attempt {rollout.attempt + 1}: {why}", actor).with_stay(
        replan=f"attempt {rollout.attempt + 1}"
    )


CANCEL_IGNORED = "a cancel from Temporal was ignored, because this rollout takes only commands with a ticket"


def apply_cancel(rollout: Rollout, now: datetime, *, by_ticket: bool) -> Rollout:
    """Abort on a cancel from Temporal; if an abort is refused, keep a rollback under way going.

    `by_ticket`: the launch came with a ticket, so only a ticket ends the rollout: a cancel carries none.
    """
    if rollout.ticketed or by_ticket:
        return rollout.record(AuditKind.COMMAND, CANCEL_IGNORED, now, actor="temporal")
    request = CommandRequest(actor="temporal", reason="the workflow was cancelled")
    if refusal(rollout, Command.ABORT, request) is None:
        return obey(rollout, Command.ABORT, request, now)[0]
    return rollout.record(AuditKind.COMMAND, f"cancel ignored while {rollout.stage}", now, actor="temporal")
