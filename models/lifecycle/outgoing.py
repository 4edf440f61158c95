"""Archive entries and notices that still have to go out. A lifecycle's state keeps them until they have.

A ledger or a mail server may be away for weeks, and Temporal takes at most 2 MiB from one run to the next; a run that
cannot begin guards nothing and takes no command. So, when a run ends, the queues are measured as they are sent
(compressed), and the part that does not fit is left out, with an entry that says so. The workflow's history has it all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import Field

from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.base import Count, Model
from models.notices import Notice
from models.temporal_names import TellAnswer
from models.texts import count_text, verb_of

MOST_BYTES = 3 * 2**19
"""The largest compressed size of a whole state, in bytes."""
_LEAST_ROOM = 2**17
_UNDER_WAY = 50
"""This many of the first entries may be on their way to the archive; they are left out last."""
_Item = TypeVar("_Item", bound=Model)


class Outgoing(Model):
    """Entries for the archive and notices, each in the order of their events."""

    outbox: tuple[AuditEntry, ...] = Field(default=(), exclude_if=lambda entries: not entries)
    """Entries not archived yet."""
    mail: tuple[Notice, ...] = Field(default=(), exclude_if=lambda notices: not notices)
    """Notices not delivered yet."""
    serial: Count = 0
    """The number of entries and notices so far, which is part of their keys."""

    def with_entry(self, prefix: str, **fields: Any) -> Self:
        """Add an entry for the archive, under the next key. `fields`: its other fields."""
        number = self.serial + 1
        entry = AuditEntry(key=f"{prefix}/{number:06d}", **fields)
        return self.but(serial=number, outbox=(*self.outbox, entry))

    def with_notices(self, prefix: str, suffix: str, audiences: Iterable[str], **fields: Any) -> Self:
        """Queue a notice to each audience, under the next keys. `fields`: the content they share."""
        notices = tuple(
            Notice(key=f"{prefix}/{number:06d}/{suffix}", audience=audience, **fields)
            for number, audience in enumerate(audiences, start=self.serial + 1)
        )
        return self.but(serial=self.serial + len(notices), mail=(*self.mail, *notices))

    def without_entries(self, keys: Iterable[str]) -> Self:
        """Remove the entries with these keys, which are archived."""
        done = set(keys)
        return self.but(outbox=tuple(entry for entry in self.outbox if entry.key not in done))

    def without_mail(self, keys: Iterable[str]) -> Self:
        """Remove the notices with these keys, which are delivered or given up."""
        gone = set(keys)
        return self.but(mail=tuple(notice for notice in self.mail if notice.key not in gone))


class ArchivePlace(NamedTuple):
    """The place of a lifecycle in the archive."""

    prefix: str
    """The start of the keys of its entries."""
    cluster: str
    rollout: str = ""


class Lifecycle(Outgoing):
    """The state of a fleet rollout, a request or a bring-up."""

    @property
    def place(self) -> ArchivePlace:
        """The place of this lifecycle in the archive."""
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
        """Add an entry for the archive."""
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
        """Remove notices that were delivered or never can be; the archive notes the latter."""
        lost = [notice for notice in self.mail if notice.key in answer.refused and notice.key not in answer.noted]
        left = self.without_mail(answer.delivered.keys() | answer.refused.keys() | answer.waiting.keys())
        for notice in lost:
            text = f"Backstop could not notify {notice.audience}: {answer.refused[notice.key]}"
            left = left.record(AuditKind.NOTICE, text, now, notice=notice.key, failed=True)
        return left

    def fit(self, now: datetime) -> Self:
        """Return the state, small enough for the next run."""
        if packed_bytes(self) <= MOST_BYTES:
            return self
        mail, outbox = fit_queues(MOST_BYTES - packed_bytes(self.but(outbox=(), mail=())), self.mail, self.outbox)
        smaller = self.but(mail=mail, outbox=outbox)
        for text in left_out_texts(len(self.mail) - len(mail), len(self.outbox) - len(outbox)):
            smaller = smaller.record(AuditKind.NOTICE, text, now, failed=True)
        return smaller


def packed_bytes(*values: Model) -> int:
    """Return the compressed size of these values, as they are sent."""
    folding = zlib.compressobj(1)
    return sum(len(folding.compress(v.model_dump_json().encode())) for v in values) + len(folding.flush())


def keep_fitting(items: tuple[_Item, ...], room: int, first: int = 0) -> tuple[_Item, ...]:
    """Return the `first` items and the newest, as many as fit into `room` bytes; always the last one."""
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
    """Return as much of both queues as fits into `room` bytes."""
    room = max(_LEAST_ROOM, room)
    letters = keep_fitting(mail, room // 2)
    return letters, keep_fitting(outbox, room - packed_bytes(*letters), first=_UNDER_WAY)


def given_up_text(notices: int) -> str:
    return f"{count_text(notices, 'notice')} {verb_of(notices, 'was', 'were')} given up"


def left_out_texts(notices: int, entries: int) -> list[str]:
    """Return the archive texts about items that did not fit; empty if all did."""
    texts = []
    if notices:
        texts.append(f"{given_up_text(notices)}: too many were waiting for delivery")
    if entries:
        many = f"{entries:,} entries are" if entries > 1 else "1 entry is"
        texts.append(
            f"{many} left out before this one: too many waited for the archive, and the workflow's history has them"
        )
    return texts
