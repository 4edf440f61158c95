"""The demo's output while a rollout moves on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from models.rollout.stages import Stage
from tests.unit.cli_fakes import status
from workers.demo_harness import Story


@pytest.mark.parametrize(
    ("teams", "end"),
    [
        (1, "; AT RISK: team-0 has 9 healthy of 10\n"),
        (3, "team-2 has 9 healthy of 10\n"),
        (8, "team-2 has 9 healthy of 10 and 5 more\n"),
    ],
)
def test_it_says_how_many_more_teams_are_at_risk_than_it_names(
    teams: int, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (risk,) = status().at_risk
    at_risk = tuple(risk.but(team=f"team-{n}", quota_gpus=10, backing_gpus=9) for n in range(teams))
    story = Story(Path(), cast("Any", None), "tpm")
    story.narrate(status(Stage.MONITORED, at_risk=at_risk))
    out = capsys.readouterr().out
    assert out.endswith(end)
    assert out.count("9 healthy of 10") == min(teams, 3)
