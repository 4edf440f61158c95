"""What became of an effect, taken into a rollout's state: it landed, met others' values, or failed for good.

Every function answers a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from models.audit import BACKSTOP, AuditKind
from models.cluster.policy import RollbackTo
from models.cluster.readings import LimitMode
from models.errors import BlastRadius, Conflict, Drift
from models.notices import NoticeKind
from models.planning.plan import Plan
from models.rollout import drift, granting
from models.rollout.changes import change_for
from models.rollout.commands import holding, lifting, undoing
from models.rollout.effect_table import FOLLOWS_AFTER, INVERSE, KEPT_IN_A_BREACH, STEP_FROM, UNDOES
from models.rollout.effects import Change, EffectKind, Receipt, ValueConflict
from models.rollout.flex_following import flex_moves
from models.rollout.guard import Clocks
from models.rollout.holds import RADIUS, REALIGN, Hold, HoldKind
from models.rollout.stages import Stage
from models.rollout.state import Proposal, PublishedFlex, Rollout, UndoCause, Undone
from models.rollout.stuck import calling


def began(r: Rollout, kind: EffectKind) -> tuple[Rollout, Change]:
    """The call to make, and the state that owes its inverse from before the call on."""
    change = change_for(r, kind)
    begun = r.but(fence=r.fence + 1, stood=r.standing)
    if kind is EffectKind.GRANT and r.granting is not None:
        begun = begun.but(granting=r.granting.but(begun=True))
    if flex_moves(r, kind) and r.looked_after == r.fence:
        # It writes no quota: what was seen of them is not overtaken, and a drift can be answered meanwhile.
        begun = begun.but(looked_after=begun.fence)
    if kind in INVERSE and kind not in begun.standing:
        begun = begun.but(standing=(*begun.standing, kind))
    return begun, change


def aims_again(r: Rollout, receipt: Receipt) -> bool:
    """Others changed the cluster between a breach's aim and its write: it is aimed once more, with that counted."""
    if receipt.kind is not EffectKind.RESTORE or r.stage is not Stage.ROLLING_BACK or r.undo is None or r.seen is None:
        return False
    aimed = r.undo.why is UndoCause.BREACH and r.policy.rollback_to is not RollbackTo.BASELINE
    once = not r.shadow and not r.undo.aimed_again
    return aimed and once and receipt.generation != r.seen.reading.generation


def landed(r: Rollout, change: Change, receipt: Receipt, now: datetime, *, again: bool = True) -> Rollout:
    """After an effect's receipt: values, conflicts, and the next stage where the step is done.

    `again`: where `aims_again`, it is; so it is since patch `aimed-again`.
    """
    again = again and aims_again(r, receipt)
    r = r.but(asks=r.asks or again)
    kind = change.kind
    text = _what_moved(r, change, receipt)
    r = _written(r, change, receipt).noting(
        AuditKind.EFFECT,
        f"{kind}{': ' + text if text else ''}" + (" (shadow)" if r.shadow else ""),
        now,
        effect=kind.value,
        fence=receipt.fence.counter,
        before=receipt.before,
        after=receipt.after,
        receipt=receipt.model_dump(mode="json"),
        **_cut_by(r, change, receipt),
    )
    ours = {c.team: c.found_gpus for c in receipt.conflicts if c.found_gpus is not None}
    ours = {team: gpus for team, gpus in ours.items() if r.attempted.get(team) == gpus}
    r = _conflicted(r, change, [c for c in receipt.conflicts if c.team not in ours], now)
    if kind is EffectKind.RESTORE and ours:
        # The write that was never answered had landed. Its fence is dead now: once more, expecting its values.
        return r.but(written={**r.written, **ours}, attempted={})
    if again:
        return r.but(look_asked=True).rolling_back(aimed_again=True).staying(aiming=r.breach_of)
    if kind is EffectKind.GRANT:
        return granting.landed(r, receipt, now)
    if kind in UNDOES:
        return _inverted(r, UNDOES[kind])
    return _closed(r) if kind is EffectKind.CLOSE else _made(r, change, now)


