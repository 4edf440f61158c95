"""The GPUs in quota that wait for healthy hardware, and the tally that has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot, snapshot_of
from models.planning.placement import PlacementSolver
from models.reports.queued_in_quota import in_quota
from models.reports.tallies import Tally, slot_of, tally_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def quota(team: str, gpus: int, **more: Any) -> Quota:
    return Quota(team=team, gpus=gpus, **more)


def use(team: str, scheduled: int, pending: int | None = None, at: datetime | None = None) -> TeamUsage:
    return TeamUsage(team=team, scheduled_gpus=scheduled, pending_gpus=pending, at=at)


def waits(healthy: dict[str, int], quotas: list[Quota], *usage: TeamUsage) -> tuple[int | None, int | None]:
    islands = tuple(Island(name=n, total_gpus=1000, healthy_gpus=h) for n, h in healthy.items())
    ground = PlacementSolver(Snapshot(cluster="c", islands=islands, quotas=tuple(quotas)))
    found = in_quota(ground, {u.team: u for u in usage})
    return found.pending_gpus, found.lacking_gpus


def test_the_researcher_who_sees_345_and_asks_for_345() -> None:
    """docs/design.md, "A worked case": 319 are healthy, 310 run, and the job of 35 waits: 9 of it could run."""
    assert waits({"main": 319}, [quota("research", 345)], use("research", 310, 35)) == (35, 26)


@pytest.mark.parametrize(
    ("healthy", "scheduled", "pending", "expected"),
    [
        (100, 40, 20, (20, 0)),  # room for it: it waits for something else
        (100, 100, 50, (0, 0)),  # beyond the quota: never promised
        (100, 90, 50, (10, 0)),
        (95, 90, 50, (10, 5)),
        (90, 90, 5, (5, 5)),
        (0, 0, 100, (100, 100)),
        (50, 80, 20, (20, 20)),  # more runs than is healthy: what drains is not counted as gone
        (100, 120, 30, (0, 0)),  # what runs beyond the quota is flex
    ],
)
def test_one_team_on_one_island(healthy: int, scheduled: int, pending: int, expected: tuple[int, int]) -> None:
    assert waits({"main": healthy}, [quota("a", 100)], use("a", scheduled, pending)) == expected


def test_jobs_outside_their_quota_make_room() -> None:
    quotas = [quota("a", 50), quota("b", 50)]
    assert waits({"main": 100}, quotas, use("a", 90, 0), use("b", 10, 40)) == (40, 0)


def test_health_elsewhere_does_not_help_a_quota_that_is_limited_to_an_island() -> None:
    quotas = [quota("a", 60, islands=("X",)), quota("b", 60)]
    assert waits({"X": 40, "Y": 100}, quotas, use("a", 40, 20), use("b", 60, 0)) == (20, 20)
    assert waits({"X": 40, "Y": 100}, quotas, use("a", 20, 20), use("b", 60, 0)) == (20, 0)


def test_what_a_parent_withholds_is_not_waiting_in_quota() -> None:
    quotas = [quota("org", 50), quota("a", 40, parent="org"), quota("b", 40, parent="org")]
    assert waits({"main": 45}, quotas, use("a", 20, 20), use("b", 20, 20)) == (10, 5)


def test_unknown_demand_is_unknown_and_not_none() -> None:
    assert waits({"main": 5}, [quota("a", 10)], use("a", 5)) == (None, None)
    assert waits({"main": 5}, [quota("a", 10)]) == (None, None)
    assert waits({"main": 0}, []) == (0, 0)  # nothing is promised, so nothing waits


def test_of_some_unknown_demands_the_known_ones_are_summed_up() -> None:
    """The team that nobody knows of holds all of its quota, as everywhere."""
    ground = PlacementSolver(
        Snapshot(
            cluster="c",
            islands=(Island(name="i", total_gpus=100, healthy_gpus=70),),
            quotas=(quota("a", 50), quota("b", 50), quota("none", 0)),
        )
    )
    found = in_quota(ground, {"a": use("a", 20, 30)})
    assert (found.pending_gpus, found.lacking_gpus, found.known_quotas, found.quotas) == (30, 30, 1, 2)


# --- tallies -------------------------------------------------------------------------------------------


def reading(*present: Present) -> QuotaReading:
    return QuotaReading(cluster="c", generation=1, quotas=present)


def sample(healthy: int, total: int = 361) -> HealthSample:
    return HealthSample(
        cluster="c", at=NOON - HOUR, islands=(Island(name="main", total_gpus=total, healthy_gpus=healthy),)
    )


RESEARCH = reading(Present(team="research", gpus=345))


def test_the_tally_of_the_worked_case() -> None:
    made = tally_of(NOON, RESEARCH, sample(319), {"research": use("research", 310, 35)}, ("planned", False), NOON)
    assert made == Tally(
        cluster="c",
        at=NOON,
        seen_at=NOON,
        total_gpus=361,
        healthy_gpus=319,
        health_at=NOON - HOUR,
        assigned_gpus=345,
        backed_gpus=319,
        flex_gpus=9,
        pending_gpus=35,
        lacking_gpus=26,
        known_quotas=1,
        quotas=1,
        stage="planned",
    )


def test_without_health_a_tally_knows_the_stage_alone() -> None:
    assert tally_of(NOON, RESEARCH, None, {}, ("buffered", True), NOON) == Tally(
        cluster="c", at=NOON, seen_at=NOON, stage="buffered", shadow=True
    )


@pytest.mark.parametrize(("age", "known"), [(24 * HOUR, 1), (24 * HOUR + timedelta(seconds=1), 0)])
def test_old_usage_says_nothing_about_what_is_asked_for_now(age: timedelta, known: int) -> None:
    made = tally_of(NOON, RESEARCH, sample(319), {"research": use("research", 310, 35, NOON - age)}, None, NOON)
    assert made.known_quotas == known
    assert (made.lacking_gpus is None) is (known == 0)
    assert made.flex_gpus == 9  # what runs is taken as the planner takes it


def test_slots_are_the_same_wherever_the_watch_begins() -> None:
    assert slot_of(NOON + timedelta(minutes=59, seconds=59), HOUR) == NOON
    assert slot_of(NOON, HOUR) == NOON
    assert slot_of(NOON - timedelta(microseconds=1), HOUR) == NOON - HOUR


# --- demand in a fleet file ----------------------------------------------------------------------------


def test_what_waits_needs_what_runs() -> None:
    with pytest.raises(ValidationError, match="pending_gpus is 5 without scheduled_gpus"):
        quota("a", 10, pending_gpus=5)
    with pytest.raises(ValidationError, match="which has sub-quotas"):
        Snapshot(
            cluster="c",
            islands=(Island(name="i", total_gpus=1, healthy_gpus=1),),
            quotas=(quota("org", 1, scheduled_gpus=0, pending_gpus=5), quota("a", 1, parent="org")),
        )


def test_no_plan_goes_by_demand_and_unknown_demand_leaves_no_trace() -> None:
    def spec(**more: Any) -> ClusterSpec:
        return ClusterSpec.model_validate(
            {
                "name": "c",
                "islands": [{"name": "i", "total_gpus": 8, "healthy_gpus": 8}],
                "quotas": [{"team": "a", "gpus": 8, "scheduled_gpus": 4, **more}],
            }
        )

    assert snapshot_of(spec(pending_gpus=4)).hash == snapshot_of(spec()).hash
    assert "pending_gpus" not in spec().model_dump_json()
    assert '"pending_gpus":4' in spec(pending_gpus=4).model_dump_json()
