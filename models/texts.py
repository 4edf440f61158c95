"""Phrases that sentences share: a count with its noun, the verb that agrees, a long list or text cut short."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 120
_BRIEF.maxlong = 40


def brief(value: Any) -> str:
    """Return the value as Python writes it, cut short where it is long or deep: a refusal travels, and is read."""
    return _BRIEF.repr(value)


_CUT = " ..."


def shorten(text: str, most_bytes: int) -> str:
    """Return the text, cut short with a mark if it has more than so many bytes in UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= most_bytes else data[: most_bytes - len(_CUT)].decode(errors="ignore") + _CUT


_NAMED = 20


def some_of(texts: Sequence[str], most: int = _NAMED, *, by: Literal[", ", "; "] = ", ") -> str:
    """Join the first texts and say how many more there are: a sentence cannot name thousands of teams."""
    more = len(texts) - most
    return by.join(texts) if more <= 0 else f"{by.join(texts[:most])}{by.removeprefix(',')}and {more} more"


def count_text(count: int, what: str) -> str:
    """Return a count with its noun: 1 cluster, 3 clusters, 1,200 clusters."""
    if count == 1:
        return f"{count} {what}"
    return f"{count:,} {what[:-1]}ies" if what.endswith("ry") else f"{count:,} {what}s"


def gpus_text(count: int) -> str:
    return count_text(count, "GPU")


def verb_of(count: int, one: str = "is", many: str = "are") -> str:
    """Return the verb that agrees with a count: 1 is, 3 are."""
    return one if count == 1 else many


def spoken_for_text(count: int) -> str:
    return f"{count:,} {verb_of(count)} spoken for"


def lacks_text(shortage: Mapping[str, int]) -> str:
    """Return a text such as `a lacks 4 GPUs, b lacks 1 GPU`. A short team that lacks none has an unplaced block."""

    def text(team: str, gpus: int) -> str:
        return f"{team} lacks {gpus_text(gpus)}" if gpus else f"{team} has a protected block that no island holds"

    return some_of([text(team, gpus) for team, gpus in shortage.items()])
