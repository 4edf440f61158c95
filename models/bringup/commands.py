"""Commands from people to a bring-up: the reasons to refuse each, and the state after it. Each one is counted."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pydantic import Field

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import Text, Time
from models.bringup.command_rows import BRINGUP_ROWS
from models.bringup.recipe import SUPPLY
from models.bringup.reducers import repeat_once_checks
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak_clock import SoakClock
from models.bringup.stages import BRINGUP_ANSWERS, BringupCommand, BringupStage
from models.bringup.state import MOST_ATTEMPTS, Bringup, HeldBy, Leaving, StepPhase, touchable_steps
from models.bringup.troubles import troubles
from models.bringup.workflow_actions import BringupAction, HandOver
from models.lifecycle.command_base import Order
from models.lifecycle.state_machine import Refused
from models.texts import count_text

_DO = BringupCommand


class BringupOrder(Order):
    """A command from one person. It decides which of the fields it needs."""

    step: Text = Field(default="", max_length=200)
    """The step, for check-in, retry, skip and stop; empty: none was named."""
    check: Text = Field(default="", max_length=200)
    """The check, for skip; empty: none was named."""
    stop: bool = False
    """cancel: stop running steps instead of waiting for them."""
    deadline: Time | None = None
    """retire: the time at which the undo begins even if jobs run; None: it begins once no job runs."""


def refusal(
    bringup: Bringup,
    command: BringupCommand,
    order: BringupOrder,
    now: datetime,
    under_way: Collection[BringupAction] = (),
) -> str | None:
    """Explain in one sentence why the command cannot be taken now; None if it can."""
    cell = BRINGUP_ANSWERS[bringup.stage, command]
    if isinstance(cell, Refused):
        return cell.reason
    if bringup.direction.unmakes:
        cell = BRINGUP_ANSWERS[bringup.direction, command]
        if isinstance(cell, Refused) and command is not _DO.RETRY:
            return cell.reason
    if BRINGUP_ROWS[command].needs_reason and not order.reason.strip():
        return f"{command} needs a reason"
    match command:
        case _DO.HOLD if bringup.hold is not None:
            return f"{bringup.hold.actor} already holds {bringup.cluster}: {bringup.hold.reason}"
        case _DO.RELEASE if bringup.hold is None:
            return f"nobody holds {bringup.cluster}"
        case _DO.CHECK_IN:
            return _refuse_check_in(bringup, order)
        case _DO.RETRY:
            return _refuse_retry(bringup, order, now)
        case _DO.SKIP:
            return _refuse_skip(bringup, order)
        case _DO.STOP:
            return _refuse_stop(bringup, order)
        case _DO.CANCEL if HandOver() in under_way:
            return f"Backstop is moving {bringup.cluster} into production at this moment: try again"
        case _DO.RETIRE:
            return _refuse_retire(bringup, order, now)
        case _DO.REVALIDATE if bringup.made_at is None:
            return "there is nothing to check yet: the steps are not done"
    return None


def run_of(bringup: Bringup, step: str) -> str:
    """Return the run that a person means by a step: its undo while the cluster is torn down."""
    undo = step.removesuffix(UNDO_SUFFIX) + UNDO_SUFFIX
    return undo if bringup.direction.unmakes and undo in bringup.runs else step


def _refuse_unknown_step(bringup: Bringup, step: str) -> str | None:
    if not step:
        return f"name the step: {', '.join(bringup.recipe.steps)}"
    if run_of(bringup, step) in bringup.runs:
        return None
    return f"there is no step {step!r}; the steps are {', '.join(bringup.recipe.steps)}"


def _refuse_check_in(bringup: Bringup, order: BringupOrder) -> str | None:
    waiting = [step.name for step in touchable_steps(bringup)] if bringup.direction is BringupStage.PROVISIONING else []
    if not order.step:
        many = f"several steps wait to be checked in: name one of {', '.join(waiting)}"
        return None if len(waiting) == 1 else many if waiting else "no step waits to be checked in"
    if order.step in waiting:
        return None
    step = bringup.recipe.steps.get(order.step)
    if step is None:
        return _refuse_unknown_step(bringup, order.step)
    if not step.touch:
        return f"{order.step} needs no check-in: {step.runner(undo=False)} runs it"
    run = bringup.runs[order.step]
    if run.phase.is_over:
        return f"{order.step} is already {run.phase}, by {run.by}"
    before = [name for name in step.after if not bringup.runs[name].phase.is_over]
    return f"{order.step} cannot be checked in before {', '.join(before)} {'is' if len(before) == 1 else 'are'} done"


def _failed_runs(bringup: Bringup) -> list[str]:
    """Return the runs that a retry can mean: those that wait for a person."""
    return [
        n
        for n, run in bringup.runs.items()
        if run.phase.needs_person and n.endswith(UNDO_SUFFIX) == bringup.direction.unmakes
    ]


def _refuse_retry(bringup: Bringup, order: BringupOrder, now: datetime) -> str | None:
    failed = _failed_runs(bringup)
    if not order.step:
        if len(failed) > 1:
            return f"several steps wait for a person: name one of {', '.join(failed)}"
        return None if failed or troubles(bringup, now) else f"nothing to retry: nothing blocks {bringup.cluster}"
    if unknown := _refuse_unknown_step(bringup, order.step):
        return unknown
    run = run_of(bringup, order.step)
    if run not in failed:
        return (
            f"{run} is {bringup.runs[run].phase}: only a step that failed, or whose outcome is unknown, can run again"
        )
    if bringup.runs[run].attempt >= MOST_ATTEMPTS:
        return f"{run} was started {MOST_ATTEMPTS} times, which is the limit: skip the step, or cancel the bring-up"
    return None


def _refuse_skip(bringup: Bringup, order: BringupOrder) -> str | None:
    if bool(order.step) == bool(order.check):
        return "skip needs a step or a check, and not both"
    if order.check:
        return _refuse_skip_check(bringup, order.check)
    if unknown := _refuse_unknown_step(bringup, order.step):
        return unknown
    name = run_of(bringup, order.step)
    run = bringup.runs[name]
    if bringup.direction.unmakes != name.endswith(UNDO_SUFFIX):
        return f"{name} has no undo to skip: what the step made stays, and Backstop names it when the bring-up ends"
    if run.phase.under_way:
        return f"{name} is {run.phase}: stop it first"
    return f"{name} is already {run.phase}" if run.phase.is_over else None


def _refuse_skip_check(bringup: Bringup, name: str) -> str | None:
    if bringup.direction.unmakes:
        return f"{bringup.cluster} is being torn down: its checks no longer matter"
    check = bringup.supply if name == SUPPLY else bringup.checks.get(name)
    if check is None:
        return f"there is no check {name!r}; the checks are {', '.join(bringup.checks)}"
    if check.skipped:
        return f"{name} is already skipped: {check.skipped}"
    if name == SUPPLY and bringup.direction is not BringupStage.PLANNED:
        return "there is nothing to skip: the bring-up no longer waits for its supply"
    return None


def _refuse_stop(bringup: Bringup, order: BringupOrder) -> str | None:
    running = [name for name, run in bringup.runs.items() if run.phase.under_way]
    if not running:
        return "no step is running"
    if not order.step:
        return f"name the step: {', '.join(running)}"
    named = [n for n in (order.step, order.step + UNDO_SUFFIX) if n in running]
    if not named:
        return (
            _refuse_unknown_step(bringup, order.step)
            or f"{order.step} is {bringup.runs[run_of(bringup, order.step)].phase}: only a running step can be stopped"
        )
    return f"{named[0]} is already being stopped" if bringup.runs[named[0]].stopping else None


def _refuse_retire(bringup: Bringup, order: BringupOrder, now: datetime) -> str | None:
    if order.deadline is not None and order.deadline <= now:
        return f"the deadline {order.deadline:%Y-%m-%d %H:%MZ} is in the past: give a later one"
    leaving = bringup.leaving
    if leaving is None:
        return None
    if leaving.empty:
        return f"the tear-down of {bringup.cluster} has begun: a deadline no longer changes anything"
    if order.deadline is None:
        return f"{bringup.cluster} is already being retired: to set or move its deadline, give --deadline"
    return None


def obey(bringup: Bringup, command: BringupCommand, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    """Return the bring-up after a command that is not refused, and one sentence about the consequence."""
    bringup = bringup.account_time(now)
    step = _run_named(bringup, command, order)
    about = f" {step or order.check}".rstrip()
    checks_in = command is _DO.CHECK_IN
    bringup = bringup.but(check_ins=bringup.check_ins + checks_in, touches=bringup.touches + (not checks_in))
    bringup = bringup.record(
        AuditKind.COMMAND,
        f"{command}{about} by {order.actor}",
        now,
        actor=order.actor,
        reason=order.reason,
        command=command.value,
        **order.model_dump(mode="json", exclude_defaults=True, exclude={"actor", "reason", "step", "ticket"}),
        **warrant_in(order),
        **({"step": step} if step else {}),
    )
    match command:
        case _DO.HOLD:
            held = HeldBy(actor=order.actor, reason=order.reason, at=now)
            return bringup.but(hold=held), "held: no new step starts; running steps go on"
        case _DO.RELEASE:
            return bringup.but(hold=None), "released: the bring-up goes on"
        case _DO.CHECK_IN:
            touched = {"phase": StepPhase.DONE, "by": order.actor, "reason": order.reason, "ended_at": now}
            sentence = f"checked in by {order.actor}"
            return bringup.with_run(step, **touched, said=sentence), f"{step} is {sentence}"
        case _DO.RETRY:
            return _retry(bringup, step, now)
        case _DO.SKIP:
            return _skip(bringup, step, order, now)
        case _DO.STOP:
            stopping = f"stopped by {order.actor}"
            return bringup.with_run(step, stopping=stopping, next_at=None), f"{step} is being stopped"
        case _DO.REVALIDATE:
            fresh = {name: check.forget_answers(now) for name, check in bringup.checks.items()}
            return bringup.but(checks=fresh), "every check runs again"
        case _DO.CANCEL:
            return _cancel(bringup, order, now)
        case _DO.RETIRE:
            return _retire(bringup, order, now)


def apply_cancel(bringup: Bringup, now: datetime, under_way: Collection[BringupAction], *, by_ticket: bool) -> Bringup:
    """Cancel the bring-up on a cancel from Temporal, and wait for running steps; in production change nothing.

    `by_ticket`: the bring-up began with a ticket, so only a ticket cancels it.
    """
    if by_ticket:
        return bringup.record(
            AuditKind.COMMAND,
            "a cancel from Temporal was ignored, because this bring-up takes only commands with a ticket",
            now,
        )
    order = BringupOrder(actor="temporal", reason="the workflow was cancelled")
    refuses = refusal(bringup, BringupCommand.CANCEL, order, now, under_way) is not None
    if refuses or bringup.stage is BringupStage.IN_PRODUCTION:
        return bringup
    return obey(bringup, BringupCommand.CANCEL, order, now)[0]


def _run_named(bringup: Bringup, command: BringupCommand, order: BringupOrder) -> str:
    """Return the run that the command is about; empty if there is none."""
    if command is _DO.CHECK_IN and not order.step:
        return touchable_steps(bringup)[0].name
    if command is _DO.RETRY and not order.step:
        return next(iter(_failed_runs(bringup)), "")
    if command is _DO.STOP:
        return next(
            n for n in (order.step, order.step + UNDO_SUFFIX) if n in bringup.runs and bringup.runs[n].phase.under_way
        )
    return run_of(bringup, order.step) if order.step else ""


def _retry(bringup: Bringup, step: str, now: datetime) -> tuple[Bringup, str]:
    if step:
        again = {"phase": StepPhase.WAITING, "tries": 0, "next_at": None, "said": "to be run again"}
        return bringup.with_run(step, **again), f"{step} {_once_released(bringup, 'is run again', 'runs again')}"
    bringup = repeat_once_checks(bringup.but(fault="", validating_since=now), now)
    return bringup, "the bring-up tries again"


def _once_released(bringup: Bringup, now: str, later: str) -> str:
    """Say that something begins now or, under a person's hold, later."""
    return now if bringup.hold is None else f"{later} once the hold is released"


