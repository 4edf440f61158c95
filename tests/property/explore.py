"""Every order of outside events up to a depth, from a launched rollout on: `python -m tests.property.explore`.

Theory of operation. A state is a rollout, its world and the action under way, if one is. What the rollout
does by itself (an action begins, an action answers) costs no depth and every state in between is visited;
what comes from outside costs one: a command, a health change, a foreign write, a window, a failure, a worker
that takes long, time. So depth N is every history with at most N outside events, in every place between any
two steps of the machine. `decide`, `advance`, `obey`, the reducers, the planner and the backing are the
product's own; the world and what must hold are those of tests/property/witness.py.

Two states are one when `key` says so. It leaves out only what nothing decides by (serials, texts, fences,
who acted) and writes times as ages, cut off where older makes no difference and generations by their rank.
tests/property/test_explored.py checks both: that no field of the state is forgotten, and that states of one
key go on alike.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from models.cluster.quota import Quota
from models.cluster.readings import Observation, QuotaReading
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window, WindowKind
from models.hashes import content_hash
from models.lifecycle.state_machine import Refused
from models.lifecycle.workflow_actions import Finish, Wait
from models.planning.backing import Backing, back
from models.planning.plan import Plan
from models.rollout import time_reducers
from models.rollout.commands import CommandRequest, refusal
from models.rollout.decide import FRESH, RECHECK, decide, recovery_pause
from models.rollout.effect_table import INVERSE
from models.rollout.effects import Change, EffectKind
from models.rollout.owner_news import news_for_owner, rollback_for_owner, tell_owner
from models.rollout.stages import ANSWERS, TRANSITIONS, Command, Stage, UndoOr, answer
from models.rollout.state import Rollout
from tests.property.witness import Observed
from tests.unit import pure_world
from tests.unit.pure_world import PATIENCE, Flight, quota

Cell = tuple[Stage, Command, Stage | None]
"""What a command does in a stage; None: it is refused."""
_ZERO = timedelta(0)


@dataclass(frozen=True)
class Setting:
    """The start of an exploration: a policy (its differences from `COMMON`), and what has happened already."""

    policy: dict[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    merges: bool = False
    """People merge what the quota system writes."""


_BREACH = ("approve", "81 healthy", "11m pass")
SETTINGS: dict[str, Setting] = {
    "rollback": Setting(),
    "timed": Setting({"notice": "1h", "soak_buffered": "1h", "soak_enforced": "1h"}),
    "rolled back": Setting(before=_BREACH),
    "tried again": Setting(before=(*_BREACH, "100 healthy", "13h pass")),
    "half undone": Setting(before=("approve", "abort ...", "unfollow never lands")),
    "realign": Setting({"on_breach": "realign", "on_drift": "accept"}, before=_BREACH),
    "realign, buffered": Setting({"on_breach": "realign", "soak_buffered": "1d"}, before=_BREACH),
    "realign, enforced": Setting({"on_breach": "realign", "soak_enforced": "1d"}, before=_BREACH),
    "hold": Setting({"on_breach": "hold", "on_drift": "restore"}, before=_BREACH),
    "drifted": Setting(before=("approve", "others: a 45")),
    "radius": Setting({"max_moved_gpus": 10, "rollback_to": "baseline"}, before=("approve",)),
    "shadow": Setting({"shadow": True}),
    "merged": Setting(before=("approve ...", "harden waits for a merge"), merges=True),
    "merged, undone": Setting(before=("approve", "rollback ...", "soften waits for a merge"), merges=True),
    "merged, restored": Setting(
        {"on_drift": "restore"}, before=("approve", "others: a 45 ...", "set_soft waits for a merge"), merges=True
    ),
}
"""Where explorations begin. `...` after a name: the action that it begins is still under way."""
COMMON = {
    "notice": "0s",
    "soak_buffered": "0s",
    "soak_enforced": "0s",
    "spare_gpus": 0,
    "confirm_samples": 1,
    "recover_after": "1h",
    "stale_after": "2h",
    "safety_poll": "12h",
    "attempts": 2,
    "max_moved_gpus": 1000,
}
GOOD, SHORT, IMPLAUSIBLE = 100, 81, 60
QUOTAS: tuple[Quota, ...] = (quota("a", 50), quota("b", 50, busy=30))
"""The plan: a 50, b 35. With 81 healthy GPUs it lacks 4; 60 is more than a plausible drop below 100."""


# --- one state and what follows from it ----------------------------------------------------------


class Node(Observed):
    """A world that stops at each action, and copies cheaply."""

    flight: Flight | None = None
    micro = True
    merges = False
    passing_through: set[tuple[Stage, Stage]]

    def __init__(self, **policy: Any) -> None:
        self.passing_through = set()
        super().__init__(QUOTAS, {"X": (GOOD, GOOD)}, **{**COMMON, **policy})

    def copy(self) -> Node:
        new = object.__new__(Node)
        new.__dict__.update(self.__dict__)
        kept = ("quotas", "islands", "short_total", "good_since", "before_change", "touched", "unseen", "first_modes")
        for name in kept:
            setattr(new, name, getattr(self, name).copy())
        new.expected = None if self.expected is None else dict(self.expected)
        new.moves = [m for m in self.moves if self.now - m[0] < timedelta(hours=1)]
        new.effects = list(self.effects) if self.shadow else []
        new.actions, new.plans, new.told, new.story = [], [], [], []
        new.history, new.flexes = list(self.history), list(self.flexes)
        return new

    def run(self) -> datetime | None:
        for _ in range(PATIENCE):
            if self.flight is not None:
                self.post()
                if self.micro:
                    return None
                self.lands()
                continue
            self.hears()
            self.r = time_reducers.advance(self.r, self.now)
            self.r = tell_owner(self.r, (*news_for_owner(self.r, self.now), *rollback_for_owner(self.r)))
            if self.post():
                continue
            action = decide(self.r, self.now)
            if isinstance(action, Finish):
                return None
            if isinstance(action, Wait):
                self.watch()
                if not self.look_wanted and (action.until is None or action.until > self.now):
                    return action.until
                continue
            self.flight = self.begin(action)
        raise AssertionError(f"it spins in {self.r.stage}")

    def lands(self, error: str = "", *, landed: bool = True) -> None:
        flight, self.flight = self.flight, None
        assert flight is not None
        self.answer(flight, error, landed=landed)
        self.in_flight_for = _ZERO

    def settle(self) -> None:
        """All that is under way, and follows at once, is done."""
        self.micro = False
        self.run()
        self.micro = True

    def wait(self, length: str | timedelta) -> None:
        self.micro = False
        super().wait(length)
        self.micro = True

    def passed(self, path: Any) -> None:
        super().passed(path)
        self.passing_through.update(itertools.pairwise(path))

    @property
    def blind(self) -> bool:
        return super().blind or self.in_flight_for > _ZERO

    @property
    def under_way(self) -> bool:
        return self.flight is not None


def commands(world: Node) -> Iterator[tuple[Command, dict[str, str]]]:
    """Every command, in each way that can make a difference."""
    rollout = world.r
    for command in Command:
        match command:
            case Command.APPROVE:
                yield command, {"plan_hash": "" if rollout.plan is None else rollout.plan.hash}
                yield command, {"plan_hash": "another"}
            case Command.ACK | Command.OBJECT:
                yield command, {"team": "b"}
            case Command.RESOLVE:
                for hold in [h.id for h in rollout.holds] or ["unknown_health"]:
                    for how in ("accept", "restore") if hold == "drift" else ("",):
                        yield command, {"hold": hold, "how": how}
                if rollout.holds and rollout.sight.suspect is not None:
                    yield command, {"hold": "unknown_health"}
            case _:
                yield command, {}


def happenings(world: Node) -> Iterator[tuple[str, Callable[[Node], object]]]:
    """Yield what may come from outside, except commands."""
    if world.flight is not None:
        yield from _failures(world.flight)
        if world.merges and world.flight.change is not None and world.flight.change.kind in _MERGED:
            yield f"{world.flight.change.kind}{_WAITS}", _waits_for_merge
        if world.flight.change is not None and not world.in_flight_for:
            yield "11m under way", _takes_long
    else:
        until = decide(world.r, world.now)
        if isinstance(until, Wait) and until.until is not None:
            yield "time to the next wake", _next_wake
            yield "11m pass", lambda w: w.wait("11m")
            yield "13h pass", lambda w: w.wait("13h")
    if world.sampled_at is None:
        for gpus in (GOOD, SHORT, IMPLAUSIBLE):
            if world.islands["X"].healthy_gpus != gpus:
                yield f"{gpus} healthy", lambda w, gpus=gpus: w.healthy(X=gpus)  # type: ignore[misc]
        yield "no samples", lambda w: w.silent()
    else:
        yield "samples again", lambda w: w.speaks()
    ours = world.r.written.get("a", 50)
    if world.values["a"] != 45:
        yield "others: a 45", lambda w: w.foreign("a", 45)
    else:
        yield f"others: a {ours}", lambda w: w.foreign("a", ours)
    yield (
        ("others: z gone", lambda w: w.foreign("z", None))
        if "z" in world.values
        else (
            "others: z 4",
            lambda w: w.foreign("z", 4),
        )
    )
    if world.unmerged:
        yield "people merge it", lambda w: _branch_goes(w, merged=True)
        yield "its branch is gone", lambda w: _branch_goes(w, merged=False)
    if not world.windows:
        yield "maintenance begins", lambda w: w.window(WindowKind.MAINTENANCE, "2h")
    else:
        yield "maintenance ends", _window_ends
    yield "watch off" if world.watch_runs else "watch on", _watch


def _failures(flight: Flight) -> Iterator[tuple[str, Callable[[Node], object]]]:
    if flight.change is None:
        error = {"look": "Unavailable", "draft": "Refusal", "aim": "BlastRadius"}[flight.name]
        yield f"{flight.name} fails", _fails(error, landed=False)
        return
    kind = flight.change.kind
    # An inverse is retried without limit unless it can never succeed.
    error = "Unavailable" if kind in INVERSE else "Refusal"
    yield f"{kind} never lands", _fails(error, landed=False)
    yield f"{kind} lands, its answer is lost", _fails(error, landed=True)
    yield f"{kind}: superseded", _superseded


def _fails(error: str, *, landed: bool) -> Callable[[Node], None]:
    def fails(world: Node) -> None:
        world.lands(error, landed=landed)
        world.run()

    return fails


_WAITS = " waits for a merge"
_MERGED = (EffectKind.SET_SOFT, EffectKind.HARDEN, EffectKind.SOFTEN, EffectKind.RESTORE)
"""Effects that may move a quota."""


def _waits_for_merge(world: Node) -> None:
    world.unmerged, world.merged = True, False
    world.lands("AwaitsMerge", landed=False)
    world.run()


def _branch_goes(world: Node, *, merged: bool) -> None:
    world.unmerged, world.merged = False, merged
    world.noticed()


def _superseded(world: Node) -> None:
    world.superseded = True
    world.lands()
    world.run()


def _takes_long(world: Node) -> None:
    world.in_flight_for = timedelta(minutes=11)
    world.now += world.in_flight_for
    world.windows = tuple(w for w in world.windows if w.ends > world.now)
    world.watch()
    world.run()


def _next_wake(world: Node) -> None:
    until = decide(world.r, world.now)
    assert isinstance(until, Wait)
    assert until.until is not None
    edges = [t for w in world.windows for t in (w.starts, w.ends) if t > world.now]
    due = min((until.until, *edges))
    world.passing(due)
    world.now = due
    world.watch()
    world.run()


def _window_ends(world: Node) -> None:
    world.windows = ()
    world.noticed()


def _watch(world: Node) -> None:
    world.watch_runs = not world.watch_runs
    world.mark = ""  # a watch that comes back signals each rollout once
    world.noticed()


# --- when two states are one ------------------------------------------------------------------------

LEFT_OUT = {
    "cluster": "the same in all",
    "id": "the same in all",
    "owner": "the same in all",
    "shadow": "the same in all of one exploration",
    "policy": "the same in all of one exploration",
    "launched_at": "counts only before the first sample, and a launch needs one",
    "entered_at": "shown to people",
    "attempt": "shown to people",
    "ended_because": "shown to people",
    "approved_by": "shown to people",
    "fence": "orders writes; only whether a look is older counts (looked_after)",
    "receipts": "shown to people",
    "outbox": "archived at once",
    "mail": "delivered at once",
    "mail_trouble": "shown to people",
    "serial": "numbers entries",
    "noted": "follows the stage",
}
"""Fields of Rollout by which nothing decides, and why."""


def key(world: Node) -> tuple[Any, ...]:
    """Equal for states that nothing tells apart from now on."""
    return (*_rollout(world).values(), _flight(world), *_world(world))


class _Clock:
    """Ages at one moment, in seconds."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def age(self, at: datetime | None, cap: timedelta) -> float | None:
        return None if at is None else min(self.now - at, cap).total_seconds()

    def windows(self, windows: tuple[Window, ...], since: datetime) -> tuple[Any, ...]:
        return tuple(
            (w.kind, max(w.starts - self.now, since - self.now), max(w.ends - self.now, since - self.now))
            for w in windows
            if w.ends > since
        )


