"""A fleet's rollout at the command line: what is sent, what is shown, and what is refused before anything is sent."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.text import Text

from cli.commands.schemas import makers
from cli.main import run
from models.errors import Unavailable
from models.fleet import reducers
from models.fleet.archived_state import KeptFleet
from models.fleet.commands import FleetCommandRequest, obey
from models.fleet.decide import decide
from models.fleet.messages import (
    Candidate,
    FleetLaunch,
    FleetPlan,
    FleetStatus,
    Noted,
    PickRequest,
    Prospect,
    StartAnswer,
)
from models.fleet.order import pick, plan_hash, take_prospects
from models.fleet.state import FleetRollout, FleetStage, MemberState, Pace, Wave
from models.fleet.status import status_of
from models.fleet.workflow_actions import PickMembers
from models.rollout.stages import Stage
from tests.unit.cli_fakes import AHEAD, FakeBackstop, answering
from views.fleet_rollout import plan_parts

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def prospects(many: int) -> list[Prospect]:
    waves = [w for w in Wave if w is not Wave.PILOT]
    return [
        Prospect(
            cluster=f"h100-{n:04}",
            wave=waves[n % 4],
            headroom=n / many,
            cut_gpus=10 * (n % 4),
            plan_hash=str(n),
            why_not="its plan is not backed by healthy GPUs" if n % 50 == 3 else "",
        )
        for n in range(many)
    ]


def fleet(many: int = 8, pilots: tuple[str, ...] = ("h100-0000",), **pace: object) -> FleetRollout:
    """Approved, and its first clusters started."""
    launch = FleetLaunch(fleet="fleet/1", owner="tpm", pilots=pilots, pace=Pace.model_validate(pace))
    taken = take_prospects(launch, prospects(many))
    fleet_rollout = reducers.open_fleet(launch, NOON)
    fleet_rollout = reducers.apply_plan(
        fleet_rollout, launch, FleetPlan(fleet=fleet_rollout.id, hash=plan_hash(taken), clusters=taken), NOON
    )
    asked = FleetCommandRequest(actor="tpm", plan_hash=fleet_rollout.plan_hash)
    fleet_rollout, _ = obey(fleet_rollout, "approve", asked, NOON)
    return started(fleet_rollout, many)


def started(fleet_rollout: FleetRollout, many: int, now: datetime = NOON) -> FleetRollout:
    fleet_rollout = reducers.advance(fleet_rollout, now)
    action = decide(fleet_rollout, now)
    assert isinstance(action, PickMembers)
    request = PickRequest(
        fleet=fleet_rollout.id,
        wave=fleet_rollout.wave,
        candidates=tuple(Candidate(cluster=m.cluster, wave=m.wave, moved=m.moved) for m in action.candidates),
        most=action.most,
        hour_gpus=action.hour_gpus,
        day_gpus=action.day_gpus,
        pace=fleet_rollout.pace,
        at=now,
    )
    known = {p.cluster: p for p in prospects(many)}
    answer = pick(request, [known[c.cluster] for c in request.candidates], {}, (0, 0))
    names = {p.cluster: f"{p.cluster}/1" for p in answer.picked}
    return reducers.apply_starts(reducers.apply_picks(fleet_rollout, answer, names, now), names, StartAnswer(), now)


def status_at(fleet_rollout: FleetRollout, now: datetime = NOON) -> FleetStatus:
    return status_of(reducers.advance(fleet_rollout, now), now, history_events=10, runs=1)


def shown(capsys: pytest.CaptureFixture[str], found: FleetStatus, *words: str) -> str:
    with answering(FakeBackstop(fleet=found)):
        assert run(["fleet", "status", *words]) == 0
    return capsys.readouterr().out


def test_a_fleet_rollout_that_temporal_does_not_run_is_said_to_be_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """Terminated, its workflow still answers what it last was: running."""
    lost = "fleet rollout f-1 is lost; take it over with `backstop launch --fleet --adopt`"
    status = status_at(fleet(3, pilots=()))
    for what, form, stream in ((lost, [], 0), (lost, ["-o", "name"], 1), ("", [], 0)):
        with answering(FakeBackstop(fleet=status.but(lost=what))):
            assert run(["fleet", "status", *form]) == 0
        assert (lost in " ".join(capsys.readouterr()[stream].split())) is bool(what), form


@pytest.mark.parametrize(("words", "owner"), [([], "ana"), (["--owner", "kim"], "kim")])
def test_a_lost_fleet_rollout_is_taken_over_with_its_own_settings_but_for_what_is_given(
    words: list[str], owner: str
) -> None:
    pace = Pace(parallel=7, bake=timedelta(hours=5))
    kept = KeptFleet(
        fleet="f-1", owner="ana", launched_at=NOON, pace=pace, policy={"notice": "2d", "buffer": "0.1"}, shadow=True
    )
    line = ["launch", "--fleet", "--adopt", "--reason", "r", "--actor", "tpm", "--yes", *words]
    with answering(FakeBackstop(kept=kept)) as door:
        assert run([*line, "--pace", "bake=2h", "--policy", "notice=1d"]) == 0
    ((_, sent),) = door.asked
    assert (sent.kept, sent.owner, sent.actor, sent.reason, sent.shadow) == (kept, owner, "tpm", "r", True)
    assert sent.pace == Pace(parallel=7, bake=timedelta(hours=2))
    assert sent.policy == {"notice": "1d", "buffer": "0.1"}


def test_a_status_fits_a_screen_however_many_clusters_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = status_at(fleet(1000, pilots=()))
    text = shown(capsys, found)
    assert len(text.splitlines()) < 40
    assert "10 clusters are under way, and `parallel` is 10" in text
    assert re.search(r"1 unallocated +250 +240 +10", text)
    assert "and 2 more: backstop fleet status --all" in text
    assert len(shown(capsys, found, "--all").splitlines()) > 1000
    validator = Draft202012Validator(makers()["fleet-status"]())
    validator.validate(json.loads(shown(capsys, found, "--json")))


def test_a_failed_pilot_is_named_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    fleet_rollout = fleet()
    fleet_rollout = reducers.apply_news(
        fleet_rollout, {"h100-0000/1": Noted(rollout="h100-0000/1", stage="rolled_back", rollbacks=1)}, NOON
    )
    found = status_at(fleet_rollout)
    text = shown(capsys, found)
    assert "now      pilot h100-0000 rolled back: no wave begins" in text
    assert "hold     pilots: pilot h100-0000 rolled back: no wave begins (backstop, 2026-03-02 12:00:00Z)" in text
    assert "Look at the cause, then: backstop fleet resume --reason ..." in text
    assert "1 rolled back\n" in text
    assert "h100-0000" in shown(capsys, found, "--failed")
    with answering(FakeBackstop(fleet=found)):
        assert run(["status"]) == 0
    assert capsys.readouterr().out.startswith(
        "Fleet rollout running: 0 of 8 clusters monitored; pilot h100-0000 rolled"
    )


def test_the_figures_of_one_that_has_ended_are_of_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Its clusters' rollouts go on: one that was rolled back then may be monitored by now, and nobody notes it here."""
    fleet_rollout = fleet(1, pilots=())
    fleet_rollout = reducers.apply_news(
        fleet_rollout, {"h100-0000/1": Noted(rollout="h100-0000/1", stage="rolled_back", rollbacks=1)}, NOON
    )
    found = status_at(fleet_rollout)
    assert found.stage is FleetStage.DONE
    text = shown(capsys, found)
    ended = "ended  0 of 1 cluster is monitored"
    note = "figures are from its end, 2026-03-02 12:00:00Z; its clusters' rollouts go on: backstop status --all"
    assert text.index(ended) < text.index(note) < text.index("1 rolled back\n")
    assert note in shown(capsys, found, "--failed")
    assert "figures of its end" not in shown(capsys, status_at(fleet(8)))


