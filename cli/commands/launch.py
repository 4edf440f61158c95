"""`backstop launch`: open a rollout of a cluster or a fleet, which waits for an approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.commands.launch_many import Launching, launch_many, plan_one
from cli.consent import Yes, can_ask
from cli.lazy import command
from cli.list_options import tell
from cli.options import (
    ROLL_OUT,
    Actor,
    AsJson,
    Buffer,
    MaxTier,
    Overlay,
    ReasonOption,
    SettingsOption,
    actor_of,
    arg,
    flag,
    needed_cluster,
    opt,
    overlay_of,
)
from cli.session import ask
from models.errors import BadInput

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.rollout.messages import LaunchAnswer


NamesOrGlobs = Annotated[
    list[str] | None,
    arg(
        "CLUSTER",
        "Clusters, or globs of clusters without an open rollout. Name none with --fleet, --wave, "
        "--pilot, or --adopt --all.",
        show_default=False,
    ),
]
WholeFleet = Annotated[bool, flag("--fleet", "Every cluster of the ledger, in waves.")]
Waves = Annotated[list[str] | None, opt("N|TIER", "Only this wave: 1 to 4, or its tier. Repeatable.")]
Pilots = Annotated[
    list[str] | None,
    opt("A,B", "Clusters that go first, with their own soak. Without --fleet and --wave, no others follow."),
]
PaceOptions = Annotated[
    list[str] | None,
    opt("KEY=VALUE", "How fast a fleet rollout goes, such as parallel=20 (docs/reading.md). Repeatable."),
]
OwnerOption = Annotated[str, opt("NAME", "The rollout's owner. Default: you (--actor).")]
Shadow = Annotated[bool, flag("--shadow", "Rehearse: write no quota, notify no team, wait for no notice period.")]
Adopt = Annotated[bool, flag("--adopt", "Take over a lost rollout; with --fleet, the lost fleet rollout.")]
EveryLost = Annotated[bool, flag("--all", "With --adopt: every lost rollout.")]


@command(
    ROLL_OUT,
    "backstop launch h100-worked --reason 'pilot, agreed with research'",
    "backstop launch 'h100-*' b200-lab --shadow --reason rehearsal",
    "backstop launch h100-worked --buffer 0.10 --policy notice=1d --yes",
    "backstop launch --fleet --pilot h100-1,h100-2 --pace parallel=20 --reason 'Q1 rollout'",
    "backstop launch --adopt --all --reason 'the Temporal database is gone'",
)
def launch(
    clusters: NamesOrGlobs = None,
    fleet: WholeFleet = False,
    wave: Waves = None,
    pilot: Pilots = None,
    pace: PaceOptions = None,
    owner: OwnerOption = "",
    shadow: Shadow = False,
    adopt: Adopt = False,
    every: EveryLost = False,
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Open a rollout, or with --fleet, --wave or --pilot a fleet rollout: plan it and wait for an approval.

    No quota changes before the plan is approved, its notice period is over and its gate has opened. --shadow
    rehearses: Backstop writes no quota, notifies no team and waits for no notice period. A real launch of the
    cluster aborts the rehearsal; a fleet rollout does not, and starts no rollout there.

    Several clusters get a rollout each; a fleet goes in waves, pilots first. --adopt takes over rollouts that are
    open in the ledger but that Temporal has lost. At a terminal Backstop shows what it will open or take over, and
    asks. A script needs --yes, except for a single cluster.
    """
    person = actor_of(actor)
    names = tuple(dict.fromkeys(needed_cluster(name) for name in clusters or ()))
    overlay = _overlay(buffer, max_tier, policy)
    of_fleet = _OfFleet(fleet, wave or (), pilot or (), pace or ())
    launching = Launching(names, person, overlay, owner=owner, reason=reason, shadow=shadow, yes=yes, as_json=as_json)
    if fleet and adopt:
        _take_over_fleet(launching, of_fleet, every=every)
    elif every:
        _take_over_all(launching, of_fleet, adopt=adopt)
    elif of_fleet.is_asked:
        _launch_fleet(launching, of_fleet, adopt=adopt)
    elif pace:
        raise BadInput(f"--pace {pace[0]!r} is for a fleet rollout: give --fleet, --wave or --pilot too")
    elif len(names) < 2 and not launching.has_globs:
        _launch_one(launching, adopt=adopt)
    elif adopt:
        raise BadInput("--adopt takes one CLUSTER: name one, or give --all for every lost rollout")
    else:
        launch_many(launching)


class _OfFleet(NamedTuple):
    """The options that only a fleet rollout has."""

    whole: bool
    waves: Sequence[str]
    pilots: Sequence[str]
    pace: Sequence[str]

    @property
    def is_asked(self) -> bool:
        return bool(self.whole or self.waves or self.pilots)


