"""A fleet's rollout: `backstop launch --fleet`, and what `backstop fleet` says to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.lists import Filter, Output, Sort, listing
from cli.options import Actor, AsJson, NeededReason, ReasonOption, checked, examples, number, settings_given, who
from cli.session import ask
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.fleet.commands import FleetCommand
    from models.fleet.messages import FleetCommandAnswer
    from models.fleet.state import Pace, Wave

Clusters = Annotated[list[str], typer.Argument(metavar="CLUSTER...", help="One or more clusters.", show_default=False)]


def add_to(group: typer.Typer) -> None:
    for command, lines in (
        (
            status,
            (
                "backstop fleet status",
                "backstop fleet status --waiting",
                "backstop fleet status --json",
                "backstop fleet status --filter state=waiting --sort -cut_gpus",
            ),
        ),
        (watch, ("backstop fleet watch", "backstop fleet watch --once", "backstop fleet watch --every 10 > fleet.log")),
        (approve, ("backstop fleet approve --plan 3f9c2a71d0b4e6aa",)),
        (pause, ("backstop fleet pause --reason 'SEV in the region'",)),
        (resume, ("backstop fleet resume --reason 'bad racks replaced'",)),
        (skip, ("backstop fleet skip h100-7 h100-8 --reason 'retired in May'",)),
        (move, ("backstop fleet move h100-7 --wave busy --reason 'training until Friday'",)),
        (promote, ("backstop fleet promote --reason 'pilots have run for a week'",)),
        (
            abort,
            ("backstop fleet abort --reason 'next quarter'", "backstop fleet abort --undo --reason 'wrong buffer'"),
        ),
    ):
        group.command(command.__name__, epilog=examples(*lines))(command)


def launch_fleet(
    person: str,
    *,
    owner: str,
    whole: bool,
    waves: Sequence[str],
    pilots: Sequence[str],
    pace: Sequence[str],
    shadow: bool,
    policy: dict[str, Any],
    reason: str,
    as_json: bool,
) -> None:
    """Errors: BadInput naming the option and the value; those of the client."""
    import secrets
    from datetime import UTC, datetime

    from cli.output import line, show, show_json, waiting
    from cli.views.fleet_rollout import plan_parts
    from models.fleet.messages import FleetLaunch

    names = tuple(dict.fromkeys(name.strip() for given in pilots for name in given.split(",")))
    if "" in names:
        raise BadInput(f"--pilot takes names with commas between, not {','.join(pilots)!r}")
    if whole and waves:
        raise BadInput(f"--wave {waves[0]!r} is given beside --fleet, which takes all waves: give one of them")
    request = checked(
        FleetLaunch,
        fleet=f"fleet/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        owner=owner,
        actor=person,
        reason=reason,
        pilots=names,
        waves=tuple(dict.fromkeys(wave_of(text) for text in waves)),
        pilots_only=not whole and not waves,
        shadow=shadow,
        pace=_pace(pace),
        policy=policy,
    )
    with waiting("planning every cluster"):
        plan = ask(person, lambda door: door.launch_fleet(request))
    if as_json:
        from cli.answers import FleetPlanAnswer

        show_json(FleetPlanAnswer(**plan.model_dump(), approve=_approve_line(plan.hash)).as_json())
        return
    show(*plan_parts(plan, request), line())
    show(line((f"Fleet rollout {plan.fleet} is open", "bold"), " (shadow: no quota is written)." if shadow else "."))
    show(
        line("Nothing changes until its plan is approved. If it is right, say:"), line(f"  {_approve_line(plan.hash)}")
    )


def _pace(given: Sequence[str]) -> Pace:
    """Errors: BadInput naming the setting and the value."""
    from pydantic import ValidationError

    from client.inputs.sentences import first_problem
    from models.fleet.state import Pace

    settings = settings_given("--pace", given)
    try:
        return Pace.model_validate(settings)
    except ValidationError as error:
        fields = ", ".join(Pace.model_fields)
        raise BadInput(f"--pace {first_problem(error, settings).text} (it takes {fields})") from None


def _approve_line(plan_hash: str) -> str:
    return f"backstop fleet approve --plan {plan_hash}"


def wave_of(text: str) -> Wave:
    """A wave by its number or its tier. Errors: BadInput."""
    from models.fleet.state import WAVES, Wave

    choices = [w for w in WAVES if w is not Wave.AFTER]
    for wave in choices:
        if text in (str(wave.number), wave.value):
            return wave
    raise BadInput(f"--wave must be one of {', '.join(f'{w.number} ({w})' for w in choices)}, not {text!r}")


def status(
    waiting: Annotated[bool, typer.Option("--waiting", help="A line for each cluster that waits, and why.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="A line for each cluster that rolled back.")] = False,
    every: Annotated[bool, typer.Option("--all", help="A line for each cluster.")] = False,
    output: Output = None,
    sort: Sort = "",
    filters: Filter = None,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show where the fleet rollout stands: waves, what it waits for, what it needs from a person, its budget."""
    from cli.views.fleet_rollout import of_interest, status_parts
    from models.fleet.state import Member

    how = listing(output, as_json, sort, filters)
    rollout = ask(who(actor), lambda door: door.fleet_status())
    members = how.rows(rollout.members, Member)
    chosen = of_interest(members, waiting=waiting, failed=failed, every=every or bool(how.options))
    how.tell(
        lambda: rollout.model_copy(update={"members": tuple(members)}),
        lambda: status_parts(rollout, chosen),
        [m.cluster for m in (members if chosen is None else chosen)],
    )


