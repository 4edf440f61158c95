"""Commands to a rollout, or to several. Which of them a stage allows, its table says (models/rollout/stages.py)."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.consent import Yes, can_ask
from cli.giving import agreed, aheads_of, answered, clusters_of, give, said
from cli.options import DECIDE, HALT, Actor, Alone, AsJson, NeededReason, ReasonOption, examples, who
from cli.selection import Selection, on_selected
from models.errors import BadInput

TeamOption = Annotated[str, typer.Option("--team", metavar="TEAM", help="The team that speaks.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    for command, panel, lines in (
        (
            approve,
            DECIDE,
            (
                "backstop approve h100-worked",
                "backstop approve h100-worked --plan 3f0c9a51b2d4e687",
                "backstop approve --stage planned --needs",
                "backstop approve 'h100-*' --reason 'agreed in the weekly' --yes",
            ),
        ),
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
        (
            pause,
            HALT,
            ("backstop pause h100-worked --reason 'SEV under investigation'",),
        ),
        (resume, HALT, ("backstop resume h100-worked",)),
        (
            rollback,
            HALT,
            ("backstop rollback h100-worked --reason 'evals are starved'",),
        ),
        (retry, HALT, ("backstop retry h100-worked --reason 'nodes are back'",)),
        (abort, HALT, ("backstop abort h100-worked --reason 'cluster is being retired'",)),
        (close, HALT, ("backstop close h100-worked --reason 'a year without a breach'",)),
    ):
        app.command(command.__name__.rstrip("_"), epilog=examples(*lines), rich_help_panel=panel)(command)


@on_selected
def approve(
    plan: Annotated[str, typer.Option(metavar="HASH", help="The plan to approve, by its hash.")] = "",
    *,
    of: Selection,
    reason: ReasonOption = "",
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Approve a plan. Backstop then notifies teams, and the rollout goes on by itself.

    Without --plan Backstop shows the plan, asks, and approves only that one; --yes approves the current plan unseen. An
    approval covers later plans that cut no team more and no tier deeper.
    """
    person = who(actor)
    if plan:
        if not of.plain:
            raise BadInput(f"--plan {plan} is one cluster's plan: name that cluster, and no other")
        give("approve", of, actor, reason, yes=True, as_json=as_json, plan_hash=plan)
        return
    if not yes and not can_ask(as_json=as_json):
        raise BadInput(
            "--plan is missing: nobody can be shown a plan and asked here; `backstop status CLUSTER` shows its hash, "
            "and --yes approves the plan that there is"
        )
    aheads, silent = aheads_of(clusters_of(of, person), person)
    hashes, left = agreed(aheads, silent, yes=yes)
    outcomes = said("approve", tuple(hashes), person, reason, lambda name: {"plan_hash": hashes[name]})
    answered([*outcomes, *left.items()], of, as_json=as_json)


@on_selected
def ack(
    team: TeamOption,
    of: Selection,
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Acknowledge the notice for a team."""
    give("ack", of, actor, reason, yes=yes, as_json=as_json, team=team)


@on_selected
def object_(
    team: TeamOption, reason: NeededReason, of: Selection, yes: Yes = False, as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Object for a team. This holds a rollout that is not enforced yet; later it is recorded and answered.

    A team has at most 5 objections; a new one replaces the same actor's earlier one.
    """
    give("object", of, actor, reason, yes=yes, as_json=as_json, team=team)


@on_selected
def resolve(
    hold: Annotated[str, typer.Option(metavar="ID", help="The hold; `status` shows its id.", show_default=False)],
    reason: NeededReason,
    how: Annotated[
        str,
        typer.Option(
            metavar="accept|restore", help="For a drift: take the values as they are, or write Backstop's again."
        ),
    ] = "",
    *,
    of: Selection,
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Lift an objection or another hold.

    With an access file this takes an approver, or for an objection a member of its team. Without one it takes the
    rollout's owner, one of the policy's `authorities` or, except for an objection, one of its `owners`.
    """
    give("resolve", of, actor, reason, yes=yes, as_json=as_json, hold=hold, how=how)


@on_selected
def promote(
    reason: NeededReason,
    of: Selection,
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Waive the rest of this gate's notice, soak and acknowledgements, and nothing else.

    Objections, other holds and a missing approval keep the gate shut. If a notice is not delivered yet, the quota may
    change before its team reads of it. Backstop shows both and asks; for one cluster a script is not asked.
    """
    give("promote", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def pause(reason: NeededReason, of: Selection, yes: Yes = False, as_json: AsJson = False, actor: Actor = "") -> None:
    """Keep gates shut. Effects under way finish, and rollbacks still run."""
    give("pause", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def resume(
    of: Selection, reason: ReasonOption = "", yes: Yes = False, as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Lift a pause. A soak starts again."""
    give("resume", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def rollback(reason: NeededReason, of: Selection, yes: Yes = False, as_json: AsJson = False, actor: Actor = "") -> None:
    """Undo every effect, back to the baseline. The rollout stays open for a retry.

    Backstop shows what every team gets back and how much of it hardware can back, and asks.
    """
    give("rollback", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def retry(
    of: Selection, reason: ReasonOption = "", yes: Yes = False, as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Start the next attempt after a rollback, or run the rest of a stuck rollout.

    Remove the cause first; otherwise the rollout is stuck again, and nothing is lost. `backstop status` shows what will
    run.
    """
    give("retry", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def abort(reason: NeededReason, of: Selection, yes: Yes = False, as_json: AsJson = False, actor: Actor = "") -> None:
    """Undo every effect and end the rollout.

    Backstop shows what every team gets back and how much of it hardware can back, and asks.
    """
    give("abort", of, actor, reason, yes=yes, as_json=as_json)


@on_selected
def close(
    of: Selection,
    reason: ReasonOption = "",
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """End a rollout and its promise, and leave the values as they are. At risk or stuck it needs a reason.

    Then Backstop also shows who is at risk, and asks.
    """
    give("close", of, actor, reason, yes=yes, as_json=as_json)
