"""Every command, through the front and straight at Temporal, in one world: what people read is the same."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import getpass
import io
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from temporalio.client import Client

from cli.main import run
from models.rollout.stages import Stage
from tests.e2e.front_world import front_of
from tests.e2e.world import World, worked_case, world_of
from tests.unit.test_cli_docs import COMMANDS

pytestmark = pytest.mark.e2e

TALKS_TO_NOBODY = {
    *("up", "worker", "serve", "mcp", "migrate", "backup", "demo", "backtest", "simulate-health", "docs", "schema"),
    *("fleet template", "flex divide", "flex simulate", "bringup template", "bringup recipe check"),
    *("login", "open", "logout", "whoami", "access recover", "countersign give"),
    *("keys new", "keys rotate", "keys revoke", "keys show"),
    *("keys payload new", "keys payload rotate", "keys payload show"),
}
"""A program of its own, a file alone, or what is said to a front and to nobody else."""

SAID = """
    doctor
    status
    status --json
    status C
    status C --json
    status nothing-there
    plan C
    plan C --policy notice=nonsense
    haircut C
    buffer C
    why research --cluster C
    approve C --plan 1234
    approve C --plan PLAN
    ack C --team research
    object C --team research --reason 'a deadline'
    resolve C --hold objection-research --reason 'it is moved'
    promote C --reason 'all agreed'
    pause C --reason 'a SEV'
    resume C
    retry C
    close C --yes
    rollback C --reason wrong --yes
    watch C --once
    audit C
    audit C --archive --json
    audit C --verify
    burndown --cluster C
    report --weekly
    hold C --kind sev --until 2h --reason 'a SEV'
    calendar show C
    calendar end C N --reason 'it is over'
    calendar import /nowhere.ics --cluster C
    confirm --source nobody --reason 'it is so'
    detach C --reason 'no Slurm' --yes
    flex show C
    fleet show C
    fleet diff FILE
    fleet import FILE --dry-run
    fleet export --cluster C
    fleet rename C C --reason 'a try' --yes
    fleet remove C --reason 'a try' --yes
    fleet status
    fleet watch --once
    fleet plan
    fleet approve --plan 1234
    fleet pause --reason x
    fleet resume --yes
    fleet skip C --reason x
    fleet move C --wave busy --reason x
    fleet promote --reason x
    fleet pace parallel=2 --reason x
    fleet abort --reason x --yes
    builds show
    builds use nobody
    milestones set FILE
    milestones note nothing 3 --reason x
    milestones show
    request new research C 400 --reason 'a run'
    request list C
    request show nothing
    request approve nothing --reason x
    request decline nothing --reason x
    request withdraw nothing --reason x
    request extend nothing --until 7d --reason x
    bringup add FILE --recipes FILE
    bringup status
    bringup status C
    bringup watch C --once
    bringup check-in C
    bringup hold C --reason x
    bringup release C
    bringup retry C --reason x
    bringup skip C --reason x
    bringup stop C --reason x --yes
    bringup revalidate C
    bringup cancel C --reason x --yes
    bringup retire C --reason x --yes
    bringup give-up C --reason x --yes
    bringup audit C
    access show
    access show --json
    access who-can approve C
    access can user:nobody C
    access import FILE
    access token new ci --owner service:ci --role viewer
    access token list
    access token revoke ci
    access seen 1 --reason x
    countersign list
    countersign list --json
    countersign withdraw 0123456789abcdef
    abort C --reason 'it is over' --yes
    launch C --reason again
    status C --json
