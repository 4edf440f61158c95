"""Commands to a rollout. Which of them a stage allows, its table says (models/rollout/stages.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import (
    DECIDE,
    HALT,
    Actor,
    AsJson,
    Cluster,
    NeededReason,
    ReasonOption,
    checked,
    examples,
    who,
)
from cli.session import ask

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.rollout.messages import CommandAnswer

TeamOption = Annotated[str, typer.Option("--team", metavar="TEAM", help="The team that speaks.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    for command, panel, lines in (
        (approve, DECIDE, ("backstop approve h100-worked --plan 3f0c9a51b2d4e687",)),
        (ack, DECIDE, ("backstop ack h100-worked --team research",)),
        (object_, DECIDE, ("backstop object h100-worked --team research --reason 'deadline on Friday'",)),
        (
            resolve,
            DECIDE,
            (
                "backstop resolve h100-worked --hold objection-research --reason 'moved to Monday, research agrees'",
                "backstop resolve h100-worked --hold drift --how restore --reason 'changed by mistake'",
            ),
        ),
        (promote, DECIDE, ("backstop promote h100-worked --reason 'all teams agreed in the weekly'",)),
        (pause, HALT, ("backstop pause h100-worked --reason 'SEV under investigation'",)),
        (resume, HALT, ("backstop resume h100-worked",)),
        (rollback, HALT, ("backstop rollback h100-worked --reason 'evals are starved'",)),
        (retry, HALT, ("backstop retry h100-worked --reason 'nodes are back'",)),
        (abort, HALT, ("backstop abort h100-worked --reason 'cluster is being retired'",)),
        (close, HALT, ("backstop close h100-worked --reason 'a year without a breach'",)),
    ):
        app.command(command.__name__.rstrip("_"), epilog=examples(*lines), rich_help_panel=panel)(command)


def approve(
    cluster: Cluster,
    plan: Annotated[
        str, typer.Option(metavar="HASH", help="The plan that is meant; `status` shows its hash.", show_default=False)
    ],
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Approve a plan by its hash. Teams are told, and the rollout goes on by itself.

    It covers later plans too that cut no team more and no tier deeper. Another hash is refused.
    """
    _give("approve", cluster, actor, reason, as_json, plan_hash=plan)


def ack(
    cluster: Cluster, team: TeamOption, reason: ReasonOption = "", as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Acknowledge the notice for a team."""
    _give("ack", cluster, actor, reason, as_json, team=team)


def object_(
    cluster: Cluster, team: TeamOption, reason: NeededReason, as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Object for a team. Until the rollout is enforced this holds it; later it is recorded and answered."""
    _give("object", cluster, actor, reason, as_json, team=team)


def resolve(
    cluster: Cluster,
    hold: Annotated[str, typer.Option(metavar="ID", help="The hold; `status` shows its id.", show_default=False)],
    reason: NeededReason,
    how: Annotated[
        str, typer.Option(metavar="accept|restore", help="A drift: take the values as given, or write ours again.")
    ] = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Lift an objection or another hold. It takes the rollout's owner or somebody whom the policy names."""
    _give("resolve", cluster, actor, reason, as_json, hold=hold, how=how)


def promote(cluster: Cluster, reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Waive what is left of this gate's notice, soak and acknowledgements. Nothing else is waived."""
    _give("promote", cluster, actor, reason, as_json)


def pause(cluster: Cluster, reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Keep gates shut. Effects under way finish, and rollbacks still run."""
    _give("pause", cluster, actor, reason, as_json)


def resume(cluster: Cluster, reason: ReasonOption = "", as_json: AsJson = False, actor: Actor = "") -> None:
    """Lift a pause."""
    _give("resume", cluster, actor, reason, as_json)


def rollback(cluster: Cluster, reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Undo every effect, back to the baseline. The rollout stays open for a retry."""
    _give("rollback", cluster, actor, reason, as_json)


def retry(cluster: Cluster, reason: ReasonOption = "", as_json: AsJson = False, actor: Actor = "") -> None:
    """Start the next attempt after a rollback, or run what is left of a stuck one."""
    _give("retry", cluster, actor, reason, as_json)


def abort(cluster: Cluster, reason: NeededReason, as_json: AsJson = False, actor: Actor = "") -> None:
    """Undo every effect and end the rollout."""
    _give("abort", cluster, actor, reason, as_json)


def close(cluster: Cluster, reason: ReasonOption = "", as_json: AsJson = False, actor: Actor = "") -> None:
    """End a rollout and its promise, and leave the values as they are. At risk or stuck it needs a reason."""
    _give("close", cluster, actor, reason, as_json)


def _give(name: str, cluster: str, actor: str, reason: str, as_json: bool, **fields: str) -> None:
    from cli.answers import CommandTaken
    from cli.output import line, show, show_json
    from models.rollout.commands import CommandRequest
    from models.rollout.stages import Command

    person = who(actor)
    request = checked(CommandRequest, actor=person, reason=reason, **fields)

    async def question(door: Backstop) -> CommandAnswer:
        return await door.command(cluster, Command(name), request)

    answer = ask(person, question)
    if as_json:
        show_json(
            CommandTaken(cluster=answer.cluster, command=answer.command, stage=answer.stage, said=answer.said).as_json()
        )
    else:
        show(line((answer.cluster, "bold"), f" ({answer.stage}): {answer.said}"))
