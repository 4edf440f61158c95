"""Health, usage and windows: what exporters wrote and the ports read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from activities.adapters.ledger.facade import Ledger
from models.cluster.island import Island
from models.cluster.readings import HealthSample, TeamUsage, UsageReading
from models.cluster.windows import Window, WindowKind
from models.errors import BadInput
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, NOW, ForeignTool, minutes, twice

WEEK = timedelta(days=7)


def sample(cluster: str, at: datetime, **healthy: int) -> HealthSample:
    islands = tuple(Island(name=n, total_gpus=200, healthy_gpus=h) for n, h in healthy.items())
    return HealthSample(cluster=cluster, at=at, islands=islands)


@contextmanager
def counted_queries() -> Iterator[list[str]]:
    seen: list[str] = []

    def count(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    yield seen
    sa.event.remove(sa.Engine, "before_cursor_execute", count)


def test_the_latest_sample_of_each_island_wins(ledger: Ledger, tool: ForeignTool) -> None:
    later, earlier = NOW + minutes(5), NOW - minutes(5)
    assert twice(lambda: ledger.fleet.add_health([sample(CLUSTER, later, X=150, Y=140)], "exporter")) == 2
    assert twice(lambda: ledger.fleet.add_health([sample(CLUSTER, earlier, X=1, Y=1)], "exporter")) == 2
    reading = ledger.health.read([CLUSTER])[CLUSTER]
    assert {i.name: i.healthy_gpus for i in reading.islands} == {"X": 150, "Y": 140}
    assert reading.at == later
    rows = (
        "SELECT island, total_gpus, healthy_gpus, source FROM health_samples WHERE cluster = ? AND healthy_gpus = 150"
    )
    assert tool.rows(rows, CLUSTER) == [("X", 200, 150, "exporter")]
    assert tool.one("SELECT count(*) FROM health_samples WHERE cluster = ?", CLUSTER) == 6


def test_a_fleet_of_any_size_is_read_in_one_call(ledger: Ledger, tool: ForeignTool) -> None:
    """More clusters than either database takes parameters; names with what JSON, arrays and SQL give a meaning."""
    odd = """o'dd "{}",\\ name"""
    tool.run(
        "INSERT INTO clusters (name, gpus_per_node, policy, generation, completed_rollouts, last_counter, "
        "reserved_gpus, follows_health) VALUES (?, 8, '{}', 3, 0, 0, 0, false)",
        odd,
    )
    tool.run(
        "INSERT INTO windows (cluster, kind, starts, ends, reason, source, declared_by) VALUES "
        "(?, 'sev', '2026-01-01T00:00:00.000000Z', '2999-01-01T00:00:00.000000Z', 'r', '', '')",
        odd,
    )
    names = [f"nobody-{n}" for n in range(70_000)]
    names[35_000:35_000] = [CLUSTER, odd]
    assert set(ledger.health.read(names)) == {CLUSTER}
    assert set(ledger.calendar.windows(names)) >= {odd}
    assert set(ledger.quotas.versions(names)) == {CLUSTER, odd}
    assert not ledger.health.read([])
    assert not ledger.quotas.versions([])
    assert not ledger.calendar.windows([])


def test_a_cluster_is_as_fresh_as_its_stalest_island(ledger: Ledger) -> None:
    ledger.fleet.add_health([sample(CLUSTER, NOW + minutes(9), X=150)], "exporter")
    reading = ledger.health.read([CLUSTER])[CLUSTER]
    assert reading.at == NOW  # Y was last seen by the import
    assert {i.name: i.healthy_gpus for i in reading.islands} == {"X": 150, "Y": 190}


