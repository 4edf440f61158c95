"""Commands to a rollout, or to several. Which of them a stage allows, its table says (models/rollout/stages.py)."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.consent import Yes, can_ask
from cli.giving import agreed, aheads_of, answered, clusters_of, give, said
from cli.options import DECIDE, HALT, Actor, Alone, AsJson, NeededReason, ReasonOption, examples, who
from cli.selection import selection
from models.errors import BadInput

ClustersOrGlobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLUSTER", help="One or more clusters, or globs of open rollouts: 'h100-*'.", show_default=False
    ),
]
WaveOption = Annotated[
    str, typer.Option("--wave", metavar="N|TIER", help="Open rollouts of this wave: 1 to 4, or its tier.")
]
StageOption = Annotated[str, typer.Option("--stage", metavar="STAGE", help="Open rollouts in this stage.")]
NeedsOption = Annotated[bool, typer.Option("--needs", help="Open rollouts that need a person.")]
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
        (ack, DECIDE, ("backstop ack h100-worked --team research", "backstop ack 'h100-*' --team research")),
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
            (
                "backstop pause h100-worked --reason 'SEV under investigation'",
                "backstop pause --wave busy --reason 'training until Friday'",
            ),
        ),
        (resume, HALT, ("backstop resume h100-worked", "backstop resume h100-1 h100-2 --yes")),
        (
            rollback,
            HALT,
            (
                "backstop rollback h100-worked --reason 'evals are starved'",
                "backstop rollback 'h100-*' --stage monitored --reason 'wrong buffer' --yes",
            ),
        ),
        (retry, HALT, ("backstop retry h100-worked --reason 'nodes are back'",)),
        (abort, HALT, ("backstop abort h100-worked --reason 'cluster is being retired'",)),
        (close, HALT, ("backstop close h100-worked --reason 'a year without a breach'",)),
    ):
        app.command(command.__name__.rstrip("_"), epilog=examples(*lines), rich_help_panel=panel)(command)


def approve(
    clusters: ClustersOrGlobs = None,
    plan: Annotated[
        str, typer.Option(metavar="HASH", help="The plan that is meant; without it, it is shown, and you are asked.")
    ] = "",
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    reason: ReasonOption = "",
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Approve a plan. Teams are told, and the rollout goes on by itself.

    Without --plan the plan is shown and you are asked; what is approved is the plan that you saw, and none that took
    its place meanwhile. Where nobody can be asked, --plan names it by its hash. With --yes the plan that awaits
    approval now is approved, and nobody is shown it.

    It covers later plans too that cut no team more and no tier deeper. Another hash is refused.
    """
    of, person = selection(clusters, wave, stage, needs=needs), who(actor)
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


def ack(
    team: TeamOption,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Acknowledge the notice for a team."""
    give("ack", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json, team=team)


def object_(
    team: TeamOption,
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Object for a team. Until the rollout is enforced this holds it; later it is recorded and answered."""
    give("object", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json, team=team)


def resolve(
    hold: Annotated[str, typer.Option(metavar="ID", help="The hold; `status` shows its id.", show_default=False)],
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    how: Annotated[
        str, typer.Option(metavar="accept|restore", help="A drift: take the values as given, or write ours again.")
    ] = "",
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Lift an objection or another hold.

    With an access file in force it takes an approver, or for an objection a member of its team; without one the
    rollout's owner or somebody whom the policy names.
    """
    give(
        "resolve",
        selection(clusters, wave, stage, needs=needs),
        actor,
        reason,
        yes=yes,
        as_json=as_json,
        hold=hold,
        how=how,
    )


def promote(
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Waive what is left of this gate's notice, soak and acknowledgements. Nothing else is waived.

    An objection, another hold and a missing approval keep the gate shut all the same, and teams that were not told get
    no notice: what of this is so is shown first, and you are asked; where nobody can be asked, the answer says it.
    """
    give("promote", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def pause(
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Keep gates shut. Effects under way finish, and rollbacks still run."""
    give("pause", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def resume(
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Lift a pause."""
    give("resume", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def rollback(
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Undo every effect, back to the baseline. The rollout stays open for a retry.

    What every team gets back, and what hardware can back of it, is shown first, and you are asked.
    """
    give("rollback", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def retry(
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    reason: ReasonOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Start the next attempt after a rollback, or run what is left of a stuck one."""
    give("retry", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def abort(
    reason: NeededReason,
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Undo every effect and end the rollout.

    What every team gets back, and what hardware can back of it, is shown first, and you are asked.
    """
    give("abort", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)


def close(
    clusters: ClustersOrGlobs = None,
    wave: WaveOption = "",
    stage: StageOption = "",
    needs: NeedsOption = False,
    reason: ReasonOption = "",
    yes: Yes = False,
    emergency: Alone = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """End a rollout and its promise, and leave the values as they are. At risk or stuck it needs a reason.

    At risk or stuck, who is at risk is shown first, and you are asked.
    """
    give("close", selection(clusters, wave, stage, needs=needs), actor, reason, yes=yes, as_json=as_json)
