"""`backstop mcp` to a client of the protocol's own SDK, over stdio and a front: it reads, and asks for quota."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.agents.read_only import PROPOSES, READS, ReadingDoor, may
from cli.agents.tools import TOOLS
from client.operations import OPERATIONS
from models.access.principals import Principal
from models.access.rights import READS_DESK, RIGHTS
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.errors import Refusal
from models.questions import QUESTIONS, Declare
from models.rollout.stages import Stage
from tests.e2e.front_world import front_of
from tests.e2e.world import World, fresh, worked_case
from web.rights import ALLOWED, Everybody, Judged

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}
TABLES = ("quotas", "rollouts", "audit", "windows", "health_samples", "islands", "clusters", "requests")


@dataclass
class Overheard(Everybody):
    """Everybody may do everything, and what they ask is written down."""

    commands: list[str] = field(default_factory=list)

    async def judge(
        self, principal: Principal, operation: Any, command: str, found: Mapping[str, Any], **_: bool
    ) -> Judged:
        self.commands.append(command)
        return ALLOWED


# --- the list ----------------------------------------------------------------------------------------------


def test_each_tool_asks_for_what_only_reads_or_for_a_request() -> None:
    for tool in TOOLS:
        assert tool.commands
        for command in tool.commands:
            assert command in RIGHTS
            assert (
                command.startswith("read.") or command.removeprefix("desk.") in READS_DESK or command == "request.ask"
            )
            assert may(command)


def test_the_door_of_agents_lets_nothing_else_through() -> None:
    """In the table of rights, each row is refused that does not begin with `read.` and is no question that reads."""
    let = {command for command in RIGHTS if may(command)}
    assert {command for command in let if not command.startswith(("read.", "desk."))} == {"request.ask"} == PROPOSES
    assert {f"desk.{kind}" for kind in READS_DESK} >= READS == {one for one in let if one.startswith("desk.")}


async def test_every_method_that_does_more_is_refused_before_it_is_said() -> None:
    door = ReadingDoor(None)  # type: ignore[arg-type]  # nothing is said to anybody
    more = [one.method for one in OPERATIONS if not one.command.startswith("read.") and one.command != "request.ask"]
    assert {"launch", "command", "fleet_command", "decide_request", "countersign", "use_build"} <= {*more}
    for method in more:
        with pytest.raises(Refusal, match="they may read, and ask for quota"):
            getattr(door, method)
    with pytest.raises(Refusal):
        await door.ask(Declare.model_construct(declared=()))
    for kind in sorted(set(QUESTIONS) - READS_DESK):
        with pytest.raises(Refusal):
            await door.ask(QUESTIONS[kind].model_construct())
    fleet = Fleet.model_validate({"clusters": [worked_case("a")]})
    with pytest.raises(Refusal):
        await door.take_fleet(fleet, ImportTerms(whole=True))
    with pytest.raises(Refusal):
        await door.import_fleet(fleet)


# --- over the protocol -----------------------------------------------------------------------------------


@asynccontextmanager
async def agent(home: Path) -> AsyncIterator[Any]:
    """A client of the SDK, and the program that it starts."""
    pytest.importorskip("mcp")
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKSTOP", "TEMPORAL", "XDG", "OTEL"))}
    given = {**kept, "HOME": str(home), "BACKSTOP_HOME": str(home)}
    command = ["-P", str(ROOT / "backstop" / "program.py"), "cli.main", "mcp"]
    async with Client(StdioServerParameters(command=sys.executable, args=command, env=given, cwd=str(ROOT))) as client:
        yield client


async def said(client: Any, tool: str, **given: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, given)
    assert not answer.is_error, answer.content[0].text
    found: dict[str, Any] = json.loads(answer.content[0].text)
    return found


def standing(world: World) -> dict[str, list[Any]]:
    return {table: sorted(map(repr, world.sql.rows(f"SELECT * FROM {table}"))) for table in TABLES}


@pytest.mark.nightly
async def test_an_agent_reads_what_stands_and_changes_nothing_but_asks(world: World, tmp_path: Path) -> None:
    name, overheard = fresh("agent"), Overheard()
    await world.fleet(worked_case(name, **STILL))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    await world.at_rest()
    async with front_of(world.client, tmp_path / "front.sock", rights=overheard), agent(tmp_path) as client:
        tools = (await client.list_tools()).tools
        assert {one.name for one in tools} == {one.name for one in TOOLS}
        assert {one.name for one in tools if not one.annotations.read_only_hint} == {"propose_quota"}
        assert not any("door" in one.input_schema["properties"] for one in tools)
        before = standing(world)
        (row,) = world.sql.rows("SELECT sum(gpus) FROM quotas WHERE cluster = ?", name)
        rollouts = (await said(client, "fleet_overview"))["rollouts"]
        assert [one["stage"] for one in rollouts if one["cluster"] == name] == ["planned"]
        status = await said(client, "cluster_status", cluster=name)
        assert (status["schema"], status["stage"]) == ("backstop.status/1", "planned")
        planned = await said(client, "plan", cluster=name)
        assert (planned["schema"], planned["assigned_gpus"]) == ("backstop.plan/1", row[0])
        team = world.sql.rows("SELECT team FROM quotas WHERE cluster = ?", name)[0][0]
        assert [one["cluster"] for one in (await said(client, "why", team=team))["teams"]] == [name]
        assert [one["cluster"] for one in (await said(client, "flex", cluster=name))["clusters"]] == [name]
        assert await said(client, "calendar") == {"of": 0, "windows": []}
        assert await said(client, "requests", cluster=name) == {"of": 0, "requests": []}
        assert standing(world) == before
        read = set(overheard.commands)
        assert all(one.startswith("read.") or one.removeprefix("desk.") in READS_DESK for one in read), read
        nowhere = await client.call_tool("cluster_status", {"cluster": "nothing-there"})
        assert nowhere.is_error
        assert "the ledger has no cluster 'nothing-there'" in nowhere.content[0].text
        nobody = await client.call_tool("why", {"team": "nobody"})
        assert nobody.is_error
        assert "no cluster in the ledger has a quota of team 'nobody'" in nobody.content[0].text
        asked = await said(client, "propose_quota", team=team, cluster=name, gpus=8, reason="a run of evals")
        world.asked.add(asked["ask"]["request"])
        assert asked["stage"] in ("asked", "refused")
    assert set(overheard.commands) - read == {"request.ask"}
    after = standing(world)
    assert {table for table in TABLES if after[table] != before[table]} <= {"requests", "audit"}
    assert [row for row in before["audit"] if row not in after["audit"]] == []


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("plan", {"cluster": "\x00" * 5}),
        *(
            pytest.param(tool, given, marks=pytest.mark.nightly)  # each starts a program of its own
            for tool, given in (
                ("approve", {"cluster": "a"}),
                ("plan", {}),
                ("plan", {"cluster": ""}),
                ("why", {"team": "a", "gpus": -1}),
                ("why", {"team": "a", "gpus": "many"}),
                ("flex", {"rows": 10**9}),
                ("propose_quota", {"team": "a", "cluster": "a", "gpus": 8, "reason": "  "}),
            )
        ),
    ],
)
async def test_rubbish_is_an_error_and_the_next_call_is_answered(
    world: World, tmp_path: Path, tool: str, given: dict[str, Any]
) -> None:
    async with front_of(world.client, tmp_path / "front.sock"), agent(tmp_path) as client:
        from mcp import MCPError

        try:
            failed = (await client.call_tool(tool, given)).is_error
        except MCPError:
            failed = True
        assert failed
        assert await said(client, "calendar") == {"of": 0, "windows": []}
