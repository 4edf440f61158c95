"""The front's answers: repeats, pages, tags, errors. tests/e2e/test_front.py has what takes a socket or a program."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from models.errors import BadInput, Refusal
from models.questions import RemoveCluster
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from tests.e2e.front_world import front_of, http_to, through
from tests.e2e.test_front import ME, STILL, Question, planned, refused_alike
from tests.e2e.world import World, eventually, fresh, worked_case
from tests.loop.fronts import AT_SOCKET
from web.events import Streams
from web.failures import Problem
from web.limits import Rate


@pytest_asyncio.fixture(loop_scope="function")
async def socket(world: World, tmp_path: Path) -> AsyncIterator[Path]:
    async with front_of(world.client, tmp_path / "front.sock"):
        yield tmp_path / "front.sock"


def at(world: World, socket: Path) -> httpx.AsyncClient:
    return http_to(world.client, f"{AT_SOCKET}/api/v1", socket)


async def test_a_repeat_under_one_key_is_done_once_and_answered_alike(world: World, socket: Path) -> None:
    name = fresh("front")
    await world.fleet(worked_case(name, **STILL))
    world.launched.add(name)
    launch = {"cluster": name, "rollout": f"{name}/1", "reason": "a story"}
    key = {"idempotency-key": "launch-of-monday"}
    async with at(world, socket) as http:
        first = await http.post("/rollouts", json=launch, headers=key)
        again = await http.post("/rollouts", json=launch, headers=key)
        other = await http.post("/rollouts", json=launch, headers={"idempotency-key": "another"})
        assert (first.status_code, again.status_code, other.status_code) == (200, 200, 409)
        assert again.json()["plan"] == first.json()["plan"]
        plan = (await world.status(name)).plan_hash
        approve = [await http.post(f"/rollouts/{name}/approve", json={"plan_hash": plan}, headers=key) for _ in "ab"]
        assert [one.status_code for one in approve] == [200, 200]
        assert approve[0].json() == approve[1].json()
        bare = await http.post(f"/rollouts/{name}/approve", json={"plan_hash": plan})
        assert (bare.status_code, "approved already" in bare.json()["detail"]) == (409, True)
        left = [await http.post("/questions/clusters", json={}, headers=key) for _ in "ab"]
        assert left[0].json() == left[1].json()
        bad = await http.post("/questions/clusters", json={}, headers={"idempotency-key": "a b"})
        assert (bad.status_code, bad.json()["exit_code"]) == (422, 2)

    def approvals() -> list[str]:
        return [
            e["actor"] for e in world.sql.archive(name) if e["data"].get("command") == "approve" and not e["refused"]
        ]

    await eventually(lambda: approvals() != [], "the approval is archived")
    assert approvals() == [ME]


async def test_lists_come_in_parts(world: World, socket: Path) -> None:
    names = [await planned(world) for _ in range(3)]
    for name in names:
        await world.listed(name)
    async with at(world, socket) as http:
        whole = (await http.get("/rollouts")).json()
        found, where = [], "/api/v1/rollouts?limit=2"
        while where:
            part = await http.get(httpx.URL(AT_SOCKET).join(where))
            found += part.json()
            assert int(part.headers["backstop-total"]) == len(whole)
            where = part.headers.get("link", "").partition(">")[0].removeprefix("<")
        assert [row["cluster"] for row in found] == [row["cluster"] for row in whole]
        assert {row["cluster"] for row in found} >= set(names)
        for query in ("limit=-1", "limit=x", "limit=99999", "nothing=1"):
            assert (await http.get(f"/rollouts?{query}")).status_code == 422


async def test_whoever_asks_too_often_is_told_when_to_come_again(world: World, tmp_path: Path) -> None:
    rate = Rate(1.0, 3.0, lambda: 0.0)  # however long the answers take
    async with front_of(world.client, tmp_path / "s", rate=rate), at(world, tmp_path / "s") as http:
        found = [await http.get("/whoami") for _ in range(5)]
    assert [one.status_code for one in found] == [200, 200, 200, 429, 429]
    late = found[-1]
    assert (late.status_code, late.headers["retry-after"], late.json()["exit_code"]) == (429, "1", 1)
    assert ME in late.json()["detail"]


async def test_a_caller_without_a_stream_is_not_asked_to_end_one() -> None:
    streams = Streams()
    with contextlib.ExitStack() as stack:
        for number in range(200):
            stack.enter_context(streams.one_more(f"caller {number // 20}"))
        for caller, why in (
            ("caller 0", "caller 0 follows 20 event streams already: end one of them first"),
            ("another", "this front already serves 200 event streams: try again later"),
        ):
            with pytest.raises(Problem) as refused, streams.one_more(caller):
                pass
            assert refused.value.detail == why


async def test_two_fronts_beside_each_other_answer_alike(world: World, socket: Path, tmp_path: Path) -> None:
    name, second = await planned(world), tmp_path / "second.sock"
    async with front_of(world.client, second):
        key = {"idempotency-key": "over-both"}
        body = {"reason": "a SEV"}
        async with at(world, socket) as one, at(world, second) as two:
            first = await one.post(f"/rollouts/{name}/pause", json=body, headers=key)
            again = await two.post(f"/rollouts/{name}/pause", json=body, headers=key)
            assert (first.status_code, again.status_code) == (200, 200)
            assert first.json() == again.json()
    assert (await through(socket).status(name)).cluster == name


async def test_errors_come_back_as_they_are_straight_at_temporal(world: World, socket: Path) -> None:
    name = await planned(world)
    questions: list[Question] = [
        lambda door: door.status("nothing-there"),
        lambda door: door.command(name, Command.RETRY, CommandRequest(actor="tpm")),
        lambda door: door.launch(LaunchRequest(cluster=name, rollout=f"{name}/2", owner="tpm")),
        lambda door: door.ask(RemoveCluster(cluster="nothing-there")),
        lambda door: door.snapshot(name, {"notice": "nonsense"}),
        lambda door: door.fleet_plan(),
    ]
    assert {await refused_alike(world, socket, question) for question in questions} == {Refusal, BadInput}
