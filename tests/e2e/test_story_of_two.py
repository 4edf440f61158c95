"""The story of `make demo` by two persons whom the front knows: over HTTP by a real provider, and at the socket."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_backup import Site
from tests.oidc.real import a_key, needs_provider, provider, says_yes
from tests.ports import free_port
from tests.tried import SAID
from workers.demo import CLOCKS, CLUSTER

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(580), needs_provider]
ME, OTHER = pwd.getpwuid(os.getuid()).pw_name, "daemon"
PATIENCE = 200
ROLES = {"tpm": ["admin", "operator"], "sre": ["admin", "approver"]}


class Person:
    """A person at a terminal of their own, who comes in by either way."""

    def __init__(self, name: str, environment: dict[str, str], becomes: Sequence[str] = ()) -> None:
        self.name, self.environment, self.becomes = name, environment, becomes
        self.heard: list[str] = []
        self.proof = "oidc" if "BACKSTOP_URL" in environment else "peer"

    def says(self, *words: str, code: int = 0) -> str:
        line = [*self.becomes, sys.executable, "-m", "cli.main", *words]
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, check=False, timeout=120)
        text = done.stdout + done.stderr
        assert done.returncode == code, f"{self.name}: {words}: {done.returncode}: {text}"
        self.heard.append(text)
        return text

    def logs_in(self, name: str) -> None:
        """Log in by the device flow to its end: a person of this name agrees in a browser."""
        line = [sys.executable, "-m", "cli.main", "login"]
        with subprocess.Popen(line, env=self.environment, stdout=subprocess.PIPE, text=True) as login:
            assert login.stdout is not None
            address = re.search(r"Open (\S+)", login.stdout.readline())
            assert address is not None
            says_yes(address[1], name)
            assert f"Logged in as user:{self.name}" in login.stdout.read()
        assert login.returncode == 0

    def is_known(self) -> None:
        """Wait until the file knows the person: fronts use a file a second after its import."""
        ends = time.monotonic() + PATIENCE
        while not (whose := self.says("whoami")).startswith(f"user:{self.name}, proven ({self.proof})"):
            assert time.monotonic() < ends, whose
            time.sleep(0.5)

    def until(self, what: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE
        while True:
            status: dict[str, Any] = json.loads(self.says("status", CLUSTER, "--json"))
            if reached(status):
                return status
            assert time.monotonic() < ends, (what, status["stage"], status["needs"])
            time.sleep(1)


class Stage:
    """A running `backstop up`, its admin at the socket, and how persons come in."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.folder, self.site = folder, site

    def file(self, name: str, content: dict[str, Any]) -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        path.chmod(0o644)
        return str(path)

    def fleet(self, healthy: int) -> str:
        island = {"name": "main", "total_gpus": 361, "healthy_gpus": healthy}
        quota = {"team": "research", "gpus": 345, "scheduled_gpus": 310, "idle_gpus": 0}
        cluster = {"name": CLUSTER, "gpus_per_node": 8, "islands": [island], "quotas": [quota]}
        return self.file("fleet.yaml", {"policy": CLOCKS, "clusters": [cluster]})

    def person(self, name: str, user: str = "", **more: str) -> Person:
        home = self.folder / name
        home.mkdir(mode=0o700)
        if user:
            shutil.chown(home, user)
        return Person(
            name, {**self.site.environment, "BACKSTOP_HOME": str(home), **more}, as_user(user) if user else ()
        )


def as_user(name: str) -> tuple[str, ...]:
    """Another user of the machine, who may read the files of ours that a program needs."""
    caps = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return "setpriv", "--reuid", name, "--regid", name, "--clear-groups", *caps


