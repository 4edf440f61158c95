"""Flex as it is: the sums, who is on it, and the command that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.commands.flex import hours_between
from cli.main import run
from cli.output import _plain
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow, flex_now, share_expected
from models.flex.flex_sum import FlexSum
from models.reports.tallies import Point
from tests.unit.cli_fakes import FakeBackstop, answering
from views.flex import cluster_parts, fleet_parts, fleet_summary
from views.row_models import FlexOffered
from web.console.pages.flex import flex_rows

NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def seen(
    quotas: dict[str, int],
    usage: dict[str, tuple[int, int]],
    *islands: tuple[int, int, int],
    mode: FlexMode = FlexMode.EQUAL,
) -> FlexNow:
    """Usage: scheduled and pending by team. Islands: total, healthy, healthy on whole nodes."""
    reading = QuotaReading(
        cluster="h100-worked", generation=1, quotas=tuple(Present(team=t, gpus=g) for t, g in quotas.items())
    )
    sample = HealthSample(
        cluster="h100-worked",
        at=NOW,
        islands=tuple(
            Island(name=f"i{n}", total_gpus=t, healthy_gpus=h, block_gpus=b) for n, (t, h, b) in enumerate(islands)
        ),
    )
    said = {t: TeamUsage(team=t, scheduled_gpus=s, pending_gpus=p) for t, (s, p) in usage.items()}
    return flex_now(Evidence(reading, sample, said, NOW), mode)


def test_the_sums_are_those_of_the_words() -> None:
    """H = 319, promised 306: 13 are surplus; 310 run in quota at most, so that of 306 six are unused by the other."""
    found = seen({"research": 300, "evals": 6}, {"research": (310, 0), "evals": (0, 0)}, (361, 319, 304))
    assert (found.healthy_gpus, found.promised_gpus, found.backed_gpus) == (319, 306, 306)
    assert (found.in_quota_gpus, found.surplus_gpus, found.unused_gpus) == (300, 13, 6)
    assert (found.flex_gpus, found.used_gpus, found.available_gpus) == (19, 10, 9)
    assert [(o.team, o.gpus, o.share_gpus) for o in found.on_flex] == [("research", 10, 10)]
    assert [(i.name, i.block_gpus) for i in found.islands] == [("i0", 304)]


def test_who_is_furthest_above_its_share_would_give_back_first() -> None:
    quotas = {"a": 4, "b": 4, "c": 8}
    usage = {"a": (9, 0), "b": (6, 4), "c": (1, 0)}
    found = seen(quotas, usage, (16, 16, 16))
    assert [(o.team, o.gpus, o.share_gpus, o.above_gpus) for o in found.on_flex] == [("a", 5, 4, 1), ("b", 2, 3, -1)]
    by_quota = seen({"a": 6, "b": 2, "c": 8}, usage, (16, 16, 16), mode=FlexMode.QUOTA)
    assert [(o.team, o.share_gpus, o.above_gpus) for o in by_quota.on_flex] == [("a", 3, 0), ("b", 4, 0)]


def test_unknown_use_counts_as_all_of_the_quota() -> None:
    found = seen({"a": 10, "b": 10}, {"a": (2, 0)}, (32, 30, 24))
    assert (found.in_quota_gpus, found.unused_gpus, found.known_quotas, found.quotas) == (12, 8, 1, 2)


def test_the_largest_block_is_the_free_one() -> None:
    """By hand: of 384 healthy GPUs 291 are held, so 93 are free and no block is larger; of i1's 24, 20 are held."""
    held = {"a": (291, 0)}
    assert seen({"a": 300}, held, (400, 384, 384)).largest_free_block == (93, False)  # nobody says where jobs run
    assert seen({"a": 400}, {"a": (400, 0)}, (400, 384, 384)).largest_free_block == (0, True)
    islands = (Island(name="i0", total_gpus=16, healthy_gpus=16), Island(name="i1", total_gpus=24, healthy_gpus=24))
    jobs = tuple(
        Job(job=f"j{n}", team="a", gpus=gpus, on=RunsOn.QUOTA, island=f"i{n}", started=NOW)
        for n, gpus in enumerate((10, 20))
    )
    reading = QuotaReading(cluster="c", generation=1, quotas=(Present(team="a", gpus=40),))
    sample = HealthSample(cluster="c", at=NOW, islands=islands)
    usage = {"a": TeamUsage(team="a", scheduled_gpus=30)}
    found = flex_now(Evidence(reading, sample, usage, NOW, jobs))
    assert ([found.free_block(i) for i in found.islands], found.largest_free_block) == (
        [(6, True), (4, True)],
        (6, True),
    )


