"""Classes on a real Slurm as people see them; what was typed and printed is what docs/slurm-classes.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.slurm.classes_story import HEAD, tell
from tests.slurm.lab import Lab, running
from tests.slurm.story import ROOT, Story

pytestmark = pytest.mark.nightly  # a real Slurm


def test_engines_yield_to_training_of_their_account_alone_and_the_docs_show_it(lab: Lab, tmp_path: Path) -> None:
    assert lab.idle(), "the packages are there"
    with running({"island1": 3, "island2": 3}) as own:
        story = Story(own, tmp_path / "home", lambda _: None)
        with story.up():
            tell(story)
    shown = (ROOT / "docs" / "slurm-classes.md").read_text()
    told = HEAD + "\n".join(story.lines) + "\n"
    assert _steady(told) == _steady(shown), "run: python -m tests.slurm.classes_story --write"


def _steady(text: str) -> str:
    """Remove what Slurm chooses: which of several equal jobs goes, which node fails, and whether it has looked again at
    a job that it has just put back into the queue (BeginTime, then None)."""
    alike = re.sub(r"\b(grade|sweep)-\d\b|\bgpu\d{3}\b", r"\1", text)
    alike = alike.replace(" PENDING None ", " PENDING BeginTime ")
    return re.sub(
        r"(?<=```console\n)(\$ s(?:queue|acct) .*\n)((?:.*\n)*?)(?=```)",
        lambda block: block[1] + "".join(sorted(block[2].splitlines(keepends=True))),
        alike,
    )
