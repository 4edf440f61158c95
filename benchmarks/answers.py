"""How fast people get answers: `status` of one rollout and of all, `approve`; beside a bare query, list and update.

Both workers serve one server, and each question is asked of ours and of bare in turn, so that both meet the same
machine. Run: PYTHONPATH=. python benchmarks/answers.py (two minutes; --rollouts 1000: ten).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from temporalio.client import WorkflowQueryFailedError

from benchmarks.bare import Bare, Loops, Script
from benchmarks.rollout import BREACH_SECONDS, NO_BRAKE, Plain, fleet_of
from benchmarks.sites import Site, note, quantile, site
from client.rollouts import MOST_ASKED
from models.cluster.fleet_file import Fleet
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command

_AT_ONCE = 8
_NONE = Loops(steps=[], archive=[], mail=[], timers=0)
Ask = Callable[[str], Awaitable[Any]]


def waiting_fleet(names: Sequence[str]) -> Fleet:
    """Return a fleet whose approved rollouts wait for a notice period, so that nothing else moves during the timing."""
    fleet = fleet_of(names, NO_BRAKE)
    clusters = [c.model_copy(update={"policy": {**c.policy, "notice": "1d"}}) for c in fleet.clusters]
    return fleet.model_copy(update={"clusters": tuple(clusters)})


def bare_script(plan_bytes: int) -> Script:
    """Return a script of bare workflows that wait for their approval, and then for a signal."""
    return Script(
        launch=_NONE,
        planned_after=0,
        plan_bytes=plan_bytes,
        breach=_NONE,
        looks_before=0,
        restored_after=0,
        breach_seconds=BREACH_SECONDS,
    )


async def few_at_once(names: Sequence[str], call: Ask) -> list[Any]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated(name: str) -> Any:
        async with gate:
            return await call(name)

    return await asyncio.gather(*map(gated, names))


async def seconds(ask: Ask, name: str) -> float:
    began = time.perf_counter()
    await ask(name)
    return time.perf_counter() - began


async def in_turn(names: Sequence[str], ours: Ask, bare: Ask) -> tuple[list[float], list[float]]:
    """Time each question to both sides, one after the other; every other time the bare side is first."""
    mine: list[float] = []
    theirs: list[float] = []
    for number, name in enumerate(names):
        for which in ("ours", "bare") if number % 2 else ("bare", "ours"):
            ask, into = (ours, mine) if which == "ours" else (bare, theirs)
            into.append(await seconds(ask, name))
    return mine, theirs


def line(what: str, ours: Sequence[float], bare: Sequence[float]) -> str:
    """Return a table row: milliseconds, p50 and p99."""
    p = [quantile(side, share) * 1000 for side in (ours, bare) for share in (0.5, 0.99)]
    return f"| {what} | {p[0]:.1f}, {p[1]:.1f} | {p[2]:.1f}, {p[3]:.1f} | {p[0] / p[2]:.1f}, {p[1] / p[3]:.1f} |"


async def measured(options: argparse.Namespace) -> Iterator[str]:
    names = [f"cluster-{n:04}" for n in range(options.rollouts)]
    async with site(options.ledger_url) as where, where.worker(15.0), where.bare_worker(False):
        tpm = where.tpm
        await tpm.import_fleet(waiting_fleet(names))

        async def launch(name: str) -> str:
            answer = await tpm.launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="timed"))
            assert answer.plan is not None, answer.reason
            return answer.plan.hash

        plans = dict(zip(names, await few_at_once(names, launch), strict=True))
        size = len((await tpm.status(names[0])).model_dump_json())
        note(f"{len(names)} rollouts wait for their approval; a status has {size} bytes")
        await few_at_once(names, lambda name: _started(where, name, size))
        await few_at_once(names, lambda name: _answered(where, name))  # the first question may cost a replay
        await few_at_once(names, tpm.status)
        asked = names[:: max(1, len(names) // options.asked)][: options.asked]
        await asyncio.sleep(options.rest)
        status = await in_turn(asked, tpm.status, lambda name: _answered(where, name))
        every = await in_turn(names[: options.lists], lambda _: tpm.overview(), lambda _: _listed(where))

        def approve(name: str) -> Awaitable[Any]:
            words = CommandRequest(actor="tpm", reason="timed", plan_hash=plans[name])
            return tpm.command(name, Command.APPROVE, words)

        def bare(name: str) -> Awaitable[Any]:
            update: Awaitable[Any] = _handle(where, name).execute_update(Bare.approve, "x" * 150)
            return update

        approved = await in_turn(asked, approve, bare)
        await few_at_once([n for n in names if n not in set(asked)], approve)
        await asyncio.sleep(options.rest)
        at_rest = await in_turn(names[: options.lists], lambda _: tpm.overview(), lambda _: _listed(where))
    return iter(
        [
            "| p50, p99 in ms | ours | bare | ratio |",
            "|---|---|---|---|",
            line("`status` of one rollout, beside a query whose answer is as long", *status),
            line(
                f"`status` of all {len(names)}, each of which needs a person ({MOST_ASKED} asked at most); a list",
                *every,
            ),
            line(f"`status` of all {len(names)}, none of which does; a list", *at_rest),
            line("`approve` to acknowledged, beside an update", *approved),
        ]
    )


def _handle(where: Site, name: str) -> Any:
    return where.client.get_workflow_handle(f"bare/{name}")


async def _answered(where: Site, name: str) -> str:
    """Query the bare workflow; ask again if the worker is not ready, as our client does."""
    while True:
        with contextlib.suppress(WorkflowQueryFailedError):
            answer: str = await _handle(where, name).query(Bare.answer)
            return answer


async def _started(where: Site, name: str, size: int) -> None:
    """Start a bare workflow that waits for approval, and whose answer to a query has that many bytes."""
    await Plain(where, bare_script(size)).start(name)


async def _listed(where: Site) -> int:
    return len([one async for one in where.client.list_workflows("WorkflowType = 'Bare'")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100, help="that stand, and whose status is asked all at once")
    parser.add_argument("--asked", type=int, default=100, help="of which one by one is asked, and approved")
    parser.add_argument("--lists", type=int, default=20, help="how often the status of all is asked")
    parser.add_argument("--ledger-url", default="", help="a PostgreSQL server; by default a SQLite file")
    parser.add_argument("--rest", type=float, default=3.0)
    options = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()[0]
    for text in asyncio.run(measured(options)):
        print(text)
    note(f"{time.perf_counter() - began:.0f} s in all, {os.cpu_count()} cores, load {load:.1f} before")


if __name__ == "__main__":
    main()
