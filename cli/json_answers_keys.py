"""The JSON answers of `backstop keys`, the fronts' and the payloads', beside cli/json_answers.py."""

from __future__ import annotations

from cli.json_answer_base import JsonAnswer
from models.base import Model, Time


class KeyLine(Model):
    """A key of fronts. `status`: signs, verifies (only earlier signatures), or revoked."""

    key_id: str
    status: str
    valid_from: Time
    valid_until: Time | None
    revoked_from: Time | None


class KeysAnswer(JsonAnswer, schema="keys"):
    """The public keys of fronts, in the order in which they were made."""

    keys: tuple[KeyLine, ...]


class PayloadKeyLine(Model):
    """A key that payloads are encrypted with, without the key. `status`: encrypts, decrypts or waits."""

    key_id: str
    status: str
    use_from: Time


class PayloadKeysAnswer(JsonAnswer, schema="payload-keys"):
    """The keys of payloads, the newest first. `since`: runs that began before it are read in clear."""

    since: Time
    keys: tuple[PayloadKeyLine, ...]
