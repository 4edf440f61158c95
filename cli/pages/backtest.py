"""The record of buffer policies with pictures: healthy hardware, ceilings, and broken promises."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cli.pages.charts import BACKED, BAD, FLEX, INK, PHANTOM, axes, render_page, short_name, style, svg
from models.buffers.backtest import Promised, Record
from models.buffers.estimator import Hours
from models.buffers.hourly_health import Series
from models.errors import BadInput
from views.backtest import HEADINGS, cells, percent
from views.words import count

_MOST = 12
"""The most clusters with a picture; the tables have all clusters."""
_FLAT = "fixed-15"
_SHOWN = ((_FLAT, PHANTOM, "--"), ("trailing-max", BACKED, "-"), ("health", FLEX, "-"))
"""The ceilings in a picture; more lines would hide each other. Without fixed-15, another fixed buffer replaces it."""


def page(series: Sequence[Series], records: Sequence[Record], promised: Promised) -> str:
    """Return the record as one self-contained HTML page."""
    weeks = attrgetter("horizon_weeks")
    by_cluster = {name: list(rows) for name, rows in groupby(records, key=lambda record: record.cluster)}
    parts = []
    with style():
        for one in series[:_MOST]:
            figure, plot = axes(height=3.0)
            says = _draw(plot, one, promised, "")
            parts.append(
                {
                    "title": short_name(one.cluster, 60),
                    "svg": svg(figure),
                    "says": says,
                    "tables": [_table(h, list(rows)) for h, rows in groupby(by_cluster[one.cluster], weeks)],
                }
            )
    more = len(series) - _MOST
    return render_page(
        "backtest.html",
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        clusters=count(len(series), "cluster"),
        sentences=_sentences(records),
        parts=parts,
        left_out=f"Only the command's table and --csv show {count(more, 'more cluster')}." if more > 0 else "",
    )


def picture(file: str, series: Sequence[Series], promised: Promised) -> None:
    """Draw the plots, one below the other, as PNG. Errors: BadInput naming the file."""
    if file == "-":
        raise BadInput("--png takes a file name, not -: Backstop writes no picture to standard output")
    shown = series[:_MOST]
    with style():
        figure = Figure(figsize=(9, 3.3 * len(shown)), layout="constrained")
        plots = figure.subplots(len(shown), squeeze=False)[:, 0]
        for one, plot in zip(shown, plots, strict=True):
            _draw(plot, one, promised, f"{short_name(one.cluster, 60)}, ")
        try:
            figure.savefig(Path(file), format="png", dpi=110)
        except OSError as error:
            raise BadInput(f"--png {file}: cannot be written: {error.strerror}") from None


def _draw(plot: Axes, one: Series, promised: Promised, whose: str) -> str:
    """Draw healthy hardware day by day and the ceilings week by week, for the longest horizon; return the plot in
    words.

    Its title is `whose`, then the horizon.
    """
    horizon = max(h for name, h, _ in promised if name == one.cluster)
    title = f"{whose}promised for {count(horizon, 'week')} ahead"
    plot.set_title(title[0].upper() + title[1:] if not whose else title, loc="left", fontsize=10, pad=36)
    days = len(one.worst) // 24
    if not days:
        plot.text(0.5, 0.5, "less than a day", ha="center", transform=plot.transAxes)
        return "Less than a day of history."
    plot.plot(np.arange(days) / 7, _daily(one.worst), color=INK, lw=0.9, label="healthy, worst instant of the day")
    names = [policy for name, h, policy in promised if (name, h) == (one.cluster, horizon)]
    broken, refused = [], []
    for policy, color, dash in _SHOWN:
        shown = _flat(names) if policy == _FLAT else policy
        promises = promised.get((one.cluster, horizon, shown))
        if promises is None:
            continue
        steps = np.array([np.nan if p is None else p for p in promises], dtype=float)
        at, ends = np.arange(len(promises) + 1), np.append(steps, steps[-1])
        plot.step(at, ends, where="post", color=color, ls=dash, lw=1.6, label=f"{shown} ceiling")
        broken.append(f"{shown} {len(_crosses(plot, one, steps, horizon, color)):,}")
        if policy == "health":
            refused = _shade_refused(plot, steps)
    plot.margins(x=0.01, y=0.08)
    plot.set(xlabel="week", ylabel="nodes" if one.unit == "nodes" else "GPUs")
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    plot.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    plot.yaxis.set_major_formatter("{x:,.0f}")
    plot.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    if not broken:
        return f"{count(days, 'day')} of history."
    sentence = f"{count(days, 'day')} of history. Days with a broken promise"
    newest = f"Each promise lasts {count(horizon, 'week')}; the line shows only the newest."
    says = f"{sentence} (crosses in the line's color): {', '.join(broken)}."
    return " ".join([says, *([newest] if horizon > 1 else []), *refused])


def _daily(hours: Hours) -> Hours:
    """Return the least of each whole day's known hours; NaN where it has none."""
    days = hours[: len(hours) // 24 * 24].reshape(-1, 24)
    return np.array([np.nan if np.isnan(day).all() else np.nanmin(day) for day in days])


def _crosses(plot: Axes, one: Series, steps: Hours, horizon: int, color: str) -> list[int]:
    """Draw a cross on each day that broke a promise, and return those days. Declared absence breaks nothing."""
    kept = _daily(one.worst + one.planned)
    worst, daily = _daily(one.worst), np.repeat(_largest_promises(steps, horizon), 7)[: len(kept)]
    broken = np.flatnonzero(kept[: len(daily)] < daily)
    plot.plot(broken / 7, worst[broken], "x", color=color, ms=6)
    days: list[int] = broken.tolist()
    return days


def _shade_refused(plot: Axes, steps: Hours) -> list[str]:
    """Shade the weeks without a promise, and return how many they are."""
    weeks = np.flatnonzero(np.isnan(steps))
    for n, week in enumerate(weeks.tolist()):
        plot.axvspan(week, week + 1, color=BAD, alpha=0.12, lw=0, label="" if n else "nothing promised")
    return [f"In {count(len(weeks), 'week')} (shaded) the health policy promised nothing."] if len(weeks) else []


def _largest_promises(promises: Hours, weeks: int) -> Hours:
    """Return the largest of the promises that hold in each week: each week makes one, for so many weeks."""
    return np.array([np.fmax.reduce(promises[max(0, n + 1 - weeks) : n + 1]) for n in range(len(promises))])


def _table(horizon: int, rows: Sequence[Record]) -> dict[str, Any]:
    return {
        "title": f"Promised for {count(horizon, 'week')} ahead",
        "columns": [h.capitalize() for h in HEADINGS],
        "rows": [{"cells": cells(row), "at": row.policy == "health"} for row in rows],
    }


def _flat(names: Sequence[str]) -> str:
    """Return the buffer of 15 %, or the first flat one where that was left out; empty without any."""
    return _FLAT if _FLAT in names else next((n for n in names if n.startswith("fixed-")), "")


def _sentences(records: Sequence[Record]) -> list[str]:
    """Compare `health` with every fixed buffer over all clusters, for each horizon; those that broke nothing come
    first."""
    sentences = []
    for horizon in sorted({record.horizon_weeks for record in records}):
        rows = [record for record in records if record.horizon_weeks == horizon]
        ours = [row for row in rows if row.policy == "health"]
        if ours:
            mean = sum(record.mean_buffer for record in ours) / len(ours)
            sentences.append(
                f"With promises for {count(horizon, 'week')}, the health policy leaves {percent(mean)} of the GPUs "
                f"unpromised on average, and breaks its promise in {percent(_broken_share(ours))} of the hours. "
                f"{_compare_fixed(rows)}".strip()
            )
    return sentences or ["What each policy would have promised each week, and what hardware would have kept."]


def _compare_fixed(rows: Sequence[Record]) -> str:
    """Say which fixed buffers would have kept every hour, and how much the others would have broken, in hindsight."""
    names = dict.fromkeys(row.policy for row in rows if row.policy.startswith("fixed-"))
    broken = {name.removeprefix("fixed-"): _broken_share([row for row in rows if row.policy == name]) for name in names}
    whole = [f"{buffer}%" for buffer, fraction in broken.items() if not fraction]
    others = [
        f"{buffer}% breaks it in {percent(fraction)} of the hours" for buffer, fraction in broken.items() if fraction
    ]
    kept = (
        f"Fixed buffers that never broke the promise: {', '.join(whole)}"
        if whole
        else "Each fixed buffer shown broke the promise"
    )
    return f"{'; '.join([kept, *others])}." if broken else ""


def _broken_share(rows: Sequence[Record]) -> float:
    return sum(row.broken_hours for row in rows) / max(1, sum(row.hours for row in rows))
