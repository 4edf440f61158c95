"""One cluster's buffer in five lines and a small picture."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from cli.backtest_view import percent
from cli.output import line
from models.backtest import Explained, Record
from models.derived import Derived
from models.promises import WEEK

_BARS = " ▁▂▃▄▅▆▇█"
_WEEKS = 60
"""In the picture: a character each."""


def parts(found: Explained) -> list[RenderableType]:
    """The lines, and the weekly worst beside the buffer."""
    return [*(line(text) for text in lines(found)), Text(), *_picture(found)]


def lines(found: Explained) -> list[str]:
    now, series = found.now, found.series
    unit = "nodes" if series.node == 1 else "GPUs"
    weeks = now.known_hours / WEEK
    ahead = "1 week" if found.horizon_weeks == 1 else f"{found.horizon_weeks} weeks"
    ours, *fixed = found.records
    history = (
        f"{series.cluster}: {now.total} {unit}; {weeks:.0f} weeks of hours are known; {now.level} {unit} have been "
        f"down for most of the last two weeks or of the last day, {now.worst} were at the worst instant."
        if now.known_hours
        else f"{series.cluster}: {now.total} {unit}; nothing is known of their health."
    )
    strict, loose = _target(found.terms.target), _target(found.looser_target)
    promised = f"For {strict} of the hours of the next {ahead}: {_promised(now, unit)}"
    return [
        history,
        f"{promised}. For {loose}: {_promised(found.looser, unit)}.",
        f"Why: {now.text}.",
        f"Its record, decided week by week on this history: {_kept(ours)}.",
        *_neighbours(ours, fixed),
    ]


def _target(share: Fraction) -> str:
    return f"{float(100 * share):g}%"


def _promised(found: Derived, unit: str) -> str:
    if found.promise is None:
        return "cannot honestly promise anything"
    return f"promise {found.promise}, keep {found.needed} {unit} ({percent(found.needed / found.total)})"


def _kept(r: Record) -> str:
    broken = "none" if not r.broken_hours else f"{r.broken_hours} ({percent(r.broken_fraction)})"
    return f"{broken} of {r.hours} hours broken, a mean of {percent(r.mean_buffer)} kept, {r.changes} changes"


def _neighbours(ours: Record, fixed: list[Record]) -> list[str]:
    """The next smaller and larger fixed buffer: what they would have broken, and stranded."""
    smaller = [r for r in fixed if r.mean_buffer < ours.mean_buffer][-1:]
    larger = [r for r in fixed if r.mean_buffer >= ours.mean_buffer][:1]
    said = [f"a flat {percent(r.mean_buffer)}: {_kept(r)}" for r in smaller]
    for r in larger:
        hours = (r.stranded_fraction - ours.stranded_fraction) * 100
        said.append(
            f"a flat {percent(r.mean_buffer)}: {_kept(r)}, and {hours:.1f}% of the cluster more left idle or to flex"
        )
    return ["Beside it, " + "; ".join(said) + "."] if said else []


def _picture(found: Explained) -> list[RenderableType]:
    """A bar for each week's worst instant, as high as the buffer where it reaches the top."""
    down = found.series.down
    weeks = [down[n : n + WEEK] for n in range(0, len(down), WEEK)][-_WEEKS:]
    worst = [float(np.nanmax(w)) if (~np.isnan(w)).any() else float("nan") for w in weeks]
    top = max(found.now.needed, *(w for w in worst if not np.isnan(w)), 1) if worst else 1
    bars = "".join("?" if np.isnan(w) else _BARS[int(np.ceil((len(_BARS) - 1) * w / top))] for w in worst)
    mark = _BARS[int(np.ceil((len(_BARS) - 1) * found.now.needed / top))]
    return [line(f"worst of each week  |{bars}|  kept from now on: {mark} ({found.now.needed})")]
