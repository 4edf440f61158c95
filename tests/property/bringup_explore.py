"""Every order of outside events up to a depth over a bring-up's pure core: `python -m tests.property.bringup_explore`.

Theory of operation. A state is a bring-up, what really runs outside, and the calls under way. What the core does by
itself costs no depth; each outside event costs one: a start lands or not and its answer comes or is lost, a run ends, a
check answers, a worker dies (what it followed and asked is let go of), a history begins again, a person speaks, time
passes. The outside keeps its own account of what landed and who asked for it; what must hold is judged by that account
and never by what the core believes. Runners keep their promise (a run that is there is found by its key), and a person
who retries an unclear step has looked whether it runs: more cannot be had (docs/bringup.md, "Steps").
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from models.audit_chain import AuditKind
from models.bringup import reducers
from models.bringup import workflow_actions as do
from models.bringup.checks import CheckAnswer, Colour
from models.bringup.commands import BringupOrder, obey, refusal
from models.bringup.decide import decide
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart, HandedOver, WoundDown
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase, RunReport
from models.bringup.stages import BRINGUP_TRANSITIONS, BringupCommand, BringupStage
from models.bringup.state import Bringup
from models.bringup.status import waiting_sentence
from models.lifecycle.workflow_actions import Finish, Wait
from tests.unit.bringup_world import ENTRY, NOON

_UNDO = "/undo"
_ZERO = timedelta(0)
_CAP = timedelta(hours=9)
PATIENCE = 60

A = {"name": "a", "with": "http", "url": "https://h/a", "undo": {"url": "https://h/-a"}}
B = {
    "name": "b",
    "with": "http",
    "url": "https://h/b",
    "after": ["a"],
    "repeatable": True,
    "retries": 1,
    "pause": "0s",
    "undo": {"url": "https://h/-b", "repeatable": True},
}
BARE = {"name": "c", "with": "http", "url": "https://h/c", "after": ["a"]}
TOUCH = {"name": "t", "touch": "say so"}
CHECKS = [
    {"name": "often", "healthy": 0.5, "every": "10m"},
    {"name": "job", "command": ["/x"], "once": True, "every": "10m"},
]


@dataclass(frozen=True)
class Setting:
    """A recipe, and what has happened already."""

    steps: tuple[dict[str, Any], ...]
    checks: tuple[dict[str, Any], ...] = ()
    before: tuple[str, ...] = ()


_ALL_MADE = ("a: begun", "a: succeeds", "b: begun", "b: succeeds")
_CHECKED = ("a: begun", "a: succeeds", "checks: green", "checks: green")
_NEARLY = (*_CHECKED, "time", "checks: green", "time", "checks: green")
SETTINGS: dict[str, Setting] = {
    "chain": Setting((A, B)),
    "beside": Setting((A, TOUCH, BARE)),
    "cancelled": Setting((A, B, BARE), before=(*_ALL_MADE, "c: begun", "c: succeeds", "cancel")),
    "half made": Setting((A, B), before=("a: begun", "a: succeeds", "b: begun", "cancel")),
    "checked": Setting((A, B), tuple(CHECKS), before=_ALL_MADE),
    "soaking": Setting((A,), (CHECKS[0],), before=_CHECKED),
    "nearly soaked": Setting((A,), (CHECKS[0],), before=_NEARLY),
    "retiring": Setting(
        (A, BARE),
        (CHECKS[0],),
        before=(*_CHECKED[:2], "c: begun", "c: succeeds", *_NEARLY[2:], "time", "handed over", "retire"),
    ),
}
"""Where explorations begin."""


def recipe_of(setting: Setting) -> ClusterRecipe:
    return ClusterRecipe.model_validate(
        {
            "name": "explored",
            "provision": list(setting.steps),
            "validate": list(setting.checks),
            "soak": "25m",
            "stale_after": "15m",
            "validate_within": "2h",
            "probation": "0s",
            "capacity": {"with": "http", "url": "https://h/nodes", "every": "10m"},
        }
    )


class Node:
    """A bring-up, the world's own account, and the calls under way."""

    def __init__(self, setting: Setting) -> None:
        entry = BringupEntry.model_validate({**ENTRY, "recipe": "explored"})
        start = BringupStart(entry=entry, recipe=recipe_of(setting), actor="ann")
        self.now = NOON
        self.b = reducers.open_bringup(start, 1, self.now)
        self.calls: tuple[do.BringupAction, ...] = ()
        self.landed: dict[tuple[str, int], RunPhase] = {}
        """What really began, by run and attempt, and how it stands."""
        self.allowed: Counter[str] = Counter()
        """How often a person has had a run started again."""
        self.begun: Counter[str] = Counter()
        """How often a run really began."""
        self.said_done: frozenset[str] = frozenset()
        """Steps that a person touched or skipped."""
        self.answers: tuple[tuple[datetime, str, Colour], ...] = ()
        """What checks really answered, and when."""
        self.handed_over = False
        self.wrong: list[str] = []
        self.passed: set[tuple[BringupStage, BringupStage]] = set()

    def copy(self) -> Node:
        new = object.__new__(Node)
        new.__dict__.update(self.__dict__)
        new.landed, new.allowed, new.begun = dict(self.landed), self.allowed.copy(), self.begun.copy()
        new.wrong, new.passed = [], set()
        return new

    # --- the driver: what the workflow does ------------------------------------------------------

    def set(self, bringup: Bringup) -> None:
        for entry in bringup.outbox:
            if entry.kind is AuditKind.TRANSITION:
                self.passed.add((BringupStage(entry.data["before"]), BringupStage(entry.data["after"])))
        self.wrong += [f"{one} -> {other} is no transition" for one, other in self.passed - BRINGUP_TRANSITIONS]
        self.b = bringup.but(outbox=(), mail=(), serial=0)
        waiting_sentence(self.b, self.now)  # as the book is told at any moment
        if bringup.stage.has_ended:
            self._ended(bringup)

    def run(self) -> datetime | None:
        """Run until nothing begins by itself; return until when."""
        for _ in range(PATIENCE):
            self.set(reducers.advance(self.b, self.now))
            action = decide(self.b, self.now, self.calls)
            if isinstance(action, Finish):
                return None
            if isinstance(action, Wait):
                return action.until
            if action in self.calls:
                self.wrong.append(f"{action} twice")
            if isinstance(action, do.Start):
                self.set(reducers.note_start(self.b, action.run, self.now))
            if isinstance(action, do.AskChecks):
                self.set(reducers.note_asked(self.b, action.names, self.now))
            self.calls = (*self.calls, action)
        self.wrong.append(f"it spins in {self.b.stage}")
        return None

    def done(self, action: do.BringupAction) -> None:
        self.calls = tuple(a for a in self.calls if a != action)

    # --- the world's account ----------------------------------------------------------------------

    def lands(self, run: str) -> None:
        """A start really begins: is that allowed?"""
        if any(name == run and phase is RunPhase.RUNNING for (name, _), phase in self.landed.items()):
            self.wrong.append(f"{run} runs twice at once")
        step = self.b.recipe.steps[run.removesuffix(_UNDO)]
        if not step.runs(undo=run.endswith(_UNDO)).repeatable and self.begun[run] > self.allowed[run]:
            self.wrong.append(f"{run} began again, and nobody said so")
        if not run.endswith(_UNDO):
            self.wrong += [f"{run} began before {name}" for name in step.after if not self._is_done(name)]
        else:
            above = [
                s.name for s in self.b.recipe.provision if step.name in s.after and s.undo and self._stands(s.name)
            ]
            self.wrong += [f"{run} began while {name} stands on it" for name in above]
        self.begun[run] += 1
        self.landed[run, self.b.runs[run].attempt] = RunPhase.RUNNING

    def _is_done(self, step: str) -> bool:
        return step in self.said_done or self._has(step, RunPhase.SUCCEEDED)

    def _has(self, run: str, phase: RunPhase) -> bool:
        return any(name == run and found is phase for (name, _), found in self.landed.items())

    def _stands(self, step: str) -> bool:
        """Something of the step really began, and its undo has not gone well."""
        return self.begun[step] > 0 and not self._has(step + _UNDO, RunPhase.SUCCEEDED)

    def _ended(self, bringup: Bringup) -> None:
        touched = {s.name for s in bringup.recipe.provision if s.touch and s.name in self.said_done}
        for step in bringup.recipe.provision:
            if (
                self._stands(step.name) or step.name in touched
            ) and f"{step.name} is left standing" not in bringup.because:
                self.wrong.append(f"{step.name} stands, and is not named: {bringup.because}")

    def hands_over(self) -> None:
        if self.green_minutes() < self.b.recipe.soak / timedelta(minutes=1):
            self.wrong.append(f"in the fleet after {self.green_minutes()} minutes of green")
        self.handed_over = True

    def green_minutes(self) -> int:
        """Minutes for which all answers together were green and counted, since one was red last; counted one by one."""
        skipped = {name for name, check in self.b.checks.items() if check.skipped}
        names = [name for name in self.b.checks if name not in skipped]
        first = min((at for at, *_ in self.answers), default=self.now)
        good, minute = 0, first
        while minute < self.now:
            colours = [self._counts(name, minute) for name in names]
            good = 0 if Colour.RED in colours else good + all(c is Colour.GREEN for c in colours)
            minute += timedelta(minutes=1)
        return good

    def _counts(self, name: str, at: datetime) -> Colour:
        last = [(when, colour) for when, check, colour in self.answers if check == name and when <= at]
        if not last:
            return Colour.UNKNOWN
        when, colour = last[-1]
        once = name == "job"
        return colour if once or at < when + 2 * timedelta(minutes=10) else Colour.UNKNOWN


