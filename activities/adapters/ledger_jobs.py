"""Jobs by name in the ledger. Exporters may write the table by plain SQL; none of it moves a generation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlmodel import col, or_, select

from activities.adapters.ledger_bulk import store
from activities.adapters.ledger_db import Database
from models.errors import BadInput
from models.jobs import ClusterJob, Job, RunsOn
from models.tables import ClusterRow, JobRow

_MOST = 20_000


class LedgerJobs:
    """JobPort on the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def jobs(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        rows = (
            select(JobRow)
            .where(col(JobRow.cluster).in_(clusters))
            .where(or_(col(JobRow.ended).is_(None), col(JobRow.ended) >= since))
            .order_by(col(JobRow.cluster), col(JobRow.started), col(JobRow.job))
            .limit(_MOST)
        )
        found: dict[str, list[Job]] = {}
        with self._database.reading() as session:
            for row in session.exec(rows):
                found.setdefault(row.cluster, []).append(_job(row))
        return {cluster: tuple(jobs) for cluster, jobs in found.items()}

    def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Errors: BadInput for a cluster that the ledger does not have; nothing is stored then."""
        rows = {(j.cluster, j.job, j.started): _row(j) for j in jobs}
        with self._database.writing() as session:
            known = set(session.exec(select(ClusterRow.name)))
            unknown = sorted({j.cluster for j in jobs} - known)
            if unknown:
                raise BadInput(f"a job names cluster {unknown[0]!r}, which the ledger does not have")
            store(session, JobRow, list(rows.values()))
        return len(rows)

    def keep(self, cluster: str, running: Sequence[ClusterJob], waiting: Collection[str], now: datetime) -> None:
        """These run, and what ran before and does not is over: preempted, where it waits to run again."""
        there = {(j.job, j.started) for j in running}
        runs = (col(JobRow.cluster) == cluster, col(JobRow.ended).is_(None))
        with self._database.writing() as session:
            for row in session.exec(select(JobRow).where(*runs)).all():
                if (row.job, row.started) not in there:
                    row.ended = max(now, row.started)
                    row.preempted = row.job in waiting
                    session.add(row)
            store(session, JobRow, [_row(job) for job in running])


def _row(job: ClusterJob) -> dict[str, Any]:
    return {**job.model_dump(exclude={"on"}), "runs_on": job.on.value}


def _job(row: JobRow) -> Job:
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
    )
