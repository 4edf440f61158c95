"""A fleet file against what the ledger holds: only what differs is written.

Writes to quotas that exist are foreign ones: Backstop does not own them, a person changed the file. So
they move the generation, and the ledger's triggers may refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import Row, add, delete, keep, store, update
from activities.adapters.ledger.calendar import comma_joined, file_windows, window_row
from activities.adapters.ledger.observations import health_row
from activities.adapters.ledger.quotas import signed
from models.base import canonical_json
from models.cluster.fleet_file import ClusterSpec, Fleet, Team
from models.cluster.quota import Quota
from models.cluster.windows import FILE
from models.errors import Refusal
from models.tables import (
    ClusterRow,
    ContactRow,
    FleetRow,
    HealthRow,
    IslandRow,
    QuotaRow,
    TeamRow,
    UsageRow,
    WindowRow,
)

CLUSTERS_AT_ONCE = 250
CLUSTER_COLUMNS = ("name", "gpu_model", "gpus_per_node", "policy", "source", "health_source")
ISLAND_COLUMNS = ("cluster", "name", "total_gpus")
QUOTA_COLUMNS = ("cluster", "team", "gpus", "islands", "blocks", "minimum", "parent", "namespaces", "classes")
"""What a file says of each; the tables' other columns are Backstop's own."""


@dataclass(frozen=True)
class Difference:
    """What turns the present rows of one table into the wanted ones."""

    new: list[Row]
    changed: list[tuple[Row, Row]]
    """Before and after."""
    gone: list[Row]


def write_fleet(session: Session, fleet: Fleet, actor: str, now: datetime) -> dict[str, Any]:
    """The file's clusters, policy and teams stand in the ledger; clusters it does not name stay as they are.

    Health and usage become samples at `now`. Errors: Refusal of the triggers.
    """
    if "policy" in fleet.model_fields_set:
        policy = canonical_json(fleet.policy.model_dump(mode="json", exclude_unset=True))
        store(session, FleetRow, [{"id": 1, "policy": policy}])
    _write_teams(session, fleet.teams)
    counts = {"clusters": 0, "quotas": 0, "changed": 0, "removed": 0}
    # By name: two imports that meet take the clusters' rows in the same order.
    for clusters in _portions(sorted(fleet.clusters, key=lambda c: c.name)):
        with signed(session, [c.name for c in clusters], actor):
            quotas = _write_clusters(session, clusters)
        counts["clusters"] += len(clusters)
        counts["quotas"] += sum(len(c.quotas) for c in clusters)
        counts["changed"] += len(quotas.new) + len(quotas.changed)
        counts["removed"] += len(quotas.gone)
        _write_windows(session, clusters, actor)
        _write_samples(session, clusters, actor, now)
    return counts


def difference(key: Sequence[str], wanted: Iterable[Row], present: Iterable[Row]) -> Difference:
    """Rows are compared whole; those with the same values in the key's columns are the same row."""
    before = {tuple(row[k] for k in key): row for row in present}
    after = {tuple(row[k] for k in key): row for row in wanted}
    return Difference(
        new=[row for k, row in after.items() if k not in before],
        changed=[(before[k], row) for k, row in after.items() if k in before and before[k] != row],
        gone=[row for k, row in before.items() if k not in after],
    )


def _portions(clusters: Sequence[ClusterSpec]) -> Iterator[Sequence[ClusterSpec]]:
    for start in range(0, len(clusters), CLUSTERS_AT_ONCE):
        yield clusters[start : start + CLUSTERS_AT_ONCE]


def _write_clusters(session: Session, clusters: Sequence[ClusterSpec]) -> Difference:
    names = [cluster.name for cluster in clusters]
    _lock(session, names)
    wanted = [_cluster_row(cluster) for cluster in clusters]
    present = _present(session, ClusterRow, CLUSTER_COLUMNS, col(ClusterRow.name), names)
    held = {row["name"] for row in present if row["source"] is not None}
    for cluster in clusters:
        if cluster.name in held and cluster.slurm is None:
            raise Refusal(f"Slurm holds the quotas of {cluster.name}: say so in the file (slurm:), or detach it first")
    _write(session, ClusterRow, difference(["name"], wanted, present))

    wanted = [_island_row(c.name, i.name, i.total_gpus) for c in clusters for i in c.islands]
    present = _present(session, IslandRow, ISLAND_COLUMNS, col(IslandRow.cluster), names)
    _write(session, IslandRow, difference(["cluster", "name"], wanted, present))

    # The quotas of a cluster that a scheduler holds are read from there, but for the first time.
    own = [c for c in clusters if not (c.name in held and c.slurm is not None)]
    wanted = [_quota_row(c.name, q) for c in own for q in c.quotas]
    present = _present(session, QuotaRow, QUOTA_COLUMNS, col(QuotaRow.cluster), [c.name for c in own])
    quotas = difference(["cluster", "team"], wanted, present)
    _write_quotas(session, quotas)
    return quotas


