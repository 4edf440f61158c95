"""The record of buffer policies with pictures: healthy hardware, ceilings, and where a promise broke."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cli.output import count
from cli.pages.charts import BACKED, BAD, FLEX, INK, PHANTOM, axes, rendered, short, style, svg
from cli.views.backtest import HEADINGS, cells, percent
from models.buffers.backtest import Promised, Record
from models.buffers.hourly_health import Series
from models.errors import BadInput

_MOST = 12
"""Clusters with a picture; the tables have all."""
_SHOWN = (("fixed-15", PHANTOM, "--"), ("trailing-max", BACKED, "-"), ("health", FLEX, "-"))
"""Ceilings in a picture: more lines than these hide each other."""


def page(series: Sequence[Series], records: Sequence[Record], promised: Promised) -> str:
    """The record as HTML that needs nothing beside it."""
    by_cluster = {name: list(rows) for name, rows in groupby(records, key=lambda r: r.cluster)}
    parts = []
    with style():
        for one in series[:_MOST]:
            figure, plot = axes(height=2.8)
            says = _draw(plot, one, promised)
            parts.append(
                {
                    "title": short(one.cluster, 60),
                    "svg": svg(figure),
                    "says": says,
                    "tables": [_table(h, list(rows)) for h, rows in groupby(by_cluster[one.cluster], key=_horizon)],
                }
            )
    more = len(series) - _MOST
    return rendered(
        "backtest.html",
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        clusters=count(len(series), "cluster"),
        sentence=_sentence(records),
        parts=parts,
        left_out=f"{more} more clusters are in the table and in --csv." if more > 0 else "",
    )


def picture(file: str, series: Sequence[Series], promised: Promised) -> None:
    """The plots, one below the other, as PNG. Errors: BadInput naming the file."""
    if file == "-":
        raise BadInput("--png takes the name of a file, not -: a picture is not for a terminal")
    shown = series[:_MOST]
    with style():
        figure = Figure(figsize=(9, 3.1 * len(shown)), layout="constrained")
        plots = figure.subplots(len(shown), squeeze=False)[:, 0]
        for one, plot in zip(shown, plots, strict=True):
            plot.set_title(short(one.cluster, 60), loc="left", fontsize=10, pad=24)  # above the legend
            _draw(plot, one, promised)
        try:
            figure.savefig(Path(file), format="png", dpi=110)
        except OSError as error:
            raise BadInput(f"--png {file}: cannot be written: {error.strerror}") from None


def _draw(plot: Axes, one: Series, promised: Promised) -> str:
    """Healthy hardware day by day and the ceilings week by week, for the longest horizon; what it shows, in words."""
    horizon = max(h for name, h, _ in promised if name == one.cluster)
    days = len(one.worst) // 24
    if not days:
        plot.text(0.5, 0.5, "less than a day", ha="center", transform=plot.transAxes)
        return "Less than a day of history."
    with np.errstate(all="ignore"):
        cut = one.worst[: days * 24].reshape(days, 24)
        worst = np.array([np.nan if np.isnan(day).all() else np.nanmin(day) for day in cut])
    weeks = np.arange(days) / 7
    plot.plot(weeks, worst, color=INK, lw=0.9, label="healthy, worst instant of the day")
    says = []
    for policy, color, dash in _SHOWN:
        promises = promised.get((one.cluster, horizon, policy))
        if promises is None:
            continue
        steps = np.array([np.nan if p is None else p for p in promises], dtype=float)
        plot.step(
            np.arange(len(promises) + 1),
            np.append(steps, steps[-1]),
            where="post",
            color=color,
            ls=dash,
            lw=1.6,
            label=f"{policy} ceiling",
        )
        if policy == "health":
            daily = np.repeat(_held(steps, horizon), 7)[:days]
            broken = np.flatnonzero(worst[: len(daily)] < daily)
            plot.plot(weeks[broken], worst[broken], "x", color=BAD, ms=6, label="below a promise")
            says.append(
                f"On {count(len(broken), 'day')} of {days} the worst instant fell below a ceiling that was promised "
                "for it."
            )
    plot.margins(x=0.01, y=0.08)
    plot.set(xlabel="week", ylabel="nodes" if one.unit == "nodes" else "GPUs")
    plot.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    plot.yaxis.set_major_formatter("{x:,.0f}")
    plot.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1))
    return " ".join(says) or f"{days} days of history."


def _held(promises: npt.NDArray[np.float64], weeks: int) -> npt.NDArray[np.float64]:
    """The largest of the promises that hold in each week: one is made each week, for so many weeks."""
    return np.array([np.fmax.reduce(promises[max(0, n + 1 - weeks) : n + 1]) for n in range(len(promises))])


def _horizon(r: Record) -> int:
    return r.horizon_weeks


def _table(horizon: int, rows: Sequence[Record]) -> dict[str, Any]:
    return {
        "title": f"Promised for {count(horizon, 'week')} ahead",
        "columns": [h.capitalize() for h in HEADINGS],
        "rows": [{"cells": cells(r), "at": r.policy == "health"} for r in rows],
    }


def _sentence(records: Sequence[Record]) -> str:
    """`health` beside the fixed 15%, over all clusters."""
    ours = [r for r in records if r.policy == "health"]
    flat = [r for r in records if r.policy == "fixed-15"]
    if not ours:
        return "What each policy would have promised week by week, and what hardware would have kept of it."
    text = (
        f"With health a mean of {percent(_mean(ours))} stays unpromised "
        f"and {percent(_broken(ours))} of hours are broken"
    )
    return f"{text}; a flat 15% breaks {percent(_broken(flat))}." if flat else f"{text}."


def _mean(rows: Sequence[Record]) -> float:
    return sum(r.mean_buffer for r in rows) / len(rows)


def _broken(rows: Sequence[Record]) -> float:
    return sum(r.broken_hours for r in rows) / max(1, sum(r.hours for r in rows))
