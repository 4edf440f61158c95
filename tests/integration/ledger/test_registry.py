"""Backstop's own book: who is open where, who may adopt whom, and how much may move in an hour."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial

import pytest
from temporalio.exceptions import ApplicationError

from activities.adapters.ledger.facade import Ledger
from activities.ports.registry import OpenRollout
from activities.rollout.effects import QuotaActivities
from models.audit_chain import AuditEntry, AuditKind
from models.cluster.policy import Ramp, Tier
from models.cluster.readings import LimitMode
from models.errors import BlastRadius, Conflict, HistoryLapse, Refusal, Unavailable
from models.fleet.messages import Noted
from models.fleet.state import FLEET
from models.lifecycle.holds import Hold, HoldKind
from models.planning.plan import Envelope
from models.rollout.effects import EffectKind, Fence
from models.rollout.messages import EffectRequest, RecordRequest
from models.rollout.stages import Stage
from models.status_questions import Overview
from tests.integration.ledger.world import (
    CLUSTER,
    NOW,
    ForeignTool,
    baseline,
    effect,
    land,
    minutes,
    note_stage,
    open_rollout,
    opening,
    reserve,
    set_soft,
    twice,
    values,
)


def rollouts(tool: ForeignTool) -> dict[str, tuple[str, bool, str | None, str | None]]:
    rows = tool.rows("SELECT id, stage, ended_at IS NOT NULL, superseded_by, adopted_from FROM rollouts")
    return {i: (stage, bool(ended), superseded, adopted) for i, stage, ended, superseded, adopted in rows}


def open_one(tool: ForeignTool, cluster: str = CLUSTER) -> str | None:
    found: str | None = tool.one("SELECT open_rollout FROM clusters WHERE name = ?", cluster)
    return found


def test_facts_lay_the_clusters_policy_over_the_fleets(ledger: Ledger) -> None:
    facts = twice(lambda: ledger.registry.facts(CLUSTER))
    assert facts.policy.buffer == Ramp(ramp=(Fraction(1, 20), Fraction(1, 10)))
    assert facts.policy.notice == timedelta(days=1)
    assert ledger.registry.facts("beta").policy.buffer == Fraction(15, 100)
    assert (facts.gpu_model, facts.gpus_per_node, facts.completed_rollouts) == ("H100", 8, 0)
    assert facts.contacts["a"] == ("log:", "mailto:a@example.org")
    assert facts.contacts["c"] == ()
    with pytest.raises(Refusal, match="no cluster 'gamma'"):
        ledger.registry.facts("gamma")


def test_an_opened_rollout_is_in_the_book_with_its_baseline(ledger: Ledger, tool: ForeignTool) -> None:
    planned = opening(ledger)
    opened = twice(lambda: ledger.registry.open_rollout(planned, adopt=False))
    assert opened == planned
    assert open_one(tool) == "r-1"
    stored = json.loads(tool.one("SELECT baseline FROM rollouts"))
    assert {q["team"]: q["gpus"] for q in stored["quotas"]} == tool.gpus()
    assert ledger.registry.open_clusters() == {CLUSTER: ("planned", False)}


def test_opening_in_an_unknown_cluster_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="no cluster 'gamma'"):
        ledger.registry.open_rollout(opening(ledger).model_copy(update={"cluster": "gamma"}), adopt=False)


def test_one_id_opens_in_one_cluster_only(ledger: Ledger) -> None:
    open_rollout(ledger)
    with pytest.raises(Refusal, match="belongs to cluster alpha"):
        ledger.registry.open_rollout(opening(ledger, "r-1", "beta"), adopt=False)


def test_opening_again_after_effects_changes_nothing(ledger: Ledger, tool: ForeignTool) -> None:
    planned = opening(ledger)
    ledger.registry.open_rollout(planned, adopt=False)
    set_soft(ledger, 3, ("a", 100, 90))
    note_stage(ledger, "r-1", "buffered", ended=False, completed=False)
    later = planned.model_copy(update={"baseline": baseline(ledger), "opened_at": NOW + minutes(9)})
    again = twice(lambda: ledger.registry.open_rollout(later, adopt=True))
    assert again == planned.model_copy(update={"stage": "buffered", "last_counter": 3})
    assert tool.one("SELECT last_counter FROM clusters WHERE name = ?", CLUSTER) == 3


def test_what_a_person_has_to_do_is_noted_with_the_stage(ledger: Ledger) -> None:
    open_rollout(ledger)
    shown = Overview(cluster=CLUSTER, rollout="r-1", stage="planned", needs="", health_at=NOW)
    assert ledger.registry.overview() == (shown.model_copy(update={"owner": "tpm", "opened_at": NOW}),)
    for needs in ("approve the plan", "approve the plan", ""):
        note_stage(ledger, "r-1", "planned", ended=False, completed=False, needs=needs)
        assert [row.needs for row in ledger.registry.overview()] == [needs]
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False)
    assert ledger.registry.overview() == ()


def test_what_holds_a_rollout_is_its_note_and_the_calendar_of_now(ledger: Ledger, tool: ForeignTool) -> None:
    def hold(kind: HoldKind, actor: str, reason: str, until: datetime | None = None) -> Hold:
        return Hold(id=kind.value, kind=kind, actor=actor, reason=reason, at=NOW, until=until)

    def note(held: tuple[Hold, ...] | None) -> str | None:
        fields = {"entries": (), "stage": Stage.PLANNED, "ended": False, "completed": False, "held": held}
        twice(lambda: ledger.registry.record(RecordRequest.model_validate({"rollout": "r-1", **fields})))
        (row,) = ledger.registry.overview()
        return row.held

    open_rollout(ledger)
    assert [row.held for row in ledger.registry.overview()] == [None], "no note is not: nothing holds it"
    assert note(()) == ""
    pause, now = hold(HoldKind.PAUSED, "ana", "a SEV"), ledger.now()
    over, later = (now + timedelta(minutes=m) for m in (-1, 90))
    spent = [hold(HoldKind.BLAST_RADIUS, "backstop", "nothing left", until) for until in (over, later)]
    until = f", until {later:%Y-%m-%d %H:%MZ}"
    assert note((pause, spent[0])) == "paused by ana: a SEV"
    assert note((spent[1],)) == f"blast radius: nothing left{until}"
    for number, (starts, ends) in enumerate(((over, later), (over - minutes(5), over), (later, later + minutes(5)))):
        tool.run(
            "INSERT INTO windows (cluster, kind, starts, ends, reason) VALUES (?, 'freeze', ?, ?, ?)",
            CLUSTER, *(f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}Z" for at in (starts, ends)),
            f"close {number}",
        )  # fmt: skip
    assert note((pause,)) == f"paused by ana: a SEV; freeze: close 0{until}"
    assert note(None) == f"freeze: close 0{until}", (
        "an earlier build notes nothing, and the calendar is known all the same"
    )
    tool.run("DELETE FROM windows")
    assert note(None) is None
    tool.run("UPDATE rollouts SET held = '[{}'")
    assert [row.held for row in ledger.registry.overview()] == [None]


def test_only_a_monitored_rollout_that_noted_no_lack_and_needs_nobody_is_quiet(
    ledger: Ledger, tool: ForeignTool
) -> None:
    quiet = '{"entered_at":"2026-11-24T12:00:00Z"}'
    rows = (  # the last of each: whether reports have nothing of it to say
        ("monitored", "", quiet, True),
        ("enforced", "", quiet, False),
        ("monitored", "settle it", quiet, False),
        ("monitored", "", quiet[:-1] + ',"lacking_gpus":3}', False),
        ("monitored", "", quiet[:-1] + ',"lacking_team_count":1}', False),
        ("monitored", "", None, False),
        ("monitored", "", "{", False),
        ("monitored", "", quiet[:-1] + ',"wave":"idle"}', True),
    )
    open_rollout(ledger)
    for stage, needs, note, is_quiet in rows:
        tool.run("UPDATE rollouts SET stage = ?, needs = ?, note = ?", stage, needs, note)
        listed = ledger.registry.overview(noted=True, quiet=False)
        assert [row.cluster for row in listed] == ([] if is_quiet else [CLUSTER])
        assert [row.stage for row in ledger.registry.overview(noted=True)] == [stage]
    tool.run("UPDATE rollouts SET shadow = ?", True)
    assert [row.shadow for row in ledger.registry.overview(noted=True, quiet=False)] == [True]
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False)
    assert [len(ledger.registry.overview(noted=True, quiet=quiet)) for quiet in (True, False)] == [1, 0]


def test_a_shadow_is_told_as_one_while_it_is_open_and_as_long_as_it_was_the_last(ledger: Ledger) -> None:
    shadow = open_rollout(ledger, shadow=True)
    assert [(row.shadow, row.ended) for row in ledger.registry.overview()] == [(True, False)]
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False)
    assert [(row.shadow, row.ended, row.health_at) for row in ledger.registry.overview()] == [(True, True, None)]
    later = shadow.model_copy(update={"rollout": "r-2", "opened_at": NOW + minutes(9), "shadow": False})
    ledger.registry.open_rollout(later, adopt=False)
    assert [(row.rollout, row.shadow, row.ended) for row in ledger.registry.overview()] == [("r-2", False, False)]


def test_a_lost_rollout_without_effects_is_replaced_quietly(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    ledger.registry.reserve_moves(Fence(rollout="r-1", counter=1), CLUSTER, 10, 512, NOW)
    opened = open_rollout(ledger, "r-2")
    assert opened.adopted_from == ""
    assert open_one(tool) == "r-2"
    assert rollouts(tool) == {"r-1": ("planned", True, "r-2", None), "r-2": ("planned", False, None, None)}
    with pytest.raises(Conflict):
        ledger.quotas.apply(effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90))))


def with_effects(ledger: Ledger) -> OpenRollout:
    opened = open_rollout(ledger)
    set_soft(ledger, 1, ("a", 100, 90))
    return opened


def test_effects_of_a_lost_rollout_are_not_ignored(ledger: Ledger, tool: ForeignTool) -> None:
    with_effects(ledger)
    refused = (
        r"still has effects of rollout r-1 \(planned, opened by tpm\): adopt them with `backstop launch .+ --adopt`"
    )
    for _ in range(2):
        with pytest.raises(Refusal, match=refused):
            ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=False)
    assert open_one(tool) == "r-1"
    assert list(rollouts(tool)) == ["r-1"]


def test_adopting_gives_the_lost_rollouts_baseline_and_kills_its_fences(ledger: Ledger, tool: ForeignTool) -> None:
    lost = with_effects(ledger)
    successor = opening(ledger, "r-2")  # its own baseline would have a at 90
    adopted = twice(lambda: ledger.registry.open_rollout(successor, adopt=True))
    assert adopted.baseline == lost.baseline != successor.baseline
    assert adopted.adopted_from == "r-1"
    assert (adopted.last_counter, adopted.written["a"]) == (0, 90)
    assert rollouts(tool) == {"r-1": ("planned", True, "r-2", None), "r-2": ("planned", False, None, "r-1")}
    for counter in (1, 2):  # its last fence too
        with pytest.raises(Conflict, match="rollout r-2 is open there"):
            ledger.quotas.apply(effect(EffectKind.RESTORE, counter, writes=values(("a", 90, 100))))
    assert tool.gpus()["a"] == 90
    with pytest.raises(Conflict, match="taken over by rollout r-2"):
        ledger.registry.open_rollout(lost, adopt=True)
    land(ledger, EffectKind.RESTORE, 1, "r-2", writes=values(("a", 90, 100)))
    assert tool.gpus()["a"] == 100


def test_an_adopter_that_is_lost_itself_is_adopted_in_turn(ledger: Ledger) -> None:
    lost = with_effects(ledger)
    ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=True)
    with pytest.raises(Refusal, match="effects of rollout r-2"):
        ledger.registry.open_rollout(opening(ledger, "r-3"), adopt=False)
    third = ledger.registry.open_rollout(opening(ledger, "r-3"), adopt=True)
    assert third.baseline == lost.baseline
    assert (third.adopted_from, third.written["a"]) == ("r-2", 90)


def test_a_reservation_that_an_ended_rollout_left_is_adopted_too(ledger: Ledger, tool: ForeignTool) -> None:
    lost = open_rollout(ledger)
    reserve(ledger, 1, 310)
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False)
    assert open_one(tool) is None
    with pytest.raises(Refusal, match="effects of rollout r-1"):
        ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=False)
    tool.set("b", 1)
    adopted = ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=True)
    assert adopted.baseline == lost.baseline
    land(ledger, EffectKind.RELEASE, 1, "r-2")
    assert tool.one("SELECT reserve_limit FROM clusters WHERE name = ?", CLUSTER) is None


def test_where_another_system_holds_the_quotas_the_noted_stage_tells_of_effects(ledger: Ledger) -> None:
    open_rollout(ledger)
    note_stage(ledger, "r-1", "buffered", ended=False, completed=False)
    with pytest.raises(Refusal, match="effects of rollout r-1"):
        ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=False)


def test_a_shadow_rollout_leaves_nothing_to_adopt(ledger: Ledger) -> None:
    open_rollout(ledger, shadow=True)
    note_stage(ledger, "r-1", "buffered", ended=False, completed=False)
    assert ledger.registry.open_clusters() == {CLUSTER: ("buffered", True)}
    assert open_rollout(ledger, "r-2").adopted_from == ""


def test_an_ended_rollout_frees_its_cluster(ledger: Ledger, tool: ForeignTool) -> None:
    with_effects(ledger)
    twice(lambda: note_stage(ledger, "r-1", "closed", ended=True, completed=True))
    assert ledger.registry.open_clusters() == {}
    opened = open_rollout(ledger, "r-2")
    assert opened.adopted_from == ""
    assert opened.baseline.tree.by_team["a"].gpus == 90  # today's value
    assert open_one(tool) == "r-2"


def test_a_completed_rollout_moves_the_ramp_on_once(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    for stage, ended in (("monitored", False), ("monitored", False), ("closed", True)):
        twice(partial(note_stage, ledger, "r-1", stage, ended, True))
    assert tool.one("SELECT completed_rollouts FROM clusters WHERE name = ?", CLUSTER) == 1
    facts = ledger.registry.facts(CLUSTER)
    assert facts.completed_rollouts == 1
    assert facts.policy.buffer_at(1) == Fraction(1, 10)


def test_a_shadow_rollout_does_not_move_the_ramp_on(ledger: Ledger) -> None:
    open_rollout(ledger, shadow=True)
    note_stage(ledger, "r-1", "closed", ended=True, completed=True)
    assert ledger.registry.facts(CLUSTER).completed_rollouts == 0


def test_a_late_note_of_an_ended_or_adopted_rollout_does_not_touch_the_cluster(
    ledger: Ledger, tool: ForeignTool
) -> None:
    with_effects(ledger)
    ledger.registry.open_rollout(opening(ledger, "r-2"), adopt=True)
    note_stage(ledger, "r-1", "stuck", ended=True, completed=True)
    assert open_one(tool) == "r-2"
    assert tool.one("SELECT completed_rollouts FROM clusters WHERE name = ?", CLUSTER) == 0
    note_stage(ledger, "r-2", "closed", ended=True, completed=False)
    note_stage(ledger, "r-2", "planned", ended=False, completed=False)
    assert rollouts(tool)["r-2"][0] == "closed"
    with pytest.raises(Refusal, match="no rollout 'r-9'"):
        note_stage(ledger, "r-9", "planned", ended=False, completed=False)


def test_breaches_are_booked_by_cluster_and_hour_before_they_are_aimed(ledger: Ledger, tool: ForeignTool) -> None:
    twice(lambda: ledger.registry.reserve_breach(CLUSTER, 1, NOW))
    with pytest.raises(
        BlastRadius,
        match=r"^in the last hour Backstop has begun to roll back 1 cluster \(alpha\) after breaches, and max_br\w+ 1",
    ):
        ledger.registry.reserve_breach("beta", 1, NOW + timedelta(minutes=59))
    assert tool.rows("SELECT cluster FROM breaches") == [(CLUSTER,)]
    ledger.registry.reserve_breach("beta", None, NOW + timedelta(minutes=59))  # a person has lifted the limit
    ledger.registry.release_breach("beta")
    ledger.registry.reserve_breach("beta", 1, NOW + timedelta(hours=1))
    assert tool.rows("SELECT cluster FROM breaches ORDER BY cluster") == [(CLUSTER,), ("beta",)]


def book(ledger: Ledger, counter: int, gpus: int, *, cluster: str = CLUSTER, after: timedelta = timedelta(0)) -> None:
    fence = Fence(rollout=f"r-{cluster}", counter=counter)
    twice(lambda: ledger.registry.reserve_moves(fence, cluster, gpus, 100, NOW + after))


def moves(tool: ForeignTool) -> list[tuple[int, int]]:
    return [(counter, gpus) for counter, gpus in tool.rows("SELECT counter, gpus FROM moves ORDER BY counter")]


def test_moves_are_booked_once_per_fence_up_to_the_limit(ledger: Ledger, tool: ForeignTool) -> None:
    book(ledger, 1, 60)
    with pytest.raises(BlastRadius, match=r"moving 41 GPUs .* in cluster alpha within an hour to 101: at most 100"):
        book(ledger, 2, 41)
    book(ledger, 2, 40)
    book(ledger, 3, 0)
    assert moves(tool) == [(1, 60), (2, 40), (3, 0)]


def test_the_limit_holds_over_the_fleet(ledger: Ledger, tool: ForeignTool) -> None:
    book(ledger, 1, 60)
    with pytest.raises(BlastRadius, match=r"moving 41 GPUs .* in the fleet within an hour to 101: at most 100"):
        book(ledger, 2, 41, cluster="beta")
    assert moves(tool) == [(1, 60)]


def test_after_an_hour_moves_are_forgotten(ledger: Ledger) -> None:
    book(ledger, 1, 100)
    with pytest.raises(BlastRadius):
        book(ledger, 2, 1, after=minutes(59))
    book(ledger, 2, 100, after=minutes(60))
    assert ledger.registry.open_clusters() == {}


def test_a_full_book_says_when_there_is_room_again(ledger: Ledger) -> None:
    book(ledger, 1, 60)
    book(ledger, 2, 30, after=minutes(20))

    def room(gpus: int) -> datetime | None:
        with pytest.raises(BlastRadius) as full:
            book(ledger, 3, gpus, after=minutes(30))
        return full.value.until

    assert room(11) == NOW + minutes(60)  # the first move is forgotten then, and 30 are left
    assert room(70) == NOW + minutes(60)
    assert room(71) == NOW + minutes(80)
    assert room(101) is None
    book(ledger, 3, 11, after=minutes(60))


def test_a_refused_write_gives_its_booking_back_and_one_that_landed_keeps_it(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    activities = QuotaActivities(ledger.ports)

    def perform(counter: int, generation: int) -> str:
        """Return how the call ended; each call is delivered twice."""
        change = effect(
            EffectKind.SET_SOFT,
            counter,
            expected_generation=generation,
            writes=values(("b", 120, 110), mode=LimitMode.SOFT),
        )
        request = EffectRequest(change=change, shadow=False, limit_gpus=15, at=NOW)

        def once() -> str:
            try:
                activities.apply_effect(request)
            except ApplicationError as error:
                return error.type or ""
            return "landed"

        return twice(once)

    today = tool.generation()
    assert perform(1, today + 7) == "Drift"
    assert moves(tool) == []
    assert perform(2, today) == "landed"  # there is room again
    assert moves(tool) == [(2, 10)]

    # A late repetition of a write that landed is refused once another has: what it moved stays booked.
    set_soft(ledger, 3, ("b", 110, 109))
    assert perform(2, today) == "HistoryLapse"
    assert moves(tool) == [(2, 10)]


def test_a_late_attempt_does_not_bring_an_earlier_baseline_back(ledger: Ledger, tool: ForeignTool) -> None:
    """A person's accepted value moves no quota and is the baseline's before it is written; a grant comes after it."""
    at_first = open_rollout(ledger).baseline
    activities = QuotaActivities(ledger.ports)

    def kept() -> int:
        baseline = json.loads(tool.one("SELECT baseline FROM rollouts WHERE id = 'r-1'"))
        return next(int(quota["gpus"]) for quota in baseline["quotas"] if quota["team"] == "b")

    def perform(counter: int, gpus: int, *writes: tuple[str, int, int]) -> str:
        change = effect(EffectKind.SET_SOFT, counter, writes=values(*writes))
        after = at_first.with_values({"b": gpus})
        try:
            activities.apply_effect(EffectRequest(change=change, shadow=False, limit_gpus=None, baseline=after, at=NOW))
        except ApplicationError as error:
            return error.type or ""
        return "landed"

    assert (twice(lambda: perform(1, 121, ("b", 120, 120))), kept()) == ("landed", 121)
    assert (twice(lambda: perform(2, 131, ("b", 120, 110))), kept()) == ("landed", 131)
    assert (perform(1, 121, ("b", 120, 120)), kept()) == ("HistoryLapse", 131)


def test_a_days_limit_is_kept_beside_the_hours(ledger: Ledger) -> None:
    def move(counter: int, gpus: int, hours: int, day_limit: int | None = 150) -> None:
        at = NOW + timedelta(hours=hours)
        fence = Fence(rollout="r-1", counter=counter)
        twice(lambda: ledger.registry.reserve_moves(fence, CLUSTER, gpus, 100, at, day_limit))

    move(1, 100, 0)
    with pytest.raises(BlastRadius, match="in cluster alpha within a day to 151: at most 150") as full:
        move(2, 51, 2)
    assert full.value.until == NOW + timedelta(hours=24)
    move(2, 50, 2)
    move(3, 100, 4, day_limit=None)
    assert ledger.registry.booked_gpus(NOW + timedelta(hours=4)) == (100, 250)
    assert ledger.registry.booked_gpus(NOW + timedelta(hours=25)) == (0, 150)


def test_what_was_approved_with_a_fleet_is_kept_by_cluster(ledger: Ledger) -> None:
    def envelope(cut: int) -> Envelope:
        return Envelope(plan_hash=f"h{cut}", largest_cut={"a": cut}, deepest_tier=Tier.BUSY)

    twice(lambda: ledger.registry.keep_fleet_plan("f", {CLUSTER: envelope(1), "beta": envelope(2)}))
    ledger.registry.keep_fleet_plan("g", {CLUSTER: envelope(4)})
    kept = {(f, c): ledger.registry.fleet_envelope(f, c) for f in ("f", "g") for c in (CLUSTER, "beta")}
    assert kept == {
        ("f", CLUSTER): envelope(1),
        ("f", "beta"): envelope(2),
        ("g", CLUSTER): envelope(4),
        ("g", "beta"): None,
    }
    assert ledger.registry.fleet_envelopes("f", (CLUSTER, "none", "beta")) == {
        CLUSTER: envelope(1),
        "beta": envelope(2),
    }
    assert ledger.registry.fleet_envelopes("g", ("beta",)) == {}
    assert ledger.registry.names() == tuple(sorted(ledger.registry.names()))
    assert {CLUSTER, "beta"} <= set(ledger.registry.names())


def test_what_is_approved_with_a_fleet_is_of_the_attempt_that_people_see(ledger: Ledger, tool: ForeignTool) -> None:
    """An attempt that Temporal gave up on may come through after its retry, and after people approved."""

    def keep(fleet: str = "f", **cuts: int) -> list[tuple[str, int]]:
        envelopes = {c: Envelope(plan_hash="h", largest_cut={"a": n}, deepest_tier=Tier.BUSY) for c, n in cuts.items()}
        ledger.registry.keep_fleet_plan(fleet, envelopes)
        rows = tool.rows("SELECT cluster, envelope FROM fleet_plans WHERE fleet = ? ORDER BY cluster", fleet)
        return [(cluster, json.loads(text)["largest_cut"]["a"]) for cluster, text in rows]

    def archive(fleet: str, number: int, kind: AuditKind, text: str) -> None:
        key = f"{fleet}/{number:06}"
        entry = AuditEntry(key=key, cluster=FLEET, rollout=fleet, at=NOW, kind=kind, actor="tpm", text=text)
        ledger.registry.archive([entry])

    archive("f", 1, AuditKind.COMMAND, "launched")
    assert keep(alpha=9, beta=9) == [("alpha", 9), ("beta", 9)]
    archive("f", 2, AuditKind.HOLD, 'paused, "kind":"plan"')
    archive("f_", 2, AuditKind.PLAN, "of a fleet rollout with almost the same name")
    assert keep(alpha=1) == [("alpha", 1)], "a retry: nothing is left of the attempt before"
    archive("f", 3, AuditKind.PLAN, "fleet plan h")
    assert keep(alpha=9, beta=9) == [("alpha", 1)], "a late attempt"
    assert keep("g", beta=3) == [("beta", 3)]


def test_an_entry_of_a_rollout_whose_name_differs_in_case_makes_no_other_one_late(
    ledger: Ledger, tool: ForeignTool
) -> None:
    def entry(key: str) -> AuditEntry:
        kind = AuditKind.TRANSITION
        return AuditEntry(key=key, cluster=CLUSTER, rollout="r-1", at=NOW, kind=kind, actor="tpm", text="goes on")

    def record(stage: str) -> None:
        entries = (entry("r-1/000001"),)
        request = RecordRequest(rollout="r-1", entries=entries, stage=Stage(stage), ended=False, completed=False)
        ledger.registry.record(request)

    open_rollout(ledger)
    record("planned")
    ledger.registry.archive([entry("R-1/000002")])
    record("buffered")
    assert tool.one("SELECT stage FROM rollouts WHERE id = 'r-1'") == "buffered"
    ledger.registry.archive([entry("r-1/000002")])
    record("enforced")
    assert tool.one("SELECT stage FROM rollouts WHERE id = 'r-1'") == "buffered", "an attempt that came late"


def test_rollouts_are_found_by_id_by_fleet_and_by_cluster(ledger: Ledger) -> None:
    ledger.registry.open_rollout(opening(ledger, "r-1").model_copy(update={"fleet": "f"}), adopt=False)
    open_rollout(ledger, "r-beta", cluster="beta")
    note_stage(ledger, "r-1", "rolled_back", ended=False, completed=False, needs="look", rollbacks=2)
    note_stage(ledger, "r-1", "rolled_back", ended=False, completed=False, needs="look", rollbacks=1)  # late
    first = Noted(rollout="r-1", stage="rolled_back", needs="look", rollbacks=2)
    other = Noted(rollout="r-beta", stage="planned")
    assert ledger.registry.noted_rollouts(("r-beta", "r-9")) == {"r-beta": other}
    assert ledger.registry.noted_rollouts((), "f") == {"r-1": first}
    assert ledger.registry.noted_rollouts(("r-beta",), "f") == {"r-1": first, "r-beta": other}
    assert ledger.registry.newest((CLUSTER, "beta", "gamma")) == {CLUSTER: first, "beta": other}
    note_stage(ledger, "r-1", "aborted", ended=True, completed=False, rollbacks=2)
    assert ledger.registry.newest((CLUSTER,)) == {}
    assert ledger.registry.noted_rollouts((), "f")["r-1"].stage == "aborted"
    many = [f"r-{number}" for number in range(2000)]
    assert set(ledger.registry.noted_rollouts(many)) == {"r-1"}


def test_the_counters_of_booked_moves_count_as_used(ledger: Ledger) -> None:
    planned = opening(ledger)
    ledger.registry.open_rollout(planned, adopt=False)
    ledger.registry.reserve_moves(Fence(rollout="r-1", counter=7), CLUSTER, 1, 10, NOW)
    assert ledger.registry.open_rollout(planned, adopt=False).last_counter == 7
    set_soft(ledger, 7, ("a", 100, 99))


def test_a_stage_that_is_noted_already_waits_for_no_writer(ledger_url: str, ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    note_stage(ledger, "r-1", "monitored", ended=False, completed=True)
    with Ledger(ledger_url, now=lambda: NOW, patience=timedelta(milliseconds=100)) as hasty:
        tool.run("BEGIN" if tool.postgresql else "BEGIN IMMEDIATE")
        tool.run("UPDATE clusters SET gpu_model = 'B200' WHERE name = 'alpha'")
        note_stage(hasty, "r-1", "monitored", ended=False, completed=True)
        with pytest.raises(Unavailable):
            note_stage(hasty, "r-1", "rolling_back", ended=False, completed=True)
        with pytest.raises(Unavailable):
            note_stage(hasty, "r-1", "monitored", ended=True, completed=True)
        tool.run("ROLLBACK")
    assert rollouts(tool)["r-1"] == ("monitored", False, None, None)


def test_a_history_that_lacks_effects_adopts_itself_and_ends_nothing(ledger: Ledger, tool: ForeignTool) -> None:
    """Its workflow was reset, or came back from a backup: all of its own effects are known, or nothing is closed."""
    planned = opening(ledger)
    ledger.registry.open_rollout(planned, adopt=False, fence=0)
    assert ledger.registry.open_rollout(planned, adopt=False, fence=0) == planned, "a repeated call"
    reserve(ledger, 1, 300)
    set_soft(ledger, 2, ("a", 100, 90))
    record = RecordRequest(
        rollout="r-1", entries=(), stage=Stage.ABORTED, ended=True, completed=False, needs="", fence=1
    )
    ledger.registry.record(record)
    assert open_one(tool) == "r-1"
    later = [planned.model_copy(update={"opened_at": NOW + minutes(n)}) for n in range(5)]
    again = ledger.registry.open_rollout(later[1], adopt=False, fence=2)
    assert (again.rollout, again.last_counter) == ("r-1", 2), "nothing is lacking"
    own = ledger.registry.open_rollout(later[2], adopt=False, fence=1)
    assert open_one(tool) == own.rollout != "r-1"
    assert (own.adopted_from, own.baseline, own.written) == ("r-1", planned.baseline, {"a": 90})
    with pytest.raises(Conflict):
        set_soft(ledger, 3, ("a", 90, 80))  # of the history before
    second = ledger.registry.open_rollout(later[3], adopt=False, fence=0)
    assert (second.adopted_from, open_one(tool)) == (own.rollout, second.rollout)
    note_stage(ledger, second.rollout, "closed", ended=True, completed=False)
    with pytest.raises(Refusal, match="has ended"):
        ledger.registry.open_rollout(later[4], adopt=False, fence=0)
    assert open_one(tool) is None


def test_each_opening_adopts_at_most_once_however_often_and_late_it_is_delivered(
    ledger: Ledger, tool: ForeignTool
) -> None:
    first = opening(ledger)
    ledger.registry.open_rollout(first, adopt=False, fence=0)
    reserve(ledger, 1, 300)
    set_soft(ledger, 2, ("a", 100, 90))
    late = ledger.registry.open_rollout(first, adopt=False, fence=0)
    assert (late.rollout, late.last_counter) == ("r-1", 2), "an attempt that was slower than the effects"
    reset = first.model_copy(update={"opened_at": NOW + minutes(1)})
    own = twice(lambda: ledger.registry.open_rollout(reset, adopt=False, fence=1))
    again = first.model_copy(update={"opened_at": NOW + minutes(2)})
    last = twice(lambda: ledger.registry.open_rollout(again, adopt=False, fence=2))
    for earlier in (first, reset):  # of runs that are over: it takes nothing from the one that lives
        with pytest.raises(Conflict, match=f"taken over by rollout {last.rollout}"):
            ledger.registry.open_rollout(earlier, adopt=False, fence=1)
    chain = tool.rows("SELECT id, adopted_from, superseded_by FROM rollouts ORDER BY opened_at")
    assert chain == [("r-1", None, own.rollout), (own.rollout, "r-1", last.rollout), (last.rollout, own.rollout, None)]
    assert tool.rows("SELECT open_rollout, last_counter FROM clusters WHERE name = ?", CLUSTER) == [(last.rollout, 0)]
    assert len(set(tool.rows("SELECT baseline, modes FROM rollouts"))) == 1


def test_no_effect_takes_another_ones_receipt_for_its_own(ledger: Ledger) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 300)
    with pytest.raises(HistoryLapse, match="the ledger has effect 1 of rollout r-1 as reserve, not as set_soft"):
        set_soft(ledger, 1, ("a", 100, 90))
