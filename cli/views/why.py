"""Why a team cannot use its quota, as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from cli.output import count, gpus, line, moment
from models.base import some_of
from models.flex.flex_now import FlexNow
from models.reports.flex_offers import flex_offers
from models.reports.why import TeamWhy, WhyAnswers
from models.rollout.messages import RolloutStatus
from models.rollout.stages import command_line

_ELSEWHERE = 3


def summary(answers: WhyAnswers, flexes: Sequence[FlexNow], *, hint: bool) -> list[RenderableType]:
    """Two lines: what could start now, and what keeps the most of the rest, or where else there is room.

    `hint`: that there is more to read.
    """
    teams = answers.teams
    reasons = [(reason, one) for one in teams for reason in one.reasons]
    beyond = max(one.over_gpus for one in teams)
    if reasons:
        most, one = max(reasons, key=lambda pair: pair[0].gpus)
        where = f" in {one.cluster}" if len(teams) > 1 else ""
        kept = f"{'The most' if len(reasons) > 1 else 'All'} of it, {most.gpus}{where}: {most.text}."
    else:
        there = f" in {some_of([t.cluster for t in teams], _ELSEWHERE)}" if answers.unanswered else ""
        kept = f"{beyond} more {_are(beyond)} beyond the quota." if beyond else f"Nothing is in the way{there}."
    freed = next((f" What would free it: {t.weaker.text}." for t in teams if t.weaker is not None), "")
    offers = flex_offers(teams, flexes) if reasons or beyond else ()
    free = "".join(f" Flex has {'at most ' * o.at_most}{o.gpus} free in {o.cluster}." for o in offers[:1])
    more = max(0, len(reasons) - 1)
    said = f" {count(more, 'reason')} more{'' if answers.unanswered else ': --all'}." if hint and more else ""
    unknown = ""
    if answers.unanswered:
        unknown = f" Nothing is known of {some_of(sorted(answers.unanswered), _ELSEWHERE)}{': --all' if hint else ''}."
    return [line((_could(teams), "bold")), line(kept, freed, free, said, (unknown, "yellow"))]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _could(teams: Sequence[TeamWhy]) -> str:
    """What is asked for, how much of it could start now, and where. Of several clusters each is asked for all of it."""
    first, missing, start = teams[0], sum(t.gap_gpus for t in teams), sum(t.startable_gpus for t in teams)
    block = " as one block" if first.block else ""
    where = f"in {first.cluster}" if len(teams) == 1 else f"in {len(teams)} clusters"
    if all(one.asked_gpus == one.quota_gpus for one in teams):
        lacks = f"{missing} {_are(missing)} missing" if missing else "nothing is missing"
        quota = gpus(sum(t.quota_gpus for t in teams))
        return f"Of {first.team}'s quota of {quota} {where}, {start} could start now{block}; {lacks}."
    if len(teams) == 1:
        of = f"{missing} of {first.wanted_gpus} {_are(missing)} missing" if missing else "nothing of it is missing"
        return f"Of {first.asked_gpus} asked for {where}{block}, {start} could start now in {first.team}'s quota; {of}."
    best = max(teams, key=lambda one: one.startable_gpus)
    asked = f"Of {first.asked_gpus} asked for{block}, at most {best.startable_gpus} could start now in quota"
    return f"{asked}, in {best.cluster} ({first.team} has quota {where})."


def in_full(
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
    if one.weaker is not None:
        parts.append(line(f"What would free it: {one.weaker.text}."))
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
