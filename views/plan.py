"""A plan for people: the quotas that are promised, the ceiling, who gives how many GPUs, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from models.base import duration_text, fraction_text
from models.cluster.derived_buffer import Derived
from models.cluster.policy import Basis, Tier
from models.cluster.quota import Quota, gate_text
from models.cluster.team_work import TeamWork
from models.planning.ceiling import after_buffer
from models.planning.cut_reasons import ShortIslands, no_room_text
from models.planning.plan import Cut, Plan, QuotaPlan
from models.texts import verb_of
from views.layout import Grid
from views.words import count, gpus, indent, line, moment, row, span, table

_COUNT_OR_NAMES = re.compile(r"\([^()]*\)|(?<![\w.:/-])\d{4,15}(?![\w.:/-])")
"""A count in a cut's reason; brackets there hold islands' names, whose digits stay as they are."""


def in_order(plans: Iterable[Plan]) -> list[Plan]:
    """Sort plans as a rollout visits them: by wave, then the largest healthy headroom, then the name.

    Plans that no tier limit would mend come after all waves.
    """
    return sorted(plans, key=lambda p: p.place)


def plan_parts(plan: Plan, now: datetime | None = None) -> list[RenderableType]:
    """Return one plan in full. `now`: the time by which its health is old; None: the clock's."""
    now = now or datetime.now(UTC)
    parts: list[RenderableType] = [
        line(
            (plan.cluster, "bold"),
            f": {gpus(plan.total_gpus)} installed, {plan.healthy_gpus:,} healthy, "
            f"{plan.assigned_gpus:,} promised; {_ceiling(plan)}",
        ),
        *([] if plan.derived is None else [line(f"Buffer for {_terms_text(plan.derived)}: {plan.derived.text}.")]),
        _what(plan),
        *([line((f"{_old_health(plan, now)}.", "yellow"))] if plan.is_stale(now) else []),
        _verdict(plan, now),
    ]
    if plan.quotas:
        parts += [Text(), _diff(plan), *_whose_phantom(plan), *_runs_on(plan), *gates(plan.quotas)]
    work = {one.team: one for one in plan.work}
    why = [
        line(
            (f"{quota.team}, {cut.gpus:,} {cut.tier}", "bold"),
            f": {_group_digits(cut.reason, plan.cluster)}.",
            _describe_standing(work, quota, cut),
        )
        for quota in plan.quotas
        for cut in quota.cuts
    ]
    if why:
        parts += [Text(), Text("Why"), *indent(why)]
    if plan.advice:
        parts += [Text(), line(f"{plan.advice} (docs/flex.md, Classes).")]
    wave = "after all waves" if plan.why_last else f"wave {plan.wave}"
    health = "" if plan.health_at is None else f", health: {moment(plan.health_at)}"
    return [*parts, Text(), line(f"Plan {plan.hash}, {wave}, usage: {plan.usage_from}{health}")]


def _old_health(plan: Plan, now: datetime) -> str:
    """Say that the plan's health is too old to open a gate."""
    assert plan.health_at is not None
    assert plan.stale_after is not None
    age, stale = span(now - plan.health_at), duration_text(plan.stale_after)
    return (
        f"The newest health sample of {plan.cluster} is {age} old ({moment(plan.health_at)}) and stale: the limit is "
        f"{stale}. No gate opens until a newer one arrives"
    )


def _describe_standing(work: Mapping[str, TeamWork], quota: QuotaPlan, cut: Cut) -> str:
    """Say which class's jobs hold the GPUs in use that are cut, where that is known."""
    own = work.get(quota.team) if quota.leaf and cut.tier is Tier.BUSY else None
    under = "" if own is None else own.yielding_text(cut.gpus)
    return f" {under[0].upper()}{under[1:]}." if under else ""


