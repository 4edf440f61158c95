"""A stored entry is checked by its text as it is; only if that has another hash, by what the text says."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pytest

from models.audit_chain import GENESIS, AuditEntry, AuditKind, chain_hash, hashes_to

ENTRY = AuditEntry(
    key="h100-a/1/7",
    cluster="h100-a",
    at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    kind=AuditKind.EFFECT,
    actor="guard",
    text="restored",
    data={"receipt": {"after": {"research": 300}}},
)


def text_of(entry: AuditEntry, **layout: object) -> str:
    return json.dumps(entry.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, **layout)  # type: ignore[arg-type]


def test_what_is_stored_is_what_is_hashed() -> None:
    text = text_of(ENTRY, separators=(",", ":"))
    assert hashlib.sha256((GENESIS + text).encode()).hexdigest() == chain_hash(GENESIS, ENTRY)
    assert hashes_to(chain_hash(GENESIS, ENTRY), GENESIS, text)


def test_another_layout_says_the_same() -> None:
    assert hashes_to(chain_hash(GENESIS, ENTRY), GENESIS, text_of(ENTRY, indent=1))


@pytest.mark.parametrize(
    "text",
    [
        text_of(ENTRY.model_copy(update={"text": "restored, and more"}), separators=(",", ":")),
        text_of(ENTRY.model_copy(update={"data": {"receipt": {"after": {"research": 301}}}}), separators=(",", ":")),
        "",
        "{",
        "[" * 5_000,
        '{"key": "h100-a/1/7"}',
    ],
)
def test_what_says_something_else_or_nothing_does_not(text: str) -> None:
    assert not hashes_to(chain_hash(GENESIS, ENTRY), GENESIS, text)
    assert not hashes_to(chain_hash("1" * 64, ENTRY), GENESIS, text_of(ENTRY, separators=(",", ":")))