def _plan_before(rollout: Rollout) -> Plan | None:
    return None if rollout.stay.realigning is None else rollout.stay.realigning.before


def _rollout(world: Node) -> dict[str, Any]:
    """Return what matters of a rollout's state, by field."""
    rollout, policy, clock = world.r, world.policy, _Clock(world.now)
    rank = _ranks(world)
    looked = rollout.looked_at or rollout.launched_at
    before = _plan_before(rollout)
    soak = {Stage.BUFFERED: policy.soak_buffered, Stage.ENFORCED: policy.soak_enforced}.get(rollout.stage, _ZERO)
    # Its age counts for the end of a breach, or for recovery.
    good = {Stage.ROLLED_BACK: recovery_pause(rollout)}.get(
        rollout.stage, policy.clear_after if rollout.stage.is_guarded else _ZERO
    )
    return {
        "baseline": (rollout.baseline.quotas, rollout.baseline.islands),
        "modes": _items(rollout.modes),
        "generation": rank[rollout.generation],
        "stage": rollout.stage,
        "failures": rollout.failures,
        "completed": rollout.completed,
        "plan": None
        if rollout.plan is None
        else (_plan(rollout.plan), rank[rollout.plan.generation], rollout.is_approved),
        "replan": bool(rollout.stay.replan),
        "envelope": None
        if rollout.envelope is None
        else (_items(rollout.envelope.largest_cut), rollout.envelope.deepest_tier),
        "realigning": rollout.is_realigning,
        "plan_before": None
        if before is None
        else (_plan(before), rank[before.generation], rollout.but(plan=before).is_approved),
        "reconsider": rollout.stay.outlook.reconsider,
        "proposal": None
        if rollout.proposal is None
        else (_plan(rollout.proposal.plan), rank[rollout.proposal.plan.generation]),
        "proposing": rollout.is_proposing,
        "considered_gpus": rollout.stay.outlook.considered_gpus,
        "proposed_at": clock.age(rollout.proposed_at, policy.replan_window),
        "restoring": rollout.stay.restoring,
        "standing": rollout.standing,
        "stood": rollout.stood if world.flight is not None else (),
        "done": rollout.stay.done,
        "written": _items(rollout.written),
        "foreign": rollout.foreign,
        "unapproved": tuple(sorted(rollout.unapproved.items())),
        "modes_given": _items(rollout.modes_given),
        "attempted": _items(rollout.attempted),
        "holds": tuple(
            (h.id, h.kind, h.after_enforced, h.reason if h.id in ("drift", "replan") else "") for h in rollout.holds
        ),
        "acks": rollout.announced.acks,
        "notified_at": clock.age(rollout.announced.delivered_at, policy.notice),
        "told_cuts": _items(rollout.announced.cuts),
        "undelivered": rollout.announced.undelivered,
        "soak_since": clock.age(rollout.stay.soak_since, soak),
        "waived": rollout.stay.waived,
        "flex_gpus": rollout.flex.gpus,
        "flex_since": clock.age(rollout.flex.more_since, policy.clear_after),
        "flex_failed_at": clock.age(rollout.flex.failed_at, RECHECK),
        "seen": None if rollout.seen is None else _seen(rollout.seen, rank, clock, looked),
        "looked_at": clock.age(rollout.looked_at, policy.resting_poll),
        "looked_after": rollout.looked_after == rollout.fence,
        "look_asked": rollout.look_asked or world.look_wanted,
        "look_wanted": world.look_wanted,
        "edge": world.edge.why if world.look_wanted and world.edge is not None else "",
        "look_failed": bool(rollout.look_failed),
        "sight": _sight(rollout, clock, looked),
        "clocks": (
            tuple(
                (
                    team,
                    c.missing_gpus,
                    None if c.short_since is None else min(c.time_spent(world.now), policy.breach_after),
                    None if c.good_since is None else (world.now - c.good_since, min(c.earlier, policy.breach_after)),
                )
                for team, c in rollout.clocks.by_team.items()
                if c.good_since is None or world.now - c.good_since < policy.clear_after
            ),
            clock.age(rollout.clocks.all_good_since, good),
        ),
        "breach_of": rollout.breach_of,
        "aiming": rollout.stay.aiming,
        "exempt": rollout.stay.exempt,
        "order": None
        if rollout.undo is None
        else (rollout.undo.why, rollout.undo.then, _items(rollout.undo.target), rollout.undo.actor),
        "owed": rollout.owed,
        "stuck_on": tuple(u.kind for u in rollout.stuck_on),
        "superseded": bool(rollout.superseded),
    }


