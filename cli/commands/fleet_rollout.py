"""A fleet's rollout: `backstop launch --fleet`, and the commands of `backstop fleet` to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cli.commands import fleet_plan
from cli.commands_from_rows import TypedOrder, add_orders
from cli.consent import can_ask, consent, show_and_ask
from cli.list_options import Listing, listed, tell
from cli.options import (
    Actor,
    AsJson,
    EverySeconds,
    Once,
    actor_of,
    check_model,
    examples,
    flag,
    number,
    pilots_of,
    settings_given,
    wave_of,
)
from cli.session import ask, or_nobody
from models.errors import BadInput
from models.fleet.command_rows import FLEET_ROWS
from models.lifecycle.command_rows import Asks

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.commands.launch_many import Launching
    from client.backstop import Backstop
    from models.fleet.archived_state import KeptFleet
    from models.fleet.commands import FleetCommand
    from models.fleet.messages import FleetLaunch, FleetPlan, FleetStatus
    from models.fleet.state import Pace


def add_to(group: typer.Typer) -> None:
    for command, lines in (
        (
            status,
            (
                "backstop fleet status",
                "backstop fleet status --waiting",
                "backstop fleet status --filter state=waiting --sort -cut_gpus",
            ),
        ),
        (watch, ("backstop fleet watch", "backstop fleet watch --every 10 > fleet.log")),
        (fleet_plan.plan, ("backstop fleet plan", "backstop fleet plan --out plan.json --pilot h100-1,h100-2")),
    ):
        group.command(command.__name__, epilog=examples(*lines))(command)
    add_orders(group, FLEET_ROWS, _give)


def launch_fleet(
    launching: Launching, *, whole: bool, waves: Sequence[str], pilots: Sequence[str], pace: Sequence[str]
) -> None:
    """Launch a fleet rollout. Errors: BadInput naming the option and the value; those of the client."""
    from cli.output import show_waiting
    from client.new_rollout_id import new_rollout_id
    from models.fleet.messages import FleetLaunch

    names = pilots_of(pilots)
    if whole and waves:
        raise BadInput(f"--wave {waves[0]!r} is given together with --fleet, which takes all waves: give one of them")
    request = check_model(
        FleetLaunch,
        fleet=new_rollout_id("fleet"),
        actor=launching.person,
        pilots=names,
        waves=tuple(dict.fromkeys(wave_of(text) for text in waves)),
        pilots_only=not whole and not waves,
        pace=_pace(pace),
        **launching.request,
    )
    with show_waiting("planning every cluster"):
        plan = ask(launching.person, lambda door: door.launch_fleet(request))
    launched_parts(plan, request, as_json=launching.as_json)


def launched_parts(plan: FleetPlan, request: FleetLaunch, *, as_json: bool) -> None:
    """Print a fleet rollout whose plan waits for approval."""
    from cli.json_answers import FleetPlanAnswer
    from models.fleet.undo_lines import UNDO_OF_LAUNCH
    from views.fleet_rollout import plan_parts
    from views.words import line

    shadow = " (shadow: no quota is written)." if request.shadow else "."
    next_lines = [
        line((f"Fleet rollout {plan.fleet} is open", "bold"), shadow),
        line("Nothing changes until its plan is approved. If the plan is right:"),
        line(f"  {_approve_line(plan.hash)}"),
        line(UNDO_OF_LAUNCH),
    ]
    answer = FleetPlanAnswer(**plan.model_dump(), approve=_approve_line(plan.hash), undo=UNDO_OF_LAUNCH)
    tell(answer, lambda: [*plan_parts(plan, request.pilots, request.pace), line(), *next_lines], as_json=as_json)


def pace_of(kept: KeptFleet, pace_options: Sequence[str]) -> Pace:
    """Return the lost fleet rollout's pace, the given settings over it. Errors: BadInput naming setting and value."""
    from models.fleet.pace_changes import change_pace
    from models.fleet.state import Pace

    _pace(pace_options)
    own = kept.pace or Pace()
    new = change_pace(own, settings_given("--pace", pace_options)) if pace_options else own
    return own if isinstance(new, str) else new


def _pace(pace_options: Sequence[str], option: str = "--pace") -> Pace:
    """Return the given pace; other settings at their defaults. Errors: BadInput naming the setting and the value."""
    from pydantic import ValidationError

    from client.inputs.sentences import first_problem
    from models.fleet.state import Pace

    settings = settings_given(option, pace_options)
    try:
        return Pace.model_validate(settings)
    except ValidationError as error:
        fields = ", ".join(Pace.model_fields)
        raise BadInput(f"{option} {first_problem(error, settings).text} (the fields: {fields})") from None


def _approve_line(plan_hash: str) -> str:
    return f"backstop fleet approve --plan {plan_hash}"


