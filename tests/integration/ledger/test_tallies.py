"""The tallies on both databases: written once a slot by the watch, summed up by SQL, thinned after a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.watch import tallies as keeping
from activities.watch.tallies import KEPT_WHOLE, Tallier
from models.cluster.island import Island
from models.cluster.readings import HealthSample, QuotaReading
from models.errors import BadInput, Unavailable
from models.reports.tallies import Tally
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, NOW, ForeignTool, fleet, import_fleet, open_rollout

HOUR = timedelta(hours=1)
SLOT = NOW  # noon
SOON = NOW + timedelta(minutes=7)
_COLUMNS = (
    "cluster, total_gpus, healthy_gpus, assigned_gpus, backed_gpus, flex_gpus, pending_gpus, lacking_gpus, "
    "known_quotas, quotas, stage"
)


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A noisy machine must not cut a go short."""
    monkeypatch.setattr(keeping, "BUDGET_SECONDS", 600.0)


def tallier(ledger: Ledger) -> Tallier:
    return Tallier(ledger.ports, ledger.tallies)


def rows(tool: ForeignTool) -> list[tuple[Any, ...]]:
    return tool.rows(f"SELECT {_COLUMNS} FROM tallies ORDER BY at, cluster")


def when(tool: ForeignTool) -> list[str]:
    found = tool.rows("SELECT at FROM tallies WHERE cluster = 'beta' ORDER BY at")
    return [str(at).replace(" ", "T")[:16] for (at,) in found]


def tally(cluster: str, at: datetime, healthy: int, assigned: int, **more: Any) -> Tally:
    return Tally(
        cluster=cluster,
        at=at,
        seen_at=at,
        total_gpus=100,
        healthy_gpus=healthy,
        assigned_gpus=assigned,
        backed_gpus=min(healthy, assigned),
        flex_gpus=1,
        **more,
    )


def test_every_cluster_has_its_tally_with_or_without_a_rollout(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger, stage="buffered")
    assert tallier(ledger).go_on(SOON, HOUR) == 2
    # alpha: X is healthy to the 180 that a and c promise there. Flex: 10 that no quota stands on, 10 that a leaves.
    assert rows(tool) == [
        (CLUSTER, 400, 370, 360, 360, 20, None, None, 0, 5, "buffered"),
        ("beta", 64, 64, 32, 32, 32, None, None, 0, 1, None),
    ]
    assert when(tool) == ["2026-03-01T12:00"]


def test_demand_reaches_the_tally_from_the_fleet_file(empty_ledger: Ledger, tool: ForeignTool) -> None:
    document = fleet()
    a = document["clusters"][0]["quotas"][0]
    a |= {"gpus": 200, "scheduled_gpus": 90, "pending_gpus": 70}
    import_fleet(empty_ledger, document)
    assert tool.one("SELECT pending_gpus FROM usage_samples WHERE team = 'a'") == 70
    shown = {q.team: q.pending_gpus for spec, _ in empty_ledger.fleet.clusters("", 9) for q in spec.quotas}
    assert shown["b"] is None
    assert empty_ledger.fleet.clusters("", 1)[0][0].quotas[0].pending_gpus == 70
    tallier(empty_ledger).go_on(SOON, HOUR)
    # X is healthy to 180: a asks for 160 of its 200, c (unknown: all in use) has 80. 170 are run, 180 can be.
    assert rows(tool)[0][6:10] == (70, 60, 1, 5)


def test_a_slot_is_written_once_whoever_asks_and_however_often(ledger: Ledger, tool: ForeignTool) -> None:
    one, other = tallier(ledger), tallier(ledger)
    assert [one.go_on(SOON, HOUR), one.go_on(SOON, HOUR), other.go_on(SOON + 20 * (SOON - NOW) / 7, HOUR)] == [2, 0, 0]
    before = rows(tool)
    late = [tally(CLUSTER, SLOT, 1, 1), tally("beta", SLOT, 1, 1)]  # another watch, which read before and writes after
    ledger.tallies.keep(late)
    assert rows(tool) == before
    assert one.go_on(SOON + HOUR, HOUR) == 2
    assert when(tool) == ["2026-03-01T12:00", "2026-03-01T13:00"]


def test_a_cluster_that_comes_late_has_its_first_tally_soon(ledger: Ledger, tool: ForeignTool) -> None:
    made = tallier(ledger)
    assert made.go_on(SOON, HOUR) == 2
    document = fleet()
    document["clusters"] = [{**document["clusters"][1], "name": "gamma"}]
    import_fleet(ledger, document, "second")
    assert [made.go_on(SOON + n * HOUR / 120, HOUR) for n in (1, 2, 3)] == [0, 1, 0]
    assert rows(tool)[2][0] == "gamma"


