"""What time alone brings, taken into a rollout's state: a breach, its end, the next attempt, the end of a rollback.

Every function answers a new Rollout; none decides what to do next (models/rollout/decide.py does).
"""

from __future__ import annotations

from datetime import datetime

from models.audit import BACKSTOP, AuditKind
from models.base import count_text, some_of, verb_of
from models.cluster.policy import OnBreach
from models.notices import NoticeKind
from models.rollout import granting
from models.rollout.commands import (
    breach_holding,
    lifting,
    next_attempt,
)
from models.rollout.decide import (
    answered,
    breach_due,
    clear_due,
    looked_recently,
    retries_by_itself,
    retry_due,
)
from models.rollout.effect_table import KEPT_IN_A_BREACH
from models.rollout.gates import health_fresh
from models.rollout.guard import Clocks
from models.rollout.holds import BREACH, REALIGN, ROLLBACK
from models.rollout.long_run import given_up
from models.rollout.mailing import noticing
from models.rollout.owner_news import forgotten
from models.rollout.stages import Stage
from models.rollout.state import Realigning, Rollout, UndoCause
from models.rollout.stuck import calling


def advance(r: Rollout, now: datetime) -> Rollout:
    """What follows from the passing of time alone. Called before each decision; idempotent.

    The guard acts on a fresh look only, so that what ended unseen has no consequence; where looking
    fails, a breach goes by what is known, and nothing gets better by itself.
    """
    r = forgotten(granting.looked(granting.settled(r), now), now)
    if r.stage is Stage.ROLLING_BACK and not r.owed:
        return _rolled_back(r, now)
    if r.stage is Stage.PLANNED:
        r = noticing(r, now)
    if not looked_recently(r, now):
        return r
    due = breach_due(r)
    if due is not None and now >= due:
        return _breached(r, now)
    if r.look_failed or not health_fresh(r):
        return r
    retry = retry_due(r, now)
    if retry is not None and now >= retry:
        return next_attempt(r, now, BACKSTOP, "health has been good long enough")
    clear = clear_due(r)
    return _good_again(r, now) if clear is not None and now >= clear else r


def _good_again(r: Rollout, now: datetime) -> Rollout:
    """A held breach that has cleared for long enough is over; soaks start anew."""
    for hold_id in (BREACH, REALIGN, ROLLBACK):
        r = lifting(r, hold_id, now, "guard", "backed again")
    r = r.but(breach_of=(), plan=r.plan_standing).staying(soak_since=now, realigning=None, replan="", done=())
    return r.noting(AuditKind.GUARD, "backed again: the promise holds", now)


def _breached(r: Rollout, now: datetime) -> Rollout:
    teams = r.clocks.breached(now, r.policy.breach_after)
    if r.stage is Stage.PLANNED:
        return r.but(clocks=Clocks()).staying(replan="today's health no longer backs the plan")
    news = tuple(t for t in teams if t not in r.breach_of)
    text = r.clocks.lacks(teams)
    if r.proposing:
        r = given_up(r, "a quota is in breach", now)
    r = r.looking_out(proposal=None, reconsider=())
    waits = answered(r)
    if news:
        r = r.but(breach_of=tuple(sorted({*r.breach_of, *news})))
        r = r.noting(AuditKind.GUARD, f"breach: {text}", now, breach={t: r.clocks.at_risk.get(t, 0) for t in teams})
        goes = r.policy.on_breach is OnBreach.ROLLBACK and not waits
        facts = {"to_owner": False, **({"goes_back": True} if goes else {})}
        r = r.telling(NoticeKind.BREACH, news, detail=text, facts=facts)
    match r.policy.on_breach:
        case OnBreach.HOLD:
            return breach_holding(r, BREACH, text, now)
        case OnBreach.ROLLBACK if not waits:
            return r.staying(aiming=r.breach_of)
        case OnBreach.REALIGN if not waits:
            realigning = Realigning(before=r.plan_standing)
            return r.staying(realigning=realigning, restoring=False, done=(), replan=f"realign: {text}")
        case _:
            return r


def _rolled_back(r: Rollout, now: datetime) -> Rollout:
    assert r.undo is not None
    if r.stuck_on:
        why = "; ".join(f"{u.kind} is not undone: {u.reason}" for u in r.stuck_on)
        return calling(r, f"{r.undo.why}, by {r.undo.actor}: {r.undo.reason}").reaching(Stage.STUCK, now, why)
    undo, breach = r.undo, r.undo.why is UndoCause.BREACH
    notes = [f"broken floors: {some_of(undo.broken_floors)}"] if undo.broken_floors else []
    if r.foreign:
        notes.append(f"left as others changed it: {some_of(r.foreign)}")
    more = "".join(f"; {note}" for note in notes)
    r = r.but(
        standing=KEPT_IN_A_BREACH if breach else (),
        foreign=r.foreign if breach else (),
        attempted={},
        clocks=Clocks(),
        breach_of=(),
    )
    data = {"breach_seconds": (now - undo.at).total_seconds()} if breach else {}
    r = r.reaching(Stage.ROLLED_BACK, now, f"{undo.why}{more}", undo.actor, **data)
    teams = list(r.baseline.tree.leaves) if breach else r.affected
    r = r.telling(NoticeKind.ROLLED_BACK, teams, detail=undo.reason + more, facts={"to_owner": False})
    if undo.then is Stage.ABORTED:
        return r.but(ended_because=undo.reason).reaching(Stage.ABORTED, now, undo.reason, undo.actor)
    if breach and not retries_by_itself(r):
        failed = f"{count_text(r.failures, 'attempt')} {verb_of(r.failures, 'has', 'have')} failed"
        r = r.telling(NoticeKind.HELD, [], detail=f"{failed}; `retry` or `close` it")
    if not breach and undo.actor == BACKSTOP:
        r = r.telling(NoticeKind.HELD, [], detail=f"undone: {undo.reason}; `retry` or `close` it")
    return r
