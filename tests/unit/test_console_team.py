"""What a team's page says first."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from models.cluster.island import Island
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.reports.why import WhyAnswers, explain_team
from web.console.pages.teams import _lead

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("healthy", "other_uses", "lead"),
    [
        # 60 and 60 are promised on 119: one of these has no hardware, and 39 of the other team's are unused.
        (119, 21, ["1 GPU of it has no healthy hardware, and can be used only while other teams leave part"]),
        (100, 21, ["10 GPUs of it have no healthy hardware, and can be used only while other teams leave part"]),
        (120, 21, []),
        (100, 60, ["What keeps the most from starting, 20 in lab:"]),
    ],
)
def test_a_promise_without_hardware_is_said_also_where_others_leave_theirs_unused(
    healthy: int, other_uses: int, lead: list[str]
) -> None:
    quotas = (Present(team="ours", gpus=60), Present(team="theirs", gpus=60))
    islands = (Island(name="main", total_gpus=120, healthy_gpus=healthy),)
    usage = {
        "ours": TeamUsage(team="ours", scheduled_gpus=20),
        "theirs": TeamUsage(team="theirs", scheduled_gpus=other_uses),
    }
    reading = QuotaReading(cluster="lab", generation=1, quotas=quotas)
    sample = HealthSample(cluster="lab", at=NOW, islands=islands)
    shown = [
        text
        for team in ("ours", "theirs")
        for text in _lead(WhyAnswers(teams=(explain_team(Evidence(reading, sample, usage, NOW), {}, team, None),)))[1:]
    ]
    assert bool(shown) == bool(lead), shown
    assert all(any(text.startswith(begin) for text in shown) for begin in lead), shown
