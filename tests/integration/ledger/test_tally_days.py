"""Sums of days of tallies, on both databases: whatever is summed up, a mean is what adding up the rows gives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.tally_means import TallyMeans
from activities.watch.tallies import KEPT_WHOLE, Tallier
from models.audit_chain import Signature
from models.base import DAY
from models.reports.tallies import Tally, slot_of
from models.reports.weekly import Mean, Span
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, ForeignTool

HOUR = timedelta(hours=1)
TODAY = slot_of(LEDGER_NOW, DAY)
BEGAN = TODAY - 12 * DAY
NAMES = (CLUSTER, "beta")


def lived(ledger: Ledger, since: datetime = BEGAN, until: datetime = LEDGER_NOW) -> None:
    """Uneven slots, some with a reading at their very end; a day without any; figures that nobody knew."""
    tallies = []
    hours = int((until - since) / HOUR)
    for number, n in product(range(2), range(hours)):
        at = since + n * HOUR
        if n % (5 + number) == 3 or (at - BEGAN).days == 4:
            continue
        lag = timedelta(minutes=59, seconds=59, microseconds=999_999) if n % 11 == 0 else timedelta(minutes=7 * n % 31)
        known = n % 7 != 2
        stage: dict[str, Any] = {"stage": "monitored" if n % 90 > 30 else None, "shadow": n % 19 == 0}
        tallies.append(
            Tally(
                cluster=NAMES[number],
                at=at,
                seen_at=at + (timedelta(hours=23) if n % 29 == 1 else lag),
                healthy_gpus=99,
                assigned_gpus=50 + n % 13 if known else None,
                backed_gpus=50 - n % 9 if known else None,
                pending_gpus=90 if n % 3 else None,
                lacking_gpus=n % 41 if n % 3 else None,
                **stage,
            )
        )
    ledger.tallies.keep(tallies)


def spans(names: Sequence[str] = NAMES) -> list[Span]:
    """Return spans from and to midnight and near it, in other zones, within a day, over weeks, and without tallies."""
    east = timezone(timedelta(hours=5, minutes=45))
    moments = [
        BEGAN - 3 * DAY,
        BEGAN + 2 * DAY,
        BEGAN + 2 * DAY + timedelta.resolution,
        (BEGAN + 4 * DAY).astimezone(east),
        BEGAN + 5 * DAY - timedelta.resolution,
        datetime.combine((BEGAN + 8 * DAY).date(), datetime.min.time(), east),
        TODAY - 2 * DAY + 13 * HOUR,
        TODAY,
        LEDGER_NOW,
    ]
    pairs = [(a, b) for a, b in product(moments, moments) if a < b]
    return [
        Span(cluster=name, since=a, until=b, monitored=monitored)
        for name, (a, b), monitored in product(names, pairs, (False, True))
    ]


def by_hand(tool: ForeignTool, asked: Sequence[Span]) -> list[tuple[Any, ...] | None]:
    """Row by row, as they stand in the table."""
    rows = [
        (cluster, _moment(seen_at), *gpus, stage == "monitored" and not shadow)
        for cluster, seen_at, *gpus, stage, shadow in tool.rows(
            "SELECT cluster, seen_at, lacking_gpus, assigned_gpus - backed_gpus, stage, shadow FROM tallies"
        )
    ]
    answers: list[tuple[Any, ...] | None] = []
    for span in asked:
        theirs = [
            (seen, lacking, phantom)
            for cluster, seen, lacking, phantom, monitored in rows
            if cluster == span.cluster and span.since <= seen < span.until and (monitored or not span.monitored)
        ]
        moments = [one[0] for one in theirs]
        lacking, phantom = (_mean([one[n] for one in theirs if one[n] is not None]) for n in (1, 2))
        answers.append((len(theirs), min(moments), max(moments), lacking, phantom) if theirs else None)
    return answers


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)


def _mean(counts: Sequence[int]) -> float | None:
    return float(Fraction(sum(counts), len(counts))) if counts else None


def figures(means: Sequence[Mean | None]) -> list[tuple[Any, ...] | None]:
    return [None if m is None else (m.tallies, m.since, m.until, m.lacking_gpus, m.phantom_gpus) for m in means]


def the_same(ledger: Ledger, tool: ForeignTool, names: Sequence[str] = NAMES) -> None:
    """Twice: the second answer is of what is kept."""
    asked = spans(names)
    wanted = by_hand(tool, asked)
    assert figures(ledger.report.means(asked, LEDGER_NOW)) == wanted
    assert figures(ledger.report.means(asked, LEDGER_NOW)) == wanted


def sum_up(ledger: Ledger, days: int = 999) -> int:
    count = 0
    while count < days and ledger.tallies.sum_up(TODAY - KEPT_WHOLE, TODAY - DAY):
        count += 1
    return count


@pytest.fixture(autouse=True)
def _of_this_database(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers are shared among tests, whose clusters have the same names and times."""
    monkeypatch.setattr(ledger.report, "_means", TallyMeans())


