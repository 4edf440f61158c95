"""A real Slurm with many accounts: how long a reading and a change take, and how many calls they make.

`python benchmarks/slurm.py [--accounts 200]`. The baseline, in the same run, is what a person would type: one sacctmgr
for each account.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.command_line import Connection
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.ports.registry import OpenRollout
from models.cluster.readings import LimitMode
from models.cluster.snapshot import snapshot_of
from models.cluster.sources import SlurmSource
from models.rollout.effects import Change, EffectKind, Fence, Reserve, ValueWrite
from tests.slurm.conftest import Site
from tests.slurm.lab import CLUSTER, Lab, running

TRIES = 5
_SOME = 20


class Bench(Site):
    """All accounts under org."""

    @property
    def source(self) -> SlurmSource:
        return SlurmSource(connection="lab", cluster=CLUSTER, root="org")


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def accounts(lab: Lab, count: int) -> None:
    """Create `org` with so many accounts of one GPU each."""
    lab.account("org")
    names = [f"team-{n:04d}" for n in range(count)]
    for at in range(0, count, 50):
        some = ",".join(names[at : at + 50])
        lab.run("sacctmgr", "-i", "-Q", "add", "account", some, f"Cluster={CLUSTER}", "Parent=org")
        lab.run("sacctmgr", "-i", "-Q", "modify", "account", some, f"Cluster={CLUSTER}", "set", "GrpTRES=gres/gpu=2")


def one_by_one(lab: Lab, count: int) -> None:
    for number in range(count):
        lab.set_limit(f"team-{number:04d}", 2)


def effects(site: Site, count: int) -> list[tuple[str, float, int]]:
    """Return, for each effect, the seconds and the calls."""
    (spec, _) = site.ledger.fleet.clusters("", 1)[0]
    planned = OpenRollout(
        rollout="r", cluster=CLUSTER, owner="tpm", opened_at=site.ledger.now(), baseline=snapshot_of(spec)
    )
    site.ledger.registry.open_rollout(planned, adopt=False)
    writes = tuple(ValueWrite(team=q.team, expected_gpus=2, gpus=1, mode=LimitMode.SOFT) for q in spec.quotas)
    back = tuple(ValueWrite(team=q.team, expected_gpus=1, gpus=2, mode=LimitMode.HARD) for q in spec.quotas)
    steps: list[tuple[EffectKind, dict[str, Any]]] = [
        (EffectKind.RESERVE, {"reserve": Reserve(freed_gpus=count, limit_gpus=count)}),
        (EffectKind.SET_SOFT, {"writes": writes}),
        (EffectKind.HARDEN, {"mode": LimitMode.HARD}),
        (EffectKind.RESTORE, {"writes": back}),
        (EffectKind.RELEASE, {}),
    ]
    talk, found = site.slurms.talk(site.source), []
    for number, (kind, more) in enumerate(steps, start=1):
        change = Change.model_validate(
            {"cluster": CLUSTER, "kind": kind, "fence": Fence(rollout="r", counter=number), **more}
        )
        before = talk.calls
        seconds = timed(lambda change=change: site.quotas.apply(change))  # type: ignore[misc]
        found.append((kind.value, seconds, talk.calls - before))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=200)
    count = parser.parse_args().accounts
    with running({"island1": 3, "island2": 3}) as lab, tempfile.TemporaryDirectory() as folder:
        accounts(lab, count)
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        upgrade(url)
        with Ledger(url) as ledger:
            connection = Connection(conf=str(lab.conf), path=f"{lab.folder}/bin")
            slurms = Slurms(ledger, ledger.schedulers, {"lab": connection}, timedelta(0), timedelta(0))
            site = Bench(lab, ledger, slurms, "org")
            site.adopt()
            talk = slurms.talk(site.source)
            before = talk.calls
            reads = [timed(lambda: SlurmQuotas(slurms).read(CLUSTER)) for _ in range(TRIES)]
            print(f"{count} accounts, Slurm 22.05, two cores")
            print(f"  read        {statistics.median(reads):6.2f} s   {(talk.calls - before) / TRIES:.0f} call(s)")
            made = effects(site, count)
            for kind, seconds, calls in made:
                print(f"  {kind:<11} {seconds:6.2f} s   {calls} call(s)")
            whole = next(seconds for kind, seconds, _ in made if kind == "harden")
            alone = timed(lambda: one_by_one(lab, _SOME)) * count / _SOME
            print(f"  baseline    {alone:6.2f} s   {count} calls ({_SOME} were made): {alone / whole:.0f} times harden")


if __name__ == "__main__":
    main()
