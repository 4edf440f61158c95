"""People's commands to a bring-up: what each is refused for, and what it changes. Each one is counted."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pydantic import Field

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.base import Text, Time, count_text
from models.bringup.actions import BringupAction, HandOver
from models.bringup.command_rows import BRINGUP_ROWS
from models.bringup.recipe import SUPPLY
from models.bringup.reducers import once_again
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak import SoakClock
from models.bringup.stages import BRINGUP_ANSWERS, BringupCommand, BringupStage
from models.bringup.state import MOST_ATTEMPTS, Bringup, HeldBy, Leaving, StepPhase, touchable_steps
from models.bringup.troubles import troubles
from models.lifecycle.orders import Order
from models.lifecycle.state_machine import Refused

_DO = BringupCommand


class BringupOrder(Order):
    """One command from one person. Which fields it needs depends on the command."""

    step: Text = Field(default="", max_length=200)
    """check-in, retry, skip, stop."""
    check: Text = Field(default="", max_length=200)
    """skip."""
    stop: bool = False
    """cancel: steps that run are stopped, and not waited for."""
    deadline: Time | None = None
    """retire: when the undo begins even where jobs run."""


def refusal(
    b: Bringup,
    command: BringupCommand,
    order: BringupOrder,
    now: datetime,
    under_way: Collection[BringupAction] = (),
) -> str | None:
    """Why the command cannot be taken now, in one sentence; None when it can."""
    cell = BRINGUP_ANSWERS[b.stage, command]
    if isinstance(cell, Refused):
        return cell.reason
    if b.direction.unmakes:
        cell = BRINGUP_ANSWERS[b.direction, command]
        if isinstance(cell, Refused) and command is not _DO.RETRY:
            return cell.reason
    if BRINGUP_ROWS[command].needs_reason and not order.reason.strip():
        return f"{command} needs a reason"
    match command:
        case _DO.HOLD:
            return None if b.hold is None else f"{b.hold.actor} already holds {b.cluster}: {b.hold.reason}"
        case _DO.RELEASE:
            return None if b.hold is not None else f"nobody holds {b.cluster}"
        case _DO.CHECK_IN:
            return _refuse_check_in(b, order)
        case _DO.RETRY:
            return _refuse_retry(b, order, now)
        case _DO.SKIP:
            return _refuse_skip(b, order)
        case _DO.STOP:
            return _refuse_stop(b, order)
        case _DO.CANCEL:
            return f"{b.cluster} is being handed over at this moment: try again" if HandOver() in under_way else None
        case _DO.RETIRE:
            return _refuse_retire(b, order, now)
        case _DO.REVALIDATE:
            return None if b.made_at is not None else "there is nothing to check yet: the steps are not done"


def run_of(b: Bringup, step: str) -> str:
    """Whose run a person means by a step: while it is unmade, its undo's."""
    undo = step.removesuffix(UNDO_SUFFIX) + UNDO_SUFFIX
    return undo if b.direction.unmakes and undo in b.runs else step


def _unknown(b: Bringup, step: str) -> str | None:
    if not step:
        return f"name the step: {', '.join(b.recipe.steps)}"
    return (
        None if run_of(b, step) in b.runs else f"there is no step {step!r}; the steps are {', '.join(b.recipe.steps)}"
    )


def _refuse_check_in(b: Bringup, order: BringupOrder) -> str | None:
    waiting = [s.name for s in touchable_steps(b)] if b.direction is BringupStage.PROVISIONING else []
    if not order.step:
        many = f"several steps wait to be checked in: name one of {', '.join(waiting)}"
        return None if len(waiting) == 1 else many if waiting else "no step waits to be checked in"
    if order.step in waiting:
        return None
    step = b.recipe.steps.get(order.step)
    if step is None:
        return _unknown(b, order.step)
    if not step.touch:
        return f"{order.step} needs no check-in: {step.runner(undo=False)} runs it"
    run = b.runs[order.step]
    if run.phase.is_over:
        return f"{order.step} is already {run.phase}, by {run.by}"
    before = [name for name in step.after if not b.runs[name].phase.is_over]
    return f"{order.step} cannot be checked in before {', '.join(before)}"


def _failed_runs(b: Bringup) -> list[str]:
    """What a retry can mean: the runs that wait for a person."""
    return [n for n, r in b.runs.items() if r.phase.needs_person and n.endswith(UNDO_SUFFIX) == b.direction.unmakes]


