"""The weekly report's questions to the ledger, on both databases: rollouts' passages, means, milestones and notes."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from benchmarks.console_fleet import desk_on
from models.audit_chain import AuditEntry, AuditKind
from models.errors import Refusal
from models.questions import DeskRequest, PastWeek
from models.reports.milestones import Milestone, MilestoneNote
from models.reports.tallies import Tally
from models.reports.weekly import Span
from models.rollout.effects import EffectKind
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, NOW, ForeignTool, land, open_rollout

HOUR = timedelta(hours=1)


def reach(ledger: Ledger, stage: str, at: datetime, rollout: str = "r-1", cluster: str = CLUSTER, **more: Any) -> None:
    entry = AuditEntry(
        key=f"{rollout}/{stage}/{at}",
        cluster=cluster,
        rollout=rollout,
        at=at,
        kind=AuditKind.TRANSITION,
        actor="backstop",
        text=f"x -> {stage}: because",
        data={"before": "x", "after": stage},
        **more,
    )
    ledger.registry.archive([entry])


def tally(seen: timedelta, lacking: int | None, phantom: int | None = 0, **more: Any) -> Tally:
    known: dict[str, Any] = {"backed_gpus": 50 - phantom, "assigned_gpus": 50} if phantom is not None else {}
    waits: dict[str, Any] = {} if lacking is None else {"lacking_gpus": lacking, "pending_gpus": 90}
    at = NOW + seen - timedelta(minutes=30)
    return Tally(cluster=CLUSTER, at=at, seen_at=NOW + seen, healthy_gpus=99, **known, **waits, **more)


# --- ways ---------------------------------------------------------------------------------------------------


def test_a_way_is_told_by_the_archive_and_its_first_write_by_receipts(ledger: Ledger) -> None:
    open_rollout(ledger)
    land(ledger, EffectKind.RESERVE, 1)
    (way,) = ledger.report.passages(NOW + 5 * HOUR)
    assert way.wrote_at is None, "a reservation changes no quota"
    land(ledger, EffectKind.SET_SOFT, 2)
    for hour, stage in ((1, "buffered"), (2, "monitored"), (9, "rolling_back")):
        reach(ledger, stage, NOW + hour * HOUR)
    (way,) = ledger.report.passages(NOW + 5 * HOUR)
    assert (way.cluster, way.rollout, way.wrote_at) == (CLUSTER, "r-1", LEDGER_NOW)
    assert [(m.after, m.at, m.text) for m in way.moves] == [
        ("buffered", NOW + HOUR, "x -> buffered: because"),
        ("monitored", NOW + 2 * HOUR, "x -> monitored: because"),
    ]


def test_a_move_and_a_cut_that_come_after_a_look_are_in_the_next(ledger: Ledger, tool: ForeignTool) -> None:
    """Chains whose head stands still are not read again; each look is compared with the archive's rows."""

    def look() -> None:
        entries = [json.loads(entry) for (entry,) in tool.rows("SELECT entry FROM audit ORDER BY cluster, seq")]
        moves = [(e["cluster"], e["data"]["after"]) for e in entries if e["kind"] == "transition"]
        cuts = [(e["cluster"], e["data"]["cut"]["gpus"]) for e in entries if e["kind"] == "effect"]
        ways = ledger.report.passages(NOW + 9 * HOUR)
        assert [(m.cluster, m.after) for way in ways for m in way.moves] == moves
        sums = {name: sum(gpus for where, gpus in cuts if where == name) for name, _ in cuts}
        assert {one.cluster: one.cut_gpus for one in ledger.report.cuts(NOW - HOUR, NOW + 9 * HOUR)} == sums

    def cut(cluster: str, gpus: int, hours: int) -> None:
        data = {"effect": "set_soft", "cut": {"gpus": gpus, "phantom_gpus": 0, "to_flex_gpus": gpus}}
        entry = AuditEntry(
            key=f"{cluster}/{hours}", cluster=cluster, at=NOW + hours * HOUR, kind=AuditKind.EFFECT, actor="t", text="w"
        )
        ledger.registry.archive([entry.but(data=data)])

    open_rollout(ledger)
    open_rollout(ledger, "r-2", cluster="beta")
    look()
    reach(ledger, "buffered", NOW + HOUR)
    look()
    cut(CLUSTER, 7, 1)
    look()
    reach(ledger, "buffered", NOW + HOUR, rollout="r-2", cluster="beta")
    cut("beta", 5, 2)
    reach(ledger, "enforced", NOW + 2 * HOUR)
    look()
    look()
    cut(CLUSTER, 9, 3)
    look()


