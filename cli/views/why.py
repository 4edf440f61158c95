"""Why a team cannot use its quota, as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from cli.output import gpus, line, moment
from models.flex.flex_now import FlexNow
from models.reports.flex_offers import flex_offers
from models.reports.why import TeamWhy, WhyAnswers
from models.rollout.messages import RolloutStatus
from models.rollout.stages import command_line

_ELSEWHERE = 3


def parts(
    answers: WhyAnswers, statuses: Mapping[str, RolloutStatus], flexes: Sequence[FlexNow]
) -> list[RenderableType]:
    """A paragraph for each cluster, and who else could take it."""
    parts: list[RenderableType] = []
    for one in answers.teams:
        parts += [Text()] if parts else []
        parts += _paragraph(one, statuses.get(one.cluster), {f.cluster: f for f in flexes}.get(one.cluster))
    if answers.unanswered:
        parts += [Text(), *(line(f"{why[:1].upper()}{why[1:]}.") for why in answers.unanswered.values())]
    return parts + (_elsewhere(answers.teams, flexes) if flexes else [])


def _elsewhere(teams: Sequence[TeamWhy], flexes: Sequence[FlexNow]) -> list[RenderableType]:
    block = any(one.block for one in teams)
    offers = flex_offers(teams, flexes)
    if not offers:
        what = "a free block of that size" if block else "free GPUs"
        return [Text(), line(f"No other cluster of this GPU model is known to have {what} on flex now.")]
    named = "; ".join(
        f"{o.cluster}{f' ({o.gpu_model})' if o.gpu_model else ''} {'at most ' * o.at_most}{o.gpus}"
        for o in offers[:_ELSEWHERE]
    )
    return [Text(), line(f"Elsewhere flex has free now{', as one block' * block}: {named}.")]


def _paragraph(one: TeamWhy, status: RolloutStatus | None, flex: FlexNow | None) -> list[RenderableType]:
    block = " as one block" if one.block else ""
    asked = "" if one.asked_gpus == one.quota_gpus else f"Of {one.asked_gpus} asked for{block}, "
    could = f"{one.startable_gpus} could start{'' if asked else block} now in quota"
    parts: list[RenderableType] = [
        line(
            (one.team, "bold"),
            f" in {one.cluster} has a quota of {gpus(one.quota_gpus)}. {asked}{could}",
            f"; {one.gap_gpus} of {one.wanted_gpus} are missing:" if one.gap_gpus else ".",
        )
    ]
    parts += [line(f"{r.gpus:>6}  {r.text}.") for r in one.reasons]
    parts += _gate(one)
    if status is not None and not status.stage.ended:
        parts.append(line(_rollout(one, status)))
    if one.over_gpus:
        # What its own quota leaves unused is flex too, and is counted above.
        free = 0 if flex is None else max(0, flex.available_gpus - one.startable_gpus)
        offers = "" if flex is None else f"; flex has {free} free there beside that, junior to every quota"
        parts.append(line(f"{one.over_gpus} more are beyond the quota{offers}."))
    stale = "; that is stale, and nothing newer is known" if one.health_stale else ""
    parts.append(line((f"By its health of {moment(one.health_at)}{stale}.", "yellow" if stale else "dim")))
    return parts


def _gate(one: TeamWhy) -> list[RenderableType]:
    """Who may target the quota, where not everybody may, and whose gate that is."""
    if one.namespaces is None:
        return []
    who = " and ".join((one.team, *one.namespaces))
    if not one.barred:
        return [line(f"Only {who} may target this quota.")]
    opens = "whoever keeps the fleet file can let it in, and flex is open to all"
    return [line((f"Only {who} may target this quota, not {one.barred}: {opens}.", "yellow"))]


def _rollout(one: TeamWhy, status: RolloutStatus) -> str:
    was = next((t.baseline_gpus for t in status.teams if t.team == one.team), one.quota_gpus)
    before = "" if was == one.quota_gpus else f": the quota was {was} before it"
    stands = f"A rollout of {one.cluster} is {status.stage}{before}{_next(status)}"
    return f"{stands}. See `{command_line('status', one.cluster)}`."


def _next(status: RolloutStatus) -> str:
    """What holds it, who has to act, or when its next gate can open by itself: not when it looks next."""
    held = "".join(
        f"; held: {h.kind}, {h.reason}" + (f", until {moment(h.until)}" if h.until is not None else "")
        for h in status.holds
    )
    if status.needs:
        return f"{held}; its owner, {status.owner}, has been asked to act"
    times = [c.until for c in status.waiting_for]
    known = [t for t in times if t is not None]
    if not times or len(known) < len(times):
        return held
    return f"{held}; it can go on at {moment(max(known))}"
