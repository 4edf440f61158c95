"""Classes of jobs inside one quota: the weaker waits and yields first. Between teams they say nothing.

Source: DESIGN.md, "Jobs and flex"; docs/adr/0050-classes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from models.base import Name

MOST = 8


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if "," in name:
            raise ValueError(f"classes has {name!r}, and commas separate their names")
        if names.count(name) > 1:
            raise ValueError(f"classes names {name!r} twice")
    return names


Classes = Annotated[tuple[Name, ...], Field(max_length=MOST), AfterValidator(_each_once)]
"""The strongest first; none: all jobs are alike."""


def rank_of(job_class: str | None, classes: Sequence[str]) -> int:
    """The larger, the weaker. One that is not known there is as strong as the strongest: nothing dies for a word."""
    return classes.index(job_class) if job_class in classes else 0
