"""The cost of a command before it does anything: wall and CPU time, the median of several runs, beside a peer's.

Baselines, measured in the same run: `python -c pass`, and clients that people know, where they are in PATH (kubectl,
git, pip). CPU is the command's own process, user and system, with what it started and waited for. `status` is asked of
the front of `backstop up` (which is what people have), then straight of an embedded Temporal with a worker, of the same
one when the worker was killed, and of none. Run:

    python benchmarks/cli.py            # nine runs of each, about three minutes
    python benchmarks/cli.py --runs 3
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from activities.adapters.ledger.database import upgrade
from client.connection import NAMESPACE
from workers.embedded_temporal import EmbeddedTemporal

ROOT = Path(__file__).resolve().parents[1]
BACKSTOP = (sys.executable, "-m", "backstop")
FLEET = "examples/fleet.yaml"
PEERS = (("kubectl", "version", "--client"), ("git", "--version"), ("pip", "--version"))
COMPLETION = {"_BACKSTOP_COMPLETE": "complete_bash", "COMP_WORDS": "backstop sta", "COMP_CWORD": "1"}
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


class Cost(NamedTuple):
    """Medians, in seconds."""

    wall: float
    cpu: float


def cost_of(command: Sequence[str], settings: Mapping[str, str], runs: int, code: int = 0) -> Cost:
    """Time a command after a first run that fills the caches. Errors: RuntimeError for another exit code."""
    walls, cpus = [], []
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled: to do it again costs 0.1 s
    for _ in range(runs + 1):
        began, before = time.perf_counter(), _children_seconds()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        walls.append(time.perf_counter() - began)
        cpus.append(_children_seconds() - before)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return Cost(statistics.median(walls[1:]), statistics.median(cpus[1:]))


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def told(name: str, cost: Cost, bare: Cost) -> None:
    ratios = f"{cost.wall / bare.wall:6.1f} {cost.cpu / bare.cpu:6.1f}"
    print(f"{name:44} {cost.wall:7.3f} {cost.cpu:7.3f}   {ratios}", flush=True)


def at_a_front(home: Path, runs: int, bare: Cost) -> None:
    """Time commands at the front of `backstop up`, in a folder of its own, without any setting."""
    ours = ("TEMPORAL_", "BACKSTOP_", "OTEL_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    settings = {"BACKSTOP_HOME": str(home), "BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "0"}
    log = home.with_suffix(".log")
    with log.open("w") as out:
        up = subprocess.Popen(
            (*BACKSTOP, "up"), cwd=ROOT, env={**clean, **settings, "PYTHONPATH": str(ROOT)}, stdout=out, stderr=out
        )
    try:
        while "ready" not in log.read_text():
            if up.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.2)
        for name, *words in (
            ("fleet import, through the front", "fleet", "import", FLEET),
            ("status, through the front", "status"),
            ("status --json, through the front", "status", "--json"),
            ("plan, through the front", "plan"),
        ):
            told(name, cost_of((*BACKSTOP, *words), settings, runs), bare)
    finally:
        up.terminate()
        up.wait()


async def with_a_server(home: Path, runs: int, bare: Cost) -> None:
    async with EmbeddedTemporal(home / "temporal", None, None) as server:
        settings = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": NAMESPACE, "BACKSTOP_HOME": str(home)}
        log = (home / "worker.log").open("w")
        environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
        command = (sys.executable, "-m", "workers.main")
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            while "serving" not in (home / "worker.log").read_text():
                if worker.poll() is not None:
                    raise RuntimeError((home / "worker.log").read_text())
                await asyncio.sleep(0.2)

            async def ask(name: str, *words: str, more: Mapping[str, str] | None = None, code: int = 0) -> None:
                asked = (*BACKSTOP, *words), {**settings, **(more or {})}, runs, code
                told(name, await asyncio.to_thread(cost_of, *asked), bare)

            await ask("fleet import", "fleet", "import", FLEET)
            await ask("an import that is refused", "fleet", "import", "pyproject.toml", code=2)
            await ask("status", "status")
            await ask("status, a collector that is away", "status", more=COLLECTOR)
            worker.kill()
            worker.wait()
            await ask("status, the worker just killed", "status")
        finally:
            worker.kill()
            log.close()
    shutil.rmtree(home / "temporal")
    async with EmbeddedTemporal(home / "temporal", None, None) as server:
        settings["TEMPORAL_ADDRESS"] = server.address
        told("status, no worker", await asyncio.to_thread(cost_of, (*BACKSTOP, "status"), settings, runs), bare)
    told("status, no Temporal", await asyncio.to_thread(cost_of, (*BACKSTOP, "status"), settings, runs), bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--offline", action="store_true", help="only what needs no server")
    given = parser.parse_args()
    runs = given.runs
    print(f"{'median of ' + str(runs):44} {'wall s':>7} {'CPU s':>7}   {'of `python -c pass`: wall, CPU'}")
    bare = cost_of((sys.executable, "-c", "pass"), {}, runs)
    told("python -c pass", bare, bare)
    for peer in PEERS:
        if shutil.which(peer[0]):
            told(" ".join(peer), cost_of(peer, {}, runs), bare)
    told("--version", cost_of((*BACKSTOP, "--version"), {}, runs), bare)
    told("--help", cost_of((*BACKSTOP, "--help"), {}, runs), bare)
    told("a Tab after `backstop sta`", cost_of(BACKSTOP, COMPLETION, runs), bare)
    told(f"plan --file {FLEET}", cost_of((*BACKSTOP, "plan", "--file", FLEET), {}, runs), bare)
    told(f"plan --file {FLEET} --json", cost_of((*BACKSTOP, "plan", "--file", FLEET, "--json"), {}, runs), bare)
    told(f"haircut --file {FLEET}", cost_of((*BACKSTOP, "haircut", "--file", FLEET), {}, runs), bare)
    if given.offline:
        return
    with tempfile.TemporaryDirectory() as folder:
        at_a_front(Path(folder) / "up", runs, bare)
        home = Path(folder) / "own"
        home.mkdir()
        upgrade(f"sqlite:///{home / 'ledger.db'}")
        asyncio.run(with_a_server(home, runs, bare))


if __name__ == "__main__":
    main()
