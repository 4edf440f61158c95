"""The audit archive's rows: hash-chained, so that a missing or altered row shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from models.base import Count, Model, Name, Time, canonical_json

_T = TypeVar("_T")

BACKSTOP = "backstop"
"""The actor of what happens by itself."""

GENESIS = "0" * 64
"""What the first row of a chain names as its predecessor."""


ATTEMPT, DESK = "attempt/", "desk/"
"""How the keys begin of what people tried in vain, and of what they did at the ledger's desk."""
BESIDE = "/beside/"
"""In the key of an entry that found another one under its own key."""


class AuditKind(StrEnum):
    COMMAND = "command"
    TRANSITION = "transition"
    EFFECT = "effect"
    NOTICE = "notice"
    HOLD = "hold"
    GUARD = "guard"
    PLAN = "plan"


class AuditEntry(Model):
    """Something that happened to one cluster, in one sentence and with its data.

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
    """Who did something, when and why, as the archive has it. The same key is the same deed."""

    actor: str
    at: datetime
    key: str
    reason: str = ""

    def entry(self, cluster: str, text: str, data: Mapping[str, Any], part: str = "") -> AuditEntry:
        """The deed as the cluster's archive has it. `part`: of its key, where one deed has several entries."""
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
    """What somebody does to things, before it is known to which: `entry` is each one's in the archive.

    `key`: how the keys of all its entries begin. Tried again, it has the same.
    """

    key: str
    entry: Callable[[_T], AuditEntry]


def proof_of(data: Mapping[str, Any]) -> str:
    """How the actor of an entry was proven, in words, where its data says; empty: it says nothing of that.

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


class ChainedEntry(Model):
    """An archived entry with its place in its cluster's chain."""

    seq: Count
    previous_hash: str
    hash: str
    entry: AuditEntry


class ChainHead(Model):
    """Where a cluster's chain ends, kept apart from it: cutting off its tail shows too."""

    cluster: Name
    length: Count
    hash: str


def chain_hash(previous_hash: str, entry: AuditEntry) -> str:
    """SHA-256 over the predecessor's hash and the entry's canonical JSON."""
    text = previous_hash + canonical_json(entry.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_to(digest: str, previous_hash: str, text: str) -> bool:
    """Whether the hash of the entry that is stored as this text is `digest`.

    What we store is what we hash, letter by letter; only where it is not (a number as a key that became a text) the
    text is read as an entry first, which takes many times as long.
    """
    if hashlib.sha256((previous_hash + text).encode()).hexdigest() == digest:
        return True
    try:
        return chain_hash(previous_hash, AuditEntry.model_validate_json(text)) == digest
    except ValidationError:
        return False


def broken_links(rows: Sequence[ChainedEntry], head: ChainHead | None) -> list[str]:
    """One sentence for each place where a whole chain does not hold together; [] when it does."""
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
            f"the chain must end at row {head.length} with the stored hash, but ends at row {last} with another"
        )
    return faults
