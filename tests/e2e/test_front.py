"""The front over a real Temporal, at sockets: who speaks there, changes, and the programs."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from client.backstop import Backstop
from models.errors import BackstopError, BadInput, Refusal
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from tests.e2e.front_world import front_of, through
from tests.e2e.world import World, eventually, fresh, worked_case

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
ME = f"user:{getpass.getuser()}"
Question = Callable[[Backstop], Awaitable[object]]
STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}


@pytest.fixture
async def socket(world: World, tmp_path: Path) -> AsyncIterator[Path]:
    async with front_of(world.client, tmp_path / "front.sock"):
        yield tmp_path / "front.sock"


def at(socket: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url="http://front/api/v1", timeout=60)


async def planned(world: World) -> str:
    name = fresh("front")
    await world.fleet(worked_case(name, **STILL))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    return name


# --- who speaks -----------------------------------------------------------------------------------------


async def test_the_kernel_says_who_speaks_whatever_the_message_says(world: World, socket: Path) -> None:
    name = await planned(world)
    said = CommandRequest(actor="somebody-else", reason="a SEV")
    await through(socket).command(name, Command.PAUSE, said)
    async with at(socket) as http:
        forged = {"authorization": "Bearer x", "x-forwarded-for": "10.0.0.1", "x-remote-user": "root"}
        body = {"actor": "user:ana", "ticket": "", "principal": "user:ana"}
        assert (await http.get("/whoami", headers=forged)).json()["name"] == ME
        refused = await http.post(f"/rollouts/{name}/resume", json=body)
        assert (refused.status_code, refused.json()["exit_code"]) == (422, 2)
        await http.post(f"/rollouts/{name}/resume", json={"actor": "user:ana"}, headers=forged)
    await eventually(lambda: ME in {entry["actor"] for entry in world.sql.archive(name)}, "the commands are archived")
    spoke = {entry["actor"] for entry in world.sql.archive(name)} - {"tpm", "backstop", "exporter"}
    assert spoke == {ME}


# --- changes --------------------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_status_is_known_again(world: World, socket: Path) -> None:
    name = await planned(world)
    async with at(socket) as http:
        await world.at_rest()
        first = await http.get(f"/rollouts/{name}")
        await asyncio.sleep(1.1)
        tag = {"if-none-match": first.headers["etag"]}
        same = await http.get(f"/rollouts/{name}", headers=tag)
        assert (same.status_code, same.content) == (304, b"")
        await world.say(name, Command.PAUSE)
        assert (await http.get(f"/rollouts/{name}", headers=tag)).status_code == 200


async def test_changes_are_told_as_they_happen_until_the_end(world: World, socket: Path) -> None:
    name = await planned(world)
    told: list[tuple[str, Any]] = []
    async with at(socket) as http, http.stream("GET", f"/rollouts/{name}?watch") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        kind, ending = "", False
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                told.append((kind, json.loads(line.removeprefix("data: "))))
                if len(told) == 1:
                    await world.say(name, Command.PAUSE)
                elif kind == "status" and told[-1][1]["holds"] and not ending:
                    ending = True
                    await world.say(name, Command.ABORT)
    statuses = [document for kind, document in told if kind == "status"]
    assert (statuses[0]["stage"], statuses[-1]["stage"]) == ("planned", "aborted")
    assert any(document["holds"] for document in statuses)
    assert told[-1][0] == "end"


# --- errors ---------------------------------------------------------------------------------------------


async def refused_alike(world: World, socket: Path, question: Question) -> type[BackstopError]:
    """Check that the front's error is that of Temporal's door; return its kind."""
    found = []
    for door in (through(socket), world.tpm):
        with pytest.raises((Refusal, BadInput)) as failure:
            await question(door)
        found.append((type(failure.value), failure.value.message))
    assert found[0] == found[1]
    return found[0][0]


@pytest.mark.nightly
async def test_an_error_about_builds_comes_back_as_it_is_straight_at_temporal(world: World, socket: Path) -> None:
    """tests/loop/test_front.py has the errors of all that its Temporal in memory knows."""
    assert await refused_alike(world, socket, lambda door: door.use_build("nobody")) is BadInput


# --- the programs ---------------------------------------------------------------------------------------


def environment(home: Path, **more: str) -> Mapping[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL", "XDG", "OTEL"))}
    return {**kept, "HOME": str(home), "BACKSTOP_HOME": str(home), **more}


@pytest.mark.nightly
async def test_backstop_serve_answers_and_leaves_nothing(temporal: Client, tmp_path: Path) -> None:
    address = temporal.service_client.config.target_host
    command = [sys.executable, "-P", str(ROOT / "backstop" / "program.py")]
    given = environment(tmp_path, TEMPORAL_ADDRESS=address, TEMPORAL_NAMESPACE="backstop")
    served = await asyncio.create_subprocess_exec(
        *command, "web.serve", "--listen", "127.0.0.1:0", env=given, stdout=-1, cwd=ROOT
    )
    assert served.stdout is not None
    lines = []
    while "front: ready" not in lines:
        lines.append((await asyncio.wait_for(served.stdout.readline(), 60)).decode().strip())
    asked = await asyncio.create_subprocess_exec(*command, "cli.main", "whoami", "--json", env=given, stdout=-1)
    assert json.loads((await asked.communicate())[0])["name"] == ME
    url = lines[1].removeprefix("front").strip()
    async with httpx.AsyncClient(base_url=url) as http:
        nobody = await http.get("/api/v1/rollouts")
        assert (nobody.status_code, nobody.json()["exit_code"]) == (401, 3)
        assert "backstop login" in nobody.json()["detail"]
        assert (await http.get("/healthz")).status_code == 200
    served.terminate()
    assert await asyncio.wait_for(served.wait(), 30) == 0
    assert not (tmp_path / "front.sock").exists()
    assert not (tmp_path / "front.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "0.0.0.0:0"], "plain HTTP would show tokens to everybody"),
        (["--listen", "nowhere"], "--listen takes HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "/nowhere.pem"], "there is no such file"),
        (["--tls-cert", __file__, "--tls-key", __file__], "--tls-cert needs --listen HOST:PORT: give both"),
    ],
)
@pytest.mark.nightly
def test_what_a_front_cannot_be_is_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(ROOT / "backstop" / "program.py"), "web.serve", *words]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert sentence in done.stderr


# --- the page ---------------------------------------------------------------------------------------------


def curls() -> list[tuple[str, str]]:
    """Return each `curl` of docs/api.md, and the answer that the page gives."""
    page = (ROOT / "docs" / "api.md").read_text()
    return re.findall(r"^\$ (curl [^\n]*)\n([^\n]*)", page, re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_the_page_s_examples_answer_as_it_says(world: World, socket: Path) -> None:
    name = await planned(world)
    await world.listed(name)
    assert len(curls()) >= 7
    for line, shown in curls():
        words = line.replace("~/.local/state/backstop/front.sock", str(socket)).replace("h100-worked", name)
        if shown.startswith("event: "):  # it ends when the reader does, and not after the page's two seconds
            words = words.replace("--max-time 2 ", "")
        ran = await asyncio.create_subprocess_exec(*shlex.split(words), stdout=-1)
        if shown.startswith("event: "):
            assert ran.stdout is not None
            assert (await ran.stdout.readline()).decode() == f"{shown}\n", line
            ran.kill()
            await ran.wait()
            continue
        said = (await ran.communicate())[0].decode()
        wanted, found = json.loads(shown.replace("h100-worked", name)), json.loads(said)
        if isinstance(wanted, list):
            wanted, found = wanted[0], found[0]
        assert wanted.keys() <= found.keys(), line
        same = wanted.keys() - {"instance", "name", "human", "plan_hash", "said"}
        assert {k: found[k] for k in same} == {k: wanted[k] for k in same}
