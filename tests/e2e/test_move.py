"""The runbook of docs/set-up.md, followed line by line: to PostgreSQL and a Temporal of one's own, and back.

The own Temporal is a second embedded server; what the runbook types is typed, with addresses of this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
import sqlalchemy as sa
import yaml

from tests.integration.ledger.both_sides import in_file, in_server, tables_of
from workers.demo import CLOCKS
from workers.embedded_temporal import EmbeddedTemporal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "set-up.md").read_text()
HEADING = "## From one machine to PostgreSQL and a Temporal of your own\n"
PATIENCE = 120
ON_ITS_WAY, LAST, PLANNED = "on-its-way", "last", "planned-only"
FLEET = {
    "policy": {**CLOCKS, "soak_buffered": "1h", "breach_after": "10m"},
    "clusters": [
        {
            "name": name,
            "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
            "quotas": [{"team": "research", "gpus": 345, "scheduled_gpus": 310}],
            "policy": policy,
        }
        for name, policy in ((ON_ITS_WAY, {}), (LAST, {"soak_buffered": "0s"}), (PLANNED, {}))
    ],
    "teams": [{"name": "research", "contacts": ["log"]}],
}


def steps() -> list[list[str]]:
    """The commands of each block of the runbook."""
    section = PAGE.partition(HEADING)[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return [[line.strip().removeprefix("$ ") for line in block.splitlines()] for block in blocks]


class Terminal:
    """A person at a shell: types lines, and leaves what serves running."""

    def __init__(self, folder: Path, here: dict[str, str]) -> None:
        """`here`: what stands on this machine for the runbook's addresses."""
        self.folder, self.here = folder, here
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OTEL_", "BACKSTOP_"))}
        ports = {"BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "0", "BACKSTOP_WATCH_INTERVAL": "0.5"}
        self.environment = {
            **inherited,
            **ports,
            "BACKSTOP_ACTOR": "tpm",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{folder / 'bin'}{os.pathsep}{inherited['PATH']}",
        }
        program = folder / "bin" / "backstop"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
        program.chmod(0o755)
        self.serving: subprocess.Popen[bytes] | None = None

    def type(self, line: str) -> str:
        for word, local in self.here.items():
            line = line.replace(word, local)
        verb, *words = line.split(" ")
        if verb == "export":
            self.environment |= dict(word.split("=", 1) for word in words)
        elif verb == "unset":
            for word in words:
                self.environment.pop(word)
        elif line in ("backstop worker", "backstop up"):
            self.serve(line)
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                env=self.environment,
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr}"
            return done.stdout
        return ""

    def serve(self, line: str) -> None:
        assert self.serving is None
        log = self.folder / "serving.log"
        with log.open("wb") as out:
            self.serving = subprocess.Popen(
                line.split(), env=self.environment, cwd=self.folder, stdout=out, stderr=out, start_new_session=True
            )
        ends = time.monotonic() + PATIENCE
        while not re.search("ready|serving", log.read_text()):
            assert self.serving.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Ctrl-C where it serves."""
        if self.serving is not None:
            self.serving.send_signal(signal.SIGINT)
            assert self.serving.wait(60) == 0
            self.serving = None

    def stages(self) -> dict[str, str]:
        return {row["cluster"]: row["stage"] for row in json.loads(self.type("backstop status --json"))["rollouts"]}

    def until(self, stages: dict[str, str]) -> None:
        ends = time.monotonic() + PATIENCE
        while (found := self.stages()) != stages:
            assert time.monotonic() < ends, found
            time.sleep(0.5)


@pytest.fixture
def database(postgres_url: str) -> str:
    """New and empty, as the runbook asks for."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS own WITH (FORCE)")
        connection.execute("CREATE DATABASE own")
    return sa.make_url(postgres_url).set(database="own").render_as_string(hide_password=False)


@pytest.fixture
def terminal(database: str, tmp_path: Path) -> Iterator[Terminal]:
    here = {"postgresql://backstop@db.example.com/backstop": database, "/var/lib/backstop": str(tmp_path / "own-home")}
    typed = Terminal(tmp_path, here)
    yield typed
    typed.stop()