"""


NOTED = ("doctor", "status", "watch", "audit", "burndown", "report")
"""What tells of a rollout."""


class Said(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def lines() -> list[str]:
    return [line.strip() for line in SAID.strip().splitlines()]


def test_every_command_is_said() -> None:
    said = {name for name in COMMANDS if any(re.match(rf"{name}( |$)", line) for line in lines())}
    assert said == set(COMMANDS) - TALKS_TO_NOBODY


@pytest.fixture
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, replays=False) as found:
        yield found


def alike(text: str) -> str:
    """Return the text without what differs between two tellings: names, times, hashes, and the speaker."""
    text = text.replace(f"user:{getpass.getuser()}", getpass.getuser())
    text = re.sub("twin-[fs]", "CLUSTER", text)
    text = re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{6}", "ROLLOUT", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?|\b\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", text)
    text = re.sub(r"\((\d+[smhd])\b[^)]*\)|\b\d+(\.\d+)?s\b", "SPAN", text)
    text = re.sub(r'"history_events": \d+|q-[0-9a-f]{8}|"seq": \d+|CLUSTER/1/\d{6}', "NUMBER", text)
    text = re.sub(r"(?<=CLUSTER) +[12](?=  sev| +--reason)", " NUMBER", text)
    text = text.replace('"next_at": null', '"next_at": "TIME"')
    return re.sub(r"[ ─-]{2,}", "  ", text)


def in_any_order(line: str, text: str) -> str:
    """A notice may go before a command is archived, or after."""
    return "\n".join(sorted(text.splitlines())) if line.startswith("audit C") else text


def typed(words: list[str]) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Said(code, out.getvalue(), err.getvalue())


@pytest.mark.nightly
async def test_what_people_read_is_the_same_through_the_front(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nothing.yaml"
    file.write_text("clusters: 7\n")
    twins = {"front": "twin-f", "straight": "twin-s"}
    still = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}
    await world.fleet(*(worked_case(name, **still) for name in twins.values()))
    for name in twins.values():
        await world.launch(name)
        await world.until(name, Stage.PLANNED)
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("BACKSTOP_ACTOR", "BACKSTOP_URL", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    socket = tmp_path / "front.sock"
    told: list[tuple[str, Said, Said]] = []
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "temporal.json").write_text(
        f'{{"address": "{world.client.service_client.config.target_host}"}}'
    )
    async with front_of(world.client, socket) as (front, _):
        for before, line in pairwise(("", *lines())):
            if line.startswith(NOTED) and not before.startswith(NOTED):
                await (
                    world.at_rest()
                )  # else one twin's story is noted as it is asked for, and the other's a moment later
            answers = {}
            for way, name in twins.items():
                monkeypatch.setenv("BACKSTOP_SOCKET", str(socket if way == "front" else tmp_path / "nobody.sock"))
                if line.startswith("launch"):
                    await world.ended(name)
                plan = (await world.tpm.status(name)).plan_hash or "" if "PLAN" in line else ""
                words = (
                    line.replace("PLAN", plan)
                    .replace("FILE", str(file))
                    .replace(" N ", f" {[*twins].index(way) + 1} ")
                    .split(" ")
                )
                words = [name if word == "C" else word for word in " ".join(words).replace("'", "\0").split(" ")]
                said = await asyncio.to_thread(typed, _unquoted(words))
                answers[way] = Said(said.code, in_any_order(line, alike(said.out)), alike(said.err))
            told.append((line, answers["front"], answers["straight"]))
        assert front.doors.heard_lately
    differ = [(line, a, b) for line, a, b in told if a != b]
    for line, through, straight in differ:
        for field, served, direct in zip(Said._fields, through, straight, strict=True):
            if served != direct:
                print(
                    f"--- {line}: {field}", *difflib.ndiff(str(direct).splitlines(), str(served).splitlines()), sep="\n"
                )
    assert [line for line, *_ in differ] == []
    assert {said.code for _, said, _ in told} == {0, 2, 3}
    spoke = {entry["actor"] for entry in world.sql.archive("twin-f")}
    assert f"user:{getpass.getuser()}" in spoke
    assert getpass.getuser() not in spoke
    assert f"user:{getpass.getuser()}" not in {entry["actor"] for entry in world.sql.archive("twin-s")}


def _unquoted(words: list[str]) -> list[str]:
    """Words between marks are one."""
    text, found, open_ = " ".join(words), list[str](), False
    for number, part in enumerate(text.split("\0")):
        open_ = number % 2 == 1
        found += [part] if open_ else part.split()
    return found