def _cut_by(r: Rollout, change: Change, receipt: Receipt) -> dict[str, Any]:
    """For reports: how many GPUs of leaves the write took away (below zero: gave back), and what of them was phantom.

    Of the baseline the plan says what was phantom; of values that were written since (a realignment, another attempt)
    what was seen of them. What answers a breach says so: hardware no longer holds it, and no rollout has removed it.
    """
    if r.shadow or change.kind not in (EffectKind.SET_SOFT, EffectKind.RESTORE):
        return {}
    leaves = [w.team for w in change.writes if w.leaf and w.team in receipt.before]
    gpus = sum(receipt.before[t] - receipt.after.get(t, receipt.before[t]) for t in leaves)
    stood = max(0, gpus)
    if change.kind is EffectKind.SET_SOFT and r.plan is not None:
        stood = _phantom_of_what_stood(r, {team: receipt.before[team] for team in leaves}, r.plan)
    phantom = min(stood, max(0, gpus))
    cut: dict[str, Any] = {"gpus": gpus, "phantom_gpus": phantom, "to_flex_gpus": max(0, gpus) - phantom}
    breach = change.kind is EffectKind.RESTORE or (r.realigning and not r.proposing)
    return {"cut": {**cut, "breach": True} if breach and gpus > 0 else cut}


def _phantom_of_what_stood(r: Rollout, stood: Mapping[str, int], plan: Plan) -> int:
    """GPUs that leaves were promised before the write and that no healthy one stood behind."""
    baseline = {q.team: q.gpus for q in r.baseline.quotas}
    seen = None if r.seen is None or r.seen.health is None else r.seen
    if seen is None or stood.items() <= baseline.items() or not stood.items() <= seen.reading.values.items():
        return plan.phantom_gpus
    return max(0, seen.now.assigned_gpus - seen.now.backed_gpus)


def _written(r: Rollout, change: Change, receipt: Receipt) -> Rollout:
    """What the quota system holds by the receipt: values, modes, the flex pool."""
    changed = {t: gpus for t, gpus in receipt.before.items() if receipt.after.get(t, gpus) != gpus}
    r = r.but(written={**r.written, **receipt.after})
    if change.refits:
        return r
    if change.kind is EffectKind.SET_SOFT:
        r = r.but(was=changed)
    elif change.kind is EffectKind.RESTORE and r.undo is not None:  # one that is made again may find it done
        r = r.rolling_back(was={**changed, **r.undo.was})
    if change.mode is not None or change.writes:
        r = r.but(modes_given={} if change.mode is not None else _still_given(r, change))
    return r.but(flex=PublishedFlex(gpus=change.flex_gpus)) if change.kind in FOLLOWS_AFTER else r


def _what_moved(r: Rollout, change: Change, receipt: Receipt) -> str:
    if change.kind is EffectKind.FOLLOW and change.flex_gpus is not None:
        before = r.flex.gpus
        return f"flex pool {change.flex_gpus:,}" if before is None else f"flex {before:,} -> {change.flex_gpus:,}"
    if change.refits:
        return "no quota moves; the limit above all quotas fits what was accepted"
    moved = {t: (receipt.before.get(t), v) for t, v in receipt.after.items() if receipt.before.get(t) != v}
    return ", ".join(f"{t} {_or_absent(old)} -> {new:,}" for t, (old, new) in sorted(moved.items()))


def _or_absent(gpus: int | None) -> str:
    return "absent" if gpus is None else f"{gpus:,}"


def _made(r: Rollout, change: Change, now: datetime) -> Rollout:
    """A forward effect is made: of its step, of a rewrite in place, or the flex pool has moved."""
    if r.stage is Stage.ROLLING_BACK or r.stage.ended:
        return r  # an undo was ordered while this was under way; it is owed already
    if flex_moves(r, change.kind):
        return _flex_moved(r, change, now)
    if change.refits:
        return r.but(look_asked=True).staying(refitting=False)
    if r.stay.restoring:
        return r.but(look_asked=True).staying(restoring=False, exempt=False)
    r = r.staying(done=(*r.stay.done, change.kind))
    return _realigned(r, now) if r.realigning else _stepped(r, now)


def _flex_moved(r: Rollout, change: Change, now: datetime) -> Rollout:
    """What is seen is as another look would find it: that would cost more than the write."""
    if r.seen is None or r.seen.flex is None or change.flex_gpus is None:
        return r.but(look_asked=True)
    news = {"flex_gpus": change.flex_gpus, "flex_band_gpus": change.flex_band_gpus}
    seen = r.seen.model_copy(update={"reading": r.seen.reading.model_copy(update=news)})
    more = r.seen.flex.surplus_gpus - change.flex_gpus > change.flex_band_gpus
    return r.but(seen=seen, flex=r.flex.but(more_since=now if more else None))


