"""One cluster's buffer in five lines and a small picture."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from cli.output import count, line
from cli.views.backtest import percent
from models.buffers.backtest import Explained, Record
from models.buffers.estimator import WEEK_HOURS
from models.cluster.health_buffer import Derived

_BARS = " ▁▂▃▄▅▆▇█"
_WEEKS = 60
"""In the picture: a character each."""


def parts(found: Explained) -> list[RenderableType]:
    """The lines, and the weekly worst beside the buffer."""
    return [*(line(text) for text in lines(found)), Text(), *_picture(found)]


def lines(found: Explained) -> list[str]:
    now, series = found.now, found.series
    unit = "node" if series.unit == "nodes" else "GPU"
    ours = found.records[0]
    strict = f"For {_target(found.terms.target)} of the hours of the next {count(found.horizon_weeks, 'week')}"
    said = f"{strict}: {_promised(now, unit)}."
    if found.looser is not None:
        said += f" For {_target(found.looser_target)}: {_promised(found.looser, unit)}."
    return [
        _history(found, unit),
        said,
        f"Why: {now.text}.",
        f"Its record, decided week by week on this history: {_kept(ours)}.{_missed(ours, found.terms.target)}",
        f"Beside it: {_neighbours(found)}.",
    ]


def _history(found: Explained, unit: str) -> str:
    now, hours = found.now, len(found.series.total)
    size = f"{found.series.cluster}: {count(now.total, unit)}"
    if not now.known_hours:
        return f"{size}; nothing is known of their health."
    weeks = count(round(now.known_hours / WEEK_HOURS), "week")
    known = f"{count(now.known_hours, 'hour')} ({weeks}) of its health are known"
    unknown = f" and {hours - now.known_hours} are not" if hours > now.known_hours else ""
    return (
        f"{size}; {known}{unknown}; {now.level} have been down for most of the last two weeks or of the last day, "
        f"and {now.worst} at the worst instant of all."
    )


def _target(share: Fraction) -> str:
    return f"{float(100 * share):g}%"


def _promised(found: Derived, unit: str) -> str:
    if found.promise is None:
        return "cannot honestly promise anything"
    return f"promise {found.promise:,}, keep {count(found.needed, unit)} ({percent(found.needed / found.total)})"


def _kept(r: Record) -> str:
    broken = "none" if not r.broken_hours else f"{r.broken_hours} ({percent(r.broken_fraction)})"
    changes = "no change" if not r.changes else count(r.changes, "change")
    return f"{broken} of {count(r.hours, 'hour')} broken, a mean of {percent(r.mean_buffer)} kept, {changes}"


def _missed(ours: Record, target: Fraction) -> str:
    if ours.broken_fraction <= 1 - target:
        return ""
    return f" THAT MISSES THE {_target(target)} ASKED FOR: what happened here, its past did not foretell."


def _neighbours(found: Explained) -> str:
    """The smallest flat buffer of an equal record, the one below it, and a larger one."""
    ours, *flat = found.records
    said = []
    if found.below is not None:
        said.append(f"a flat {_flat(found.below)} would have broken {_hours(found.below)}")
    if found.least is not None and found.below is None:
        said.append(f"even a flat {_flat(found.least)} would have broken no more ({_hours(found.least)})")
    elif found.least is not None:
        more = "less" if found.least.mean_buffer < ours.mean_buffer else "more"
        apart = percent(abs(found.least.mean_buffer - ours.mean_buffer))
        equal = f"of whole percents a flat {_flat(found.least)} is the smallest that breaks no more"
        cost = f"keeps {apart} of the cluster {more}, which nobody could know before"
        said.append(f"{equal} ({_hours(found.least)}) and {cost}")
    least = ours.mean_buffer if found.least is None else max(ours.mean_buffer, found.least.mean_buffer + 0.005)
    for r in [r for r in flat if r.mean_buffer > least][:1]:
        more = percent(r.mean_buffer - ours.mean_buffer)
        said.append(f"a flat {_flat(r)} breaks {_hours(r)} and leaves {more} of the cluster more idle or to flex")
    return "; ".join(said) or "no flat buffer up to 60% breaks as little"


def _flat(r: Record) -> str:
    """As it was decided: what whole nodes make of it is another number."""
    return f"{r.policy.removeprefix('fixed-')}%"


def _hours(r: Record) -> str:
    return "none" if not r.broken_hours else count(r.broken_hours, "hour")


def _picture(found: Explained) -> list[RenderableType]:
    """A bar for each week's worst instant, as high as the buffer where it reaches the top."""
    down = found.series.down
    weeks = [down[n : n + WEEK_HOURS] for n in range(0, len(down), WEEK_HOURS)][-_WEEKS:]
    worst = [float(np.nanmax(w)) if (~np.isnan(w)).any() else float("nan") for w in weeks]
    kept = 0 if found.now.promise is None else found.now.needed
    top = max(kept, *(w for w in worst if not np.isnan(w)), 1) if worst else 1
    bars = "".join("?" if np.isnan(w) else _BARS[int(np.ceil((len(_BARS) - 1) * w / top))] for w in worst)
    mark = f"  kept from now on: {_BARS[int(np.ceil((len(_BARS) - 1) * kept / top))]} ({kept})" if kept else ""
    return [line(f"worst of each week  |{bars}|{mark}")]
