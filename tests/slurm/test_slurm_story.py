"""The whole story on a real Slurm; what was typed and printed is what docs/slurm-story.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.slurm.lab import Lab, running
from tests.slurm.story import HEAD, ROOT, Story, tell

pytestmark = pytest.mark.nightly  # a real Slurm


def test_a_whole_rollout_is_seen_in_slurm_and_the_docs_show_it(lab: Lab, tmp_path: Path) -> None:
    assert lab.idle(), "the packages are there"
    with running({"island1": 3, "island2": 3}) as own:
        story = Story(own, tmp_path / "home", lambda _: None)
        with story.up():
            tell(story)
    shown = (ROOT / "docs" / "slurm-story.md").read_text()
    assert _steady(HEAD + "\n".join(story.lines) + "\n") == _steady(shown), "run: python -m tests.slurm.story --write"


def _steady(text: str) -> str:
    """Spaces of uniq, and what `why` counted at that second, are no part of it."""
    without = re.sub(r"(\$ backstop why .*\n)(?:.*\n)*?```", r"\1```", text)
    return re.sub(r"[ \t]+", " ", without)
