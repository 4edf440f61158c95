"""A health source in doubt, on a real server: nothing is cut, a person confirms it in one command, and then what is so
counts."""

from __future__ import annotations

import asyncio
import io
from datetime import datetime

from rich.console import Console

from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.questions import CheckLedger, ConfirmSource
from models.rollout.stages import Stage
from models.rollout.status_models import RolloutStatus
from tests.e2e.world import World, cluster, eventually, fresh, team
from views.status import status_parts


async def says(world: World, source: str, healthy: int, *names: str) -> None:
    islands = (Island(name="main", total_gpus=100, healthy_gpus=healthy),)
    samples = [HealthSample(cluster=name, at=world.now(), islands=islands) for name in names]
    assert await world.person(source).add_health(samples) == len(names)


def plain_lines(status: RolloutStatus, now: datetime) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=200).print(*status_parts(status, now))
    return page.getvalue().splitlines()


async def test_a_source_in_doubt_cuts_nothing_until_a_person_confirms_it(world: World) -> None:
    liars, honest = [fresh("liar") for _ in range(4)], fresh("honest")
    quotas = [team("a", 50), team("b", 34)]
    await world.fleet(*(cluster(n, {"main": (100, 100)}, quotas, breach_after="2s") for n in (*liars, honest)))
    await asyncio.gather(*(world.start(name) for name in (*liars, honest)))
    for name in (*liars, honest):
        await world.until(name, Stage.MONITORED)

    await says(world, "dcgm", 81, *liars)
    await says(world, "nvml", 80, honest)
    await world.until(honest, Stage.ROLLED_BACK)
    assert sum(world.sql.gpus(honest).values()) == 80
    line = 'backstop confirm --source dcgm --reason "..."'
    for name in liars:
        status = await world.until(name, lambda s: line in s.needs)
        assert (status.stage, status.lifts) == (Stage.MONITORED, {"unknown_health": line})
        assert sum(world.sql.gpus(name).values()) == 84
        # No sample has these figures at any time since, so that no time is given.
        assert (status.healthy_gpus, status.health_at, status.doubted_gpus) == (100, None, 81)
        (health,) = [part for part in plain_lines(status, world.now()) if part.startswith("health ")]
        assert " ".join(health.split()).startswith(
            "health 100 healthy of 100, the last figure before Backstop doubted its source"
        )
    await asyncio.sleep(2.5)  # longer than breach_after, had it been believed
    (doubt,) = (await world.tpm.ask(CheckLedger())).doubts
    assert (doubt.source, doubt.clusters) == ("dcgm", tuple(sorted(liars)))
    (check,) = [c for c in await world.tpm.doctor() if c.name == "source"]
    assert not check.ok
    assert line in check.remedy

    confirmed = await world.person("oncall").ask(ConfirmSource(source="dcgm", reason="a hall lost power"))
    assert confirmed.clusters == tuple(sorted(liars))

    def cut() -> list[str]:
        return [name for name in liars if sum(world.sql.gpus(name).values()) == 81]

    await eventually(lambda: len(cut()) == 2, "two more are rolled back: with the honest one three within the hour")
    for name in set(liars) - {*cut()}:
        await world.until(name, lambda s: f"backstop resolve {s.cluster} --hold rollback" in s.needs)
    for name in liars:
        said = [e for e in world.sql.archive(name) if e["actor"] == "oncall"]
        assert [e["text"] for e in said] == ["confirmed: source dcgm lost 76 of 400 GPUs in 4 clusters within an hour"]
    assert len(cut()) == 2
