"""Clusters for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from models.cluster.windows import gpus_taken
from models.texts import gpus_text
from views.cluster_answer import ClusterAnswer
from views.plan import gates
from views.words import clean, line, moment, row, table


def fleet_parts(clusters: Sequence[ClusterAnswer]) -> list[RenderableType]:
    """Return a line for each cluster."""
    if not clusters:
        return [line("The ledger has no clusters yet. Import some: backstop fleet import FILE")]
    rows = table(
        *("CLUSTER", "MODEL", ">ISLANDS", ">TOTAL", ">HEALTHY", ">QUOTAS", ">PROMISED", "=ROLLOUT"),
        least=("ISLANDS", "QUOTAS", "MODEL"),
    )
    for cluster in clusters:
        row(
            rows,
            cluster.name,
            cluster.gpu_model,
            len(cluster.islands),
            cluster.total_gpus,
            cluster.healthy_gpus,
            len(cluster.quotas),
            cluster.promised_gpus,
            cluster.stage,
            style="yellow" if cluster.promised_gpus > cluster.healthy_gpus else "",
        )
    return [rows]


def _describe_holders(cluster: ClusterAnswer) -> list[RenderableType]:
    """Say which other system holds the cluster's quotas, and which reports its health."""
    parts: list[RenderableType] = []
    if cluster.slurm is not None:
        of = f"cluster {cluster.slurm.cluster or cluster.name}, accounts under {cluster.slurm.root}"
        parts.append(line(f"Slurm holds the quotas: {of}."))
    if cluster.git is not None:
        parts.append(
            line(f"Git holds the quotas: {cluster.git.path} on {cluster.git.branch} of {cluster.git.repository}.")
        )
    if cluster.kueue is not None:
        selected = cluster.kueue.queues
        which = "all ClusterQueues" if selected is None else f"ClusterQueues that match {selected}"
        parts.append(line(f"Kueue holds the quotas: {which} of Kubernetes {cluster.kueue.connection}."))
    if cluster.prometheus is not None:
        parts.append(line(f"Prometheus {cluster.prometheus.connection} reports the health."))
    if cluster.kubernetes is not None:
        parts.append(line(f"Kubernetes {cluster.kubernetes.connection} reports the health."))
    return parts


def cluster_parts(cluster: ClusterAnswer) -> list[RenderableType]:
    """Return one cluster in full."""
    islands = table("ISLAND", ">TOTAL", ">HEALTHY", ">FOR BLOCKS")
    for island in cluster.islands:
        row(islands, island.name, island.total_gpus, island.healthy_gpus, island.room_for_blocks)
    quotas = table(
        *("TEAM", "PARENT", ">QUOTA", ">SCHEDULED", ">IDLE", ">MINIMUM", "~BLOCKS", "~ISLANDS"),
        least=("MINIMUM", "IDLE"),
    )
    for quota in cluster.quotas:
        row(
            quotas,
            quota.team,
            quota.parent,
            quota.gpus,
            quota.scheduled_gpus,
            quota.idle_gpus,
            quota.minimum_gpus,
            " ".join(map(str, quota.protected_blocks)) or None,
            None if quota.islands is None else " ".join(quota.islands),
        )
    rollout = "no rollout is open" if cluster.stage is None else f"a rollout is open: {cluster.stage}"
    parts: list[RenderableType] = [
        line(
            (cluster.name, "bold"),
            f": {cluster.gpu_model or 'GPU model unknown'}, {gpus_text(cluster.gpus_per_node)} a node, {rollout}",
        ),
        Text(),
        islands,
        Text(),
        quotas if cluster.quotas else line("No quotas."),
    ]
    parts += [*_describe_holders(cluster), *gates(cluster.quotas)]
    if cluster.windows:
        windows = table("=WINDOW", "=FROM", "=TO", ">GPUS", "~ISLANDS", "~REASON")
        for window in cluster.windows:
            where = "all" if window.islands is None else " ".join(window.islands)
            row(
                windows,
                window.kind,
                moment(window.starts),
                moment(window.ends),
                gpus_taken(window),
                where,
                window.reason,
            )
        parts += [Text(), windows]
    if cluster.policy:
        settings = ", ".join(f"{key}={clean(value)}" for key, value in sorted(cluster.policy.items()))
        parts += [Text(), line(f"Own policy: {settings}")]
    return parts
