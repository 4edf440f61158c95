"""The fleet rollout's page: what it says agrees with the rollout, and each command does what its form said."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from models.fleet.state import FLEET, FleetStage, MemberState
from tests.e2e.console_world import Browser, console_of, somebody
from tests.e2e.world import World, eventually, forget_fleet, fresh, worked_case

STILL = {"soak_buffered": "1h", "soak_enforced": "1h", "notice": "1h"}


@pytest_asyncio.fixture(loop_scope="function")
async def ana(world: World) -> AsyncIterator[Browser]:
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:ana"))
        async with browser.http:
            yield browser


async def test_a_fleet_rollout_is_approved_paused_paced_and_aborted_from_its_page(ana: Browser, world: World) -> None:
    await forget_fleet(world.client)
    assert "There is no fleet rollout" in (await ana.look("/rollout")).words
    names = [fresh("one"), fresh("other")]
    await world.fleet(*(worked_case(name, **STILL) for name in names))
    plan = await world.launch_fleet(fresh("fleet"))
    home = await ana.look("/")
    assert "waits for its plan to be approved" in home.words
    assert "/rollout/approve" in home.links
    assert "/rollout/resume" not in home.links, "nothing holds it"

    before = await ana.look("/rollout/approve")
    assert plan.hash in before.words
    stale = await ana.refused("/rollout/approve", "a-1", plan_hash="0" * 16)
    assert f"the plan is {plan.hash}" in stale.words
    assert (await world.until_fleet(lambda s: True)).approved_by == ""
    done = await ana.given("/rollout/approve", "a-2", plan_hash=plan.hash)
    assert f"plan {plan.hash} is approved" in done.words
    assert (await world.until_fleet(lambda s: s.stage is FleetStage.RUNNING)).approved_by == "user:ana"

    without = await ana.refused("/rollout/pause", "p-1")
    assert "pause needs a reason" in without.words
    paused = await ana.given("/rollout/pause", "p-2", reason="a look first")
    assert "paused" in paused.words
    assert (await world.until_fleet(lambda s: bool(s.holds))).holds[0].reason == "a look first"
    assert "already paused" in (await ana.look("/rollout")).words

    stands = await ana.look("/rollout/pace")
    assert dict(stands.forms)["/rollout/pace"]["parallel"] == "3"
    same = await ana.refused("/rollout/pace", "c-1", reason="why", **_pace(stands))
    assert "nothing would change" in same.words
    await ana.given("/rollout/pace", "c-2", reason="slower", **(_pace(stands) | {"parallel": "1"}))
    assert (await world.until_fleet(lambda s: s.pace.parallel == 1)).pace.parallel == 1

    await world.until_fleet(lambda s: all(m.state is not MemberState.STARTING for m in s.members))
    left = await ana.given("/rollout/skip", "s-1", reason="not this one", clusters=names[1])
    assert "1 cluster is skipped" in left.words
    await ana.given("/rollout/resume", "r-1", reason="go on")
    ending = await ana.look("/rollout/abort")
    assert "An abort would also end" in ending.words or "No other cluster is touched" in ending.words
    await ana.given("/rollout/abort", "x-1", reason="enough", undo="1")
    await world.until_fleet(lambda s: s.stage.has_ended)
    over = await ana.look("/rollout")
    assert "/rollout/pause" not in over.links

    def told() -> list[str]:
        return [e["text"] for e in world.sql.archive(FLEET) if e["actor"] == "user:ana" and not e["refused"]]

    await eventually(lambda: any(text.startswith("abort") for text in told()), "the archive has it all")
    said = told()
    for command in ("approve", "pause", "pace", "skip", "resume", "abort"):
        assert any(text.startswith(command) for text in said), (command, said)


def _pace(seen: object) -> dict[str, str]:
    fields = dict(seen.forms)["/rollout/pace"]  # type: ignore[attr-defined]
    return {name: text for name, text in fields.items() if name not in ("form_token", "once")}