def watch(
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[str, typer.Option(metavar="SECONDS", help="How often to look.")] = "2",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Follow the fleet rollout live until it ends: a tree of waves and clusters; in a pipe, one line for each change.

    Of each cluster it says the stage, since when, and what it waits for. A server that is away for a while is waited
    for.
    """
    from cli.views.watching import follow_fleet

    seconds = number("--every", every, 0.1, 3600)
    ask(who(actor), lambda door: follow_fleet(door, every=seconds, once=once, as_json=as_json))


def approve(
    plan: Annotated[
        str, typer.Option(metavar="HASH", help="The plan that is meant; `launch` shows its hash.", show_default=False)
    ],
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Approve the fleet's plan: each cluster's rollout goes on by itself as far as it cuts no more than this."""
    _give("approve", actor, reason, as_json, plan_hash=plan)


def pause(reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Start no more clusters. Rollouts that are on their way go on, each by its own gates."""
    _give("pause", actor, reason, as_json)


def resume(reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Lift a pause, the circuit breaker, or the hold of a failed pilot. Failures known by now count no more."""
    _give("resume", actor, reason, as_json)


def skip(clusters: Clusters, reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Leave clusters out. A rollout that is open there goes on."""
    _give("skip", actor, reason, as_json, clusters=clusters)


def move(
    clusters: Clusters,
    wave: Annotated[
        str, typer.Option(metavar="N|TIER", help="0 (pilot) to 4, or its name, such as busy.", show_default=False)
    ],
    reason: NeededReason,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Move waiting clusters to another wave, or take skipped ones in again; fresh snapshots leave them there."""
    _give("move", actor, reason, as_json, clusters=clusters, wave=wave_of(wave))


def promote(reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Waive what is left of the pilots' soak, or of a wave's bake. Nothing else is waived."""
    _give("promote", actor, reason, as_json)


def abort(
    reason: NeededReason,
    undo: Annotated[bool, typer.Option("--undo", help="Undo what it has done, too, the newest first.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """End the fleet rollout. Rollouts that have changed nothing yet end with it; the others go on, or are undone."""
    _give("abort", actor, reason, as_json, undo=undo)


def _give(name: FleetCommand, actor: str, reason: str, as_json: bool, **fields: Any) -> None:
    from cli.answers import FleetCommandTaken
    from cli.output import line, show, show_json
    from models.fleet.commands import FleetCommandRequest

    person = who(actor)
    request = checked(FleetCommandRequest, actor=person, reason=reason, **fields)

    async def question(door: Backstop) -> FleetCommandAnswer:
        return await door.fleet_command(name, request)

    answer = ask(person, question)
    if as_json:
        show_json(FleetCommandTaken(**answer.model_dump()).as_json())
    else:
        show(line(("fleet rollout", "bold"), f" ({answer.stage}): {answer.said}"))
