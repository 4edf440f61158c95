"""The public keys of fronts, with their dates, as workers read them. Source: docs/security.md, "Keys"."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from models.access.signing import PublicKey
from models.base import Model
from models.errors import Refusal


class KeyBook(Model):
    """Keys that sign, that have signed, and that were revoked. None is ever removed: warrants were signed with it."""

    schema_: Literal["backstop.key-book/1"] = Field(default="backstop.key-book/1", alias="schema")
    keys: tuple[PublicKey, ...] = Field(default=(), max_length=1000)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        ids = [key.key_id for key in self.keys]
        if len({*ids}) < len(ids):
            raise ValueError("two keys have the same key_id: give each key its own")
        return self

    @property
    def by_id(self) -> Mapping[str, PublicKey]:
        return {key.key_id: key for key in self.keys}

    @property
    def signing_key(self) -> PublicKey | None:
        """The newest key that still signs."""
        good = [key for key in self.keys if key.valid_until is None and key.revoked_from is None]
        return max(good, key=lambda key: key.valid_from, default=None)

    def with_key(self, key: PublicKey, rotated_at: datetime | None = None) -> KeyBook:
        """Add a key. `rotated_at`: earlier keys verify what they signed until then, and sign no more."""
        before = tuple(
            old.but(valid_until=rotated_at) if rotated_at is not None and old.valid_until is None else old
            for old in self.keys
        )
        return self.but(keys=(*before, key))

    def revoke(self, key_id: str, since: datetime) -> KeyBook:
        """Revoke the key: what it signed from then on does not count. Errors: Refusal for an unknown key."""
        if key_id not in self.by_id:
            key_ids = ", ".join(self.by_id) or "none"
            raise Refusal(f"there is no key {key_id}; known keys: {key_ids}")
        return self.but(
            keys=tuple(
                key.but(revoked_from=since if key.revoked_from is None else min(since, key.revoked_from))
                if key.key_id == key_id
                else key
                for key in self.keys
            )
        )
