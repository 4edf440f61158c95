"""The second day with forty clusters; what was typed and printed is what docs/day-two.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.day_two import ROOT, lived, page


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_second_day_goes_as_the_docs_show_it(tmp_path: Path) -> None:
    with lived(tmp_path, lambda _: None) as day:
        told = page(day)
    shown = (ROOT / "docs" / "day-two.md").read_text()
    assert _steady(told) == _steady(shown), "run: python -m tests.e2e.day_two --write"


def _steady(page: str) -> str:
    """Which notices the hour of digests finds waiting is a matter of how fast the machine is."""
    return page.partition("\n## One digest a day")[0]
