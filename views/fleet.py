"""Clusters for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from models.base import gpus_text
from views.cluster_row import ClusterAnswer
from views.plan import gates
from views.words import clean, line, moment, none_of, row, table


def fleet_parts(clusters: Sequence[ClusterAnswer], of: int = 0) -> list[RenderableType]:
    """Return a line for each cluster. `of`: how many the ledger has."""
    if of and not clusters:
        return [none_of(of, "cluster")]
    if not clusters:
        return [line("The ledger has no clusters yet. Give it some: backstop fleet import FILE")]
    rows = table(
        *("CLUSTER", "MODEL", ">ISLANDS", ">TOTAL", ">HEALTHY", ">QUOTAS", ">PROMISED", "=ROLLOUT"),
        least=("ISLANDS", "QUOTAS", "MODEL"),
    )
    for c in clusters:
        row(
            rows,
            c.name,
            c.gpu_model,
            len(c.islands),
            c.total_gpus,
            c.healthy_gpus,
            len(c.quotas),
            c.promised_gpus,
            c.stage,
            style="yellow" if c.promised_gpus > c.healthy_gpus else "",
        )
    return [rows]


def _held(c: ClusterAnswer) -> list[RenderableType]:
    """Say which other system holds the cluster's quotas, and which reports its health."""
    parts: list[RenderableType] = []
    if c.slurm is not None:
        of = f"cluster {c.slurm.cluster or c.name}, accounts under {c.slurm.root}"
        parts.append(line(f"Slurm holds the quotas: {of}."))
    if c.git is not None:
        parts.append(line(f"Git holds the quotas: {c.git.path} on {c.git.branch} of {c.git.repository}."))
    if c.prometheus is not None:
        parts.append(line(f"Prometheus {c.prometheus.connection} says what is healthy."))
    return parts


def cluster_parts(c: ClusterAnswer) -> list[RenderableType]:
    """Return one cluster in full."""
    islands = table("ISLAND", ">TOTAL", ">HEALTHY", ">FOR BLOCKS")
    for island in c.islands:
        row(islands, island.name, island.total_gpus, island.healthy_gpus, island.room_for_blocks)
    quotas = table(
        *("TEAM", "PARENT", ">QUOTA", ">SCHEDULED", ">IDLE", ">MINIMUM", "~BLOCKS", "~ISLANDS"),
        least=("MINIMUM", "IDLE"),
    )
    for q in c.quotas:
        row(
            quotas,
            q.team,
            q.parent,
            q.gpus,
            q.scheduled_gpus,
            q.idle_gpus,
            q.minimum_gpus,
            " ".join(map(str, q.protected_blocks)) or None,
            None if q.islands is None else " ".join(q.islands),
        )
    rollout = "no rollout is open" if c.stage is None else f"a rollout is open: {c.stage}"
    parts: list[RenderableType] = [
        line(
            (c.name, "bold"),
            f": {c.gpu_model or 'GPU model not given'}, {gpus_text(c.gpus_per_node)} a node, {rollout}",
        ),
        Text(),
        islands,
        Text(),
        quotas if c.quotas else line("No quotas."),
    ]
    parts += [*_held(c), *gates(c.quotas)]
    if c.windows:
        windows = table("=WINDOW", "=FROM", "=TO", ">GPUS", "~ISLANDS", "~REASON")
        for w in c.windows:
            where = "all" if w.islands is None else " ".join(w.islands)
            row(windows, w.kind, moment(w.starts), moment(w.ends), w.gpus, where, w.reason)
        parts += [Text(), windows]
    if c.policy:
        settings = ", ".join(f"{key}={clean(value)}" for key, value in sorted(c.policy.items()))
        parts += [Text(), line(f"Own policy: {settings}")]
    return parts