def test_no_rollout_goes_on_after_an_abort_that_undid_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    fleet_rollout, _ = obey(fleet(2, pilots=()), "abort", FleetCommandRequest(actor="tpm", reason="r", undo=True), NOON)
    names = [member.rollout for member in fleet_rollout.members.values() if member.rollout]
    assert names
    fleet_rollout = reducers.apply_news(
        fleet_rollout, {name: Noted(rollout=name, stage="aborted") for name in names}, NOON
    )
    found = status_at(fleet_rollout)
    assert found.stage is FleetStage.ABORTED
    text = shown(capsys, found)
    assert "These figures are from its end, 2026-03-02 12:00:00Z.\n" in text


def test_what_waits_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    fleet_rollout = fleet(8, pilots=(), budget_per_hour=15)
    done = {m.rollout: Noted(rollout=m.rollout, stage="monitored") for m in fleet_rollout.members.values() if m.rollout}
    fleet_rollout = reducers.advance(reducers.apply_news(fleet_rollout, done, NOON), NOON)
    later = NOON + timedelta(days=1)
    fleet_rollout = started(reducers.advance(fleet_rollout, later), 8, later)
    text = shown(capsys, status_at(fleet_rollout, later), "--waiting")
    assert (
        "it would move 30 GPUs, above the budget of 15: skip it, or launch it without" not in text
    )  # not its turn yet
    assert status_at(fleet_rollout, later).hour_gpus == 5
    assert text.count(" waiting ") == 5


