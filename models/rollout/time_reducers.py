"""Outcomes of time alone, applied to the state: a breach, its end, the next attempt, the end of a rollback.

Every function returns a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import BACKSTOP, AuditKind
from models.cluster.policy import OnBreach
from models.lifecycle.holds import BREACH, REALIGN, ROLLBACK, UNMERGED
from models.notices import NoticeKind
from models.planning.backing import less_shortage
from models.rollout import granting
from models.rollout.commands import add_breach_hold, backing_for, lift_hold, next_attempt
from models.rollout.decide import (
    breach_due,
    clear_due,
    has_looked_recently,
    is_answering_breach,
    retries_by_itself,
    retry_due,
)
from models.rollout.effect_table import KEPT_IN_A_BREACH
from models.rollout.gates import is_health_fresh
from models.rollout.guard import Clocks
from models.rollout.mailing import add_backing, notify_teams
from models.rollout.owner_news import forget_news
from models.rollout.proposals import give_up_proposal
from models.rollout.stages import Stage
from models.rollout.state import Realigning, Rollout, UndoCause
from models.rollout.stuck import call_owner
from models.texts import count_text, some_of, verb_of


def advance(rollout: Rollout, now: datetime) -> Rollout:
    """Apply what follows from the passing of time alone. Called before each decision; idempotent.

    The guard acts on a fresh look only, so that a shortage that ended unseen has no consequence. If looking fails, a
    breach goes by the last known health, and nothing gets better by itself.
    """
    rollout = forget_news(granting.test_order(granting.settle_order(rollout), now), now)
    if rollout.stage is Stage.ROLLING_BACK and not rollout.owed:
        return _finish_rollback(rollout, now)
    if rollout.stage is Stage.PLANNED:
        rollout = notify_teams(rollout, now)
    if not has_looked_recently(rollout, now):
        return rollout
    due = breach_due(rollout)
    if due is not None and now >= due:
        return _take_breach(rollout, now)
    if rollout.look_failed or not is_health_fresh(rollout):
        return rollout
    retry = retry_due(rollout, now)
    if retry is not None and now >= retry:
        return next_attempt(rollout, now, BACKSTOP, "health has been good long enough")
    clear = clear_due(rollout)
    return _clear_breach(rollout, now) if clear is not None and now >= clear else rollout


def _clear_breach(rollout: Rollout, now: datetime) -> Rollout:
    """End a held breach that has been clear for long enough; soaks start again."""
    for hold_id in (BREACH, REALIGN, ROLLBACK):
        rollout = lift_hold(rollout, hold_id, now, "guard", "backed again")
    rollout = rollout.but(breach_of=(), plan=rollout.standing_plan).with_stay(
        soak_since=now, realigning=None, replan="", done=()
    )
    again = "backed again: the promise holds" if rollout.stage.promises else "backed again: no quota is in breach"
    return rollout.record(AuditKind.GUARD, again, now)


def _take_breach(rollout: Rollout, now: datetime) -> Rollout:
    teams = rollout.clocks.breached_teams(now, rollout.policy.breach_after)
    if rollout.stage is Stage.PLANNED:
        return rollout.but(clocks=Clocks()).with_stay(replan="today's health no longer backs the plan")
    news = tuple(t for t in teams if t not in rollout.breach_of)
    text = rollout.clocks.lacks(teams)
    if rollout.is_proposing:
        rollout = give_up_proposal(rollout, "a quota is in breach", now)
    rollout = rollout.with_outlook(proposal=None, reconsider=())
    waits = is_answering_breach(rollout)
    if news:
        rollout = rollout.but(breach_of=tuple(sorted({*rollout.breach_of, *news})))
        rollout = rollout.record(
            AuditKind.GUARD, f"breach: {text}", now, breach={t: rollout.clocks.at_risk.get(t, 0) for t in teams}
        )
        goes = rollout.policy.on_breach is OnBreach.ROLLBACK and not waits
        facts = {"to_owner": False, **({"goes_back": True} if goes else {})}
        rollout = rollout.notify(NoticeKind.BREACH, news, detail=text, facts=facts)
    match rollout.policy.on_breach:
        case OnBreach.HOLD:
            return add_breach_hold(rollout, BREACH, text, now)
        case OnBreach.ROLLBACK if not waits:
            return rollout.with_stay(aiming=rollout.breach_of)
        case OnBreach.REALIGN if not waits:
            realigning = Realigning(before=rollout.standing_plan)
            rollout = lift_hold(rollout, UNMERGED, now, "guard", "the quotas are realigned instead")
            return rollout.with_stay(realigning=realigning, restoring=False, done=(), replan=f"realign: {text}")
        case _:
            return rollout


def _finish_rollback(rollout: Rollout, now: datetime) -> Rollout:
    assert rollout.undo is not None
    if rollout.stuck_on:
        why = "; ".join(f"{u.kind} is not undone: {u.reason}" for u in rollout.stuck_on)
        return call_owner(rollout, f"{rollout.undo.why}, by {rollout.undo.actor}: {rollout.undo.reason}").enter_stage(
            Stage.STUCK, now, why
        )
    undo, breach = rollout.undo, rollout.undo.why is UndoCause.BREACH
    notes = [f"broken floors: {some_of(undo.broken_floors)}"] if undo.broken_floors else []
    if rollout.foreign:
        notes.append(f"left as others changed them: {some_of(rollout.foreign)}")
    more = "".join(f"; {note}" for note in notes)
    rollout = rollout.but(
        standing=KEPT_IN_A_BREACH if breach else (),
        foreign=rollout.foreign if breach else (),
        attempted={},
        clocks=Clocks(),
        breach_of=(),
    )
    data = {"breach_seconds": (now - undo.at).total_seconds()} if breach else {}
    rollout = rollout.enter_stage(Stage.ROLLED_BACK, now, f"{undo.why}{more}", undo.actor, **data)
    teams = list(rollout.baseline.tree.leaves) if breach else rollout.affected_teams
    rollout = rollout.notify(NoticeKind.ROLLED_BACK, teams, detail=undo.reason + more, facts={"to_owner": False})
    if undo.then is Stage.ABORTED:
        values = {**rollout.baseline.values, **rollout.written}
        backing = backing_for(rollout, values)
        if backing is not None and is_health_fresh(rollout):  # nobody looks at an ended rollout
            rollout = add_backing(rollout, less_shortage(values, backing.of, backing.shortage))
        return rollout.but(ended_because=undo.reason).enter_stage(Stage.ABORTED, now, undo.reason, undo.actor)
    if breach and not retries_by_itself(rollout):
        failed = f"{count_text(rollout.failures, 'attempt')} {verb_of(rollout.failures, 'has', 'have')} failed"
        rollout = rollout.notify(NoticeKind.HELD, [], detail=f"{failed}; `retry` or `close` it")
    if not breach and undo.actor == BACKSTOP:
        rollout = rollout.notify(NoticeKind.HELD, [], detail=f"undone: {undo.reason}; `retry` or `close` it")
    return rollout
