"""What is still to be archived and told. It stands in a lifecycle's state until that has happened.

A ledger or a mail server may be away for weeks, and Temporal takes at most 2 MiB from one run to the next; a run that
cannot begin guards nothing and takes no command. So, when a run ends, the queues are measured as they are sent
(compressed), and what does not fit is left out, with an entry that says so. The workflow's history has it all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import Field

from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.base import Count, Model, count_text, verb_of
from models.notices import Notice
from models.temporal_names import TellAnswer

MOST_BYTES = 3 * 2**19
"""The size of a whole state, compressed."""
_LEAST_ROOM = 2**17
_UNDER_WAY = 50
"""The first entries may be on their way to the archive: they are left out last."""
_Item = TypeVar("_Item", bound=Model)


class Outgoing(Model):
    """Entries for the archive and notices, in the order in which they came about."""

    outbox: tuple[AuditEntry, ...] = Field(default=(), exclude_if=lambda entries: not entries)
    """Not archived yet."""
    mail: tuple[Notice, ...] = Field(default=(), exclude_if=lambda notices: not notices)
    """Not delivered yet."""
    serial: Count = 0
    """Counts entries and notices: it is part of their keys."""

    def with_entry(self, prefix: str, **fields: Any) -> Self:
        """With one more entry for the archive, under the next key; `fields`: its others."""
        number = self.serial + 1
        entry = AuditEntry(key=f"{prefix}/{number:06d}", **fields)
        return self.but(serial=number, outbox=(*self.outbox, entry))

    def with_notices(self, prefix: str, suffix: str, audiences: Iterable[str], **fields: Any) -> Self:
        """With a notice to each audience in the mail, under the next keys; `fields`: what all of them say."""
        notices = tuple(
            Notice(key=f"{prefix}/{number:06d}/{suffix}", audience=audience, **fields)
            for number, audience in enumerate(audiences, start=self.serial + 1)
        )
        return self.but(serial=self.serial + len(notices), mail=(*self.mail, *notices))

    def without_entries(self, keys: Iterable[str]) -> Self:
        """The entries with these keys are archived."""
        done = set(keys)
        return self.but(outbox=tuple(entry for entry in self.outbox if entry.key not in done))

    def without_mail(self, keys: Iterable[str]) -> Self:
        """The notices with these keys are delivered, or tried no more."""
        gone = set(keys)
        return self.but(mail=tuple(notice for notice in self.mail if notice.key not in gone))


class ArchivePlace(NamedTuple):
    """Where the archive has what happened to something."""

    prefix: str
    """How the keys of its entries begin."""
    cluster: str
    rollout: str = ""


class Lifecycle(Outgoing):
    """The state of something that lives long: a fleet rollout, a request, a bring-up."""

    @property
    def place(self) -> ArchivePlace:
        """Where the archive has what happens to it."""
        raise NotImplementedError

    def record(
        self,
        kind: AuditKind,
        text: str,
        at: datetime,
        *,
        actor: str = BACKSTOP,
        reason: str = "",
        refused: bool = False,
        **data: Any,
    ) -> Self:
        """With one more entry for the archive."""
        prefix, cluster, rollout = self.place
        return self.with_entry(
            prefix,
            cluster=cluster,
            rollout=rollout,
            at=at,
            kind=kind,
            actor=actor,
            text=text,
            reason=reason,
            refused=refused,
            data=data,
        )

    def apply_delivery(self, answer: TellAnswer, now: datetime) -> Self:
        """What was delivered is gone from the mail; what never can be is too, and the archive says so."""
        lost = [notice for notice in self.mail if notice.key in answer.refused and notice.key not in answer.noted]
        left = self.without_mail(answer.delivered.keys() | answer.refused.keys() | answer.waiting.keys())
        for notice in lost:
            text = f"Backstop could not notify {notice.audience}: {answer.refused[notice.key]}"
            left = left.record(AuditKind.NOTICE, text, now, notice=notice.key, failed=True)
        return left

    def fit(self, now: datetime) -> Self:
        """Small enough to be carried to the next run."""
        if packed_bytes(self) <= MOST_BYTES:
            return self
        mail, outbox = fit_queues(MOST_BYTES - packed_bytes(self.but(outbox=(), mail=())), self.mail, self.outbox)
        smaller = self.but(mail=mail, outbox=outbox)
        for text in left_out_texts(len(self.mail) - len(mail), len(self.outbox) - len(outbox)):
            smaller = smaller.record(AuditKind.NOTICE, text, now, failed=True)
        return smaller


def packed_bytes(*values: Model) -> int:
    """Bytes of these values as they are sent."""
    folding = zlib.compressobj(1)
    return sum(len(folding.compress(v.model_dump_json().encode())) for v in values) + len(folding.flush())


def keep_fitting(items: tuple[_Item, ...], room: int, first: int = 0) -> tuple[_Item, ...]:
    """The first so many and the newest, as many as fit into so many bytes; the last one always."""
    head, rest = items[:first], items[first:]
    while len(head) + len(rest) > 1 and packed_bytes(*head, *rest) > room:
        if len(rest) > 1:
            rest = rest[(len(rest) + 1) // 2 :]
        else:
            head = head[: len(head) // 2]
    return (*head, *rest)


def fit_queues(
    room: int, mail: tuple[Notice, ...], outbox: tuple[AuditEntry, ...]
) -> tuple[tuple[Notice, ...], tuple[AuditEntry, ...]]:
    """As much of both as fits into so many bytes."""
    room = max(_LEAST_ROOM, room)
    letters = keep_fitting(mail, room // 2)
    return letters, keep_fitting(outbox, room - packed_bytes(*letters), first=_UNDER_WAY)


def given_up_text(notices: int) -> str:
    return f"{count_text(notices, 'notice')} {verb_of(notices, 'was', 'were')} given up"


def left_out_texts(notices: int, entries: int) -> list[str]:
    """What the archive says of what did not fit; nothing where everything did."""
    texts = []
    if notices:
        texts.append(f"{given_up_text(notices)}: too many were waiting for delivery")
    if entries:
        many = f"{entries:,} entries are" if entries > 1 else "1 entry is"
        texts.append(
            f"{many} left out before this one: too many waited for the archive, and the workflow's history has them"
        )
    return texts
