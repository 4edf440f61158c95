"""The ledger's content as the fleet file that would import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.base import Model
from models.cluster.fleet_diff import SOURCES, ClusterNow
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.readings import Present
from models.cluster.windows import Window


class FleetPage(Model):
    """Some clusters as a fleet file has them; the first page also has the fleet's own fields."""

    clusters: tuple[dict[str, Any], ...]
    wrong: dict[str, str]
    """By cluster with invalid rows: why they are invalid."""
    cut_floors: dict[str, tuple[str, ...]]
    """By cluster: teams whose floors are above their value, which no file can express."""
    policy: dict[str, Any]
    teams: tuple[Team, ...]
    last: str
    """The page's last cluster; empty: this is the last page."""


def cluster_document(now: ClusterNow, health: Mapping[str, Island]) -> dict[str, Any]:
    """Return the cluster as a file has it, fields in the models' order, quotas by team; defaults are left out.

    `health`: the latest look by island; without one nothing counts as healthy. Use is measured, and not written.
    """
    document: dict[str, Any] = {"name": now.name}
    if now.gpu_model is not None:
        document["gpu_model"] = now.gpu_model
    if now.gpus_per_node != 8:
        document["gpus_per_node"] = now.gpus_per_node
    document["islands"] = [_island(name, now.islands[name], health.get(name)) for name in sorted(now.islands)]
    if now.policy:
        document["policy"] = now.policy
    most = _most_of_floors(now)
    document["quotas"] = [_quota(quota, most[quota.team]) for quota in now.quotas]
    if now.windows:
        document["windows"] = [window.model_dump(mode="json", exclude_none=True) for window in now.windows]
    for field in SOURCES:
        source = getattr(now, field)
        if source is not None:
            document[field] = source.model_dump(mode="json", exclude_defaults=True)
    return document


def _island(name: str, total_gpus: int, seen: Island | None) -> dict[str, Any]:
    healthy = 0 if seen is None else min(seen.healthy_gpus, total_gpus)
    island = {"name": name, "total_gpus": total_gpus, "healthy_gpus": healthy}
    if seen is not None and seen.block_gpus is not None:
        island["block_gpus"] = min(seen.block_gpus, healthy)
    return island


def _most_of_floors(now: ClusterNow) -> dict[str, int]:
    """Return by team the largest floor that a file may give it: the least of its value and those above it."""
    by_team, most = now.by_team, {}
    for quota in now.quotas:
        path: list[str] = []
        at: str | None = quota.team
        while at in by_team and at not in path:  # a circle that another tool left has no top
            path.append(at)
            at = by_team[at].parent
        most[quota.team] = min(by_team[team].gpus for team in path)
    return most


def _quota(present: Present, most: int) -> dict[str, Any]:
    """Return the quota with its floors cut to a lowered value, its own or one above: else no import takes the file."""
    fitting = present.model_copy(update={"gpus": most}).as_quota()
    return fitting.model_dump(mode="json", exclude_defaults=True) | {"gpus": present.gpus}


def cut_floors(now: ClusterNow) -> list[str]:
    """Return teams whose floors no file can express, because their value, or one that they are part of, is lower."""
    most = _most_of_floors(now)
    return [
        quota.team for quota in now.quotas if max(quota.minimum_gpus, sum(quota.protected_blocks)) > most[quota.team]
    ]


def in_file_order(cluster: dict[str, Any]) -> dict[str, Any]:
    """Sort the fields of a cluster's document from the archive, whose keys are sorted by name, in the models' order."""
    ordered = _by_fields(cluster, ClusterSpec)
    for field, model in (("islands", Island), ("quotas", Quota), ("windows", Window)):
        if field in ordered:
            ordered[field] = [_by_fields(each, model) for each in ordered[field]]
    return ordered


def _by_fields(document: dict[str, Any], model: type[Model]) -> dict[str, Any]:
    return {field: document[field] for field in model.model_fields if field in document}
