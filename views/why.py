"""The reasons why a team cannot use its quota, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from models.cluster.quota import gate_text
from models.reports.flex_offers import FlexThere, flex_offers
from models.reports.why import Cause, Reason, TeamWhy, WhyAnswers
from models.rollout.stages import command_line
from models.rollout.status_models import RolloutStatus
from models.texts import some_of, verb_of
from views.words import count, gpus, indent, line, moment, space_name

_ELSEWHERE = 3


def summary(answers: WhyAnswers, flexes: Sequence[FlexThere], *, hint: bool) -> list[RenderableType]:
    """Return two lines: what could start now, and what keeps the most of the rest, or where else there is room.

    `hint`: add that there is more to read.
    """
    teams = answers.teams
    reasons = [(reason, one) for one in teams for reason in one.reasons]
    beyond = max(one.over_gpus for one in teams)
    if reasons:
        kept = _most(reasons, many=len(teams) > 1)
    elif not any(one.quota_gpus for one in teams):
        kept = "No job can start inside a quota of 0 GPUs: `backstop request` asks for more."
    else:
        there = f" in {some_of([t.cluster for t in teams], _ELSEWHERE)}" if answers.unanswered else ""
        kept = f"Nothing keeps jobs from starting{' inside the quota' if beyond else ''}{there}."
    freed = next((f" What would free it: {t.weaker.text}." for t in teams if t.weaker is not None), "")
    offers = flex_offers(teams, flexes) if reasons or beyond else ()
    free = "".join(f" Flex has {'at most ' * o.at_most}{gpus(o.gpus)} free in {o.cluster}." for o in offers[:1])
    more = max(0, len(reasons) - 1)
    more_text = f" {count(more, 'more reason')}{'' if answers.unanswered else ': see --all'}." if hint and more else ""
    unknown = ""
    if answers.unanswered:
        left_out, why = sorted(answers.unanswered), ": --all says why" if hint else ""
        unknown = f" {some_of(left_out, _ELSEWHERE)} {verb_of(len(left_out))} not counted{why}."
    return [line((_could(teams), "bold")), line(kept, freed, free, more_text, (unknown, "yellow"))]


def _most(reasons: Sequence[tuple[Reason, TeamWhy]], *, many: bool) -> str:
    """Return the reason that keeps the most GPUs: a bar or a shortage, where there is one; else its own jobs."""
    bar = next(((reason, one) for reason, one in reasons if reason.cause is Cause.BARRED), None)
    if bar is not None and (not many or all(one.barred for _, one in reasons)):
        return f"None of it can start: {bar[0].text}."
    short = [(reason, one) for reason, one in reasons if not reason.cause.own and one.short_gpus]
    most, one = max(short or reasons, key=lambda pair: pair[0].gpus)
    where = f" in {one.cluster}" if many else ""
    if short:
        what = "The cause" if len(reasons) == 1 else "The main cause"
        return f"{what}, for {gpus(most.gpus)}{where}: {most.text}."
    if not one.use_known:
        return f"{gpus(most.gpus)} {verb_of(most.gpus, 'counts', 'count')} as used{where}: {most.text}."
    return f"{gpus(most.gpus)} {verb_of(most.gpus)} used{where}: {most.text}."


def _could(teams: Sequence[TeamWhy]) -> str:
    """Say how much was asked for, how much could start now, and where. Each cluster is asked for all of it."""
    first, start = teams[0], sum(t.startable_gpus for t in teams)
    block = " as one block" if first.block else ""
    where = f"in {first.cluster}" if len(teams) == 1 else f"in {len(teams)} clusters"
    if all(one.asked_gpus == one.quota_gpus for one in teams):
        quota = gpus(sum(t.quota_gpus for t in teams))
        each = " in each" if first.block and len(teams) > 1 else ""
        could = f"{_held_text(teams, first=True)}, {start:,} more could start now{block}{each}"
        return f"{first.team} has a quota of {quota} {where}: {could}, and {_short(teams)}."
    if len(teams) == 1:
        rest = [_held_text(teams)] if first.held_gpus else []
        rest += [_short(teams)] if first.short_gpus else []
        rest += [f"{first.over_gpus:,} {verb_of(first.over_gpus)} beyond the quota"] if first.over_gpus else []
        of = "; " + " and ".join([", ".join(rest[:-1]), rest[-1]] if rest[1:] else rest) if rest else ""
        asked = f"Of {gpus(first.asked_gpus)} asked for {where}{block}"
        return f"{asked}, {start:,} could start now in {first.team}'s quota{of}."
    best = max(teams, key=lambda one: one.startable_gpus)
    asked = f"Of {gpus(first.asked_gpus)} asked for{block}, at most {best.startable_gpus:,} could start now in quota"
    return f"{asked}, in {best.cluster} ({first.team} has quota {where})."


def _held_text(teams: Sequence[TeamWhy], *, first: bool = False) -> str:
    """Say what its own jobs hold, or count as holding where their use is unknown."""
    held, silent = sum(t.held_gpus for t in teams), [t for t in teams if not t.use_known]
    if not silent:
        return f"its own jobs hold {held:,} of it" if first else f"{held:,} {verb_of(held)} held by its own jobs"
    where = "" if len(silent) == len(teams) else f" in {count(len(silent), 'cluster')}"
    return f"{held:,} {verb_of(held, 'counts', 'count')} as used (it is unknown what its jobs hold{where})"


def _short(teams: Sequence[TeamWhy]) -> str:
    short = sum(t.short_gpus for t in teams)
    return f"{short:,} {verb_of(short)} short"


def in_full(
    answers: WhyAnswers, statuses: Mapping[str, RolloutStatus], flexes: Sequence[FlexThere]
) -> list[RenderableType]:
    """Return a paragraph for each cluster, and where else the GPUs could come from."""
    parts: list[RenderableType] = []
    flex_of = {flex.cluster: flex for flex in flexes}
    for one in answers.teams:
        parts += [Text()] if parts else []
        parts += _paragraph(one, statuses.get(one.cluster), flex_of.get(one.cluster))
    if answers.unanswered:
        parts += [Text(), *(line(f"{why[:1].upper()}{why[1:]}.") for why in answers.unanswered.values())]
    return parts + (_elsewhere(answers.teams, flexes) if flexes else [])


def _elsewhere(teams: Sequence[TeamWhy], flexes: Sequence[FlexThere]) -> list[RenderableType]:
    block = any(one.block for one in teams)
    offers = flex_offers(teams, flexes)
    if not offers:
        what = "a free block of that size" if block else "free GPUs"
        return [Text(), line(f"No other cluster of this GPU model is known to have {what} on flex now.")]
    named = "; ".join(
        f"{'at most ' * o.at_most}{gpus(o.gpus)} in {o.cluster}{f' ({o.gpu_model})' if o.gpu_model else ''}"
        for o in offers[:_ELSEWHERE]
    )
    return [Text(), line(f"Free flex elsewhere{' as one block' * block}: {named}.")]


def _paragraph(one: TeamWhy, status: RolloutStatus | None, flex: FlexThere | None) -> list[RenderableType]:
    block = " as one block" if one.block else ""
    has = f" in {one.cluster} has a quota of {gpus(one.quota_gpus)}"
    could = f"{one.startable_gpus:,}{'' if one.wanted_gpus != one.quota_gpus else ' more'} could start now{block}"
    if one.wanted_gpus == one.quota_gpus:
        sums = f": {_held_text([one], first=True)}, {could}, and {_short([one])}."
    elif one.gap_gpus:
        rest = [could, *([_held_text([one])] if one.held_gpus else []), *([_short([one])] if one.short_gpus else [])]
        sums = f". Of the {gpus(one.wanted_gpus)} asked about, {', '.join(rest[:-1])} and {rest[-1]}."
    else:
        sums = f". Of the {gpus(one.wanted_gpus)} asked about, {could}."
    parts: list[RenderableType] = [line((one.team, "bold"), has, sums)]
    parts += indent(line(_reason_text(reason, one)) for reason in one.reasons)
    if one.weaker is not None:
        parts.append(line(f"What would free it: {one.weaker.text}."))
    parts += _gate(one)
    if status is not None and not status.stage.has_ended:
        parts.append(line(_rollout(one, status)))
    if one.over_gpus:
        # What its own quota leaves unused is flex too, and is counted above.
        free = 0 if flex is None else max(0, flex.available_gpus - one.startable_gpus)
        there = f"; flex has {free:,} more free there, until jobs inside a quota need {'it' if free == 1 else 'them'}"
        offers = "" if flex is None else there if free else "; flex has nothing free there"
        parts.append(line(f"{one.over_gpus:,} more {verb_of(one.over_gpus)} beyond the quota{offers}."))
    stale = "; that is stale, and nothing newer is known" if one.health_stale else ""
    parts.append(
        line((f"Based on the cluster's health of {moment(one.health_at)}{stale}.", "yellow" if stale else "dim"))
    )
    return parts


def _reason_text(reason: Reason, one: TeamWhy) -> str:
    """Say how many GPUs are used or short, and why. Jobs may hold GPUs on which they could not start again."""
    number, cause = reason.gpus, reason.cause
    if cause.own and not one.use_known:
        what = "counts as used" if number == 1 else "count as used"
    elif cause.own:
        what = f"{verb_of(number)} {'idle' if cause is Cause.IDLE else 'used'}"
    elif sum(reason.gpus for reason in one.reasons if not reason.cause.own) == one.short_gpus:
        what = f"{verb_of(number)} short"
    elif not one.short_gpus:  # all of it is among what is used
        held = "what its own jobs hold" if one.use_known else "what counts as used"
        what = f"of {held} could not start anew"
    else:
        what = "could not start anew"
    return f"{number:,} {what}: {reason.text}."


def _gate(one: TeamWhy) -> list[RenderableType]:
    """Say who may target the quota, where not everybody may, and who can change that."""
    if one.namespaces is None:
        return []
    who = gate_text(one.team, one.namespaces)
    if not one.barred:
        return [line(f"Only {who} may target this quota.")]
    opens = f"a change of the fleet file can allow {one.barred}, and flex is open to all"
    return [line((f"Only {who} may target this quota, not {one.barred}: {opens}.", "yellow"))]


def _rollout(one: TeamWhy, status: RolloutStatus) -> str:
    was = next((t.baseline_gpus for t in status.teams if t.team == one.team), one.quota_gpus)
    before = "" if was == one.quota_gpus else f": without it the quota would be {was:,}"
    kind = "A rehearsal (shadow: nothing is written)" if status.shadow else "A rollout"
    stands = f"{kind} of {one.cluster} is {space_name(status.stage)}{before}{_next(status)}"
    return f"{stands}. See `{command_line('status', one.cluster)}`."


def _next(status: RolloutStatus) -> str:
    """Say what holds the rollout, who has to act, or when its next gate can open by itself."""
    held = "".join(
        f"; held: {space_name(h.kind)}, {h.reason}" + (f", until {moment(h.until)}" if h.until is not None else "")
        for h in status.holds
    )
    if status.needs:
        return f"{held}; it waits for a person: ask its owner, {status.owner}"
    times = [c.until for c in status.waiting_for]
    opening_times = [t for t in times if t is not None]
    if not times or len(opening_times) < len(times):
        return held
    return f"{held}; it can go on at {moment(max(opening_times))}"
