"""`backstop launch`, `status` and `watch`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.options import (
    LOOK,
    ROLL_OUT,
    Actor,
    AsJson,
    Buffer,
    Cluster,
    MaxTier,
    ReasonOption,
    SettingsOption,
    checked,
    examples,
    named,
    needed,
    number,
    policy_with,
    settings_of,
    who,
)
from cli.session import ask
from models.cluster.policy import Tier
from models.errors import BadInput
from models.rollout.stages import Stage

if TYPE_CHECKING:
    from client.backstop import Backstop
    from client.doctor import Check
    from models.fleet.messages import FleetStatus
    from models.planning.plan import Plan
    from models.requests.state import RequestState
    from models.rollout.messages import LaunchAnswer, RolloutStatus
    from models.wire import RolloutSummary


_T = TypeVar("_T")


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop launch h100-worked --reason 'pilot, agreed with research'",
            "backstop launch h100-worked --shadow",
            "backstop launch h100-worked --buffer 0.10 --policy notice=1d --yes",
            "backstop launch --fleet --pilot h100-1,h100-2 --pace parallel=20 --reason 'Q1 rollout'",
            "backstop launch --wave unscheduled --shadow",
        ),
        rich_help_panel=ROLL_OUT,
    )(launch)
    app.command(
        epilog=examples(
            "backstop status",
            "backstop status --needs",
            "backstop status h100-worked",
            "backstop status h100-worked --json",
        ),
        rich_help_panel=LOOK,
    )(status)
    app.command(
        epilog=examples("backstop watch h100-worked", "backstop watch h100-worked --once"), rich_help_panel=LOOK
    )(watch)


def launch(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER", help="One cluster; or none, with --fleet.", show_default=False, callback=named
        ),
    ] = "",
    fleet: Annotated[bool, typer.Option("--fleet", help="Every cluster of the ledger, in waves.")] = False,
    wave: Annotated[
        list[str] | None,
        typer.Option(metavar="N|TIER", help="Only this wave: 1 to 4, or its tier. May be repeated."),
    ] = None,
    pilot: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Clusters that go first, with a soak of their own; alone: only they."),
    ] = None,
    pace: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="How fast a fleet goes, such as parallel=20. May be repeated."),
    ] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Who answers for the rollout. Default: the actor.")] = "",
    shadow: Annotated[bool, typer.Option("--shadow", help="Everything but the writes to the quota system.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over what an earlier, lost rollout left behind.")
    ] = False,
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    reason: ReasonOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Open a rollout, or with --fleet, --wave or --pilot that of a fleet: plan it and wait for an approval.

    No quota changes before the plan is approved, its notice period is over and its gate has opened.

    A fleet goes through in waves, pilots first: `backstop fleet status` follows it.
    """
    from models.cluster.policy import OF_THE_CLUSTER, Policy
    from models.rollout.messages import LaunchRequest

    person = who(actor)
    settings = settings_of(buffer, max_tier, policy)
    policy_with(Policy(), settings, buffer, max_tier)  # a slip is named here, by its option
    for field in OF_THE_CLUSTER:
        if field in settings:
            raise BadInput(
                f"--policy {field}={settings[field]!r} belongs to the cluster, not to one rollout: "
                "say it in the policy that it is imported with (backstop fleet import)"
            )
    if fleet or wave or pilot:
        if cluster or adopt:
            given = f"CLUSTER {cluster!r}" if cluster else "--adopt"
            raise BadInput(f"{given} is given beside --fleet, --wave or --pilot: it is of one cluster's rollout")
        from cli.commands.fleet_rollout import launch_fleet

        launch_fleet(
            person,
            owner=owner or person,
            whole=fleet,
            waves=wave or [],
            pilots=pilot or [],
            pace=pace or [],
            shadow=shadow,
            policy=settings,
            reason=reason,
            as_json=as_json,
        )
        return
    if pace:
        raise BadInput(f"--pace {pace[0]!r} is of a fleet: give --fleet, --wave or --pilot too")
    needed(cluster)
    request = checked(
        LaunchRequest,
        cluster=cluster,
        rollout=rollout_id(cluster),
        owner=owner or person,
        actor=person,
        reason=reason,
        shadow=shadow,
        adopt=adopt,
        policy=settings,
    )
    if not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _confirm(cluster, person, settings, buffer, max_tier)

    async def question(door: Backstop) -> LaunchAnswer:
        return await door.launch(request)

    _launched(ask(person, question), shadow=shadow, as_json=as_json)


def rollout_id(cluster: str) -> str:
    """Readable, in order of time, and never given twice."""
    return f"{cluster[:100]}/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _confirm(cluster: str, actor: str, settings: dict[str, Any], buffer: str, max_tier: str) -> None:
    from cli.commands.plan import buffer_of
    from cli.output import line, show
    from cli.views.plan import plan_parts
    from models.planning.plan import make_plan

    async def question(door: Backstop) -> Plan:
        snapshot, default = await door.snapshot(cluster, buffer_of(settings))
        return make_plan(snapshot, policy_with(default, settings, buffer, max_tier))

    show(*plan_parts(ask(actor, question)))
    if not typer.confirm(f"Open a rollout of {cluster}?"):
        show(line("Nothing was opened."))
        raise typer.Exit(1)


