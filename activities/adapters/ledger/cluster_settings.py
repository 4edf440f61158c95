"""Reads a cluster's GPU model, policy and contacts from the registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import is_among
from activities.bad_rows import making_sense
from activities.ports.by_cluster import ByCluster
from models.cluster.fleet_file import merged_policy
from models.cluster.policy import Policy
from models.errors import Refusal
from models.ledger_tables import ClusterRow, ContactRow, FleetRow, QuotaRow
from models.questions import ClusterFacts
from models.texts import brief

_KEPT = 10_000
"""The number of clusters whose parsed policy is cached by its text."""


def facts_of(session: Session, clusters: Sequence[str]) -> ByCluster[ClusterFacts]:
    """Return each cluster's facts, in one query, without its contacts; a senseless cluster is left out and named."""
    answer: ByCluster[ClusterFacts] = ByCluster()
    for row in session.connection().execute(_facts(), {"clusters": list(clusters)}):
        try:
            answer[row.name] = _facts_in(*row)
        except Refusal as error:
            answer.senseless[row.name] = error.message
    return answer


@lru_cache(maxsize=_KEPT)
def _facts_in(
    name: str, gpu_model: str | None, gpus_per_node: int, policy: str, completed_rollouts: int, of_fleet: str | None
) -> ClusterFacts:
    """Return the facts. Errors: Refusal for rows that make no sense."""
    with making_sense(name, "the fleet's policy"):
        default = _default(of_fleet)
    with making_sense(name, "its policy"):
        return ClusterFacts(
            name=name,
            gpu_model=gpu_model,
            gpus_per_node=gpus_per_node,
            policy=merged_policy(default, settings_of(policy)),
            completed_rollouts=completed_rollouts,
            contacts={},
        )


@lru_cache(maxsize=4)
def _default(of_fleet: str | None) -> Policy:
    return Policy() if of_fleet is None else Policy.model_validate_json(of_fleet)


def settings_of(policy: str) -> dict[str, Any]:
    """Parse a policy. Errors: ValueError for what is no JSON object."""
    settings = json.loads(policy)
    if not isinstance(settings, dict):
        raise ValueError(f"must map names of settings to values, not be {brief(policy)}")
    return settings


def contacts_in(session: Session, cluster: str) -> dict[str, tuple[str, ...]]:
    """Return the contacts of every team with a quota in the cluster, teams without an address included."""
    contacts: dict[str, tuple[str, ...]] = {}
    for team, address in session.connection().execute(_addresses(), {"cluster": cluster}):
        contacts[team] = contacts.get(team, ()) if address is None else (*contacts.get(team, ()), address)
    return contacts


@cache
def _facts() -> sa.Select[Any]:
    columns = ("name", "gpu_model", "gpus_per_node", "policy", "completed_rollouts")
    fleet = sa.select(col(FleetRow.policy)).where(col(FleetRow.id) == 1).scalar_subquery()
    return sa.select(*(getattr(ClusterRow, name) for name in columns), fleet.label("fleet_policy")).where(
        is_among(ClusterRow.name, "clusters")
    )


@cache
def _addresses() -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(col(QuotaRow.team), col(ContactRow.address))
        .select_from(QuotaRow)
        .outerjoin(ContactRow, col(ContactRow.team) == col(QuotaRow.team))
        .where(col(QuotaRow.cluster) == sa.bindparam("cluster"))
        .order_by(col(QuotaRow.team), col(ContactRow.position))
    )
