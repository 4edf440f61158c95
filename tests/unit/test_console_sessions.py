"""A browser's session: what it is known by, how long, and what a form of it carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.access.principals import Principal, Proof
from models.errors import BadInput
from web.console.sessions import LINK_SECONDS, SESSION_SECONDS, Sessions
from web.settings import load_front_settings

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


def test_whose_groups_a_provider_told_is_asked_for_anew_once_they_count_no_more() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    grouped = sessions.begin(ANA.but(groups=("sre",)))
    now[0] = 15 * 60 - 1
    assert sessions.session_of(grouped) is not None
    now[0] = 15 * 60
    assert sessions.session_of(grouped) is None


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
