"""Whole rollouts whose quotas are in Git, read by git and PyYAML alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from models.questions import CheckLedger
from models.rollout.stages import Command, Stage
from tests.e2e.world import World, cluster, fresh, team, world_of
from tests.git.world import PATH, Forge, git, worker

QUOTAS = """\
# Quotas of the lab. Ask capacity@ before you change one.
teams:
  vision: {gpus: 200}    # the big one
  speech:
    gpus: "161"          # since the move
"""


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge", {PATH: QUOTAS})


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Its worker has Git before its ledger."""
    ledgers = list[Ledger]()
    async with world_of(
        temporal,
        sqlite_ledger_url,
        tmp_path,
        wrapped=lambda _: worker(ledgers[0], tmp_path / "worker"),
        touch=lambda ledger, _: ledgers.append(ledger),
    ) as story:
        yield story


def as_file(vision: int, speech: int) -> str:
    return QUOTAS.replace("200", str(vision)).replace("161", str(speech))


async def buffered(world: World, forge: Forge, **policy: object) -> str:
    """A rollout that is buffered: speech is to give 61 GPUs."""
    name = fresh("git")
    quotas = [team("vision", 200), team("speech", 161, busy=100)]
    own = cluster(
        name, {"main": (361, 361)}, quotas, buffer=0.1, spare_gpus=0, soak_buffered="1h", soak_enforced="1h", **policy
    )
    source = {"repository": forge.url, "path": PATH, "pointer": "/teams/{team}/gpus"}
    await world.fleet({**own, "git": source})
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    return name


async def test_a_rollout_goes_through_git_and_back(world: World, forge: Forge) -> None:
    name = await buffered(world, forge)
    promised = world.sql.gpus(name)
    assert promised == {"vision": 200, "speech": 124}
    assert forge.text() == QUOTAS, "while it is buffered what was admitted still is"

    check = (await world.tpm.ask(CheckLedger())).schedulers[name]
    assert (check.system, check.wrong, check.barred) == ("git", "", "")
    await world.say(name, Command.PROMOTE)
    await world.until(name, Stage.ENFORCED)
    assert forge.text() == as_file(200, 124)
    trailers = git(forge.bare, "interpret-trailers", "--parse", stdin=forge.message()).splitlines()
    plan = (await world.status(name)).plan_hash
    assert trailers == [
        f"Backstop-Rollout: {name}/1",
        "Backstop-Fence: 3",
        "Backstop-Effect: harden",
        f"Backstop-Cluster: {name}",
        f"Backstop-Plan: {plan}",
        "Backstop-Actor: tpm",
        "Backstop-Reason: as the story goes",
    ]

    forge.edit("# the big one", "# the big one, by order of capacity@")
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    assert forge.text() == QUOTAS.replace("# the big one", "# the big one, by order of capacity@")
    assert world.sql.gpus(name) == {"vision": 200, "speech": 161}
    authors = git(forge.bare, "log", "--reverse", "--format=%an: %s", "main").splitlines()
    assert authors == [
        "Ada: Begin",
        f"Fleet bot: Set 1 quota of {name} (harden)",
        "Ada: Change quotas",
        f"Fleet bot: Set 1 quota of {name} (soften)",
    ]


async def test_a_person_who_changes_a_quota_in_git_is_named_and_holds_the_rollout(world: World, forge: Forge) -> None:
    name = await buffered(world, forge, on_drift="hold")
    commit = forge.edit("gpus: 200", "gpus: 190")
    await world.say(name, Command.PROMOTE)
    status = await world.until(name, lambda s: bool(s.holds) and s.stage is Stage.BUFFERED)
    assert f"Ada, commit {commit[:8]}" in str(status.model_dump(mode="json"))
    assert forge.text() == as_file(190, 161)
    await world.say(name, Command.ABORT)
    await world.until(name, Stage.ABORTED)
    assert forge.text() == as_file(190, 161), "what a person set stays"