def test_what_happens_after_a_look_is_in_the_outcomes_of_the_next(ledger: Ledger, tool: ForeignTool) -> None:
    """Looks keep what they made of passages and means; each is compared with the rows."""
    desk, now = desk_on(ledger), LEDGER_NOW

    def outcomes(until: datetime) -> list[tuple[Any, ...]]:
        week = PastWeek(since=until - timedelta(days=7), until=until, times=(until,), within_seconds=3600)
        past = desk._answers[PastWeek](week, DeskRequest(kind=week.kind))
        return [
            (one.wrote_at, one.monitored_at, *(mean and mean.phantom_gpus for mean in (one.before, one.after)))
            for one in past.outcomes
        ]

    def after(since: datetime, until: datetime) -> Any:
        rows = tool.rows("SELECT seen_at, assigned_gpus - backed_gpus, stage FROM tallies")
        moments = [(datetime.fromisoformat(str(at)), phantom, stage) for at, phantom, stage in rows]
        phantom = [gpus for at, gpus, stage in moments if since <= at < until and stage == "monitored"]
        return sum(phantom) / len(phantom) if phantom else None

    def seen(minutes: int, phantom: int) -> None:
        ledger.tallies.keep([tally(now + timedelta(minutes=minutes) - NOW, None, phantom, stage="monitored")])

    open_rollout(ledger)
    land(ledger, EffectKind.SET_SOFT, 1)
    (wrote,) = (datetime.fromisoformat(str(at)) for (at,) in tool.rows("SELECT at FROM receipts"))
    assert outcomes(wrote - timedelta(seconds=1)) == []
    assert outcomes(wrote) == [(wrote, None, None, None)]
    reach(ledger, "monitored", now + 2 * HOUR)
    assert outcomes(now + HOUR) == [(wrote, None, None, None)]
    for minutes, phantom in ((0, 0), (125, 8), (140, 3)):
        if phantom:
            seen(minutes, phantom)
        for later in (150, 151):
            until = now + timedelta(minutes=later)
            assert outcomes(until) == [(wrote, now + 2 * HOUR, None, after(now + 2 * HOUR, until))]
    seen(160, 40)
    for later in (155, 165, 155):
        until = now + timedelta(minutes=later)
        assert outcomes(until) == [(wrote, now + 2 * HOUR, None, after(now + 2 * HOUR, until))]
    reach(ledger, "rolling_back", now + timedelta(minutes=130))
    left = now + timedelta(minutes=130)
    assert outcomes(now + 3 * HOUR) == [(wrote, now + 2 * HOUR, None, after(now + 2 * HOUR, left))]


def test_where_another_system_keeps_the_receipts_the_first_step_stands_for_the_first_write(ledger: Ledger) -> None:
    open_rollout(ledger)
    reach(ledger, "buffered", NOW + HOUR)
    assert [w.wrote_at for w in ledger.report.passages(NOW + 5 * HOUR)] == [NOW + HOUR]
    assert [w.wrote_at for w in ledger.report.passages(NOW)] == [None]


def test_shadows_and_what_only_quotes_a_transition_are_left_out(ledger: Ledger) -> None:
    open_rollout(ledger, shadow=True)
    open_rollout(ledger, "r-2", "beta")
    reach(ledger, "monitored", NOW)
    reach(ledger, "buffered", NOW, "r-2", "beta")
    quoting = AuditEntry(
        key="q",
        cluster="beta",
        rollout="r-2",
        at=NOW,
        kind=AuditKind.COMMAND,
        actor="tpm",
        text='"kind":"transition"',
        data={"kind": "transition", "after": "monitored"},
    )
    ledger.registry.archive([quoting])
    assert [(w.cluster, [m.after for m in w.moves]) for w in ledger.report.passages(NOW)] == [("beta", ["buffered"])]


# --- means --------------------------------------------------------------------------------------------------


def means(ledger: Ledger, *spans: tuple[float, float, bool]) -> list[Any]:
    asked = [
        Span(cluster=CLUSTER, since=NOW + a * HOUR, until=NOW + b * HOUR, monitored=monitored)
        for a, b, monitored in spans
    ]
    return [
        None if m is None else (m.tallies, m.lacking_gpus, m.phantom_gpus)
        for m in ledger.report.means(asked, LEDGER_NOW)
    ]


