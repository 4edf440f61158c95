"""How many inputs the fuzzed tests have tried, by what they were: said at the end of a run."""

from __future__ import annotations

from collections import Counter

TRIED: Counter[str] = Counter()
SAID: dict[str, str] = {}
"""Other figures that a run ends with, by what they are of."""