def _items(of: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(of.items()))


def _plan(plan: Plan) -> tuple[Any, ...]:
    rows = tuple((q.team, q.before_gpus, q.after_gpus) for q in plan.quotas)
    return rows, plan.backed, plan.deepest_tier, plan.healthy_gpus


def _seen(seen: Observation, rank: dict[int, int], clock: _Clock, looked: datetime) -> tuple[Any, ...]:
    return (
        seen.reading.quotas,
        rank[seen.reading.generation],
        None if seen.health is None else seen.health.islands,
        clock.windows(seen.windows, looked),
        _items(seen.tested),
        _items(seen.shortage),
        _items(seen.counted),
        seen.is_backed,
        (seen.reading.flex_gpus, seen.flex),
        (seen.reading.unmerged, seen.reading.merged),
    )


def _sight(rollout: Rollout, clock: _Clock, looked: datetime) -> tuple[Any, ...]:
    known, suspect = rollout.sight.known, rollout.sight.suspect
    return (
        None
        if known is None
        else (
            known.islands,
            clock.age(known.at, rollout.policy.stale_after),
            min(looked - known.at, rollout.policy.stale_after),
        ),
        None if suspect is None else (suspect.islands, clock.age(suspect.at, rollout.policy.safety_poll)),
        rollout.seen is not None and rollout.seen.health == known,
        rollout.sight.agreeing,
    )


