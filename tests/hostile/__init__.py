"""Rubbish from outside, thrown at the real adapters.

A file for each source (`test_prometheus.py`, `test_slurm.py`, ...). Its table is a list of `Rubbish`; each row is run
against the real adapter with two healthy clusters (teams, series, contacts) beside it, whose answer must stay as it is.
A new source joins with a file of its own: `threw(SOURCE)` counts what was thrown and is said at the end of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.tried import TRIED


@dataclass(frozen=True)
class Rubbish:
    """One thing that a source may say or a person may write. `what`: in a few words; `value`: as it comes in."""

    what: str
    value: Any


def table(rows: list[Rubbish]) -> pytest.MarkDecorator:
    """`@table(ROWS)`: the test takes each row as `rubbish`."""
    return pytest.mark.parametrize("rubbish", rows, ids=[row.what for row in rows])


def threw(source: str) -> None:
    """Count one row that was thrown at `source` and withstood: call it at the end of the test."""
    TRIED[f"pieces of rubbish at {source} withstood"] += 1


NAMES = [
    Rubbish("no name", ""),
    Rubbish("a space", " "),
    Rubbish("an apostrophe", "o'neil"),
    Rubbish("a quotation mark", 'a"b'),
    Rubbish("SQL", "x'; DROP TABLE quota; --"),
    Rubbish("200 emoji", "\N{FIRE}" * 200),
    Rubbish("10,000 letters", "x" * 10_000),
    Rubbish("a line break", "a\nb"),
    Rubbish("a NUL", "a\0b"),
    Rubbish("right to left", "\N{RIGHT-TO-LEFT OVERRIDE}gpu"),
    Rubbish("a lone surrogate", "\udcff"),
    Rubbish("a formula", '=HYPERLINK("http://example.com")'),
    Rubbish("markup", "<script>alert(1)</script>"),
    Rubbish("a path", "../../etc/passwd"),
    Rubbish("a word of Slurm", "Permission denied State=IDLE"),
]
COUNTS = [
    Rubbish("a negative count", -1),
    Rubbish("a fraction", 0.5),
    Rubbish("NaN", float("nan")),
    Rubbish("infinity", float("inf")),
    Rubbish("twenty million", 20_000_000),
    Rubbish("beyond 64 bits", 2**64),
    Rubbish("a count as text", "7"),
    Rubbish("text", "many"),
    Rubbish("true", True),
    Rubbish("nothing", None),
    Rubbish("a list", [1]),
]
TIMES = [
    Rubbish("the word now", "now"),
    Rubbish("the word infinity", "infinity"),
    Rubbish("no time", ""),
    Rubbish("the epoch", "1970-01-01T00:00:00+00:00"),
    Rubbish("year 9999", "9999-12-31T23:59:59+00:00"),
    Rubbish("a time without zone", "2026-01-01T00:00:00"),
    Rubbish("milliseconds", 1_767_225_600_000),
    Rubbish("a day that is none", "2026-02-30T00:00:00+00:00"),
]
