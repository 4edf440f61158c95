"""One cluster's buffer in five lines and a small picture."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from models.buffers.backtest import Explained, Record
from models.buffers.estimator import WEEK_HOURS
from models.cluster.derived_buffer import Derived
from models.texts import verb_of
from views.backtest import percent
from views.words import count, line, moment

_BARS = " ▁▂▃▄▅▆▇█"
_WEEKS = 60
"""The most weeks in the picture: a character each."""


def parts(explained: Explained) -> list[RenderableType]:
    """Return the lines, and each week's worst instant beside the buffer."""
    return [*(line(text) for text in lines(explained)), Text(), *_picture(explained)]


def lines(explained: Explained) -> list[str]:
    now, series = explained.now, explained.series
    unit = series.one
    ours = explained.records[0]
    strict = f"For {_target(explained.terms.target)} of the hours of the next {count(explained.horizon_weeks, 'week')}"
    promise = f"{strict}: {_promise_text(explained, now, unit)}."
    if explained.looser is not None:
        promise += f" For {_target(explained.looser_target)}: {_promise_text(explained, explained.looser, unit)}."
    kept, missed = f"{_record_text(ours)}{_growth_text(explained)}", _miss_text(ours, explained.terms.target)
    weeks = explained.horizon_weeks
    tried = "the next week" if weeks == 1 else f"the next {weeks} weeks (so an hour counts up to {weeks} times)"
    return [
        _history(explained, unit),
        promise,
        f"Why: {now.text}{_today(explained, unit)}.",
        f"Back-test: if a new buffer had been computed each week and kept for {tried}, {kept}.{missed}",
        f"In comparison, {_neighbours(explained)}.",
    ]


def _history(explained: Explained, unit: str) -> str:
    now, hours = explained.now, len(explained.series.total)
    size = f"{explained.series.cluster}: {count(now.total, unit)}"
    if not now.known_hours:
        return f"{size}; their health is unknown."
    weeks = count(round(now.known_hours / WEEK_HOURS), "week")
    silent = hours - now.known_hours
    unknown = f", and unknown for {count(silent, 'hour')}" if silent > 0 else ""
    return (
        f"{size}. Their health is known for {count(now.known_hours, 'hour')} ({weeks}){unknown}. Down for most of the "
        f"last two weeks, or of the last day: {count(now.level, unit)}; at the worst moment: {count(now.worst, unit)}."
    )


def _target(share: Fraction) -> str:
    return f"{float(100 * share):g}%"


def _promise_text(explained: Explained, derived: Derived, unit: str) -> str:
    promise = explained.promise(derived)
    if promise is None:
        return "promise nothing"
    kept = derived.total - promise
    return f"promise {promise:,}, keep {count(kept, unit)} ({percent(kept / derived.total)}) unpromised"


def _today(explained: Explained, unit: str) -> str:
    """Say how much is healthy today, if that allows a smaller promise than history does."""
    now, today = explained.now, explained.today
    if now.promise is None or now.promise <= today.most_gpus:
        return ""
    at = "at the end of its history" if today.at is None else f"at {moment(today.at)}"
    spare = f", and {today.spare:,} of these {verb_of(today.spare, 'stays', 'stay')} spare" if today.spare else ""
    return (
        f"; history alone would allow a promise of {count(now.promise, unit)}, but {at} only {today.healthy:,} of "
        f"{now.total:,} {verb_of(today.healthy, 'was', 'were')} healthy{spare}"
    )


def _record_text(record: Record) -> str:
    broken = "none" if not record.broken_hours else f"{record.broken_hours:,} ({percent(record.broken_fraction)})"
    changed = f"changed {count(record.changes, 'time')}" if record.changes else "never changed"
    return (
        f"the promise would have been broken in {broken} of {count(record.hours, 'hour')}; it would have {changed}, "
        f"and left {percent(record.mean_buffer)} unpromised on average"
    )


def _growth_text(explained: Explained) -> str:
    """Say what the buffer would be once the floor of a short history no longer applies."""
    later = explained.grown_up
    if later is None:
        return ""
    weeks = count(round(explained.terms.history / timedelta(weeks=1)), "week")
    return f" ({percent(later.mean_buffer)} once {weeks} of history were known)"


def _miss_text(ours: Record, target: Fraction) -> str:
    if ours.broken_fraction <= 1 - target:
        return ""
    return f" THIS MISSES THE TARGET OF {_target(target)}: this cluster's earlier history did not show what came later."


def _neighbours(explained: Explained) -> str:
    """Compare flat buffers: the smallest that breaks no more hours, the one below it, and a larger one."""
    ours, *flat = explained.records
    clauses = []
    if explained.below is not None:
        clauses.append(f"a flat {_flat(explained.below)} would break {_hours(explained.below)}")
    if explained.least is not None and explained.below is None:
        clauses.append(f"even a flat {_flat(explained.least)} would break no more hours ({_hours(explained.least)})")
    elif explained.least is not None:
        more = "more" if explained.least.mean_buffer < ours.mean_buffer else "less"
        apart = percent(abs(explained.least.mean_buffer - ours.mean_buffer))
        equal = f"a flat {_flat(explained.least)} is the smallest whole percentage that would break no more hours"
        cost = f"would promise {apart} {more} of the cluster, but nobody could know that before"
        clauses.append(f"{equal} ({_hours(explained.least)}) and {cost}")
    least = ours.mean_buffer if explained.least is None else max(ours.mean_buffer, explained.least.mean_buffer + 0.005)
    for record in [record for record in flat if record.mean_buffer > least][:1]:
        more = percent(record.mean_buffer - ours.mean_buffer)
        clauses.append(f"a flat {_flat(record)} would break {_hours(record)} and promise {more} of the cluster less")
    return "; ".join(clauses) or "no flat buffer up to 60% would have broken as few hours"


def _flat(record: Record) -> str:
    """Return the flat buffer as chosen, before it is rounded to whole nodes."""
    return f"{record.policy.removeprefix('fixed-')}%"


def _hours(record: Record) -> str:
    return "no hour" if not record.broken_hours else count(record.broken_hours, "hour")


def _picture(explained: Explained) -> list[RenderableType]:
    """Draw a bar for each week's worst instant; the top is the worst of all or the buffer, whichever is larger."""
    down = explained.series.down
    weeks = [down[n : n + WEEK_HOURS] for n in range(0, len(down), WEEK_HOURS)][-_WEEKS:]
    worst = [float(np.nanmax(w)) if (~np.isnan(w)).any() else float("nan") for w in weeks]
    promise = explained.promise(explained.now)
    kept = 0 if promise is None else explained.now.total - promise
    top = max(kept, *(w for w in worst if not np.isnan(w)), 1) if worst else 1
    bars = "".join("?" if np.isnan(w) else _BARS[int(np.ceil((len(_BARS) - 1) * w / top))] for w in worst)
    whose = "Nodes" if explained.series.unit == "nodes" else "GPUs"
    bar = _BARS[int(np.ceil((len(_BARS) - 1) * kept / top))]
    mark = f"  {whose} kept out of quotas from now on: {bar} ({kept})" if kept else ""
    return [line(f"worst of each week  |{bars}|{mark}")]
