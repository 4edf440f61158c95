"""One real Slurm for all of these tests; accounts of its own for each."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.command_line import Connection
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.ports.clusters import HealthPort, UsagePort
from models.cluster.fleet_file import ClusterSpec, Fleet
from models.cluster.sources import SlurmSource
from tests.servers import new_ledger
from tests.slurm.lab import CLUSTER, Lab, missing, running

_numbers = itertools.count(1)
LESSER = "nobody"
"""A Unix user that every Debian has."""


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Six nodes of eight GPUs in two islands. Where it cannot start, CI fails; on a laptop its tests are skipped."""
    lacking = missing()
    if lacking:
        reason = f"no Slurm here: {', '.join(lacking)} not installed (make packages)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with running({"island1": 3, "island2": 3}) as found:
        found.run("sacctmgr", "-i", "-Q", "add", "qos", "flex")
        found.run("sacctmgr", "-i", "-Q", "modify", "qos", "flex", "set", "Priority=0", "PreemptMode=requeue")
        found.run("sacctmgr", "-i", "-Q", "modify", "qos", "normal", "set", "Priority=100", "Preempt=flex")
        yield found


@dataclass
class Site:
    """A Slurm with teams a (24 of 48 GPUs) and b (16) under an account that bounds them, and a ledger beside it."""

    lab: Lab
    ledger: Ledger
    slurms: Slurms
    root: str
    cluster: str = CLUSTER

    @property
    def source(self) -> SlurmSource:
        return SlurmSource(connection="lab", cluster=CLUSTER, root=self.root, flex_root=f"{self.root}-flex-pool")

    @property
    def quotas(self) -> SlurmQuotas:
        return SlurmQuotas(self.slurms)

    @property
    def health(self) -> HealthPort:
        return self.ledger.health.feed_from(self.slurms.refresh_health)

    @property
    def usage(self) -> UsagePort:
        return self.ledger.usage.feed_from(self.slurms.refresh_use)

    def team(self, letter: str) -> str:
        return f"{self.root}-{letter}"

    def limits(self) -> list[str]:
        """Return the limits of the root and both teams, from sacctmgr."""
        return self.lab.limits(self.root, self.team("a"), self.team("b"))

    def flex_limit(self, qos: str = "flex") -> int | None:
        """Return the limit of a QOS, from sacctmgr."""
        shown = self.lab.run("sacctmgr", "-n", "-P", "show", "qos", f"name={qos}", "format=GrpTRES")
        return int(shown.removeprefix("gres/gpu=")) if shown else None

    def adopt(self, source: SlurmSource | None = None) -> None:
        """The cluster stands in the ledger as Slurm has it."""
        self.import_clusters(self.slurms.describe(self.cluster, source or self.source))
        self.quotas.read(self.cluster)

    def import_clusters(self, *clusters: ClusterSpec) -> None:
        """They stand in the ledger."""
        fleet = Fleet(clusters=clusters)
        packed = zlib.compress(json.dumps(json.loads(fleet.model_dump_json(exclude_unset=True))).encode())
        number = f"import {next(_numbers)}"
        self.ledger.fleet.stage_import(number, 0, packed)
        self.ledger.fleet.commit_import(number, 1, "tpm", self.ledger.now())


@pytest.fixture
def lesser(site: Site, tmp_path: Path) -> Site:
    """The same, spoken to by a Unix user that Slurm's accounting database has not heard of."""
    if os.getuid() != 0:
        reason = "only root may act for another user"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path / "as"
    folder.mkdir()
    for command in ("sacctmgr", "scontrol", "squeue"):
        script = folder / command
        script.write_text(
            f'#!/bin/sh\ncd / && exec setpriv --reuid={LESSER} --clear-groups {shutil.which(command)} "$@"\n'
        )
        script.chmod(0o755)
    talk = Connection(conf=str(site.lab.conf), path=str(folder))
    slurms = Slurms(site.ledger, site.ledger.schedulers, {"lab": talk}, timedelta(0), timedelta(0))
    return replace(site, slurms=slurms)


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    root = f"org{next(_numbers)}"
    lab.account(root)
    lab.accounts([f"{root}-a", f"{root}-b"], root, 24)
    lab.set_limit(f"{root}-b", 16)
    with Ledger(new_ledger(tmp_path / "ledger.db")) as ledger:
        connection = Connection(conf=str(lab.conf), path=f"{lab.folder}/bin")
        slurms = Slurms(ledger, ledger.schedulers, {"lab": connection}, timedelta(0), timedelta(0))
        yield Site(lab, ledger, slurms, root)
