"""The JSON of the audit: lines of history and archive, and whether the chains hold."""

from __future__ import annotations

from typing import Any

from cli.json_answer_base import JsonAnswer
from models.base import Name, Time


class AuditLine(JsonAnswer, schema="audit"):
    """An event from workflow history."""

    cluster: Name
    at: Time
    kind: str
    actor: str
    text: str
    reason: str
    refused: bool
    run: str
    event: int
    data: dict[str, Any]
    proof: str = ""
    """How the actor was proven: `proven: this machine`, `asserted`; empty: the entry does not say."""


class ArchiveLine(JsonAnswer, schema="archive"):
    """An event from the ledger's archive, with its place in the hash chain."""

    seq: int
    previous_hash: str
    hash: str
    key: str
    cluster: Name
    rollout: str
    at: Time
    kind: str
    actor: str
    text: str
    reason: str
    refused: bool
    data: dict[str, Any]
    proof: str = ""
    """How the actor was proven: `proven: this machine`, `asserted`; empty: the entry does not say."""


class ChainAnswer(JsonAnswer, schema="chain"):
    """A check of one archive. `broken`: one sentence for each place where its chain is broken."""

    cluster: Name
    rows: int
    head: str | None
    whole: bool
    broken: tuple[str, ...]
    seal: int | None = None
    """The last seal that covers the chain; None: no seal does, or no seals were given."""
    sealed_at: Time | None = None
    sealed_rows: int = 0
    """How many of the chain's first rows that seal covers."""


class ChainsAnswer(JsonAnswer, schema="chains"):
    """A check of every archive against the seals. `seal`: the last one."""

    seal: int
    sealed_at: Time | None
    whole: bool
    chains: tuple[ChainAnswer, ...]
