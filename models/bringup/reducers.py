"""Outcomes of a bring-up's calls and of time alone, applied to its state.

Every function returns a new Bringup; none decides what to do next (models/bringup/decide.py does). `advance` is called
before each decision: it accounts for time, ticks the soak clock, and moves the stage if nothing is in the way.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import duration_text
from models.bringup.check_state import CheckState, colour_at, colours
from models.bringup.checks import CheckAnswer, Colour
from models.bringup.decide import may_unmake, overlong_at, spared_steps, startable_steps
from models.bringup.leftovers import leftover_steps
from models.bringup.messages import BringupStart, HandedOver, WoundDown
from models.bringup.placeholders import fill_text
from models.bringup.recipe import CAPACITY
from models.bringup.runs import NOTHING_BEGUN, UNDO_SUFFIX, RunPhase, RunReport
from models.bringup.soak_clock import tick_clock, turn_clock
from models.bringup.stages import BringupStage
from models.bringup.state import MOST_ATTEMPTS, Bringup, Production, StepPhase, StepRun, touchable_steps
from models.bringup.troubles import Trouble, troubles
from models.texts import gpus_text, some_of

LOOKS_FOR_IT = timedelta(seconds=15)
"""The time between two looks for a run that has left no trace."""
TRIES_AGAIN = timedelta(minutes=1)
"""The time before Backstop repeats a call that failed."""
UNTRACED = 2
"""A repeatable step whose starts leave no trace is started again this often, or `retries` times if that is more."""


def open_bringup(start: BringupStart, number: int, now: datetime) -> Bringup:
    """Open a bring-up: it waits for its supply."""
    recipe = start.recipe
    bringup = Bringup(
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
    text = f"{bringup.cluster} is entered: {start.entry.text}, by recipe {recipe.name} ({recipe.hash})"
    data = {"entry": start.entry.model_dump(mode="json", exclude_defaults=True), **warrant_in(start)}
    return bringup.record(AuditKind.COMMAND, text, now, actor=start.actor, reason=start.reason, **data)


# --- time -------------------------------------------------------------------------------------------


def advance(bringup: Bringup, now: datetime) -> Bringup:
    """Bring the state up to `now`, before anything is decided."""
    bringup = _tick_clock(bringup.account_time(now), now)
    for name in bringup.runs:
        end = overlong_at(bringup, name)
        if end is None or now < end:
            continue
        run = bringup.runs[name]
        if run.unheard:
            bringup = _end_run(bringup, name, StepPhase.UNCLEAR, f"its time limit is over, and {run.said}", now)
        else:
            bringup = bringup.with_run(name, stopping="it takes longer than its limit", next_at=None)
    before = None
    while before is not bringup:
        before, bringup = bringup, _move_on(bringup, now)
    return _tick_clock(bringup, now)  # all checks may be green already when validation begins


def _tick_clock(bringup: Bringup, now: datetime) -> Bringup:
    if bringup.direction is not BringupStage.PROVISIONED:
        return bringup
    clock = tick_clock(bringup.clock, bringup.checks, bringup.rules(), now, bringup.recipe.stale_after)
    return bringup if clock == bringup.clock else bringup.but(clock=clock)


def _move_on(bringup: Bringup, now: datetime) -> Bringup:
    """Apply one more consequence, or return the same value."""
    if bringup.stage.has_ended:
        return bringup
    open_troubles = troubles(bringup, now)
    if open_troubles or bringup.stage is BringupStage.BLOCKED:
        moved = _note_troubles(bringup, open_troubles, now)
        if moved is not bringup:
            return moved
    match bringup.direction:
        case BringupStage.PLANNED:
            return _begin_if_supplied(bringup, now)
        case BringupStage.PROVISIONING:
            return _ask_for_touches(_finish_making(bringup, now, blocked=bool(open_troubles)), now)
        case BringupStage.CANCELLING | BringupStage.RETIRING:
            return _finish_unmaking(bringup, now, blocked=bool(open_troubles))
    return bringup


def _note_troubles(bringup: Bringup, open_troubles: list[Trouble], now: datetime) -> Bringup:
    if not open_troubles:
        assert bringup.blocked_from is not None
        return bringup.enter_stage(bringup.blocked_from, now, "nothing blocks it any more")
    because, blocked = "; ".join(t.text for t in open_troubles), bringup.stage is BringupStage.BLOCKED
    if blocked and bringup.because == because:
        return bringup
    reason_before = bringup.because if blocked else ""
    bringup = bringup.but(because=because) if blocked else bringup.enter_stage(BringupStage.BLOCKED, now, because)
    for trouble in open_troubles:
        if trouble.text not in reason_before:
            bringup = bringup.notify_owner(f"{bringup.cluster} needs a person: {trouble.text}", *trouble.ways)
    return bringup


def _begin_if_supplied(bringup: Bringup, now: datetime) -> Bringup:
    supply = bringup.supply
    if bringup.hold is not None or (supply is not None and supply.colour is not Colour.GREEN and not supply.skipped):
        return bringup
    why = "the recipe has no supply check" if supply is None else f"the supply check passed: {supply.said}"
    if supply is not None and supply.skipped:
        why = f"a person skipped the supply check: {supply.skipped}"
    return bringup.enter_stage(BringupStage.PROVISIONING, now, why)


def _finish_making(bringup: Bringup, now: datetime, *, blocked: bool) -> Bringup:
    if not bringup.all_made:
        return bringup
    if bringup.made_at is None:
        return bringup.but(made_at=now, validating_since=now)
    capacity = colour_at(bringup.checks[CAPACITY], bringup.rules()[CAPACITY], now, bringup.recipe.stale_after)
    if blocked or bringup.hold is not None or capacity is not Colour.GREEN:
        return bringup
    asked = {name: check.but(unknown_since=now) for name, check in bringup.checks.items() if check.at is None}
    why = f"every step is done, and {bringup.checks[CAPACITY].said}"
    return bringup.but(checks=bringup.checks | asked, validating_since=now).enter_stage(
        BringupStage.PROVISIONED, now, why
    )


def _ask_for_touches(bringup: Bringup, now: datetime) -> Bringup:
    if bringup.direction is not BringupStage.PROVISIONING:
        return bringup
    for step in touchable_steps(bringup):
        if bringup.runs[step.name].noted_at is None:
            bringup = bringup.with_run(step.name, noted_at=now).notify_owner(
                f"{bringup.cluster} waits for you: {fill_text(step.touch, bringup.entry.all_values)}",
                ("When it is done", f"backstop bringup check-in {shlex.quote(bringup.cluster)} {step.name}"),
            )
    return bringup


def _finish_unmaking(bringup: Bringup, now: datetime, *, blocked: bool) -> Bringup:
    leaving = bringup.leaving
    if leaving is not None and not leaving.empty and leaving.deadline is not None and now >= leaving.deadline:
        sentence = f"the deadline of {leaving.actor} has come"
        bringup = bringup.but(leaving=leaving.but(empty=True, said=sentence)).record(
            AuditKind.HOLD, f"{sentence}: Backstop tears the cluster down", now
        )
    if not may_unmake(bringup):
        return bringup
    for step, run in bringup.steps():
        touched = bool(step.touch) and run.phase is StepPhase.DONE
        if step.undo is not None and (run.starts or touched) and step.name + UNDO_SUFFIX not in bringup.runs:
            bringup = bringup.but(runs={**bringup.runs, step.name + UNDO_SUFFIX: StepRun()})
    undos = [run for name, run in bringup.runs.items() if name.endswith(UNDO_SUFFIX)]
    waiting = sum(run.phase is StepPhase.WAITING for run in undos) - len(spared_steps(bringup))
    if blocked or waiting or any(run.phase.under_way for run in undos) or startable_steps(bringup, now):
        return bringup
    left = [f"{step} is left standing: {why}" for step, why in leftover_steps(bringup).items()]
    why = "; ".join(left) or "nothing is left standing"
    end = BringupStage.CANCELLED if bringup.direction is BringupStage.CANCELLING else BringupStage.RETIRED
    return bringup.enter_stage(end, now, why).notify_owner(f"{bringup.cluster} is {end}: {why}")


# --- runs -------------------------------------------------------------------------------------------


def note_start(bringup: Bringup, run: str, now: datetime) -> Bringup:
    """Note the start, before it is made."""
    latest = bringup.runs[run]
    fresh = StepRun(
        phase=StepPhase.STARTING,
        attempt=latest.attempt + 1,
        starts=latest.starts + 1,
        tries=latest.tries,
        noted_at=now,
        said="about to be started",
    )
    bringup = bringup.but(runs={**bringup.runs, run: fresh})
    return _record_run(bringup, run, f"{run} is about to start (attempt {fresh.attempt})", now)


def _record_run(bringup: Bringup, run: str, text: str, now: datetime, **data: Any) -> Bringup:
    return bringup.record(AuditKind.EFFECT, text, now, run=run, key=bringup.key(run).text, **data)


def note_host(bringup: Bringup, run: str, attempt: int, host: str) -> Bringup:
    return bringup.with_run(run, host=host) if _is_current(bringup, run, attempt) else bringup


def note_refusal(bringup: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Apply a refused start; unclear if an earlier try had no answer, since that one may have begun."""
    if not _is_current(bringup, run, attempt):
        return bringup
    if before := bringup.runs[run].unheard:
        first = f"its start was refused ({why.removesuffix(NOTHING_BEGUN)})"
        sentence = f"{first}, and an earlier try to start it had no clear answer ({before})"
        return _end_run(bringup, run, StepPhase.UNCLEAR, sentence, now)
    bringup = bringup.with_run(run, starts=bringup.runs[run].starts - 1)
    return _end_run(bringup, run, StepPhase.FAILED, why, now)