# --- what may happen --------------------------------------------------------------------------------

Event = tuple[str, Callable[[Node], object]]


def happenings(node: Node) -> Iterator[Event]:
    for action in node.calls:
        match action:
            case do.Start(run):
                yield from _of_start(action, run)
            case do.Follow(run, attempt):
                yield from _of_follow(node, action, run, attempt)
            case do.Stop(run, attempt):
                yield from _of_stop(node, action, run, attempt)
            case do.AskChecks(names):
                yield from _of_checks(action, names)
            case do.HandOver():
                yield "handed over", lambda w, a=action: _handed(w, a)  # type: ignore[misc]
                yield "hand-over refused", lambda w, a=action: _refused(w, a)  # type: ignore[misc]
            case do.WindDown():
                yield "nothing is left", lambda w, a=action: _wound(w, a, 0)  # type: ignore[misc]
                yield "a job runs", lambda w, a=action: _wound(w, a, 1)  # type: ignore[misc]
    loose = [a for a in node.calls if isinstance(a, do.Follow | do.AskChecks | do.Stop)]
    if loose:
        yield "worker dies", _lets_go
    if not any(isinstance(a, do.Start | do.HandOver) for a in node.calls):
        until = decide(node.b, node.now, node.calls)
        if isinstance(until, Wait) and until.until is not None:
            yield "time", _passes
    yield from _commands(node)