def plans_parts(plans: Sequence[Plan], now: datetime | None = None) -> list[RenderableType]:
    """Return a line for each plan. `now`: health is old by it; None: the clock."""
    now = now or datetime.now(UTC)
    rows = table(
        *("CLUSTER", "=WAVE", ">HEALTHY", ">PROMISED", ">CEILING", ">CUT", ">PHANTOM", ">TO FLEX", "="),
        least=("CEILING", "HEALTHY", "PROMISED", "TO FLEX"),
    )
    for plan in plans:
        row(
            rows,
            plan.cluster,
            plan.wave_name,
            f"{plan.healthy_gpus}/{plan.total_gpus}",
            plan.assigned_gpus,
            plan.ceiling_gpus,
            plan.cut_gpus,
            plan.phantom_gpus,
            plan.to_flex_gpus,
            _short_verdict(plan, now),
            style="" if not plan.fault and not plan.short_by_gpus and not plan.is_stale(now) else "yellow",
        )
    cut, phantom, flex = (
        sum(getattr(p, field) for p in plans) for field in ("cut_gpus", "phantom_gpus", "to_flex_gpus")
    )
    late = [line((p.cluster, "bold"), f" comes after all waves: {p.why_last}.") for p in plans if p.why_last]
    parts = f"{phantom:,} {verb_of(phantom)} phantom, {flex:,} {verb_of(flex, 'moves', 'move')} to flex"
    total = f"{count(len(plans), 'cluster')}; {gpus(cut)} cut: {parts}."
    old = [line(f"{_old_health(p, now)}.") for p in plans if p.is_stale(now)]
    if len(old) > _NAMED:
        old = [*old[:_NAMED], line(f"The health of {count(len(old) - _NAMED, 'more cluster')} is stale too.")]
    return [rows, *([Text(), *late, *old] if late or old else []), Text(), line(total)]


def _short_verdict(plan: Plan, now: datetime) -> str:
    if not plan.honest:
        return "cannot promise"
    old = "stale health" if plan.is_stale(now) else ""
    short = f"short {plan.short_by_gpus:,}" if plan.short_by_gpus else ""
    return ", ".join(part for part in (old, "" if plan.backed else "not backed", short) if part) or "ok"


def _ceiling(plan: Plan) -> str:
    if not plan.healthy_gpus:
        return "none may be promised, because no GPU is healthy"
    by_buffer = after_buffer(plan.total_gpus if plan.basis is Basis.TOTAL else plan.healthy_gpus, plan.buffer)
    if plan.honest and plan.ceiling_gpus < by_buffer:
        spare = plan.healthy_gpus - plan.ceiling_gpus
        kept = f"{count(spare, 'healthy GPU')} {'stays' if spare == 1 else 'stay'} spare"
        kept = kept if spare else f"no more {'is' if plan.healthy_gpus == 1 else 'are'} healthy"
        return f"at most {plan.ceiling_gpus:,} may be promised ({kept}; the buffer alone would allow {by_buffer:,})"
    if plan.derived is not None:
        return f"at most {plan.ceiling_gpus:,} may be promised (buffer {plan.derived.needed}, from its health history)"
    return f"at most {plan.ceiling_gpus:,} may be promised (buffer {fraction_text(plan.buffer)} of {plan.basis})"


def _group_digits(reason: str, cluster: str) -> str:
    """Return a cut's reason with its digits in groups; names stay. The plan's hash covers the reason without."""
    return f"; {cluster} has ".join(
        _COUNT_OR_NAMES.sub(lambda match: match[0] if match[0].startswith("(") else f"{int(match[0]):,}", part)
        for part in reason.split(f"; {cluster} has ")
    )


def _terms_text(derived: Derived) -> str:
    return f"{float(100 * derived.terms.target):g}% of the hours of {duration_text(derived.terms.horizon)}"


def _what(plan: Plan) -> Text:
    if not plan.haircut_gpus:
        return line("Nothing is cut: enough capacity is outside quotas to cover the buffer.")
    what = (
        f"Cut {plan.cut_gpus:,} of a haircut of {gpus(plan.haircut_gpus)}"
        if plan.short_by_gpus
        else f"Cut {gpus(plan.cut_gpus)}"
    )
    return line(
        (what, "bold"),
        f": {plan.phantom_gpus:,} {verb_of(plan.phantom_gpus)} phantom (without a healthy GPU now), "
        f"{plan.to_flex_gpus:,} {verb_of(plan.to_flex_gpus, 'moves', 'move')} to flex and "
        f"{verb_of(plan.to_flex_gpus, 'stays', 'stay')} usable.",
    )


def _verdict(plan: Plan, now: datetime) -> Text:
    """Say whether the plan suffices, and if not, what would."""
    if not plan.honest:
        return line(
            ("Nothing can be promised", "yellow"),
            ". Such a plan cannot be launched: give a buffer yourself (--buffer), or wait for better health.",
        )
    old = plan.is_stale(now)
    backed = "every promised GPU has a healthy one behind it"
    if plan.backed and not plan.short_by_gpus:
        if old:
            return line(
                ("Backed at that time", "yellow"),
                f": by that sample, with this plan {backed}; whether that still holds is unknown.",
            )
        return line(("Backed", "green"), f": with this plan {backed}.")
    faults = []
    if plan.short_by_gpus:
        left, fits = plan.assigned_gpus - plan.cut_gpus, plan.assigned_gpus - plan.haircut_gpus
        faults.append(
            f"short by {gpus(plan.short_by_gpus)}: the plan leaves {left:,} promised, but only {fits:,} can be"
        )
    if plan.backed:
        faults.append(f"backed nevertheless{', by that sample' if old else ''}: {backed}")
    elif lacks := _lacks(plan):
        faults.append(f"not backed: {'; '.join(lacks)}")
    faults += [no_room_text(team, size) for team, size in plan.unplaced_blocks]
    sentence = "; ".join(faults)
    return line((sentence[:1].upper() + sentence[1:], "yellow"), f". {_remedy(plan)}")


