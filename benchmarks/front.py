"""The cost of the front: a read and an approval through it beside the same ones straight to Temporal.

Everything is real: `backstop up` in a folder of its own, its socket, its keys. Each way reads in turn, so that all meet
the same machine. Three ways: straight (no ticket: asserted), through the front (signed, admitted), and through it
with an access file in force (rights judged there, second persons off). The first two approve before there is a file, as
straight is refused afterwards. Run:

    PYTHONPATH=. python benchmarks/front.py                # about three minutes
    PYTHONPATH=. python benchmarks/front.py --approvals 20 --reads 100
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sites import quantile
from client.backstop import Backstop
from client.http_door import http_door
from client.http_exchange import AtSocket
from client.places import front_socket
from models.access.access_file import AccessFile
from models.access_questions import ImportAccess
from models.cluster.fleet_file import Fleet
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from workers.demo_harness import on_stage

_AT_ONCE = 8
_STANDS = {"notice": "1d", "soak_buffered": "1d", "soak_enforced": "1d", "safety_poll": "1h"}
"""Approved, a rollout waits: nothing else moves while it is timed."""


def fleet_of(names: Sequence[str]) -> Fleet:
    quotas = [{"team": f"team-{n}", "gpus": 70, "scheduled_gpus": 60, "idle_gpus": 4} for n in range(5)]
    islands = [{"name": "main", "total_gpus": 400, "healthy_gpus": 380}]
    clusters = [{"name": n, "islands": islands, "policy": _STANDS, "quotas": quotas} for n in names]
    return Fleet.model_validate({"clusters": clusters})


async def seconds(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def launched(door: Backstop, names: Sequence[str]) -> dict[str, str]:
    """Launch; return by cluster the hash of each plan that waits for an approval."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> str:
        async with gate:
            answer = await door.launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="timed"))
        assert answer.plan is not None, answer.reason
        return answer.plan.hash

    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


async def approved(door: Backstop, plans: dict[str, str]) -> tuple[list[float], float]:
    """Time the approvals of one half, one after the other; of the others, eight at once, return how many a second."""

    def one(name: str) -> Awaitable[Any]:
        request = CommandRequest(actor=getpass.getuser(), reason="timed", plan_hash=plans[name])
        return door.command(name, Command.APPROVE, request)

    names = list(plans)
    half = len(names) // 2
    singly = [await seconds(lambda name=name: one(name)) for name in names[:half]]  # type: ignore[misc]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated(name: str) -> None:
        async with gate:
            await one(name)

    took = await seconds(lambda: asyncio.gather(*map(gated, names[half:])))
    return singly, (len(names) - half) / took


async def read_by_turns(doors: dict[str, Backstop], name: str, reads: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in doors}
    for number in range(reads + 5):
        for way, door in doors.items():
            took = await seconds(lambda door=door: door.status(name))  # type: ignore[misc]
            if number >= 5:  # the first ones connect
                times[way].append(took)
    return times


async def reads_a_second(door: Backstop, name: str, reads: int) -> float:
    """Return reads a second, with eight under way at once."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated() -> None:
        async with gate:
            await door.status(name)

    return reads / await seconds(lambda: asyncio.gather(*(gated() for _ in range(reads))))


def line(what: str, times: Sequence[float], bare: Sequence[float], more: str = "") -> str:
    p50, p99, least = quantile(times, 0.5), quantile(times, 0.99), quantile(bare, 0.5)
    return (
        f"{what:<44} p50 {p50 * 1000:7.1f} ms  p99 {p99 * 1000:7.1f} ms  {p50 / least:5.2f} of straight"
        f"  {(p50 - least) * 1000:+7.1f} ms{more}"
    )


async def measured(approvals: int, reads: int) -> dict[str, Any]:
    async with on_stage(getpass.getuser()) as story:
        through = http_door(AtSocket(front_socket()))
        ways = {way: [f"{way}-{n:03d}" for n in range(approvals)] for way in ("straight", "front", "rights")}
        await through.import_fleet(fleet_of(["read", *(name for names in ways.values() for name in names)]))
        plans = {way: await launched(through, names) for way, names in ways.items()}
        await launched(through, ["read"])
        found: dict[str, Any] = {"approve": {}, "a_second": {"read": {}, "approve": {}}}
        doors = {"straight": story.backstop, "front": through}
        found["read"] = await read_by_turns(doors, "read", reads)
        for way, door in doors.items():
            found["a_second"]["read"][way] = await reads_a_second(door, "read", reads)
            found["approve"][way], found["a_second"]["approve"][way] = await approved(door, plans[way])
        user = f"user:{getpass.getuser()}"
        roles = ["admin", "approver", "operator"]
        file = AccessFile.model_validate({"two_person": False, "grants": [{"to": [user], "roles": roles}]})
        await through.ask(ImportAccess(file=file, reason="timed"))
        await asyncio.sleep(16)  # the front knows of a first file at the latest then
        found["read"]["rights"] = (await read_by_turns({"rights": through}, "read", reads))["rights"]
        found["a_second"]["read"]["rights"] = await reads_a_second(through, "read", reads)
        found["approve"]["rights"], found["a_second"]["approve"]["rights"] = await approved(through, plans["rights"])
        return found


def told(found: dict[str, Any]) -> None:
    words = {
        "straight": "straight at Temporal, asserted",
        "front": "through the front, signed",
        "rights": "through the front, an access file in force",
    }
    for what in ("read", "approve"):
        print({"read": "status of one rollout", "approve": "approve, one after the other"}[what])
        for way, text in words.items():
            more = f"  {found['a_second'][what][way]:5.1f}/s, {_AT_ONCE} at once"
            print(f"  {line(text, found[what][way], found[what]['straight'], more)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--approvals", type=int, default=60, help="rollouts that each way approves")
    parser.add_argument("--reads", type=int, default=300, help="times that each way asks")
    parser.add_argument("--json", type=Path, help="a file for the figures, in seconds")
    options = parser.parse_args()
    os.environ.pop("BACKSTOP_SOCKET", None)
    found = asyncio.run(measured(options.approvals, options.reads))
    told(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