def _of_start(action: do.Start, run: str) -> Iterator[Event]:
    def lands(answered: bool) -> Callable[[Node], None]:
        def happens(w: Node) -> None:
            w.lands(run)
            w.done(action)
            attempt = w.b.runs[run].attempt
            if answered:
                w.set(reducers.apply_report(w.b, run, attempt, RunReport(phase=RunPhase.RUNNING, said="runs"), w.now))
            else:
                w.set(reducers.note_lost_start(w.b, run, attempt, "no answer", w.now))

        return happens

    def begun_and_refused(w: Node) -> None:
        w.lands(run)
        w.done(action)
        attempt = w.b.runs[run].attempt
        w.set(reducers.note_silence(w.b, run, attempt, "no answer", w.now))
        w.set(reducers.note_refusal(w.b, run, attempt, "refused", w.now))

    def never(reducer: Callable[..., Bringup]) -> Callable[[Node], None]:
        def happens(w: Node) -> None:
            w.done(action)
            w.set(reducer(w.b, run, w.b.runs[run].attempt, "not begun", w.now))

        return happens

    yield f"{run}: begun", lands(True)
    yield f"{run}: begun, the worker dies", lands(False)
    yield f"{run}: begun, not answered, and refused when sent again", begun_and_refused
    yield f"{run}: the worker dies before", never(reducers.note_lost_start)
    yield f"{run}: refused", never(reducers.note_refusal)
    yield f"{run}: nobody takes it", never(reducers.note_untaken)