def _still_given(r: Rollout, change: Change) -> dict[str, LimitMode]:
    ours = {w.team for w in change.writes if w.mode is not None}
    return {team: mode for team, mode in r.modes_given.items() if team not in ours}


def _conflicted(r: Rollout, change: Change, conflicts: Sequence[ValueConflict], now: datetime) -> Rollout:
    """Quotas that others changed are left alone, and known as theirs; those we wrote are ours again."""
    gone = {c.team for c in conflicts}
    moved = {w.team for w in change.writes if w.gpus != w.expected_gpus}
    r = drift.met(r, {c.team: c.found_gpus for c in conflicts}, {c.team: c.expected_gpus for c in conflicts})
    foreign, written = ({*r.foreign} - moved) | gone, r.written
    for conflict in conflicts:
        r = r.noting(
            AuditKind.EFFECT,
            f"conflict: {conflict.team} holds {_or_absent(conflict.found_gpus)}, not {conflict.expected_gpus:,}; "
            "left alone",
            now,
            conflict=conflict.model_dump(mode="json"),
        )
    restored, undo = change.kind is EffectKind.RESTORE, r.undo is not None and r.undo.why is UndoCause.UNDO
    if r.undo is not None and (restored or undo):
        # A restore that is made (again) would expect their value, and overwrite it. An undo that has restored names
        # them no more; else theirs is the value to come to.
        unnamed = gone if restored and undo else gone - written.keys()
        kept = {t: written[t] if t in gone else v for t, v in r.undo.target.items() if t not in unnamed}
        changed = {} if restored else r.undo.changed
        r = r.rolling_back(target=kept, changed=changed)
    return r.but(foreign=tuple(sorted(foreign)))


def _closed(r: Rollout) -> Rollout:
    teams = list(r.baseline.tree.leaves) if r.values_stand else r.affected
    return (
        r.telling(NoticeKind.CLOSED, teams, detail=r.ended_because).but(standing=()).staying(done=(EffectKind.CLOSE,))
    )


def _inverted(r: Rollout, forward: EffectKind) -> Rollout:
    """An inverse has landed. What a breach rollback keeps, at other values, goes on standing."""
    r = r.but(unanswered=tuple(k for k in r.unanswered if k is not forward))
    r = r.rolling_back(undone=(*r.undone, forward))
    if forward is EffectKind.SET_SOFT:
        r = r.but(attempted={})
    if forward in KEPT_IN_A_BREACH and r.undo is not None and r.undo.why is UndoCause.BREACH:
        return r.rolling_back(owed=tuple(k for k in r.owed if k is not forward))
    return _undone(r, forward)


def _undone(r: Rollout, forward: EffectKind) -> Rollout:
    standing = tuple(k for k in r.standing if k is not forward)
    return r.but(standing=standing).rolling_back(owed=tuple(k for k in r.owed if k is not forward))


def _realigned(r: Rollout, now: datetime) -> Rollout:
    if EffectKind.SET_SOFT not in r.stay.done:
        return r
    r = lifting(r, REALIGN, now, BACKSTOP, "written")
    teams, detail = r.affected, "the quotas were realigned in place"
    before = None if r.stay.realigning is None else r.stay.realigning.before
    if r.proposing and r.plan is not None and before is not None:
        was = before.values
        teams = tuple(q.team for q in r.plan.quotas if q.leaf and was.get(q.team) != q.after_gpus)
        detail = "the quotas follow the long-run health of the hardware"
    r = r.but(breach_of=(), clocks=Clocks(), look_asked=True)
    r = r.staying(realigning=None, done=(), exempt=False, soak_since=now).looking_out(considered_gpus=None)
    return r.telling(NoticeKind.CHANGED, teams, detail=detail)


_NOTICE_AT = {
    Stage.BUFFERED: NoticeKind.BUFFERED,
    Stage.ENFORCED: NoticeKind.ENFORCED,
    Stage.MONITORED: NoticeKind.MONITORED,
}


