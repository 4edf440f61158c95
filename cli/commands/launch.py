"""`backstop launch`: a rollout of a cluster, or of a fleet, opens and waits for an approval."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.launch_many import Several, launch_many, planned
from cli.options import (
    ROLL_OUT,
    Actor,
    AsJson,
    Buffer,
    MaxTier,
    Overlay,
    ReasonOption,
    SettingsOption,
    checked,
    examples,
    needed,
    overlay_of,
    who,
)
from cli.session import ask
from client.rollout_ids import rollout_id
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.rollout.messages import LaunchAnswer


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop launch h100-worked --reason 'pilot, agreed with research'",
            "backstop launch 'h100-*' b200-lab --shadow --reason rehearsal",
            "backstop launch h100-worked --buffer 0.10 --policy notice=1d --yes",
            "backstop launch --fleet --pilot h100-1,h100-2 --pace parallel=20 --reason 'Q1 rollout'",
            "backstop launch --adopt --all --reason 'the Temporal database is gone'",
        ),
        rich_help_panel=ROLL_OUT,
    )(launch)


def launch(
    clusters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLUSTER",
            help="Clusters, or globs of those without an open rollout; or none, with --fleet.",
            show_default=False,
        ),
    ] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="Every cluster of the ledger, in waves.")] = False,
    wave: Annotated[
        list[str] | None,
        typer.Option(metavar="N|TIER", help="Only this wave: 1 to 4, or its tier. Repeatable."),
    ] = None,
    pilot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Clusters that go first, with their own soak; without --fleet and --wave, only these."
        ),
    ] = None,
    pace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="How fast a fleet goes, such as parallel=20 (docs/reading.md). Repeatable."
        ),
    ] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="The rollout's owner. Default: the actor.")] = "",
    shadow: Annotated[bool, typer.Option("--shadow", help="Do everything but write to the quota system.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over what an earlier, lost rollout left behind.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="With --adopt: every lost rollout.")] = False,
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    reason: ReasonOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: for scripts.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Open a rollout, or with --fleet, --wave or --pilot a fleet rollout: plan it and wait for an approval.

    No quota changes before the plan is approved, its notice period is over and its gate has opened. --shadow rehearses:
    Backstop writes nothing, notifies nobody and waits for no notice period; a real launch aborts the rehearsal.

    Several clusters get a rollout each; a fleet goes in waves, pilots first. --adopt takes over what the ledger has
    open and Temporal has lost. Backstop shows what it will open or take over, and asks.
    """
    from client.who_acts import lifted_by_others
    from models.rollout.messages import LaunchRequest

    person = who(actor)
    names = tuple(dict.fromkeys(needed(name) for name in clusters or ()))
    cluster = " ".join(names)
    overlay = _overlay(buffer, max_tier, policy)
    request: dict[str, Any] = {"owner": owner or person, "reason": reason, "shadow": shadow, "policy": overlay.settings}
    if fleet and adopt:
        _adopt_fleet(cluster, every=every, chosen=bool(wave or pilot), shadow=shadow)
        from cli.commands.adopt import adopt_fleet

        adopt_fleet(
            person, owner=owner, reason=reason, policy=overlay.settings, pace=pace or [], yes=yes, as_json=as_json
        )
        return
    if every:
        _adopt_all(cluster, adopt=adopt, fleet=bool(fleet or wave or pilot or pace), shadow=shadow)
        from cli.commands.adopt import adopt_all

        adopt_all(person, owner=owner, reason=reason, policy=overlay.settings, yes=yes, as_json=as_json)
        return
    if fleet or wave or pilot:
        if cluster or adopt:
            option = f"CLUSTER {cluster!r}" if cluster else "--adopt"
            raise BadInput(f"{option} is given beside --fleet, --wave or --pilot: it is of one cluster's rollout")
        from cli.commands.fleet_rollout import launch_fleet

        launch_fleet(
            person, whole=fleet, waves=wave or [], pilots=pilot or [], pace=pace or [], as_json=as_json, **request
        )
        return
    if pace:
        raise BadInput(f"--pace {pace[0]!r} is of a fleet: give --fleet, --wave or --pilot too")
    several = Several(names, person, overlay, request)
    if len(names) > 1 or several.looks:
        if adopt:
            raise BadInput("--adopt takes over one cluster, or with --all every rollout that is lost")
        launch_many(several, yes=yes, as_json=as_json)
        return
    needed(cluster)
    launching = checked(
        LaunchRequest, cluster=cluster, rollout=rollout_id(cluster), actor=person, adopt=adopt, **request
    )
    if not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _confirm(cluster, person, overlay)

    async def question(door: Backstop) -> tuple[LaunchAnswer, str]:
        answer = await door.launch(launching)
        return answer, await lifted_by_others(door.ask, answer, person)

    answer, resolves = ask(person, question)
    _launched(answer, resolves, shadow=shadow, as_json=as_json)