def _refuse_retry(b: Bringup, order: BringupOrder, now: datetime) -> str | None:
    failed = _failed_runs(b)
    if not order.step:
        if len(failed) > 1:
            return f"several steps wait for a person: name one of {', '.join(failed)}"
        return None if failed or troubles(b, now) else f"nothing to retry: nothing blocks {b.cluster}"
    unknown = _unknown(b, order.step)
    if unknown:
        return unknown
    run = run_of(b, order.step)
    if run not in failed:
        return f"{run} is {b.runs[run].phase}: only a step that failed or is unclear can run again"
    if b.runs[run].attempt >= MOST_ATTEMPTS:
        return f"{run} was started {MOST_ATTEMPTS} times, which is the most: skip the step, or cancel the bring-up"
    return None


def _refuse_skip(b: Bringup, order: BringupOrder) -> str | None:
    if bool(order.step) == bool(order.check):
        return "skip needs a step or a check, and not both"
    if order.check:
        return _refuse_skip_check(b, order.check)
    unknown = _unknown(b, order.step)
    if unknown:
        return unknown
    name = run_of(b, order.step)
    run = b.runs[name]
    if b.direction.unmakes != name.endswith(UNDO_SUFFIX):
        return f"{name} has no undo to skip: what it made stays, and the end of the bring-up names it"
    if run.phase.under_way:
        return f"{name} is {run.phase}: stop it first"
    return f"{name} is already {run.phase}" if run.phase.is_over else None


def _refuse_skip_check(b: Bringup, name: str) -> str | None:
    if b.direction.unmakes:
        return f"{b.cluster} is being unmade: its checks no longer matter"
    check = b.supply if name == SUPPLY else b.checks.get(name)
    if check is None:
        return f"there is no check {name!r}; the checks are {', '.join(b.checks)}"
    if name == SUPPLY and b.stage is not BringupStage.PLANNED:
        return "there is nothing to skip: the supply has arrived"
    return f"{name} is already skipped: {check.skipped}" if check.skipped else None


def _refuse_stop(b: Bringup, order: BringupOrder) -> str | None:
    running = [name for name, run in b.runs.items() if run.phase.under_way]
    if not running:
        return "no step is running"
    if not order.step:
        return f"name the step: {', '.join(running)}"
    named = [n for n in (order.step, order.step + UNDO_SUFFIX) if n in running]
    if not named:
        return (
            _unknown(b, order.step)
            or f"{order.step} is {b.runs[run_of(b, order.step)].phase}: only a running step can be stopped"
        )
    return f"{named[0]} is already being stopped" if b.runs[named[0]].stopping else None


def _refuse_retire(b: Bringup, order: BringupOrder, now: datetime) -> str | None:
    if order.deadline is not None and order.deadline <= now:
        return f"the deadline {order.deadline:%Y-%m-%d %H:%MZ} is in the past: give a later one"
    leaving = b.leaving
    if leaving is None:
        return None
    if leaving.empty:
        return f"the undo of {b.cluster} has begun: a deadline no longer changes anything"
    return None if order.deadline is not None else f"{b.cluster} is already being retired: give a deadline to change it"


