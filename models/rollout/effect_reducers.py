"""Outcomes of an effect, applied to the state: it landed, met values of others, or failed for good.

Every function returns a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from models.audit_chain import BACKSTOP, AuditKind
from models.cluster.policy import RollbackTo
from models.cluster.readings import LimitMode
from models.errors import AwaitsMerge, BlastRadius, Conflict, Drift
from models.lifecycle.holds import RADIUS, REALIGN, UNMERGED, Hold, HoldKind
from models.notices import NoticeKind
from models.planning.plan import Plan
from models.rollout import drift, granting
from models.rollout.commands import add_hold, lift_hold, start_undo
from models.rollout.effect_changes import change_for
from models.rollout.effect_table import FOLLOWS_AFTER, INVERSE, KEPT_IN_A_BREACH, STEP_FROM, UNDOES
from models.rollout.effects import Change, EffectKind, Receipt, ValueConflict
from models.rollout.flex_following import flex_moves
from models.rollout.guard import Clocks
from models.rollout.stages import Stage
from models.rollout.state import Proposal, PublishedFlex, Rollout, UndoCause, Undone
from models.rollout.stuck import call_owner, phrases_of


def begin_effect(rollout: Rollout, kind: EffectKind) -> tuple[Rollout, Change]:
    """Return the call to make, and the state that owes its inverse from before the call on."""
    change = change_for(rollout, kind)
    begun = rollout.but(fence=rollout.fence + 1, stood=rollout.standing)
    if kind is EffectKind.GRANT and rollout.granting is not None:
        begun = begun.but(granting=rollout.granting.but(begun=True))
    if flex_moves(rollout, kind) and not rollout.is_overtaken:
        # It writes no quota, so the last look at them stays valid, and a person can answer a drift meanwhile.
        begun = begun.but(looked_after=begun.fence)
    if kind in INVERSE and kind not in begun.standing:
        begun = begun.but(standing=(*begun.standing, kind))
    return begun, change


def aims_again(rollout: Rollout, receipt: Receipt) -> bool:
    """Return whether to aim again: others changed the cluster between the aim of a breach rollback and its write."""
    if (
        receipt.kind is not EffectKind.RESTORE
        or rollout.stage is not Stage.ROLLING_BACK
        or rollout.undo is None
        or rollout.seen is None
    ):
        return False
    aimed = rollout.answers_breach and rollout.policy.rollback_to is not RollbackTo.BASELINE
    once = not rollout.shadow and not rollout.undo.aimed_again
    return aimed and once and receipt.generation != rollout.seen.reading.generation


def apply_receipt(rollout: Rollout, change: Change, receipt: Receipt, now: datetime, *, again: bool = True) -> Rollout:
    """Apply a receipt: values, conflicts, and the next stage if the step is complete.

    `again`: aim again where `aims_again` says so (since patch `aimed-again`).
    """
    again = again and aims_again(rollout, receipt)
    rollout = _end_merge(rollout, change, now)
    rollout = rollout.but(asks=rollout.asks or again)
    kind = change.kind
    text = _moved_text(rollout, change, receipt) or _made_text(rollout, kind)
    rollout = _record_values(rollout, change, receipt).record(
        AuditKind.EFFECT,
        f"{kind}{': ' + text if text else ''}" + (" (shadow)" if rollout.shadow else ""),
        now,
        effect=kind.value,
        fence=receipt.fence.counter,
        before=receipt.before,
        after=receipt.after,
        receipt=receipt.model_dump(mode="json"),
        **_cut_by(rollout, change, receipt),
    )
    ours = {c.team: c.found_gpus for c in receipt.conflicts if c.found_gpus is not None}
    ours = {team: gpus for team, gpus in ours.items() if rollout.attempted.get(team) == gpus}
    rollout = _record_conflicts(rollout, change, [c for c in receipt.conflicts if c.team not in ours], now)
    if kind is EffectKind.RESTORE and ours:
        # The write without an answer had landed. Its fence is used up, so restore again, expecting its values.
        return rollout.but(written={**rollout.written, **ours}, attempted={})
    if again:
        return rollout.but(look_asked=True).with_undo(aimed_again=True).with_stay(aiming=rollout.breach_of)
    if kind is EffectKind.GRANT:
        return granting.record_grant(rollout, receipt, now)
    if kind in UNDOES:
        return _record_inverse(rollout, UNDOES[kind])
    return _notify_closed(rollout) if kind is EffectKind.CLOSE else _record_forward(rollout, change, now)


def _cut_by(rollout: Rollout, change: Change, receipt: Receipt) -> dict[str, Any]:
    """Return, for reports, the GPUs that the write took from leaves (negative: gave back), and how many were phantom.

    For values of the baseline the plan says how many were phantom; for later values (a realignment, another attempt)
    the last look does. An answer to a breach is marked: hardware had lost those GPUs, the rollout did not cut them. A
    value written again after a drift counts as neither: others had moved those GPUs.
    """
    if rollout.shadow or rollout.stay.restoring or change.kind not in (EffectKind.SET_SOFT, EffectKind.RESTORE):
        return {}
    leaves = [w.team for w in change.writes if w.leaf and w.team in receipt.before]
    gpus = sum(receipt.before[t] - receipt.after.get(t, receipt.before[t]) for t in leaves)
    stood = max(0, gpus)
    if change.kind is EffectKind.SET_SOFT and rollout.plan is not None:
        stood = _phantom_of_what_stood(rollout, {team: receipt.before[team] for team in leaves}, rollout.plan)
    phantom = min(stood, max(0, gpus))
    cut: dict[str, Any] = {"gpus": gpus, "phantom_gpus": phantom, "to_flex_gpus": max(0, gpus) - phantom}
    breach = change.kind is EffectKind.RESTORE or (rollout.is_realigning and not rollout.is_proposing)
    return {"cut": {**cut, "breach": True} if breach and gpus > 0 else cut}


def _phantom_of_what_stood(rollout: Rollout, stood: Mapping[str, int], plan: Plan) -> int:
    """Return the GPUs promised to leaves before the write that had no healthy one behind them."""
    baseline = rollout.baseline.values
    seen = None if rollout.seen is None or rollout.seen.health is None else rollout.seen
    if seen is None or stood.items() <= baseline.items() or not stood.items() <= seen.reading.values.items():
        return plan.phantom_gpus
    return seen.now.phantom_gpus


def _record_values(rollout: Rollout, change: Change, receipt: Receipt) -> Rollout:
    changed = {t: gpus for t, gpus in receipt.before.items() if receipt.after.get(t, gpus) != gpus}
    if change.kind is not EffectKind.GRANT and rollout.on_top:
        moved = {t for t, gpus in receipt.after.items() if rollout.written.get(t) != gpus}
        rollout = rollout.but(
            on_top=tuple(grant for grant in rollout.on_top if not moved & {*rollout.grants.get(grant, {})})
        )
    rollout = rollout.but(written={**rollout.written, **receipt.after})
    if change.refits:
        return rollout
    if change.kind is EffectKind.SET_SOFT:
        rollout = rollout.but(was=changed)
    elif change.kind is EffectKind.RESTORE and rollout.undo is not None:  # a repeated restore may already have landed
        rollout = rollout.with_undo(was={**changed, **rollout.undo.was})
    if change.mode is not None or change.writes:
        rollout = rollout.but(modes_given={} if change.mode is not None else _modes_kept(rollout, change))
    return rollout.but(flex=PublishedFlex(gpus=change.flex_gpus)) if change.kind in FOLLOWS_AFTER else rollout


def _moved_text(rollout: Rollout, change: Change, receipt: Receipt) -> str:
    if change.kind is EffectKind.FOLLOW and change.flex_gpus is not None:
        before = rollout.flex.gpus
        return f"flex pool {change.flex_gpus:,}" if before is None else f"flex {before:,} -> {change.flex_gpus:,}"
    if change.refits:
        return "no quota moves; the limit on the sum of all quotas now fits the values that a person accepted"
    moved = {t: (receipt.before.get(t), v) for t, v in receipt.after.items() if receipt.before.get(t) != v}
    return ", ".join(f"{t} {_or_absent(old)} -> {new:,}" for t, (old, new) in sorted(moved.items()))


def _made_text(rollout: Rollout, kind: EffectKind) -> str:
    """Say what is so after an effect that moves no quota; empty for a rehearsal, after which nothing is so."""
    if rollout.shadow or kind is EffectKind.GRANT:
        return ""
    if kind is EffectKind.CLOSE:
        return "the reservation ends, the quotas stay"
    phrases = phrases_of(rollout, UNDOES.get(kind, kind))
    return phrases.undone if kind in UNDOES and kind is not EffectKind.RESTORE else phrases.made


def _or_absent(gpus: int | None) -> str:
    return "absent" if gpus is None else f"{gpus:,}"


def _record_forward(rollout: Rollout, change: Change, now: datetime) -> Rollout:
    """Apply a forward effect: one of a step, a rewrite in place, or a move of the flex pool."""
    if rollout.stage is Stage.ROLLING_BACK or rollout.stage.has_ended:
        return rollout  # an undo was ordered while this effect was under way, and already owes its inverse
    if flex_moves(rollout, change.kind):
        return _record_flex(rollout, change, now)
    if change.refits:
        return rollout.but(look_asked=True).with_stay(refitting=False)
    if rollout.stay.restoring:
        return rollout.but(look_asked=True).with_stay(restoring=False, exempt=False)
    rollout = rollout.with_stay(done=(*rollout.stay.done, change.kind))
    return _finish_realignment(rollout, now) if rollout.is_realigning else _finish_step(rollout, now)


def _record_flex(rollout: Rollout, change: Change, now: datetime) -> Rollout:
    """Update the flex pool and what was seen of it, to save another look, which would cost more than the write."""
    if rollout.seen is None or rollout.seen.flex is None or change.flex_gpus is None:
        return rollout.but(look_asked=True)
    news = {"flex_gpus": change.flex_gpus, "flex_band_gpus": change.flex_band_gpus}
    seen = rollout.seen.model_copy(update={"reading": rollout.seen.reading.model_copy(update=news)})
    more = rollout.seen.flex.surplus_gpus - change.flex_gpus > change.flex_band_gpus
    return rollout.but(seen=seen, flex=rollout.flex.but(more_since=now if more else None))


def _modes_kept(rollout: Rollout, change: Change) -> dict[str, LimitMode]:
    ours = {w.team for w in change.writes if w.mode is not None}
    return {team: mode for team, mode in rollout.modes_given.items() if team not in ours}


def _record_conflicts(rollout: Rollout, change: Change, conflicts: Sequence[ValueConflict], now: datetime) -> Rollout:
    """Leave quotas that others changed alone, and mark them as theirs; those we wrote are ours again."""
    gone = {c.team for c in conflicts}
    moved = {w.team for w in change.writes if w.gpus != w.expected_gpus}
    rollout = drift.note_others(
        rollout, {c.team: c.found_gpus for c in conflicts}, {c.team: c.expected_gpus for c in conflicts}
    )
    foreign, written = ({*rollout.foreign} - moved) | gone, rollout.written
    for conflict in conflicts:
        rollout = rollout.record(
            AuditKind.EFFECT,
            f"conflict: others changed {conflict.team}, which is {_or_absent(conflict.found_gpus)}, and not "
            f"{conflict.expected_gpus:,} as Backstop expected; Backstop leaves it alone",
            now,
            conflict=conflict.model_dump(mode="json"),
        )
    restored, undo = change.kind is EffectKind.RESTORE, rollout.undo is not None and rollout.undo.why is UndoCause.UNDO
    if rollout.undo is not None and (restored or undo):
        # A restore that is made (again) would expect the value of others, and overwrite it. An undo that has restored
        # drops these teams from its target; otherwise their value becomes the target.
        unnamed = gone if restored and undo else gone - written.keys()
        kept = {t: written[t] if t in gone else v for t, v in rollout.undo.target.items() if t not in unnamed}
        changed = {} if restored else rollout.undo.changed
        rollout = rollout.with_undo(target=kept, changed=changed)
    return rollout.but(foreign=tuple(sorted(foreign)))


def _notify_closed(rollout: Rollout) -> Rollout:
    teams = list(rollout.baseline.tree.leaves) if rollout.values_stand else rollout.affected_teams
    return (
        rollout.notify(NoticeKind.CLOSED, teams, detail=rollout.ended_because)
        .but(standing=())
        .with_stay(done=(EffectKind.CLOSE,))
    )


def _record_inverse(rollout: Rollout, forward: EffectKind) -> Rollout:
    """Apply an inverse. Effects that a breach rollback keeps, at other values, stay in force."""
    rollout = rollout.but(unanswered=tuple(k for k in rollout.unanswered if k is not forward))
    rollout = rollout.with_undo(undone=(*rollout.undone, forward))
    if forward is EffectKind.SET_SOFT:
        rollout = rollout.but(attempted={})
    if forward in KEPT_IN_A_BREACH and rollout.answers_breach:
        return rollout.with_undo(owed=tuple(k for k in rollout.owed if k is not forward))
    return _drop_effect(rollout, forward)


def _drop_effect(rollout: Rollout, forward: EffectKind) -> Rollout:
    standing = tuple(k for k in rollout.standing if k is not forward)
    return rollout.but(standing=standing).with_undo(owed=tuple(k for k in rollout.owed if k is not forward))


def _finish_realignment(rollout: Rollout, now: datetime) -> Rollout:
    if EffectKind.SET_SOFT not in rollout.stay.done:
        return rollout
    rollout = lift_hold(rollout, REALIGN, now, BACKSTOP, "written")
    teams, detail = rollout.affected_teams, "the quotas were realigned in place"
    before = None if rollout.stay.realigning is None else rollout.stay.realigning.before
    if rollout.is_proposing and rollout.plan is not None and before is not None:
        values_before = before.values
        teams = tuple(
            quota.team
            for quota in rollout.plan.quotas
            if quota.leaf and values_before.get(quota.team) != quota.after_gpus
        )
        detail = "the quotas follow the long-run health of the hardware"
    rollout = rollout.but(breach_of=(), clocks=Clocks(), look_asked=True)
    rollout = rollout.with_stay(realigning=None, done=(), exempt=False, soak_since=now).with_outlook(
        considered_gpus=None
    )
    return rollout.notify(NoticeKind.CHANGED, teams, detail=detail)


_NOTICE_AT = {
    Stage.BUFFERED: NoticeKind.BUFFERED,
    Stage.ENFORCED: NoticeKind.ENFORCED,
    Stage.MONITORED: NoticeKind.MONITORED,
}


def _finish_step(rollout: Rollout, now: datetime) -> Rollout:
    step = STEP_FROM[rollout.stage]
    if any(kind not in rollout.stay.done for kind in step.effects):
        return rollout
    if step.target is Stage.BUFFERED:
        rollout = rollout.but(clocks=Clocks())
    if any(h.id == RADIUS and h.until is not None for h in rollout.holds):
        rollout = lift_hold(rollout, RADIUS, now, BACKSTOP, "written")
    if step.target is Stage.MONITORED:
        rollout = rollout.but(completed=True, failures=0)
    rollout = rollout.enter_stage(step.target, now, "all conditions of the gate were met")
    return rollout.notify(_NOTICE_AT[step.target], rollout.affected_teams)


def fail_effect(
    rollout: Rollout, change: Change, error: str, reason: str, now: datetime, until: datetime | None = None
) -> Rollout:
    """Apply an effect that failed for good. `error`: the class name of models.errors, or Temporal's own.

    `until`: for a blast radius, when there is room again; a step waits for it, and nobody is called.
    """
    kind, rollout = change.kind, _end_merge(rollout, change, now)
    if error == AwaitsMerge.__name__:
        return _await_merge(rollout, change, reason, now)
    rollout = rollout.record(
        AuditKind.EFFECT, f"{kind} failed: {reason}", now, effect=kind.value, error=error, failed=True
    )
    if kind is EffectKind.GRANT:
        rollout = granting.fail_order(rollout, reason)
    if error == Conflict.__name__:
        return _give_way(rollout, reason, now)
    if kind is EffectKind.GRANT:
        return rollout
    if kind is EffectKind.CLOSE:
        return _notify_closed(rollout).notify(
            NoticeKind.HELD, [], detail=f"closed, but reserved GPUs may stay reserved: {reason}"
        )
    if kind in UNDOES:
        left = tuple(k for k in rollout.owed if k is not UNDOES[kind])
        return rollout.with_undo(owed=left, stuck_on=(*rollout.stuck_on, Undone(kind=UNDOES[kind], reason=reason)))
    if flex_moves(rollout, kind):
        # The pool has its earlier or its new size.
        return rollout.but(flex=rollout.flex.but(failed_at=now), look_asked=True)
    if change.refits:  # no quota has moved; if others changed one meanwhile, a person decides first
        return rollout.but(look_asked=True).with_stay(refitting=error == Drift.__name__)
    wrote_nothing = error in (Drift.__name__, BlastRadius.__name__)
    if not wrote_nothing:
        rollout = _mark_unanswered(rollout, change)
    elif kind not in rollout.stood:
        rollout = _drop_effect(rollout, kind)
    if rollout.stage is Stage.ROLLING_BACK or rollout.stage.has_ended:
        return rollout
    if error == Drift.__name__:
        plan_again = "others changed the cluster" if rollout.stage is Stage.PLANNED else ""
        return _not_in_place(rollout).but(look_asked=True).with_stay(replan=plan_again)
    if error == BlastRadius.__name__:
        return _hold_for_radius(rollout, reason, now, until)
    return start_undo(rollout, now, actor=BACKSTOP, reason=f"{kind} failed: {reason}")


def _end_merge(rollout: Rollout, change: Change, now: datetime) -> Rollout:
    """Lift the hold of an effect that waited for a merge, now that it was delivered again."""
    writes = change.kind in (EffectKind.SET_SOFT, EffectKind.HARDEN) and not change.refits
    return lift_hold(rollout, UNMERGED, now, BACKSTOP, f"{change.kind} was delivered again") if writes else rollout


def _await_merge(rollout: Rollout, change: Change, reason: str, now: datetime) -> Rollout:
    """Hold until people merge the effect, which waits on a branch. It is not in force, and is delivered again then."""
    kind = change.kind
    if kind is EffectKind.GRANT:
        return granting.fail_order(rollout, reason)
    if kind not in UNDOES:
        if rollout.stage is Stage.ROLLING_BACK or rollout.stage.has_ended:
            return rollout  # an undo was ordered meanwhile: it withdraws the branch
        if kind not in rollout.stood:
            rollout = _drop_effect(rollout, kind)
    why = f"the rollback is not done: {reason}" if kind in UNDOES else reason
    hold = Hold(id=UNMERGED, kind=HoldKind.MERGE, reason=why, actor=BACKSTOP, at=now)
    return add_hold(rollout.but(look_asked=True), hold, now).notify(NoticeKind.HELD, [], detail=why)


def _give_way(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    """Stop undoing: somebody newer owns the cluster."""
    rollout = rollout.but(superseded=reason).with_undo(owed=())
    if rollout.stage.has_ended:
        return rollout.notify(
            NoticeKind.HELD, [], detail=f"{rollout.stage}, and a newer rollout owns the cluster: {reason}"
        )
    return call_owner(rollout, reason).enter_stage(Stage.STUCK, now, f"superseded: {reason}")


def _mark_unanswered(rollout: Rollout, change: Change) -> Rollout:
    """Note that nobody knows whether the effect landed."""
    if change.kind not in rollout.stood:
        rollout = rollout.but(unanswered=(*rollout.unanswered, change.kind))
    if change.kind is EffectKind.SET_SOFT:
        rollout = rollout.but(attempted={w.team: w.gpus for w in change.writes})
    return rollout


def _hold_for_radius(rollout: Rollout, reason: str, now: datetime, until: datetime | None) -> Rollout:
    """Hold a step until there is room again; hold a write in place, or one without such a time, for a person."""
    in_step = not (rollout.is_realigning or rollout.stay.restoring)
    hold = Hold(
        id=RADIUS, kind=HoldKind.BLAST_RADIUS, reason=reason, actor=BACKSTOP, at=now, until=until if in_step else None
    )
    held = add_hold(_not_in_place(rollout), hold, now)
    return held if hold.until is not None else held.notify(NoticeKind.HELD, [], detail=reason)


def _not_in_place(rollout: Rollout) -> Rollout:
    """Give up a write in place: the guard and the drift check start again."""
    outlook = rollout.stay.outlook
    if rollout.is_proposing and rollout.plan is not None:  # it stays a proposal, to be written once it can be
        outlook = outlook.but(proposal=Proposal(plan=rollout.plan, at=rollout.proposed_at or rollout.stay.since))
    return rollout.but(plan=rollout.standing_plan).with_stay(realigning=None, restoring=False, done=(), outlook=outlook)