def _ranks(world: Node) -> dict[int, int]:
    """Generations by age: only which is the newer one counts."""
    rollout, flight = world.r, world.flight
    found = {world.generation, rollout.generation}
    proposed = None if rollout.proposal is None else rollout.proposal.plan
    found |= {p.generation for p in (rollout.plan, _plan_before(rollout), proposed, world.made) if p is not None}
    found |= {s.reading.generation for s in (rollout.seen, None if flight is None else flight.seen) if s is not None}
    if flight is not None and flight.draft is not None:
        found |= {flight.draft.reading.generation, flight.draft.plan.generation}
    if flight is not None and flight.change is not None and flight.change.expected_generation is not None:
        found.add(flight.change.expected_generation)
    return {g: rank for rank, g in enumerate(sorted(found))}


def _flight(world: Node) -> tuple[Any, ...] | None:
    flight, clock = world.flight, _Clock(world.now)
    if flight is None:
        return None
    rank = _ranks(world)
    reading: QuotaReading | None = None if flight.draft is None else flight.draft.reading
    return (
        flight.name,
        flight.fence == world.r.fence,
        None if flight.seen is None else _seen(flight.seen, rank, clock, world.now),
        None
        if flight.draft is None or reading is None
        else (_plan(flight.draft.plan), rank[reading.generation], reading.quotas, flight.draft.baseline.islands),
        None if flight.target is None else _items(flight.target.values),
        None if flight.change is None else _change(flight.change, rank),
        None if flight.effect is None else (flight.effect.limit_gpus, flight.effect.limit_day_gpus),
        world.in_flight_for,
    )


