"""Classes of jobs inside one quota: the weaker waits and yields first. They mean nothing between teams.

Source: docs/design.md, "Jobs and flex"; docs/adr/0050-classes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from models.base import Name

MOST_CLASSES = 8
_Item = TypeVar("_Item")


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if "," in name:
            raise ValueError(f"the name {name!r} in classes has a comma: commas separate names")
        if names.count(name) > 1:
            raise ValueError(f"classes names {name!r} twice")
    return names


Classes = Annotated[tuple[Name, ...], Field(max_length=MOST_CLASSES), AfterValidator(_each_once)]
"""The classes, the strongest first; none: all jobs are alike."""


def rank_of(job_class: str | None, classes: Sequence[str]) -> int:
    """Return the rank: the larger, the weaker. An unknown class ranks as the strongest: a misspelt word kills no
    job.
    """
    return classes.index(job_class) if job_class in classes else 0


def those_of(own: tuple[str, ...] | None, of_policy: tuple[str, ...]) -> tuple[str, ...]:
    """Return a quota's classes: its own, else those of its cluster's policy."""
    return of_policy if own is None else own


def classes_text(classes: Sequence[str]) -> str:
    """Return a team's classes, as the end of a sentence on it."""
    names = ", ".join(classes)
    return f"has the class{'es' * (len(classes) > 1)} {names}" if classes else "has no classes"


def in_places(ordered: Sequence[_Item], team: Callable[[_Item], str], key: Callable[[_Item], int]) -> list[_Item]:
    """Keep each team's places in the order, and sort its own items within them: classes mean nothing between teams."""
    mine: dict[str, list[_Item]] = {}
    for one in ordered:
        mine.setdefault(team(one), []).append(one)
    turns = {name: iter(sorted(own, key=key)) for name, own in mine.items()}
    return [next(turns[team(one)]) for one in ordered]
