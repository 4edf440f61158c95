"""A present value is reported by the process that sees it now, and by no other afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from opentelemetry.metrics import CallbackOptions

from activities import metrics
from activities.metrics import SeenRollout, record_watch
from activities.rollout.archive import ArchiveActivities
from models.audit_chain import AuditEntry, AuditKind
from models.errors import Unavailable
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage


def exported(gauge: metrics._Seen) -> dict[tuple[str, ...], float]:
    """Return what a reader gets, by the labels' values."""
    return {tuple(map(str, (m.attributes or {}).values())): m.value for m in gauge._measure(CallbackOptions())}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for gauge in (metrics._stage, metrics._unbacked, metrics._health_age, metrics._archive_delay):
        monkeypatch.setattr(gauge, "_seen", {})


def test_a_cluster_has_one_stage_and_what_is_not_known_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now))
    record_watch(0, 30, [SeenRollout("a", "enforced", 26, 15.0), SeenRollout("b", "planned", None, None)])
    assert exported(metrics._stage) == {("a", "enforced"): 1, ("b", "planned"): 1}
    assert (exported(metrics._unbacked), exported(metrics._health_age)) == ({("a",): 26}, {("a",): 15.0})
    record_watch(0, 30, [SeenRollout("a", "rolling_back", None, 45.0)])
    assert exported(metrics._stage) == {("a", "rolling_back"): 1, ("b", "planned"): 1}
    assert exported(metrics._unbacked) == {}, "it is not guarded any more"

    now += 119  # four rounds
    assert exported(metrics._stage) != {}
    now += 2
    assert exported(metrics._stage) == exported(metrics._health_age) == {}, "another worker watches, or none"


class Archive:
    """Away, or not."""

    away = True

    def record(self, request: RecordRequest) -> None:
        if self.away:
            raise Unavailable("the ledger's database did not answer")


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def entries(*minutes_old: int) -> Sequence[AuditEntry]:
    return [
        AuditEntry(
            key=f"k{m}", cluster="a", at=NOON - timedelta(minutes=m), kind=AuditKind.COMMAND, actor="tpm", text="said"
        )
        for m in minutes_old
    ]


def test_the_archive_is_behind_by_its_oldest_entry_until_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    archive = Archive()
    request = RecordRequest(
        rollout="r", entries=tuple(entries(7, 2)), stage=Stage.PLANNED, ended=False, completed=False
    )
    recording = ArchiveActivities(archive, now=lambda: NOON)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="did not answer"):
        recording.record(request)
    assert exported(metrics._archive_delay) == {("a",): 420}
    archive.away = False
    recording.record(request)
    assert exported(metrics._archive_delay) == {("a",): 0}