def test_a_mean_is_of_what_was_read_in_its_time(ledger: Ledger) -> None:
    ledger.tallies.keep(
        [tally(0 * HOUR, 10, 8), tally(HOUR, 21, 3), tally(2 * HOUR, None, 4), tally(3 * HOUR, None, None)]
    )
    assert means(ledger, (0, 2, False), (0, 9, False), (2, 9, False), (3, 9, False), (4, 9, False)) == [
        (2, 15.5, 5.5),
        (4, 15.5, 5.0),
        (2, None, 4.0),
        (1, None, None),
        None,
    ]
    # Read at the hour, in a slot that began before it: it belongs to the time in which it was read.
    assert means(ledger, (1, 1.1, False)) == [(1, 21.0, 3.0)]
    assert means(ledger, (0.4, 0.9, False)) == [None]


def test_a_mean_that_was_kept_is_not_taken_for_a_span_that_ends_after_later_tallies(ledger: Ledger) -> None:
    ledger.tallies.keep([tally(0 * HOUR, 10, 8)])
    assert means(ledger, (0, 9, False)) == [(1, 10.0, 8.0)]
    ledger.tallies.keep([tally(HOUR, 21, 3), tally(2 * HOUR, None, 4)])
    assert means(ledger, (0, 2, False), (0, 9, False)) == [(2, 15.5, 5.5), (3, 15.5, 5.0)]


def test_after_counts_the_monitored_tallies_alone(ledger: Ledger) -> None:
    stages: list[dict[str, Any]] = [
        {"stage": "monitored"},
        {"stage": "monitored", "shadow": True},
        {"stage": "enforced"},
        {},
    ]
    ledger.tallies.keep([tally(n * HOUR, n, n, **stage) for n, stage in enumerate(stages, 1)])
    assert means(ledger, (0, 9, True), (0, 9, False)) == [(1, 1.0, 1.0), (4, 2.5, 2.5)]


def test_clusters_are_counted(ledger: Ledger) -> None:
    assert len(ledger.report.clusters()) == 2


# --- milestones -----------------------------------------------------------------------------------------------


def milestone(name: str, measure: str = "users trained", target: int = 5) -> Milestone:
    return Milestone(name=name, measure=measure, target=target, due=date(2026, 12, 4))


def note(name: str, number: int, hours: int = 0) -> MilestoneNote:
    return MilestoneNote(milestone=name, at=NOW + hours * HOUR, number=number, actor="ana", reason="second class")


def test_a_plan_takes_the_place_of_the_one_before_and_notes_stay(ledger: Ledger, tool: ForeignTool) -> None:
    milestones = ledger.milestones
    milestones.plan_milestones([milestone("b"), milestone("a", "phantom_gpus")], {"phantom_gpus": 7}, NOW)
    milestones.note_milestone("k1", note("b", 3))
    milestones.note_milestone("k1", note("b", 4, 1))  # delivered twice
    milestones.note_milestone("k2", note("b", 2, -1))
    assert [(p.milestone.name, p.started_from) for p in milestones.milestones().planned] == [("b", 0), ("a", 7)]
    assert [n.number for n in milestones.milestones().notes] == [2, 3]

    for _ in range(2):
        milestones.plan_milestones([milestone("c"), milestone("a", "phantom_gpus", 1)], {"phantom_gpus": 1}, NOW + HOUR)
    found = milestones.milestones()
    assert [(p.milestone.name, p.milestone.target, p.began, p.started_from) for p in found.planned] == [
        ("c", 5, NOW + HOUR, 0),
        ("a", 1, NOW, 7),
    ]
    assert found.notes == ()
    assert tool.rows("SELECT milestone, number, actor, reason FROM milestone_notes ORDER BY key") == [
        ("b", 3, "ana", "second class"),
        ("b", 2, "ana", "second class"),
    ]
    milestones.plan_milestones([milestone("b")], {}, NOW + 2 * HOUR)
    assert [n.number for n in milestones.milestones().notes] == [2, 3]


@pytest.mark.parametrize(
    ("name", "said"), [("x", "there is no milestone 'x'"), ("a", "Backstop measures milestone 'a' itself")]
)
def test_a_note_that_says_nothing_is_refused(ledger: Ledger, tool: ForeignTool, name: str, said: str) -> None:
    ledger.milestones.plan_milestones([milestone("a", "monitored_clusters")], {"monitored_clusters": 0}, NOW)
    with pytest.raises(Refusal, match=said):
        ledger.milestones.note_milestone("k", note(name, 3))
    assert tool.rows("SELECT 1 FROM milestone_notes") == []
