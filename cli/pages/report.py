"""The weekly report as one self-contained HTML page that a leader reads in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cli.pages.charts import (
    BACKED,
    BAD,
    FLEX,
    INK,
    PHANTOM,
    axes,
    name_bars,
    render_page,
    short_name,
    style,
    svg,
)
from models.reports.milestones import MilestoneStanding, State
from models.reports.tallies import of_same
from models.reports.weekly import Week
from models.texts import verb_of
from views.report import MOST, Section, emergencies, every_cluster, lead, numbers, sections, title
from views.words import count, number

_DATES: Any = dates  # it comes without types
_STATES = {State.DONE: FLEX, State.ON_TRACK: BACKED, State.BEHIND: BAD, State.UNKNOWN: PHANTOM}


def page(week: Week) -> str:
    """Return the report as HTML."""
    with style():
        parts = [_part(section, week) for section in sections(week)]
        curve = _curve(week)
    return render_page(
        "report.html",
        title=title(week),
        made_at=f"{week.until:%Y-%m-%d %H:%M} UTC, {count(week.clusters, 'cluster')}",
        alone=emergencies(week),
        lead=lead(week),
        numbers=[n._asdict() for n in numbers(week)],
        curve=curve,
        parts=parts,
        every=every_cluster(week),
    )


def _part(section: Section, week: Week) -> dict[str, Any]:
    figure = None
    if section.title == "Milestones":
        figure = _milestones(week.milestones)
    elif section.title.startswith("Did it help"):
        figure = _outcome(week)
    return {**section._asdict(), "note": section.note.replace("`", ""), "figure": figure}


def _curve(week: Week) -> dict[str, str] | None:
    """Draw promised, healthy and phantom GPUs over time. None: fewer than two points are known."""
    points = [p for p in week.points if p.known]
    if len(points) < 2:
        return None
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    above, plot = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
    above.margins(y=0.15)
    stretches = of_same(points)
    for n, stretch in enumerate(stretches):
        times = [float(_DATES.date2num(p.at)) for p in stretch]
        style_of = {"lw": 1.6, "marker": "o" if len(stretch) == 1 else "", "ms": 3}
        named_once = (lambda label: label) if n == 0 else (lambda _: None)
        above.plot(times, [p.promised_gpus for p in stretch], color=INK, label=named_once("promised"), **style_of)
        above.plot(times, [p.healthy_gpus for p in stretch], color=FLEX, label=named_once("healthy"), **style_of)
        plot.fill_between(
            times,
            [p.phantom_gpus for p in stretch],
            color=PHANTOM,
            label=named_once("phantom: promised without a healthy GPU"),
        )
        waits = [(t, p.lacking_gpus) for t, p in zip(times, stretch, strict=True) if p.lacking_gpus is not None]
        if waits:
            label = named_once("jobs inside a quota wait for")
            plot.plot(*zip(*waits, strict=True), color=BAD, label=label, **style_of)
    plot.set_ylim(bottom=0)
    for each in (above, plot):
        each.set(ylabel="GPUs")
        each.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        each.yaxis.set_major_formatter("{x:,.0f}")
    locator = _DATES.AutoDateLocator(maxticks=9)
    plot.xaxis.set_major_locator(locator)
    plot.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    first, last = stretches[-1][0], stretches[-1][-1]
    went = (
        f"Phantom GPUs went from {number(first.phantom_gpus)} on {first.at:%d %B %H:%MZ} "
        f"to {number(last.phantom_gpus)} on "
        if first is not last
        else f"Phantom GPUs were {number(last.phantom_gpus)} on "
    )
    were = verb_of(last.promised_gpus, "was", "were")
    there = f"{number(last.promised_gpus)} {were} promised and {number(last.healthy_gpus)} healthy"
    says = f"{went}{last.at:%d %B %H:%MZ}, when {there}."
    if len(stretches) > 1:
        says += " Where the line breaks, clusters with known health came or went: earlier figures count other clusters."
    return {"svg": svg(figure), "says": says}


def _milestones(standings: Sequence[MilestoneStanding]) -> dict[str, str] | None:
    """Draw each milestone's number as a bar on its own scale, which begins at 0; its target and its line are marks."""
    shown = [standing for standing in standings if standing.number is not None and standing.started_from is not None][
        :MOST
    ]
    if not shown:
        return None
    figure, plot = axes(height=0.9 + 0.34 * len(shown))
    places = list(range(len(shown)))
    name_bars(plot.barh(places, [100] * len(shown), color="#f0f3f6", height=0.55), "scale")
    numbers = [_on_scale(standing, standing.number or 0) for standing in shown]
    name_bars(
        plot.barh(places, numbers, color=[_STATES[standing.state] for standing in shown], height=0.55), "milestone"
    )
    lines = [
        (_on_scale(standing, standing.expected), n) for n, standing in enumerate(shown) if standing.expected is not None
    ]
    plot.plot([x for x, _ in lines], [y for _, y in lines], "|", color=INK, ms=13, mew=2)
    targets = [_on_scale(standing, standing.milestone.target) for standing in shown]
    plot.plot(targets, places, "D", color=INK, ms=5, clip_on=False)
    for place, standing in zip(places, shown, strict=True):
        joined = ", target" if standing.milestone.falls else " of"
        label = f"{number(standing.number or 0)}{joined} {number(standing.milestone.target)}: {standing.state.value}"
        plot.annotate(label, (100, place), xytext=(6, 0), textcoords="offset points", va="center")
    plot.set_yticks(places, [short_name(standing.milestone.name) for standing in shown])
    plot.invert_yaxis()
    plot.set_xlim(0, 140)
    plot.set_xticks([])
    plot.spines["bottom"].set_visible(False)
    states = [standing.state for standing in standings]
    says = (
        f"{states.count(State.DONE)} done, {states.count(State.ON_TRACK)} on track, {states.count(State.BEHIND)} behind"
        f"{f', {states.count(State.UNKNOWN)} not known' if State.UNKNOWN in states else ''}. Each bar is the "
        "number, on a scale from 0. A diamond marks the target, a stroke the number that would be on track today."
    )
    return {"svg": svg(figure), "says": says}


