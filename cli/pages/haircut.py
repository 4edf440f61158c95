"""A haircut report as one self-contained HTML page that a leader reads in a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.ticker import MaxNLocator

from cli.pages.charts import BACKED, FLEX, INK, PHANTOM, axes, render_page, share, short_name, style, svg
from models.planning.fleet_haircut import Haircut, Part, TeamPart
from models.texts import verb_of
from views.haircut import percent, rows_of, sentence
from views.words import clean, count, number

_MOST = 20
"""The most clusters or teams in one plot or table; the CSV has all."""


def page(haircut: Haircut, at: int) -> str:
    """Return the report as HTML; `at`: the buffer that it explains."""
    fleet = haircut.fleet[at]
    works = haircut.works[at] if haircut.works else ()
    with style():
        figures = [_buffers(haircut, at), _clusters(haircut, at), _waves(haircut, at)]
    return render_page(
        "haircut.html",
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        clusters=count(fleet.clusters, "cluster"),
        sentence=sentence(haircut, at),
        numbers=[
            {
                "value": number(fleet.cut_gpus),
                "text": f"{verb_of(fleet.cut_gpus, 'GPU', 'GPUs')} cut at {percent(haircut.buffers[at])}",
            },
            {"value": share(fleet.phantom_gpus, fleet.cut_gpus), "text": "of them without a healthy GPU now"},
            {"value": number(fleet.to_flex_gpus), "text": _to_flex(fleet.to_flex_gpus)},
            {"value": number(fleet.unbacked_gpus), "text": _unbacked_text(fleet.unbacked_gpus)},
        ],
        figures=figures,
        works=[clean(cut.text) for cut in works[:_MOST]],
        more=f"And {len(works) - _MOST} more: backstop haircut --json." if len(works) > _MOST else "",
        tables=[_buffer_table(haircut, at), _table(haircut, "cluster", at), _table(haircut, "team", at)],
    )


def _to_flex(number: int) -> str:
    return "GPU moves to flex and stays usable" if number == 1 else "GPUs move to flex and stay usable"


def _unbacked_text(number: int) -> str:
    return f"{verb_of(number, 'GPU', 'GPUs')} promised today with no healthy GPU behind {verb_of(number, 'it', 'them')}"


# --- plots ---------------------------------------------------------------------------------------


def _buffers(haircut: Haircut, at: int) -> dict[str, str]:
    figure, plot = axes(height=3.2)
    names = [percent(buffer) for buffer in haircut.buffers]
    phantom, flex = [p.phantom_gpus for p in haircut.fleet], [p.to_flex_gpus for p in haircut.fleet]
    plot.bar(names, phantom, color=PHANTOM, label="phantom: no healthy GPU behind it", width=0.6)
    plot.bar(names, flex, bottom=phantom, color=FLEX, label="moves to flex", width=0.6)
    for name, part in zip(names, haircut.fleet, strict=True):
        plot.annotate(
            number(part.cut_gpus), (name, part.cut_gpus), xytext=(0, 3), textcoords="offset points", ha="center"
        )
    plot.margins(y=0.15)
    plot.set(xlabel="buffer", ylabel="GPUs cut")
    plot.yaxis.set_major_formatter("{x:,.0f}")
    plot.legend(frameon=False, loc="upper left")
    says = (
        f"At {names[at]}, {count(phantom[at], 'GPU')} of the cut {'is' if phantom[at] == 1 else 'are'} phantom (no "
        f"healthy GPU behind {verb_of(phantom[at], 'it', 'them')} now) and {flex[at]} "
        f"{'moves' if flex[at] == 1 else 'move'} to flex."
    )
    return {"title": "How many GPUs would be cut: phantom, and moved to flex", "svg": svg(figure), "says": says}


def _clusters(haircut: Haircut, at: int) -> dict[str, str]:
    parts = {name: row[at] for name, row in haircut.clusters.items()}
    over = {name: p for name, p in parts.items() if p.above_gpus or p.cut_gpus}
    ranked = sorted(over.items(), key=lambda item: (-max(item[1].cut_gpus, item[1].above_gpus), item[0]))
    shown = dict(ranked[:_MOST])
    figure, plot = axes(height=1.2 + 0.32 * max(1, len(shown)))
    names = [short_name(name) for name in shown]
    places = list(range(len(names)))
    backed = [p.assigned_gpus - p.unbacked_gpus for p in shown.values()]
    plot.barh(places, backed, color=BACKED, label="promised, a healthy GPU behind it")
    plot.barh(places, [p.unbacked_gpus for p in shown.values()], left=backed, color=PHANTOM, label="promised, phantom")
    plot.plot([p.ceiling_gpus for p in shown.values()], places, "|", color=INK, ms=14, mew=2, label="ceiling")
    plot.set_yticks(places, names)
    plot.invert_yaxis()
    plot.margins(y=0.01)
    plot.set(xlabel="GPUs")
    plot.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(frameon=False, loc="outside upper center", ncols=3)
    rest = f" The plot shows the {len(shown)} with the largest cuts, of {len(over)}." if len(over) > len(shown) else ""
    fleet = haircut.fleet[at]
    says = (
        f"{fleet.clusters_above} of {count(fleet.clusters, 'cluster')} "
        f"{'promises more than its' if fleet.clusters_above == 1 else 'promise more than their'} ceiling at "
        f"{percent(haircut.buffers[at])}, {count(fleet.above_gpus, 'GPU')} in all.{rest}"
    )
    return {"title": "Which clusters are above their ceiling", "svg": svg(figure), "says": says}


def _waves(haircut: Haircut, at: int) -> dict[str, str]:
    rows = {wave: parts[at] for wave, parts in haircut.waves.items()}
    figure, plot = axes(height=2.6)
    names = list(rows)
    plot.barh(names, [p.clusters for p in rows.values()], color=BACKED)
    for place, part in enumerate(rows.values()):
        label = f"{count(part.clusters, 'cluster')}, {count(part.cut_gpus, 'GPU')} cut"
        plot.annotate(label, (part.clusters, place), xytext=(4, 0), textcoords="offset points", va="center")
    plot.invert_yaxis()
    plot.margins(x=0.35)
    plot.set(xlabel="clusters")
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    without = rows["unallocated"]
    says = (
        f"Clusters go wave by wave, the least painful first: in {count(without.clusters, 'cluster')} no quota is cut "
        f"at {percent(haircut.buffers[at])}."
    )
    return {"title": "The order in which clusters would go", "svg": svg(figure), "says": says}


# --- tables --------------------------------------------------------------------------------------


def _buffer_table(haircut: Haircut, at: int) -> dict[str, Any]:
    columns = ["Buffer", "Ceiling", "Clusters above it", "By GPUs", "Cut", "Phantom", "To flex", "Short"]
    rows = [
        {
            "at": index == at,
            "cells": [
                percent(buffer),
                *map(number, (part.ceiling_gpus, part.clusters_above, part.above_gpus, part.cut_gpus)),
                *map(number, (part.phantom_gpus, part.to_flex_gpus, part.short_gpus)),
            ],
        }
        for index, (buffer, part) in enumerate(zip(haircut.buffers, haircut.fleet, strict=True))
    ]
    return {"title": "The fleet at each buffer", "columns": columns, "rows": rows, "note": ""}


def _table(haircut: Haircut, what: str, at: int) -> dict[str, Any]:
    groups: Mapping[str, Sequence[Part | TeamPart]] = rows_of(haircut, what)
    ranked = sorted(groups.items(), key=lambda item: (-item[1][at].cut_gpus, item[0]))
    rows = [
        {
            "at": False,
            "cells": [
                clean(name),
                number(parts[at].held_gpus),
                *(number(part.cut_gpus) for part in parts),
                *map(number, (parts[at].phantom_gpus, parts[at].to_flex_gpus)),
            ],
        }
        for name, parts in ranked[:_MOST]
    ]
    explained = percent(haircut.buffers[at])
    columns = [
        what.capitalize(),
        "Promised",
        *(f"Cut at {percent(buffer)}" for buffer in haircut.buffers),
        f"Phantom at {explained}",
        f"To flex at {explained}",
    ]
    more = len(ranked) - len(rows)
    note = f"{more} more with smaller cuts: backstop haircut --by {what}, or --csv." if more else ""
    return {"title": f"By {what}", "columns": columns, "rows": rows, "note": note}