def test_tallies_come_a_portion_at_a_time(ledger: Ledger, tool: ForeignTool) -> None:
    with patch.object(keeping, "PORTION", 1):
        made = tallier(ledger)
        assert [made.go_on(SOON, HOUR) for _ in range(4)] == [1, 1, 0, 0]
    assert [row[0] for row in rows(tool)] == [CLUSTER, "beta"]


def test_a_go_ends_when_its_time_is_over(ledger: Ledger, tool: ForeignTool) -> None:
    with patch.object(keeping, "BUDGET_SECONDS", -1.0):
        made = tallier(ledger)
        assert [made.go_on(SOON, HOUR) for _ in range(3)] == [1, 1, 0]
    assert len(rows(tool)) == 2


def test_a_cluster_that_makes_no_sense_is_unknown_and_keeps_nobody_waiting(ledger: Ledger, tool: ForeignTool) -> None:
    # Two quotas that are each other's parent: no tree, and the triggers do not judge it.
    tool.run("UPDATE quotas SET parent = 'b' WHERE cluster = 'alpha' AND team = 'a'")
    tool.run("UPDATE quotas SET parent = 'a' WHERE cluster = 'alpha' AND team = 'b'")
    assert tallier(ledger).go_on(SOON, HOUR) == 2
    assert rows(tool)[0] == (CLUSTER, *[None] * 7, 0, 0, None)
    assert rows(tool)[1][1] == 64
    (point,) = ledger.tallies.points("", [SOON], HOUR)
    assert (point.clusters, point.known, point.promised_gpus) == (2, 1, 32)


def test_a_quota_system_that_does_not_answer_is_asked_again(ledger: Ledger, tool: ForeignTool) -> None:
    made = tallier(ledger)

    def away(cluster: str) -> QuotaReading:
        raise Unavailable("the quota system is away")

    with patch.object(ledger.quotas, "read", away), pytest.raises(Unavailable):
        made.go_on(SOON, HOUR)
    assert rows(tool) == []
    assert made.go_on(SOON, HOUR) == 2