def _of_follow(node: Node, action: do.Follow, run: str, attempt: int) -> Iterator[Event]:
    phase = node.landed.get((run, attempt))

    def ends(as_: RunPhase) -> Callable[[Node], None]:
        def happens(w: Node) -> None:
            w.done(action)
            w.landed[run, attempt] = as_
            w.set(reducers.apply_report(w.b, run, attempt, RunReport(phase=as_, said=as_.value), w.now))

        return happens

    def untraced(w: Node) -> None:
        w.done(action)
        w.set(reducers.note_untraced(w.b, run, attempt, w.now))

    def unheard(w: Node) -> None:
        w.done(action)
        w.set(reducers.note_silence(w.b, run, attempt, "no answer", w.now))

    def host_gone(w: Node) -> None:
        w.done(action)
        w.set(reducers.note_lost_host(w.b, run, attempt, "its host is gone", w.now))

    if not node.b.runs[run].unheard:
        yield f"{run}: its runner says nothing of it", unheard
    if phase is None:
        yield f"{run}: no trace", untraced
    elif phase is RunPhase.RUNNING:
        yield f"{run}: succeeds", ends(RunPhase.SUCCEEDED)
        yield f"{run}: fails", ends(RunPhase.FAILED)
        yield f"{run}: host gone", host_gone
        yield f"{run}: ends while nobody looks", lambda w: w.landed.update({(run, attempt): RunPhase.SUCCEEDED})
    else:
        yield f"{run}: is seen to have ended", ends(phase)


def _of_stop(node: Node, action: do.Stop, run: str, attempt: int) -> Iterator[Event]:
    def stopped(w: Node) -> None:
        w.done(action)
        if w.landed.get((run, attempt)) is RunPhase.RUNNING:
            w.landed[run, attempt] = RunPhase.STOPPED
        as_ = w.landed[run, attempt]
        w.set(reducers.apply_report(w.b, run, attempt, RunReport(phase=as_, said=as_.value), w.now))

    def lost(w: Node) -> None:
        w.done(action)
        w.set(reducers.note_failed_call(w.b, run, attempt, "no answer", w.now))

    if (run, attempt) in node.landed:
        yield f"{run}: stopped", stopped
    yield f"{run}: the stop is lost", lost


def _of_checks(action: do.AskChecks, names: tuple[str, ...]) -> Iterator[Event]:
    def answers(which: tuple[str, ...], colour: Colour) -> Callable[[Node], None]:
        def happens(w: Node) -> None:
            w.done(action)
            said = {n: colour if n in which else Colour.GREEN for n in names}
            w.answers += tuple((w.now, n, c) for n, c in said.items())
            w.set(
                reducers.apply_answers(
                    w.b, {n: CheckAnswer(colour=c, said=c.value, at=w.now) for n, c in said.items()}, w.now
                )
            )

        return happens

    yield "checks: green", answers((), Colour.GREEN)
    for colour in (Colour.RED, Colour.UNKNOWN):
        yield f"checks: {names[-1]} {colour}", answers(names[-1:], colour)


def _handed(w: Node, action: do.BringupAction) -> None:
    w.done(action)
    w.hands_over()
    w.set(reducers.hand_over(w.b, HandedOver(said="written"), w.now))


