"""The Fleet page beside a rehearsal: what is so is told of a shadow too, what would be in a column of its own."""

from __future__ import annotations

import re

from models.rollout.stages import Stage
from tests.e2e.console_world import Browser, console_of, somebody
from tests.e2e.world import World, fresh, worked_case


async def test_hardware_that_lacks_under_a_rehearsal_is_at_risk_and_counted(world: World) -> None:
    name = fresh("rehearsal")
    await world.fleet(worked_case(name))
    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    promised, healthy = world.sql.rows(
        "SELECT sum(q.gpus), (SELECT healthy_gpus FROM health_samples h WHERE h.cluster = q.cluster"
        " ORDER BY at DESC LIMIT 1) FROM quotas q WHERE q.cluster = ?",
        name,
    )[0]
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:ana"))
        async with browser.http:
            fleet, risky = await browser.look("/"), await browser.look("/?show=risk")
    assert fleet.column("Clusters", "Unbacked")[name] == str(promised - healthy)
    assert fleet.column("Clusters", "Would be")[name] == "0"
    listed = risky.column("Clusters", "Unbacked")
    number = re.search(r"([\d,]+) at risk", fleet.words)
    assert number is not None
    assert (name in listed, number[1]) == (True, str(len(listed)))
    by_stage = sum(int(gpus.replace(",", "")) for gpus in fleet.column("Clusters by stage", "Unbacked").values())
    assert by_stage == sum(int(gpus.replace(",", "")) for gpus in listed.values())
