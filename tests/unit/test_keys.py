"""A front's keys: made, rotated, revoked and lost; in files that are nobody else's."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.main import run
from client import front_key_files
from client.front_signer import FrontSigner
from models.access.principals import Principal, Proof
from models.access.ticket_checks import check_ticket
from models.errors import BadInput, Refusal
from models.rollout.commands import CommandRequest
from workers.front_public_keys import KeysKept
from workers.settings import load_settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SRE = Principal(name="sre", human="sre", proof=Proof.PEER)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BACKSTOP_KEYS", raising=False)
    return tmp_path / "home"


def said(at: datetime) -> CommandRequest:
    """Return the command that the front would send at this time."""
    signer = FrontSigner(front_key_files.load_signing_key(), SRE, now=lambda: at)
    return signer(CommandRequest(actor="sre", reason="x"), "rollout.pause", "rollout/h100")


def good(message: CommandRequest) -> bool:
    try:
        check_ticket(message, "rollout.pause", "rollout/h100", KeysKept(front_key_files.key_book_file())())
    except Refusal:
        return False
    return True


def test_a_key_is_made_once_and_is_its_users_alone(home: Path) -> None:
    front_key_files.new_key(NOW)
    for path, mode in ((home / "keys", 0o700), (home / "keys/front.pem", 0o600), (home / "keys/keys.json", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert "PRIVATE" not in (home / "keys/keys.json").read_text()
    assert good(said(NOW))
    with pytest.raises(Refusal, match="rotate"):
        front_key_files.new_key(NOW)


def test_a_front_signs_with_its_key_of_now() -> None:
    key = front_key_files.FrontKey()
    assert key() is None
    first = front_key_files.new_key(NOW)
    assert (now := key()) is not None
    assert now.key_id == first.key_id
    second = front_key_files.rotate_key(NOW + timedelta(days=1))
    assert (now := key()) is not None
    assert now.key_id == second.key_id
    front_key_files.front_key_file().write_text("no key")
    assert key() is now, "what is no key leaves the one that was"
    front_key_files.front_key_file().unlink()
    assert key() is now


def test_what_a_rotated_key_signed_stays_good_and_it_signs_no_more() -> None:
    front_key_files.new_key(NOW)
    before, old = said(NOW + timedelta(hours=1)), front_key_files.load_signing_key()
    day = NOW + timedelta(days=1)
    new = front_key_files.rotate_key(day)
    assert front_key_files.load_signing_key().key_id == new.key_id != old.key_id
    assert good(before)
    assert good(said(day))
    late = FrontSigner(old, SRE, now=lambda: day + front_key_files.SIGNS_ON)
    assert not good(late(CommandRequest(actor="sre", reason="x"), "rollout.pause", "rollout/h100"))


def test_nothing_counts_that_a_stolen_key_signed_since() -> None:
    key = front_key_files.new_key(NOW)
    before, after = said(NOW + timedelta(hours=1)), said(NOW + timedelta(hours=3))
    front_key_files.revoke_key(key.key_id, NOW + timedelta(hours=2))
    assert good(before)
    assert not good(after)
    front_key_files.revoke_key(key.key_id, NOW + timedelta(hours=9))  # a later date takes nothing back
    assert not good(after)


def test_a_lost_key_is_replaced_and_what_it_signed_stands(home: Path) -> None:
    front_key_files.new_key(NOW)
    before = said(NOW + timedelta(hours=1))
    (home / "keys/front.pem").unlink()
    front_key_files.replace_lost_key(NOW + timedelta(days=1))
    assert good(before)
    assert good(said(NOW + timedelta(days=1)))


def test_a_worker_knows_of_a_change_and_keeps_what_it_knew_where_the_book_is_gone(home: Path) -> None:
    key = front_key_files.new_key(NOW)
    kept = KeysKept(front_key_files.key_book_file())
    front_key_files.rotate_key(NOW + timedelta(days=1))
    assert len(kept()) == 1
    kept.read_again()
    assert len(kept()) == 2
    (home / "keys/keys.json").write_text("{}x")
    kept.read_again()
    assert key.key_id in kept()


def test_with_a_book_commands_need_tickets_and_one_that_is_named_has_to_be_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().keys is None
    front_key_files.new_key(NOW)
    assert load_settings().keys == home / "keys/keys.json"
    monkeypatch.setenv("BACKSTOP_KEYS", str(home / "other.json"))
    with pytest.raises(BadInput, match=r"other\.json does not exist"):
        load_settings()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "keys.json"),
        ('{"keys": [{"key_id": "a"}]}', "keys"),
        (json.dumps({"keys": [{"key_id": "a", "pem": "x", "valid_from": "2026-01-01T00:00Z"}]}), "Ed25519"),
        (json.dumps({"keys": [{"key_id": "a", "pem": "x", "valid_from": "2026-01-01T00:00Z"}] * 2}), "same key_id"),
    ],
)
def test_a_book_that_is_none_is_one_sentence(
    home: Path, content: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "keys").mkdir(parents=True)
    (home / "keys/keys.json").write_text(content)
    assert run(["keys", "show"]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert len(told.strip().splitlines()) == 1


def test_the_commands_say_what_became_of_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "show"]) == 2
    assert "backstop keys new" in capsys.readouterr().err
    assert run(["keys", "new"]) == 0
    assert run(["keys", "new"]) == 3
    assert run(["keys", "rotate"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("It cannot be undone: ")
    assert run(["keys", "show", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)["keys"]
    assert [key["status"] for key in keys] == ["verifies", "signs"]
    assert run(["keys", "revoke", keys[1]["key_id"]]) == 0
    assert "cannot be undone" in capsys.readouterr().out
    assert run(["keys", "revoke", "nobody"]) == 3
    assert run(["keys", "revoke", keys[0]["key_id"], "--since", "yesterday"]) == 2
    (home / "keys/front.pem").unlink()
    assert run(["keys", "rotate"]) == 2
    assert run(["keys", "new", "--lost"]) == 0
    capsys.readouterr()
    assert run(["keys", "show"]) == 0
    out = capsys.readouterr().out
    assert "revoked" in out
    assert "signs" in out
