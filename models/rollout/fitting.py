"""A rollout whose state would be larger than Temporal takes from one run to the next (models/lifecycle/outgoing.py)."""

from __future__ import annotations

from datetime import datetime

from models.audit import AuditKind
from models.lifecycle.outgoing import MOST_BYTES, given_up, left_out, packed, queues
from models.notices import NoticeKind
from models.rollout.state import Rollout

MOST_UNDELIVERED = 100
"""Notices that could not be delivered, of which the state says why."""


def fitted(r: Rollout, now: datetime) -> Rollout:
    """The rollout, small enough to be carried to its next run."""
    if packed(r) <= MOST_BYTES:
        return r
    bare = r.but(post=r.post.but(outbox=(), mail=(), unseen=()))
    if packed(bare) > MOST_BYTES:
        r, bare = _without_what_comes_again(r), _without_what_comes_again(bare)
    mail, outbox = queues(MOST_BYTES - packed(bare), r.post.mail, r.post.outbox)
    keys, cut = {n.key for n in mail}, len(r.post.outbox) - len(outbox)
    gone = [n for n in r.post.mail if n.key not in keys]
    unseen = tuple(key for key in r.post.unseen if key in keys)
    waiting = {key: at for key, at in r.post.waiting.items() if key in keys}
    r = r.but(post=r.post.but(outbox=outbox, mail=mail, unseen=unseen, waiting=waiting))
    if any(n.kind in (NoticeKind.PLANNED, NoticeKind.CHANGED) for n in gone):
        r = r.announcing(undelivered=(*r.announced.undelivered, given_up(len(gone)))[-MOST_UNDELIVERED:])
    for text in left_out(len(gone), cut):
        r = r.noting(AuditKind.NOTICE, text, now, failed=True)
    return r


def _without_what_comes_again(r: Rollout) -> Rollout:
    """The next run looks for itself; a proposal is made anew where health still asks for one."""
    return r.but(seen=None, looked_at=None, look_asked=True).looking_out(proposal=None, considered_gpus=None)
