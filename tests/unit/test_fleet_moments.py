"""All views of a fleet rollout show one moment and one count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cli.main import run
from cli.output import show
from models.cluster.windows import Entry, Window, WindowKind
from models.fleet import reducers
from models.fleet.messages import FleetLaunch, FleetPlan, FleetStatus, Noted, Prospect
from models.fleet.order import plan_hash, take_prospects
from models.fleet.state import Member, MemberState, Pace, Wave
from models.fleet.status import progress_of
from models.fleet.status import status_of as status_of_fleet
from models.lifecycle.holds import Hold, HoldKind
from models.rollout.effects import EffectKind
from models.rollout.request_builders import record
from models.rollout.stages import Command, Stage
from models.rollout.status import status_of
from models.rollout.status_models import Condition
from tests.property.test_fleet_machine import START, Fleet, prospect
from tests.unit.cli_fakes import FakeBackstop, answering, status
from tests.unit.pure_world import World
from tests.unit.test_cli_fleet_rollout import NOON, fleet, status_at
from views.fleet_rollout import facts_of, plan_parts

HOUR = timedelta(hours=1)
CALM: dict[str, Any] = {"at_risk": (), "needs": "", "entered_at": NOON - HOUR, "rollout": "h100-0000/1"}
YEAR_END = Window(kind=WindowKind.FREEZE, starts=NOON - HOUR, ends=NOON + 900 * HOUR, reason="year end")


def frozen(*clusters: str) -> list[Entry]:
    return [
        Entry(id=n, cluster=c, window=YEAR_END, source="hold 1", declared_by="tpm") for n, c in enumerate(clusters, 1)
    ]


def output(capsys: pytest.CaptureFixture[str], *words: str, shown: FleetStatus, **door: Any) -> str:
    with answering(FakeBackstop(fleet=shown, **door)):
        assert run(["fleet", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [("status",), ("status", "--all"), ("watch", "--once")])
def test_a_freeze_is_in_the_status_as_in_the_watch(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    hold = Hold(id="f", kind=HoldKind.FREEZE, reason="year end", actor="calendar", at=NOON, until=YEAR_END.ends)
    rollout = status(Stage.BUFFERED, **CALM, holds=(hold,))
    members = [m.cluster for m in status_at(fleet(8)).members]
    said = output(capsys, *words, shown=status_at(fleet(8)), statuses=[rollout], entries=frozen(*members))
    text = " ".join(said.split())
    assert "freeze until 2026-04-09 00:00:00Z, year end: all 8 clusters" in text
    assert "held: freeze, year end, until" in text


def test_a_window_of_some_clusters_names_those_that_are_not_through(capsys: pytest.CaptureFixture[str]) -> None:
    shown = status_at(fleet(8))
    through = tuple(
        m.model_copy(update={"state": MemberState.DONE}) if m.cluster == "h100-0001" else m for m in shown.members
    )
    said = output(
        capsys,
        "status",
        shown=shown.model_copy(update={"members": through}),
        statuses=[status(Stage.BUFFERED, **CALM, holds=())],
        entries=frozen("h100-0001", "h100-0002", "another"),
    )
    assert "year end: h100-0002\n" in said


@pytest.mark.parametrize("words", [("status", "--all"), ("watch", "--once"), ("status", "--json")])
def test_a_stage_and_what_it_waits_for_are_of_one_moment(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """The fleet rollout has noted `planned`; the rollout itself is in `buffered` by now, and soaks there."""
    soak = Condition(name="soak", met=False, text="soak of 24h", until=NOON + 5 * HOUR)
    rollout = status(Stage.BUFFERED, **CALM, holds=(), waiting_for=(soak,))
    said = " ".join(output(capsys, *words, shown=status_at(fleet(8)), statuses=[rollout]).split())
    assert "soak of 24h, until 2026-03-02 17:00:00Z" in said
    assert "buffered" in said
    assert "planned" not in said


def test_another_rollout_of_the_cluster_says_nothing_of_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    other = status(Stage.BUFFERED, **CALM | {"rollout": "h100-0000/2"}, holds=())
    said = output(capsys, "status", "--all", shown=status_at(fleet(8)), statuses=[other])
    assert "planned" in said
    assert "buffered" not in said


def test_no_next_look_lies_behind_the_moment_of_the_status() -> None:
    """A rollback whose inverses are through ends at once: nothing is waited for until a moment that is over."""
    world = World().start()
    over = world.r.but(stage=Stage.ROLLING_BACK)
    assert status_of(over, world.now).next_at is None
    ahead = status_of(world.r, world.now).next_at
    assert ahead is not None
    assert ahead > world.now


# --- counts that agree -------------------------------------------------------------------------------------


def joining(one: Prospect) -> Prospect:
    return one.model_copy(update={"rollout": f"{one.cluster}/by-hand", "stage": "buffered"})


def test_the_breaker_counts_only_what_the_fleet_rollout_started() -> None:
    """Two of its three members were launched by others, and fall: nothing that it did has failed."""
    machine = Fleet([joining(prospect(0)), joining(prospect(1)), prospect(2)], Pace(breaker_clusters=1, parallel=3))
    for n in (0, 1):
        machine.rollouts[f"c{n:04}/by-hand"] = Noted(rollout=f"c{n:04}/by-hand", stage="rolled_back", rollbacks=1)
        machine.fallen.add(f"c{n:04}")
        machine.note()
        machine.step()
    shown = status_of_fleet(machine.f, machine.now)
    assert (shown.failed, shown.holds) == (0, ())
    assert "0 of 1 rolled back" in dict(facts_of(shown))["breaker"].plain
    machine.goes_on("c0002/1")
    machine.falls("c0002/1")
    assert {hold.id for hold in machine.f.holds} == {"breaker"}
    assert machine.f.holds[0].reason.startswith("1 of 1 cluster rolled back, and at most 10% of 1 may")
    assert machine.f.holds[0].reason.endswith("(c0002)")


@pytest.mark.parametrize(("by", "failures"), [("a person", 0), ("a breach", 1), ("a failed effect", 1)])
def test_a_rollback_that_a_person_asked_for_is_no_failure_of_the_cluster(by: str, failures: int) -> None:
    world = World().start()
    if by == "a failed effect":
        world.fail(EffectKind.HARDEN, "Refusal")
        world.until(Stage.ROLLED_BACK)
    else:
        world.until(Stage.ENFORCED)
        if by == "a person":
            world.say(Command.ROLLBACK, reason="not today")
        else:
            world.healthy(100)
        world.until(Stage.ROLLED_BACK)
    assert record(world.r, world.now).rollbacks == failures


def test_a_plan_has_one_number_of_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    """46 in the archive, and 45 in the plan that is to be approved and in its question: one was open already."""
    launch = FleetLaunch(fleet="f", owner="tpm")
    taken = take_prospects(launch, [joining(prospect(0)), *map(prospect, range(1, 46))])
    plan = FleetPlan(fleet="f", hash=plan_hash(taken), clusters=taken)
    archived = reducers.apply_plan(reducers.open_fleet(launch, NOON), launch, plan, NOON).outbox[-1].text
    show(*plan_parts(plan, (), Pace()))
    said = capsys.readouterr().out
    for text in (archived, said):
        assert "46 clusters (45 to start, 1 with a rollout that is open already)" in text
        assert "45 clusters" not in text


# --- how far it is, and when it would end ------------------------------------------------------------------


def test_the_progress_is_the_steps_the_rate_of_the_last_day_and_where_it_leads() -> None:
    """By hand: of nine in three waves four are monitored, two of them today; five are left, at two a day: 2.5 days."""
    waves = (Wave.PILOT, *[Wave.IDLE] * 4, *[Wave.BUSY] * 4)
    ago = [50 * HOUR, 30 * HOUR, 20 * HOUR, 2 * HOUR]
    members = {
        f"c{n}": Member(
            cluster=f"c{n}",
            wave=wave,
            state=MemberState.DONE if n < len(ago) else MemberState.WAITING,
            done_at=NOON - ago[n] if n < len(ago) else None,
        )
        for n, wave in enumerate(waves)
    }
    fleet_rollout = fleet(9).but(members=members, wave=Wave.IDLE, entered_at=NOON - 100 * HOUR, holds=())
    progress = progress_of(fleet_rollout, NOON)
    assert (progress.step, progress.steps, progress.monitored, progress.of_late, progress.left) == (2, 3, 4, 2, 5)
    assert progress.expected_end == NOON + timedelta(days=2.5)
    text = dict(facts_of(status_of_fleet(fleet_rollout, NOON)))["step"].plain
    assert text == (
        "2 of 3; 4 of 9 clusters monitored, 2 in the last day; at this rate the other 5 end by 2026-03-05 00:00:00Z"
    )
    slow = fleet_rollout.but(pace=fleet_rollout.pace.but(bake=timedelta(days=7)))
    assert progress_of(slow, NOON).expected_end == NOON + timedelta(days=7), "a bake is still to come"
    stopped = fleet_rollout.add_hold("paused", HoldKind.PAUSED, "SEV", NOON, "tpm")
    assert progress_of(stopped, NOON).expected_end is None
    assert dict(facts_of(status_of_fleet(stopped, NOON)))["step"].plain.endswith(
        "; the end is unknown, but not before 2026-03-03 12:00:00Z: pilot soak and bakes alone last until then"
    )
    last = stopped.but(wave=Wave.BUSY)
    assert dict(facts_of(status_of_fleet(last, NOON)))["step"].plain.endswith("; the end is unknown")
    young = fleet_rollout.but(entered_at=NOON - 5 * HOUR)
    assert (progress_of(young, NOON).of_late, progress_of(young, NOON).expected_end) == (1, NOON + 25 * HOUR)


def test_a_member_is_counted_when_it_comes_to_be_monitored() -> None:
    machine = Fleet([prospect(0), prospect(1)], Pace(parallel=2))
    for _ in range(3):
        machine.goes_on("c0000/1")
    machine.passes(3 * HOUR)
    assert {c: m.done_at for c, m in machine.f.members.items()} == {"c0000": START, "c0001": None}
    assert progress_of(machine.f, machine.now).of_late == 1
    machine.passes(30 * HOUR)
    assert progress_of(machine.f, machine.now).of_late == 0


def test_news_of_one_that_was_monitored_before_is_no_progress() -> None:
    """Its health falls silent and is there again: it needs a person for a while, and was monitored all along."""
    was = prospect(0).but(rollout="c0000/9", stage="monitored")
    machine = Fleet([was, prospect(1)], Pace(parallel=2))
    for needs in ("mend the health source", ""):
        news = {was.rollout: Noted(rollout=was.rollout, stage="monitored", needs=needs)}
        machine.f = reducers.apply_news(machine.f, news, machine.now)
        progress = progress_of(machine.f, machine.now)
        assert (progress.monitored, progress.of_late, progress.expected_end) == (1, 0, None)