def _change(change: Change, rank: dict[int, int]) -> tuple[Any, ...]:
    expected = change.expected_generation
    asked = None if expected is None else rank[expected]
    return change.writes, asked, change.mode, repr(change.reserve), change.flex_gpus


def _world(world: Node) -> tuple[Any, ...]:
    clock, policy = _Clock(world.now), world.policy
    stale = max(policy.stale_after, timedelta(minutes=30))
    made, agreed = world.made, world.agreed
    hour = timedelta(hours=1)
    return (
        tuple(world.quotas[t] for t in sorted(world.quotas)),
        _ranks(world)[world.generation],
        world.limit,
        world.follows,
        world.flex,
        world.mark.rpartition("; ")[2],
        (judged := world.judged) and (judged.signalled, judged.facts.guarded, judged.generation == world.generation),
        _of_late(world.history, world.now - policy.clear_after),
        tuple(world.islands.values()),
        clock.age(world.sampled_at, stale),
        clock.windows(world.windows, world.now),
        world.watch_runs,
        world.superseded,
        (world.unmerged, world.merged),
        tuple((clock.age(at, hour), gpus) for at, gpus in world.moves if gpus and world.now - at < hour)
        if policy.max_moved_gpus < GOOD
        else (),
        # what the witness keeps
        _items({t: clock.age(at, policy.breach_after) for t, at in world.short_since.items()}),
        _items({t: min(total, policy.breach_after) for t, total in world.short_total.items()}),
        _items({t: clock.age(at, policy.clear_after) for t, at in world.good_since.items()}),
        world.ever_blind,
        None if world.expected is None else _items(world.expected),
        _items(world.before_change),
        tuple(sorted(world.touched)),
        tuple(sorted(world.unseen)),
        None if made is None else (_plan(made), made.generation == world.generation),
        None if agreed is None else (_plan(agreed), made is not None and agreed.hash == made.hash),
        world.looked_on,
        clock.age(world.looked_at, 2 * FRESH),
        world.permit,
    )