def _adopt_all(cluster: str, *, adopt: bool, fleet: bool, shadow: bool) -> None:
    """Errors: BadInput where --all has no place."""
    if not adopt:
        raise BadInput("--all goes with --adopt: every rollout that Temporal has lost (a whole fleet: --fleet)")
    for value, what in ((cluster, f"CLUSTER {cluster!r}"), (fleet, "what is of a fleet"), (shadow, "--shadow")):
        if value:
            raise BadInput(f"{what} is given beside --adopt --all: it takes over each lost rollout as it was")


def _adopt_fleet(cluster: str, *, every: bool, chosen: bool, shadow: bool) -> None:
    """Errors: BadInput for what a lost fleet rollout brings along itself."""
    options = {
        f"CLUSTER {cluster!r}": bool(cluster),
        "--all": every,
        "--wave or --pilot": chosen,
        "--shadow": shadow,
    }
    for what in (option for option, there in options.items() if there):
        raise BadInput(f"{what} is given beside --fleet --adopt: it takes over the lost fleet rollout as it was")


def _overlay(buffer: str, max_tier: str, policy: list[str] | None) -> Overlay:
    """The policy's settings for this launch; a slip is named by its option."""
    from models.cluster.policy import OF_THE_CLUSTER, Policy

    overlay = overlay_of(policy, buffer=buffer, max_tier=max_tier)
    overlay.on(Policy())
    for field in OF_THE_CLUSTER:
        if field in overlay.settings:
            raise BadInput(
                f"--policy {field}={overlay.settings[field]!r} belongs to the cluster, not to one rollout: "
                "say it in the policy that it is imported with (backstop fleet import)"
            )
    return overlay


def _confirm(cluster: str, actor: str, overlay: Overlay) -> None:
    from cli.output import show
    from views.plan import plan_parts
    from views.words import line

    show(*plan_parts(ask(actor, lambda door: planned(door, cluster, overlay))))
    if not typer.confirm(f"Open a rollout of {cluster}?"):
        show(line("Nothing was opened."))
        raise typer.Exit(1)


def _launched(answer: LaunchAnswer, resolves: str, *, shadow: bool, as_json: bool) -> None:
    from cli.answers import LaunchedAnswer
    from cli.output import show, show_json
    from views.plan import plan_parts
    from views.words import line

    document = LaunchedAnswer.of(answer, resolves, shadow=shadow)
    if as_json:
        show_json(document.as_json())
        return
    if answer.plan is not None:
        show(*plan_parts(answer.plan), line())
    if answer.gave_way:
        show(line(f"The rehearsal {answer.gave_way} gave way: it is aborted, and had written no quota."))
    show(line((f"Rollout {answer.rollout} is open", "bold"), " (shadow: no quota is written)." if shadow else "."))
    if document.approve:
        show(line("Nothing changes until the plan is approved. If it is right, say:"), line(f"  {document.approve}"))
    if resolves:
        show(line(resolves))
    show(line(document.undo))