def test_health_that_nobody_reported_is_unknown(empty_ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(empty_ledger, fleet())
    tool.run("DELETE FROM health_samples WHERE cluster = 'beta'")
    tallier(empty_ledger).go_on(SOON, HOUR)
    assert rows(tool)[1] == ("beta", *[None] * 7, 0, 0, None)


def test_health_that_is_dated_ahead_is_no_health(ledger: Ledger, tool: ForeignTool) -> None:
    islands = (Island(name="Z", total_gpus=64, healthy_gpus=60),)
    ahead = {"beta": HealthSample(cluster="beta", at=SOON + HOUR, islands=islands)}
    with patch.object(ledger.health, "read", lambda clusters: ahead):  # a source that keeps no watch on its clock
        tallier(ledger).go_on(SOON, HOUR)
    assert rows(tool)[1] == ("beta", *[None] * 7, 0, 0, None)


# --- summing up -------------------------------------------------------------------------------------------


def test_the_fleet_at_one_time_is_the_last_tally_of_each_cluster(ledger: Ledger) -> None:
    ledger.tallies.keep([tally(CLUSTER, SLOT, 60, 80, pending_gpus=9, lacking_gpus=4), tally("beta", SLOT, 50, 40)])
    ledger.tallies.keep([tally(CLUSTER, SLOT + HOUR, 70, 80)])  # beta's is not written yet: the curve must not dip
    times = [SLOT - HOUR, SLOT, SLOT + HOUR, SLOT + 4 * HOUR]
    found = ledger.tallies.points("", times, 3 * HOUR)
    assert [p.at for p in found] == [SLOT, SLOT + HOUR]
    first, second = found
    assert (first.clusters, first.total_gpus, first.healthy_gpus, first.promised_gpus) == (2, 200, 110, 120)
    assert (first.phantom_gpus, first.flex_gpus) == (20, 2)
    assert (first.asking, first.pending_gpus, first.lacking_gpus) == (1, 9, 4)
    assert (second.clusters, second.healthy_gpus, second.phantom_gpus) == (2, 120, 10)
    assert (second.asking, second.pending_gpus) == (0, None)
    (alone,) = ledger.tallies.points("beta", [SLOT], 3 * HOUR)
    assert (alone.clusters, alone.phantom_gpus, alone.healthy_gpus) == (1, 0, 50)


def test_figures_are_of_the_time_they_were_read_at(ledger: Ledger, tool: ForeignTool) -> None:
    """A cluster that came at 12:41 was not there at 12:15, and what nobody read since is not told as if of now."""
    late, fell = SLOT + timedelta(minutes=41), SLOT + HOUR + timedelta(minutes=1)
    ledger.tallies.keep([tally("beta", SLOT, 40, 99).model_copy(update={"seen_at": late, "health_at": SLOT})])
    ledger.tallies.keep([tally("beta", SLOT + HOUR, 99, 99).model_copy(update={"seen_at": fell})])
    times = [SLOT + n * timedelta(minutes=5) for n in range(40)]
    found = ledger.tallies.points("", times, 3 * HOUR)
    read = tool.rows("SELECT seen_at, assigned_gpus - backed_gpus FROM tallies ORDER BY seen_at")
    assert [(p.at.strftime("%H:%M"), p.phantom_gpus) for p in found] == [("12:41", 59), ("13:01", 0)]
    assert [(str(at).replace(" ", "T")[11:16], phantom) for at, phantom in read] == [("12:41", 59), ("13:01", 0)]
    assert [(p.oldest_at, p.health_at) for p in found] == [(late, SLOT), (fell, None)]
    assert ledger.tallies.begin_at("") == late


def test_sums_over_other_clusters_are_marked_as_such_though_they_are_as_many(ledger: Ledger) -> None:
    ledger.tallies.keep([tally(CLUSTER, SLOT, 60, 80), tally("beta", SLOT + HOUR, 50, 40)])
    ledger.tallies.keep([tally(CLUSTER, SLOT + 2 * HOUR, 61, 80)])
    first, second, third = ledger.tallies.points("", [SLOT, SLOT + HOUR, SLOT + 2 * HOUR], HOUR / 2)
    assert [p.known for p in (first, second, third)] == [1, 1, 1]
    assert (first.is_of_same(second), first.is_of_same(third)) == (False, True)


def test_where_the_curve_begins(ledger: Ledger) -> None:
    assert ledger.tallies.begin_at("") is None
    ledger.tallies.keep([tally("beta", SLOT, 50, 40), tally(CLUSTER, SLOT + HOUR, 60, 80)])
    assert (ledger.tallies.begin_at(""), ledger.tallies.begin_at(CLUSTER)) == (SLOT, SLOT + HOUR)
    for ask in (lambda: ledger.tallies.begin_at("gamma"), lambda: ledger.tallies.points("gamma", [SLOT], HOUR)):
        with pytest.raises(BadInput, match="no cluster 'gamma'"):
            ask()


def test_a_cluster_that_is_gone_takes_its_tallies_along(ledger: Ledger, tool: ForeignTool) -> None:
    ledger.tallies.keep([tally("beta", SLOT, 50, 40), tally(CLUSTER, SLOT, 60, 80)])
    if not tool.postgresql:
        tool.run("PRAGMA foreign_keys = ON")
    tool.run("DELETE FROM clusters WHERE name = 'beta'")
    assert [row[0] for row in rows(tool)] == [CLUSTER]
    ledger.tallies.keep([tally("beta", SLOT + HOUR, 50, 40)])  # it was read before it went
    assert len(rows(tool)) == 1


def test_old_days_keep_their_first_tally(ledger: Ledger, tool: ForeignTool) -> None:
    day = SLOT.replace(hour=0)
    for n in (-1, 0, 5, 23, 24):
        ledger.tallies.keep([tally("beta", day + n * HOUR, 50, 40)])
    ledger.tallies.keep([tally(CLUSTER, day + n * HOUR, 50, 40) for n in (7, 8)])
    ledger.tallies.thin_out(day)
    ledger.tallies.thin_out(day)
    assert when(tool) == ["2026-02-28T23:00", "2026-03-01T00:00", "2026-03-02T00:00"]
    assert len(tool.rows("SELECT 1 FROM tallies WHERE cluster = 'alpha'")) == 1


def test_the_watch_thins_what_is_older_than_the_kept_days(ledger: Ledger, tool: ForeignTool) -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC)
    ledger.tallies.keep([tally("beta", day + n * HOUR, 50, 40) for n in (3, 4, 30)])
    tallier(ledger).go_on(day + KEPT_WHOLE + HOUR, HOUR)
    assert when(tool)[:3] == ["2026-03-01T03:00", "2026-03-01T04:00", "2026-03-02T06:00"]  # not old enough
    tallier(ledger).go_on(day + KEPT_WHOLE + 25 * HOUR, HOUR)
    assert when(tool)[:2] == ["2026-03-01T03:00", "2026-03-02T06:00"]


@pytest.mark.parametrize(
    "bad",
    [
        "backed_gpus = assigned_gpus + 1",
        "backed_gpus = healthy_gpus + 1",
        "lacking_gpus = 2, pending_gpus = 1",
        "lacking_gpus = -1, pending_gpus = 1",
    ],
)
def test_the_database_refuses_a_tally_that_makes_no_sense(ledger: Ledger, tool: ForeignTool, bad: str) -> None:
    ledger.tallies.keep([tally("beta", SLOT, 50, 40)])
    tool.refused(f"UPDATE tallies SET {bad}")
    tool.refused("UPDATE usage_samples SET pending_gpus = -1")


