"""A haircut report as one HTML page that needs nothing beside it: a leader reads it in a minute.

Plots are made by matplotlib as SVG and stand inside the page; text in them stays text, so that it can be searched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cli.haircut_view import percent, rows_of, sentence
from cli.output import clean
from models.haircut import Haircut, Part, TeamPart

_PHANTOM, _FLEX, _BACKED, _INK = "#9aa5b1", "#2f7ed8", "#bcd9f5", "#1c2430"
_MOST = 20
"""Clusters and teams in one plot or table; the CSV has all."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "backstop",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c5ced8",
    "text.parse_math": False,
}


def page(made: Haircut, at: int) -> str:
    """The report as HTML; `at`: which of its buffers is explained."""
    fleet = made.fleet[at]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cli"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    with rc_context(_STYLE):
        figures = [_buffers(made, at), _clusters(made, at), _waves(made, at)]
    return environment.get_template("haircut.html").render(
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        clusters=_count(fleet.clusters, "cluster"),
        sentence=sentence(made, at),
        numbers=[
            {"value": _big(fleet.cut_gpus), "text": f"GPUs cut at {percent(made.buffers[at])}"},
            {"value": _share(fleet.phantom_gpus, fleet.cut_gpus), "text": "of them never backed by a healthy GPU"},
            {"value": _big(fleet.to_flex_gpus), "text": "GPUs move to flex and stay usable"},
            {"value": _big(fleet.unbacked_gpus), "text": "GPUs promised today with nothing behind them"},
        ],
        figures=figures,
        tables=[_buffer_table(made, at), _table(made, "cluster", at), _table(made, "team", at)],
    )


# --- plots ---------------------------------------------------------------------------------------


def _buffers(made: Haircut, at: int) -> dict[str, str]:
    figure, axes = _axes(height=3.2)
    names = [percent(b) for b in made.buffers]
    phantom, flex = [p.phantom_gpus for p in made.fleet], [p.to_flex_gpus for p in made.fleet]
    axes.bar(names, phantom, color=_PHANTOM, label="phantom: no healthy GPU behind it", width=0.6)
    axes.bar(names, flex, bottom=phantom, color=_FLEX, label="moves to flex", width=0.6)
    for name, part in zip(names, made.fleet, strict=True):
        axes.annotate(
            _big(part.cut_gpus), (name, part.cut_gpus), xytext=(0, 3), textcoords="offset points", ha="center"
        )
    axes.margins(y=0.15)
    axes.set(xlabel="buffer", ylabel="GPUs cut")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="upper left")
    says = f"At {names[at]}, {phantom[at]} GPUs of the cut were phantom and {flex[at]} move to flex."
    return {"title": "How much would be cut, and what it was", "svg": _svg(figure), "says": says}


def _clusters(made: Haircut, at: int) -> dict[str, str]:
    parts = {name: row[at] for name, row in made.clusters.items()}
    over = {name: p for name, p in parts.items() if p.above_gpus or p.cut_gpus}
    ranked = sorted(over.items(), key=lambda item: (-max(item[1].cut_gpus, item[1].above_gpus), item[0]))
    shown = dict(ranked[:_MOST])
    figure, axes = _axes(height=1.2 + 0.32 * max(1, len(shown)))
    names = [_short(name) for name in shown]
    places = list(range(len(names)))
    backed = [p.assigned_gpus - p.unbacked_gpus for p in shown.values()]
    axes.barh(places, backed, color=_BACKED, label="promised, a healthy GPU behind it")
    axes.barh(places, [p.unbacked_gpus for p in shown.values()], left=backed, color=_PHANTOM, label="promised, phantom")
    axes.plot([p.ceiling_gpus for p in shown.values()], places, "|", color=_INK, ms=14, mew=2, label="ceiling")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set(xlabel="GPUs")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(frameon=False, loc="outside upper center", ncols=3)
    rest = f" The {len(shown)} with the largest cut of {len(over)} are shown." if len(over) > len(shown) else ""
    fleet = made.fleet[at]
    says = (
        f"{fleet.clusters_above} of {fleet.clusters} clusters promise more than their ceiling at "
        f"{percent(made.buffers[at])}, {_count(fleet.above_gpus, 'GPU')} in all.{rest}"
    )
    return {"title": "Which clusters are above their ceiling", "svg": _svg(figure), "says": says}


def _waves(made: Haircut, at: int) -> dict[str, str]:
    rows = {wave.value: parts[at] for wave, parts in made.waves.items()}
    figure, axes = _axes(height=2.6)
    names = list(rows)
    axes.barh(names, [p.clusters for p in rows.values()], color=_BACKED)
    for place, part in enumerate(rows.values()):
        label = f"{_count(part.clusters, 'cluster')}, {_count(part.cut_gpus, 'GPU')} cut"
        axes.annotate(label, (part.clusters, place), xytext=(4, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set(xlabel="clusters")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    without = rows["unallocated"]
    says = (
        f"Clusters go wave by wave, the least painful first: in {_count(without.clusters, 'cluster')} nobody loses "
        f"anything at {percent(made.buffers[at])}."
    )
    return {"title": "In which order they would go", "svg": _svg(figure), "says": says}


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)  # the page has a head of its own


# --- tables --------------------------------------------------------------------------------------


def _buffer_table(made: Haircut, at: int) -> dict[str, Any]:
    columns = ["Buffer", "Ceiling", "Clusters above it", "By GPUs", "Cut", "Phantom", "To flex", "Short"]
    rows = [
        {
            "at": number == at,
            "cells": [
                percent(buffer),
                *map(_big, (part.ceiling_gpus, part.clusters_above, part.above_gpus, part.cut_gpus)),
                *map(_big, (part.phantom_gpus, part.to_flex_gpus, part.short_gpus)),
            ],
        }
        for number, (buffer, part) in enumerate(zip(made.buffers, made.fleet, strict=True))
    ]
    return {"title": "The fleet at each buffer", "columns": columns, "rows": rows, "note": ""}


def _table(made: Haircut, what: str, at: int) -> dict[str, Any]:
    found: Mapping[str, Sequence[Part | TeamPart]] = rows_of(made, what)
    ranked = sorted(found.items(), key=lambda item: (-item[1][at].cut_gpus, item[0]))
    rows = [
        {
            "at": False,
            "cells": [
                clean(name),
                _big(parts[at].held_gpus),
                *(_big(part.cut_gpus) for part in parts),
                *map(_big, (parts[at].phantom_gpus, parts[at].to_flex_gpus)),
            ],
        }
        for name, parts in ranked[:_MOST]
    ]
    explained = percent(made.buffers[at])
    columns = [
        what.capitalize(),
        "Promised",
        *(f"Cut at {percent(b)}" for b in made.buffers),
        f"Phantom at {explained}",
        f"To flex at {explained}",
    ]
    more = len(ranked) - len(rows)
    note = f"And {more} more, whose cut is smaller: backstop haircut --by {what}, or --csv." if more else ""
    return {"title": f"By {what}", "columns": columns, "rows": rows, "note": note}


# --- words ---------------------------------------------------------------------------------------


def _big(number: int) -> str:
    return f"{number:,}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _share(part: int, whole: int) -> str:
    return f"{round(100 * part / whole)}%" if whole else "0%"


def _short(name: str, most: int = 32) -> str:
    """Cut in the middle: names of one fleet often begin alike."""
    text = clean(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"
