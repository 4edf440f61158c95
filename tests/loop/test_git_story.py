"""Whole rollouts whose quotas are in Git, read by git and PyYAML alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from models.lifecycle.holds import UNMERGED
from models.questions import CheckLedger
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
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


async def buffered(world: World, forge: Forge, mode: str = "push", **policy: object) -> str:
    """A rollout that is buffered: speech is to give 61 GPUs."""
    name = fresh("git")
    quotas = [team("vision", 200), team("speech", 161, busy=100)]
    own = cluster(
        name, {"main": (361, 361)}, quotas, buffer=0.1, spare_gpus=0, soak_buffered="1h", soak_enforced="1h", **policy
    )
    source = {"repository": forge.url, "path": PATH, "pointer": "/teams/{team}/gpus", "mode": mode}
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


# --- effects that people merge ---------------------------------------------------------------------------


def counter_of(branch: str) -> int:
    return int(branch.rpartition("-")[2])


def waits(status: RolloutStatus) -> bool:
    return any(hold.id == UNMERGED for hold in status.holds)


async def promoted(world: World, forge: Forge, **policy: object) -> str:
    """A rollout whose hard limits wait for their merge."""
    name = await buffered(world, forge, mode="propose", **policy)
    await world.say(name, Command.PROMOTE)
    await world.until(name, waits)
    return name


@pytest.mark.parametrize(("how", "delete"), [("merge", False), ("squash", True), ("rebase", True)])
async def test_an_effect_is_in_force_once_people_have_merged_it(
    world: World, forge: Forge, how: str, delete: bool
) -> None:
    name = await promoted(world, forge)
    status = await world.status(name)
    (branch,) = forge.branches()
    since = git(forge.bare, "log", "-1", "--format=%cd", "--date=format:%Y-%m-%d %H:%M:%SZ", branch)
    sentence = (
        f"branch {branch} has waited since {since} for a person to merge it into main of {forge.url}: speech 161 -> 124"
    )
    assert [hold.reason for hold in status.holds] == [sentence]
    assert status.needs == f"{sentence}. Merge the branch, or delete it to decline the effect"
    assert status.stage is Stage.BUFFERED
    assert forge.text() == QUOTAS
    assert forge.text(commit=branch) == as_file(200, 124)

    assert forge.merge(how, delete=delete) == branch
    status = await world.until(name, Stage.ENFORCED)
    assert not waits(status)
    assert status.fence == counter_of(branch) + 1, "it is delivered again once, however long people take"
    assert forge.text() == as_file(200, 124)
    assert forge.branches() == []

    await world.say(name, Command.ROLLBACK)
    status = await world.until(name, waits)
    assert status.stage is Stage.ROLLING_BACK
    (undo,) = forge.branches()
    assert status.needs.startswith(f"the rollback is not done: branch {undo} has waited since ")
    assert forge.text() == as_file(200, 124)
    forge.merge(how, delete=delete)
    status = await world.until(name, Stage.ROLLED_BACK)
    assert status.fence == counter_of(undo) + 3, "soften once again, restore and release"
    assert forge.text() == QUOTAS
    assert world.sql.gpus(name) == {"vision": 200, "speech": 161}
    assert forge.branches() == []


async def test_what_people_merge_during_a_pause_is_in_force_and_counts(world: World, forge: Forge) -> None:
    name = await promoted(world, forge)
    await world.say(name, Command.PAUSE, reason="a freeze")
    forge.merge("squash", delete=True)
    status = await world.until(name, Stage.ENFORCED)
    assert [hold.id for hold in status.holds] == ["paused"]
    assert forge.text() == as_file(200, 124)


async def test_an_abort_withdraws_what_nobody_has_merged(world: World, forge: Forge) -> None:
    name = await promoted(world, forge)
    assert len(forge.branches()) == 1
    await world.say(name, Command.ABORT)
    await world.until(name, Stage.ABORTED)
    assert forge.branches() == []
    assert forge.text() == QUOTAS
    assert git(forge.bare, "rev-list", "--count", "main") == "1"


async def test_a_branch_that_people_delete_is_declined_and_the_rollout_goes_back(world: World, forge: Forge) -> None:
    name = await promoted(world, forge)
    (branch,) = forge.branches()
    git(forge.bare, "branch", "-D", branch)
    status = await world.until(name, Stage.ROLLED_BACK)
    assert status.undoing is not None
    assert (
        f"branch {branch} was deleted without being merged into main, so Backstop treats its change as "
        "declined: speech 161 -> 124" in status.undoing.reason
    )
    assert forge.text() == QUOTAS
    assert forge.branches() == []


async def test_a_person_who_changes_the_same_line_meanwhile_is_drift(world: World, forge: Forge) -> None:
    name = await promoted(world, forge, on_drift="hold")
    assert len(forge.branches()) == 1
    commit = forge.edit('gpus: "161"', 'gpus: "150"')
    status = await world.until(name, lambda s: any(hold.id == "drift" for hold in s.holds))
    assert f"Ada, commit {commit[:8]}" in str(status.holds)
    assert not waits(status)
    await world.say(name, Command.RESOLVE, hold="drift", how="accept")
    await world.say(name, Command.ABORT)
    await world.until(name, Stage.ABORTED)
    assert forge.branches() == []
    assert forge.text() == as_file(200, 150)


async def test_a_breach_is_not_rolled_back_before_people_have_merged_the_undo(world: World, forge: Forge) -> None:
    """Hardware for 300 of 324 promised GPUs: a person is slow, and Backstop says all along that nothing is undone."""
    name = await promoted(world, forge, breach_after="6s")
    forge.merge("squash", delete=True)
    await world.until(name, Stage.ENFORCED)
    await world.healthy(name, main=(361, 300))
    status = await world.until(name, waits)
    assert status.stage is Stage.ROLLING_BACK
    assert status.needs.startswith("the rollback is not done: branch backstop/")
    assert forge.text() == as_file(200, 124)
    assert world.sql.gpus(name) == {"vision": 200, "speech": 124}
    assert "rolled_back" not in world.sql.transitions(name)
    forge.merge()
    await world.until(name, Stage.ROLLED_BACK)
    assert sum(world.sql.gpus(name).values()) == 300
    assert forge.text() == QUOTAS, "a soft limit admits what it did before the rollout"
    assert forge.branches() == []


async def test_an_owner_who_cannot_wait_for_a_merge_lets_backstop_push_the_rollback(world: World, forge: Forge) -> None:
    name = await promoted(world, forge, breach_after="6s")
    forge.merge("squash", delete=True)
    await world.until(name, Stage.ENFORCED)
    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda s: waits(s) and s.stage is Stage.ROLLING_BACK)
    assert len(forge.branches()) == 1
    source = {"repository": forge.url, "path": PATH, "pointer": "/teams/{team}/gpus", "mode": "push"}
    islands = [{"name": "main", "total_gpus": 361, "healthy_gpus": 300}]
    await world.fleet({"name": name, "islands": islands, "git": source})
    await world.until(name, Stage.ROLLED_BACK)
    assert (forge.text(), forge.branches()) == (QUOTAS, []), "its branch is withdrawn, and nobody has merged it"
    assert sum(world.sql.gpus(name).values()) == 300
    assert git(forge.bare, "log", "-1", "--format=%an: %s", "main").startswith("Fleet bot: Set 1 quota of ")