def test_means_are_the_same_with_and_without_sums(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    the_same(ledger, tool)
    for days in (1, 3, 999):  # half of them, as after an upgrade, and then all
        sum_up(ledger, days)
        the_same(ledger, tool)
    assert not ledger.tallies.sum_up(TODAY - KEPT_WHOLE, TODAY - DAY)
    # Not of a day that somebody may still write to, and of none without a tally.
    summed = [_moment(at) for (at,) in tool.rows("SELECT DISTINCT at FROM tally_days ORDER BY at")]
    assert summed == [BEGAN + n * DAY for n in range(11) if n != 4]


def test_a_days_sums_are_its_rows(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    sum_up(ledger)
    day = "CAST(date(at) AS TEXT)" if not tool.postgresql else "CAST((at AT TIME ZONE 'UTC')::date AS TEXT)"
    groups = (
        f"SELECT cluster, {day}, CASE WHEN stage = 'monitored' AND NOT shadow THEN 1 ELSE 0 END, count(*), "
        "count(lacking_gpus), coalesce(sum(lacking_gpus), 0), count(backed_gpus), "
        "coalesce(sum(assigned_gpus - backed_gpus), 0) FROM tallies WHERE at < ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
    sums = (
        f"SELECT cluster, {day}, CASE WHEN monitored THEN 1 ELSE 0 END, tallies, lacking_known, lacking_gpus, "
        "phantom_known, phantom_gpus FROM tally_days ORDER BY 1, 2, 3"
    )
    end = (TODAY - DAY).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert tool.rows(sums) == tool.rows(groups, end)


def test_what_comes_after_the_sums_counts_at_once(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger, until=LEDGER_NOW - 3 * HOUR)
    sum_up(ledger)
    the_same(ledger, tool)
    lived(ledger, since=LEDGER_NOW - 3 * HOUR)
    the_same(ledger, tool)


def test_a_mean_up_to_now_is_kept_until_the_next_tally_and_no_longer(ledger: Ledger, tool: ForeignTool) -> None:
    """Each look ends at its own time; between two looks there may be a tally or none, of any cluster and slot."""
    name, end = NAMES[1], LEDGER_NOW - 2 * HOUR
    lived(ledger, until=end)
    sum_up(ledger)

    def look(at: datetime) -> None:
        asked = [Span(cluster=name, since=BEGAN + 3 * DAY, until=at), Span(cluster=name, since=end - HOUR, until=at)]
        wanted, still_open = by_hand(tool, asked), [span._replace(until=None) for span in asked]
        assert figures(ledger.report.means(asked, LEDGER_NOW)) == wanted
        assert figures(ledger.report.means(still_open, at)) == wanted

    def tally(slot: datetime, seen: datetime, backed: int) -> None:
        ledger.tallies.keep(
            [Tally(cluster=name, at=slot, seen_at=seen, healthy_gpus=70, assigned_gpus=70, backed_gpus=backed)]
        )

    for minutes in (1, 2, 3):
        look(LEDGER_NOW + timedelta(minutes=minutes))
    tally(end, LEDGER_NOW + timedelta(minutes=30), 1)  # read by a clock that goes ahead of ours
    for minutes in (4, 29, 30, 31, 32):
        look(LEDGER_NOW + timedelta(minutes=minutes))
    tally(end - DAY / 2 - timedelta(minutes=1), end - DAY / 2, 33)  # of a slot that had none
    look(LEDGER_NOW + timedelta(minutes=33))
    tool.run("DELETE FROM tallies WHERE cluster = ? AND at >= ?", name, f"{end:%Y-%m-%dT%H:%M:%S.%f}Z")
    look(LEDGER_NOW + timedelta(minutes=34))


def test_a_tally_that_comes_late_counts(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    sum_up(ledger)
    the_same(ledger, tool)
    at = BEGAN + 6 * DAY + 3 * HOUR / 2  # its watch stood still for days between its reading and its writing
    late = Tally(cluster="beta", at=at, seen_at=at, healthy_gpus=9, assigned_gpus=9, backed_gpus=1, stage="monitored")
    ledger.tallies.keep([late])
    the_same(ledger, tool)
    assert tool.one("SELECT count(*) FROM tally_days WHERE cluster = 'beta' AND at > ?", "2000-01-01T00:00:00Z") > 0
    assert sum_up(ledger) == 0
    the_same(ledger, tool)


def test_days_that_are_summed_up_anew_are_read_anew(ledger: Ledger, tool: ForeignTool) -> None:
    """Late tallies of the last summed day drop all sums, which then begin again where they began before."""
    lived(ledger)
    sum_up(ledger)
    the_same(ledger, tool)
    first, last = tool.one("SELECT min(at) FROM tally_days"), _moment(tool.one("SELECT max(at) FROM tally_days"))
    at = last + 3 * HOUR / 2
    late = [
        Tally(cluster=name, at=at, seen_at=at, healthy_gpus=9, assigned_gpus=9, backed_gpus=1, stage="monitored")
        for name in NAMES
    ]
    ledger.tallies.keep(late)
    assert tool.one("SELECT count(*) FROM tally_days") == 0
    assert sum_up(ledger) > 0
    assert tool.one("SELECT min(at) FROM tally_days") == first
    the_same(ledger, tool)


def test_days_that_are_thinned_have_no_sums(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    sum_up(ledger)
    the_same(ledger, tool)
    for n in range(3):
        ledger.tallies.thin_out(BEGAN + n * DAY)
    the_same(ledger, tool)
    assert _moment(tool.one("SELECT min(at) FROM tally_days")) == BEGAN + 3 * DAY


def test_days_that_an_earlier_build_thins_are_not_told_by_their_sums(ledger: Ledger, tool: ForeignTool) -> None:
    old = TODAY - KEPT_WHOLE - DAY
    lived(ledger, since=old, until=old + 3 * DAY)
    while ledger.tallies.sum_up(old, old + 3 * DAY):
        pass
    asked = [Span(cluster="beta", since=old - DAY, until=LEDGER_NOW)]
    assert figures(ledger.report.means(asked, LEDGER_NOW)) == by_hand(tool, asked)
    tool.run("DELETE FROM tallies WHERE at > ? AND at < ?", *(f"{old:%Y-%m-%d}T{hour}:00:00Z" for hour in ("02", "23")))
    assert figures(ledger.report.means(asked, LEDGER_NOW)) == by_hand(tool, asked)


def test_a_cluster_that_is_called_otherwise_or_goes(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    sum_up(ledger)
    the_same(ledger, tool)
    before = tool.one("SELECT count(*) FROM tally_days WHERE cluster = 'beta'")
    ledger.fleet.rename_cluster("beta", "gamma", Signature("tpm", LEDGER_NOW, "desk/1"), dry_run=False)
    the_same(ledger, tool, (*NAMES, "gamma"))
    assert tool.one("SELECT count(*) FROM tally_days WHERE cluster = 'gamma'") == before
    ledger.fleet.remove_cluster("gamma", Signature("tpm", LEDGER_NOW, "desk/2"), dry_run=False)
    the_same(ledger, tool, (*NAMES, "gamma"))
    assert tool.one("SELECT count(*) FROM tally_days WHERE cluster = 'gamma'") == 0


def test_a_cluster_that_an_earlier_build_calls_otherwise_has_its_means(ledger: Ledger, tool: ForeignTool) -> None:
    """Its daily sums are gone with the old name; the means are right all the same."""
    lived(ledger)
    sum_up(ledger, 5)
    tool.run("DELETE FROM tally_days WHERE cluster = 'beta'")
    the_same(ledger, tool)
    sum_up(ledger)
    the_same(ledger, tool)


def test_the_watch_sums_days_up_when_it_has_nothing_else_to_do(ledger: Ledger, tool: ForeignTool) -> None:
    lived(ledger)
    tallier = Tallier(ledger.ports, ledger.tallies)
    goes = [tallier.go_on(LEDGER_NOW, HOUR) for _ in range(20)]
    assert sum(goes) == goes[0]
    assert tool.one("SELECT count(DISTINCT at) FROM tally_days") == 10
    the_same(ledger, tool)