def _wound(w: Node, action: do.BringupAction, jobs: int) -> None:
    w.done(action)
    w.set(reducers.wind_down(w.b, WoundDown(quota_gpus=0, jobs=jobs, said="looked"), w.now))


def _refused(w: Node, action: do.BringupAction) -> None:
    w.done(action)
    w.set(reducers.note_fault(w.b, "not now", w.now))


def _lets_go(w: Node) -> None:
    """End the calls that follow and ask: a worker dies, or the workflow continues as new."""
    w.calls = tuple(a for a in w.calls if not isinstance(a, do.Follow | do.AskChecks | do.Stop))


def _passes(w: Node) -> None:
    until = decide(w.b, w.now, w.calls)
    assert isinstance(until, Wait)
    assert until.until is not None
    w.now = until.until


def _commands(node: Node) -> Iterator[Event]:
    bringup = node.b
    if bringup.stage.has_ended:
        return
    for stop in (False, True):
        yield from _said(node, BringupCommand.CANCEL, "cancel --stop" if stop else "cancel", stop=stop)
    yield from _said(node, BringupCommand.HOLD, "hold")
    yield from _said(node, BringupCommand.RELEASE, "release")
    yield from _said(node, BringupCommand.CHECK_IN, "check-in")
    yield from _said(node, BringupCommand.REVALIDATE, "revalidate")
    yield from _said(node, BringupCommand.RETRY, "retry")
    yield from _said(node, BringupCommand.RETIRE, "retire")
    for run, state in bringup.runs.items():
        if run.endswith(_UNDO) != bringup.direction.unmakes and not state.phase.under_way:
            continue  # by a step people mean its undo then
        running = any(name == run and phase is RunPhase.RUNNING for (name, _), phase in node.landed.items())
        if state.phase.needs_person and not running:
            yield from _said(node, BringupCommand.RETRY, f"retry {run}", step=run)
        if state.phase.needs_person:
            yield from _said(node, BringupCommand.SKIP, f"skip {run}", step=run)
        if state.phase.under_way:
            yield from _said(node, BringupCommand.STOP, f"stop {run}", step=run)


def _said(node: Node, command: BringupCommand, name: str, **fields: Any) -> Iterator[Event]:
    order = BringupOrder(actor="ann", reason="because", **fields)
    if refusal(node.b, command, order, node.now, node.calls) is not None:
        return

    def happens(w: Node) -> None:
        failed = [run for run, state in w.b.runs.items() if state.phase.needs_person]
        run = order.step or next((r for r in failed if r.endswith(_UNDO) == w.b.direction.unmakes), "")
        if command is BringupCommand.RETRY and run:
            if any(n == run and phase is RunPhase.RUNNING for (n, _), phase in w.landed.items()):
                return  # whoever looks first does not say so
            w.allowed[run] = w.begun[run]
        if command is BringupCommand.SKIP:
            w.said_done |= {order.step}
        if command is BringupCommand.CHECK_IN:
            w.said_done |= {"t"}
        w.set(obey(w.b, command, order, w.now)[0])

    yield name, happens


# --- when two states are one --------------------------------------------------------------------------


def key(node: Node) -> tuple[Any, ...]:
    """Equal for states that nothing tells apart from now on."""
    bringup, now = node.b, node.now

    def age(at: datetime | None) -> float | None:
        return None if at is None else max(-_CAP, min(now - at, _CAP)).total_seconds()

    runs = tuple(
        (
            n,
            r.phase,
            r.starts > 0,
            r.tries,
            r.seen,
            bool(r.stopping),
            age(r.next_at),
            age(r.noted_at),
            age(r.started_at),
        )
        for n, r in bringup.runs.items()
    )
    checks = tuple(
        (n, c.colour, age(c.at), age(c.unknown_since), age(c.asked_at), bool(c.skipped))
        for n, c in bringup.checks.items()
    )
    really = tuple(
        sorted((run, bringup.runs[run].attempt - attempt, phase.value) for (run, attempt), phase in node.landed.items())
    )
    answered = tuple((age(at), name, colour.value) for at, name, colour in node.answers)
    return (
        *(
            bringup.stage,
            bringup.blocked_from,
            bringup.hold is not None,
            bool(bringup.fault),
            runs,
            checks,
            bringup.clock.gathered,
        ),
        bringup.leaving is not None
        and (bringup.leaving.empty, age(bringup.leaving.looked_at), age(bringup.leaving.since)),
        *(age(bringup.clock.since), age(bringup.made_at), age(bringup.validating_since)),
        *(tuple(sorted(map(repr, _relative(node)))), really, answered, node.said_done, node.handed_over),
        tuple(sorted((run, min(1, count - node.allowed[run])) for run, count in node.begun.items())),
    )


