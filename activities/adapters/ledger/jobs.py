"""Jobs by name in the ledger. Exporters may write the table by plain SQL; none of it moves a generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, or_, select

from activities.adapters.ledger.bulk import is_among, store
from activities.adapters.ledger.database import LedgerPart
from activities.bad_rows import those_that_do
from models.cluster.classes import classes_text
from models.cluster.jobs import ClusterJob, Job, RunsOn
from models.cluster.quota import why_no_jobs
from models.cluster.readings import CLOCK_SKEW
from models.errors import BadInput
from models.ledger_tables import ClusterRow, IslandRow, JobRow, QuotaRow
from models.texts import gpus_text

_MOST = 20_000
QUOTA_CLASSES = sa.table("quota_classes", *map(sa.column, ("cluster", "team", "class", "rank")))
"""A view of the ledger, which schedulers may read too (docs/flex.md)."""


class LedgerJobs(LedgerPart):
    def jobs(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        rows = (
            select(JobRow)
            .where(is_among(JobRow.cluster, "clusters"))
            .where(or_(col(JobRow.ended).is_(None), col(JobRow.ended) >= since))
            .order_by(col(JobRow.cluster), col(JobRow.started), col(JobRow.job))
            .limit(_MOST)
        )
        rows_of: dict[str, list[JobRow]] = {}
        with self._database.reading() as session:
            for row in session.exec(rows, params={"clusters": list(clusters)}):
                rows_of.setdefault(row.cluster, []).append(row)
            return {cluster: tuple(those_that_do(job_rows, job_of)) for cluster, job_rows in rows_of.items()}

    def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Store the jobs. Errors: BadInput for a cluster that the ledger does not have; nothing is stored then."""
        rows = {(job.cluster, job.job, job.started): _row(job) for job in jobs}
        with self._database.begin() as session:
            _refuse_impossible(session, jobs, self._database.now())
            store(session, JobRow, list(rows.values()))
        return len(rows)

    def keep(
        self, cluster: str, running: Sequence[ClusterJob], requeued: Mapping[str, datetime | None], now: datetime
    ) -> None:
        """Store the running jobs, and end those that ran before; one of these that was requeued was preempted.

        `requeued`: jobs that wait, or run again, and since when they have been back in the queue; None: unknown.
        """
        there = {(j.job, j.started) for j in running}
        runs = (col(JobRow.cluster) == cluster, col(JobRow.ended).is_(None))
        with self._database.begin() as session:
            for row in session.exec(select(JobRow).where(*runs)).all():
                if (row.job, row.started) not in there:
                    since = requeued.get(row.job)
                    is_later = since is not None and row.started <= since <= now
                    row.ended = since if is_later else max(now, row.started)
                    row.preempted = row.job in requeued
                    session.add(row)
            store(session, JobRow, [_row(job) for job in running])


def _refuse_impossible(session: Session, jobs: Sequence[ClusterJob], now: datetime) -> None:
    """Raise BadInput for an unknown place or team, more GPUs than there are, and times to come."""
    clusters = {j.cluster for j in jobs}
    there = set(session.exec(select(ClusterRow.name).where(col(ClusterRow.name).in_(clusters))))
    parents = set(session.exec(select(QuotaRow.cluster, QuotaRow.parent).where(col(QuotaRow.cluster).in_(clusters))))
    teams = set(session.exec(select(QuotaRow.cluster, QuotaRow.team).where(col(QuotaRow.cluster).in_(clusters))))
    totals: dict[tuple[str, str | None], int] = {}
    for row in session.exec(select(IslandRow).where(col(IslandRow.cluster).in_(clusters))):
        totals[row.cluster, row.name] = row.total_gpus
        totals[row.cluster, None] = totals.get((row.cluster, None), 0) + row.total_gpus
    classes = classes_of(session, clusters) if any(j.job_class is not None for j in jobs) else {}
    for job in jobs:
        what = f"job {job.job!r} of cluster {job.cluster!r}"
        if job.cluster not in there:
            raise BadInput(f"a job names cluster {job.cluster!r}, which the ledger does not have")
        if (job.cluster, job.team) not in teams or (job.cluster, job.team) in parents:
            why = why_no_jobs(job.team, has_children=(job.cluster, job.team) in parents)
            raise BadInput(f"{what} names team {job.team!r}: {why}")
        if (job.cluster, job.island) not in totals:
            raise BadInput(f"{what} names island {job.island!r}, which the cluster does not have")
        if job.gpus > totals[job.cluster, job.island]:
            where = "the cluster" if job.island is None else f"island {job.island!r}"
            raise BadInput(
                f"{what} has {gpus_text(job.gpus)}, more than the {totals[job.cluster, job.island]} of {where}"
            )
        own = classes.get((job.cluster, job.team), ())
        if job.job_class is not None and job.job_class not in own:
            raise BadInput(f"{what} is of class {job.job_class!r}, but the quota of {job.team} {classes_text(own)}")
        if max(job.started, job.ended or job.started) > now + CLOCK_SKEW:
            raise BadInput(f"{what} is dated ahead of now ({now:%Y-%m-%d %H:%M:%SZ})")


def classes_of(session: Session, clusters: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """Return each team's classes by cluster, the strongest first, for those that have any."""
    classes: dict[tuple[str, str], list[str]] = {}
    rows = sa.select(*QUOTA_CLASSES.c).order_by(QUOTA_CLASSES.c.rank)
    for cluster, team, name, _ in session.execute(rows.where(QUOTA_CLASSES.c.cluster.in_(clusters))):
        classes.setdefault((cluster, team), []).append(name)
    return classes


def _row(job: ClusterJob) -> dict[str, Any]:
    return {**job.model_dump(exclude={"on"}), "runs_on": job.on.value}


def job_of(row: JobRow) -> Job:
    return Job(
        job=row.job,
        team=row.team,
        gpus=row.gpus,
        idle_gpus=row.idle_gpus,
        on=RunsOn(row.runs_on),
        island=row.island,
        started=row.started,
        ended=row.ended,
        preempted=row.preempted,
        job_class=row.job_class,
    )