def _of_late(history: list[tuple[datetime, str, int]], since: datetime) -> tuple[Any, ...]:
    """The samples that a look can ask for: those since then, and what stood before."""
    stood = {name: healthy for at, name, healthy in history if at <= since}
    return _items(stood), tuple((at - since, name, healthy) for at, name, healthy in history if at > since)


@contextmanager
def remembering() -> Iterator[None]:
    """Backings and hashes of plans that were computed before are looked up: both are pure functions."""
    known: dict[Any, Backing] = {}
    hashes: dict[int, tuple[BaseModel, str]] = {}

    def hashed(model: BaseModel, exclude: set[str] | None = None, *, exclude_defaults: bool = False) -> str:
        found = hashes.get(id(model))
        if found is None:
            digest = content_hash(model, exclude, exclude_defaults=exclude_defaults)
            found = hashes[id(model)] = (model, digest)  # kept alive, so its id stays its own
        return found[1]

    def remembered(snapshot: Snapshot) -> Backing:
        at = (snapshot.quotas, snapshot.islands)
        found = known.get(at)
        if found is None:
            found = known[at] = back(snapshot)
        return found

    with ExitStack() as stack:
        for place in (
            "activities.rollout.observation",
            "activities.rollout.breach_target",
            "activities.watch.fingerprint",
            "tests.unit.pure_world",
            "models.rollout.commands",
            "tests.property.witness",
        ):
            stack.enter_context(patch(f"{place}.back", remembered))
        stack.enter_context(patch("models.planning.plan.content_hash", hashed))
        yield


# --- the exploration ----------------------------------------------------------------------------------