def _lacks(plan: Plan) -> list[str]:
    """Say which promises have no healthy GPU, apart from blocks."""
    lacks = [f"{gpus(plan.unbacked_gpus)} would still be phantom"] if plan.unbacked_gpus else []
    values = plan.values
    for team, able in plan.out_of_reach[:_NAMED]:
        are = "is" if able == 1 else "are"
        where = f"on the islands that {team} may use"
        lacks.append(f"only {gpus(able)} {are} healthy {where}, but its quota is {values[team]:,}")
    more = len(plan.out_of_reach) - _NAMED
    lacks += [f"and {count(more, 'more quota')} like that"] * (more > 0)
    return [*lacks, *map(_describe_short_islands, plan.short_islands[:_NAMED])]


def _describe_short_islands(short: ShortIslands) -> str:
    """Say which islands have too few healthy GPUs, however many the cluster has."""
    one = len(short.islands) == 1
    what, have = ("island", "has") if one else ("islands", "have")
    names = ", ".join(short.islands)
    healthy = count(short.healthy_gpus, "healthy GPU")
    return f"{what} {names} {have} {healthy}, but {short.promised_gpus:,} would be promised there"


_NAMED = 3
"""The most out-of-reach quotas that a sentence names."""


def _remedy(plan: Plan) -> str:
    if plan.suffices is not None:
        return f"The first tier that suffices is {plan.suffices}: --max-tier {plan.suffices}."
    launch = "" if plan.backed else " Such a plan cannot be launched."
    why = ": minimums and protected blocks keep the rest from being cut" if plan.short_by_gpus else ""
    return f"No tier suffices{why}.{launch}"


_TIERS = (Tier.UNSCHEDULED, Tier.IDLE, Tier.BUSY)


def gates(quotas: Iterable[Quota | QuotaPlan]) -> list[RenderableType]:
    """Say who may target each quota that is not open to everybody."""
    return [
        line(f"Only {gate_text(quota.team, quota.namespaces)} may target the quota of {quota.team}.")
        for quota in quotas
        if quota.namespaces is not None
    ]


def _whose_phantom(plan: Plan) -> list[RenderableType]:
    """Say that a cut's phantom part is not its quota's missing backing: these are two divisions.

    Source: docs/design.md, "Backing" and "The cut ladder".
    """
    if not plan.phantom_gpus or sum(quota.leaf for quota in plan.quotas) < 2:
        return []
    parts = (
        "PHANTOM and TO FLEX are the two parts of each cut. The cluster's phantom GPUs are divided in proportion to the"
    )
    lacks = "cuts, so a team's PHANTOM is not what its own quota lacks today: `backstop status` shows that."
    return [line((f"{parts} {lacks}", "dim"))]


def _runs_on(plan: Plan) -> list[RenderableType]:
    """Say that more GPUs in use are cut than flex gains, which counts healthy GPUs. Unknown use counts as use."""
    busy = sum(cut.gpus for quota in plan.quotas if quota.leaf for cut in quota.cuts if cut.tier is Tier.BUSY)
    if busy <= plan.to_flex_gpus:
        return []
    use = f"{gpus(busy)} counted as in use {'is' if busy == 1 else 'are'} cut, and flex gains {plan.to_flex_gpus:,}"
    rest = "jobs above their quota may use this flex and unused quota; if both are too small, some jobs are preempted"
    return [line((f"{use}: {rest}.", "dim"))]


def _diff(plan: Plan) -> Grid:
    tiers = [t.upper() for t in _TIERS]  # the reasons below have them too
    columns = ("TEAM", ">QUOTA", ">PLAN", ">CUT", ">PHANTOM", ">TO FLEX", *(f">{tier}" for tier in tiers))
    rows = table(*columns, least=tiers)
    for quota in plan.quotas:
        by_tier = {cut.tier: cut.gpus for cut in quota.cuts}
        row(
            rows,
            quota.team if quota.leaf else f"{quota.team} (parent)",
            quota.before_gpus,
            quota.after_gpus,
            quota.cut_gpus,
            quota.phantom_gpus,
            quota.to_flex_gpus,
            *(by_tier.get(t, 0) for t in _TIERS),
            style="" if quota.cut_gpus else "dim",
        )
    return rows
