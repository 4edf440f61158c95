"""The next action of a bring-up: one pure decision, taken again after every event.

Theory of operation. The workflow is a loop around `decide`. It begins an action as a task beside the loop; `under_way`
are the tasks that have not ended. They are not part of the state: after continue-as-new, or a dead worker, none is
under way, and the loop follows each step again by its key (its start is noted, it runs). So a step is started only once
per noted start. `advance` (models/bringup/reducers.py) applies what follows from time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from models.bringup.check_state import colours
from models.bringup.checks import Colour
from models.bringup.graph import ready_steps, steps_before
from models.bringup.recipe import CAPACITY
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak_clock import edge_times, gathered_time
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, Leaving, StepPhase
from models.bringup.workflow_actions import (
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
from models.lifecycle.workflow_actions import Finish, Wait

EMPTYING_LOOKS = (timedelta(seconds=5), timedelta(minutes=10))
"""The shortest and longest time between looks at a cluster being emptied. It grows while nothing changes."""
GRACE = timedelta(minutes=1)
"""The time after a run's limit at which Backstop stops the run, if its runner has not done so."""
MOST_RUNS = 20
"""The most runs of one bring-up at once."""


def decide(bringup: Bringup, now: datetime, under_way: Collection[BringupAction] = ()) -> BringupAction:
    """Return the next action to begin beside those under way."""
    if bringup.stage.has_ended:
        return Finish()
    first = next((action for action in _wanted_actions(bringup, now, under_way) if action not in under_way), None)
    return first or Wait(min((at for at in _times(bringup, now) if at > now), default=None))


