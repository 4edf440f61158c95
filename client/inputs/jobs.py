"""Jobs as people export them: a CSV with a line for each."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from pydantic import ValidationError

from client.inputs.documents import content, decoded
from client.inputs.sentences import first_problem
from models.cluster.jobs import ClusterJob
from models.errors import BadInput

_NEEDED = ("cluster", "job", "team", "gpus", "started")
_COUNTS = ("gpus", "idle_gpus")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read_jobs(path: str | Path) -> tuple[ClusterJob, ...]:
    """The jobs of a CSV; empty cells are left out. Errors: BadInput naming the file, the line and the value."""
    name, raw = content(path)
    rows = csv.DictReader(io.StringIO(decoded(name, raw)), strict=True)
    known = set(ClusterJob.model_fields)
    try:
        columns = rows.fieldnames or ()
        for column in _NEEDED:
            if column not in columns:
                raise BadInput(f"{name}, line 1: there is no column {column}")
        for column in columns:
            if column not in known:
                raise BadInput(f"{name}, line 1: column {column!r} is none of {', '.join(ClusterJob.model_fields)}")
        found: dict[tuple[object, ...], int] = {}
        jobs = []
        for row in rows:
            job = _job(name, rows.line_num, row)
            for key in ((job.cluster, job.job, job.started), (job.cluster, job.job) if job.ended is None else ()):
                if key and found.setdefault(key, rows.line_num) != rows.line_num:
                    raise BadInput(f"{name}, line {rows.line_num}: job {job.job!r} is in line {found[key]} already")
            jobs.append(job)
        if not jobs:
            raise BadInput(f"{name} has no job in it")
        return tuple(jobs)
    except csv.Error as error:
        raise BadInput(f"{name}, line {rows.line_num}: {error}") from None


def _job(name: str, line: int, row: dict[str | None, str | None]) -> ClusterJob:
    if None in row or None in row.values():
        raise BadInput(f"{name}, line {line}: it has more or fewer cells than the first line")
    given: dict[str, object] = {k: v for k, v in row.items() if k is not None and v}
    for column in _COUNTS:
        text = given.get(column)
        if isinstance(text, str) and re.fullmatch(r"0|[1-9]\d{0,10}", text, re.ASCII):
            given[column] = int(text)
    told = given.get("preempted")
    if isinstance(told, str):
        given["preempted"] = _TRUTHS.get(told.lower(), told)
    try:
        return ClusterJob.model_validate(given)
    except ValidationError as error:
        raise BadInput(f"{name}, line {line}: {first_problem(error, given).text}") from None
