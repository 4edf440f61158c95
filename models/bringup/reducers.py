"""Outcomes of a bring-up's calls and of time alone, applied to its state.

Every function returns a new Bringup; none decides what to do next (models/bringup/decide.py does). `advance` is called
before each decision: it accounts for time, ticks the soak clock, and moves the stage if nothing is in the way.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import duration_text, gpus_text, some_of
from models.bringup.checks import CheckAnswer, Colour
from models.bringup.decide import may_unmake, overlong_at, spared_steps, startable_steps
from models.bringup.leftovers import leftover_steps
from models.bringup.messages import BringupStart, HandedOver, WoundDown
from models.bringup.placeholders import fill_text
from models.bringup.recipe import CAPACITY
from models.bringup.runs import NOTHING_BEGUN, UNDO_SUFFIX, RunPhase, RunReport
from models.bringup.soak import CheckState, colour_at, colours, tick_clock, turn_clock
from models.bringup.stages import BringupStage
from models.bringup.state import (
    MOST_ATTEMPTS,
    Bringup,
    Production,
    StepPhase,
    StepRun,
    touchable_steps,
)
from models.bringup.troubles import Trouble, troubles

LOOKS_FOR_IT = timedelta(seconds=15)
"""The time between two looks for a start of which nothing is known."""
TRIES_AGAIN = timedelta(minutes=1)
"""The time before another try of a call that could not be made."""
UNTRACED = 2
"""The number of starts in a row without a trace after which even a repeatable step waits for a person."""


def open_bringup(start: BringupStart, number: int, now: datetime) -> Bringup:
    """Open a bring-up: it waits for its supply."""
    recipe = start.recipe
    b = Bringup(
        entry=start.entry,
        recipe=recipe,
        number=number,
        entered_by=start.actor,
        entered_at=now,
        stage_at=now,
        accounted_at=now,
        runs={step.name: StepRun() for step in recipe.provision},
        supply=None if recipe.supply is None else CheckState(),
        checks={CAPACITY: CheckState()} | {c.name: CheckState() for c in recipe.checks},
    )
    text = f"{b.cluster} is entered: {start.entry.text}, by recipe {recipe.name} ({recipe.hash})"
    data = {"entry": start.entry.model_dump(mode="json", exclude_defaults=True), **warrant_in(start)}
    return b.record(AuditKind.COMMAND, text, now, actor=start.actor, reason=start.reason, **data)


# --- time -------------------------------------------------------------------------------------------


def advance(b: Bringup, now: datetime) -> Bringup:
    """Bring the state up to `now`, before anything is decided."""
    b = _tick_clock(b.account_time(now), now)
    for name in b.runs:
        end = overlong_at(b, name)
        if end is None or now < end:
            continue
        run = b.runs[name]
        if run.unheard:
            b = _end_run(b, name, StepPhase.UNCLEAR, f"its time limit is over, and {run.said}", now)
        else:
            b = b.with_run(name, stopping="it takes longer than its limit", next_at=None)
    before = None
    while before is not b:
        before, b = b, _move_on(b, now)
    return _tick_clock(b, now)  # all may be green already where it comes to be validated


def _tick_clock(b: Bringup, now: datetime) -> Bringup:
    if b.direction is not BringupStage.PROVISIONED:
        return b
    clock = tick_clock(b.clock, b.checks, b.rules(), now, b.recipe.stale_after)
    return b if clock == b.clock else b.but(clock=clock)


def _move_on(b: Bringup, now: datetime) -> Bringup:
    """Apply one more consequence, or return the same value."""
    if b.stage.has_ended:
        return b
    open_troubles = troubles(b, now)
    if open_troubles or b.stage is BringupStage.BLOCKED:
        moved = _note_troubles(b, open_troubles, now)
        if moved is not b:
            return moved
    match b.direction:
        case BringupStage.PLANNED:
            return _begin_if_supplied(b, now)
        case BringupStage.PROVISIONING:
            return _asks_for_touches(_finish_making(b, now, blocked=bool(open_troubles)), now)
        case BringupStage.CANCELLING | BringupStage.RETIRING:
            return _finish_unmaking(b, now, blocked=bool(open_troubles))
    return b


def _note_troubles(b: Bringup, open_troubles: list[Trouble], now: datetime) -> Bringup:
    if not open_troubles:
        assert b.blocked_from is not None
        return b.enter_stage(b.blocked_from, now, "nothing blocks it any more")
    because = "; ".join(t.text for t in open_troubles)
    if b.stage is BringupStage.BLOCKED and b.because == because:
        return b
    reason_before = b.because if b.stage is BringupStage.BLOCKED else ""
    b = b.but(because=because) if b.stage is BringupStage.BLOCKED else b.enter_stage(BringupStage.BLOCKED, now, because)
    for trouble in open_troubles:
        if trouble.text not in reason_before:
            b = b.notify_owner(f"{b.cluster} needs a person: {trouble.text}", *trouble.ways)
    return b


def _begin_if_supplied(b: Bringup, now: datetime) -> Bringup:
    supply = b.supply
    if b.hold is not None or (supply is not None and supply.colour is not Colour.GREEN and not supply.skipped):
        return b
    why = "it needs no supply" if supply is None else f"the supply is there: {supply.said}"
    if supply is not None and supply.skipped:
        why = f"the look at its supply was skipped: {supply.skipped}"
    return b.enter_stage(BringupStage.PROVISIONING, now, why)


def _finish_making(b: Bringup, now: datetime, *, blocked: bool) -> Bringup:
    if not b.all_made:
        return b
    if b.made_at is None:
        return b.but(made_at=now, validating_since=now)
    capacity = colour_at(b.checks[CAPACITY], b.rules()[CAPACITY], now, b.recipe.stale_after)
    if blocked or b.hold is not None or capacity is not Colour.GREEN:
        return b
    asked = {name: check.but(unknown_since=now) for name, check in b.checks.items() if check.at is None}
    why = f"every step is done, and {b.checks[CAPACITY].said}"
    return b.but(checks=b.checks | asked, validating_since=now).enter_stage(BringupStage.PROVISIONED, now, why)


def _asks_for_touches(b: Bringup, now: datetime) -> Bringup:
    if b.direction is not BringupStage.PROVISIONING:
        return b
    for step in touchable_steps(b):
        if b.runs[step.name].noted_at is None:
            b = b.with_run(step.name, noted_at=now).notify_owner(
                f"{b.cluster} waits for you: {_touch(b, step.name)}",
                ("When it is done", f"backstop bringup check-in {shlex.quote(b.cluster)} {step.name}"),
            )
    return b


def _touch(b: Bringup, step: str) -> str:
    return fill_text(b.recipe.steps[step].touch, b.entry.all_values)


def _finish_unmaking(b: Bringup, now: datetime, *, blocked: bool) -> Bringup:
    leaving = b.leaving
    if leaving is not None and not leaving.empty and leaving.deadline is not None and now >= leaving.deadline:
        sentence = f"the deadline of {leaving.actor} has come"
        b = b.but(leaving=leaving.but(empty=True, said=sentence)).record(
            AuditKind.HOLD, f"{sentence}: it is unmade", now
        )
    if not may_unmake(b):
        return b
    for step, run in b.steps():
        touched = bool(step.touch) and run.phase is StepPhase.DONE
        if step.undo is not None and (run.starts or touched) and step.name + UNDO_SUFFIX not in b.runs:
            b = b.but(runs={**b.runs, step.name + UNDO_SUFFIX: StepRun()})
    undos = [b.runs[name] for name in b.runs if name.endswith(UNDO_SUFFIX)]
    waiting = sum(run.phase is StepPhase.WAITING for run in undos) - len(spared_steps(b))
    if blocked or waiting or any(run.phase.under_way for run in undos) or startable_steps(b, now):
        return b
    left = leftover_steps(b)
    rest = "; ".join(f"{step} is left standing: {why}" for step, why in left.items())
    why = rest or "nothing is left standing"
    end = BringupStage.CANCELLED if b.direction is BringupStage.CANCELLING else BringupStage.RETIRED
    return b.enter_stage(end, now, why).notify_owner(f"{b.cluster} is {end}: {why}")


# --- runs -------------------------------------------------------------------------------------------


def note_start(b: Bringup, run: str, now: datetime) -> Bringup:
    """Note the start, before it is made."""
    was = b.runs[run]
    fresh = StepRun(
        phase=StepPhase.STARTING,
        attempt=was.attempt + 1,
        starts=was.starts + 1,
        tries=was.tries,
        noted_at=now,
        said="its start is noted",
    )
    b = b.but(runs={**b.runs, run: fresh})
    key = b.key(run).text
    return b.record(AuditKind.EFFECT, f"{run} is about to start (attempt {fresh.attempt})", now, run=run, key=key)


def note_host(b: Bringup, run: str, attempt: int, host: str) -> Bringup:
    return b.with_run(run, host=host) if _is_current(b, run, attempt) else b


def note_refusal(b: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Apply a refused start; unclear if an earlier try had no answer, since that one may have begun."""
    if not _is_current(b, run, attempt):
        return b
    if before := b.runs[run].unheard:
        first = f"its start was refused ({why.removesuffix(NOTHING_BEGUN)})"
        sentence = f"{first}, and an earlier try of it had no clear answer ({before})"
        return _end_run(b, run, StepPhase.UNCLEAR, sentence, now)
    b = b.with_run(run, starts=b.runs[run].starts - 1)
    return _end_run(b, run, StepPhase.FAILED, why, now)