def _wanted_actions(bringup: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    yield from _run_actions(bringup, now, under_way)
    if bringup.hold is None and sum(run.phase.under_way for run in bringup.runs.values()) < MOST_RUNS:
        yield from map(Start, startable_steps(bringup, now))
    match bringup.direction:
        case BringupStage.PLANNED:
            if bringup.supply is not None and bringup.supply.colour is not Colour.GREEN and not bringup.supply.skipped:
                yield LookForSupply()
        case BringupStage.PROVISIONING | BringupStage.PROVISIONED:
            yield from _ask_actions(bringup, now, under_way)
            if (
                bringup.hold is None
                and bringup.direction is BringupStage.PROVISIONED
                and is_soaked(bringup, now)
                and not bringup.fault
            ):
                yield HandOver()
        case BringupStage.IN_PRODUCTION:
            yield from _ask_actions(bringup, now, under_way)
            installed, healthy = bringup.gpus_there
            if owes(bringup, now) and (installed > bringup.short_of or healthy > bringup.short_of_healthy):
                yield GrantOwed()
        case BringupStage.RETIRING:
            if bringup.leaving is not None and not bringup.leaving.empty and not bringup.fault:
                at = _next_emptying_look(bringup.leaving)
                if at is None or now >= at:
                    yield WindDown()


def _next_emptying_look(leaving: Leaving) -> datetime | None:
    """Return the time of the next look, in step with the pace of the rollout; None if there was none yet."""
    if leaving.looked_at is None:
        return None
    soonest, latest = EMPTYING_LOOKS
    unchanged = leaving.looked_at - (leaving.since or leaving.looked_at)
    return leaving.looked_at + min(latest, max(soonest, unchanged))


def _run_actions(bringup: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    """Yield a follow for each noted start, and a stop for each run that a command stops."""
    for name, run in bringup.runs.items():
        idle = run.phase.under_way and Start(name) not in under_way
        if idle and (run.next_at is None or run.next_at <= now):
            if run.stopping and run.seen:
                yield Stop(name, run.attempt)
            yield Follow(name, run.attempt)


# --- steps ------------------------------------------------------------------------------------------


def startable_steps(bringup: Bringup, now: datetime) -> list[str]:
    """Return the steps, or undos, that may start now. A blocked step stops only those that depend on it."""
    if bringup.direction is BringupStage.PROVISIONING:
        over = {step.name for step, run in bringup.steps() if run.phase.is_over}
        waiting = [step.name for step, run in bringup.steps() if run.phase is StepPhase.WAITING and not step.touch]
        runs = ready_steps(bringup.recipe.after, waiting, over)
    elif may_unmake(bringup):
        waiting = [step.name for step, _ in bringup.steps() if _waits_for_undo(bringup, step.name)]
        runs = [step + UNDO_SUFFIX for step in reversed(waiting) if not _steps_above(bringup, step)]
    else:
        return []
    return [run for run in runs if (at := bringup.runs[run].next_at) is None or at <= now]


def may_unmake(bringup: Bringup) -> bool:
    """Return whether the cluster is being torn down and no step runs any more."""
    emptied = bringup.direction is BringupStage.CANCELLING or (bringup.leaving is not None and bringup.leaving.empty)
    return bringup.direction.unmakes and emptied and not any(run.phase.under_way for _, run in bringup.steps())


def _waits_for_undo(bringup: Bringup, step: str) -> bool:
    undo = bringup.undo(step)
    return undo is not None and undo.phase is StepPhase.WAITING


def _steps_above(bringup: Bringup, step: str) -> list[str]:
    """Return the steps that depend on this one and are torn down before it, or could not be."""
    return [
        other
        for other in bringup.recipe.after
        if step in steps_before(bringup.recipe.after, [other])
        and (undo := bringup.undo(other)) is not None
        and undo.phase is not StepPhase.DONE
    ]


def spared_steps(bringup: Bringup) -> dict[str, str]:
    """Return the steps not torn down because a step with an unfinished undo depends on them, with that step."""
    failed = [
        step.name
        for step, _ in bringup.steps()
        if (undo := bringup.undo(step.name)) is not None
        and (undo.phase.needs_person or undo.phase is StepPhase.SKIPPED)
    ]
    by = {step: other for other in failed for step in steps_before(bringup.recipe.after, [other])}
    return {step: by[step] for step in bringup.recipe.after if step in by and _waits_for_undo(bringup, step)}


# --- checks -----------------------------------------------------------------------------------------


def checks_to_ask(bringup: Bringup, now: datetime) -> list[str]:
    """The checks that are asked in this stage, whether or not they are due."""
    recurring = [name for name, terms in bringup.rules().items() if not terms.once and not bringup.checks[name].skipped]
    if bringup.direction is BringupStage.PROVISIONING:
        return [CAPACITY] if bringup.all_made else []
    if bringup.direction is BringupStage.IN_PRODUCTION:
        assert bringup.production is not None
        if now < bringup.production.probation_until:
            return recurring
        return [CAPACITY] if owes(bringup, now) else []
    if bringup.direction is not BringupStage.PROVISIONED:
        return []
    colour_of = colours(bringup.checks, bringup.rules(), now, bringup.recipe.stale_after)
    if any(colour_of[name] is not Colour.GREEN for name in recurring):
        return recurring
    wanted = [n for n, t in bringup.rules().items() if t.once and not bringup.checks[n].skipped]
    return recurring + [n for n in wanted if bringup.checks[n].colour is Colour.UNKNOWN]


def next_ask_time(bringup: Bringup, name: str, now: datetime) -> datetime:
    """Return when the check is next asked."""
    asked_at = bringup.checks[name].asked_at
    return now if asked_at is None else asked_at + bringup.rules()[name].every


def _ask_actions(bringup: Bringup, now: datetime, under_way: Collection[BringupAction]) -> Iterator[BringupAction]:
    busy = {name for action in under_way if isinstance(action, AskChecks) for name in action.names}
    due = tuple(
        name for name in checks_to_ask(bringup, now) if name not in busy and next_ask_time(bringup, name, now) <= now
    )
    if due:
        yield AskChecks(due)


def is_soaked(bringup: Bringup, now: datetime) -> bool:
    """Return whether all checks are green now, and have been together for long enough."""
    return bringup.clock.since is not None and gathered_time(bringup.clock, now) >= bringup.recipe.soak


def owes(bringup: Bringup, now: datetime) -> bool:
    until = bringup.entry.owed_until
    return bringup.production is not None and bool(bringup.production.owed) and until is not None and now < until


# --- time -------------------------------------------------------------------------------------------


def overlong_at(bringup: Bringup, run: str) -> datetime | None:
    """Return when a run that has not ended has taken too long; None if it does not run."""
    at = bringup.runs[run].started_at or bringup.runs[run].noted_at
    if not bringup.runs[run].phase.under_way or at is None or bringup.runs[run].stopping:
        return None
    return at + bringup.instructions(run).limit + GRACE


def _times(bringup: Bringup, now: datetime) -> Iterator[datetime]:
    """Yield the times at which something happens by time alone."""
    for name, run in bringup.runs.items():
        yield from (at for at in (run.next_at, overlong_at(bringup, name)) if at is not None)
    for name in checks_to_ask(bringup, now):
        yield next_ask_time(bringup, name, now)
    if bringup.direction is BringupStage.PROVISIONED:
        yield from edge_times(
            bringup.clock, bringup.checks, bringup.rules(), bringup.recipe.stale_after, bringup.recipe.soak
        )
    if (
        bringup.direction in (BringupStage.PROVISIONED, BringupStage.PROVISIONING)
        and bringup.validating_since is not None
    ):
        yield bringup.validating_since + bringup.recipe.validate_within
    if bringup.production is not None and bringup.direction is BringupStage.IN_PRODUCTION:
        yield bringup.production.probation_until
    if bringup.leaving is not None and not bringup.leaving.empty:
        yield from (at for at in (bringup.leaving.deadline, _next_emptying_look(bringup.leaving)) if at is not None)
