"""A cluster brought up on a real Slurm as people see it; what was typed is what docs/bringup-story.md shows."""

from __future__ import annotations

import re

import pytest

from tests.slurm.bringup_story import HEAD, tell_bringup, told_by
from tests.slurm.lab import Lab
from tests.slurm.story import ROOT

pytestmark = pytest.mark.nightly  # a real Slurm


def test_a_cluster_comes_from_an_entry_to_monitored_by_two_touches_and_the_docs_show_it(lab: Lab) -> None:
    assert lab.idle(), "the packages are there"
    printed: list[str] = []
    with told_by(printed.append) as story:
        tell_bringup(story)
    waits = [line for line in printed if line.startswith("  ... ")]
    assert any(line.startswith("  ... provisioning: ") for line in waits), "a file shows that it goes on"
    assert not set(waits) & set(story.lines), "and the page is what was typed and printed"
    shown = (ROOT / "docs" / "bringup-story.md").read_text()
    told = HEAD + "\n".join(story.lines) + "\n"
    assert _steady(told) == _steady(shown), "run: python -m tests.slurm.bringup_story --write"


def _steady(page: str) -> list[str]:
    """Remove what depends on the machine's speed: waits, and how far jobs and a rollout's stage were read."""
    lines = [re.sub(r" +", " ", line) for line in page.splitlines() if not line.startswith("waited for")]
    alike = [line.replace("jobs of 1 team run", "1 job runs") for line in lines]
    alike = [re.sub(r"(rollout retire-lab-1 of capacity is) \w+", r"\1 buffered", line) for line in alike]
    return [re.sub(r"\b\d+[smh]\b", "2s", line) for line in alike]
