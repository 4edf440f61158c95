"""One run: a seeded schedule of faults over living rollouts, the calm after it, and the evidence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from client.connection import NAMESPACE
from client.converter import data_converter
from models.cluster.fleet_file import Fleet
from tests.chaos import repository
from tests.chaos.attackers import Attackers
from tests.chaos.check import Loss, lost
from tests.chaos.outcome import TABLES, Outcome, Row, Told
from tests.chaos.people import BREACH_AFTER, Cluster, OnCall, shape
from tests.chaos.repository import Repository
from tests.chaos.site import FAULTS, ONCE, Site, site
from tests.replaying import replays
from workers.embedded_temporal import EmbeddedTemporal
from workers.main import FAILURES, sandbox
from workflows.cluster_rollout import ClusterRollout

GUARD_SECONDS = 120.0
"""Until hardware that fails for good must have been answered: breach_after, the watch, and a busy machine."""
UNSENT = "SELECT key FROM notices WHERE message IS NULL UNION ALL SELECT key FROM messages WHERE NOT over"
"""What the ledger itself is about to tell; a rollout that has ended does not wait for it."""


@dataclass(frozen=True)
class Options:
    """`seconds`: how long it rages; `gap`: seconds from one fault to the next, on average.

    `deletes`: Temporal's database is deleted once, at a time that the seed chooses. `git`: a repository holds the
    quotas, but for those of attackers.
    """

    rollouts: int = 50
    workers: int = 2
    seconds: float = 240.0
    gap: float = 2.5
    settle_seconds: float = 300.0
    watch_seconds: float = 0.5
    deletes: bool = True
    git: bool = False
    seed: int = 0


async def run(options: Options, home: Path) -> tuple[Outcome, list[Loss]]:
    """Play a run; return its outcome and the losses."""
    async with site(home, options.workers, options.watch_seconds) as there:
        outcome = await _lived(options, there)
    outcome.save(home / "outcome.json.gz")
    found = await asyncio.to_thread(lost, outcome)
    return outcome, found


async def _lived(options: Options, there: Site) -> Outcome:
    rng = random.Random(options.seed)
    specs = [shape(f"c{n:02d}", rng) for n in range(options.rollouts)]
    if options.git:
        there.repository = Repository(there.home)
        there.repository.hold(specs)
    clusters = [
        Cluster(there, spec, random.Random(rng.random()), calm=n % 5 == 4, shadow=n % 12 == 11)
        for n, spec in enumerate(specs)
    ]
    attackers = Attackers(there, random.Random(rng.random()))
    await attackers.prepare()
    fleet = {"clusters": [*specs, *attackers.specs], "teams": attackers.teams}
    await there.person("tpm").import_fleet(Fleet.model_validate(fleet), there.stage_import)
    await asyncio.gather(*(c.hardware(0) for c in clusters))
    await attackers.begin()
    _say("the attackers' clusters are monitored")
    attacked = [*attackers.clusters.values()]
    every = [*clusters, *attacked]
    on_call = OnCall(there, {c.name: c for c in every}, random.Random(rng.random()))
    adopting = asyncio.create_task(on_call.work())
    await _rage(options, there, clusters, attackers, rng)
    attackers.mend()
    _say(f"thrown: {attackers.thrown.total()}")
    outcome = Outcome(seed=options.seed, clocks={c.name: BREACH_AFTER for c in every})
    outcome.attacked, outcome.thrown = {c.name: c.source for c in attacked}, dict(attackers.thrown)
    await _calm(options, clusters, attacked, outcome, adopting)
    outcome.deleted = there.deleted
    outcome.said = [s for c in every for s in c.said]
    outcome.foreign = [f for c in every for f in c.foreign]
    outcome.health = [h for c in every for h in c.health]
    outcome.faults, outcome.killed = there.faults, there.killed
    for what, count in there.proxy.sprung.items():
        print(f"  sprung: {what}: {count}", flush=True)
    await _gather(there, outcome, patience=330)  # five minutes are how long an ended rollout has for its last mail
    await attackers.stop()
    return outcome


async def _rage(
    options: Options, there: Site, clusters: list[Cluster], attackers: Attackers, rng: random.Random
) -> None:
    loop = asyncio.get_running_loop()
    begins, ends = loop.time(), loop.time() + options.seconds
    attack = asyncio.create_task(attackers.rage(ends))
    lives = [asyncio.create_task(c.live(begins + rng.uniform(0, options.seconds * 0.5), ends - 1)) for c in clusters]
    pending: set[asyncio.Task[None]] = set()
    for at, kind, seed in schedule(options, rng):
        await asyncio.sleep(max(0, begins + at - loop.time()))
        if any(t.get_name() == kind for t in pending if not t.done()):
            continue
        pending.add(asyncio.create_task(there.suffers(kind, random.Random(seed)), name=kind))
    await asyncio.gather(*pending, attack)
    await there.made_well()
    _say(f"{len(there.faults)} faults are over; {sum(c.launches for c in clusters)} rollouts were launched")
    await asyncio.gather(*lives)


def schedule(options: Options, rng: random.Random) -> list[tuple[float, str, float]]:
    """(second, fault, its own seed), in order. Every kind comes once before the lot decides; Temporal's database is
    deleted once, some time in the middle."""
    found = []
    weights = FAULTS | (repository.FAULTS if options.git else {})
    kinds = list(weights)
    rng.shuffle(kinds)
    at = min(3.0, options.gap)
    while at < options.seconds - 1:
        kind = kinds.pop() if kinds else rng.choices(list(weights), list(weights.values()))[0]
        found.append((at, kind, rng.random()))
        at += rng.uniform(0.5, 1.5) * options.gap
    if options.deletes:
        found.append((rng.uniform(0.4, 0.6) * options.seconds, ONCE, rng.random()))
    return sorted(found)


async def _calm(
    options: Options,
    clusters: list[Cluster],
    attacked: list[Cluster],
    outcome: Outcome,
    adopting: asyncio.Task[None],
) -> None:
    """All is well; every rollout comes to rest. Then some hardware fails for good, and everything is ended."""
    until = asyncio.get_running_loop().time() + options.settle_seconds
    await asyncio.gather(*(c.hardware(0) for c in clusters))
    every = [*clusters, *attacked]
    where = await asyncio.gather(*(c.come_to_rest(until) for c in every))
    outcome.restless |= {c.name: w for c, w in zip(every, where, strict=True) if w}
    _say("everything rests" if not outcome.restless else f"no rest: {sorted(outcome.restless)}")
    if adopting.done():
        adopting.result()  # it never ends by itself
    adopting.cancel()
    struck = [c for n, c in enumerate(clusters) if n % 4 == 1]
    await asyncio.gather(*(c.hardware(0.19) for c in struck))
    await asyncio.sleep(BREACH_AFTER)
    await _until_answered(struck, until)
    await _until_still(clusters, outcome, until)
    await asyncio.gather(*(c.hardware(0) for c in clusters))
    where = await asyncio.gather(*(c.end(until + 120) for c in every))
    outcome.restless |= {c.name: w for c, w in zip(every, where, strict=True) if w}
    _say("everything has ended" if not outcome.restless else f"not ended: {sorted(outcome.restless)}")


async def _until_answered(struck: list[Cluster], until: float) -> None:
    """The guard has acted on each; or it has had its time, and the judge will say so."""
    loop = asyncio.get_running_loop()
    until = min(until, loop.time() + GUARD_SECONDS)
    while loop.time() < until and not all(await asyncio.gather(*(c.answered() for c in struck))):
        await asyncio.sleep(1)


async def _until_still(clusters: list[Cluster], outcome: Outcome, until: float) -> None:
    """Wait until the guard has finished what it began."""
    before: list[Row | None] = []
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        rows = await asyncio.gather(*(c.at_rest() for c in clusters))
        still = [None if r is None else {**r, "at": ""} for r in rows]
        outcome.rest = [r for r in rows if r is not None]
        if still == before and not any(r["stage"] == "rolling_back" for r in outcome.rest):
            return
        before = still
        await asyncio.sleep(4)


# --- evidence --------------------------------------------------------------------------------


async def _gather(there: Site, outcome: Outcome, patience: float) -> None:
    """Rows, histories, notices, and whether each history replays."""
    ends = time.monotonic() + patience
    before = await _histories_before(there) if there.deleted else []
    while True:
        wanted = {r["id"] for r in await there.asked("SELECT id FROM rollouts")}
        outcome.runs = await _histories(there.client)
        open_still = [r for r in outcome.runs if r["type"] == "ClusterRollout" and r["status"] == "RUNNING"]
        found = {r["rollout"] for r in [*before, *outcome.runs] if r["type"] == "ClusterRollout"}
        unsent = await there.asked(UNSENT)
        if (wanted <= found and not open_still and not unsent) or time.monotonic() > ends:
            break
        await asyncio.sleep(1)
    outcome.runs = [*before, *outcome.runs]
    for table, order in TABLES.items():
        rows = await there.asked(f"SELECT * FROM {table} ORDER BY {order}")
        outcome.tables[table] = json.loads(json.dumps(rows, default=lambda at: at.isoformat()))
    if there.repository is not None:
        outcome.commits = await asyncio.to_thread(there.repository.commits)
    outcome.replays = await _replays(outcome.runs)
    outcome.notices = _notices(there.home / "notices.jsonl")
    outcome.book = _book(there.home / "notices.jsonl.book")
    outcome.logs = there.nondeterminism()
    _say(f"{len(outcome.runs)} histories; workers that ended by themselves: {there.ended_by_themselves}")


async def _histories_before(there: Site) -> list[Row]:
    """Return what Temporal knew when its database was deleted, by a server on its files, without a worker."""
    async with EmbeddedTemporal(there.before, None, None) as server:
        client = await Client.connect(server.address, namespace=NAMESPACE, data_converter=data_converter)
        await asyncio.sleep(2)  # what was not yet listed when it was killed
        return await _histories(client, before=True)


async def _histories(client: Client, before: bool = False) -> list[Row]:
    runs: list[Row] = []
    async for found in client.list_workflows():
        handle = client.get_workflow_handle(found.id, run_id=found.run_id)
        # A list is a moment late, and of a server that was killed it may have stood still.
        status = (await handle.describe()).status if before else found.status
        assert status is not None
        history = await handle.fetch_history()
        events: list[Row] = history.to_json_dict()["events"]
        row: Row = {"workflow": found.id, "run": found.run_id, "type": found.workflow_type, "events": events}
        row["status"], row["before"] = status.name, before
        row["rollout"] = ""
        runs.append(row)
    for row in runs:
        if row["type"] == "ClusterRollout":
            row["rollout"] = Told(row).rollout
    return runs


async def _replays(runs: list[Row]) -> dict[str, str]:
    """Return by run why it does not replay."""

    def replayer() -> Replayer:
        return Replayer(
            workflows=[ClusterRollout],
            workflow_runner=sandbox(),
            workflow_failure_exception_types=FAILURES,
            data_converter=data_converter,
        )

    found: dict[str, str] = {}
    for row in runs:
        if row["type"] == "ClusterRollout":
            history = WorkflowHistory.from_json(row["workflow"], {"events": row["events"]})
            try:
                await replays(replayer, history)
            except Exception as failure:
                found[f"{row['workflow']} ({row['run']})"] = repr(failure)
    return found


def _notices(path: Path) -> list[Row]:
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [{k: line[k] for k in ("at", "key", "notice")} for line in lines]


def _book(path: Path) -> list[Row]:
    with contextlib.closing(sqlite3.connect(path)) as book:
        return [{"key": k, "address": a} for k, a in book.execute("SELECT key, address FROM deliveries")]


def table(outcome: Outcome) -> str:
    """Return a table of faults and commands, by kind."""
    faults = Counter(f["kind"] for f in outcome.faults)
    effects = Counter(r["kind"] for r in outcome.tables["receipts"])
    commands = Counter(s["answer"] for s in outcome.said)
    transitions = Counter(
        e["data"]["after"] for r in outcome.tables["audit"] if (e := json.loads(r["entry"]))["kind"] == "transition"
    )
    failed = Counter(
        e["workflowTaskFailedEventAttributes"].get("cause", "unknown").removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
        for r in outcome.runs
        for e in r["events"]
        if "workflowTaskFailedEventAttributes" in e
    )
    lines = [f"seed {outcome.seed}"]
    for title, counts in (
        ("faults", faults),
        ("thrown by attackers", Counter(outcome.thrown)),
        ("effects", effects),
        ("transitions", transitions),
        ("commands", commands),
        ("failed workflow tasks", failed),
    ):
        rest = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        lines.append(f"{title:>22}  {sum(counts.values()):>5}  {rest}")
    for title, count in (
        ("rollouts", len(outcome.tables["rollouts"])),
        ("lost and taken over", sum(r["superseded_by"] is not None for r in outcome.tables["rollouts"])),
        ("foreign writes", len(outcome.foreign)),
        ("commits of ours", sum(bool(c["rollout"]) for c in outcome.commits)),
        ("health samples", len(outcome.health)),
        ("notices", len(outcome.notices)),
        ("archived entries", len(outcome.tables["audit"])),
        ("histories replayed", sum(r["type"] == "ClusterRollout" for r in outcome.runs)),
    ):
        lines.append(f"{title:>22}  {count:>5}")
    return "\n".join(lines)


def injected(outcome: Outcome) -> tuple[int, int]:
    """Faults of the installation, and what attackers threw."""
    return len(outcome.faults), sum(outcome.thrown.values())


def injected_line(faults: int, thrown: int) -> str:
    return f"injected: {faults} faults + {thrown} thrown by attackers = {faults + thrown}"


def _say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)
