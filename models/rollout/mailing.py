"""Notices and archive entries of a rollout's state: who is notified, what was delivered, what is archived.

`fit_rollout` limits what a rollout carries to its next run (models/lifecycle/outgoing.py has the bound).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from models.audit_chain import AuditKind
from models.lifecycle.outgoing import MOST_BYTES, fit_queues, given_up_text, left_out_texts, packed_bytes
from models.notices import STARTS_A_CLOCK, Notice, NoticeKind
from models.planning.plan import Plan
from models.rollout.messages import RecordRequest
from models.rollout.state import Rollout
from models.temporal_names import TellAnswer, retires_cluster
from models.texts import shorten

_RETIRES = (
    "This cluster is being retired: it is torn down once no job runs there, or at a deadline if one is set. Its flex "
    "pool can be used until then."
)
_WORDS_BYTES = 500
"""Bytes of a channel's answer that the state keeps; the archive has the whole text."""


def notify_teams(rollout: Rollout, now: datetime) -> Rollout:
    """Notify the teams that an approved plan cuts; later, only those whose cut grew."""
    if rollout.plan is None or rollout.stay.replan or not rollout.is_approved:
        return rollout
    grown = newly_cut(rollout, rollout.plan)
    if grown:
        kind = NoticeKind.CHANGED if rollout.announced.cuts else NoticeKind.PLANNED
        rollout = rollout.with_announced(
            cuts={**rollout.announced.cuts, **grown},
            acks=tuple(t for t in rollout.announced.acks if t not in grown or t not in rollout.announced.cuts),
            delivered_at=None,
            undelivered=(),
        )
        detail = _RETIRES if rollout.id.startswith(retires_cluster(rollout.cluster)) else ""
        return rollout.notify(kind, grown, effective_at=now + rollout.policy.notice, detail=detail)
    if rollout.announced.delivered_at is None and not rollout.announced.undelivered and not _is_in_the_mail(rollout):
        return rollout.with_announced(delivered_at=now)
    return rollout


def newly_cut(rollout: Rollout, plan: Plan) -> dict[str, int]:
    """Return the plan's cut of each leaf team that exceeds the one it was notified of. Units: whole GPUs."""
    return {
        quota.team: quota.cut_gpus
        for quota in plan.quotas
        if quota.leaf and quota.cut_gpus > rollout.announced.cuts.get(quota.team, 0)
    }


def _is_in_the_mail(rollout: Rollout) -> bool:
    return any(n.kind in STARTS_A_CLOCK for n in rollout.post.mail)


def ready_notices(rollout: Rollout, now: datetime) -> tuple[Notice, ...]:
    """Return the notices to send, or to ask after, now."""
    return tuple(
        n for n in rollout.post.mail if n.key not in rollout.post.waiting or rollout.post.waiting[n.key] <= now
    )


def ask_delay(rollout: Rollout, now: datetime) -> timedelta | None:
    """Return how long to wait before asking after notices that the ledger sends; None if there are none.

    None also once that time has come: something else is in the way then, and its end wakes the workflow.
    """
    at = min(rollout.post.waiting.values(), default=now)
    return at - now if at > now else None


def notices_in_hand(rollout: Rollout) -> tuple[Notice, ...]:
    """Return the notices that nobody but this rollout would send."""
    return tuple(n for n in rollout.post.mail if n.key not in rollout.post.waiting)


def may_mail(rollout: Rollout, now: datetime) -> bool:
    """Return whether a notice is ready and none waits for a look at the outcome first."""
    return bool(ready_notices(rollout, now)) and (not rollout.post.unseen or rollout.stage.has_ended)


def record_backing(rollout: Rollout) -> Rollout:
    """Add the backing that a look saw to the notices that waited for it."""
    backing = rollout.present_backing
    if not rollout.post.unseen or backing is None:  # another look follows one that a write overtook
        return rollout if rollout.is_overtaken else give_up_backing(rollout)
    rollout = add_backing(rollout, backing)
    return rollout.but(post=rollout.post.but(unseen=()))


def add_backing(rollout: Rollout, backing: Mapping[str, int]) -> Rollout:
    """Add this backing, by team, to the notices that wait for a look."""
    mail = tuple(
        n.model_copy(update={"backing_gpus": backing.get(n.audience)}) if n.key in rollout.post.unseen else n
        for n in rollout.post.mail
    )
    return rollout.but(post=rollout.post.but(mail=mail))


def give_up_backing(rollout: Rollout) -> Rollout:
    """Send notices that wait for a look without their backing: nobody can look."""
    return rollout.but(post=rollout.post.but(unseen=())) if rollout.post.unseen else rollout