def obey(b: Bringup, command: BringupCommand, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    """The bring-up after a command that is not refused, and one sentence about what follows."""
    b = b.account_time(now)
    step = _run_named(b, command, order)
    about = f" {step or order.check}".rstrip()
    b = b.but(check_ins=b.check_ins + 1) if command is _DO.CHECK_IN else b.but(touches=b.touches + 1)
    b = b.record(
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
            return b.but(hold=held), "held: no new step starts; running steps go on"
        case _DO.RELEASE:
            return b.but(hold=None), "released: it goes on"
        case _DO.CHECK_IN:
            touched = {"phase": StepPhase.DONE, "by": order.actor, "reason": order.reason, "ended_at": now}
            sentence = f"checked in by {order.actor}"
            return b.with_run(step, **touched, said=sentence), f"{step} is {sentence}"
        case _DO.RETRY:
            return _retry(b, step, now)
        case _DO.SKIP:
            return _skip(b, step, order, now)
        case _DO.STOP:
            stopping = f"stopped by {order.actor}"
            return b.with_run(step, stopping=stopping, next_at=None), f"{step} is being stopped"
        case _DO.REVALIDATE:
            fresh = {name: check.forget_answers(now) for name, check in b.checks.items()}
            return b.but(checks=fresh), "every check is asked again"
        case _DO.CANCEL:
            return _cancel(b, order, now)
        case _DO.RETIRE:
            return _retire(b, order, now)


def apply_cancel(b: Bringup, now: datetime, under_way: Collection[BringupAction], *, by_ticket: bool) -> Bringup:
    """Temporal's own cancel is a person's, who waits for what runs; in production it changes nothing.

    `by_ticket`: it was begun so, and then only a ticket cancels it.
    """
    if by_ticket:
        return b.record(
            AuditKind.COMMAND,
            "a cancel from Temporal was ignored, because this bring-up takes only commands with a ticket",
            now,
        )
    order = BringupOrder(actor="temporal", reason="the workflow was cancelled")
    refuses = refusal(b, BringupCommand.CANCEL, order, now, under_way) is not None
    if refuses or b.stage is BringupStage.IN_PRODUCTION:
        return b
    return obey(b, BringupCommand.CANCEL, order, now)[0]


def _run_named(b: Bringup, command: BringupCommand, order: BringupOrder) -> str:
    """The run that the command is about; empty: none."""
    if command is _DO.CHECK_IN and not order.step:
        return touchable_steps(b)[0].name
    if command is _DO.RETRY and not order.step:
        return next(iter(_failed_runs(b)), "")
    if command is _DO.STOP:
        return next(n for n in (order.step, order.step + UNDO_SUFFIX) if n in b.runs and b.runs[n].phase.under_way)
    return run_of(b, order.step) if order.step else ""


def _retry(b: Bringup, step: str, now: datetime) -> tuple[Bringup, str]:
    if step:
        sentence = "to be run again"
        return b.with_run(step, phase=StepPhase.WAITING, tries=0, next_at=None, said=sentence), f"{step} is run again"
    b = once_again(b.but(fault="", validating_since=now), now)
    return b, "it is tried again"


def _skip(b: Bringup, step: str, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    if step:
        skipped = {"phase": StepPhase.SKIPPED, "by": order.actor, "reason": order.reason, "ended_at": now}
        b = b.with_run(step, **skipped, next_at=None, said=f"skipped by {order.actor}: {order.reason}")
        left = "; what the step made stays" if step.endswith(UNDO_SUFFIX) else ""
        return b, f"{step} is skipped{left}"
    if order.check == SUPPLY:
        assert b.supply is not None
        return b.but(
            supply=b.supply.but(skipped=order.reason)
        ), "Backstop does not wait for the supply: the steps begin"
    check = b.checks[order.check].but(skipped=order.reason, unknown_since=None)
    return b.but(checks={**b.checks, order.check: check}), f"check {order.check} counts as green from now on"


def _cancel(b: Bringup, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    running = [name for name, run in b.runs.items() if run.phase.under_way]
    if order.stop:
        for name in running:
            b = b.with_run(name, stopping=f"stopped by {order.actor}", next_at=None)
    unclear = [name for name, run in b.runs.items() if run.phase is StepPhase.UNCLEAR]
    b = b.but(hold=None, fault="", clock=SoakClock())
    b = b.enter_stage(BringupStage.CANCELLING, now, order.reason, order.actor)
    verb = "stopped" if order.stop else "waited for"
    first = f"{count_text(len(running), 'step')} that run are {verb}, then " if running else ""
    if len(running) == 1:
        first = f"{running[0]}, which is running, is {verb}, then "
    perhaps = f"; {', '.join(unclear)} may still be running: look at the runner" if unclear else ""
    return b, f"cancelling: {first}what was made is unmade, the latest first{perhaps}"


def _retire(b: Bringup, order: BringupOrder, now: datetime) -> tuple[Bringup, str]:
    new = Leaving(actor=order.actor, reason=order.reason, deadline=order.deadline)
    if b.leaving is not None:
        assert order.deadline is not None
        return b.but(
            leaving=new.but(said=b.leaving.said, looked_at=b.leaving.looked_at, since=b.leaving.since)
        ), f"its undo begins at {order.deadline:%Y-%m-%d %H:%MZ} at the latest"
    b = b.but(leaving=new, fault="").enter_stage(BringupStage.RETIRING, now, order.reason, order.actor)
    until = "" if order.deadline is None else f", or at {order.deadline:%Y-%m-%d %H:%MZ}"
    return b, f"retiring: its quotas go to nothing with notice; it is unmade when no job runs{until}"
