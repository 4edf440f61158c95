"""The cost of a plan of 200 quotas in each quota system: calls, commits and seconds.

Measured are a look when nothing has changed, one effect that moves all quotas, and its undo. Git is a repository of
this machine, Kueue the tests' emulator in a process of its own, Slurm a real one (left out where it is not installed).
`python benchmarks/quota_systems.py [--quotas 200] [--delay 0.02]`: the delay, in seconds, of each answer of Kubernetes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from activities.adapters.git.command_line import Git
from activities.adapters.kubernetes.api import ApiServer
from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.command_line import Connection, Talk
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import OpenRollout
from models.cluster.readings import LimitMode
from models.cluster.snapshot import snapshot_of
from models.rollout.effects import Change, EffectKind, Fence, ValueWrite
from tests.git.world import QUEUE, Forge, take
from tests.git.world import worker as git_worker
from tests.kubernetes.kueue_world import worker as kueue_worker
from tests.slurm.lab import CLUSTER, missing, running

BEFORE, AFTER = 16, 12
NAME = "h100"


COUNTS: Counter[str] = Counter()


class Bench(NamedTuple):
    title: str
    source: dict[str, Any]
    port: Callable[[Ledger], QuotaPort]


def count(of: type, name: str, what: str) -> None:
    """Count the calls of this method."""
    method = getattr(of, name)

    def counted(*arguments: Any, **more: Any) -> Any:
        COUNTS[what] += 1
        return method(*arguments, **more)

    setattr(of, name, counted)


def in_git(folder: Path, teams: list[str]) -> Bench:
    forge = Forge(folder / "forge", {f"queues/{name}.yaml": QUEUE.format(name=name, gpus=BEFORE) for name in teams})
    source = {"git": {"repository": forge.url, "path": "queues", "dialect": "kueue"}}
    return Bench("Git", source, lambda ledger: git_worker(ledger, folder / "worker"))


def serve(pipe: Pipe, teams: list[str], delay: float) -> None:
    """Run the emulator until the other side ends. It does not check objects: that takes it longer than all else."""
    from tests.kubernetes import emulator
    from tests.kubernetes.emulator import QUEUES, Cluster, queue

    handle = emulator.Emulator._handle

    async def late(self: emulator.Emulator, request: Any) -> Any:
        await asyncio.sleep(delay)
        return await handle(self, request)

    setattr(emulator.Emulator, "_handle", late)  # noqa: B010
    setattr(emulator, "check_queue", lambda raw: None)  # noqa: B010
    cluster = Cluster().start()
    for name in teams:
        cluster.put(QUEUES, queue(name, BEFORE))
    pipe.send(cluster.kubeconfig())
    pipe.recv()


@contextmanager
def in_kueue(folder: Path, teams: list[str], delay: float) -> Iterator[Bench]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=serve, args=(there, teams, delay), daemon=True).start()
    config = folder / "kubeconfig"
    config.write_text(json.dumps(here.recv()))
    yield Bench("Kueue", {"kueue": {"connection": "east"}}, lambda ledger: kueue_worker(ledger, str(config)))
    here.send("the end")


@contextmanager
def in_slurm(teams: list[str]) -> Iterator[Bench]:
    with running({"island1": 2}) as lab:
        lab.account("org")
        lab.accounts(teams, "org", BEFORE)
        connections = {"lab": Connection(conf=str(lab.conf), path=f"{lab.folder}/bin")}

        def port(ledger: Ledger) -> QuotaPort:
            return SlurmQuotas(Slurms(ledger, ledger.schedulers, connections, timedelta(0), timedelta(0)))

        source = {"connection": "lab", "cluster": CLUSTER, "root": "org", "size_flex": False}
        yield Bench("Slurm", {"slurm": source}, port)


def measure(bench: Bench, folder: Path, teams: list[str]) -> None:
    url = f"sqlite:///{folder / 'ledger.db'}"
    upgrade(url)
    with Ledger(url) as ledger:
        island = {"name": "main", "total_gpus": BEFORE * len(teams), "healthy_gpus": BEFORE * len(teams)}
        quotas = [{"team": name, "gpus": BEFORE} for name in teams]
        take(ledger, {"name": NAME, "islands": [island], "quotas": quotas, **bench.source})
        port = bench.port(ledger)
        port.read(NAME)
        spec, _ = ledger.fleet.clusters("", 1)[0]
        opened = OpenRollout(
            rollout="r-1", cluster=NAME, owner="tpm", opened_at=ledger.now(), baseline=snapshot_of(spec)
        )
        ledger.registry.open_rollout(opened, adopt=False)
        report(bench.title, "a look", lambda: port.read(NAME))
        moves = [(EffectKind.SET_SOFT, 1, BEFORE, AFTER), (EffectKind.RESTORE, 2, AFTER, BEFORE)]
        for kind, counter, before, after in moves:
            writes = tuple(
                ValueWrite(team=name, expected_gpus=before, gpus=after, mode=LimitMode.HARD) for name in teams
            )
            change = Change(cluster=NAME, kind=kind, fence=Fence(rollout="r-1", counter=counter), writes=writes)
            what = "the effect" if after == AFTER else "its undo"
            report(bench.title, what, lambda change=change: port.apply(change))  # type: ignore[misc]
        assert set(port.read(NAME).values.values()) == {BEFORE}


def report(title: str, what: str, work: Callable[[], object]) -> None:
    COUNTS.clear()
    began, started = time.monotonic(), time.process_time()
    work()
    wall, cpu = time.monotonic() - began, time.process_time() - started
    calls = ", ".join(f"{name}: {number}" for name, number in sorted(COUNTS.items())) or "no call outside the ledger"
    print(f"{title}: {what}: {wall:.2f} s, {cpu:.2f} s of it CPU of the worker; {calls}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quotas", type=int, default=200)
    parser.add_argument("--delay", type=float, default=0.0)
    asked = parser.parse_args()
    teams = [f"team-{number:03}" for number in range(asked.quotas)]
    count(Git, "_result", "runs of git")
    count(Git, "push", "commits")
    count(ApiServer, "page", "lists")
    count(ApiServer, "apply", "applies")
    count(Talk, "run", "runs of Slurm's commands")
    for title in ("ledger", "Git", "Kueue", "Slurm"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            match title:
                case "ledger":
                    measure(Bench(title, {}, lambda ledger: ledger.quotas), folder, teams)
                case "Git":
                    measure(in_git(folder, teams), folder, teams)
                case "Kueue":
                    with in_kueue(folder, teams, asked.delay) as bench:
                        measure(bench, folder, teams)
                case _ if not missing():
                    with in_slurm(teams) as bench:
                        measure(bench, folder, teams)


if __name__ == "__main__":
    main()
