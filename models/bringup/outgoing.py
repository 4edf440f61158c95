"""What leaves a bring-up: entries for the archive, and notices. Each function answers a new Bringup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from models.audit import AuditKind
from models.base import count_text
from models.bringup.state import Bringup
from models.wire import TellAnswer


def recorded(b: Bringup, keys: Iterable[str]) -> Bringup:
    done = set(keys)
    return b.but(outbox=tuple(e for e in b.outbox if e.key not in done))


def mailed(b: Bringup, tried: Iterable[str], answer: TellAnswer, now: datetime) -> Bringup:
    """What was delivered is gone from the mail; what never can be is too, and the archive says so."""
    gone = (answer.delivered.keys() | answer.refused.keys() | answer.waiting.keys()) & set(tried)
    lost = [(n, answer.refused[n.key]) for n in b.mail if n.key in answer.refused and n.key not in answer.noted]
    b = b.but(mail=tuple(n for n in b.mail if n.key not in gone))
    for notice, why in lost:
        b = b.noting(AuditKind.NOTICE, f"{notice.audience} was not told: {why}", now, notice=notice.key, failed=True)
    return b


MOST_MAIL, MOST_OUTBOX = 50, 400
"""What waits for a mail server or a ledger that is away; of more the oldest are given up when a history begins anew."""


def fitted(b: Bringup, now: datetime) -> Bringup:
    """The bring-up, small enough to be carried to its next run: what is left out stands in the history before."""
    over, cut = len(b.mail) - MOST_MAIL, len(b.outbox) - MOST_OUTBOX
    if over > 0:
        text = f"{count_text(over, 'notice')} given up: too many waited to be delivered"
        b = b.but(mail=b.mail[over:]).noting(AuditKind.NOTICE, text, now, failed=True)
    if cut > 0:
        many = "1 entry is" if cut == 1 else f"{cut} entries are"
        text = f"{many} left out before this one: too many waited for the archive"
        b = b.but(outbox=b.outbox[cut:]).noting(AuditKind.NOTICE, text, now, failed=True)
    return b
