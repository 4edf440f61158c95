"""The runbook of docs/operations.md, followed: a copy of a home that is in use, and rollouts that go on from it."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import yaml

from workers.demo import CLOCKS

NAMES = ("first",)
PATIENCE = 240
FLEET = {
    "policy": {**CLOCKS, "soak_buffered": "45s", "breach_after": "10m"},
    "clusters": [
        {
            "name": name,
            "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
            "quotas": [{"team": "research", "gpus": 345, "scheduled_gpus": 310}],
        }
        for name in NAMES
    ],
}


ME = pwd.getpwuid(os.getuid()).pw_name
ACCESS = {
    "two_person": False,  # one user of the machine is all that there is here
    "people": [{"name": "site-lead", "machine": [ME]}],
    "grants": [{"to": ["user:site-lead"], "roles": ["admin", "operator", "approver"]}],
}


class Site:
    """`backstop up` on a home, and a person with a terminal. `actor`: empty: the front says who commands."""

    def __init__(self, home: Path, actor: str = "tpm") -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OTEL_", "BACKSTOP_"))}
        ports = {"BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "0"}
        self.home = home
        self.environment = {**inherited, **ports, "BACKSTOP_HOME": str(home)}
        if actor:
            self.environment["BACKSTOP_ACTOR"] = actor

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        command = [sys.executable, "-m", "cli.main", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode in codes, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def stages(self) -> dict[str, str]:
        return {row["cluster"]: row["stage"] for row in json.loads(self.run("status", "--json"))["rollouts"]}

    def until(self, stage: str) -> None:
        ends = time.monotonic() + PATIENCE
        while (stages := self.stages()) != dict.fromkeys(NAMES, stage):
            assert time.monotonic() < ends, stages
            time.sleep(1)

    @contextmanager
    def up(self, end: signal.Signals) -> Iterator[None]:
        log = self.home.with_suffix(".log")
        command = [sys.executable, "-m", "workers.up"]
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)
        try:
            ends = time.monotonic() + PATIENCE
            while "ready" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            server = json.loads((self.home / "temporal.json").read_text())["pid"]
            process.send_signal(end)
            process.wait(60)
            if end is signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):  # the machine is gone, and its Temporal with it
                    os.kill(server, signal.SIGKILL)


def rows(home: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(home / "ledger.db")) as book:
        return book.execute(question).fetchall()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_rollouts_go_on_from_a_copy_of_a_home_in_use(tmp_path: Path) -> None:
    site, backup = Site(tmp_path / "state"), tmp_path / "backups" / "one"
    site.home.mkdir()
    backup.parent.mkdir()
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    with site.up(signal.SIGKILL):
        site.run("fleet", "import", str(tmp_path / "fleet.yaml"))
        for name in NAMES:
            site.run("launch", name, "--owner", "tpm", "--reason", "pilot")
            plan = json.loads(site.run("status", name, "--json"))["plan_hash"]
            site.run("approve", name, "--plan", plan)
        site.until("buffered")
        assert "ledger.db" in site.run("backup", str(backup))
        opened = rows(backup, "SELECT name, open_rollout FROM clusters ORDER BY name")
        site.until("monitored")  # what the copy knows nothing of
    shutil.rmtree(site.home)  # the machine is gone

    shutil.copytree(backup, site.home)
    with site.up(signal.SIGINT):
        site.until("monitored")
        for name in NAMES:
            site.run("audit", name, "--verify")
    assert rows(site.home, "SELECT name, open_rollout FROM clusters ORDER BY name") == opened
    assert rows(site.home, "SELECT cluster, team, gpus FROM quotas ORDER BY cluster") == [
        (name, "research", 306) for name in sorted(NAMES)
    ]
    # Each effect landed once: a fence has one receipt.
    twice = "SELECT rollout, counter, count(*) FROM receipts GROUP BY 1, 2 HAVING count(*) > 1"
    assert rows(site.home, twice) == []


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_what_was_approved_by_ticket_goes_on_from_a_backup_too(tmp_path: Path) -> None:
    """This holds with an access file in force, and with encrypted payloads."""
    site, backup = Site(tmp_path / "state", actor=""), tmp_path / "backup"
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    (tmp_path / "access.yaml").write_text(yaml.safe_dump(ACCESS))
    site.run("keys", "payload", "new")
    with site.up(signal.SIGKILL):
        site.run("fleet", "import", str(tmp_path / "fleet.yaml"))
        site.run("access", "import", str(tmp_path / "access.yaml"), "--reason", "the first one")
        time.sleep(2)  # the front asks again for what is older than a second
        site.run("launch", *NAMES, "--reason", "pilot")
        plan = json.loads(site.run("status", *NAMES, "--json"))["plan_hash"]
        site.run("approve", *NAMES, "--plan", plan)
        site.until("buffered")
        answer = site.run("backup", str(backup))
    assert "backstop keys new --lost" in answer, "what is left out is said"
    assert {path.name: path.stat().st_mode & 0o777 for path in (backup / "keys").iterdir()} == {
        "keys.json": 0o600,
        "payload.json": 0o600,
    }
    assert backup.stat().st_mode & 0o077 == 0
    shutil.rmtree(site.home)

    shutil.copytree(backup, site.home)
    with site.up(signal.SIGINT):
        assert "backstop keys new --lost" in site.home.with_suffix(".log").read_text()
        site.run("keys", "new", "--lost")
        time.sleep(8)  # workers read the book again within seconds
        site.until("monitored")
        site.run("pause", *NAMES, "--reason", "the new key commands")
        checks = {check["name"]: check for check in json.loads(site.run("doctor", "--json", codes=(0, 1)))["checks"]}
    assert "keys" not in checks, "the book knows whatever signed what stands"
    refused = "SELECT count(*) FROM audit WHERE entry LIKE '%stands in the ledger%'"
    assert rows(site.home, refused) == [(0,)]