def counts(url: str, question: LiteralString) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute(question).fetchall())


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_the_runbook_moves_everything_and_leads_back(terminal: Terminal, database: str, tmp_path: Path) -> None:
    keep, copy, told, serve, take_over, back = steps()
    (tmp_path / "state").mkdir()
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    own = EmbeddedTemporal(tmp_path / "own-temporal", None, None)
    async with own:
        terminal.here["temporal.example.com:7233"] = own.address
        await asyncio.to_thread(_moved, terminal, database, tmp_path, (keep, copy, told, serve, take_over))
    await asyncio.to_thread(_back_again, terminal, back)


def _moved(terminal: Terminal, database: str, folder: Path, runbook: tuple[list[str], ...]) -> None:
    keep, copy, told, serve, take_over = runbook
    terminal.environment["BACKSTOP_HOME"] = "./state"
    terminal.type("backstop up")
    terminal.type("backstop fleet import fleet.yaml")
    for name in (ON_ITS_WAY, LAST, PLANNED):
        terminal.type(f"backstop launch {name} --owner tpm --reason pilot")
        plan = json.loads(terminal.type(f"backstop status {name} --json"))["plan_hash"]
        if name is not PLANNED:
            terminal.type(f"backstop approve {name} --plan {plan}")
    before = {ON_ITS_WAY: "buffered", LAST: "monitored", PLANNED: "planned"}
    terminal.until(before)
    for line in keep:
        terminal.type(line)
    refused = subprocess.run(
        ["backstop", *copy[-1].split()[1:]],
        env={**terminal.environment, "BACKSTOP_LEDGER_URL": database},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    sentence = "backstop: state/ledger.db is in use: stop `backstop up` or its workers first\n"
    assert (refused.returncode, refused.stderr) == (2, sentence)
    terminal.stop()

    for line in copy:
        terminal.type(line)
    old = folder / "state" / "ledger.db"
    for table in tables_of(old):
        columns, theirs = in_file(old, table)
        assert in_server(database, table, columns) == theirs, table
    archived = counts(database, "SELECT cluster, length FROM audit_heads")

    for line in (*told, *serve):
        terminal.type(line)
    assert "3 rollouts are open in the ledger, but Temporal does not run them." in terminal.type(take_over[0])
    for line in take_over[1:]:
        if "--fleet" not in line:  # only where a fleet rollout was open
            terminal.type(line)
    assert terminal.stages() == dict.fromkeys(before, "planned")
    cut = {ON_ITS_WAY: 306, LAST: 306, PLANNED: 345}
    assert counts(database, "SELECT cluster, gpus FROM quotas") == cut, "taking over moves nothing"

    plan = json.loads(terminal.type(f"backstop status {LAST} --json"))["plan_hash"]
    terminal.type(f"backstop approve {LAST} --plan {plan}")
    terminal.type(f"backstop abort {ON_ITS_WAY} --reason 'as it was' --yes")
    terminal.until({LAST: "monitored", PLANNED: "planned", ON_ITS_WAY: "aborted"})
    assert counts(database, "SELECT cluster, gpus FROM quotas") == {**cut, ON_ITS_WAY: 345}
    for name in before:
        assert "is whole" in terminal.type(f"backstop audit {name} --archive --verify")
    lengths = counts(database, "SELECT cluster, length FROM audit_heads")
    assert all(lengths[name] > archived[name] for name in before), "the chains went on"
    terminal.type("backstop doctor")

    notices = [json.loads(line) for line in (folder / "own-home" / "notices.jsonl").read_text().splitlines()]
    assert (folder / "own-home" / "notices.jsonl.book").is_file()
    assert [key for key, times in Counter(notice["key"] for notice in notices).items() if times > 1] == []
    terminal.stop()


def _back_again(terminal: Terminal, back: list[str]) -> None:
    """The home goes on as it was stopped, whatever was done on the new side."""
    for line in back:
        terminal.type(line)
    terminal.until({ON_ITS_WAY: "buffered", LAST: "monitored", PLANNED: "planned"})
    assert "is whole" in terminal.type(f"backstop audit {ON_ITS_WAY} --verify")