def test_gpus_that_jobs_outside_any_quota_hold_are_not_free() -> None:
    """By hand: of 40 healthy GPUs 10 are in quota, so 30 are flex; others' jobs hold 16 and 4 on flex, and 10 are free.

    b asks for 20 beyond its quota: of the 24 that can be divided the quotas take 18, and b gets the other 6.
    """
    islands = (Island(name="i0", total_gpus=24, healthy_gpus=24), Island(name="i1", total_gpus=16, healthy_gpus=16))
    rows = (
        ("a", 10, "quota", "i0"),
        ("guests", 12, "quota", "i1"),
        ("sum", 4, "quota", "i0"),
        ("guests", 4, "flex", "i0"),
    )
    jobs = tuple(
        Job(job=f"j{n}", team=team, gpus=gpus, on=RunsOn(on), island=island, started=NOW)
        for n, (team, gpus, on, island) in enumerate(rows)
    )
    ended = jobs[1].model_copy(update={"job": "over", "ended": NOW})
    quotas = (
        Present(team="sum", gpus=20),
        Present(team="a", gpus=10, parent="sum"),
        Present(team="b", gpus=8, parent="sum"),
    )
    usage = {"a": TeamUsage(team="a", scheduled_gpus=10), "b": TeamUsage(team="b", scheduled_gpus=0, pending_gpus=20)}
    sample = HealthSample(cluster="c", at=NOW, islands=islands)
    reading = QuotaReading(cluster="c", generation=1, quotas=quotas)
    found = flex_now(Evidence(reading, sample, usage, NOW, (*jobs, ended)))
    assert (found.promised_gpus, found.backed_gpus, found.in_quota_gpus, found.flex_gpus) == (18, 18, 10, 30)
    assert (found.outside, found.used_gpus, found.available_gpus) == ({"guests": 16, "sum": 4}, 20, 10)
    assert [found.free_block(i) for i in found.islands] == [(6, True), (4, True)]
    assert found.on_flex == ()
    text = "\n".join(str(part) for part in cluster_parts(found, ()))
    assert "Flex: 30 (22 outside any quota, 8 unused inside quotas); 20 used, 10 free now." in text
    assert "Jobs outside any quota hold 20 GPUs: guests 16, sum 4." in text
    snapshot = Snapshot(cluster="c", islands=islands, quotas=tuple(q.as_quota() for q in quotas))
    assert [share_expected(snapshot, usage, "b", 20, outside) for outside in (0, 16)] == [20, 6]


def test_hardware_that_is_not_there_is_no_flex() -> None:
    found = seen({"a": 40}, {"a": (50, 0)}, (64, 32, 32))
    assert (found.backed_gpus, found.surplus_gpus, found.unused_gpus, found.available_gpus) == (32, 0, 0, 0)
    nothing = flex_now(Evidence(QuotaReading(cluster="h100-worked", generation=1, quotas=()), None, {}, NOW))
    assert (nothing.health_at, nothing.flex_gpus) == (None, 0)


def test_the_record_is_hourly_as_far_as_the_ledger_answers_at_once() -> None:
    week = hours_between(NOW - timedelta(days=7), NOW)
    assert (len(week), week[0], week[-2], week[-1]) == (
        *(169, datetime(2026, 1, 24, 13, tzinfo=UTC)),
        *(datetime(2026, 1, 31, 12, tzinfo=UTC), NOW),
    )
    year = hours_between(NOW - timedelta(days=365), NOW)
    assert len(year) <= 500
    assert year[1] - year[0] == timedelta(hours=18)
    assert len(hours_between(NOW - timedelta(minutes=1), NOW)) == 3


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.setenv("BACKSTOP_ACTOR", "tpm")
    train = seen({"a": 4, "b": 4, "c": 8}, {"a": (9, 0), "b": (6, 4), "c": (1, 0)}, (16, 16, 8))
    silent = flex_now(Evidence(QuotaReading(cluster="silent", generation=1, quotas=()), None, {}, NOW))
    points = [
        Point(
            at=NOW - timedelta(hours=n),
            clusters=2,
            known=known,
            total_gpus=16,
            healthy_gpus=16,
            promised_gpus=16,
            phantom_gpus=0,
            flex_gpus=gpus,
            asking=0,
            pending_gpus=None,
            lacking_gpus=None,
        )
        for n, (gpus, known) in enumerate([(4, 1), (9, 1), (0, 0), (12, 1)])
    ]
    with answering(FakeBackstop(flexes=[silent, train], points=points[::-1])) as door:
        yield door