def note_untaken(bringup: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note that nobody took the start, and nobody will: the step starts again."""
    if not _is_current(bringup, run, attempt):
        return bringup
    starts = bringup.runs[run].starts - 1
    if bringup.runs[run].attempt >= MOST_ATTEMPTS:
        return _end_run(bringup.with_run(run, starts=starts), run, StepPhase.FAILED, why, now)
    return bringup.with_run(run, phase=StepPhase.WAITING, starts=starts, said=why, next_at=now + TRIES_AGAIN, host="")


def note_no_host(bringup: Bringup, run: str, why: str, now: datetime) -> Bringup:
    """Note that no host could start the step; its start was not even noted."""
    waits = run in bringup.runs and bringup.runs[run].phase is StepPhase.WAITING
    return bringup.with_run(run, said=why, next_at=now + TRIES_AGAIN) if waits else bringup


def note_silence(bringup: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note an answer of the runner that says nothing of this attempt; the archive has the first one."""
    if not _is_current(bringup, run, attempt):
        return bringup
    first = not bringup.runs[run].unheard
    sentence = _doubt_text(bringup.runs[run], why)
    bringup = note_failed_call(bringup, run, attempt, sentence, now).with_run(run, unheard=why)
    return _record_run(bringup, run, f"{run}: {sentence}", now) if first else bringup


def _doubt_text(run: StepRun, why: str) -> str:
    if run.seen:
        return f"its runner last reported it running, and has answered nothing about it since: {why}"
    return f"Backstop was about to start it and does not know whether it began: {why}"


def note_lost_start(bringup: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Note that the answer to the start was lost: from now on the run is looked for."""
    if not _is_current(bringup, run, attempt):
        return bringup
    return bringup.with_run(run, said=_doubt_text(bringup.runs[run], why), unheard=why, noted_at=now)


def note_failed_call(
    bringup: Bringup, run: str, attempt: int, why: str, now: datetime, *, endless: bool = False
) -> Bringup:
    """Note a failed call about the run, to be made again. `endless`: its runner cannot stop it at its time limit."""
    if not _is_current(bringup, run, attempt):
        return bringup
    over_at = overlong_at(bringup.with_run(run, stopping=""), run)
    if endless and over_at is not None and now >= over_at:
        return _end_run(bringup, run, StepPhase.UNCLEAR, f"its time limit is over, and {why}", now)
    pause = TRIES_AGAIN if bringup.runs[run].seen else LOOKS_FOR_IT
    return bringup.with_run(run, said=why, next_at=now + pause)


def apply_report(bringup: Bringup, run: str, attempt: int, report: RunReport, now: datetime) -> Bringup:
    """Apply the runner's report about the run."""
    if not _is_current(bringup, run, attempt):
        return bringup
    bringup = bringup.with_run(
        run,
        seen=True,
        said=report.said,
        unheard="",
        code=report.code,
        tail=report.tail,
        link=report.link or bringup.runs[run].link,
        host=report.host or bringup.runs[run].host,
        started_at=report.started_at or bringup.runs[run].started_at or now,
        next_at=None,
    )
    match report.phase:
        case RunPhase.RUNNING:
            return bringup.with_run(run, phase=StepPhase.RUNNING)
        case RunPhase.SUCCEEDED:
            return _end_run(bringup, run, StepPhase.DONE, report.said, now, report.ended_at)
    return _fail_run(bringup, run, report, now)


def note_running(bringup: Bringup, run: str, now: datetime) -> Bringup:
    """Record that the run has begun, in the archive and so on the board."""
    latest = bringup.runs[run]
    return _record_run(bringup, run, f"{run} runs: {latest.said}", now, link=latest.link, host=latest.host)


def _fail_run(bringup: Bringup, run: str, report: RunReport, now: datetime) -> Bringup:
    latest = bringup.runs[run]
    instructions = bringup.instructions(run)
    sentence = f"{latest.stopping}: {report.said}" if latest.stopping else report.said
    by_person = report.phase is RunPhase.STOPPED and latest.stopping.startswith("stopped by")
    if by_person or latest.tries >= instructions.retries or latest.attempt >= MOST_ATTEMPTS:
        return _end_run(bringup, run, StepPhase.FAILED, sentence, now, report.ended_at)
    pause = min(instructions.pause * 2**latest.tries, timedelta(days=1))
    bringup = _end_run(bringup, run, StepPhase.WAITING, sentence, now, report.ended_at)
    return bringup.with_run(run, tries=latest.tries + 1, next_at=now + pause)


def note_untraced(bringup: Bringup, run: str, attempt: int, now: datetime) -> Bringup:
    """Note that the runner has no trace of the run."""
    if not _is_current(bringup, run, attempt):
        return bringup
    latest = bringup.runs[run]
    assert latest.noted_at is not None
    settled_at = latest.noted_at + bringup.recipe.settle
    if latest.seen:
        return _end_run(bringup, run, StepPhase.UNCLEAR, "its runner has no trace of it any more", now)
    if now < settled_at:
        return bringup.with_run(run, next_at=min(now + LOOKS_FOR_IT, settled_at))
    sentence = f"its runner shows no sign of a start after {duration_text(bringup.recipe.settle)}"
    instructions = bringup.instructions(run)
    if not instructions.repeatable or latest.stopping or latest.tries >= max(UNTRACED, instructions.retries):
        return _end_run(bringup, run, StepPhase.UNCLEAR, sentence, now)
    bringup = _end_run(
        bringup, run, StepPhase.WAITING, f"{sentence}; it is repeatable, so Backstop starts it again", now
    )
    return bringup.with_run(run, tries=latest.tries + 1)


def note_lost_host(bringup: Bringup, run: str, attempt: int, why: str, now: datetime) -> Bringup:
    """Mark the run as unclear: its host is gone, or its record is damaged."""
    return _end_run(bringup, run, StepPhase.UNCLEAR, why, now) if _is_current(bringup, run, attempt) else bringup


def _is_current(bringup: Bringup, run: str, attempt: int) -> bool:
    """Return whether this attempt counts; news of an earlier one changes nothing."""
    return run in bringup.runs and bringup.runs[run].attempt == attempt and bringup.runs[run].phase.under_way


def _end_run(
    bringup: Bringup, run: str, phase: StepPhase, sentence: str, now: datetime, ended_at: datetime | None = None
) -> Bringup:
    bringup = bringup.with_run(run, phase=phase, said=sentence, ended_at=ended_at or now, next_at=None, stopping="")
    text = f"{run}: {sentence}" if phase is StepPhase.WAITING else f"{run} is {phase}: {sentence}"
    latest = bringup.runs[run]
    return _record_run(bringup, run, text, now, code=latest.code, link=latest.link, host=latest.host, tail=latest.tail)


# --- supply and checks ------------------------------------------------------------------------------


def apply_supply(bringup: Bringup, answer: CheckAnswer, now: datetime) -> Bringup:
    """Apply a look at the supply."""
    if bringup.supply is None:
        return bringup
    news = (answer.colour, answer.said) != (bringup.supply.colour, bringup.supply.said)
    bringup = bringup.but(supply=bringup.supply.take_answer(answer).but(asked_at=now))
    return (
        bringup.record(AuditKind.GUARD, f"supply: {answer.said}", now, colour=answer.colour.value) if news else bringup
    )


def note_asked(bringup: Bringup, names: Iterable[str], at: datetime | None) -> Bringup:
    """Note when these checks were last asked; None: nobody waits for their answers, so they are asked again at once."""
    return bringup.but(checks=bringup.checks | {name: bringup.checks[name].but(asked_at=at) for name in names})


def apply_answers(bringup: Bringup, answers: Mapping[str, CheckAnswer], now: datetime) -> Bringup:
    """Apply the answers of checks. An answer has the time that it states, but no earlier than the question."""
    bringup = _tick_clock(bringup, now)  # count the time so far by the earlier answers
    for name, answer in answers.items():
        earlier = bringup.checks[name]
        at = min(now, max(answer.at, earlier.asked_at or now))
        bringup = bringup.but(checks=bringup.checks | {name: earlier.take_answer(answer.but(at=at))})
        if answer.islands:
            bringup = bringup.but(islands=answer.islands)
        bringup = _record_turn(bringup, name, earlier, now)
    if bringup.direction is BringupStage.PROVISIONED:
        bringup = bringup.but(
            clock=turn_clock(
                bringup.clock, colours(bringup.checks, bringup.rules(), now, bringup.recipe.stale_after), now
            )
        )
    return bringup


def _record_turn(bringup: Bringup, name: str, earlier: CheckState, now: datetime) -> Bringup:
    check = bringup.checks[name]
    if check.colour is earlier.colour:
        return bringup
    bringup = bringup.record(AuditKind.GUARD, f"check {name} turned {check.colour}: {check.said}", now, check=name)
    if check.colour is Colour.RED and bringup.direction is BringupStage.IN_PRODUCTION:
        return bringup.notify_owner(f"in probation, check {name} of {bringup.cluster} turned red: {check.said}")
    if earlier.colour is Colour.RED and check.colour is Colour.GREEN and not bringup.rules()[name].once:
        return repeat_once_checks(bringup, now)
    return bringup


def repeat_once_checks(bringup: Bringup, now: datetime) -> Bringup:
    """Repeat the checks that run once: something was repaired."""
    again = {name: bringup.checks[name].forget_answers(now) for name, terms in bringup.rules().items() if terms.once}
    return bringup.but(checks=bringup.checks | again)


def note_unasked(bringup: Bringup, names: Iterable[str], why: str, now: datetime) -> Bringup:
    """Apply an unknown answer for checks that could not be asked."""
    return apply_answers(bringup, {name: CheckAnswer(colour=Colour.UNKNOWN, said=why, at=now) for name in names}, now)


# --- production -------------------------------------------------------------------------------------


def hand_over(bringup: Bringup, answer: HandedOver, now: datetime) -> Bringup:
    """Move the cluster into production: it is in the fleet."""
    if bringup.direction is not BringupStage.PROVISIONED:
        return bringup
    production = Production(
        at=now,
        plan_hash=answer.plan_hash,
        granted=answer.granted,
        owed=answer.owed,
        probation_until=now + bringup.recipe.probation,
    )
    why = f"all checks were green together for {duration_text(bringup.recipe.soak)}"
    bringup = _look_for_more(bringup.but(production=production)).but(islands=answer.islands or bringup.islands)
    bringup = bringup.record(AuditKind.PLAN, f"handed over: {answer.said}", now, **answer.model_dump(mode="json"))
    if bringup.stage is BringupStage.BLOCKED:
        bringup = bringup.enter_stage(BringupStage.PROVISIONED, now, "nothing blocks it any more")
    bringup = bringup.enter_stage(BringupStage.IN_PRODUCTION, now, why)
    return bringup.notify_owner(f"{bringup.cluster} is in production: {answer.said}.{_owed_text(answer.owed)}")


def _owed_text(owed: Mapping[str, int]) -> str:
    if not owed:
        return ""
    what = some_of([f"{team} {gpus_text(gpus)}" for team, gpus in sorted(owed.items())])
    return f" Backstop still owes {what}, because fewer GPUs came than were ordered."


def note_fault(bringup: Bringup, why: str, now: datetime) -> Bringup:
    """Note why it could not be handed over, or wound down: a person has to mend that first."""
    return bringup.but(fault=why).record(AuditKind.EFFECT, why, now)


def apply_owed(bringup: Bringup, answer: HandedOver, now: datetime) -> Bringup:
    """Apply a try to grant owed GPUs: the present grants, and those still owed."""
    if bringup.production is None:
        return bringup
    raised = {t: g - bringup.production.granted.get(t, 0) for t, g in answer.granted.items()}
    raised = {team: gpus for team, gpus in raised.items() if gpus > 0}
    production = bringup.production.but(granted=answer.granted, owed=answer.owed, plan_hash=answer.plan_hash)
    bringup = _look_for_more(bringup.but(production=production))
    if not raised:
        return bringup
    what = some_of([f"{team} {gpus_text(gpus)} more" for team, gpus in sorted(raised.items())])
    bringup = bringup.record(AuditKind.PLAN, f"owed, and granted now: {what}", now, **answer.model_dump(mode="json"))
    return bringup.notify_owner(
        f"Backstop granted GPUs that it owed in {bringup.cluster}: {what}.{_owed_text(answer.owed)}"
    )


def note_no_grant(bringup: Bringup, why: str, now: datetime) -> Bringup:
    """Note that owed GPUs could not be granted, and notify the owner; more GPUs bring another try."""
    bringup = _look_for_more(bringup).record(AuditKind.PLAN, f"owed, not granted: {why}", now)
    return bringup.notify_owner(f"Backstop could not grant the GPUs that it owes in {bringup.cluster}: {why}")


def _look_for_more(bringup: Bringup) -> Bringup:
    installed, healthy = bringup.gpus_there
    return bringup.but(short_of=installed, short_of_healthy=healthy)


def wind_down(bringup: Bringup, answer: WoundDown, now: datetime) -> Bringup:
    """Apply a look at a cluster that is being emptied."""
    if bringup.leaving is None or bringup.leaving.empty:
        return bringup
    sentence, empty = f"{answer.text}: {answer.said}", answer.is_empty
    news = sentence != bringup.leaving.said
    since = now if news else bringup.leaving.since
    bringup = bringup.but(leaving=bringup.leaving.but(said=sentence, looked_at=now, since=since, empty=empty))
    return bringup.record(AuditKind.GUARD, sentence, now) if news else bringup
