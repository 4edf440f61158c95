"""The audit archive's rows: hash-chained, so that a missing or altered row shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from models.base import Count, Model, Name, Time
from models.hashes import canonical_json

_T = TypeVar("_T")

BACKSTOP = "backstop"
"""The actor of entries about what Backstop does by itself."""

GENESIS = "0" * 64
"""The previous hash in the first row of a chain."""
ATTEMPT, DESK = "attempt/", "desk/"
"""The prefixes of keys for refused attempts, and for what people did at the ledger's desk."""
BESIDE = "/beside/"
"""The mark in the key of an entry whose own key another entry had already."""


class AuditKind(StrEnum):
    COMMAND = "command"
    TRANSITION = "transition"
    EFFECT = "effect"
    NOTICE = "notice"
    HOLD = "hold"
    GUARD = "guard"
    PLAN = "plan"


class AuditEntry(Model):
    """An event in one cluster, as a sentence with its data.

    `key` makes archiving idempotent: the same key is stored once.
    """

    key: str = Field(min_length=1, max_length=300)
    cluster: Name
    rollout: str = ""
    at: Time
    kind: AuditKind
    actor: str
    text: str
    reason: str = ""
    refused: bool = False
    data: dict[str, Any] = Field(default_factory=dict)


class Signature(NamedTuple):
    """The actor, time and reason of a deed in the archive. The same key is the same deed."""

    actor: str
    at: datetime
    key: str
    reason: str = ""

    def entry(self, cluster: str, text: str, data: Mapping[str, Any], part: str = "") -> AuditEntry:
        """Return the deed as an entry of the archive. `part`: added to its key where a deed has several entries."""
        return AuditEntry(
            key=f"{self.key}{part}",
            cluster=cluster,
            at=self.at,
            kind=AuditKind.COMMAND,
            actor=self.actor,
            text=text,
            reason=self.reason,
            data=dict(data),
        )


class Deed(NamedTuple, Generic[_T]):
    """A deed on several things, before it is known on which: `entry` makes each one's entry of the archive.

    `key`: the beginning of the keys of all its entries. A retry has the same.
    """

    key: str
    entry: Callable[[_T], AuditEntry]


def proof_of(data: Mapping[str, Any]) -> str:
    """Return in words how the actor of an entry was proven; empty: its data does not say.

    `data["proof"]` is what models.access.principals.proof_data makes, or only its first word.
    """
    record = data.get("proof")
    if not isinstance(record, Mapping):
        record = {"proof": record}
    proof, how, note = (one if isinstance(one := record.get(name), str) else "" for name in ("proof", "how", "note"))
    if not proof:
        return ""
    words = "asserted" if proof == "asserted" else f"proven ({how or proof})"
    return f"{words}, {note}" if note else words


_SUBJECTS = {"plan_hash": "plan", "team": "team", "hold": "hold", "how": "how"}


def text_with_subject(text: str, actor: str, data: Mapping[str, Any]) -> str:
    """Return a record's text for its readers, with the plan, team or hold that only the command's data name."""
    if text != f"{data.get('command')} by {actor}":
        return text
    subjects = [f"{word} {data[field]}" for field, word in _SUBJECTS.items() if data.get(field)]
    return f"{text}: {', '.join(subjects)}" if subjects else text


class ChainedEntry(Model):
    """An archived entry with its place in its cluster's chain."""

    seq: Count
    previous_hash: str
    hash: str
    entry: AuditEntry


class ChainHead(Model):
    """The end of a cluster's chain, kept apart from it: so cutting off its tail shows too."""

    cluster: Name
    length: Count
    hash: str


def chain_hash(previous_hash: str, entry: AuditEntry) -> str:
    """Return the SHA-256 over the predecessor's hash and the entry's canonical JSON."""
    text = previous_hash + canonical_json(entry.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_to(digest: str, previous_hash: str, text: str) -> bool:
    """Return whether the hash of the entry that is stored as this text is `digest`.

    The stored text is the hashed one, letter by letter; only where it is not (a number as a key that became a text) the
    text is parsed as an entry first, which takes many times as long.
    """
    if hashlib.sha256((previous_hash + text).encode()).hexdigest() == digest:
        return True
    try:
        return chain_hash(previous_hash, AuditEntry.model_validate_json(text)) == digest
    except ValidationError:
        return False


def broken_links(rows: Sequence[ChainedEntry], head: ChainHead | None) -> list[str]:
    """Return a sentence for each place where a whole chain does not hold together; [] when it does."""
    faults: list[str] = []
    previous, expected_seq = GENESIS, 1
    for row in rows:
        if row.seq != expected_seq:
            faults.append(f"row {expected_seq} is missing: row {row.seq} follows")
        if row.previous_hash != previous:
            faults.append(f"row {row.seq} does not carry the hash of the row before it")
        if BESIDE in row.entry.key:
            key = row.entry.key.partition(BESIDE)[0]
            faults.append(
                f"row {row.seq} has the same key {key} as another row: one of the two is forged, "
                "or somebody reset the workflow"
            )
        if chain_hash(row.previous_hash, row.entry) != row.hash:
            faults.append(f"row {row.seq} was altered: its hash does not match")
        previous, expected_seq = row.hash, row.seq + 1
    if head is not None and (head.length != len(rows) or head.hash != previous):
        last = expected_seq - 1
        faults.append(
            f"the chain must end at row {head.length} with the stored hash, but ends at row {last} with another hash"
        )
    return faults