def cells() -> frozenset[Cell]:
    """Every answer that the table can give."""
    found: set[Cell] = set()
    for (stage, command), cell in ANSWERS.items():
        for one in (Stage.ROLLING_BACK, cell.otherwise) if isinstance(cell, UndoOr) else (cell,):
            found.add((stage, command, None if isinstance(one, Refused) else one))
    return frozenset(found)


@dataclass
class Found:
    """The figures of an exploration."""

    depth: int
    events: int = 0
    states: int = 0
    by_depth: list[int] = field(default_factory=list)
    cells: set[Cell] = field(default_factory=set)
    transitions: set[tuple[Stage, Stage]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    """Each with the shortest path that leads there."""
    seconds: float = 0.0


class Exploration:
    """Breadth first from one launched rollout, or from what has become of it."""

    def __init__(self, setting: Setting, depth: int, most_states: int | None = None) -> None:
        self.found = Found(depth)
        self.most_states = most_states
        self.setting = setting
        self.paths: list[tuple[int, str]] = []
        """By state: the one it was first reached from, and how."""
        self.known: dict[int, int] = {}
        self.kinds: set[str] = set()
        """Violations met already, by what they say."""
        self.visited: Callable[[Node, int], None] = lambda world, state: None

    def run(self) -> Found:
        found = self.found
        level: list[tuple[Node, int]] = []
        root = Node(**self.setting.policy)
        root.merges = self.setting.merges
        if self.setting.before:
            root.settle()
        for name in self.setting.before:
            step_by_name(root, name.removesuffix(" ..."))
            if not name.endswith(" ..."):
                root.settle()
        self._reached(root, -1, " -> ".join(("launch", *self.setting.before)), level)
        for depth in range(found.depth + 1):
            reached: list[tuple[Node, int]] = []
            ready, before = deque(level), found.states - len(level)
            while ready and not self._full:
                world, state = ready.popleft()
                if world.flight is not None:
                    answered: list[tuple[Node, int]] = []
                    self._do(world, state, f"{world.flight.name} answers", _answers, answered)
                    ready.extend(answered)
                if depth < found.depth:
                    self._expand(world, state, reached)
            found.by_depth.append(found.states - before - len(reached))
            level = reached
        return found

    @property
    def _full(self) -> bool:
        return self.most_states is not None and self.found.states >= self.most_states

    def path(self, state: int) -> list[str]:
        """Return what happened, from the launch on."""
        steps = []
        while state >= 0:
            state, step = self.paths[state]
            steps.append(step)
        return steps[::-1]

    def _expand(self, world: Node, state: int, reached: list[tuple[Node, int]]) -> None:
        for command, fields in commands(world):
            self._command(world, state, command, fields, reached)
        if not world.stage.has_ended:
            for name, event in happenings(world):
                self._do(world, state, name, event, reached)

    def _command(
        self, world: Node, state: int, command: Command, fields: dict[str, str], reached: list[tuple[Node, int]]
    ) -> None:
        before = world.r
        request = CommandRequest(actor="tpm", reason="because", **fields)
        said = answer(before.stage, command, effects_stand=before.effects_stand)
        why = refusal(before, command, request)
        if isinstance(said, Refused):
            self.found.cells.add((before.stage, command, None))
        if why is not None:
            self.found.events += 1
            if world.r is not before:
                self._violated("a refused command changed the state", state, command.value)
            return
        if isinstance(said, Refused):
            self._violated(f"{command} is refused by the table and was taken", state, command.value)
            return
        self.found.cells.add((before.stage, command, said))

        def obeyed(after: Node) -> None:
            after.say(command, run=False, **fields)
            assert after.stage is said, f"{command} led to {after.stage}, not {said}"
            after.run()

        detail = "".join(f" {v}" for k, v in fields.items() if v and k != "plan_hash")
        self._do(world, state, f"{command}{detail}", obeyed, reached)

    def _do(
        self,
        world: Node,
        state: int,
        name: str,
        event: Callable[[Node], object],
        reached: list[tuple[Node, int]],
    ) -> None:
        self.found.events += 1
        after = world.copy()
        try:
            event(after)
        except pure_world.Refused:
            return  # the quota system refused it
        except AssertionError as wrong:
            self._violated(_text(wrong), state, name)
            return
        self._reached(after, state, name, reached)

    def _reached(self, world: Node, parent: int, name: str, reached: list[tuple[Node, int]]) -> None:
        self.found.transitions |= world.passing_through
        world.passing_through = set()
        world.account()
        at = hash(key(world))
        state = self.known.get(at)
        if state is None:
            state = self.known[at] = len(self.paths)
            self.paths.append((parent, name))
            self.found.states += 1
            try:
                world.check(under_way=world.under_way)
                leads_out(world)
            except AssertionError as wrong:
                self._violated(_text(wrong), parent, name)
                return
            reached.append((world, state))
        self.visited(world, state)

    def _violated(self, what: str, state: int, last: str) -> None:
        if what not in self.kinds:
            self.kinds.add(what)
            self.found.violations.append(f"{what}\n    " + " -> ".join([*self.path(state), last]))


def step_by_name(world: Node, name: str) -> None:
    """Let the step of this name happen."""
    for command, fields in commands(world):
        if command.value == name:
            world.say(command, run=True, **fields)
            return
    while name.endswith(_WAITS) and world.flight is not None and world.flight.name != name.removesuffix(_WAITS):
        _answers(world)
    dict(happenings(world))[name](world)


def _answers(world: Node) -> None:
    world.lands()
    world.run()


def _text(wrong: AssertionError) -> str:
    """The first line of what is wrong, and where it was seen."""
    at = wrong.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f"{at.tb_frame.f_code.co_name}:{at.tb_lineno}"
    return f"{where}: {str(wrong).splitlines()[0] if str(wrong) else 'does not hold'}"


def leads_out(world: Node) -> None:
    """Out of `stuck` both ways lead: `retry` undoes what is left, `close` ends it as it stands."""
    if world.stage is not Stage.STUCK:
        return
    again, closed = world.copy(), world.copy()
    if not world.r.superseded:
        again.say(Command.RETRY, run=False)
        again.settle()
        assert again.stage is not Stage.STUCK or again.r.superseded, "`retry` does not lead out of stuck"
    closed.say(Command.CLOSE, run=False)
    closed.settle()
    assert closed.stage is Stage.CLOSED
    assert isinstance(decide(closed.r, closed.now), Finish)
    assert closed.limit is None or closed.superseded, "what is reserved stays so"


def report(name: str, found: Found) -> str:
    lines = [
        (
            f"{name}: depth {found.depth}, {found.events} events tried, {found.states} distinct states "
            f"({' + '.join(map(str, found.by_depth))}) in {found.seconds:.0f} s"
        ),
        (
            f"  (stage, command) cells {len(found.cells)}/{len(cells())}, "
            f"transitions {len(found.transitions)}/{len(TRANSITIONS)}, {len(found.violations)} violations"
        ),
        *(f"  {violation}" for violation in found.violations),
    ]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.explore", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=3, help="outside events in one history (default 3)")
    parser.add_argument("--most-states", type=int, help="stop a setting after so many states")
    parser.add_argument("--setting", choices=sorted(SETTINGS), action="append", help="default: all of them")
    args = parser.parse_args(argv)
    together = Found(args.depth)
    with remembering():
        for name in args.setting or SETTINGS:
            began = datetime.now(UTC)
            found = Exploration(SETTINGS[name], args.depth, args.most_states).run()
            found.seconds = (datetime.now(UTC) - began).total_seconds()
            print(report(name, found), flush=True)
            together.events += found.events
            together.states += found.states
            together.seconds += found.seconds
            together.cells |= found.cells
            together.transitions |= found.transitions
            together.violations += found.violations
    print(report("all", together).replace("()", f"in {len(args.setting or SETTINGS)} settings"))
    for cell in sorted(cells() - together.cells, key=str):
        print("  not reached:", *(str(part) for part in cell))
    for one, other in sorted(TRANSITIONS - together.transitions):
        print(f"  not reached: {one} -> {other}")
    return 1 if together.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