def sampled(n: int, minutes: int | None, stale: int | None = 30) -> Prospect:
    at, after = (None if m is None else timedelta(minutes=m) for m in (minutes, stale))
    health_at = None if at is None else NOON - at
    return Prospect(cluster=f"h100-{n}", wave=Wave.BUSY, headroom=0.1, health_at=health_at, stale_after=after)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ([sampled(1, 29), sampled(2, None), sampled(3, 900, None)], ""),
        (
            [sampled(1, 30), sampled(2, 29)],
            (
                "The newest health sample of 1 cluster is stale: h100-1 (30m old). "
                "Its gate stays shut until a newer one arrives."
            ),
        ),
        (
            [sampled(1, 31), sampled(2, 5), sampled(3, 300), sampled(4, 60, 120)],
            (
                "The newest health samples of 2 clusters are stale: h100-3 (5h old), h100-1 (31m old). "
                "Their gates stay shut until newer ones arrive."
            ),
        ),
        (  # all of a fleet
            [sampled(n, 40) for n in range(10)],
            "The newest health samples of 10 clusters are stale: "
            + ", ".join(f"h100-{n} (40m old)" for n in range(8))
            + " and 2 more. Their gates stay shut until newer ones arrive.",
        ),
    ],
)
def test_a_fleets_plan_names_whose_health_is_stale(of: list[Prospect], said: str) -> None:
    parts = plan_parts(FleetPlan(fleet="f", hash="feed", clusters=tuple(of)), (), Pace(), NOON)
    texts = [part.plain for part in parts if isinstance(part, Text) and "stale" in part.plain]
    assert texts == ([said] if said else [])


def test_commands_are_sent_as_they_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    for words, fields in (
        (["approve", "--plan", "feed"], {"plan_hash": "feed"}),
        (["pause", "--reason", "r"], {"reason": "r"}),
        (["resume", "--reason", "r", "--yes"], {"reason": "r"}),
        (["skip", "a", "b", "--reason", "r"], {"reason": "r", "clusters": ("a", "b")}),
        (["move", "a", "--wave", "4", "--reason", "r"], {"reason": "r", "clusters": ("a",), "wave": Wave.BUSY}),
        (["move", "a", "--wave", "pilot", "--reason", "r"], {"reason": "r", "clusters": ("a",), "wave": Wave.PILOT}),
        (["promote", "--reason", "r"], {"reason": "r"}),
        (["pace", "bake=2h", "parallel=3", "--reason", "r"], {"reason": "r", "pace": {"bake": "2h", "parallel": 3}}),
        (["abort", "--reason", "r", "--undo", "--yes"], {"reason": "r", "undo": True}),
    ):
        with answering(FakeBackstop()) as door:
            assert run(["fleet", *words, "--actor", "tpm"]) == 0
        assert door.asked == [("fleet_command", words[0], FleetCommandRequest(actor="tpm", **fields))]
        assert capsys.readouterr().out == "fleet rollout (running): so be it\n"


