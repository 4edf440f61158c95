"""A cluster of the ledger, for views and for `--json`."""

from __future__ import annotations

from models.base import GpuCount
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import healthy, total
from models.cluster.quota import QuotaTree


class ClusterAnswer(ClusterSpec):
    """A cluster with the ledger's figures."""

    stage: str | None = None
    """The stage of its open rollout; null if none is open."""
    total_gpus: GpuCount = 0
    """The sum of all its islands."""
    healthy_gpus: GpuCount = 0
    promised_gpus: GpuCount = 0
    """The sum of its quotas (A)."""

    @staticmethod
    def of(cluster: ClusterSpec, stage: str | None) -> ClusterAnswer:
        return ClusterAnswer.model_construct(
            **{name: getattr(cluster, name) for name in type(cluster).model_fields},
            stage=stage,
            total_gpus=total(cluster.islands),
            healthy_gpus=healthy(cluster.islands),
            promised_gpus=QuotaTree(cluster.quotas).assigned_gpus(),
        )