def apply_delivery(rollout: Rollout, batch: Sequence[Notice], answer: TellAnswer, now: datetime) -> Rollout:
    """Apply the delivery of some notices: delivered, undeliverable (a person must know), or kept.

    The ledger sends the notices that wait there; Backstop asks after one that starts the notice period until it is
    sent.
    """
    asked = {n.key: at for n in batch if n.kind in STARTS_A_CLOCK and (at := answer.waiting.get(n.key)) is not None}
    gone = answer.delivered.keys() | answer.refused.keys() | (answer.waiting.keys() - asked.keys())
    waiting = {key: at for key, at in rollout.post.waiting.items() if key not in {n.key for n in batch}} | asked
    unseen = tuple(key for key in rollout.post.unseen if key not in gone)
    rollout = rollout.but(post=rollout.post.without_mail(gone).but(unseen=unseen, waiting=waiting))
    for notice in batch:
        if notice.key in answer.waiting and notice.key not in asked:
            at = answer.waiting[notice.key]
            rollout = rollout.record(
                AuditKind.NOTICE, f"Backstop will notify {notice.audience} at {at:%Y-%m-%d %H:%MZ}: {notice.kind}", now
            )
        elif notice.key in answer.delivered and notice.key not in answer.noted:
            rollout = rollout.record(
                AuditKind.NOTICE,
                notice.notified_text,
                now,
                notice=notice.kind.value,
                key=notice.key,
                deliveries=[d.model_dump(mode="json") for d in answer.delivered[notice.key]],
            )
        elif notice.key in answer.refused:
            reason = answer.refused[notice.key]
            if notice.kind in STARTS_A_CLOCK:
                why = shorten(f"{notice.audience}: {reason}", _WORDS_BYTES)
                rollout = rollout.with_announced(undelivered=(*rollout.announced.undelivered, why)[-MOST_UNDELIVERED:])
            if notice.key not in answer.noted:
                rollout = rollout.record(
                    AuditKind.NOTICE, f"Backstop could not notify {notice.audience}: {reason}", now, failed=True
                )
    trouble = "; ".join(sorted(set(answer.failed.values())))
    return rollout.but(post=rollout.post.but(trouble=shorten(trouble, 4 * _WORDS_BYTES)))


def mark_archived(rollout: Rollout, request: RecordRequest) -> Rollout:
    """Note that entries are archived and the registry shows the stage.

    The call may have been under way while the rollout began again under another id. If both were in one stage, the
    registry shows that of the new one with its next entries: no stage comes without one (5 s:
    workflows/pause_during_breach.py).
    """
    return rollout.but(
        post=rollout.post.without_entries(entry.key for entry in request.entries).but(noted=request.stage)
    )


MOST_UNDELIVERED = 100
"""The most undeliverable notices whose reason the state keeps."""


def fit_rollout(rollout: Rollout, now: datetime) -> Rollout:
    """Return the rollout, small enough for its next run."""
    if packed_bytes(rollout) <= MOST_BYTES:
        return rollout
    bare = rollout.but(post=rollout.post.but(outbox=(), mail=(), unseen=()))
    if packed_bytes(bare) > MOST_BYTES:
        rollout, bare = _without_what_comes_again(rollout), _without_what_comes_again(bare)
    mail, outbox = fit_queues(MOST_BYTES - packed_bytes(bare), rollout.post.mail, rollout.post.outbox)
    keys, cut = {n.key for n in mail}, len(rollout.post.outbox) - len(outbox)
    gone = [n for n in rollout.post.mail if n.key not in keys]
    unseen = tuple(key for key in rollout.post.unseen if key in keys)
    waiting = {key: at for key, at in rollout.post.waiting.items() if key in keys}
    rollout = rollout.but(post=rollout.post.but(outbox=outbox, mail=mail, unseen=unseen, waiting=waiting))
    if any(n.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED) for n in gone):
        rollout = rollout.with_announced(
            undelivered=(*rollout.announced.undelivered, given_up_text(len(gone)))[-MOST_UNDELIVERED:]
        )
    for text in left_out_texts(len(gone), cut):
        rollout = rollout.record(AuditKind.NOTICE, text, now, failed=True)
    return rollout


def _without_what_comes_again(rollout: Rollout) -> Rollout:
    """Drop facts that the next run gets again: it looks for itself, and health may ask for the proposal again."""
    return rollout.but(seen=None, looked_at=None, look_asked=True).with_outlook(proposal=None, considered_gpus=None)
