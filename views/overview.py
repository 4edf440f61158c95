"""All rollouts of a fleet, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from client.answer_models import STALE
from client.lost_rollout_sentences import ADOPT_ALL, adopt_line
from models.reports.rollout_summary import RolloutSummary
from models.rollout.stages import Stage
from models.texts import some_of, verb_of
from views.layout import Grid
from views.words import clean, count, gpus, line, moment, row, span, table

if TYPE_CHECKING:
    from client.answer_models import Check

NEEDS_UNKNOWN = "What rollouts need from a person is unknown: no worker answered in time."
FEW_CLUSTERS = 15
"""Up to this many rollouts, each has its own line."""
_SHADOW = " (shadow)"
_SHOWN = 8
"""The most lines of each list, if there are more rollouts."""


def overview_parts(rollouts: Sequence[RolloutSummary], now: datetime, *, all_lines: bool) -> list[RenderableType]:
    """Return counts by stage and wave, needs and risks; a line for each rollout where they are few or chosen."""
    if not rollouts:
        return [line("There is no rollout yet. Look at `backstop plan`, then `backstop launch CLUSTER`.")]
    opened = [rollout for rollout in rollouts if rollout.open]
    if all_lines or len(rollouts) <= FEW_CLUSTERS:
        asked = _list_asked(rollouts, most=len(rollouts))
        return [
            *_warn_of_lost(opened),
            _lines(rollouts),
            *asked,
            *_summarize_held(opened, lines=True),
            *_silent(opened, now),
        ]
    title = line((count(len(opened), "open rollout"), "bold"), f", {len(rollouts) - len(opened)} ended")
    return [
        *_warn_of_lost(opened),
        title,
        Text(),
        _stages(rollouts),
        *_list_asked(rollouts, most=_SHOWN),
        *_risks(opened),
        *_summarize_held(opened, lines=False),
        *_silent(opened, now),
    ]


def watch_parts(watching: Check | None) -> list[RenderableType]:
    """Warn that the shared watch has stopped; nothing if it is alive or was not asked."""
    if watching is None or watching.ok:
        return []
    return [Text(), line((f"The watch is {watching.text}.", "yellow"), " See `backstop doctor`.")]


def _warn_of_lost(opened: Sequence[RolloutSummary]) -> list[RenderableType]:
    lost = [rollout.cluster for rollout in opened if rollout.lost]
    if not lost:
        return []
    one = len(lost) == 1
    sentence = "1 rollout is" if one else f"{len(lost)} rollouts are"
    sentence += f" open in the ledger, but Temporal does not run {'it' if one else 'them'}"
    take = adopt_line(lost[0]) if one else ADOPT_ALL
    what = f" Nobody guards the quotas of {'this cluster' if one else 'these clusters'}. To take over: `{take}`."
    return [line((f"{sentence}.", "red"), what), Text()]


def _lines(rollouts: Sequence[RolloutSummary]) -> Grid:
    shadows = any(rollout.shadow for rollout in rollouts)
    would = [">WOULD BE"] if shadows else []
    rows = table(
        *("CLUSTER", "=STAGE", "=WAVE", "OWNER", ">UNBACKED", *would, "=STARTED", "=ENDED"),
        least=("ENDED", "STARTED", "OWNER", "WAVE"),
    )
    for rollout in rollouts:
        row(
            rows,
            rollout.cluster,
            _stage(rollout),
            rollout.wave or None,
            rollout.owner or None,
            rollout.unbacked_gpus,
            *([rollout.would_unbacked_gpus] if shadows else []),
            moment(rollout.started),
            moment(rollout.closed),
            style="" if rollout.open else "dim",
        )
    return rows


def _stages(rollouts: Sequence[RolloutSummary]) -> Grid:
    from models.cluster.policy import AFTER_ALL, TIERS

    waves = [*TIERS, *[AFTER_ALL] * any(rollout.wave == AFTER_ALL for rollout in rollouts)]
    count = Counter((_stage(rollout), rollout.wave if rollout.wave in waves else "") for rollout in rollouts)
    order = [stage for each in Stage for stage in (each.value, each.value + _SHADOW)]
    stages = order + sorted({_stage(rollout) for rollout in rollouts} - {*order})
    rows = table("=STAGE", *(f">{wave.upper()}" for wave in waves), ">NO PLAN", ">ALL", ">UNBACKED")
    for stage in stages:
        counts = [count[stage, wave] for wave in [*waves, ""]]
        if any(counts):
            unbacked = sum(
                rollout.unbacked_gpus or 0 for rollout in rollouts if _stage(rollout) == stage and rollout.open
            )
            row(rows, stage, *(n or None for n in counts), sum(counts), unbacked)
    return rows


def _list_asked(rollouts: Sequence[RolloutSummary], most: int) -> list[RenderableType]:
    """Return what people have to do, the most urgent first, and how many more need somebody."""
    if any(rollout.needs is None for rollout in rollouts):
        return [Text(), line((NEEDS_UNKNOWN, "yellow"))]
    needy = sorted((rollout for rollout in rollouts if rollout.needs), key=lambda rollout: rollout.urgency)
    if not needy:
        return []
    able = any(rollout.could for rollout in needy[:most])
    rows = table("CLUSTER", "=STAGE", "~NEEDS", *(["~WHO COULD"] if able else []), least=["STAGE"])
    for rollout in needy[:most]:
        row(rows, rollout.cluster, _stage(rollout), rollout.needs, *([some_of(rollout.could, 5)] if able else []))
    more = [line(f"and {len(needy) - most} more: backstop status --needs")] if len(needy) > most else []
    unasked = sum(rollout.asked_at is None and not rollout.lost for rollout in needy)
    if unasked:
        which = "All of these are" if unasked == len(needy) else f"{unasked:,} of these {verb_of(unasked)}"
        more.append(line((f"{which} from the ledger, because the rollout was not asked or did not answer.", "yellow")))
    title = f"{count(len(needy), 'rollout')} {verb_of(len(needy), 'needs', 'need')} a person"
    return [Text(), line((title, "yellow")), rows, *more]


def _summarize_held(opened: Sequence[RolloutSummary], *, lines: bool) -> list[RenderableType]:
    """Return how many rollouts something holds; with `lines` also what holds each, the most urgent first."""
    held = sorted((rollout for rollout in opened if rollout.held), key=lambda rollout: rollout.urgency)
    answered = [rollout for rollout in opened if rollout.needs is not None]  # else `_list_asked` says that nobody did
    unknown = unknown_holds_text(answered)
    more = [line((unknown, "yellow"))] if unknown else []
    if not held:
        return [Text(), *more] if more else []
    title = (f"{count(len(held), 'rollout')} on hold", "yellow")
    if not lines:
        return [Text(), line(title, ": backstop status --held"), *more]
    rows = table("CLUSTER", "=STAGE", "~HELD BY", least=["STAGE"])
    for rollout in held:
        row(rows, rollout.cluster, _stage(rollout), rollout.held)
    return [Text(), line(title), rows, *more]


def unknown_holds_text(rollouts: Sequence[RolloutSummary]) -> str:
    """Say for how many open rollouts it is unknown whether they are on hold, and why; empty: for none."""
    unknown = [rollout for rollout in rollouts if rollout.open and rollout.held is None]
    number = len(unknown)
    why = f"{'it has' if number == 1 else 'they have'} not recorded it yet"
    if any(rollout.needs is None for rollout in unknown):
        why = "no worker answered in time"
    return f"Whether {count(number, 'rollout')} {verb_of(number)} on hold is unknown: {why}." if unknown else ""


def _stage(summary: RolloutSummary) -> str:
    return summary.stage + _SHADOW * summary.shadow


def _risks(opened: Sequence[RolloutSummary]) -> list[RenderableType]:
    risky = sorted(
        (rollout for rollout in opened if rollout.unbacked_gpus),
        key=lambda rollout: (-(rollout.unbacked_gpus or 0), rollout.cluster),
    )
    if not risky:
        return []
    total = sum(rollout.unbacked_gpus or 0 for rollout in risky)
    rows = table("CLUSTER", "=STAGE", ">UNBACKED")
    for rollout in risky[:_SHOWN]:
        row(rows, rollout.cluster, _stage(rollout), rollout.unbacked_gpus)
    more = [line(f"and {len(risky) - _SHOWN} more: backstop status --at-risk")] if len(risky) > _SHOWN else []
    title = line(
        (f"{count(len(risky), 'rollout')} at risk", "red"),
        f": {gpus(total)} {verb_of(total, 'has', 'have')} no healthy hardware behind {'it' if total == 1 else 'them'}",
    )
    return [Text(), title, rows, *more]


def _silent(opened: Sequence[RolloutSummary], now: datetime) -> list[RenderableType]:
    """Warn of clusters without recent health: their gates are shut, and nothing else says so."""
    silent = [
        rollout
        for rollout in opened
        if rollout.needs is not None and (rollout.health_at is None or now - rollout.health_at >= STALE)
    ]
    if not silent:
        return []
    names = some_of([clean(rollout.cluster) for rollout in silent], 3)
    return [
        Text(),
        line((f"{count(len(silent), 'cluster')} without a health report for {span(STALE)}", "yellow"), f": {names}"),
    ]