def _relative(node: Node) -> Iterator[do.BringupAction]:
    for action in node.calls:
        if isinstance(action, do.Follow | do.Stop):
            yield type(action)(action.run, node.b.runs[action.run].attempt - action.attempt)
        else:
            yield action


# --- the exploration ---------------------------------------------------------------------------------


@dataclass
class Found:
    """The figures of an exploration."""

    depth: int
    states: int = 0
    events: int = 0
    seconds: float = 0.0
    by_depth: list[int] = field(default_factory=list)
    passed: set[tuple[BringupStage, BringupStage]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)


def beginning(setting: Setting) -> Node:
    node = Node(setting)
    node.run()
    for name in setting.before:
        step(node, name)
    return node


def step(node: Node, name: str) -> None:
    events = dict(happenings(node))
    assert name in events, (name, sorted(events), node.b.stage)
    events[name](node)
    node.run()


def explore(setting: Setting, depth: int, most_states: int | None = None) -> Found:
    """Every state within so many outside events of the setting's beginning, breadth first."""
    found = Found(depth)
    none: tuple[str, ...] = ()
    first = beginning(setting)
    found.violations += [f"at the beginning: {wrong}" for wrong in first.wrong]
    seen, queue = {key(first)}, deque([(first, none)])
    level: Counter[int] = Counter({0: 1})
    while queue and (most_states is None or len(seen) < most_states):
        node, path = queue.popleft()
        if len(path) >= depth:
            continue
        for name, happens in happenings(node):
            after = node.copy()
            found.events += 1
            try:
                happens(after)
                after.run()
            except AssertionError as error:
                after.wrong.append(f"{type(error).__name__}: {error}")
            found.passed |= after.passed
            here = (*path, name)
            found.violations += [f"{wrong}: after {' | '.join((*setting.before, *here))}" for wrong in after.wrong]
            mark = key(after)
            if mark not in seen and not after.wrong:
                seen.add(mark)
                level[len(here)] += 1
                if after.b.stage.has_ended:
                    found.ended[after.b.stage.value] += 1
                else:
                    queue.append((after, here))
    found.states = len(seen)
    found.by_depth = [level[n] for n in sorted(level)]
    return found


def report(name: str, found: Found) -> str:
    levels = " + ".join(map(str, found.by_depth))
    lines = [
        f"{name}: depth {found.depth}, {found.events} events tried, {found.states} states ({levels})",
        f"  in {found.seconds:.0f} s; ended {dict(found.ended)}; {len(found.violations)} violations",
        *(f"  {violation}" for violation in found.violations[:10]),
    ]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.property.bringup_explore", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--depth", type=int, default=5, help="outside events in one history (default 5)")
    parser.add_argument("--most-states", type=int, help="stop a setting after so many states")
    parser.add_argument("--setting", choices=sorted(SETTINGS), action="append", help="default: all of them")
    args = parser.parse_args(argv)
    wrong = 0
    for name in args.setting or SETTINGS:
        began = datetime.now(UTC)
        found = explore(SETTINGS[name], args.depth, args.most_states)
        found.seconds = (datetime.now(UTC) - began).total_seconds()
        print(report(name, found), flush=True)
        wrong += len(found.violations)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