def not_begun(b: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note that nobody took the start, and nobody will: the step starts anew."""
    if not _is_current(b, run, attempt):
        return b
    starts = b.runs[run].starts - 1
    if b.runs[run].attempt >= MOST_ATTEMPTS:
        return _end_run(b.with_run(run, starts=starts), run, StepPhase.FAILED, why, now)
    return b.with_run(run, phase=StepPhase.WAITING, starts=starts, said=why, next_at=now + TRIES_AGAIN, host="")


def no_host(b: Bringup, run: str, why: str, now: datetime) -> Bringup:
    """Note that no host could start the step; its start was not even noted."""
    waits = run in b.runs and b.runs[run].phase is StepPhase.WAITING
    return b.with_run(run, said=why, next_at=now + TRIES_AGAIN) if waits else b


def let_go(b: Bringup, names: Iterable[str]) -> Bringup:
    """Mark checks to be asked again at once: nobody waits for their answers any more."""
    return b.but(checks=b.checks | {name: b.checks[name].but(asked_at=None) for name in names})


def note_silence(b: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note an answer of the runner that says nothing of this attempt; the archive has the first one."""
    if not _is_current(b, run, attempt):
        return b
    first = not b.runs[run].unheard
    sentence = _doubt_text(b.runs[run], why)
    b = note_failed_call(b, run, attempt, sentence, now).with_run(run, unheard=why)
    return b.record(AuditKind.EFFECT, f"{run}: {sentence}", now, run=run, key=b.key(run).text) if first else b


def _doubt_text(run: StepRun, why: str) -> str:
    if run.seen:
        return f"its runner last reported it running; the latest answer: {why}"
    return f"its start is noted, but it is unknown whether it began; the latest answer: {why}"


def note_lost_start(b: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note that the answer to the start was lost: from now on the run is looked for."""
    if not _is_current(b, run, attempt):
        return b
    return b.with_run(run, said=_doubt_text(b.runs[run], why), unheard=why, noted_at=now)


def note_failed_call(b: Bringup, run: str, attempt: int, why: str, now: datetime, *, endless: bool = False) -> Bringup:
    """Note a failed call about the run, to be made again. `endless`: its runner cannot stop it at its time limit."""
    if not _is_current(b, run, attempt):
        return b
    over_at = overlong_at(b.with_run(run, stopping=""), run)
    if endless and over_at is not None and now >= over_at:
        return _end_run(b, run, StepPhase.UNCLEAR, f"its time limit is over, and {why}", now)
    pause = TRIES_AGAIN if b.runs[run].seen else LOOKS_FOR_IT
    return b.with_run(run, said=why, next_at=now + pause)


def apply_report(b: Bringup, run: str, attempt: int, report: RunReport, now: datetime) -> Bringup:
    """Apply the runner's report about the run."""
    if not _is_current(b, run, attempt):
        return b
    b = b.with_run(
        run,
        seen=True,
        said=report.said,
        unheard="",
        code=report.code,
        tail=report.tail,
        link=report.link or b.runs[run].link,
        host=report.host or b.runs[run].host,
        started_at=report.started_at or b.runs[run].started_at or now,
        next_at=None,
    )
    match report.phase:
        case RunPhase.RUNNING:
            return b.with_run(run, phase=StepPhase.RUNNING)
        case RunPhase.SUCCEEDED:
            return _end_run(b, run, StepPhase.DONE, report.said, now, report.ended_at)
    return _fail_run(b, run, report, now)


def note_running(b: Bringup, run: str, now: datetime) -> Bringup:
    """Record that the run has begun, in the archive and so on the board."""
    was, key = b.runs[run], b.key(run).text
    return b.record(AuditKind.EFFECT, f"{run} runs: {was.said}", now, run=run, key=key, link=was.link, host=was.host)


def _fail_run(b: Bringup, run: str, report: RunReport, now: datetime) -> Bringup:
    was = b.runs[run]
    plan = b.recipe.steps[run.removesuffix(UNDO_SUFFIX)].runs(undo=run.endswith(UNDO_SUFFIX))
    sentence = f"{was.stopping}: {report.said}" if was.stopping else report.said
    by_person = report.phase is RunPhase.STOPPED and was.stopping.startswith("stopped by")
    if by_person or was.tries >= plan.retries or was.attempt >= MOST_ATTEMPTS:
        return _end_run(b, run, StepPhase.FAILED, sentence, now, report.ended_at)
    pause = min(plan.pause * 2**was.tries, timedelta(days=1))
    b = _end_run(b, run, StepPhase.WAITING, sentence, now, report.ended_at)
    return b.with_run(run, tries=was.tries + 1, next_at=now + pause)


def note_untraced(b: Bringup, run: str, attempt: int, now: datetime) -> Bringup:
    """Note that the runner has no trace of the run."""
    if not _is_current(b, run, attempt):
        return b
    was = b.runs[run]
    assert was.noted_at is not None
    settled_at = was.noted_at + b.recipe.settle
    if was.seen:
        return _end_run(b, run, StepPhase.UNCLEAR, "its runner has no trace of it any more", now)
    if now < settled_at:
        return b.with_run(run, next_at=min(now + LOOKS_FOR_IT, settled_at))
    sentence = f"its start left no trace in {duration_text(b.recipe.settle)}"
    plan = b.recipe.steps[run.removesuffix(UNDO_SUFFIX)].runs(undo=run.endswith(UNDO_SUFFIX))
    stopped = bool(was.stopping)
    if not plan.repeatable or stopped or was.tries >= max(UNTRACED, plan.retries):
        return _end_run(b, run, StepPhase.UNCLEAR, sentence, now)
    b = _end_run(b, run, StepPhase.WAITING, f"{sentence}; it is repeatable, and started again", now)
    return b.with_run(run, tries=was.tries + 1)


def host_gone(b: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Mark the run as unclear: its host is gone, or its record is damaged."""
    return _end_run(b, run, StepPhase.UNCLEAR, why, now) if _is_current(b, run, attempt) else b


def _is_current(b: Bringup, run: str, attempt: int) -> bool:
    """Return whether this attempt counts; news of an earlier one changes nothing."""
    return run in b.runs and b.runs[run].attempt == attempt and b.runs[run].phase.under_way


def _end_run(
    b: Bringup, run: str, phase: StepPhase, sentence: str, now: datetime, ended_at: datetime | None = None
) -> Bringup:
    b = b.with_run(run, phase=phase, said=sentence, ended_at=ended_at or now, next_at=None, stopping="")
    was = b.runs[run]
    return b.record(
        AuditKind.EFFECT,
        f"{run}: {sentence}" if phase is StepPhase.WAITING else f"{run} is {phase}: {sentence}",
        now,
        run=run,
        key=b.key(run).text,
        code=was.code,
        link=was.link,
        host=was.host,
        tail=was.tail,
    )


# --- supply and checks ------------------------------------------------------------------------------


def apply_supply(b: Bringup, answer: CheckAnswer, now: datetime) -> Bringup:
    """Apply a look at the supply."""
    if b.supply is None:
        return b
    news = (answer.colour, answer.said) != (b.supply.colour, b.supply.said)
    b = b.but(supply=b.supply.take_answer(answer).but(asked_at=now))
    return b.record(AuditKind.GUARD, f"supply: {answer.said}", now, colour=answer.colour.value) if news else b


def note_asked(b: Bringup, names: Iterable[str], now: datetime) -> Bringup:
    """Note that these checks are being asked."""
    return b.but(checks=b.checks | {name: b.checks[name].but(asked_at=now) for name in names})


def apply_answers(b: Bringup, answers: Mapping[str, CheckAnswer], now: datetime) -> Bringup:
    """Apply the answers of checks. An answer has the time that it states, but no earlier than the question."""
    b = _tick_clock(b, now)  # what counted until now, by what was known until now
    for name, answer in answers.items():
        was = b.checks[name]
        at = min(now, max(answer.at, was.asked_at or now))
        b = b.but(checks=b.checks | {name: was.take_answer(answer.but(at=at))})
        if answer.islands:
            b = b.but(islands=answer.islands)
        b = _record_turn(b, name, was, now)
    if b.direction is BringupStage.PROVISIONED:
        b = b.but(clock=turn_clock(b.clock, colours(b.checks, b.rules(), now, b.recipe.stale_after), now))
    return b


def _record_turn(b: Bringup, name: str, was: CheckState, now: datetime) -> Bringup:
    check = b.checks[name]
    if check.colour is was.colour:
        return b
    b = b.record(AuditKind.GUARD, f"check {name} turned {check.colour}: {check.said}", now, check=name)
    if check.colour is Colour.RED and b.direction is BringupStage.IN_PRODUCTION:
        return b.notify_owner(f"in probation, check {name} of {b.cluster} turned red: {check.said}")
    if was.colour is Colour.RED and check.colour is Colour.GREEN and not b.rules()[name].once:
        return once_again(b, now)
    return b


def once_again(b: Bringup, now: datetime) -> Bringup:
    """Repeat the checks that run once: something was repaired."""
    again = {name: b.checks[name].forget_answers(now) for name, terms in b.rules().items() if terms.once}
    return b.but(checks=b.checks | again)


def note_unasked(b: Bringup, names: Iterable[str], why: str, now: datetime) -> Bringup:
    """Apply an unknown answer for checks that could not be asked."""
    return apply_answers(b, {name: CheckAnswer(colour=Colour.UNKNOWN, said=why, at=now) for name in names}, now)


# --- production -------------------------------------------------------------------------------------


def hand_over(b: Bringup, answer: HandedOver, now: datetime) -> Bringup:
    """Move the cluster into production: it is in the fleet."""
    if b.direction is not BringupStage.PROVISIONED:
        return b
    production = Production(
        at=now,
        plan_hash=answer.plan_hash,
        granted=answer.granted,
        owed=answer.owed,
        probation_until=now + b.recipe.probation,
    )
    why = f"all checks were green together for {duration_text(b.recipe.soak)}"
    b = _look_for_more(b.but(production=production)).but(islands=answer.islands or b.islands)
    b = b.record(AuditKind.PLAN, f"handed over: {answer.said}", now, **answer.model_dump(mode="json"))
    if b.stage is BringupStage.BLOCKED:
        b = b.enter_stage(BringupStage.PROVISIONED, now, "nothing blocks it any more")
    b = b.enter_stage(BringupStage.IN_PRODUCTION, now, why)
    return b.notify_owner(f"{b.cluster} is in production: {answer.said}.{_owed_text(answer.owed)}")


def _owed_text(owed: Mapping[str, int]) -> str:
    if not owed:
        return ""
    what = some_of([f"{team} {gpus_text(gpus)}" for team, gpus in sorted(owed.items())])
    return f" Owed, as fewer came than were ordered: {what}."


def note_failed_hand_over(b: Bringup, why: str, now: datetime) -> Bringup:
    """Note that it could not be handed over, or wound down: a person has to mend that first."""
    return b.but(fault=why).record(AuditKind.EFFECT, why, now)


def apply_owed(b: Bringup, answer: HandedOver, now: datetime) -> Bringup:
    """Apply a try to grant owed GPUs: the present grants, and those still owed."""
    if b.production is None:
        return b
    raised = {t: g - b.production.granted.get(t, 0) for t, g in answer.granted.items()}
    raised = {team: gpus for team, gpus in raised.items() if gpus > 0}
    production = b.production.but(granted=answer.granted, owed=answer.owed, plan_hash=answer.plan_hash)
    b = _look_for_more(b.but(production=production))
    if not raised:
        return b
    what = some_of([f"{team} {gpus_text(gpus)} more" for team, gpus in sorted(raised.items())])
    b = b.record(AuditKind.PLAN, f"owed, and granted now: {what}", now, **answer.model_dump(mode="json"))
    return b.notify_owner(f"What was owed in {b.cluster} is granted: {what}.{_owed_text(answer.owed)}")


def note_no_grant(b: Bringup, why: str, now: datetime) -> Bringup:
    """Note that owed GPUs could not be granted, and notify the owner; more GPUs bring another try."""
    b = _look_for_more(b).record(AuditKind.PLAN, f"owed, not granted: {why}", now)
    return b.notify_owner(f"What is owed in {b.cluster} could not be granted: {why}")


def _look_for_more(b: Bringup) -> Bringup:
    installed, healthy = b.gpus_there
    return b.but(short_of=installed, short_of_healthy=healthy)


def wind_down(b: Bringup, answer: WoundDown, now: datetime) -> Bringup:
    """Apply a look at a cluster that is being emptied."""
    if b.leaving is None or b.leaving.empty:
        return b
    sentence, empty = f"{answer.text}: {answer.said}", answer.is_empty
    news = sentence != b.leaving.said
    since = now if news else b.leaving.since
    b = b.but(leaving=b.leaving.but(said=sentence, looked_at=now, since=since, empty=empty))
    return b.record(AuditKind.GUARD, sentence, now) if news else b
