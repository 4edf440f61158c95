"""`backstop launch`, `status` and `watch`."""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import (
    LOOK,
    ROLL_OUT,
    Actor,
    AsJson,
    Buffer,
    Cluster,
    MaxTier,
    Reason,
    Settings,
    checked,
    examples,
    named,
    number,
    policy_with,
    settings_of,
    who,
)
from cli.session import ask

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.messages import LaunchAnswer
    from models.plans import Plan


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "backstop launch h100-worked --reason 'pilot, agreed with research'",
            "backstop launch h100-worked --shadow",
            "backstop launch h100-worked --buffer 0.10 --policy notice=1d --yes",
        ),
        rich_help_panel=ROLL_OUT,
    )(launch)
    app.command(
        epilog=examples("backstop status", "backstop status h100-worked", "backstop status h100-worked --json"),
        rich_help_panel=LOOK,
    )(status)
    app.command(
        epilog=examples("backstop watch h100-worked", "backstop watch h100-worked --once"), rich_help_panel=LOOK
    )(watch)


def launch(
    cluster: Cluster,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Who answers for the rollout. Default: the actor.")] = "",
    shadow: Annotated[bool, typer.Option("--shadow", help="Everything but the writes to the quota system.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over what an earlier, lost rollout left behind.")
    ] = False,
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: Settings = None,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Open a rollout: make its plan and wait for somebody to approve it.

    No quota changes before the plan is approved, its notice period is over and its gate has opened.
    """
    from models.messages import LaunchRequest
    from models.policy import Policy

    person = who(actor)
    settings = settings_of(buffer, max_tier, policy)
    policy_with(Policy(), settings, buffer, max_tier)  # a slip is named here, by its option
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
    from cli.output import line, show
    from cli.plan_view import plan_parts
    from models.plans import make_plan

    async def question(door: Backstop) -> Plan:
        snapshot, default = await door.snapshot(cluster)
        return make_plan(snapshot, policy_with(default, settings, buffer, max_tier))

    show(*plan_parts(ask(actor, question)))
    if not typer.confirm(f"Open a rollout of {cluster}?"):
        show(line("Nothing was opened."))
        raise typer.Exit(1)


def _launched(answer: LaunchAnswer, *, shadow: bool, as_json: bool) -> None:
    from cli.answers import LaunchedAnswer, PlanAnswer
    from cli.output import line, show, show_json
    from cli.plan_view import plan_parts

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
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show where rollouts stand: all in a table, or one in full.

    In full: the stage, what it waits for and until when, holds, quotas at risk, every team's quota with the
    healthy GPUs behind it, and what is needed from a person.
    """
    from cli.output import show, show_json
    from cli.status_view import rollouts_parts, status_parts

    if cluster:
        found = ask(who(actor), lambda door: door.status(cluster))
        if as_json:
            show_json(found.model_dump(mode="json", by_alias=True))
        else:
            show(*status_parts(found))
        return
    from cli.answers import RolloutLine, RolloutsAnswer

    rows = ask(who(actor), lambda door: door.rollouts())
    lines = tuple(RolloutLine.model_validate(row.model_dump()) for row in rows)
    if as_json:
        show_json(RolloutsAnswer(rollouts=lines).as_json())
    else:
        show(*rollouts_parts(lines))


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
    from cli.watching import follow

    seconds = number("--every", every, 0.1, 3600)
    ask(who(actor), lambda door: follow(door, cluster, every=seconds, once=once, as_json=as_json))