def test_usage_that_a_plan_goes_by_says_nothing_of_demand(ledger: Ledger) -> None:
    sample = HealthSample(cluster="beta", at=NOW, islands=(Island(name="Z", total_gpus=64, healthy_gpus=60),))
    ledger.fleet.add_health([sample], "exporter")
    for said in ledger.usage.read(CLUSTER, 7 * 24 * HOUR, NOW).teams:
        assert (said.pending_gpus, said.at) == (None, None)
    assert ledger.usage.latest([CLUSTER], NOW)[CLUSTER]["a"].at == NOW


# --- a curve ----------------------------------------------------------------------------------------


def uneven(ledger: Ledger) -> None:
    """Slots of an hour and of twenty minutes, with holes; alpha's first is read after the second has begun."""
    kept = []
    for number, cluster in enumerate((CLUSTER, "beta")):
        for n in range(90):
            if n % (7 + number) == 3:
                continue
            at = SLOT + n * (HOUR if n < 60 else HOUR / 3)
            late = timedelta(minutes=59 if n == 0 and not number else 13 * n % 29)
            one = tally(cluster, at, 50 + n % 11, 48 + n % 17, pending_gpus=n if n % 5 else None, lacking_gpus=None)
            backed = None if n % 13 == 5 else one.backed_gpus
            health_at = None if n % 4 == 1 else at
            kept.append(one.but(seen_at=at + late, backed_gpus=backed, health_at=health_at))
    ledger.tallies.keep(kept)


def by_hand(tool: ForeignTool, at: datetime, within: timedelta) -> tuple[Any, ...] | None:
    """Row by row: the last slot of each cluster that was read in this time, and what they are together."""
    last: dict[str, tuple[Any, ...]] = {}
    names = "cluster, at, seen_at, healthy_gpus, assigned_gpus, backed_gpus, pending_gpus"
    for row in tool.rows(f"SELECT {names} FROM tallies ORDER BY cluster, at"):
        slot, read_at = (datetime.fromisoformat(str(text)).astimezone(UTC) for text in row[1:3])
        if slot <= at and at - within < read_at <= at:
            last[row[0]] = (read_at, *row[3:])
    if not last:
        return None
    moments = [row[0] for row in last.values()]
    sure = [row for row in last.values() if row[3] is not None]
    phantom = sum(assigned - backed for _, _, assigned, backed, _ in sure)
    pending = [row[4] for row in last.values() if row[4] is not None]
    sums = (sum(row[1] for row in sure), sum(row[2] for row in sure), phantom, sum(pending) if pending else None)
    return (max(moments), min(moments), len(last), len(sure), *sums)


@pytest.mark.parametrize("within", [HOUR / 2, HOUR, 5 * HOUR])
@pytest.mark.parametrize("times", [1, 57, 130])
def test_a_curve_is_what_the_rows_say_and_one_question(
    ledger: Ledger, tool: ForeignTool, within: timedelta, times: int
) -> None:
    uneven(ledger)
    asked = [SLOT - HOUR + n * timedelta(minutes=37) for n in range(times)]
    with counted_queries() as queries:
        points = ledger.tallies.points("", asked, within)
    assert len([one for one in queries if "tallies" in one]) == 1
    expected = list[tuple[Any, ...]]()
    for at in asked:
        one = by_hand(tool, at, within)
        if one is not None and (not expected or one[0] > expected[-1][0]):
            expected.append(one)
    assert [
        (p.at, p.oldest_at, p.clusters, p.known, p.healthy_gpus, p.promised_gpus, p.phantom_gpus, p.pending_gpus)
        for p in points
    ] == expected
    assert (times == 1) == (expected == [])
    with counted_queries() as again:
        assert ledger.tallies.points("", asked, within) == points
    # What is over is not summed up again.
    later = [at for at in asked if at >= LEDGER_NOW - timedelta(minutes=10)]
    assert len([one for one in again if "tallies" in one]) == min(1, len(later))


def test_tallies_begin_with_the_one_that_was_read_first(ledger: Ledger, tool: ForeignTool) -> None:
    assert ledger.tallies.begin_at("") is None
    late = tally(CLUSTER, SLOT, 1, 1).but(seen_at=SLOT + 50 * HOUR / 60)
    soon = tally("beta", SLOT + HOUR / 3, 1, 1).but(seen_at=SLOT + HOUR / 2)
    ledger.tallies.keep([late, soon])
    assert ledger.tallies.begin_at("") == SLOT + HOUR / 2
    assert ledger.tallies.begin_at(CLUSTER) == SLOT + 50 * HOUR / 60