@pytest.mark.parametrize(("records", "so"), [(1, "The record of "), (2, "Each record since ")])
def test_a_record_is_not_taken_for_what_is_so_now(records: int, so: str) -> None:
    """Health fell after the last record: the table above it has other numbers."""
    record = [FlexOffered(at=NOW - timedelta(hours=n), flex_gpus=9, healthy_gpus=16) for n in range(records, 0, -1)]
    first = f"{NOW - timedelta(hours=records):%Y-%m-%d %H:%M:%SZ}"
    assert str(fleet_summary([], record)[-1]) == f"{so}{first} has 9 GPUs of flex."


def test_what_is_used_and_free_adds_up_to_the_flex_there_is() -> None:
    """Health fell under running jobs: of the 20 GPUs that jobs hold beyond their quotas 14 are flex, and of 1 none."""
    cut = [
        FlexSum(cluster=name, health_at=NOW, flex_gpus=flex, used_gpus=used, available_gpus=max(0, flex - used))
        for name, flex, used in (("free", 99, 1), ("fell", 14, 20), ("gone", 0, 1))
    ]
    assert str(fleet_summary(cut, [])[1]).startswith(
        "3 clusters: 113 GPUs of flex, 15 used, 98 free now. Jobs hold 7 more GPUs beyond quotas than there is flex. "
    )
    rows = [text.split()[4:7] for text in list(_plain(fleet_parts(cut, [])[0]))[1:]]
    assert rows == [["99", "1", "98"], ["14", "14", "0"], ["0", "0", "0"]]
    assert [(row.flex, row.used, row.free) for row in flex_rows(cut)] == [(99, 1, 98), (14, 14, 0), (0, 0, 0)]


def test_the_fleet_has_a_line_for_each_cluster(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flex", "--since", "2026-01-01"]) == 0
    shown = capsys.readouterr().out
    rows = [words for words in map(str.split, shown.splitlines()) if words and words[0] in ("h100-worked", "silent")]
    assert rows == [["h100-worked", "16/16", "16", "9", "7", "7", "0", "0"], ["silent", "unknown", *"------"]]
    assert "2 clusters: 7 GPUs of flex, 7 used, 0 free now." in shown
    assert re.search(
        r"Records since [-0-9]+ [:0-9]+Z have between 4 and 12 GPUs of flex, and half of them at least 9:\s+\|", shown
    )
    assert fake.asked[0] == ("flex", "", FlexMode.EQUAL)


@pytest.mark.parametrize("words", [["flex", "h100-worked"], ["flex", "show", "h100-worked"]])
def test_a_cluster_by_its_name_alone(fake: FakeBackstop, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fake.flexes = fake.flexes[1:]
    assert run([*words, "--mode", "quota"]) == 0
    shown = capsys.readouterr().out
    assert fake.asked[0] == ("flex", "h100-worked", FlexMode.QUOTA)
    assert "In quota: 16 promised, 16 backed, 9 used." in shown
    assert "Flex: 7 (0 outside any quota, 7 unused inside quotas); 7 used, 0 free now." in shown
    assert [line.split()[:4] for line in shown.splitlines() if line.startswith(("a ", "b "))] == [
        ["a", "5", "4", "1"],
        ["b", "2", "3", "0"],
    ]
    assert "gives back first" in shown


def test_the_answer_as_json_has_the_record(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flex", "--json", "--since", "2026-01-01"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema"] == "backstop.flex/1"
    assert [r["flex_gpus"] for r in found["record"]] == [12, 9, 4]
    assert [c["cluster"] for c in found["clusters"]] == ["silent", "h100-worked"]


def test_bad_options_are_one_sentence(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flex", "h100-worked", "--mode", "fair"]) == 2
    assert "--mode must be one of equal, quota, weight, not 'fair'" in capsys.readouterr().err
    assert run(["flex", "--since", "tomorrow"]) == 2
    assert "--since" in capsys.readouterr().err
