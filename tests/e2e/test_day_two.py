"""The second day with forty clusters; what was typed and printed is what docs/day-two.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.day_two import AFTER, HEAD, ROOT, in_order, lived, page


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_second_day_goes_as_the_docs_show_it(tmp_path: Path) -> None:
    with lived(tmp_path, lambda _: None) as day:
        told = page(day)
    shown = (ROOT / "docs" / "day-two.md").read_text()
    assert _steady(told) == _steady(shown), "run: python -m tests.e2e.day_two --write"


def test_what_the_page_says_by_itself_is_what_the_story_writes() -> None:
    shown = (ROOT / "docs" / "day-two.md").read_text()
    assert shown.startswith(HEAD)
    assert shown.endswith(AFTER), "a sentence of the page is changed in tests/e2e/day_two.py"


def test_the_news_of_a_digest_stand_in_the_same_order_whenever_they_came() -> None:
    late = "- 24 November, 14:22 UTC: h100-03: the quota is now 141 GPUs\n    19 fewer.\n"
    soon = "- h100-04: the quota is now 141 GPUs\n    19 fewer.\n"
    head, tail = "Hello research,\n\nWhat happened (2):\n\n", "\nQuestions? Ask tpm.\n"
    lines = in_order(f"{head}{soon}{late}{tail}")
    assert lines == in_order(f"{head}{late}{soon}{tail}")
    assert lines[4:6] == ["- h100-03: the quota is now 141 GPUs", "    19 fewer."]
    assert lines[-1] == "Questions? Ask tpm."
    alone = "Hello research,\n\nAbout these 2 GPUs:\n- b\n- a\n"
    assert in_order(alone) == alone.splitlines()


def _steady(page: str) -> str:
    """Remove the notices that wait for the hourly digest: which ones wait depends on how fast the machine is."""
    return page.partition("\n## One digest a day")[0]
