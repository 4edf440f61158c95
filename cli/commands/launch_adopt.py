"""`backstop launch --adopt --all` and `--fleet --adopt`: take over every rollout that Temporal has lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from cli.act_on_each import act_on_each
from cli.consent import consent
from cli.list_options import tell
from cli.options import check_model
from cli.session import ask
from models.errors import BackstopError, Refusal
from models.texts import verb_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.commands.launch_many import Launching
    from client.backstop import Backstop
    from models.fleet.archived_state import KeptFleet
    from models.fleet.messages import FleetLaunch, FleetPlan
    from models.fleet.state import Pace
    from models.rollout.messages import LaunchAnswer
    from models.status_questions import Overview


_ADOPTED = "Each adopted rollout waits for an approval; Backstop does not guard its quotas until it is buffered."


def adopt_all(launching: Launching) -> None:
    """Take over each lost rollout, by default with the ledger's owner; exit with 1 where one was refused."""
    from cli.json_answers import AdoptedAnswer, LaunchedAnswer, RefusedLaunch
    from client.lost_rollout_sentences import lost_fleet_sentence
    from views.words import count, line, row, table

    async def question(door: Backstop) -> tuple[list[Overview], KeptFleet | None]:
        return await door.lost(), await door.lost_fleet()

    lost, fleet = ask(launching.person, question)
    if lost:
        what = f"Adopt {count(len(lost), 'lost rollout')}?"
        consent(what, lambda: _lost_parts(lost), yes=launching.yes, as_json=launching.as_json)
    answers = adopt_each(launching, lost, launching.overlay.settings)
    taken = [(a, one.shadow) for one, a in answers if not isinstance(a, BackstopError)]
    refused = [(one.cluster, a.message) for one, a in answers if isinstance(a, BackstopError)]
    launched = tuple(LaunchedAnswer.of(answer, shadow=shadow) for answer, shadow in taken)
    why = tuple(RefusedLaunch(cluster=cluster, reason=message) for cluster, message in refused)
    rows = table("CLUSTER", "=STAGE", "~WHAT TO DO")
    for document in launched:
        row(rows, document.cluster, document.stage.value, document.approve or None)
    for cluster, message in refused:
        row(rows, cluster, "not adopted", message, style="red")
    sentence = f"{len(taken)} of {count(len(lost), 'lost rollout')} adopted. No quota changes."
    sentence += f" {_ADOPTED}" if taken else ""
    none = line("No rollout is lost: Temporal runs all that the ledger has open.")
    shown: list[RenderableType] = [rows, line(), line(sentence)] if lost else [none]
    shown += [] if fleet is None else [line((lost_fleet_sentence(fleet), "yellow"))]
    tell(AdoptedAnswer(adopted=launched, refused=why), lambda: shown, as_json=launching.as_json)
    if refused:
        raise typer.Exit(1)


def adopt_fleet(launching: Launching, *, pace: Sequence[str]) -> None:
    """Take over the lost fleet rollout's own rollouts, then continue it as a new one, whose plan waits for an approval.

    Errors: Refusal if none is lost, or if one of its rollouts could not be taken over.
    """
    from cli.commands.fleet_rollout import pace_of
    from cli.output import complain, show_waiting

    async def question(door: Backstop) -> tuple[KeptFleet | None, list[Overview]]:
        kept = await door.lost_fleet()
        return kept, [] if kept is None else [one for one in await door.lost() if one.fleet == kept.fleet]

    kept, lost = ask(launching.person, question)
    if kept is None:
        raise Refusal("no fleet rollout is lost: the ledger has none open, or Temporal runs it")
    launch = _build_takeover(kept, launching, pace_of(kept, pace))
    what = f"Take over fleet rollout {kept.fleet}?"
    consent(what, lambda: _kept_parts(kept, launch, lost), yes=launching.yes, as_json=launching.as_json)
    refused = [
        (one.cluster, a.message) for one, a in adopt_each(launching, lost, kept.policy) if isinstance(a, BackstopError)
    ]
    for cluster, message in refused:
        complain(f"{cluster} was not adopted: {message}")
    if refused:
        raise Refusal(
            f"fleet rollout {kept.fleet} cannot be taken over while {len(refused)} of its rollouts "
            f"{verb_of(len(refused))} lost: try again"
        )
    with show_waiting("planning its clusters"):
        plan = ask(launching.person, lambda door: door.launch_fleet(launch))
    _show_takeover(plan, launch, as_json=launching.as_json)


def adopt_each(
    launching: Launching, lost: Sequence[Overview], policy: dict[str, Any]
) -> list[tuple[Overview, LaunchAnswer | BackstopError]]:
    """Launch a takeover of each; return the answer or error of each."""
    if not lost:
        return []
    return ask(launching.person, lambda door: act_on_each(lost, lambda one: _adopt(door, one, launching, policy)))


async def _adopt(door: Backstop, lost: Overview, launching: Launching, policy: dict[str, Any]) -> LaunchAnswer:
    from client.new_rollout_id import new_rollout_id
    from models.rollout.messages import LaunchRequest

    request = check_model(
        LaunchRequest,
        cluster=lost.cluster,
        rollout=new_rollout_id(lost.cluster),
        owner=launching.owner or lost.owner or launching.person,
        actor=launching.person,
        reason=launching.reason,
        shadow=lost.shadow,
        adopt=True,
        policy=policy,
    )
    return await door.launch(request)


def _build_takeover(kept: KeptFleet, launching: Launching, pace: Pace) -> FleetLaunch:
    from client.new_rollout_id import new_rollout_id
    from models.fleet.messages import FleetLaunch
    from models.fleet.state import Wave

    return check_model(
        FleetLaunch,
        fleet=new_rollout_id("fleet"),
        owner=launching.owner or kept.owner,
        actor=launching.person,
        reason=launching.reason,
        pilots=tuple(sorted(c for c, wave in kept.members.items() if wave is Wave.PILOT)),
        shadow=kept.shadow,
        pace=pace,
        policy={**kept.policy, **launching.overlay.settings},
        kept=kept,
    )


def _lost_parts(lost: Sequence[Overview]) -> list[RenderableType]:
    from views.words import count, line, row, table

    rows = table("CLUSTER", "=STAGE", "OWNER", "ROLLOUT", least=["ROLLOUT"])
    for one in lost:
        row(rows, one.cluster, one.stage, one.owner or None, one.rollout)
    clusters = count(len(lost), "cluster")
    sentence = f"{clusters}. No quota changes. {_ADOPTED}"
    return [rows, line(), line(sentence)]


def _kept_parts(kept: KeptFleet, launch: FleetLaunch, lost: Sequence[Overview]) -> list[RenderableType]:
    from views.fleet_rollout import kept_parts

    return [*([*_lost_parts(lost), ""] if lost else []), *kept_parts(kept, launch)]


def _show_takeover(plan: FleetPlan, launch: FleetLaunch, *, as_json: bool) -> None:
    from cli.commands.fleet_rollout import launched_parts
    from cli.output import show
    from views.fleet_rollout import unknown_lines
    from views.words import line

    assert launch.kept is not None
    if not as_json:
        show(line((f"{launch.kept.fleet} is taken over", "bold"), "; Backstop no longer knows:"))
        show(*unknown_lines(launch.kept), line())
    launched_parts(plan, launch, as_json=as_json)
