"""The marks in a cluster's picture: breaches by the archive, windows as declared, promises by stage."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.audit_chain import AuditEntry, AuditKind, ChainedEntry
from models.cluster.windows import Window, WindowKind
from models.questions import ArchivePage
from models.reports.tallies import Point
from models.rollout import time_reducers
from web.console.pages.cluster_curve import BACKED_AGAIN, bands_of, cluster_curve
from web.console.pages.gpu_curves import over_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINCE = NOON - timedelta(days=7)


def ago(hours: float) -> datetime:
    return NOON - timedelta(hours=hours)


def archive(*entries: tuple[float, AuditKind, str, dict[str, Any]]) -> ArchivePage:
    rows = tuple(
        ChainedEntry(
            seq=n,
            previous_hash="",
            hash="",
            entry=AuditEntry(key=f"k-{n}", cluster="c", at=ago(hours), kind=kind, actor="guard", text=text, data=data),
        )
        for n, (hours, kind, text, data) in enumerate(entries, start=1)
    )
    return ArchivePage(rows=rows, head=None)


def point(hours: float, healthy: int = 80) -> Point:
    sums: dict[str, Any] = {
        "total_gpus": 100,
        "healthy_gpus": healthy,
        "promised_gpus": 70,
        "phantom_gpus": 0,
        "flex_gpus": 10,
    }
    return Point(at=ago(hours), clusters=1, known=1, asking=0, pending_gpus=None, lacking_gpus=None, **sums)


BREACH = (30, AuditKind.GUARD, "breach: research lacks 8", {"breach": {"research": 8}})
AGAIN: tuple[float, AuditKind, str, dict[str, Any]] = (28, AuditKind.GUARD, f"{BACKED_AGAIN}: the promise holds", {})


def test_a_breach_lasts_until_the_guard_says_that_all_is_backed_again() -> None:
    (band,) = bands_of(archive(BREACH, AGAIN), (), SINCE, NOON)
    assert (band.kind, band.begins, band.ends, band.over) == ("breach", ago(30), ago(28), True)


def test_or_until_the_next_stage_and_one_that_is_not_over_until_now() -> None:
    rolled = (29, AuditKind.TRANSITION, "monitored -> rolling_back", {"after": "rolling_back"})
    (band,) = bands_of(archive(BREACH, rolled), (), SINCE, NOON)
    assert (band.ends, band.over) == (ago(29), True)
    (still,) = bands_of(archive(BREACH), (), SINCE, NOON)
    assert (still.ends, still.over) == (NOON, False)


def test_the_guard_says_it_in_these_words() -> None:
    source = inspect.getsource(time_reducers)
    assert f'"{BACKED_AGAIN}: the promise holds"' in source
    assert "breach={t:" in source


def test_windows_are_cut_to_the_picture_and_those_outside_are_left_out() -> None:
    def window(starts: float, ends: float) -> Window:
        return Window(kind=WindowKind.MAINTENANCE, starts=ago(starts), ends=ago(ends), reason="power")

    bands = bands_of(None, [window(200, 100), window(300, 200), window(3, -3), window(-1, -2)], SINCE, NOON)
    assert [(b.begins, b.ends, b.over) for b in bands] == [(SINCE, ago(100), True), (ago(3), NOON, False)]


def test_what_is_assigned_is_a_promise_while_the_rollout_guards_it() -> None:
    told = archive(
        (60, AuditKind.TRANSITION, "to planned", {"after": "planned"}),
        (50, AuditKind.TRANSITION, "to enforced", {"after": "enforced"}),
        (20, AuditKind.TRANSITION, "to closed", {"after": "closed"}),
    )
    curve = cluster_curve([point(55), point(45), point(21), point(10)], told, None, ())
    assert curve is not None
    of = dict(zip(curve["names"], curve["data"][1:], strict=True))
    assert of["promise"] == [None, 70, 70, None]
    assert of["assigned"] == [70, 70, 70, 70]
    assert of["ceiling"] == [None] * 4, "nobody can plan it now"


@pytest.mark.parametrize(
    ("hours", "so"), [(0.45, "27 minutes"), (1, "1 hour"), (23.4, "23 hours"), (24, "1 day"), (60, "2 days")]
)
def test_a_picture_says_how_long_it_is(hours: float, so: str) -> None:
    assert over_text([point(hours), point(0)]) == so
