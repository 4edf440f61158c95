"""The command line's way for a fleet with secrets: a program of the workers' writes it into the ledger."""

from __future__ import annotations

import sqlite3
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from cli.ledger_direct_writes import stage_import
from models.cluster.contact_secrets import is_secret, mask_secrets
from models.cluster.fleet_file import Fleet
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from workers.settings import load_settings

SECRET = "slack://T1AAA/B1BBB/ToKeN"
FLEET = {
    "clusters": [{"name": "c", "islands": [{"name": "main", "total_gpus": 8, "healthy_gpus": 8}], "quotas": []}],
    "teams": [{"name": "a", "contacts": [SECRET]}],
}


@pytest.mark.nightly
def test_what_is_staged_so_is_committed_by_its_name(sqlite_ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_LEDGER_URL", sqlite_ledger_url)
    document = zlib.compress(Fleet.model_validate(FLEET).model_dump_json(exclude_unset=True).encode())
    stage_import("one", 0, document[:40])
    stage_import("one", 1, document[40:])
    with Ledger(sqlite_ledger_url) as ledger:
        assert ledger.fleet.commit_import("one", 2, "tpm", datetime.now(UTC))["clusters"] == 1
    with sqlite3.connect(sqlite_ledger_url.removeprefix("sqlite:///")) as book:
        assert book.execute("SELECT team, address FROM contacts").fetchall() == [("a", SECRET)]
        assert book.execute("SELECT count(*) FROM import_parts").fetchall() == [(0,)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("url", "error", "sentence"),
    [
        ("", Refusal, "BACKSTOP_LEDGER_URL reaches the workers' ledger, or write named:NAME"),
        ("sqlite:///{home}/away/ledger.db", Refusal, "named:NAME"),
        ("sqlite:///{home}/bare.db", Unavailable, "backstop migrate"),
        ("postgresql://nobody@127.0.0.1:1/none", Unavailable, "ledger|database|connect"),
    ],
    ids=["no ledger", "no such file", "no schema", "nobody listens"],
)
def test_without_a_ledger_it_says_what_to_do_and_makes_none(
    url: str, error: type[BackstopError], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare.db").touch()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path))
    monkeypatch.setenv("BACKSTOP_LEDGER_URL", url.format(home=tmp_path))
    with pytest.raises(error, match=sentence) as refused:
        stage_import("one", 0, SECRET.encode())
    assert "ToKeN" not in refused.value.message
    assert [path for path in sorted(tmp_path.iterdir()) if "bare.db-" not in path.name] == before


@pytest.mark.parametrize(
    ("contact", "said"),
    [
        ("log", "log"),
        ("named:team-a", "named:team-a"),
        ("some.one+gpu@team.example", "some.one+gpu@team.example"),
        ("mailto:someone@team.example", "mailto:someone@team.example"),
        ("mailto://user:pw@mail.example/a@b.example", "mailto://***"),
        (SECRET, "slack://***"),
        ("https://hooks.slack.com/services/A/B/C", "https://***"),
        ("webhook+http://10.0.0.1/x", "webhook+http://***"),
        ("ToKeN", "***"),
        ("ToKeN@team.example:pw", "***"),
        ("log ToKeN", "***"),
        ("", "***"),
    ],
)
def test_a_contact_is_secret_unless_it_is_known_not_to_be(contact: str, said: str) -> None:
    assert (mask_secrets(contact), is_secret(contact)) == (said, said.endswith("***"))


def test_the_workers_file_of_contacts_is_read_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "contacts.yaml"
    book.write_text(f"contacts:\n  team-a: {SECRET}\n")
    monkeypatch.setenv("BACKSTOP_CONTACTS", str(book))
    monkeypatch.setenv("BACKSTOP_CONTACT_NETWORKS", "10.1.0.0/16")
    settings = load_settings()
    assert (settings.contacts, [str(n) for n in settings.contact_networks]) == ({"team-a": SECRET}, ["10.1.0.0/16"])
    assert "ToKeN" not in repr(settings)
    book.write_text("contacts: [1]\n")
    with pytest.raises(BadInput, match="contacts"):
        load_settings()
