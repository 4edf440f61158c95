"""A rollout on real input: Helios Venus' quotas on the health of an InfiniteHBD cluster.

Two public sources put together (said in the output too): the 25 quotas of the virtual clusters of Helios
Venus on 2020-07-31 (133 nodes of 8 GPUs, every GPU assigned), and the hourly share of healthy nodes of the
400-node cluster of the InfiniteHBD trace. Each hour the same share of Venus' 133 nodes is taken as healthy,
rounded down to whole nodes. An hour lasts HOUR seconds here; the policy's durations are compressed alike.

The folder that --data names holds two CSV files, which are made from the traces and are not in this repository:

- venus_quota_daily.csv: `date, team, quota_gpus`, the GPUs of each virtual cluster on each day (Helios, Hu et al.,
  SC'21, CC-BY-4.0, github.com/S-Lab-System-Group/HeliosData).
- availability_hourly.csv.gz: `cluster, hour, ts, total_nodes, healthy_nodes_min, healthy_nodes_mean`, the worst
  instant and the mean of each hour, from the intervals of the faults; the cluster is hbd-400 (InfiniteHBD,
  arXiv:2502.03885, Apache-2.0).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import json
import time
from pathlib import Path

from models.errors import BadInput
from models.rollout.stages import Stage
from workers.demo_harness import Story, on_stage, say
from workers.main import run_and_exit

CLUSTER, NODES, PER_NODE = "venus", 133, 8
FIRST_HOUR, LAST_HOUR = 1200, 2120
"""Of the series: twelve weeks in, around its worst days."""
HOUR = 0.12
BREACH, CLEAR, RECOVER, SOAK = 10, 6, 12, 2
"""Hours. The outages of this stretch last 8 hours or less, or 14 and more: breach_after stands between."""
BUFFER = 0.03


def venus_quotas(folder: Path) -> list[tuple[str, int]]:
    with (folder / "venus_quota_daily.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["date"] == "2020-07-31"]
    return [(r["team"], int(r["quota_gpus"])) for r in rows]


def healthy_by_hour(folder: Path) -> list[int]:
    """Healthy GPUs of the 133 nodes, hour by hour: the worst instant of each."""
    with gzip.open(folder / "availability_hourly.csv.gz", "rt") as file:
        rows = [r for r in csv.DictReader(file) if r["cluster"] == "hbd-400"]
    return [NODES * int(r["healthy_nodes_min"]) // int(r["total_nodes"]) * PER_NODE for r in rows]


def expected_breaches(healthy: list[int], promised: int) -> list[int]:
    """The same question without Backstop: in which hours does a promise of `promised` GPUs break?

    Armed, it breaks when short for more than BREACH hours since the last CLEAR good ones; then it is armed
    again after RECOVER good hours in a row.
    """
    breaks: list[int] = []
    armed, short, good = True, 0, 0
    for hour, gpus in enumerate(healthy):
        short, good = (short + 1, 0) if gpus < promised else (0 if good >= CLEAR else short, good + 1)
        if armed and short > BREACH:
            breaks, armed, short = [*breaks, hour], False, 0
        elif not armed:
            short = 0
            armed = good > RECOVER
    return breaks


def fleet_document(quotas: list[tuple[str, int]], healthy: int) -> dict[str, object]:
    def hours(count: float) -> str:
        return f"{count * HOUR:g}s"

    return {
        "policy": {
            "buffer": BUFFER,
            "spare_gpus": 0,
            "notice": hours(1),
            "soak_buffered": hours(SOAK),
            "soak_enforced": hours(SOAK),
            "breach_after": hours(BREACH),
            "clear_after": hours(CLEAR),
            "recover_after": hours(RECOVER),
            "safety_poll": "60s",
            "max_moved_gpus": 2000,
        },
        "clusters": [
            {
                "name": CLUSTER,
                "gpus_per_node": PER_NODE,
                "islands": [{"name": "all", "total_gpus": NODES * PER_NODE, "healthy_gpus": healthy}],
                "quotas": [{"team": team, "gpus": gpus} for team, gpus in quotas],
            }
        ],
    }


async def tell(story: Story, folder: Path) -> bool:
    """True when Backstop broke and rolled back exactly as often as the independent computation says."""
    quotas, series = venus_quotas(folder), healthy_by_hour(folder)[FIRST_HOUR:LAST_HOUR]
    assigned = sum(gpus for _, gpus in quotas)
    say(f"Quotas: {len(quotas)} virtual clusters of Helios Venus on 2020-07-31, {assigned} GPUs in all.")
    say(f"Health: the share of healthy nodes of hbd-400 (InfiniteHBD), hours {FIRST_HOUR} to {LAST_HOUR} of it,")
    say(f"        of {NODES} nodes of {PER_NODE}, rounded down to whole nodes. One hour lasts {HOUR:g} s here.")
    say(f"Policy: buffer {BUFFER:.0%}, breach after {BREACH} h, clear after {CLEAR} h, recover after {RECOVER} h.")
    say("Usage is not in these sources, so every GPU of quota counts as busy.")
    fleet = story.home / "venus.json"
    fleet.write_text(json.dumps(fleet_document(quotas, series[0])))
    story.run("fleet", "import", str(fleet))
    story.run("plan", "--file", str(fleet), "--cluster", CLUSTER)
    story.run("launch", CLUSTER, "--owner", "gpu-tpm", "--reason", "real input")
    launched = await story.backstop.status(CLUSTER)
    story.run("approve", CLUSTER, "--plan", launched.plan_hash or "")
    monitored = await story.until(CLUSTER, lambda s: s.stage is Stage.MONITORED, 60, "monitored")
    promised = monitored.assigned_gpus
    say(f"\nMonitored: {promised} GPUs promised. Now the hours go by.")
    rolled_back = await live_through(story, series)
    story.run("audit", CLUSTER)
    breaks = expected_breaches(series, promised)
    say(f"\nBreach rollbacks by Backstop: {rolled_back}. By the independent computation: {len(breaks)}, in hours")
    say("of the series " + ", ".join(str(FIRST_HOUR + hour) for hour in breaks) + ".")
    return rolled_back == len(breaks) > 0


async def live_through(story: Story, series: list[int]) -> int:
    """Reports each change of health in its hour; answers how many breach rollbacks there were."""
    began = time.monotonic()
    before = series[0]
    stages: list[Stage] = []
    for hour, gpus in enumerate(series):
        await asyncio.sleep(max(0.0, began + hour * HOUR - time.monotonic()))
        if gpus != before:
            before = gpus
            say(f"[hour {FIRST_HOUR + hour}] {gpus} of {NODES * PER_NODE} GPUs healthy")
            await story.healthy(CLUSTER, "all", NODES * PER_NODE, gpus)
        if hour % 2 == 0:
            status = await story.backstop.status(CLUSTER)
            story.narrate(status)
            stages.append(status.stage)
    ended = await story.until(CLUSTER, lambda s: s.stage is Stage.MONITORED, 30, "monitored at the end")
    records = await story.backstop.audit(CLUSTER)
    say(f"The rollout is {ended.stage} in attempt {ended.attempt}.")
    return sum(1 for r in records if r.kind == "transition" and "-> rolling_back" in r.text)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    folder: Path = parser.parse_args().data
    for name in ("venus_quota_daily.csv", "availability_hourly.csv.gz"):
        if not (folder / name).is_file():
            raise BadInput(
                f"--data {folder}: {name} is not there; the first lines of examples/real.py say what it holds"
            )
    began = time.monotonic()
    async with on_stage("gpu-tpm") as story:
        same = await tell(story, folder)
    say(f"Done in {time.monotonic() - began:.0f} s.")
    if not same:
        raise BadInput("the counts differ: Backstop and the independent computation do not agree")


if __name__ == "__main__":
    run_and_exit(_main)
