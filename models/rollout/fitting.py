"""What waits for others is cut where a state would be larger than Temporal takes from one run to the next.

Archive entries and notices wait in the state for a ledger or a mail server that is away. A payload is at most 2 MiB,
and a run that cannot begin has no guard and takes no command. So, when a run ends, the queues are measured as they are
sent (compressed), and what does not fit is left out, with an entry that says so. History has it all.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import TypeVar

from models.audit import AuditEntry, AuditKind
from models.base import Model, count_text, verb_of
from models.notices import Notice, NoticeKind
from models.rollout.state import Rollout

MOST_BYTES = 3 * 2**19
"""Of a whole state, compressed."""
_LEAST_ROOM = 2**17
_UNDER_WAY = 50
"""The first entries may be on their way to the archive: they are left out last."""
MOST_UNDELIVERED = 100
"""Notices that could not be delivered, of which the state says why."""
_Item = TypeVar("_Item", bound=Model)


def packed(*values: Model) -> int:
    """Bytes of these values as they are sent."""
    folding = zlib.compressobj(1)
    return sum(len(folding.compress(v.model_dump_json().encode())) for v in values) + len(folding.flush())


def kept(items: tuple[_Item, ...], room: int, first: int = 0) -> tuple[_Item, ...]:
    """The first so many and the newest, as many as fit into so many bytes; the last one always."""
    head, rest = items[:first], items[first:]
    while len(head) + len(rest) > 1 and packed(*head, *rest) > room:
        if len(rest) > 1:
            rest = rest[(len(rest) + 1) // 2 :]
        else:
            head = head[: len(head) // 2]
    return (*head, *rest)


def queues(
    room: int, mail: tuple[Notice, ...], outbox: tuple[AuditEntry, ...]
) -> tuple[tuple[Notice, ...], tuple[AuditEntry, ...]]:
    """As much of both as fits."""
    room = max(_LEAST_ROOM, room)
    letters = kept(mail, room // 2)
    return letters, kept(outbox, room - packed(*letters), first=_UNDER_WAY)


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
        r = r.announcing(undelivered=(*r.announced.undelivered, f"{_given_up(len(gone))}")[-MOST_UNDELIVERED:])
    if gone:
        r = r.noting(AuditKind.NOTICE, mail_given_up(len(gone)), now, failed=True)
    return r.noting(AuditKind.NOTICE, entries_left_out(cut), now, failed=True) if cut else r


def _without_what_comes_again(r: Rollout) -> Rollout:
    """The next run looks for itself; a proposal is made anew where health still asks for one."""
    return r.but(seen=None, looked_at=None, look_asked=True).looking_out(proposal=None, considered_gpus=None)


def _given_up(count: int) -> str:
    return f"{count_text(count, 'notice')} {verb_of(count, 'was', 'were')} given up"


def mail_given_up(count: int) -> str:
    return f"{_given_up(count)}: too many waited to be delivered"


def entries_left_out(count: int) -> str:
    """Of the archive: what it lacks, and where that is."""
    many = "entries are" if count > 1 else "entry is"
    return (
        f"{count} {many} left out before this one: too many waited for the archive, and the workflow's history has them"
    )
