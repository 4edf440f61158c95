"""A ledger whose clusters an emulated API server reports, and the product's own adapter between the two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.kubernetes.api import KubernetesConnection
from activities.adapters.kubernetes.followed import pause_longer
from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import HealthSample, TeamUsage
from tests.integration.ledger.world import stage
from tests.kubernetes.emulator import Cluster, running
from tests.servers import new_ledger
from tests.waiting import PATIENCE


async def pause_briefly(failures: int) -> None:
    """Try again in about a twentieth of a second, however often it failed."""
    await pause_longer(-3)


class World:
    """The ledger of `clusters`, each given as its field `kubernetes`, and the adapter that reads their API servers."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        servers: dict[str, Cluster],
        clusters: dict[str, Any],
        patience: float = PATIENCE,
    ) -> None:
        self.ledger = ledger
        connections = {}
        for name, server in servers.items():
            path = folder / f"{name}.kubeconfig"
            path.write_text(json.dumps(server.kubeconfig()))
            connections[name] = KubernetesConnection(kubeconfig=str(path), timeout=timedelta(seconds=50))
        islands = [{"name": name, "total_gpus": 64, "healthy_gpus": 0} for name in ("main", "a", "b")]
        quotas = [{"team": "vision", "gpus": 8}, {"team": "language", "gpus": 8}]
        fleet = [
            {"name": name, "islands": islands, "quotas": quotas, "kubernetes": source}
            for name, source in clusters.items()
        ]
        stage(ledger, {"clusters": fleet}, "first")
        ledger.fleet.commit_import("first", 2, "tpm", ledger.now() - timedelta(minutes=5))
        self.adapter = Kuberneteses(
            *(ledger, connections, timedelta(0), timedelta(0)), timedelta(seconds=patience), pause_briefly
        )
        self._health = ledger.health.feed_from(self.adapter.refresh_health)
        self._usage = ledger.usage.feed_from(self.adapter.refresh_use)
        self._names = list(clusters)

    def health(self, cluster: str = "east") -> HealthSample:
        return self._health.read(self._names)[cluster]

    def gpus(self, cluster: str = "east") -> dict[str, tuple[int, int | None]]:
        """Healthy GPUs, and those for blocks, by island that has any installed now."""
        return {i.name: (i.healthy_gpus, i.block_gpus) for i in self.health(cluster).islands if i.healthy_gpus}

    def usage(self, cluster: str = "east") -> dict[str, TeamUsage]:
        return self._usage.latest([cluster], self.ledger.now()).get(cluster, {})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(new_ledger(tmp_path / "ledger.db")) as ledger:
        yield ledger


@pytest.fixture
def server() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster
