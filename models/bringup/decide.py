"""What a bring-up does next: one pure decision, taken again after everything that happens.

Theory of operation. The workflow is a loop around `decide`. An action is begun and goes on beside the loop; `under_way`
are those that have not ended. None of them is in the state: a history that begins anew, or a worker that died, leaves
none under way, and what the state says of each step (its start is noted, it runs) is followed again by its key. So a
step is started once only by what was noted before. What follows from time alone `advance` takes in
(models/bringup/reducers.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from models.bringup.actions import (
    AskChecks,
    BringupAction,
    Follow,
    GrantOwed,
    HandOver,
    LookForSupply,
    Start,
    Stop,
    WindDown,
)
from models.bringup.checks import Colour
from models.bringup.graph import ready_steps, steps_before, steps_behind
from models.bringup.recipe import CAPACITY
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak import colours, edge_times, gathered_time
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, Leaving, StepPhase
from models.lifecycle.actions import Finish, Wait

EMPTYING_LOOKS = (timedelta(seconds=5), timedelta(minutes=10))
"""Between two looks at a cluster that is being emptied: as long as it has stood so, within these."""
GRACE = timedelta(minutes=1)
"""A runner ends what takes too long by itself; this much later it is told to."""
MOST_RUNS = 20
"""Of one bring-up at once."""


def decide(b: Bringup, now: datetime, under_way: Collection[BringupAction] = ()) -> BringupAction:
    """The next action to begin beside those under way."""
    if b.stage.has_ended:
        return Finish()
    first = next((action for action in _wanted_actions(b, now, under_way) if action not in under_way), None)
    return first or Wait(min((at for at in _times(b, now) if at > now), default=None))


def _wanted_actions(b: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    yield from _run_actions(b, now, under_way)
    if b.hold is None and sum(run.phase.under_way for run in b.runs.values()) < MOST_RUNS:
        yield from map(Start, startable_steps(b, now))
    match b.direction:
        case BringupStage.PLANNED:
            if b.supply is not None and b.supply.colour is not Colour.GREEN and not b.supply.skipped:
                yield LookForSupply()
        case BringupStage.PROVISIONING | BringupStage.PROVISIONED:
            yield from _ask_actions(b, now, under_way)
            if b.hold is None and b.direction is BringupStage.PROVISIONED and is_soaked(b, now) and not b.fault:
                yield HandOver()
        case BringupStage.IN_PRODUCTION:
            yield from _ask_actions(b, now, under_way)
            installed, healthy = b.gpus_there
            if owes(b, now) and (installed > b.short_of or healthy > b.short_of_healthy):
                yield GrantOwed()
        case BringupStage.RETIRING:
            if b.leaving is not None and not b.leaving.empty and not b.fault:
                at = _next_emptying_look(b.leaving)
                if at is None or now >= at:
                    yield WindDown()


def _next_emptying_look(leaving: Leaving) -> datetime | None:
    """None: it never was looked at. A rollout of seconds is followed in seconds, one of weeks seldom."""
    if leaving.looked_at is None:
        return None
    soonest, latest = EMPTYING_LOOKS
    unchanged = leaving.looked_at - (leaving.since or leaving.looked_at)
    return leaving.looked_at + min(latest, max(soonest, unchanged))


def _run_actions(b: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    """Every run whose start was noted is followed, and stopped where that was said."""
    for name, run in b.runs.items():
        idle = run.phase.under_way and Start(name) not in under_way
        if idle and (run.next_at is None or run.next_at <= now):
            if run.stopping and run.seen:
                yield Stop(name, run.attempt)
            yield Follow(name, run.attempt)


# --- steps ------------------------------------------------------------------------------------------


def startable_steps(b: Bringup, now: datetime) -> list[str]:
    """The steps, or undos, that may start now; what blocks one keeps none that does not stand on it."""
    if b.direction is BringupStage.PROVISIONING:
        over = {step.name for step, run in b.steps() if run.phase.is_over}
        waiting = [step.name for step, run in b.steps() if run.phase is StepPhase.WAITING and not step.touch]
        runs = ready_steps(b.recipe.after, waiting, over)
    elif may_unmake(b):
        waiting = [step.name for step, _ in b.steps() if _waits_for_undo(b, step.name)]
        runs = [step + UNDO_SUFFIX for step in reversed(waiting) if not _steps_above(b, step)]
    else:
        return []
    return [run for run in runs if (at := b.runs[run].next_at) is None or at <= now]


def may_unmake(b: Bringup) -> bool:
    """It is being unmade, and no step runs any more."""
    emptied = b.direction is BringupStage.CANCELLING or (b.leaving is not None and b.leaving.empty)
    return b.direction.unmakes and emptied and not any(run.phase.under_way for _, run in b.steps())


def _waits_for_undo(b: Bringup, step: str) -> bool:
    undo = b.undo(step)
    return undo is not None and undo.phase is StepPhase.WAITING


def _steps_above(b: Bringup, step: str) -> list[str]:
    """What stands on this step and is to be unmade before it, or could not be."""
    return [
        other
        for other in steps_behind(b.recipe.after, step)
        if (undo := b.undo(other)) is not None and undo.phase is not StepPhase.DONE
    ]


def spared_steps(b: Bringup) -> dict[str, str]:
    """Steps that are not unmade because one whose undo did not finish stands on them: that one, by step."""
    failed = [
        step.name
        for step, _ in b.steps()
        if (undo := b.undo(step.name)) is not None and (undo.phase.needs_person or undo.phase is StepPhase.SKIPPED)
    ]
    by = {step: other for other in failed for step in steps_before(b.recipe.after, [other])}
    return {step: by[step] for step in b.recipe.after if step in by and _waits_for_undo(b, step)}


# --- checks -----------------------------------------------------------------------------------------


def checks_to_ask(b: Bringup, now: datetime) -> list[str]:
    """The checks that are asked in this stage, whether or not they are due."""
    recurring = [name for name, terms in b.rules().items() if not terms.once and not b.checks[name].skipped]
    if b.direction is BringupStage.PROVISIONING:
        return [CAPACITY] if b.all_made else []
    if b.direction is BringupStage.IN_PRODUCTION:
        assert b.production is not None
        if now < b.production.probation_until:
            return recurring
        return [CAPACITY] if owes(b, now) else []
    if b.direction is not BringupStage.PROVISIONED:
        return []
    colour_of = colours(b.checks, b.rules(), now, b.recipe.stale_after)
    if any(colour_of[name] is not Colour.GREEN for name in recurring):
        return recurring
    wanted = [n for n, t in b.rules().items() if t.once and not b.checks[n].skipped]
    return recurring + [n for n in wanted if b.checks[n].colour is Colour.UNKNOWN]


def due_at(b: Bringup, name: str, now: datetime) -> datetime:
    """When the check is asked next."""
    asked_at = b.checks[name].asked_at
    return now if asked_at is None else asked_at + b.rules()[name].every


def _ask_actions(b: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    busy = {name for action in under_way if isinstance(action, AskChecks) for name in action.names}
    due = tuple(name for name in checks_to_ask(b, now) if name not in busy and due_at(b, name, now) <= now)
    if due:
        yield AskChecks(due)


def is_soaked(b: Bringup, now: datetime) -> bool:
    """All checks are green now, and have been together for long enough."""
    return b.clock.since is not None and gathered_time(b.clock, now) >= b.recipe.soak


def owes(b: Bringup, now: datetime) -> bool:
    until = b.entry.owed_until
    return b.production is not None and bool(b.production.owed) and until is not None and now < until


# --- time -------------------------------------------------------------------------------------------


def overlong_at(b: Bringup, run: str) -> datetime | None:
    """When a run that has not ended has taken too long; None: it does not run."""
    at = b.runs[run].started_at or b.runs[run].noted_at
    if not b.runs[run].phase.under_way or at is None or b.runs[run].stopping:
        return None
    step = b.recipe.steps[run.removesuffix(UNDO_SUFFIX)]
    return at + step.runs(undo=run.endswith(UNDO_SUFFIX)).limit + GRACE


def _times(b: Bringup, now: datetime) -> Iterator[datetime]:
    """When time alone brings something about."""
    for name, run in b.runs.items():
        yield from (at for at in (run.next_at, overlong_at(b, name)) if at is not None)
    for name in checks_to_ask(b, now):
        yield due_at(b, name, now)
    if b.direction is BringupStage.PROVISIONED:
        yield from edge_times(b.clock, b.checks, b.rules(), b.recipe.stale_after, b.recipe.soak)
    if b.direction in (BringupStage.PROVISIONED, BringupStage.PROVISIONING) and b.validating_since is not None:
        yield b.validating_since + b.recipe.validate_within
    if b.production is not None and b.direction is BringupStage.IN_PRODUCTION:
        yield b.production.probation_until
    if b.leaving is not None and not b.leaving.empty:
        yield from (at for at in (b.leaving.deadline, _next_emptying_look(b.leaving)) if at is not None)