def _on_scale(standing: MilestoneStanding, number: int) -> float:
    """Return the number in per cent of the largest one that its bar has to show."""
    most = max(standing.milestone.target, standing.number or 0, standing.expected or 0, standing.started_from or 0)
    return 100.0 * number / most if most else 0.0


_Change = tuple[str, float, float]
"""A cluster, and its mean GPUs before and after."""


def _outcome(week: Week) -> dict[str, str] | None:
    """Draw before and after, cluster by cluster: waiting GPUs where they are known, else phantom ones."""
    both = [o.before for o in week.outcomes if o.before is not None and o.after is not None]
    asked = any(before.lacking_gpus is not None for before in both)
    changes = _changes(week, "lacking_gpus" if asked else "phantom_gpus")
    if not changes:
        return None
    ranked = sorted(changes, key=lambda row: (-max(row[1], row[2]), row[0]))[:MOST]
    figure = _bars(ranked, "GPUs that jobs inside a quota wait for (mean)" if asked else "phantom GPUs (mean)")
    was, now = sum(before for _, before, _ in changes), sum(after for _, _, after in changes)
    rest = f" The plot shows the {len(ranked)} largest." if len(changes) > len(ranked) else ""
    of = "GPUs that jobs waited for" if asked else "phantom GPUs"
    says = f"In {count(len(changes), 'cluster')}, the mean number of {of} went from {was:,.1f} to {now:,.1f}.{rest}"
    return {"svg": svg(figure), "says": says}


def _changes(week: Week, what: str) -> list[_Change]:
    """Return the change in each cluster where both numbers are known."""
    rows = [(o.cluster, getattr(o.before, what, None), getattr(o.after, what, None)) for o in week.outcomes]
    return [(name, before, after) for name, before, after in rows if before is not None and after is not None]


def _bars(changes: Sequence[_Change], words: str) -> Figure:
    figure, plot = axes(height=1.1 + 0.42 * len(changes))
    places = range(len(changes))
    for name, by, color, values in (
        ("before", -0.19, PHANTOM, [before for _, before, _ in changes]),
        ("after", 0.19, FLEX, [after for _, _, after in changes]),
    ):
        bars = plot.barh([p + by for p in places], values, height=0.36, color=color, label=name)
        plot.bar_label(
            name_bars(bars, name), [f"{value:,.1f}".removesuffix(".0") for value in values], padding=3, fontsize=8
        )
    plot.set_yticks(list(places), [short_name(name) for name, _, _ in changes])
    plot.invert_yaxis()
    plot.margins(y=0.02)
    plot.set_xlim(left=0)
    plot.set(xlabel=words)
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    return figure