def test_a_repeated_cluster_island_and_time_replaces(ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.one("SELECT count(*) FROM health_samples")
    ledger.fleet.add_health([sample(CLUSTER, NOW, X=7)], "exporter")
    assert tool.one("SELECT count(*) FROM health_samples") == before
    assert ledger.health.read([CLUSTER])[CLUSTER].islands[0] == Island(name="X", total_gpus=200, healthy_gpus=7)


def test_installed_is_what_was_imported_whatever_a_sample_says(ledger: Ledger, tool: ForeignTool) -> None:
    seen = HealthSample(
        cluster=CLUSTER, at=NOW + minutes(1), islands=(Island(name="X", total_gpus=192, healthy_gpus=180),)
    )
    generation = tool.generation()
    ledger.fleet.add_health([seen], "exporter")
    assert ledger.health.read([CLUSTER])[CLUSTER].islands[0] == Island(name="X", total_gpus=200, healthy_gpus=180)
    assert tool.one("SELECT total_gpus FROM islands WHERE name = 'X'") == 200
    assert tool.generation() == generation


def test_more_healthy_gpus_than_are_installed_are_left_out_and_told(ledger: Ledger) -> None:
    lie = HealthSample(
        cluster=CLUSTER, at=NOW + minutes(2), islands=(Island(name="X", total_gpus=1000, healthy_gpus=1000),)
    )
    before = ledger.health.read([CLUSTER])[CLUSTER]
    ledger.fleet.add_health([lie], "exporter")
    after = ledger.health.read([CLUSTER])[CLUSTER]
    assert (after.islands, after.at, after.ahead_to) == (before.islands, before.at, None)
    assert after.beyond is not None
    assert (after.beyond.island, after.beyond.total_gpus, after.beyond.at) == ("X", 200, NOW + minutes(2))
    ledger.fleet.add_health([sample(CLUSTER, NOW + minutes(3), X=150)], "exporter")
    assert ledger.health.read([CLUSTER])[CLUSTER].beyond is None


def test_many_clusters_are_read_by_one_query(ledger: Ledger) -> None:
    with counted_queries() as queries:
        readings = ledger.health.read([CLUSTER, "beta", "gamma"])
    assert sorted(readings) == [CLUSTER, "beta"]
    assert len(queries) == 1


def test_a_cluster_without_a_sample_is_left_out(ledger: Ledger, tool: ForeignTool) -> None:
    tool.run("DELETE FROM health_samples WHERE cluster = ?", CLUSTER)
    assert list(ledger.health.read([CLUSTER, "beta"])) == ["beta"]
    assert ledger.health.read([]) == {}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (sample(CLUSTER, NOW, W=1), "of cluster 'alpha' names island 'W', which the ledger does not have"),
        (sample("gamma", NOW, X=1), "names cluster 'gamma', which the ledger does not have"),
    ],
)
def test_samples_of_unknown_islands_are_refused_whole(
    bad: HealthSample, sentence: str, ledger: Ledger, tool: ForeignTool
) -> None:
    before = tool.rows("SELECT * FROM health_samples ORDER BY cluster, island, at")
    with pytest.raises(BadInput, match=sentence):
        ledger.fleet.add_health([sample(CLUSTER, NOW + minutes(1), X=1), bad], "exporter")
    assert tool.rows("SELECT * FROM health_samples ORDER BY cluster, island, at") == before


def test_an_exporter_may_write_by_plain_sql(ledger: Ledger, tool: ForeignTool) -> None:
    at = NOW + minutes(3)
    tool.run(
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus) VALUES (?, 'X', ?, 200, 111)",
        CLUSTER,
        at if tool.postgresql else "2026-03-01 12:03:00",
    )
    (x, y) = ledger.health.read([CLUSTER])[CLUSTER].islands
    assert (x.healthy_gpus, y.healthy_gpus) == ((111, 190) if tool.postgresql else (180, 190))
    if not tool.postgresql:  # texts are compared: they must be of our one form
        tool.run("UPDATE health_samples SET at = '2026-03-01T12:03:00Z' WHERE healthy_gpus = 111")
        assert ledger.health.read([CLUSTER])[CLUSTER].islands[0].healthy_gpus == 111


STORE = "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus) VALUES (?, ?, ?, 200, ?)"


