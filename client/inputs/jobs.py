"""Reads jobs as people export them: a CSV with a line for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from client.inputs.csv_table import CsvTable
from client.inputs.sentences import first_problem
from models.cluster.classes import classes_text, those_of
from models.cluster.fleet_file import Fleet
from models.cluster.jobs import ClusterJob

_NEEDED = ("cluster", "job", "team", "gpus", "started")
_COUNTS = ("gpus", "idle_gpus")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

ClassesOf = Mapping[tuple[str, str], Sequence[str]]
"""The classes of quotas, by cluster and team."""


def read_jobs(path: str | Path, classes: ClassesOf | None = None) -> tuple[ClusterJob, ...]:
    """Read the jobs of a CSV; empty cells are left out. Errors: BadInput naming the file, the line and the value.

    `classes`: those of the known quotas; a job of such a quota belongs to one of them.
    """
    table = CsvTable.read(path, _NEEDED, [field for field in ClusterJob.model_fields if field not in _NEEDED])
    lines: dict[tuple[object, ...], int] = {}
    jobs = []
    for row in table.records():
        job = _job(table, row)
        own = (classes or {}).get((job.cluster, job.team))
        if own is not None and job.job_class is not None and job.job_class not in own:
            what = f"job_class is {job.job_class!r}, but the quota of {job.team} in {job.cluster} {classes_text(own)}"
            raise table.bad(what)
        for key in ((job.cluster, job.job, job.started), (job.cluster, job.job) if job.ended is None else ()):
            if key and lines.setdefault(key, table.line) != table.line:
                raise table.bad(f"job {job.job!r} is already in line {lines[key]}")
        jobs.append(job)
    return tuple(jobs)


def classes_in(fleet: Fleet) -> ClassesOf:
    """Return the classes of the fleet's quotas; a quota whose policy the file does not give is left to the ledger."""
    classes: dict[tuple[str, str], tuple[str, ...]] = {}
    for cluster in fleet.clusters:
        has_policy = "policy" in fleet.model_fields_set or "classes" in cluster.policy
        of_policy = fleet.policy_of(cluster).classes
        for quota in cluster.quotas:
            if has_policy or quota.classes is not None:
                classes[cluster.name, quota.team] = those_of(quota.classes, of_policy)
    return classes


def _job(table: CsvTable, row: Mapping[str, str]) -> ClusterJob:
    fields: dict[str, object] = {column: text for column, text in row.items() if text}
    fields |= {column: table.count(column, row[column]) for column in _COUNTS if row.get(column)}
    if preempted := row.get("preempted"):
        fields["preempted"] = _TRUTHS.get(preempted.lower(), preempted)
    try:
        return ClusterJob.model_validate(fields)
    except ValidationError as error:
        raise table.bad(first_problem(error, fields).text) from None