def _skip(bringup: Bringup, step: str, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    if step:
        skipped = {"phase": StepPhase.SKIPPED, "by": order.actor, "reason": order.reason, "ended_at": now}
        bringup = bringup.with_run(step, **skipped, next_at=None, said=f"skipped by {order.actor}: {order.reason}")
        left = "; what the step made stays" if step.endswith(UNDO_SUFFIX) else ""
        return bringup, f"{step} is skipped{left}"
    if order.check == SUPPLY:
        assert bringup.supply is not None
        bringup = bringup.but(supply=bringup.supply.but(skipped=order.reason))
        return bringup, f"Backstop does not wait for the supply: the steps {_once_released(bringup, 'begin', 'begin')}"
    check = bringup.checks[order.check].but(skipped=order.reason, unknown_since=None)
    bringup = bringup.but(checks={**bringup.checks, order.check: check})
    return bringup, f"check {order.check} counts as green from now on"


def _cancel(bringup: Bringup, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    running = [name for name, run in bringup.runs.items() if run.phase.under_way]
    if order.stop:
        for name in running:
            bringup = bringup.with_run(name, stopping=f"stopped by {order.actor}", next_at=None)
    unclear = [name for name, run in bringup.runs.items() if run.phase is StepPhase.UNCLEAR]
    bringup = bringup.but(hold=None, fault="", clock=SoakClock())
    bringup = bringup.enter_stage(BringupStage.CANCELLING, now, order.reason, order.actor)
    steps = f"step {running[0]}" if len(running) == 1 else count_text(len(running), "running step")
    first = f"{'stops' if order.stop else 'waits for'} {steps}, then " if running else ""
    perhaps = f"; look at the runner: {', '.join(unclear)} may still be running" if unclear else ""
    return bringup, f"cancelling: Backstop {first}tears down what the steps made, the latest first{perhaps}"


def _retire(bringup: Bringup, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    if bringup.leaving is not None:
        assert order.deadline is not None
        leaving = bringup.leaving.but(actor=order.actor, reason=order.reason, deadline=order.deadline)
        return bringup.but(leaving=leaving), _torn_down_text(order.deadline)
    leaving = Leaving(actor=order.actor, reason=order.reason, deadline=order.deadline)
    bringup = bringup.but(leaving=leaving, fault="").enter_stage(BringupStage.RETIRING, now, order.reason, order.actor)
    return bringup, f"retiring: a rollout with notice takes the quotas to zero; {_torn_down_text(order.deadline)}"


def _torn_down_text(deadline: datetime | None) -> str:
    until = "" if deadline is None else f", at {deadline:%Y-%m-%d %H:%MZ} at the latest"
    return f"Backstop tears the cluster down when no job runs there{until}"