def _launched(answer: LaunchAnswer, *, shadow: bool, as_json: bool) -> None:
    from cli.answers import LaunchedAnswer, PlanAnswer
    from cli.output import line, show, show_json
    from cli.views.plan import plan_parts

    approve = "" if answer.plan is None else f"backstop approve {answer.cluster} --plan {answer.plan.hash}"
    if as_json:
        told = LaunchedAnswer(
            cluster=answer.cluster,
            rollout=answer.rollout,
            stage=answer.stage,
            shadow=shadow,
            plan=None if answer.plan is None else PlanAnswer.of(answer.plan),
            approve=approve,
        )
        show_json(told.as_json())
        return
    if answer.plan is not None:
        show(*plan_parts(answer.plan), line())
    show(line((f"Rollout {answer.rollout} is open", "bold"), " (shadow: no quota is written)." if shadow else "."))
    if approve:
        show(line("Nothing changes until the plan is approved. If it is right, say:"), line(f"  {approve}"))


def status(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER", help="One rollout in full; without it, all.", show_default=False, callback=named
        ),
    ] = "",
    stage: Annotated[str, typer.Option(metavar="STAGE", help="Only rollouts in this stage, such as stuck.")] = "",
    wave: Annotated[str, typer.Option(metavar="TIER", help="Only rollouts of this wave, such as busy.")] = "",
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only this owner's rollouts.")] = "",
    needs: Annotated[bool, typer.Option("--needs", help="Only rollouts that need a person.")] = False,
    at_risk: Annotated[bool, typer.Option("--at-risk", help="Only rollouts with quota that lacks hardware.")] = False,
    only_open: Annotated[bool, typer.Option("--open", help="Only rollouts that have not ended.")] = False,
    every: Annotated[bool, typer.Option("--all", help="A line for each, however many.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show where rollouts stand: the fleet on one screen, or one in full.

    The fleet: by stage and wave, what needs a person, what is at risk; with a filter, a line for each that it
    leaves. In full: the stage, what it waits for and until when, holds, quotas at risk, every team's quota with the
    healthy GPUs behind it, and what is needed from a person.
    """
    from cli.output import line, show, show_json
    from cli.views.overview import overview_parts, watch_parts
    from cli.views.request import request_lines, waiting_line
    from cli.views.status import status_parts

    filters = {"--stage": stage, "--wave": wave, "--owner": owner, "--needs": needs, "--at-risk": at_risk}
    given = [option for option, value in {**filters, "--open": only_open, "--all": every}.items() if value]
    if cluster and given:
        raise BadInput(f"{given[0]} is given beside CLUSTER {cluster!r}: a filter is for all of them")
    _one_of("--stage", stage, [s.value for s in Stage])
    _one_of("--wave", wave, [t.value for t in Tier])
    if cluster:
        (found, requests), watching = ask(
            who(actor), lambda door: _with_watch(door, _with_requests(door, cluster, not as_json), not as_json)
        )
        if as_json:
            show_json(found.model_dump(mode="json", by_alias=True))
        else:
            parts = [*status_parts(found), *request_lines(requests)]
            show(*parts, *([] if found.stage.ended else watch_parts(watching)))
        return
    from cli.answers import RolloutsAnswer

    (rows, whole, requests), watching = ask(
        who(actor), lambda door: _with_watch(door, _with_fleet(door, not as_json), not as_json)
    )
    lines = tuple(
        found
        for found in rows
        if stage in ("", found.stage)
        and wave in ("", found.wave)
        and owner in ("", found.owner)
        and (found.needs or not needs)
        and ((found.unbacked_gpus and found.open) or not at_risk)
        and (found.open or not only_open)
    )
    if as_json:
        show_json(RolloutsAnswer(rollouts=lines).as_json())
    elif rows and not lines:
        show(line(f"None of {len(rows)} rollouts is so."))
    else:
        if whole is not None and not given:
            from cli.views.fleet_rollout import fleet_line

            show(fleet_line(whole), line())
        parts = [*overview_parts(lines, datetime.now(UTC), all_lines=bool(given)), *waiting_line(requests)]
        show(*parts, *(watch_parts(watching) if rows else []))


async def _with_watch(door: Backstop, asked: Awaitable[_T], shown: bool) -> tuple[_T, Check | None]:
    """With what people are shown of the watch; JSON has no place for it."""
    return await asked, await door.watch() if shown else None


async def _with_fleet(
    door: Backstop, shown: bool
) -> tuple[list[RolloutSummary], FleetStatus | None, list[RequestState]]:
    """With the fleet rollout, where one is open, and requests; JSON has commands of their own for them."""
    found = await door.overview()
    return found, await door.open_fleet() if shown else None, await door.open_requests() if shown else []


async def _with_requests(door: Backstop, cluster: str, shown: bool) -> tuple[RolloutStatus, list[RequestState]]:
    """With its requests for more quota; JSON has `backstop request list` for them."""
    return await door.status(cluster), await door.open_requests(cluster) if shown else []


def _one_of(option: str, text: str, known: Sequence[str]) -> None:
    if text and text not in known:
        raise BadInput(f"{option} must be one of {', '.join(known)}, not {text!r}")


def watch(
    cluster: Cluster,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[str, typer.Option(metavar="SECONDS", help="How often to look.")] = "2",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Follow a rollout live until it ends; in a pipe, one line for each change.

    A server or worker that is away for a while is waited for.
    """
    from cli.views.watching import follow

    seconds = number("--every", every, 0.1, 3600)
    ask(who(actor), lambda door: follow(door, cluster, every=seconds, once=once, as_json=as_json))
