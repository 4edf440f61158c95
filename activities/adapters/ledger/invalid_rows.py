"""Finds rows beside a cluster's own description that make no sense, for `doctor` to name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.cluster_settings import settings_of
from activities.adapters.ledger.health_and_usage import latest_usage_rows, usage_of
from activities.adapters.ledger.jobs import classes_of, job_of
from activities.bad_rows import SENSELESS, fault_of
from models.base import MOST_GPUS
from models.cluster.classes import classes_text
from models.cluster.fleet_file import merged_policy
from models.cluster.policy import Policy
from models.ledger_tables import ClusterRow, FleetRow, HealthRow, JobRow, RolloutRow, TeamRow, UsageRow
from models.notices import Notify
from models.rollout.stages import Stage
from models.texts import count_text

_Fault = tuple[str, str, Exception]
"""A cluster, the part of its data that makes no sense, and the error."""


def faults_of(session: Session, clusters: Sequence[str], now: datetime) -> dict[str, tuple[str, ...]]:
    """Return sentences by cluster about its policy, its rollout's stage, its usage and jobs, and its old samples."""
    sentences: dict[str, tuple[str, ...]] = {}
    looks = (_policies(session, clusters), _stages(session, clusters), _uses(session, clusters, now))
    for faults in (*looks, _jobs(session, clusters), _classes(session, clusters), _old_samples(session, clusters)):
        for cluster, what, error in faults:
            sentence = fault_of(cluster, what, error)
            if sentence not in sentences.get(cluster, ()):
                sentences[cluster] = (*sentences.get(cluster, ()), sentence)
    return sentences


def team_faults(session: Session) -> dict[str, str]:
    """Return a sentence for each team with an unknown word for `notify`."""
    words = [choice.value for choice in Notify]
    rows = sa.select(col(TeamRow.name), col(TeamRow.notify)).where(col(TeamRow.notify).not_in(words))
    return {
        name: f"team {name} in the ledger does not make sense: notify is {notify!r}, not one of {', '.join(words)}; "
        "until that is corrected, each cluster's policy decides how the team is notified"
        for name, notify in session.connection().execute(rows.order_by(col(TeamRow.name)))
    }


def _policies(session: Session, clusters: Sequence[str]) -> Iterator[_Fault]:
    text = session.scalar(sa.select(col(FleetRow.policy)).where(col(FleetRow.id) == 1))
    rows = sa.select(col(ClusterRow.name), col(ClusterRow.policy)).where(is_among(ClusterRow.name, "clusters"))

    def merge(policy: str) -> None:
        default = Policy() if text is None else Policy.model_validate_json(text)
        merged_policy(default, settings_of(policy))

    policies = session.connection().execute(rows, _parameters(clusters))
    return _find_faults(merge, ((name, "its policy, on the fleet's", policy) for name, policy in policies))


def _stages(session: Session, clusters: Sequence[str]) -> Iterator[_Fault]:
    rows = (
        sa.select(col(RolloutRow.cluster), col(RolloutRow.stage))
        .join(ClusterRow, col(ClusterRow.open_rollout) == col(RolloutRow.id))
        .where(is_among(ClusterRow.name, "clusters"))
    )
    stages = session.connection().execute(rows, _parameters(clusters))
    return _find_faults(Stage, ((cluster, "its rollout", stage) for cluster, stage in stages))


def _uses(session: Session, clusters: Sequence[str], now: datetime) -> Iterator[_Fault]:
    uses = latest_usage_rows(session, clusters, now)
    return _find_faults(usage_of, ((row.cluster, f"the use of team {row.team}", row) for row in uses))


def _jobs(session: Session, clusters: Sequence[str]) -> Iterator[_Fault]:
    running = select(JobRow).where(is_among(JobRow.cluster, "clusters"), col(JobRow.ended).is_(None))
    jobs = session.exec(running, params=_parameters(clusters))
    return _find_faults(job_of, ((row.cluster, f"its job {row.job}", row) for row in jobs))


def _classes(session: Session, clusters: Sequence[str]) -> Iterator[_Fault]:
    """Find running jobs of a class that their quota does not have."""
    has = classes_of(session, clusters)
    named = (col(JobRow.cluster), col(JobRow.team), col(JobRow.job_class))
    rows = (
        sa.select(*named, sa.func.count())
        .where(is_among(JobRow.cluster, "clusters"), col(JobRow.ended).is_(None), col(JobRow.job_class).is_not(None))
        .group_by(*named)
        .order_by(*named)
    )
    for cluster, team, job_class, count in session.connection().execute(rows, _parameters(clusters)):
        own = has.get((cluster, team), ())
        if job_class not in own:
            are, them = ("1 job is", "it") if count == 1 else (f"{count} jobs are", "them")
            fault = (
                f"{are} of class {job_class!r}, but the team's quota {classes_text(own)}: Backstop counts "
                f"{them} in the strongest class"
            )
            yield cluster, f"the work of team {team}", ValueError(fault)


def _old_samples(session: Session, clusters: Sequence[str]) -> Iterator[_Fault]:
    """Find samples from before the ledger's constraints; each table has an index of such rows alone."""
    for table, gpus, what in (
        (HealthRow, col(HealthRow.total_gpus), "its health's history"),
        (UsageRow, col(UsageRow.scheduled_gpus), "its use's history"),
    ):
        cluster: Any = col(table.cluster)
        rows = sa.select(cluster, sa.func.count()).where(gpus > sa.text(str(MOST_GPUS))).group_by(cluster)
        for name, count in session.connection().execute(
            rows.where(is_among(cluster, "clusters")), _parameters(clusters)
        ):
            yield (
                name,
                what,
                ValueError(f"Backstop leaves out {count_text(count, 'sample')} of more than {MOST_GPUS:,} GPUs"),
            )


def _find_faults(build: Callable[[Any], object], parts: Iterable[tuple[str, str, Any]]) -> Iterator[_Fault]:
    """Yield the parts that nothing can be built of. `parts`: their clusters, what they are, and their rows."""
    for cluster, what, row in parts:
        try:
            build(row)
        except SENSELESS as error:
            yield cluster, what, error


def _parameters(clusters: Sequence[str]) -> dict[str, list[str]]:
    return {"clusters": list(clusters)}
