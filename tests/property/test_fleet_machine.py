"""The fleet rollout's pure core under any order of events: what must hold at every step, and that it ends."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.base import DAY, HOUR
from models.cluster.windows import Window, WindowKind
from models.fleet import reducers
from models.fleet.commands import FLEET_COMMANDS, FleetCommandRequest, obey, refusal
from models.fleet.decide import decide
from models.fleet.gates import breaker_share, startable
from models.fleet.messages import (
    AbortAnswer,
    Candidate,
    FleetLaunch,
    FleetPlan,
    Noted,
    PickRequest,
    Prospect,
    StartAnswer,
)
from models.fleet.order import pick, plan_hash, take_prospects
from models.fleet.state import FleetRollout, FleetStage, MemberState, Pace, Wave
from models.fleet.status import waiting_sentence
from models.fleet.undo_lines import fleet_undo_line
from models.fleet.workflow_actions import AbortMembers, PickMembers, PlanFleet, StartMembers
from models.lifecycle.workflow_actions import Finish, Wait
from tests.tried import examples

START = datetime(2026, 3, 2, tzinfo=UTC)
NEXT = {"planned": "buffered", "buffered": "enforced", "enforced": "monitored", "rolled_back": "planned"}


class Fleet:
    """A fleet rollout in a world without a server: its calls are answered at once, its members move when told."""

    def __init__(
        self,
        prospects: list[Prospect],
        pace: Pace,
        pilots: tuple[str, ...] = (),
        windows: dict[str, tuple[Window, ...]] | None = None,
        booked: tuple[int, int] = (0, 0),
    ) -> None:
        self.now = START
        self.world = {p.cluster: p for p in prospects}
        self.windows = windows or {}
        self.rollouts: dict[str, Noted] = {}
        self.booked = booked
        """GPUs that others have moved within the hour and the day, by the ledger."""
        self.launch = FleetLaunch(fleet="f", owner="tpm", pace=pace, pilots=pilots)
        self.f = reducers.open_fleet(self.launch, self.now)
        self.started: list[tuple[datetime, str, int]] = []
        self.calls: Counter[str] = Counter()
        self.said = ""
        """The answer to the last command."""
        self.undo_line = ""
        """What whoever said the last command was told of how to undo it."""
        self.fallen: set[str] = set()
        """Clusters that rolled back since a person let the fleet go on, counted by the world."""
        self.step()
        self.say("approve", plan_hash=self.f.plan_hash)

    # --- what happens ---------------------------------------------------------------------------

    def step(self) -> Wait | Finish:
        """Step until there is nothing to do; check after each step."""
        for _ in range(10_000):
            before, self.f = self.f, reducers.advance(self.f, self.now)
            if before.wave is Wave.PILOT and self.f.wave is not Wave.PILOT:
                self.pilots_are_through(before)
            self.check()
            action = decide(self.f, self.now)
            self.calls[type(action).__name__] += 1
            match action:
                case Wait() | Finish():
                    return action
                case PlanFleet():
                    taken = take_prospects(self.launch, self.world.values())
                    plan = FleetPlan(fleet="f", hash=plan_hash(taken), clusters=taken)
                    self.f = reducers.apply_plan(self.f, self.launch, plan, self.now)
                case PickMembers():
                    self.picks(action)
                case StartMembers():
                    names = [m.cluster for m in action.members]
                    for m in action.members:
                        self.rollouts[m.rollout] = Noted(rollout=m.rollout, stage="planned")
                    self.f = reducers.apply_starts(self.f, names, StartAnswer(), self.now)
                case AbortMembers():
                    for m in action.members:
                        self.rollouts[m.rollout] = self.rollouts[m.rollout].model_copy(update={"stage": "aborted"})
                    self.f = reducers.apply_aborts(self.f, [m.cluster for m in action.members], AbortAnswer(), self.now)
                    self.note()
        raise AssertionError("it never rests")

    def picks(self, action: PickMembers) -> None:
        before = self.f
        request = PickRequest(
            fleet="f",
            wave=self.f.wave,
            candidates=tuple(Candidate(cluster=m.cluster, wave=m.wave, moved=m.moved) for m in action.candidates),
            most=action.most,
            hour_gpus=action.hour_gpus,
            day_gpus=action.day_gpus,
            pace=self.f.pace,
            at=self.now,
        )
        answer = pick(request, [self.world[m.cluster] for m in action.candidates], self.windows, self.booked)
        self.f = reducers.apply_picks(self.f, answer, {p.cluster: f"{p.cluster}/1" for p in answer.picked}, self.now)
        for p in answer.picked:
            assert before.stage is FleetStage.RUNNING
            assert not before.holds, "a cluster was started while something held the fleet"
            assert not self.world[p.cluster].why_not
            self.started.append((self.now, p.cluster, p.cut_gpus))
            if before.wave is Wave.PILOT:
                assert before.members[p.cluster].wave is Wave.PILOT, "a wave began beside its pilots"
        assert self.f.in_flight <= max(before.in_flight, self.f.pace.parallel)
        for span, most in ((HOUR, self.f.pace.budget_per_hour), (DAY, self.f.pace.budget_per_day)):
            # Of what was started under a larger budget, more than the present one may be; no more is then.
            assert not answer.picked or sum(gpus for at, _, gpus in self.started if at > self.now - span) <= most

    def pilots_are_through(self, fleet_rollout: FleetRollout) -> None:
        pilots = [m for m in fleet_rollout.members.values() if m.wave is Wave.PILOT]
        assert all(m.state.is_settled for m in pilots), "a wave began beside its pilots"
        assert not any(m.failed_at is not None and not m.forgiven for m in pilots)
        if any(m.rollout for m in pilots) and not fleet_rollout.waived:
            assert (
                fleet_rollout.settled_at is None or self.now >= fleet_rollout.settled_at + fleet_rollout.pace.pilot_soak
            )
            assert fleet_rollout.settled_at is not None or fleet_rollout.pace.pilot_soak == timedelta(0)

    def note(self) -> None:
        known = {m.rollout: (m.stage, m.rollbacks) for m in self.f.members.values() if m.rollout}
        changed = {k: v for k, v in self.rollouts.items() if known.get(k) != (v.stage, v.rollbacks)}
        self.f = reducers.apply_news(self.f, changed, self.now)

    def moves(self, rollout: str, stage: str, rollbacks: int = 0) -> None:
        found = self.rollouts[rollout]
        self.rollouts[rollout] = found.model_copy(update={"stage": stage, "rollbacks": found.rollbacks + rollbacks})
        self.note()
        self.step()

    def goes_on(self, rollout: str) -> None:
        if self.rollouts[rollout].stage in NEXT:
            self.moves(rollout, NEXT[self.rollouts[rollout].stage])

    def falls(self, rollout: str) -> None:
        if self.rollouts[rollout].stage in ("buffered", "enforced", "monitored"):
            cluster = rollout.removesuffix("/1")
            if self.f.members[cluster].state is not MemberState.SKIPPED and not self.f.stage.has_ended:
                self.fallen.add(cluster)
            self.moves(rollout, "rolled_back", 1)

    def passes(self, time: timedelta) -> None:
        self.now += time
        self.step()

    def say(self, command: Any, **fields: Any) -> bool:
        """False: it was refused, and nothing has changed."""
        request = FleetCommandRequest(actor="tpm", reason="as it goes", **fields)
        if refusal(self.f, command, request) is not None:
            return False
        before = self.f
        self.f, self.said = obey(before, command, request, self.now)
        self.undo_line = fleet_undo_line(before, self.f, command, request)
        if command == "resume":
            self.fallen = set()
        assert self.said
        self.step()
        return True

    # --- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        fleet_rollout = self.f
        assert {m.cluster for m in fleet_rollout.failed_members} == self.fallen
        names = [name for _, name, _ in self.started]
        assert len(names) == len(set(names)), "a cluster was started twice"
        if fleet_rollout.stage is FleetStage.RUNNING:
            failed, counted = breaker_share(fleet_rollout)
            assert failed <= fleet_rollout.pace.max_failed * counted or fleet_rollout.hold("breaker") is not None
        if fleet_rollout.stage is FleetStage.DONE:
            assert all(m.state.is_settled for m in fleet_rollout.members.values())


def prospect(number: int, wave: Wave = Wave.BUSY, cut: int = 10, headroom: float = 0.0, why_not: str = "") -> Prospect:
    name = f"c{number:04d}"
    return Prospect(cluster=name, wave=wave, headroom=headroom, cut_gpus=cut, plan_hash=name, why_not=why_not)


WAVES = st.sampled_from([Wave.UNALLOCATED, Wave.UNSCHEDULED, Wave.IDLE, Wave.BUSY])
PROSPECTS = st.lists(
    st.tuples(WAVES, st.integers(0, 60), st.integers(-5, 5), st.sampled_from(["", "", "", "not backed"])),
    min_size=1,
    max_size=12,
).map(lambda rows: [prospect(n, w, cut, h / 10, why) for n, (w, cut, h, why) in enumerate(rows)])
PACES = st.builds(
    Pace,
    parallel=st.integers(1, 4),
    pilot_soak=st.sampled_from([timedelta(0), timedelta(hours=1)]),
    bake=st.sampled_from([timedelta(0), timedelta(hours=2)]),
    budget_per_hour=st.integers(40, 120),
    budget_per_day=st.integers(60, 400),
    breaker_clusters=st.integers(1, 10),
    recheck=st.just(timedelta(minutes=10)),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["on", "on", "on", "fall", "time", "say", "world"]), st.integers(0, 1000)), max_size=60
)


@settings(max_examples=examples(300), deadline=None)
@given(PROSPECTS, PACES, st.integers(0, 3), EVENTS)
def test_whatever_happens_the_pace_the_budget_and_the_breaker_hold(
    prospects: list[Prospect], pace: Pace, pilots: int, events: list[tuple[str, int]]
) -> None:
    fleet = Fleet(prospects, pace, tuple(p.cluster for p in prospects[:pilots]))
    for kind, number in events:
        happens(fleet, kind, number)
    # Whatever it was, people and time bring it to its end.
    for _ in range(400):
        if fleet.f.stage.has_ended:
            break
        if fleet.f.holds:
            assert fleet.say("resume")
        for name, p in fleet.world.items():
            if p.why_not or p.cut_gpus > min(fleet.f.pace.budget_per_hour, fleet.f.pace.budget_per_day):
                fleet.say("skip", clusters=(name,))
        for rollout in list(fleet.rollouts):
            fleet.goes_on(rollout)
        fleet.passes(timedelta(hours=1))
    assert fleet.f.stage.has_ended, waiting_sentence(fleet.f, fleet.now)
    assert FleetRollout.model_validate_json(fleet.f.model_dump_json()) == fleet.f


def happens(fleet: Fleet, kind: str, number: int) -> None:
    rollouts, names = sorted(fleet.rollouts), sorted(fleet.world)
    if kind == "time":
        fleet.passes(timedelta(minutes=number))
    elif kind == "world":
        name = names[number % len(names)]
        waves = [Wave.UNALLOCATED, Wave.UNSCHEDULED, Wave.IDLE, Wave.BUSY]
        changes = {"headroom": number % 7 / 7, "wave": waves[number % 4], "cut_gpus": number % 50}
        fleet.world[name] = fleet.world[name].model_copy(update=changes)
    elif kind == "say":
        command = FLEET_COMMANDS[number % len(FLEET_COMMANDS)]
        if command != "abort" or number % 5 == 0:
            cluster = names[number % len(names)]
            pace = [{"parallel": 1 + number % 4}, {"bake": "1h", "pilot_soak": "0s"}, {"budget_per_hour": number % 90}]
            fleet.say(
                command, clusters=(cluster,), wave=list(Wave)[number % 5], undo=number % 2 == 0, pace=pace[number % 3]
            )
    elif rollouts:
        rollout = rollouts[number % len(rollouts)]
        fleet.goes_on(rollout) if kind == "on" else fleet.falls(rollout)


@pytest.mark.parametrize("clusters", [1000])
def test_a_thousand_clusters_come_through_with_few_calls(clusters: int) -> None:
    waves = [Wave.UNALLOCATED, Wave.UNSCHEDULED, Wave.IDLE, Wave.BUSY]
    prospects = [prospect(n, waves[n % 4], 8 if n % 4 else 0, (n % 97) / 100) for n in range(clusters)]
    pace = Pace(parallel=50, budget_per_hour=10_000, budget_per_day=100_000)
    fleet = Fleet(prospects, pace, ("c0001", "c0002"))
    for _ in range(clusters):
        if fleet.f.stage.has_ended:
            break
        moving = [r for r, found in fleet.rollouts.items() if found.stage in NEXT]
        for rollout in moving:
            stage = NEXT[fleet.rollouts[rollout].stage]
            fleet.rollouts[rollout] = fleet.rollouts[rollout].model_copy(update={"stage": stage})
        fleet.note()
        fleet.passes(timedelta(days=1))
    assert fleet.f.stage is FleetStage.DONE
    assert {m.state for m in fleet.f.members.values()} == {MemberState.DONE}
    order = [fleet.f.members[name].wave.number for _, name, _ in fleet.started]
    assert order == sorted(order)
    assert 0 < fleet.calls["PickMembers"] <= 40
    assert len(fleet.f.but(outbox=()).model_dump_json()) < 400_000


def test_a_window_that_is_taken_back_holds_nobody_any_more() -> None:
    freeze = Window(kind=WindowKind.FREEZE, starts=START, ends=START + timedelta(days=30), reason="year end")
    fleet = Fleet([prospect(0), prospect(1)], Pace(), windows={"c0001": (freeze,)})
    assert [name for _, name, _ in fleet.started] == ["c0000"]
    assert fleet.f.members["c0001"].held.endswith("year end")
    fleet.windows = {}
    fleet.passes(timedelta(minutes=9))
    assert len(fleet.started) == 1
    fleet.passes(timedelta(minutes=1))
    assert [name for _, name, _ in fleet.started] == ["c0000", "c0001"]


def test_one_that_was_skipped_can_be_taken_in_again_and_one_that_is_through_cannot_be_skipped() -> None:
    fleet = Fleet([prospect(0), prospect(1)], Pace(parallel=1))
    assert fleet.say("skip", clusters=("c0001",))
    assert fleet.say("move", clusters=("c0001",), wave=Wave.IDLE)
    for _ in range(3):
        fleet.goes_on("c0000/1")
    assert not fleet.say("skip", clusters=("c0000",))
    assert [name for _, name, _ in fleet.started] == ["c0000", "c0001"]


def test_a_launch_that_was_refused_is_not_tried_again_at_once() -> None:
    fleet = Fleet([prospect(0), prospect(1)], Pace(parallel=1))
    fleet_rollout = fleet.f.but(
        members=fleet.f.members | {"c0000": fleet.f.members["c0000"].but(state=MemberState.STARTING)}
    )
    fleet_rollout = reducers.apply_starts(
        fleet_rollout, ["c0000"], StartAnswer(refused={"c0000": "it is owned by others"}), START
    )
    assert [m.cluster for m in startable(fleet_rollout, START)] == ["c0001"]
    later = START + fleet_rollout.pace.recheck
    assert {m.cluster for m in startable(fleet_rollout, later)} == {"c0000", "c0001"}
