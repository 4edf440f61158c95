"""The top of a team's page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from models.cluster.island import Island
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.reports.why import TeamWhy, WhyAnswers, explain_team
from web.console.pages.teams import _holding, _lead

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def a_team(team: str, cluster: str, healthy: int, other_uses: int) -> TeamWhy:
    quotas = (Present(team="ours", gpus=60), Present(team="theirs", gpus=60))
    islands = (Island(name="main", total_gpus=120, healthy_gpus=healthy),)
    usage = {
        "ours": TeamUsage(team="ours", scheduled_gpus=20),
        "theirs": TeamUsage(team="theirs", scheduled_gpus=other_uses),
    }
    reading = QuotaReading(cluster=cluster, generation=1, quotas=quotas)
    sample = HealthSample(cluster=cluster, at=NOW, islands=islands)
    return explain_team(Evidence(reading, sample, usage, NOW), {}, team, None)


@pytest.mark.parametrize(
    ("healthy", "other_uses", "lead"),
    [
        # 60 and 60 are promised on 119: one of these has no hardware, and 39 of the other team's are unused.
        (119, 21, ["1 GPU of this quota has no healthy GPU behind it: its jobs can use that part"]),
        (
            100,
            21,
            ["10 GPUs of this quota have no healthy GPU behind them: its jobs can use that part"],
        ),
        (120, 21, []),
        (100, 60, ["The main cause, for 20 GPUs in lab:"]),
    ],
)
def test_a_promise_without_hardware_is_said_also_where_others_leave_theirs_unused(
    healthy: int, other_uses: int, lead: list[str]
) -> None:
    teams = [a_team(team, "lab", healthy, other_uses) for team in ("ours", "theirs")]
    shown = [text for one in teams for text in _lead(WhyAnswers(teams=(one,)))[1:]]
    assert bool(shown) == bool(lead), shown
    assert all(any(text.startswith(begin) for text in shown) for begin in lead), shown


def test_what_a_parent_withholds_is_no_missing_hardware() -> None:
    """The parent promises 50 of 60: 10 are short for that alone, though 10 of 120 GPUs are down."""
    quotas = (Present(team="org", gpus=50), Present(team="ours", gpus=60, parent="org"))
    usage = {"ours": TeamUsage(team="ours", scheduled_gpus=20)}
    reading = QuotaReading(cluster="lab", generation=1, quotas=quotas)
    islands = (Island(name="main", total_gpus=120, healthy_gpus=110),)
    sample = HealthSample(cluster="lab", at=NOW, islands=islands)
    found = explain_team(Evidence(reading, sample, usage, NOW), {}, "ours", None)
    shown = _holding(found.model_copy(update={"missing": (found.missing[0].model_copy(update={"since": NOW}),)}))
    assert (shown.promised, shown.backed, shown.short, shown.since) == (60, 60, 10, "")


def test_the_clusters_are_named_where_a_promise_without_hardware_is_not_short() -> None:
    """In the second cluster all hardware is in use, so the missing GPUs are short there too, and named with that."""
    teams = (a_team("ours", "lab", 100, 21), a_team("ours", "full", 60, 60), a_team("ours", "well", 120, 21))
    (_, unbacked, _) = _lead(WhyAnswers(teams=teams))
    assert unbacked.startswith(
        "10 GPUs of this quota in lab have no healthy GPU behind them: its jobs can use that part only on"
    )


def test_what_keeps_the_most_is_of_the_clusters_where_something_is_short() -> None:
    """In lab 10 GPUs lack hardware and are not short; in silent 60 count as used, because their use is unknown."""
    silent = a_team("ours", "silent", 0, 60).model_copy(update={"use_known": False})
    few = a_team("ours", "few", 117, 60)
    (*_, most) = _lead(WhyAnswers(teams=(a_team("ours", "lab", 100, 21), silent, few)))
    assert most.startswith("The main cause, for 3 GPUs in few:")


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (("new",), "new is not counted: the reason is below."),
        (("tree", "new"), "new, tree are not counted: the reason is below."),
    ],
)
def test_clusters_that_say_nothing_are_not_passed_over(left_out: tuple[str, ...], said: str) -> None:
    answers = WhyAnswers(teams=(a_team("ours", "lab", 120, 21),), unanswered=dict.fromkeys(left_out, "unknown"))
    assert _lead(answers)[-1] == said


def test_where_no_use_is_known_nothing_is_counted_as_held_or_short() -> None:
    silent = a_team("ours", "silent", 0, 60).model_copy(update={"use_known": False})
    (said,) = _lead(WhyAnswers(teams=(silent,)))
    assert said.endswith(": it is unknown what its jobs hold, so all of it counts as used; 0 more could start now.")
