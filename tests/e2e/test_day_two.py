"""The second day with forty clusters; what was typed and printed is what docs/day-two.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.day_two import ROOT, lived, page


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_second_day_goes_as_the_docs_show_it(tmp_path: Path) -> None:
    with lived(tmp_path, lambda _: None) as day:
        told = page(day)
    assert told == (ROOT / "docs" / "day-two.md").read_text(), "run: python -m tests.e2e.day_two --write"