def test_a_launch_of_a_fleet_sends_its_waves_pilots_and_pace(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "launch",
        "--wave",
        "1",
        "--wave",
        "busy",
        "--pilot",
        "a,b",
        "--pace",
        "bake=2h",
        "--pace",
        "max_failed=0.2",
    ]
    with answering(FakeBackstop()) as door:
        assert run([*words, "--policy", "notice=1d", "--buffer", "0.1", "--reason", "r", "--actor", "tpm"]) == 0
    ((_, sent),) = door.asked
    assert (sent.pilots, sent.waves, sent.pilots_only) == (("a", "b"), (Wave.UNALLOCATED, Wave.BUSY), False)
    assert sent.pace == Pace(bake=timedelta(hours=2), max_failed=Fraction(1, 5))
    assert sent.policy == {"notice": "1d", "buffer": "0.1"}
    assert "backstop fleet approve --plan feed" in capsys.readouterr().out
    with answering(FakeBackstop()) as door:
        assert run(["launch", "--pilot", "a", "--json"]) == 0
    assert door.asked[0][1].pilots_only
    Draft202012Validator(makers()["fleet-plan"]()).validate(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch"], "CLUSTER is empty: name a cluster"),
        (["launch", "a", "--fleet"], "CLUSTER 'a' is given together with --fleet, --wave or --pilot"),
        (["launch", "--wave", "1", "--adopt"], "--adopt is given together with --fleet"),
        (["launch", "--fleet", "--wave", "1"], "--wave '1' is given together with --fleet, which takes all waves"),
        (
            ["launch", "a", "--pace", "parallel=3"],
            "--pace 'parallel=3' is for a fleet rollout: give --fleet, --wave or --pilot too",
        ),
        (["launch", "--fleet", "--pace", "parallel"], "--pace takes KEY=VALUE, not 'parallel'"),
        (
            ["launch", "--fleet", "--pace", "parallel=0"],
            "--pace parallel must be at least 1, not 0 (the fields: parallel, pilot_soak, bake,",
        ),
        (["launch", "--fleet", "--pace", "paralel=3"], "--pace paralel"),
        (
            ["launch", "--wave", "7"],
            "--wave must be one of 0 (pilot), 1 (unallocated), 2 (unscheduled), 3 (idle), 4 (busy)",
        ),
        (
            ["launch", "--pilot", "a,,b"],
            "--pilot 'a,,b' has an empty name: give cluster names with commas between them",
        ),
        (["fleet", "move", "a", "--wave", "x", "--reason", "r"], "--wave must be one of"),
        (["fleet", "pace", "parallel=0", "--reason", "r"], "KEY=VALUE parallel must be at least 1, not 0"),
        (["fleet", "pace", "paralel=1", "--reason", "r"], "KEY=VALUE paralel is not a known field"),
        (["fleet", "pace", "bake=soon", "--reason", "r"], "KEY=VALUE bake must be a duration"),
        (["fleet", "pace", "bake", "--reason", "r"], "KEY=VALUE takes KEY=VALUE, not 'bake'"),
        (
            ["hold", "--kind", "freeze", "--until", "1d", "--reason", "r"],
            "CLUSTER is missing: name clusters, or give --fleet",
        ),
        (["hold", "a", "--fleet", "--kind", "freeze", "--until", "1d", "--reason", "r"], "given together with --fleet"),
        (["audit", "a", "--fleet"], "CLUSTER 'a' is given together with --fleet: give one of them"),
        (["audit"], "CLUSTER is empty: name a cluster"),
    ],
)
def test_a_slip_is_named_and_nothing_is_sent(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(words) == 2
    assert door.asked == []
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_hold_of_several_clusters_declares_one_window_each(capsys: pytest.CaptureFixture[str]) -> None:
    for words, held in ((["a", "b", "a"], ["a", "b"]), (["--fleet"], ["h100-worked"])):
        with answering(FakeBackstop()) as door:
            assert run(["hold", *words, "--kind", "freeze", "--until", "1d", "--reason", "year end", "--yes"]) == 0
        assert [name for d in door.declared for name, _ in d.windows] == held
        assert len(door.declared) == 1
    assert "year end" in capsys.readouterr().out


def test_what_a_fleet_s_abort_ends_is_told_of_those_that_can_be_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three that it would undo, one comes back, one is already on its way back, and one does not answer."""
    names = ("h100-0000", "h100-0001", "h100-0002")
    found = status_at(fleet(8)).model_copy(update={"would_undo": names})
    aheads: dict[str, Any] = {
        names[1]: AHEAD.model_copy(update={"stage": Stage.ROLLING_BACK}),
        names[2]: Unavailable(f"{names[2]}: no worker has answered"),
    }
    monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)
    monkeypatch.setattr("typer.confirm", lambda _: True)
    with answering(FakeBackstop(fleet=found, aheads=aheads)) as door:
        assert run(["fleet", "abort", "--undo", "--reason", "r"]) == 0
    assert [asked[1] for asked in door.asked if asked[0] == "fleet_command"] == ["abort"]
    out = capsys.readouterr().out
    assert "1 rollout ends; 39 GPUs come back to 1 team;" in out
    assert f"{names[1]} (rolling_back) will refuse: a rollback is running and cannot be stopped" in out
    assert f"The rollout of {names[2]} would end too; what that would change is unknown: {names[2]}: no" in out


def test_the_audit_of_a_fleet_reads_its_own_chain(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["audit", "--fleet"]) == 0
    assert door.asked == [("read_archive", "(fleet)")]
    assert "launched" in capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], found: FleetStatus) -> str:
    with answering(FakeBackstop(fleet=found, summaries=[])):
        assert run(["report", "--weekly"]) == 0
    return capsys.readouterr().out


def test_the_weekly_report_says_where_the_fleet_goes_and_who_stops_it(capsys: pytest.CaptureFixture[str]) -> None:
    fleet_rollout = fleet()
    text = report(capsys, status_at(fleet_rollout))
    assert "still to start: 1 in wave 1 (unallocated), 2 in wave 2 (unscheduled)" in text
    fleet_rollout = reducers.apply_news(
        fleet_rollout, {"h100-0000/1": Noted(rollout="h100-0000/1", stage="rolled_back", rollbacks=1)}, NOON
    )
    text = report(capsys, status_at(fleet_rollout))
    assert "pilot h100-0000 rolled back: no wave begins" in text
    assert "The fleet rollout is blocked." in text
    assert "still to start" not in text


def test_a_shadow_fleet_cuts_nothing_and_has_what_it_would_in_a_column_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Eight clusters, of which numbers 1, 2, 3, 5, 6, 7 give 10 times their number modulo 4."""
    found = status_of(fleet().but(shadow=True), NOON)
    with answering(FakeBackstop(fleet=found)):
        assert run(["fleet", "status", "--all"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (waves,) = [n for n, row in enumerate(rows) if row[:1] == ["WAVE"]]
    assert rows[waves][-3:] == ["CUT", "WOULD", "CUT"]
    shown = rows[waves + 1 : waves + 1 + len(found.waves)]
    assert {row[-2] for row in shown} == {"0"}
    assert sum(int(row[-1]) for row in shown) == 10 * (1 + 2 + 3) * 2


@pytest.mark.parametrize("wave", [Wave.PILOT, Wave.BUSY])
def test_a_cluster_that_was_on_its_way_before_is_not_counted_in_another_wave(
    capsys: pytest.CaptureFixture[str], wave: Wave
) -> None:
    fleet_rollout = fleet(8, parallel=5)
    joined = next(m for m in fleet_rollout.members.values() if m.state is MemberState.WAITING)
    there = joined.but(wave=wave, state=MemberState.RUNNING, joined=True)
    found = status_at(fleet_rollout.but(members={**fleet_rollout.members, joined.cluster: there}))
    others = "" if wave is Wave.PILOT else " and 1 of other waves"
    in_wave = sum(w.running for w in found.waves if w.wave == str(Wave.PILOT))
    assert in_wave == (2 if wave is Wave.PILOT else 1)
    assert f"{in_wave} of the pilot wave{others} are under way" in shown(capsys, found)
