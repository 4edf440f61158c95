"""A limit on the state that a rollout carries to its next run (models/lifecycle/outgoing.py has the bound)."""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import AuditKind
from models.lifecycle.outgoing import MOST_BYTES, fit_queues, given_up_text, left_out_texts, packed_bytes
from models.notices import NoticeKind
from models.rollout.state import Rollout

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
    """Drop facts that the next run gets again: it looks for itself, and health may ask for the proposal anew."""
    return rollout.but(seen=None, looked_at=None, look_asked=True).with_outlook(proposal=None, considered_gpus=None)