@contextmanager
def on_stage(**environment: str) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="backstop-story-"))  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    site = Site(folder / "state", actor="")
    site.home.mkdir()
    site.environment |= {"BACKSTOP_WATCH_INTERVAL": "0.1", "BACKSTOP_CONSOLE_PORT": str(free_port()), **environment}
    try:
        with site.up(signal.SIGINT):
            yield Stage(folder, site)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(
    params=["http", pytest.param("socket", marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root"))]
)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Person, Person]]:
    """Yield the planner and the approver: known by the provider over HTTP, or by the kernel at the socket."""
    with ExitStack() as open_ones:
        people: list[dict[str, Any]] = [{"name": "tpm", "machine": [ME]}, {"name": "sre", "machine": [OTHER]}]
        if request.param == "http":
            issuer = open_ones.enter_context(provider(tmp_path, a_key("one")))
            settings = {"BACKSTOP_OIDC_ISSUER": issuer, "BACKSTOP_OIDC_CLIENT_ID": "backstop-cli"}
            people = [one | {"oidc": [{"issuer": issuer, "subject": f"sub-{one['name']}"}]} for one in people]
        else:
            settings = {"BACKSTOP_SOCKET": str(Path(tempfile.mkdtemp(prefix="backstop-run-")) / "front.sock")}
            Path(settings["BACKSTOP_SOCKET"]).parent.chmod(0o755)
            open_ones.callback(shutil.rmtree, Path(settings["BACKSTOP_SOCKET"]).parent)
        stage = open_ones.enter_context(on_stage(**settings))
        grants = [{"to": [f"user:{name}"], "roles": roles} for name, roles in ROLES.items()]
        file = stage.file("access.yaml", {"people": people, "grants": grants})
        stage.site.run("fleet", "import", stage.fleet(319))
        stage.site.run("access", "import", file, "--reason", "the first access file")
        if request.param == "http":
            url = f"http://127.0.0.1:{stage.site.environment['BACKSTOP_CONSOLE_PORT']}"
            tpm, sre = (stage.person(name, BACKSTOP_URL=url) for name in ROLES)
            for one in (tpm, sre):
                assert "backstop login" in one.says("status", code=3)
                one.logs_in(f"sub-{one.name}")
        else:
            tpm, sre = stage.person("tpm"), stage.person("sre", OTHER)
        yield stage, tpm, sre
        SAID[f"story of two, {request.param}"] = (
            f"{len(tpm.heard) + len(sre.heard)} commands of two persons, all proven"
        )


def test_two_persons_play_the_demo_and_every_command_is_proven(two: tuple[Stage, Person, Person]) -> None:
    stage, tpm, sre = two
    for one in two[1:]:
        one.is_known()
    assert "this needs the role operator there (user:tpm)" in sre.says("launch", CLUSTER, code=3)
    tpm.says("launch", CLUSTER, "--reason", "pilot")
    plan = json.loads(tpm.says("status", CLUSTER, "--json"))["plan_hash"]
    assert re.search(r"could act +user:sre\n", tpm.says("status", CLUSTER))
    assert "this needs the role approver there (user:sre)" in tpm.says("approve", CLUSTER, "--plan", plan, code=3)
    sre.says("approve", CLUSTER, "--plan", plan)
    status = tpm.until("monitored", lambda s: s["stage"] == "monitored")
    assert (status["owner"], status["approved_by"]) == ("tpm", "user:sre")
    assert {team["team"]: team["quota_gpus"] for team in status["teams"]} == {"research": 306}

    tpm.says("fleet", "import", stage.fleet(300))  # hardware fails: no policy changes, so that one admin is enough
    sre.until("rolled back", lambda s: s["stage"] == "rolled_back")
    tpm.says("fleet", "import", stage.fleet(319))
    sre.until("monitored again", lambda s: s["stage"] == "monitored" and s["attempt"] == 2)

    with closing(sqlite3.connect(stage.site.home / "ledger.db")) as book:
        archived = [
            json.loads(text) for (text,) in book.execute("SELECT entry FROM audit WHERE cluster = ?", (CLUSTER,))
        ]
    begun = next(n for n, row in enumerate(archived) if "launched" in row["text"])
    spoken = [row for row in archived[begun:] if row["kind"] == "command"]
    assert {row["actor"] for row in spoken} == {"user:tpm", "user:sre"}
    assert {row["data"]["proof"]["proof"] for row in spoken} == {tpm.proof}
    assert "whole" in sre.says("audit", CLUSTER, "--verify")
    assert "may not pause" in sre.says("pause", CLUSTER, "--reason", "x", code=3)
    tpm.says("close", CLUSTER, "--reason", "the story is over", "--yes")