def exported(tool: ForeignTool, island: str, at: datetime, healthy: int) -> None:
    """A sample by plain SQL, in the ledger's own form."""
    tool.run(STORE, CLUSTER, island, at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", healthy)


def test_a_sample_that_is_dated_ahead_is_refused_whole(ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.rows("SELECT * FROM health_samples ORDER BY cluster, island, at")
    good, bad = sample(CLUSTER, LEDGER_NOW, X=1), sample("beta", LEDGER_NOW + minutes(1.1), Z=1)
    with pytest.raises(BadInput, match=r"'beta' is dated 2026-03-01 12:11:06Z, ahead of now \(2026-03-01 12:10:00Z\)"):
        ledger.fleet.add_health([good, bad], "exporter")
    assert tool.rows("SELECT * FROM health_samples ORDER BY cluster, island, at") == before
    assert ledger.fleet.add_health([sample(CLUSTER, LEDGER_NOW + minutes(1), X=1)], "exporter") == 1  # two clocks


def test_samples_that_an_exporter_dated_ahead_shadow_none_and_are_told_of(ledger: Ledger, tool: ForeignTool) -> None:
    exported(tool, "X", LEDGER_NOW + minutes(180), 3)
    exported(tool, "X", LEDGER_NOW + minutes(120), 2)
    reading = ledger.health.read([CLUSTER])[CLUSTER]
    assert [i.healthy_gpus for i in reading.islands] == [180, 190]
    assert (reading.at, reading.ahead_to) == (NOW, LEDGER_NOW + minutes(180))
    for island in "XY":  # the clock is set right: what is written now counts at once
        exported(tool, island, LEDGER_NOW - minutes(1), 111)
    reading = ledger.health.read([CLUSTER])[CLUSTER]
    assert [i.healthy_gpus for i in reading.islands] == [111, 111]
    assert (reading.at, reading.ahead_to) == (LEDGER_NOW - minutes(1), LEDGER_NOW + minutes(180))
    (shown,) = [spec for spec, _ in ledger.fleet.clusters("", 9) if spec.name == CLUSTER]
    assert [i.healthy_gpus for i in shown.islands] == [111, 111]

    tool.run("DELETE FROM health_samples WHERE healthy_gpus < 4")
    assert ledger.health.read([CLUSTER])[CLUSTER].ahead_to is None


def test_usage_that_is_dated_ahead_is_left_out(ledger: Ledger, tool: ForeignTool) -> None:
    observe_usage(tool, "a", [(1, 0)] * 30, end=NOW + timedelta(hours=9))
    assert usage(ledger).teams[0] == TeamUsage(team="a", scheduled_gpus=90, idle_gpus=10)
    (shown,) = [spec for spec, _ in ledger.fleet.clusters("", 9) if spec.name == CLUSTER]
    assert {q.team: q.scheduled_gpus for q in shown.quotas}["a"] == 90


def observe_usage(tool: ForeignTool, team: str, readings: list[tuple[int, int]], end: datetime = NOW) -> None:
    """One reading a minute, the last one just before `end`."""
    for index, (scheduled, idle) in enumerate(readings):
        at = end - minutes(len(readings) - index)
        tool.run(
            "INSERT INTO usage_samples (cluster, team, at, scheduled_gpus, idle_gpus) VALUES (?, ?, ?, ?, ?)",
            CLUSTER,
            team,
            at if tool.postgresql else at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            scheduled,
            idle,
        )


def usage(ledger: Ledger, window: timedelta = WEEK, now: datetime = NOW) -> UsageReading:
    return twice(lambda: ledger.usage.read(CLUSTER, window, now))


@pytest.fixture
def unused(ledger: Ledger, tool: ForeignTool) -> Ledger:
    """A ledger that knows no usage yet."""
    tool.run("DELETE FROM usage_samples")
    return ledger


@pytest.mark.parametrize("count", [20, 21, 39, 40, 100])
def test_with_history_usage_is_the_95th_percentile_by_nearest_rank(
    count: int, unused: Ledger, tool: ForeignTool
) -> None:
    scheduled = [(37 * k) % count + 1 for k in range(count)] if count % 37 else list(range(1, count + 1))
    observe_usage(tool, "a", [(s, s // 2) for s in scheduled])
    expected = sorted(scheduled)[-(-95 * count // 100) - 1]
    reading = usage(unused)
    assert reading.source == "p95 over 7d"
    assert reading.teams == (TeamUsage(team="a", scheduled_gpus=expected, idle_gpus=expected // 2),)


def test_with_little_history_usage_is_the_latest_sample(unused: Ledger, tool: ForeignTool) -> None:
    observe_usage(tool, "a", [(k + 50, 3) for k in range(19)])
    reading = usage(unused)
    assert reading.source == "instant"
    assert reading.teams == (TeamUsage(team="a", scheduled_gpus=68, idle_gpus=3),)


def test_samples_before_the_window_do_not_count(unused: Ledger, tool: ForeignTool) -> None:
    observe_usage(tool, "a", [(99, 0)] * 30, end=NOW - timedelta(hours=2))
    observe_usage(tool, "a", [(10, 0)] * 19)
    assert usage(unused, timedelta(hours=1)).source == "instant"
    observe_usage(tool, "a", [(10, 0)], end=NOW + minutes(1))
    assert usage(unused, timedelta(hours=1)) == UsageReading(
        cluster=CLUSTER, source="p95 over 1h", teams=(TeamUsage(team="a", scheduled_gpus=10),)
    )


def test_history_of_some_teams_and_not_of_others_is_said(unused: Ledger, tool: ForeignTool) -> None:
    observe_usage(tool, "a", [(10, 0)] * 20)
    observe_usage(tool, "b", [(20, 0)] * 19)
    observe_usage(tool, "org-1", [(30, 0)])
    reading = usage(unused)
    assert reading.source == "p95 over 7d, instant for 2 of 3 teams"
    assert [t.team for t in reading.teams] == ["a", "b", "org-1"]


def test_without_samples_usage_is_unknown(unused: Ledger) -> None:
    assert usage(unused) == UsageReading(cluster=CLUSTER, source="unknown", teams=())


def test_usage_is_read_of_todays_leaves_alone(unused: Ledger, tool: ForeignTool) -> None:
    for team in ("gone", "org", "c"):
        observe_usage(tool, team, [(5, 0)] * 25)
    assert [t.team for t in usage(unused).teams] == ["c"]


def test_declared_windows_are_read_past_ones_included(ledger: Ledger, tool: ForeignTool) -> None:
    tool.run("UPDATE windows SET starts = ?, ends = ?", *past(tool))
    (window,) = twice(lambda: ledger.calendar.windows([CLUSTER])[CLUSTER])
    assert window == Window(
        kind=WindowKind.MAINTENANCE,
        starts=datetime.fromisoformat("2020-01-01T00:00:00Z"),
        ends=datetime.fromisoformat("2020-01-01T04:00:00Z"),
        reason="switches",
        islands=("Y",),
        gpus=64,
    )
    assert ledger.calendar.windows(["beta"]) == {}


def past(tool: ForeignTool) -> list[Any]:
    texts = ["2020-01-01T00:00:00.000000Z", "2020-01-01T04:00:00.000000Z"]
    return [datetime.fromisoformat(text) if tool.postgresql else text for text in texts]