def _take_over_fleet(launching: Launching, of_fleet: _OfFleet, *, every: bool) -> None:
    """Take over a lost fleet rollout. Errors: BadInput for options that it brings along itself."""
    from cli.commands.launch_adopt import adopt_fleet

    options = {
        launching.clusters_text: bool(launching.names),
        "--all": every,
        "--wave or --pilot": bool(of_fleet.waves or of_fleet.pilots),
        "--shadow": launching.shadow,
    }
    _refuse(options, "--fleet --adopt, which takes over the lost fleet rollout as it was")
    adopt_fleet(launching, pace=of_fleet.pace)


def _take_over_all(launching: Launching, of_fleet: _OfFleet, *, adopt: bool) -> None:
    """Take over all lost rollouts. Errors: BadInput for options that --all excludes."""
    from cli.commands.launch_adopt import adopt_all

    if not adopt:
        raise BadInput(
            "--all is only for --adopt, and means every rollout that Temporal has lost; to launch every cluster, give "
            "--fleet"
        )
    options = {
        launching.clusters_text: bool(launching.names),
        "--wave, --pilot or --pace": of_fleet.is_asked or bool(of_fleet.pace),
        "--shadow": launching.shadow,
    }
    _refuse(options, "--adopt --all, which takes over each lost rollout as it was")
    adopt_all(launching)


def _launch_fleet(launching: Launching, of_fleet: _OfFleet, *, adopt: bool) -> None:
    """Launch a fleet rollout. Errors: BadInput for an option of one cluster's rollout."""
    from cli.commands.fleet_rollout import launch_fleet

    options = {launching.clusters_text: bool(launching.names), "--adopt": adopt}
    _refuse(options, "--fleet, --wave or --pilot, which open a fleet rollout")
    launch_fleet(launching, **of_fleet._asdict())


def _refuse(options: Mapping[str, bool], beside: str) -> None:
    """Raise BadInput naming the first of these options that was given."""
    for option in (option for option, is_there in options.items() if is_there):
        raise BadInput(f"{option} is given together with {beside}: leave {option} out")


def _launch_one(launching: Launching, *, adopt: bool) -> None:
    """Launch one cluster. Errors: BadInput without a cluster; typer.Exit(1) for a no."""
    from client.who_could_act import name_other_lifters

    cluster = needed_cluster(" ".join(launching.names))
    request = launching.request_of(cluster, adopt=adopt)
    if not launching.yes and can_ask(as_json=launching.as_json):
        _confirm(cluster, launching)

    async def question(door: Backstop) -> tuple[LaunchAnswer, str]:
        answer = await door.launch(request)
        return answer, await name_other_lifters(door.ask, answer, launching.person)

    answer, resolves = ask(launching.person, question)
    _show_launched(answer, resolves, launching)


def _overlay(buffer: str, max_tier: str, policy: list[str] | None) -> Overlay:
    """Return this launch's policy settings, each with the option that an error names."""
    from models.cluster.policy import OF_THE_CLUSTER, Policy

    overlay = overlay_of(policy, buffer=buffer, max_tier=max_tier)
    overlay.apply_to(Policy())
    for field in OF_THE_CLUSTER:
        if field in overlay.settings:
            raise BadInput(
                f"--policy {field}={overlay.settings[field]!r} belongs to the cluster, not to one rollout: "
                "set it in the policy of the cluster (backstop fleet import)"
            )
    return overlay


def _confirm(cluster: str, launching: Launching) -> None:
    from cli.output import show
    from views.plan import plan_parts
    from views.words import line

    show(*plan_parts(ask(launching.person, lambda door: plan_one(door, cluster, launching.overlay))))
    if not typer.confirm(f"Open a rollout of {cluster}?"):
        show(line("Nothing was opened."))
        raise typer.Exit(1)


def _show_launched(answer: LaunchAnswer, resolves: str, launching: Launching) -> None:
    from cli.json_answers import LaunchedAnswer
    from views.plan import plan_parts
    from views.words import line

    document = LaunchedAnswer.of(answer, resolves, shadow=launching.shadow)
    shown = [] if answer.plan is None else [*plan_parts(answer.plan), line()]
    if answer.gave_way:
        shown += [line(f"Backstop aborted rehearsal {answer.gave_way} of this cluster; it had written no quota.")]
    shadow = " (shadow: no quota is written)." if launching.shadow else "."
    shown += [line((f"Rollout {answer.rollout} is open", "bold"), shadow)]
    if document.approve:
        shown += [
            line("Nothing changes until the plan is approved. If the plan is right:"),
            line(f"  {document.approve}"),
        ]
    if resolves:
        shown += [line(resolves)]
    tell(document, lambda: [*shown, line(document.undo)], as_json=launching.as_json)
