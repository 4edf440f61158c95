"""Steps of a bring-up: started once, looked for, tried again only where that is safe, and unmade in reverse."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from models.bringup import reducers
from models.bringup import workflow_actions as do
from models.bringup.checks import Colour
from models.bringup.commands import BringupOrder, apply_cancel, obey
from models.bringup.decide import decide
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupCommand, BringupStage
from models.bringup.state import StepPhase, WaitsFor
from models.bringup.status import needs_of, row_of, status_of, waiting_sentence
from models.bringup.undo_lines import bringup_undo_line
from models.lifecycle.workflow_actions import Wait
from tests.unit.bringup_world import NOON, RECIPE, BringupWorld, entry, recipe, report
from views.bringup import status_parts

RUNNING = report(RunPhase.RUNNING, "it runs")
FAILED = report(RunPhase.FAILED, "exit status 1", code=1, tail="no such rack")


def world(ends: dict[str, Any] | None = None, **changes: Any) -> BringupWorld:
    made = BringupWorld(recipe(**changes), entry())
    made.ends = ends or {}
    made.run()
    return made


def steps(**changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [step | changes.get(step["name"].replace("-", "_"), {}) for step in RECIPE["provision"]]


# --- forward ----------------------------------------------------------------------------------------


def test_what_can_run_beside_another_does_and_nothing_before_its_after() -> None:
    w = world({"bootstrap": RUNNING})
    assert w.started == ["h100-new/1/bootstrap"]
    w.say("check-in")
    assert w.started == ["h100-new/1/bootstrap"]
    w.ended("bootstrap")
    assert w.started == [f"h100-new/1/{name}" for name in ("bootstrap", "nodes", "services")]


def test_supply_is_waited_for_and_a_person_can_go_on_without() -> None:
    w = BringupWorld()
    w.says["supply"] = Colour.RED
    w.run()
    assert (w.stage, w.started) == (BringupStage.PLANNED, [])
    assert waiting_sentence(w.b, w.now) == "waits for its supply: supply is red"
    w.say("skip", check="supply")
    assert w.stage is BringupStage.PROVISIONING
    assert w.refused("skip", check="supply") == "supply is already skipped: because"


def test_a_start_that_nobody_answered_for_calls_a_person_once_its_time_limit_is_over() -> None:
    w = world({"bootstrap": "lost"})
    shown = "Backstop was about to start it and does not know whether it began: no answer in time"
    assert waiting_sentence(w.b, w.now) == f"bootstrap is starting ({shown}); check-in waits for a person"
    w.wait("23h")
    assert (w.stage, w.phases()["bootstrap"]) == (BringupStage.PROVISIONING, StepPhase.STARTING)
    w.wait("2h")
    assert (w.stage, w.phases()["bootstrap"]) == (BringupStage.BLOCKED, StepPhase.UNCLEAR)
    assert w.b.because.startswith(f"step bootstrap is unclear: its time limit is over, and {shown}")
    assert w.started == ["h100-new/1/bootstrap"]


def test_what_its_runner_answers_instead_of_a_run_shows_until_it_speaks_of_the_run_again() -> None:
    w = world({"bootstrap": RUNNING})
    w.b = reducers.note_silence(w.b, "bootstrap", 1, "HTTP 503", w.now)
    w.b = reducers.note_silence(w.b, "bootstrap", 1, "HTTP 502", w.now)
    (shown,) = {step.said for step in status_of(w.b, w.now).steps if step.name == "bootstrap"}
    assert shown == "its runner last reported it running, and has answered nothing about it since: HTTP 502"
    assert [e.text for e in w.b.outbox if "HTTP 50" in e.text] == [f"bootstrap: {shown.replace('502', '503')}"]
    w.ended("bootstrap", RunPhase.RUNNING, "build 7 is running")
    assert waiting_sentence(w.b, w.now) == "bootstrap is running; check-in waits for a person"


def test_under_a_hold_nothing_is_said_to_begin_at_once() -> None:
    w = world({"bootstrap": FAILED})
    w.say("hold")
    w.ends = {}
    assert w.say("retry", step="bootstrap") == "bootstrap runs again once the hold is released"
    assert w.started == ["h100-new/1/bootstrap"]
    w.say("release")
    assert "h100-new/2/bootstrap" in w.started


def test_a_failed_step_blocks_and_a_retry_goes_on() -> None:
    w = world({"bootstrap": FAILED})
    assert w.stage == "blocked"
    assert w.b.because == "step bootstrap is failed: exit status 1"
    assert needs_of(w.b, w.now) == (
        "step bootstrap is failed: exit status 1: backstop bringup retry h100-new bootstrap --reason '...' or "
        "backstop bringup skip h100-new bootstrap --reason '...'"
    )
    w.wait("9d")
    assert w.started == ["h100-new/1/bootstrap"]
    w.ends = {}
    w.say("retry", step="bootstrap")
    assert w.started[:2] == ["h100-new/1/bootstrap", "h100-new/2/bootstrap"]
    assert w.path[-2:] == [BringupStage.BLOCKED, BringupStage.PROVISIONING]
    assert w.b.touches == 1


def test_a_second_failure_keeps_it_blocked_until_both_are_answered() -> None:
    w = world({"bootstrap": RUNNING, "other": RUNNING}, provision=[*steps(), steps()[0] | {"name": "other"}])
    w.ended("bootstrap", RunPhase.FAILED)
    w.ended("other", RunPhase.FAILED, "exit status 7")
    assert w.b.because == "step bootstrap is failed: failed; step other is failed: exit status 7"
    assert [text for text in w.told() if "other" in text] == [
        "h100-new needs a person: step other is failed: exit status 7"
    ]
    assert w.refused("retry") == "several steps wait for a person: name one of bootstrap, other"
    w.ends = {}
    w.say("retry", step="bootstrap")
    assert w.stage == "blocked"
    assert w.phases()["nodes"] is StepPhase.DONE  # what does not stand on the other goes on
    w.say("skip", step="other")
    assert w.stage is BringupStage.PROVISIONING


def test_only_what_is_repeatable_is_retried_by_itself_with_growing_pauses() -> None:
    w = world({"nodes": FAILED}, provision=steps(nodes={"retries": 2, "pause": "10m"}))
    assert waiting_sentence(w.b, w.now) == (
        "nodes is tried again at 2026-03-02 12:10Z (exit status 1); check-in waits for a person"
    )
    w.wait("10m")
    assert w.started.count("h100-new/2/nodes") == 1
    w.wait("19m")
    assert "h100-new/3/nodes" not in w.started
    w.wait("1m")
    assert "h100-new/3/nodes" in w.started
    assert w.stage == "blocked"


def test_a_start_that_its_runner_refuses_has_not_begun_and_leaves_nothing_to_unmake() -> None:
    w = world({"bootstrap": "pipeline up is not listed"})
    assert w.b.because == "step bootstrap is failed: pipeline up is not listed"
    w.say("cancel")
    assert w.stage is BringupStage.CANCELLED
    assert w.started == ["h100-new/1/bootstrap"]
    assert w.b.because == "nothing is left standing"


@pytest.mark.parametrize(
    ("run", "phase"), [("bootstrap", StepPhase.UNCLEAR), ("nodes", StepPhase.STARTING)], ids=["once", "repeatable"]
)
def test_a_start_without_a_trace_is_looked_for_and_then_unclear_or_repeated(run: str, phase: StepPhase) -> None:
    w = world({run: "lost"})
    for _ in range(7):
        w.wait("15s")
        w.untraced(run)
        assert (w.b.runs[run].phase, w.b.runs[run].attempt) == (StepPhase.STARTING, 1)
    w.wait("15s")
    w.untraced(run)
    assert w.now == NOON + timedelta(minutes=2)
    assert w.b.runs[run].phase is phase
    assert w.b.runs[run].attempt == (2 if phase is StepPhase.STARTING else 1)
    if phase is StepPhase.UNCLEAR:
        assert w.b.because == (
            "step bootstrap is unclear: its runner shows no sign of a start after 2m (it may be running, have run, or "
            "never have started: check first)"
        )


def test_a_repeatable_start_that_never_leaves_a_trace_waits_for_a_person_at_last() -> None:
    w = world({"nodes": "lost"})
    for _ in range(3):
        w.wait("2m")
        w.untraced("nodes")
    assert (w.b.runs["nodes"].phase, w.b.runs["nodes"].attempt) == (StepPhase.UNCLEAR, 3)


def test_a_run_that_was_seen_and_has_left_no_trace_waits_for_a_person_though_repeatable() -> None:
    w = world({"nodes": RUNNING})
    w.wait("3h")
    w.untraced("nodes")
    assert w.b.because.startswith("step nodes is unclear: its runner has no trace of it any more")


def test_what_is_said_of_an_earlier_attempt_changes_nothing() -> None:
    w = world({"bootstrap": FAILED})
    w.ends = {"bootstrap": RUNNING}
    w.say("retry", step="bootstrap")
    assert reducers.apply_report(w.b, "bootstrap", 1, report(), w.now) is w.b
    assert reducers.note_untraced(w.b, "bootstrap", 1, w.now) is w.b


def test_a_history_that_begins_anew_follows_what_runs_and_starts_nothing() -> None:
    w = world({"bootstrap": RUNNING})
    assert decide(w.b, w.now, ()) == do.Follow("bootstrap", 1)
    assert decide(w.b, w.now, (do.Follow("bootstrap", 1),)) == Wait(w.now + timedelta(days=1, minutes=1))


def test_a_start_that_nobody_took_is_noted_anew() -> None:
    w = world({"bootstrap": "lost"})
    w.under_way.clear()
    bringup = reducers.note_untaken(w.b, "bootstrap", 1, "host h has no worker", w.now)
    assert (bringup.runs["bootstrap"].phase, bringup.runs["bootstrap"].starts) == (StepPhase.WAITING, 0)


def test_a_step_past_its_limit_is_stopped_and_has_failed() -> None:
    w = world({"bootstrap": RUNNING}, provision=steps(bootstrap={"limit": "3h"}))
    w.wait("3h")
    assert w.stopped == []
    w.wait("1m")
    assert w.stopped == ["bootstrap"]
    assert w.b.because == "step bootstrap is failed: it takes longer than its limit: was stopped"


@pytest.mark.parametrize("by_person", [False, True])
def test_a_step_past_its_limit_that_nobody_can_end_calls_a_person(by_person: bool) -> None:
    w = world({"bootstrap": RUNNING}, provision=steps(bootstrap={"limit": "3h", "repeatable": True, "retries": 5}))
    w.endless.add("bootstrap")
    if by_person:
        w.say("stop", step="bootstrap", reason="wrong image")
    w.wait("179m")
    assert (w.stage, w.phases()["bootstrap"]) == (BringupStage.PROVISIONING, StepPhase.RUNNING)
    w.wait("3m")
    assert (w.stage, w.phases()["bootstrap"]) == (BringupStage.BLOCKED, StepPhase.UNCLEAR)
    assert w.b.because.startswith(
        "step bootstrap is unclear: its time limit is over, and nobody can end it (it may be running,"
    )
    assert w.started == ["h100-new/1/bootstrap"]


def test_a_stopped_step_is_not_tried_again_by_itself() -> None:
    w = world({"nodes": RUNNING}, provision=steps(nodes={"retries": 5}))
    assert w.refused("stop", step="bootstrap") == "bootstrap is done: only a running step can be stopped"
    w.say("stop", step="nodes")
    assert w.b.because == "step nodes is failed: stopped by ann: was stopped"
    assert w.started.count("h100-new/1/nodes") == 1


def test_a_hold_starts_nothing_new_and_what_runs_goes_on() -> None:
    w = world({"bootstrap": RUNNING})
    w.say("hold")
    w.ended("bootstrap")
    assert w.started == ["h100-new/1/bootstrap"]
    assert waiting_sentence(w.b, w.now) == "held by ann: because"
    w.say("release")
    assert "h100-new/1/nodes" in w.started


def test_a_recipe_without_a_touch_needs_nobody() -> None:
    w = world(
        provision=[
            s | {"after": [a for a in s.get("after", []) if a != "check-in"]}
            for s in steps()
            if s["name"] != "check-in"
        ]
    )
    w.wait("3h")
    assert w.stage is BringupStage.IN_PRODUCTION
    assert (w.b.touches, w.b.check_ins) == (0, 0)


def test_without_checks_of_its_own_a_recipe_soaks_from_when_the_nodes_are_there() -> None:
    w = world(provision=CHAIN[:1], validate=[], soak="1h")
    at = "all checks are green; they must stay so until 2026-03-02 13:00Z"
    assert (w.stage, waiting_sentence(w.b, w.now)) == (BringupStage.PROVISIONED, at)
    w.wait("59m")
    assert w.stage == "provisioned"
    w.wait("1m")
    assert w.stage is BringupStage.IN_PRODUCTION


def test_a_check_that_a_person_skips_begins_the_soak_at_once() -> None:
    w = world(provision=CHAIN[:1])
    w.says["health"] = Colour.RED
    w.wait("30m")
    w.say("skip", check="health")
    assert w.b.clock.since == NOON + timedelta(minutes=30)


def test_touches_and_waits_are_counted() -> None:
    w = BringupWorld()
    w.says["supply"] = Colour.RED
    w.ends = {"nodes": RUNNING}
    w.wait("30h")
    w.supply_comes()
    w.wait("2h")
    w.ended("nodes")
    w.wait("40m")
    w.say("check-in", reason="")
    w.wait("1h")
    w.say("hold")
    w.wait("10m")
    w.say("release")
    w.wait("3h")
    assert w.stage is BringupStage.IN_PRODUCTION
    assert (w.b.touches, w.b.check_ins) == (2, 1)
    hours = timedelta(hours=1)
    assert w.b.waited == {
        WaitsFor.SUPPLY: 30 * hours,
        WaitsFor.RUNNER: 2 * hours,
        WaitsFor.PERSON: 50 * hours / 60,
        WaitsFor.CHECK: 110 * hours / 60,
    }
    assert w.b.lasted[BringupStage.PROVISIONING] == 160 * hours / 60
    assert w.b.lasted[BringupStage.PROVISIONED] == 2 * hours
    assert row_of(w.b, w.now).waited["supply"] == 30 * hours


@pytest.mark.parametrize(
    ("command", "fields", "sentence"),
    [
        ("check-in", {"step": "nodes"}, "nodes needs no check-in: command runs it"),
        (
            "check-in",
            {"step": "noodles"},
            "there is no step 'noodles'; the steps are bootstrap, check-in, nodes, services",
        ),
        ("retry", {"step": "nodes"}, "nothing to retry: the bring-up goes on by itself"),
        ("retire", {}, "the cluster is not in production: `cancel` tears down what was made"),
        ("revalidate", {}, "there is nothing to check yet: the steps are not done"),
        ("skip", {}, "skip needs a step or a check, and not both"),
        ("skip", {"step": "nodes"}, "nodes is running: stop it first"),
        ("skip", {"check": "x"}, "there is no check 'x'; the checks are capacity, health, drift, first-job"),
        ("skip", {"check": "supply"}, "there is nothing to skip: the bring-up no longer waits for its supply"),
        ("skip", {"step": "nodes", "reason": " "}, "skip needs a reason"),
        ("release", {}, "nobody holds h100-new"),
        ("stop", {}, "name the step: nodes"),
    ],
)
def test_a_command_out_of_place_is_one_sentence(command: str, fields: dict[str, str], sentence: str) -> None:
    assert world({"nodes": RUNNING}).refused(command, **fields) == sentence


# --- unmaking ---------------------------------------------------------------------------------------

CHAIN: list[dict[str, Any]] = [
    {"name": name, "with": "command", "run": ["/x"], "undo": {"run": ["/y"]}, "after": after}
    for name, after in (("net", []), ("disks", ["net"]), ("nodes", ["net"]), ("jobs", ["nodes"]), ("dns", []))
]


def made(ends: dict[str, Any] | None = None) -> BringupWorld:
    w = world(ends, provision=[*CHAIN, {"name": "report", "with": "command", "run": ["/z"], "after": ["jobs"]}])
    assert w.stage is BringupStage.PROVISIONED
    w.started.clear()
    return w


def test_cancel_unmakes_in_reverse_order_and_names_what_has_no_undo() -> None:
    w = made()
    w.say("cancel")
    assert w.started == [f"h100-new/1/{s}/undo" for s in ("dns", "jobs", "nodes", "disks", "net")]
    assert w.stage is BringupStage.CANCELLED
    assert w.b.because == "report is left standing: it has no undo"
    assert w.told()[-1] == "h100-new is cancelled: report is left standing: it has no undo"


@pytest.mark.parametrize("by_ticket", [False, True])
def test_a_cancel_by_temporal_is_one_by_a_person_unless_tickets_are_needed(by_ticket: bool) -> None:
    w = made()
    after = apply_cancel(w.b, w.now, (), by_ticket=by_ticket)
    assert after.stage == (BringupStage.PROVISIONED if by_ticket else BringupStage.CANCELLING)
    entry_text = after.outbox[-1].text
    assert ("a cancel from Temporal was ignored" in entry_text) is by_ticket
    in_production = w.b.but(stage=BringupStage.IN_PRODUCTION)
    assert apply_cancel(in_production, w.now, (), by_ticket=False) == in_production


def test_what_a_failed_undo_depends_on_is_spared_and_the_others_are_unmade() -> None:
    w = made({"nodes/undo": FAILED})
    w.say("cancel")
    assert w.stage == "blocked"
    assert w.b.blocked_from is BringupStage.CANCELLING
    assert w.started == [f"h100-new/1/{s}/undo" for s in ("dns", "jobs", "nodes", "disks")]
    assert status_of(w.b, w.now).standing == {
        "net": "nodes needs it",
        "nodes": "its undo is failed: exit status 1",
        "report": "it has no undo",
    }
    w.ends = {}
    w.say("retry", step="nodes")
    assert w.path[-3:] == [BringupStage.BLOCKED, BringupStage.CANCELLING, BringupStage.CANCELLED]
    assert w.b.because == "report is left standing: it has no undo"


def test_a_skipped_undo_leaves_standing_what_it_stands_on_too() -> None:
    w = made({"nodes/undo": FAILED})
    w.say("cancel")
    w.say("skip", step="nodes", reason="the rack is gone")
    assert w.stage is BringupStage.CANCELLED
    assert w.b.because == (
        "net is left standing: nodes needs it; nodes is left standing: its undo was skipped by ann (the rack is "
        "gone); report is left standing: it has no undo"
    )


@pytest.mark.parametrize("stop", [False, True])
def test_cancel_waits_for_what_runs_or_stops_it(stop: bool) -> None:
    w = world({"nodes": RUNNING})
    said = w.say("cancel", stop=stop)
    assert said.startswith(f"cancelling: Backstop {'stops' if stop else 'waits for'} step nodes, then tears down")
    assert w.stopped == (["nodes"] if stop else [])
    if not stop:
        assert not any(run.endswith("/undo") for run in w.started)
        w.ended("nodes", RunPhase.FAILED)
    assert w.started[-2:] == ["h100-new/1/nodes/undo", "h100-new/1/bootstrap/undo"]
    assert w.stage is BringupStage.CANCELLED


def test_nothing_stops_a_cancel() -> None:
    w = made({"nodes/undo": RUNNING})
    w.say("cancel")
    assert w.refused("hold").startswith("the cluster is being torn down, and that cannot be stopped")
    assert w.refused("cancel") == "the cluster is already being torn down"
    w.ended("nodes/undo", RunPhase.FAILED)
    assert w.stage == "blocked"
    assert w.refused("hold").startswith("the cluster is being torn down")
    assert w.refused("cancel") == "the cluster is already being torn down"


def test_a_step_that_a_person_skipped_and_that_never_ran_is_named() -> None:
    w = world({"bootstrap": "not listed"})
    w.say("skip", step="bootstrap", reason="done by hand")
    w.say("cancel")
    left = "bootstrap is left standing: it was skipped (done by hand): if somebody did it by hand, undo it by hand"
    assert left in w.b.because


def test_each_step_failing_in_turn_leaves_nothing_unnamed() -> None:
    names = [step["name"] for step in CHAIN]
    for failing in names:
        w = world({failing: FAILED}, provision=CHAIN)
        w.say("cancel")
        unmade = {text.split("/")[2] for text in w.started if text.endswith("/undo")}
        assert unmade == {text.split("/")[2] for text in w.started}
        assert w.b.because == "nothing is left standing"


# --- production and its end ---------------------------------------------------------------------------


def in_production() -> BringupWorld:
    w = made()
    w.wait("3h")
    assert w.stage is BringupStage.IN_PRODUCTION
    return w


def test_a_hand_over_that_is_refused_blocks_until_a_retry() -> None:
    w = made()
    w.refuses = "island x is there twice"
    w.wait("3h")
    assert (w.stage, w.b.because) == (BringupStage.BLOCKED, "island x is there twice")
    w.refuses = ""
    w.say("retry")
    assert w.stage is BringupStage.PROVISIONED or w.stage is BringupStage.IN_PRODUCTION
    w.wait("3h")
    assert w.stage is BringupStage.IN_PRODUCTION


def test_retiring_waits_until_no_quota_stands_and_no_job_runs() -> None:
    w = in_production()
    w.left = w.left.but(quota_gpus=40, jobs=2, said="its rollout is buffered")
    assert w.refused("cancel") == "the cluster is in production: `retire` takes it out"
    w.say("retire")
    w.wait("5d")
    assert not any(run.endswith("/undo") for run in w.started)
    assert waiting_sentence(w.b, w.now) == (
        "its quotas go to zero: 40 GPUs of quota remain, 2 jobs run: its rollout is buffered"
    )
    w.left = w.left.but(quota_gpus=1, jobs=1)
    w.wait("10m")
    assert "1 GPU of quota remains, 1 job runs: its" in waiting_sentence(w.b, w.now)
    w.left = w.left.but(quota_gpus=0, jobs=0, teams=2)
    w.wait("10m")
    assert "0 GPUs of quota remain, jobs of 2 teams run: its" in waiting_sentence(w.b, w.now)
    w.left = w.left.but(teams=0)
    w.wait("10m")
    assert w.stage is BringupStage.RETIRED
    assert w.b.because == "report is left standing: it has no undo"


def test_what_is_being_emptied_is_looked_at_as_seldom_as_it_changes() -> None:
    """Looks double their distance, from 5 s to 10 min, and are near again after news."""
    w = in_production()
    w.left = w.left.but(quota_gpus=40, said="its rollout is planned")
    w.say("retire")
    looks: list[timedelta] = []

    def passed(many: int) -> None:
        for _ in range(many):
            until = w.run()
            assert until is not None
            looks.append(until - w.now)
            w.now = until
            w.run()

    passed(9)
    w.left = w.left.but(said="its rollout is buffered")
    passed(3)
    assert [look.total_seconds() for look in looks] == [5, 5, 10, 20, 40, 80, 160, 320, 600, 600, 5, 5]


def test_at_the_deadline_of_an_approver_it_is_unmade_though_jobs_run() -> None:
    w = in_production()
    w.left = w.left.but(jobs=1, said="one job is left")
    assert w.refused("retire", deadline=NOON) == "the deadline 2026-03-02 12:00Z is in the past: give a later one"
    w.say("retire")
    assert (
        w.refused("retire") == f"{w.b.cluster} is already being retired: to set or move its deadline, give --deadline"
    )
    w.say("retire", deadline=w.now + timedelta(days=3))
    w.wait("71h")
    assert w.stage == "retiring"
    w.wait("1h")
    assert w.stage is BringupStage.RETIRED


@pytest.mark.parametrize("command", ["hold", "skip", "cancel"])
def test_how_a_command_is_undone_is_said(command: str) -> None:
    w = world({"nodes": RUNNING})
    order = BringupOrder(actor="ann", reason="x", step="services" if command == "skip" else "")
    after, _ = obey(w.b, BringupCommand(command), order, w.now)
    line = bringup_undo_line(w.b, after, BringupCommand(command), order)
    assert (
        line
        == {
            "hold": "Undo: backstop bringup release h100-new",
            "skip": (
                "It cannot be undone; to tear down the whole bring-up: backstop bringup cancel h100-new --reason '...'"
            ),
            "cancel": "It cannot be undone. Once it has ended, enter the cluster again with `backstop bringup add`",
        }[command]
    )


def shown(w: BringupWorld) -> str:
    screen = Console(width=200, file=io.StringIO(), force_terminal=False, markup=False)
    for part in status_parts(status_of(w.b, w.now)):
        screen.print(part)
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_of_one_that_is_unmade_nothing_is_there_and_what_is_left_is_said_once() -> None:
    w = in_production()
    assert "\narrived " in shown(w)
    w.say("retire")
    w.wait("10m")
    assert w.stage is BringupStage.RETIRED
    facts, _, left = shown(w).partition("Left standing:")
    assert [line.split()[0] for line in facts.splitlines() if "is left standing: it has no undo" in line] == ["ended"]
    assert ("\nthere " in facts, "\narrived " in facts, left.split()) == (
        False,
        True,
        ["report:", *["it", "has", "no", "undo"]],
    )


def test_when_a_person_is_called_is_ahead_until_it_is_past() -> None:
    w = world(soak="2h", validate_within="1d")
    w.says["health"] = Colour.RED
    w.say("check-in")
    at = "a person is called at 2026-03-03 12:00:00Z"
    assert (at in shown(w), w.stage) == (True, BringupStage.PROVISIONED)
    w.wait("30h")
    assert (at.replace("is", "was", 1) in shown(w), w.stage) == (True, BringupStage.BLOCKED)
