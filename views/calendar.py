"""Declared windows for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from models.cluster.windows import FLEET_HOLD, HOLD, Entry, Foretold, Window, gpus_taken, hold_name, span_text
from models.texts import some_of
from views.status import foretold_line
from views.words import count, line, moment, row, table

_FILE = "fleet file"
_NAMED = 12


def calendar_parts(
    entries: Sequence[Entry],
    gone: Sequence[Entry],
    foretold: Mapping[str, Sequence[Foretold]],
    now: datetime,
) -> list[RenderableType]:
    """Return a line for each window, then the windows that were taken back, and what the others will take."""
    back = [line(("Taken back", "bold"), f": {span_text(e.window)} of {e.cluster}.") for e in gone]
    if not entries:
        return [*back] or [line("No window is declared. To declare one: backstop hold CLUSTER")]
    declared = declarations(entries)
    which = "CLUSTER" if all(len(clusters) == 1 for _, clusters in declared) else "~CLUSTERS"  # no name: no link to it
    rows = table(
        *(which, ">ID", "=KIND", "=STARTS", "=ENDS", ">GPUS", "~ISLANDS", "~REASON", "BY"), least=("BY", "GPUS")
    )
    for entry, clusters in declared:
        window = entry.window
        row(
            rows,
            entry.cluster if len(clusters) == 1 else which_clusters(entry, clusters),
            entry.id if len(clusters) == 1 else hold_name(entry.source),
            window.kind.value,
            moment(window.starts),
            moment(window.ends),
            gpus_taken(window),
            "all" if window.islands is None else ", ".join(window.islands),
            window.reason,
            entry.declared_by if entry.source else f"{entry.declared_by}, {_FILE}" if entry.declared_by else _FILE,
            style="yellow" if window.starts <= now < window.ends else "",
        )
    ahead = _losses(foretold, now)
    return [rows, *((Text(), *back) if back else ()), *((Text(), *ahead) if ahead else ())]


def declarations(entries: Sequence[Entry]) -> list[tuple[Entry, list[str]]]:
    """Return each declared window with its clusters: a hold of several clusters is one window."""
    together: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        own = () if entry.source.startswith((HOLD, FLEET_HOLD)) else (entry.id,)
        together.setdefault((entry.source, entry.window, *own), []).append(entry)
    return [(same[0], [e.cluster for e in same]) for same in together.values()]


def which_clusters(entry: Entry, clusters: Sequence[str]) -> str:
    return f"every cluster ({len(clusters):,})" if entry.source.startswith(FLEET_HOLD) else some_of(clusters, 3)


def hold_parts(
    window: Window,
    clusters: Sequence[str],
    rollouts: Sequence[str],
    foretold: Mapping[str, Sequence[Foretold]],
    now: datetime,
) -> list[RenderableType]:
    """Return what one window for several clusters would hold. `rollouts`: the clusters with an open rollout."""
    names = f"{count(len(clusters), 'cluster')}: {some_of(clusters, _NAMED)}."
    held = "No rollout is open there."
    if rollouts:
        stays = "its gate stays" if len(rollouts) == 1 else "their gates stay"
        held = f"{count(len(rollouts), 'open rollout')}: {stays} shut during the window ({some_of(rollouts, _NAMED)})."
    return [line((span_text(window), "bold"), f": {window.reason}"), line(names), line(held), *_losses(foretold, now)]


def _losses(foretold: Mapping[str, Sequence[Foretold]], now: datetime) -> list[RenderableType]:
    return [
        line((f"{name}: ", "bold")).append_text(foretold_line(window, now))
        for name, all_ in foretold.items()
        for window in all_
    ]