def _stepped(r: Rollout, now: datetime) -> Rollout:
    step = STEP_FROM[r.stage]
    if any(kind not in r.stay.done for kind in step.effects):
        return r
    if step.target is Stage.BUFFERED:
        r = r.but(clocks=Clocks())
    if any(h.id == RADIUS and h.until is not None for h in r.holds):
        r = lifting(r, RADIUS, now, BACKSTOP, "written")
    if step.target is Stage.MONITORED:
        r = r.but(completed=True, failures=0)
    r = r.reaching(step.target, now, "all conditions of the gate were met")
    return r.telling(_NOTICE_AT[step.target], r.affected)


def failed(
    r: Rollout, change: Change, error: str, reason: str, now: datetime, until: datetime | None = None
) -> Rollout:
    """An effect failed for good. `error`: the class name of models.errors, or Temporal's own.

    `until`: of a blast radius, when there is room again; a step waits for it, and nobody is called.
    """
    kind = change.kind
    r = r.noting(AuditKind.EFFECT, f"{kind} failed: {reason}", now, effect=kind.value, error=error, failed=True)
    if kind is EffectKind.GRANT:
        r = granting.failed(r, reason)
    if error == Conflict.__name__:
        return _superseded(r, reason, now)
    if kind is EffectKind.GRANT:
        return r
    if kind is EffectKind.CLOSE:
        return _closed(r).telling(NoticeKind.HELD, [], detail=f"closed, but what is reserved may stay so: {reason}")
    if kind in UNDOES:
        left = tuple(k for k in r.owed if k is not UNDOES[kind])
        return r.rolling_back(owed=left, stuck_on=(*r.stuck_on, Undone(kind=UNDOES[kind], reason=reason)))
    if flex_moves(r, kind):
        return r.but(flex=r.flex.but(failed_at=now), look_asked=True)  # the pool is as it was, or as it should be
    if change.refits:  # no quota has moved; where others changed one meanwhile, a person answers for that first
        return r.but(look_asked=True).staying(refitting=error == Drift.__name__)
    wrote_nothing = error in (Drift.__name__, BlastRadius.__name__)
    r = _unwritten(r, kind) if wrote_nothing else _unanswered(r, change)
    if r.stage is Stage.ROLLING_BACK or r.stage.ended:
        return r
    if error == Drift.__name__:
        plan_again = "others changed the cluster" if r.stage is Stage.PLANNED else ""
        return _not_in_place(r).but(look_asked=True).staying(replan=plan_again)
    if error == BlastRadius.__name__:
        return _past_the_radius(r, reason, now, until)
    return undoing(r, now, actor=BACKSTOP, reason=f"{kind} failed: {reason}")


def _superseded(r: Rollout, reason: str, now: datetime) -> Rollout:
    """Somebody newer owns the cluster: nothing may be undone any more."""
    r = r.but(superseded=reason).rolling_back(owed=())
    if r.stage.ended:
        return r.telling(NoticeKind.HELD, [], detail=f"{r.stage}, and somebody newer owns the cluster: {reason}")
    return calling(r, reason).reaching(Stage.STUCK, now, f"superseded: {reason}")


def _unwritten(r: Rollout, kind: EffectKind) -> Rollout:
    return r if kind in r.stood else _undone(r, kind)


def _unanswered(r: Rollout, change: Change) -> Rollout:
    """Nobody knows whether it landed."""
    if change.kind not in r.stood:
        r = r.but(unanswered=(*r.unanswered, change.kind))
    if change.kind is EffectKind.SET_SOFT:
        r = r.but(attempted={w.team: w.gpus for w in change.writes})
    return r


def _past_the_radius(r: Rollout, reason: str, now: datetime, until: datetime | None) -> Rollout:
    """A step waits until there is room again; what is written in place, and what has no such time, for a person."""
    in_step = not (r.realigning or r.stay.restoring)
    hold = Hold(
        id=RADIUS,
        kind=HoldKind.BLAST_RADIUS,
        reason=reason,
        actor=BACKSTOP,
        at=now,
        until=until if in_step else None,
    )
    held = holding(_not_in_place(r), hold, now)
    return held if hold.until is not None else held.telling(NoticeKind.HELD, [], detail=reason)


def _not_in_place(r: Rollout) -> Rollout:
    """A write in place came to nothing: the guard and the drift check begin anew."""
    outlook = r.stay.outlook
    if r.proposing and r.plan is not None:  # it is still proposed, and written once it can be
        outlook = outlook.but(proposal=Proposal(plan=r.plan, at=r.proposed_at or r.stay.since))
    return r.but(plan=r.plan_standing).staying(realigning=None, restoring=False, done=(), outlook=outlook)