@listed
def status(
    waiting: Annotated[bool, flag("--waiting", "Show a line for each cluster that waits, with the reason.")] = False,
    failed: Annotated[bool, flag("--failed", "Show a line for each cluster that rolled back.")] = False,
    every: Annotated[bool, flag("--all", "Show a line for each cluster.")] = False,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show where the fleet rollout is: waves, what it waits for, what it needs from a person, and its budget (the
    GPUs that it may still move this hour and today)."""
    from cli.output import complain
    from cli.watching import look_at_fleet
    from models.fleet.state import Member
    from views.fleet_rollout import of_interest, status_parts

    async def question(door: Backstop) -> tuple[FleetStatus, list[str]]:
        status = (await look_at_fleet(door)).status
        return status, await or_nobody(door.who_could(status.needs)) if status.needs else []

    rollout, could = ask(actor_of(actor), question)
    if rollout.lost and not how.for_people:
        complain(rollout.lost)
    members = how.rows(rollout.members, Member)
    chosen = of_interest(members, waiting=waiting, failed=failed, every=every or bool(how.options))
    how.tell(
        lambda: rollout.model_copy(update={"members": tuple(members)}),
        lambda: status_parts(rollout, chosen, could=could),
        [m.cluster for m in (members if chosen is None else chosen)],
    )


def watch(once: Once = False, every: EverySeconds = "2", as_json: AsJson = False, actor: Actor = "") -> None:
    """Follow the fleet rollout live until it ends: a tree of waves and clusters; in a pipe, one line for each change.

    If the server or the worker does not answer, the command waits.
    """
    from cli.watching import follow_fleet

    seconds = number("--every", every, 0.1, 3600)
    ask(actor_of(actor), lambda door: follow_fleet(door, every=seconds, once=once, as_json=as_json))


def _give(order: TypedOrder) -> None:
    person, fields = actor_of(order.actor), dict(order.fields)
    match order.row.asks:
        case Asks.PLAN:
            fields = {"plan_hash": _plan_meant(order, person)}
        case Asks.FAILED if not order.yes:
            _show_failed(order, person)
        case Asks.UNDO:
            question = order.row.question_text(also=" and undo what it has done" if fields["undo"] else "")
            consent(question, lambda: _ending(person, undo=fields["undo"]), yes=order.yes, as_json=order.as_json)
    if "wave" in fields:
        fields["wave"] = wave_of(fields["wave"])
    if "pace" in fields:
        settings, fields["pace"] = fields["pace"], settings_given("KEY=VALUE", fields["pace"])
        _pace(settings, "KEY=VALUE")
    _send(order, person, fields)


def _plan_meant(order: TypedOrder, person: str) -> str:
    """Return the given hash, else that of the plan in FILE, or of the one that was shown and agreed to."""
    file, plan = order.fields["file"], order.fields["plan_hash"]
    if file:
        if plan or order.yes:
            option = f"--plan {plan!r}" if plan else "--yes"
            raise BadInput(f"{option} is given together with FILE {file!r}: give one of them")
        plan = fleet_plan.agree_by_file(file, person, as_json=order.as_json)
    if not plan and not order.yes and not can_ask(as_json=order.as_json):
        raise BadInput(
            "--plan is missing: there is no terminal to show the plan and ask; `backstop fleet status` shows its hash, "
            "and --yes approves the current plan"
        )
    return plan or _agree_to_plan(order, person)


def _agree_to_plan(order: TypedOrder, person: str) -> str:
    """Return the plan that was shown and agreed to; with --yes the awaiting one. Errors: typer.Exit(1) for a no."""
    from views.fleet_rollout import plan_parts

    if order.yes:
        return ask(person, lambda door: door.fleet_plan()).hash

    async def question(door: Backstop) -> tuple[FleetPlan, FleetStatus]:
        return await door.fleet_plan(), await door.fleet_status()

    plan, status = ask(person, question)
    pilots = [m.cluster for m in status.members if m.wave.number == 0]
    show_and_ask(order.row.question_text(plan=plan.hash, size=plan.size_text), plan_parts(plan, pilots, status.pace))
    return plan.hash


def _show_failed(order: TypedOrder, person: str) -> None:
    """Show failed clusters that a resume would let go on, and ask."""
    from views.fleet_rollout import resume_parts

    status = ask(person, lambda door: door.fleet_status())
    if any(m.failed_at is not None and not m.forgiven for m in status.members):
        consent(order.row.question_text(), lambda: resume_parts(status), yes=False, as_json=order.as_json)


def _ending(person: str, *, undo: bool) -> list[RenderableType]:
    """Return what an abort leads to, according to the fleet rollout and each rollout that ends with it."""
    from cli.send_command import aheads_of
    from models.rollout.stages import Command
    from views.consequence import refusing_parts, undo_parts
    from views.fleet_rollout import abort_parts
    from views.words import line

    status = ask(person, lambda door: door.fleet_status())
    ending = status.would_undo if undo else status.would_end
    parts = abort_parts(status, undo=undo)
    if not ending:
        return parts
    aheads, silent = aheads_of(ending, person)
    refusals = {a.cluster: why for a in aheads if (why := a.refusal(Command.ABORT, "asked ahead"))}
    going = [a for a in aheads if a.cluster not in refusals]
    first = undo_parts(going, ends=True) if going else []
    unknown = [
        line(f"The rollout of {c} would end too; what that would change is unknown: {e.message}.")
        for c, e in silent.items()
    ]
    return [*first, *refusing_parts([a for a in aheads if a.cluster in refusals], refusals), *unknown, *parts]


def _send(order: TypedOrder, person: str, fields: dict[str, Any]) -> None:
    from cli.json_answers import FleetCommandTaken
    from models.fleet.commands import FleetCommandRequest
    from views.words import line

    request = check_model(FleetCommandRequest, actor=person, reason=order.reason, **fields)
    name = cast("FleetCommand", order.row.name)
    answer = ask(person, lambda door: door.fleet_command(name, request))
    sentence = line(("fleet rollout", "bold"), f" ({answer.stage}): {answer.said}")
    shown = [sentence, *([line(answer.undo)] * bool(answer.undo))]
    tell(FleetCommandTaken(**answer.model_dump()), lambda: shown, as_json=order.as_json)
