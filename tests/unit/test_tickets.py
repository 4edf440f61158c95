"""Tickets: what is signed is what is read, and nothing else is."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc.jwk import OctKey, OKPKey
from joserfc.jws import serialize_compact
from pydantic import Field

from models.access.principals import asserted_principal
from models.access.signing import PublicKey, in_time, sign, verify_ticket
from models.access.tickets import LIFETIME, SKEW, Ticket, arguments_hash
from models.base import Model
from models.errors import Refusal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY, OTHER = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")


def a_ticket(**changes: Any) -> Ticket:
    issued = int(NOW.timestamp())
    ticket = Ticket(
        principal=asserted_principal("user:tpm"),
        command="rollout.approve",
        workflow="rollout/h100",
        args="ab",
        nonce="n" * 16,
        iat=issued,
        exp=issued + 60,
    )
    return ticket.but(**changes)


def public(**changes: Any) -> Mapping[str, PublicKey]:
    known = PublicKey(key_id="k1", pem=KEY.as_pem(private=False).decode(), valid_from=NOW - timedelta(days=1))
    return {"k1": known.but(**changes)}


def decoded(part: str) -> Any:
    return json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def encoded(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_what_was_signed_is_read() -> None:
    assert verify_ticket(sign(a_ticket(), KEY, "k1"), public()) == a_ticket()


def altered(signed: str) -> dict[str, str]:
    header, payload, signature = signed.split(".")
    claims = decoded(payload)
    return {
        "another command": f"{header}.{encoded({**claims, 'command': 'rollout.abort'})}.{signature}",
        "no signature": f"{header}.{payload}.",
        "algorithm none": f"{encoded({'alg': 'none', 'kid': 'k1'})}.{payload}.",
        "algorithm of a secret": serialize_compact(
            {"alg": "HS256", "kid": "k1"}, json.dumps(claims), OctKey.import_key(b"0123456789abcdef" * 2)
        ),
        "another's signature": sign(a_ticket(), OTHER, "k1"),
        "a key that nobody knows": sign(a_ticket(), KEY, "k2"),
        "no key named": f"{encoded({'alg': 'Ed25519'})}.{payload}.{signature}",
        "a field more": serialize_compact(
            {"alg": "Ed25519", "kid": "k1"}, json.dumps({**claims, "admin": True}), KEY, algorithms=["Ed25519"]
        ),
        "no claims": serialize_compact({"alg": "Ed25519", "kid": "k1"}, "[]", KEY, algorithms=["Ed25519"]),
        "no ticket": "a.b.c",
        "not even three parts": "x" * 100,
        "nothing": "",
        "no ASCII": "\N{SNOWMAN}.\N{SNOWMAN}.\N{SNOWMAN}",
        "too long": "a" * 10_000,
    }


@pytest.mark.parametrize("how", altered(sign(a_ticket(), KEY, "k1")))
def test_nothing_else_is_read(how: str) -> None:
    text = altered(sign(a_ticket(), KEY, "k1"))[how]
    with pytest.raises(Refusal) as refused:
        verify_ticket(text, public())
    assert len(refused.value.message) < 120
    assert text[:20] not in refused.value.message or not text


@pytest.mark.parametrize(
    ("dates", "good"),
    [
        ({}, True),
        ({"valid_from": NOW + SKEW}, True),
        ({"valid_from": NOW + SKEW + timedelta(seconds=1)}, False),
        ({"valid_until": NOW + timedelta(seconds=1)}, True),
        ({"valid_until": NOW}, False),
        ({"revoked_from": NOW}, False),
        ({"revoked_from": NOW + timedelta(seconds=1)}, True),
    ],
)
def test_a_key_counts_while_it_is_in_force(dates: dict[str, datetime], good: bool) -> None:
    signed = sign(a_ticket(), KEY, "k1")
    if good:
        assert verify_ticket(signed, public(**dates)).nonce
    else:
        with pytest.raises(Refusal, match="was not valid when"):
            verify_ticket(signed, public(**dates))


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (timedelta(0), None),
        (LIFETIME + SKEW, None),
        (LIFETIME + SKEW + timedelta(seconds=1), "expired"),
        (-SKEW, None),
        (-SKEW - timedelta(seconds=1), "clocks"),
    ],
)
def test_a_ticket_is_good_for_a_minute(after: timedelta, why: str | None) -> None:
    if why is None:
        in_time(a_ticket(), NOW + after)
    else:
        with pytest.raises(Refusal, match=why):
            in_time(a_ticket(), NOW + after)


def test_a_ticket_for_longer_is_none() -> None:
    with pytest.raises(Refusal, match="expired"):
        in_time(a_ticket(exp=int(NOW.timestamp()) + 3600), NOW)


class Inner(Model):
    cluster: str
    ticket: str = ""
    policy: dict[str, str] = Field(default_factory=dict)


class Outer(Model):
    launch: Inner


def test_the_hash_is_of_all_but_the_tickets() -> None:
    bare = Outer(launch=Inner(cluster="h100"))
    assert arguments_hash(bare) == arguments_hash(Outer(launch=Inner(cluster="h100", ticket="signed")))
    assert arguments_hash(bare) != arguments_hash(Outer(launch=Inner(cluster="h200")))
    assert arguments_hash(bare) != arguments_hash(Outer(launch=Inner(cluster="h100", policy={"ticket": "x"})))