def _lock(session: Session, clusters: Sequence[str]) -> None:
    rows = select(ClusterRow.name).where(col(ClusterRow.name).in_(clusters)).order_by(col(ClusterRow.name))
    session.exec(rows.with_for_update(key_share=True)).all()


def _present(
    session: Session, table: type[Any], columns: Iterable[str], cluster: Any, names: Sequence[str]
) -> list[Row]:
    chosen = [getattr(table, name) for name in columns]
    return [dict(row) for row in session.execute(sa.select(*chosen).where(cluster.in_(names))).mappings()]


def _write(session: Session, table: type[Any], difference: Difference) -> None:
    delete(session, table, difference.gone)
    update(session, table, [after for _, after in difference.changed])
    add(session, table, difference.new)


def _write_quotas(session: Session, difference: Difference) -> None:
    """What is given up comes first, so that a move inside a reservation's limit goes through.

    A quota before those that it is the sum of: while the last of these goes, it would hold jobs with all it had.
    """
    before = [*difference.gone, *(row for row, _ in difference.changed)]
    depth = _depths(before)
    delete(session, QuotaRow, sorted(difference.gone, key=depth))
    lowered = [after for before, after in difference.changed if after["gpus"] <= before["gpus"]]
    lowered.sort(key=depth)
    raised = [after for before, after in difference.changed if after["gpus"] > before["gpus"]]
    update(session, QuotaRow, lowered)
    add(session, QuotaRow, difference.new)
    update(session, QuotaRow, raised)


def _depths(rows: Sequence[Row]) -> Callable[[Row], int]:
    """How far below the top of its tree a row is, by the parents of these rows."""
    parents = {(row["cluster"], row["team"]): row["parent"] for row in rows}

    def depth(row: Row) -> int:
        cluster, at, steps = row["cluster"], row["team"], 0
        while at is not None and steps <= len(parents):  # a circle that another tool left has no top
            at, steps = parents.get((cluster, at)), steps + 1
        return steps

    return depth


def _write_windows(session: Session, clusters: Sequence[ClusterSpec], actor: str) -> None:
    """Of what the file declares; what others declared beside it stays."""
    present = file_windows(session, [c.name for c in clusters])
    changed = [c for c in clusters if set(c.windows) != set(present.get(c.name, ()))]
    stale = (col(WindowRow.cluster).in_([c.name for c in changed]), col(WindowRow.source) == FILE)
    session.execute(sa.delete(WindowRow).where(*stale))
    add(session, WindowRow, [window_row(c.name, window, FILE, actor) for c in changed for window in c.windows])


def _write_samples(session: Session, clusters: Sequence[ClusterSpec], actor: str, now: datetime) -> None:
    health = [health_row(c.name, island, now, actor) for c in clusters for island in c.islands]
    store(session, HealthRow, health)
    usage = [_usage_row(c.name, quota, now) for c in clusters for quota in c.quotas if _usage_known(quota)]
    store(session, UsageRow, usage)


def _write_teams(session: Session, teams: Sequence[Team]) -> None:
    keep(session, TeamRow, [{"name": team.name} for team in teams])
    names = [team.name for team in teams]
    session.execute(sa.delete(ContactRow).where(col(ContactRow.team).in_(names)))
    contacts = [
        {"team": team.name, "position": position, "address": address}
        for team in teams
        for position, address in enumerate(team.contacts)
    ]
    add(session, ContactRow, contacts)


def _cluster_row(cluster: ClusterSpec) -> Row:
    return {
        "name": cluster.name,
        "gpu_model": cluster.gpu_model,
        "gpus_per_node": cluster.gpus_per_node,
        "policy": canonical_json(cluster.policy),
        "source": None if cluster.slurm is None else cluster.slurm.model_dump_json(exclude_defaults=True),
        "health_source": (
            None if cluster.prometheus is None else cluster.prometheus.model_dump_json(exclude_defaults=True)
        ),
    }


def _island_row(cluster: str, name: str, total_gpus: int) -> Row:
    return {"cluster": cluster, "name": name, "total_gpus": total_gpus}


def _quota_row(cluster: str, quota: Quota) -> Row:
    return {
        "cluster": cluster,
        "team": quota.team,
        "gpus": quota.gpus,
        "islands": comma_joined(quota.islands),
        "blocks": ",".join(str(block) for block in quota.protected_blocks),
        "minimum": quota.minimum_gpus,
        "parent": quota.parent,
        "namespaces": comma_joined(quota.namespaces),
        "classes": None if quota.classes is None else ",".join(quota.classes),
    }


def _usage_known(quota: Quota) -> bool:
    return quota.scheduled_gpus is not None or quota.idle_gpus is not None


def _usage_row(cluster: str, quota: Quota, at: datetime) -> Row:
    return {
        "cluster": cluster,
        "team": quota.team,
        "at": at,
        "scheduled_gpus": quota.scheduled,
        "idle_gpus": quota.idle,
        "pending_gpus": quota.pending_gpus,
    }
