"""A browser's session: its cookie, its duration, and the token in its forms."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from models.access.principals import Principal, Proof
from models.errors import BadInput, Refusal
from web.authorized_calls import Giving
from web.console.console import Console
from web.console.sessions import LINK_SECONDS, SESSION_SECONDS, Sessions
from web.settings import load_front_settings
from web.temporal_connection import Doors
from workers.front_process import FrontBeside

ANA = Principal(name="user:ana", human="user:ana", proof=Proof.PEER, how="this machine")


def test_a_form_s_token_is_written_otherwise_each_time_and_counts_in_its_session_alone() -> None:
    sessions = Sessions()
    one, other = sessions.session_of(sessions.begin(ANA)), sessions.session_of(sessions.begin(ANA))
    assert one is not None
    assert other is not None
    written = {one.form_token for _ in range(20)}
    assert len(written) == 20
    assert all(one.is_own_form(token) and not other.is_own_form(token) for token in written)
    token = one.form_token
    for wrong in ("", "0" * len(token), token[:-2], token + "00", "é" * 128, token[:64] * 2):
        assert not one.is_own_form(wrong)


def test_sessions_and_links_end() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    secret, late, soon = sessions.begin(ANA), sessions.link(ANA), sessions.link(ANA)
    now[0] = LINK_SECONDS - 1
    assert sessions.by_link(soon) == ANA
    assert sessions.by_link(soon) is None, "once"
    now[0] = LINK_SECONDS
    assert sessions.by_link(late) is None, "soon"
    now[0] = SESSION_SECONDS - 1
    assert sessions.session_of(secret) is not None
    now[0] = SESSION_SECONDS
    assert sessions.session_of(secret) is None


def test_a_request_s_cookie_is_unsealed_once_and_a_session_that_ends_meanwhile_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look at the ledger is where another front's log-out is heard of."""
    console, unsealed, hashes = Console(Giving(cast("Doors", _Doors()))), list[str](), list[str]()
    cookie = console.sessions.begin(ANA)
    session = console.sessions.session_of(cookie)
    assert session is not None
    unseal = console.sessions._unseal

    def count(what: bytes, sealed: str) -> Any:
        unsealed.append(sealed)
        return unseal(what, sealed)

    async def answer(_: Any, at: datetime) -> dict[str, datetime]:
        return dict.fromkeys(hashes, at)

    monkeypatch.setattr(console.sessions, "_unseal", count)
    monkeypatch.setattr(console.sessions, "_end_in_ledger", answer)
    request = Request(
        {"type": "http", "scheme": "http", "path": "/", "headers": [(b"cookie", f"backstop={cookie}".encode())]}
    )
    here = asyncio.run(console._session(request))
    assert here is not None
    assert (here.principal, unsealed) == (ANA, [cookie])
    monkeypatch.setattr(console.sessions, "_read_at", float("-inf"))
    hashes.append(session.hashes[0])
    assert asyncio.run(console._session(request)) is None
    assert unsealed == [cookie] * 2


class _Doors:
    """The doors of a front with a key that other fronts share."""

    def shared_secret(self, _: bytes) -> bytes:
        return b"s" * 32

    def now(self) -> datetime:
        return datetime.now(UTC)


def test_whose_groups_a_provider_told_is_asked_for_anew_once_they_count_no_more() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    grouped = sessions.begin(ANA.but(groups=("sre",)))
    now[0] = 15 * 60 - 1
    assert sessions.session_of(grouped) is not None
    now[0] = 15 * 60
    assert sessions.session_of(grouped) is None


def test_what_is_sealed_is_read_by_whoever_has_the_secret_and_as_what_it_is() -> None:
    shared, other = (lambda: b"s" * 32), (lambda: b"o" * 32)
    one, two, foreign = Sessions(secret=shared), Sessions(secret=shared), Sessions(secret=other)
    cookie = one.begin(ANA)
    session = two.session_of(cookie)
    assert session is not None
    assert session.principal == ANA
    session.said.append("done")
    said = one.seal_sentences(session)
    assert (two.sentences(session, said), two.sentences(session, cookie)) == (["done"], [])
    another = two.session_of(two.begin(ANA))
    assert another is not None
    assert two.sentences(another, said) == [], "of another session"
    for wrong in ("", "x", "é", cookie[:-2], said, f"{cookie[:40]}{'A' if cookie[40] != 'A' else 'B'}{cookie[41:]}"):
        assert two.session_of(wrong) is None
    assert foreign.session_of(cookie) is None
    assert Sessions().session_of(Sessions().begin(ANA)) is None, "without a key its sessions are its own"


def test_a_session_with_more_groups_than_a_cookie_holds_is_refused() -> None:
    many = tuple(hashlib.sha256(str(n).encode()).hexdigest() for n in range(500))
    with pytest.raises(Refusal, match="a browser cannot keep a session with 500 groups"):
        Sessions().begin(ANA.but(groups=many))
    few = Sessions()
    assert few.session_of(few.begin(ANA.but(groups=many[:40]))) is not None


def test_a_front_that_did_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_PUBLIC_URL", "http://backstop.example")
    with pytest.raises(BadInput, match="must be the console's address and begin with https://"):
        load_front_settings()
    front = FrontBeside()
    assert [text.split(":")[0] for text in front.lines] == ["front      not running"]
    front.places = ["/run/front.sock", "http://127.0.0.1:8420"]
    assert [text.split()[0] for text in front.lines] == ["front", "console"]


def test_a_certificate_with_which_no_tls_can_begin_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    file.write_text("no certificate\n")
    with pytest.raises(BadInput, match="must be a certificate and its key without a password, both in PEM"):
        load_front_settings("127.0.0.1:0", str(file), str(file))


def test_the_client_s_secret_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    monkeypatch.setenv("BACKSTOP_OIDC_CLIENT_SECRET_FILE", str(file))
    with pytest.raises(BadInput, match="cannot be read"):
        load_front_settings()
    file.write_text("\n")
    with pytest.raises(BadInput, match="is empty"):
        load_front_settings()
    file.write_text("of a test\n")
    assert load_front_settings().oidc_secret == "of a test"
    assert "of a test" not in repr(load_front_settings())
