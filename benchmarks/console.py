"""Every page of the console at 1 and at 1,000 clusters: server time and weight, raw and as sent.

The ledger, its desk, the arithmetic, the front, who asks and whether they may, the templates and HTTP at this machine's
socket are real, all in this process; Temporal, which carries each question to a worker, is left out, and what only it
knows (where rollouts stand) is made up (benchmarks/console_fleet.py). `first` is the first look, after those that a
worker takes by itself (`--cold`: without them); `cpu` is this process's own, which a busy machine lengthens least.
`made_up_cpu` is what of it went into making up what rollouts say, which in a real fleet their workers do.
Run: python benchmarks/console.py [--clusters 1 1000] [--looks 10] [--only PAGE] [--cold].
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.console_fleet import DeskDoors, cluster_name, console_on, making_up, team_name
from models.questions import PlanMilestones
from models.reports.milestones import Milestone
from web.front import Front
from web.settings import Address, FrontSettings
from workers.garbage_collection import tend_garbage

_AS_A_BROWSER = {"accept-encoding": "gzip", "sec-fetch-site": "none"}
_WAVES = "leader, waves"
_WAVE = Milestone(name="first wave", measure="rolled_out_waves", target=1, due=date(2199, 1, 1))
CLUSTER, TEAM = cluster_name(0), team_name(0)
PAGES = {
    "fleet": "/",
    "fleet, at risk": "/?show=risk",
    "cluster": f"/clusters/{CLUSTER}",
    "command": f"/clusters/{CLUSTER}/approve",
    "fleet rollout": "/rollout",
    "launch": "/launch",
    "teams": "/teams",
    "team": f"/teams/{TEAM}",
    "ask for more": f"/teams/{TEAM}/ask",
    "flex": "/flex",
    "flex of one": f"/flex/{CLUSTER}",
    "requests": "/requests",
    "calendar": "/calendar",
    "audit": f"/audit?cluster={CLUSTER}",
    "access": "/access",
    "leader": "/leader",
    "leader, a buffer": "/leader?buffer=15",
    _WAVES: "/leader",
}


class Look(NamedTuple):
    seconds: float
    cpu: float
    made_up: float
    raw: int
    sent: int


async def looked(http: httpx.AsyncClient, path: str) -> Look:
    began, worked, made_up = time.perf_counter(), time.process_time(), making_up.seconds
    answer = await http.get(path, headers=_AS_A_BROWSER)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    made_up = making_up.seconds - made_up
    return Look(seconds, cpu, made_up, len(answer.raise_for_status().content), answer.num_bytes_downloaded)


async def page(http: httpx.AsyncClient, name: str, path: str, looks: int) -> dict[str, Any]:
    first = await looked(http, path)
    later = [await looked(http, path) for _ in range(looks)]
    return {
        "page": name,
        "first_ms": round(1000 * first.seconds),
        "first_cpu_ms": round(1000 * first.cpu),
        "first_made_up_cpu_ms": round(1000 * first.made_up),
        "median_ms": round(1000 * statistics.median(one.seconds for one in later)),
        "slowest_ms": round(1000 * max(one.seconds for one in later)),
        "cpu_ms": round(1000 * statistics.median(one.cpu for one in later)),
        "made_up_cpu_ms": round(1000 * statistics.median(one.made_up for one in later)),
        "kB": round(later[-1].raw / 1000, 1),
        "sent_kB": round(later[-1].sent / 1000, 1),
    }


async def look_first(front: Front) -> None:
    """Take the looks that a worker takes by itself within 45 seconds of its start, and print their times."""
    assert isinstance(front.doors, DeskDoors)
    taken = front.doors.desk.first_looks()
    while True:
        began, worked = time.perf_counter(), time.process_time()
        if not (kind := await asyncio.to_thread(next, taken, "")):
            return
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        print(json.dumps({"worker looks": kind, "ms": round(1000 * seconds), "cpu_ms": round(1000 * cpu)}), flush=True)


async def measured(folder: Path, clusters: int, looks: int, only: str, *, cold: bool) -> None:
    settings = FrontSettings(socket=folder / "front.sock", listen=Address("127.0.0.1", 0))
    async with console_on(folder, clusters, settings) as (front, _), tend_garbage():  # as a worker
        if not cold:
            await look_first(front)
        transport = httpx.AsyncHTTPTransport(uds=str(settings.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=120) as http:
            for name, path in PAGES.items():
                if only in name:
                    if name == _WAVES:  # from here on
                        assert isinstance(front.doors, DeskDoors)
                        await front.doors.door.ask(PlanMilestones(milestones=(_WAVE,)))
                    print(json.dumps({"clusters": clusters, **await page(http, name, path, looks)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--only", default="", help="pages with this in their name")
    parser.add_argument("--cold", action="store_true", help="the worker has taken no look by itself")
    given = parser.parse_args()
    for clusters in given.clusters:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measured(Path(folder), clusters, given.looks, given.only, cold=given.cold))


if __name__ == "__main__":
    main()
