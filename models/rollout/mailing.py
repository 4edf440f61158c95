"""Notices and archive entries of a rollout's state: whom to tell, what was told, what is archived."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from models.audit import AuditKind
from models.base import shortened
from models.notices import STARTS_A_CLOCK, Notice, NoticeKind
from models.planning.plan import Plan
from models.rollout.fitting import MOST_UNDELIVERED
from models.rollout.messages import RecordRequest
from models.rollout.state import Rollout
from models.wire import TellAnswer

_WORDS_BYTES = 500
"""Of what a channel says: the state carries it, the archive has all."""


def noticing(r: Rollout, now: datetime) -> Rollout:
    """Once a plan is approved, tell whom it cuts; later only those whose cut grew."""
    if r.plan is None or r.stay.replan or not r.approved:
        return r
    grown = newly_cut(r, r.plan)
    if grown:
        kind = NoticeKind.CHANGED if r.announced.cuts else NoticeKind.PLANNED
        r = r.announcing(
            cuts={**r.announced.cuts, **grown},
            acks=tuple(t for t in r.announced.acks if t not in grown or t not in r.announced.cuts),
            delivered_at=None,
            undelivered=(),
        )
        return r.telling(kind, grown, effective_at=now + r.policy.notice)
    if r.announced.delivered_at is None and not r.announced.undelivered and not _in_the_mail(r):
        return r.announcing(delivered_at=now)
    return r


def newly_cut(r: Rollout, plan: Plan) -> dict[str, int]:
    """By leaf team the cut of a plan, as far as it is larger than the team was told. Units: whole GPUs."""
    return {q.team: q.cut_gpus for q in plan.quotas if q.leaf and q.cut_gpus > r.announced.cuts.get(q.team, 0)}


def _in_the_mail(r: Rollout) -> bool:
    return any(n.kind in STARTS_A_CLOCK for n in r.post.mail)


def ready(r: Rollout, now: datetime) -> tuple[Notice, ...]:
    """Notices to be told, or asked after, now."""
    return tuple(n for n in r.post.mail if n.key not in r.post.waiting or r.post.waiting[n.key] <= now)


def asks_in(r: Rollout, now: datetime) -> timedelta | None:
    """After how long to ask after notices that the ledger sends; None where none is waited for.

    Where that time has come, something else is in the way, and whoever waits is woken when it is gone.
    """
    at = min(r.post.waiting.values(), default=now)
    return at - now if at > now else None


def in_hand(r: Rollout) -> tuple[Notice, ...]:
    """Notices that nobody but this rollout would send."""
    return tuple(n for n in r.post.mail if n.key not in r.post.waiting)


def may_mail(r: Rollout, now: datetime) -> bool:
    """Something is to be told, and nobody has to look first at what it came to."""
    return bool(ready(r, now)) and (not r.post.unseen or r.stage.ended)


def seen_since(r: Rollout) -> Rollout:
    """After a look: notices that waited for it say what stands behind the quotas as they are."""
    backing = r.backing_of_what_stands
    if not r.post.unseen or backing is None:  # a look that a write overtook is made again
        return unseen_for_good(r) if r.looked_after == r.fence else r
    mail = tuple(
        n.model_copy(update={"backing_gpus": backing.get(n.audience)}) if n.key in r.post.unseen else n
        for n in r.post.mail
    )
    return r.but(post=r.post.but(mail=mail, unseen=()))


def unseen_for_good(r: Rollout) -> Rollout:
    """Nobody can look: they say nothing of what stands behind."""
    return r.but(post=r.post.but(unseen=())) if r.post.unseen else r


def mailed(r: Rollout, batch: Sequence[Notice], answer: TellAnswer, now: datetime) -> Rollout:
    """What became of some notices: delivered, not deliverable at all, which a person has to know, or kept.

    What waits in the ledger is sent from there; one that starts the notice period is asked after until it was.
    """
    asked = {n.key: at for n in batch if n.kind in STARTS_A_CLOCK and (at := answer.waiting.get(n.key)) is not None}
    gone = answer.delivered.keys() | answer.refused.keys() | (answer.waiting.keys() - asked.keys())
    waiting = {key: at for key, at in r.post.waiting.items() if key not in {n.key for n in batch}} | asked
    unseen = tuple(key for key in r.post.unseen if key not in gone)
    r = r.but(post=r.post.without_mail(gone).but(unseen=unseen, waiting=waiting))
    for notice in batch:
        if notice.key in answer.waiting and notice.key not in asked:
            at = answer.waiting[notice.key]
            r = r.noting(
                AuditKind.NOTICE, f"{notice.audience} is to be told at {at:%Y-%m-%d %H:%MZ}: {notice.kind}", now
            )
        elif notice.key in answer.delivered and notice.key not in answer.noted:
            r = r.noting(
                AuditKind.NOTICE,
                f"{notice.audience} {'would be told, and nobody was' if notice.shadow else 'was told'}: {notice.kind}",
                now,
                notice=notice.kind.value,
                key=notice.key,
                deliveries=[d.model_dump(mode="json") for d in answer.delivered[notice.key]],
            )
        elif notice.key in answer.refused:
            reason = answer.refused[notice.key]
            if notice.kind in STARTS_A_CLOCK:
                why = shortened(f"{notice.audience}: {reason}", _WORDS_BYTES)
                r = r.announcing(undelivered=(*r.announced.undelivered, why)[-MOST_UNDELIVERED:])
            if notice.key not in answer.noted:
                r = r.noting(AuditKind.NOTICE, f"{notice.audience} could not be told: {reason}", now, failed=True)
    trouble = "; ".join(sorted(set(answer.failed.values())))
    return r.but(post=r.post.but(trouble=shortened(trouble, 4 * _WORDS_BYTES)))


def recorded(r: Rollout, request: RecordRequest) -> Rollout:
    """Entries are archived and the registry shows the stage."""
    return r.but(post=r.post.recorded(entry.key for entry in request.entries).but(noted=request.stage))
