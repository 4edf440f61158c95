"""Counts the inputs that the fuzzed tests try, and have tried, by kind: printed at the end of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
TRIED: Counter[str] = Counter()
SAID: dict[str, str] = {}
"""Other figures that a run ends with, by what they are of."""


def examples(all_: int) -> int:
    """Return how many examples a test tries: a sixteenth of them; with `make nightly` (TRIES=all) all."""
    return all_ if os.environ.get("TRIES") == "all" else max(5, all_ // 16)


def some(rows: Sequence[T], from_: int = 0) -> Sequence[T]:
    """Every fourth row, which first by `from_`; `make nightly` takes all."""
    return rows if os.environ.get("TRIES") == "all" else rows[from_ % 4 :: 4]
