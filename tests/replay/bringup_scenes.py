"""Scenes of bring-ups for the golden histories: from an entry to retired; one continues as new and is cancelled.

Runners and checks are in memory (tests/e2e/bringup_site.py); the book, the fleet and the rollout to nothing are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client

from models.bringup.checks import Colour
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupStage
from models.bringup.state import StepPhase
from models.bringup.status import BringupStatus
from models.cluster.island import Island
from tests.e2e.bringup_site import PROVISION, Site, Story, worker_of
from tests.e2e.world import CLOCKS, WATCH_SECONDS
from workers.bringups import BringupParts
from workers.main import ensure_watch

RECIPE: dict[str, Any] = {
    "name": "bare-metal",
    "supply": {"run": ["/opt/quota"], "needs": {"gpus": 64}, "every": "0.1s"},
    "accept_at_least": 0.75,
    "provision": [step | ({"retries": 1, "pause": "0.2s"} if step["name"] == "nodes" else {}) for step in PROVISION],
    "validate": [{"name": "health", "healthy": 0.9, "every": "0.3s"}, {"name": "job", "command": ["/x"], "once": True}],
    "capacity": {"with": "http", "url": "https://h/nodes", "every": "0.3s"},
    "soak": "1s",
    "settle": "2s",
    "watch_every": "0.5s",
    "probation": "1s",
}
ENTRY: dict[str, Any] = {
    "recipe": "bare-metal",
    "owner": "tpm",
    "nodes": 8,
    "policy": CLOCKS,
    "quotas": [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}],
    "owed_until": "2100-01-01T00:00:00Z",
}


class InLedger(Site):
    """The book and the fleet are the ledger's."""

    def parts(self, host: str = "") -> BringupParts:
        return BringupParts(self, self, host=host)


def nodes(many: int) -> tuple[Island, ...]:
    return (Island(name="main", total_gpus=8 * many, healthy_gpus=8 * many),)


def step(name: str, phase: StepPhase) -> Callable[[BringupStatus], bool]:
    return lambda status: any(s.name == name and s.phase is phase for s in (*status.steps, *status.undos))


def at(stage: BringupStage) -> Callable[[BringupStatus], bool]:
    return lambda status: status.stage is stage


async def brought_up(story: Story) -> None:
    """Steps fail and are retried, by itself and by a person under a hold; seven nodes of eight, then all; retired."""
    site, name = story.site, story.start.entry.cluster
    site.says["supply"] = Colour.RED
    site.islands = nodes(7)
    site.ends = {"bootstrap": RunPhase.FAILED, "services": RunPhase.SUCCEEDED}
    assert (await story.begin()).begun
    await story.until(lambda s: s.waits_for == "waits for its supply: supply is red")
    del site.says["supply"]
    await story.until(at(BringupStage.BLOCKED))
    site.ends["bootstrap"] = RunPhase.SUCCEEDED
    await story.say("hold")
    await story.say("retry", step="bootstrap")
    await story.say("release")
    await story.until(step("nodes", StepPhase.RUNNING))
    site.end(f"{name}/1/nodes", RunPhase.FAILED)
    site.ends["nodes"] = RunPhase.SUCCEEDED
    await story.until(step("nodes", StepPhase.DONE))
    await story.say("check-in")
    await story.until(at(BringupStage.IN_PRODUCTION))
    site.islands = nodes(8)
    await story.until(lambda s: s.production is not None and not s.production.owed)
    site.ends |= {"nodes/undo": RunPhase.SUCCEEDED, "bootstrap/undo": RunPhase.SUCCEEDED}
    await story.say("retire")
    assert (await story.handle.result()).stage is BringupStage.RETIRED


async def unmade(story: Story) -> None:
    """Continue as new while a command runs, then cancel: the command is stopped, and everything torn down."""
    site = story.site
    site.ends = {"bootstrap": RunPhase.SUCCEEDED, "bootstrap/undo": RunPhase.SUCCEEDED}
    site.ends["nodes/undo"] = RunPhase.SUCCEEDED
    assert (await story.begin()).begun
    await story.until(step("nodes", StepPhase.RUNNING))
    while (await story.status()).runs == 1:
        await story.say("hold")
        await story.say("release")
    await story.until(step("nodes", StepPhase.RUNNING))
    await story.say("cancel", stop=True)
    assert (await story.handle.result()).stage is BringupStage.CANCELLED


async def resent(story: Story) -> None:
    """A start that was not answered is sent again by the bring-up itself."""
    story.site.lost_answers["bootstrap"] = 1
    story.site.ends["bootstrap/undo"] = RunPhase.SUCCEEDED
    assert (await story.begin()).begun
    await story.until(step("bootstrap", StepPhase.RUNNING))
    await story.say("cancel", stop=True)
    assert (await story.handle.result()).stage is BringupStage.CANCELLED


BringupScene = Callable[[Story], Awaitable[None]]
BRINGUPS: dict[str, BringupScene] = {scene.__name__: scene for scene in (brought_up, unmade, resent)}


@asynccontextmanager
async def story_of(client: Client, url: str, home: Path, name: str) -> AsyncIterator[Story]:
    """One that may begin, beside a worker on host h1 and the watch."""
    entry = BringupEntry.model_validate({**ENTRY, "cluster": name})
    story = Story(client, InLedger(), entry, ClusterRecipe.model_validate(RECIPE))
    async with worker_of(client, url, home, story.site, "h1"):
        await ensure_watch(client, WATCH_SECONDS)
        yield story
