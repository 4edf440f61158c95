"""A haircut report for people, and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from rich.console import RenderableType
from rich.text import Text

from models.base import fraction_text
from models.planning.fleet_haircut import Haircut, Part, TeamPart
from views.csv_out import csv_text
from views.layout import Grid
from views.words import count, gpus, line, row, table

_TOLD = 5
"""The most teams for which a line says whose jobs use the GPUs that are cut."""
_FIELDS = tuple(dict.fromkeys([*Part.model_fields, *TeamPart.model_fields]))


def fleet_parts(haircut: Haircut, at: int, untold: int = 0) -> list[RenderableType]:
    """Return the whole fleet at each buffer, then each wave. `untold`: how many cut teams' jobs are left out."""
    whole = haircut.fleet[0]
    return [
        line(
            (count(whole.clusters, "cluster"), "bold"),
            f": {gpus(whole.total_gpus)} installed, {whole.healthy_gpus:,} healthy, {whole.assigned_gpus:,} promised, "
            f"{whole.unbacked_gpus:,} of them without a healthy GPU",
        ),
        Text(),
        _by_buffer(haircut),
        Text(),
        Text("Each wave: how many GPUs it would cut, in how many clusters, and how many of the GPUs are phantom"),
        _cuts(haircut, "wave", at, with_clusters=True),
        Text(),
        line(sentence(haircut, at)),
        *_works(haircut, at, untold),
    ]


def parts_by(haircut: Haircut, what: str, at: int) -> list[RenderableType]:
    """Return the GPUs cut at each buffer, a line for each `what`: wave, cluster or team."""
    return [_cuts(haircut, what, at), Text(), line(sentence(haircut, at)), *_works(haircut, at)]


def _works(haircut: Haircut, at: int, untold: int = 0) -> list[RenderableType]:
    """Say whose jobs use the GPUs that are cut, for some teams, where that is known."""
    cuts = haircut.works[at] if haircut.works else ()
    more = len(cuts) + untold - _TOLD
    return [
        *(line(cut.text) for cut in cuts[:_TOLD]),
        *([line(f"and {more} more; --json has them.")] if more > 0 else []),
    ]


def sentence(haircut: Haircut, at: int) -> str:
    """Return the report in a few words, at one of its buffers."""
    part, plain = haircut.fleet[at], haircut.without.cut_gpus
    short = f"; {part.short_gpus:,} more would have to be cut, but may not be" if part.short_gpus else ""
    are, their = ("is", "its") if part.clusters_above == 1 else ("are", "their")
    those = f"{part.clusters_above} of {count(part.clusters, 'cluster')}"
    above = f"{those} {are} above {their} ceiling, by {gpus(part.above_gpus)}"
    anyhow = f" Even without a buffer, {plain:,} would be cut." if plain else ""
    promised = "promised GPU" if part.assigned_gpus == 1 else "promised GPUs"
    return (
        f"At a buffer of {percent(haircut.buffers[at])}: {part.cut_gpus:,} of {part.assigned_gpus:,} {promised} "
        f"{'is' if part.cut_gpus == 1 else 'are'} cut{_became(part)}{short}.{anyhow} {above}."
    )


def _became(part: Part) -> str:
    """Say what the cut GPUs become, so that nobody adds the parts to their number."""
    if not part.cut_gpus:
        return ""
    have, move = "has" if part.phantom_gpus == 1 else "have", "moves" if part.to_flex_gpus == 1 else "move"
    them = "it" if part.phantom_gpus == 1 else "them"
    stay = "stays" if part.to_flex_gpus == 1 else "stay"
    to_flex = f"{part.to_flex_gpus:,} {move} to flex and {stay} usable"
    return f": {part.phantom_gpus:,} {have} no healthy GPU behind {them} now, and {to_flex}"


def percent(share: Fraction) -> str:
    """Return 15%, 12.5%; a share without a finite decimal as a fraction."""
    text = fraction_text(share * 100)
    return fraction_text(share) if "/" in text else f"{text}%"


def rows_of(haircut: Haircut, what: str) -> Mapping[str, Sequence[Part | TeamPart]]:
    if what == "wave":
        return haircut.waves
    return haircut.clusters if what == "cluster" else haircut.teams


def as_csv(haircut: Haircut) -> str:
    """Return a line for the fleet and each wave, cluster and team at each buffer. What does not apply is empty."""
    rows: list[Sequence[object]] = [["what", "name", "buffer", *_FIELDS]]
    parts: list[tuple[str, str, Sequence[Part | TeamPart]]] = [("fleet", "", haircut.fleet)]
    parts += [
        (what, name, parts_of)
        for what in ("wave", "cluster", "team")
        for name, parts_of in rows_of(haircut, what).items()
    ]
    for what, name, parts_of in parts:
        for buffer, part in zip(haircut.buffers, parts_of, strict=True):
            rows.append([what, name, fraction_text(buffer), *(getattr(part, field, "") for field in _FIELDS)])
    return csv_text(rows)


def _by_buffer(haircut: Haircut) -> Grid:
    shown = table(">BUFFER", ">CEILING", ">CLUSTERS ABOVE", ">GPUS ABOVE", ">CUT", ">PHANTOM", ">TO FLEX", ">SHORT")
    for buffer, part in zip(haircut.buffers, haircut.fleet, strict=True):
        row(
            shown,
            percent(buffer),
            part.ceiling_gpus,
            f"{part.clusters_above} of {part.clusters}",
            part.above_gpus,
            part.cut_gpus,
            part.phantom_gpus,
            part.to_flex_gpus,
            part.short_gpus,
            style="yellow" if part.short_gpus else "",
        )
    return shown


def _cuts(haircut: Haircut, what: str, at: int, with_clusters: bool = False) -> Grid:
    """Return cut GPUs by buffer, as `phantom + to flex`, after the number of clusters. The buffer `at` goes last."""
    held = {"team": ["QUOTA"], "cluster": ["PROMISED"]}.get(what, [])
    heads = [f"AT {percent(buffer)}" for buffer in haircut.buffers]
    furthest = sorted(range(len(heads)), key=lambda n: -abs(n - at))[:-1]
    least = [*held, *(heads[n] for n in furthest)]
    shown = table(what.upper(), *(f">{head}" for head in (*held, *heads)), least=least)
    for name, parts in rows_of(haircut, what).items():
        row(shown, name, *[parts[0].held_gpus for _ in held], *[_cell(part, with_clusters) for part in parts])
    return shown


def _cell(part: Part | TeamPart, with_clusters: bool) -> str:
    """Return `38 in 2 (26 phantom)`, without clusters `38 (26 phantom)`; `-` where no cluster is of that wave."""
    if with_clusters and not part.clusters:
        return "-"
    where = f" in {part.clusters}" if with_clusters else ""
    return f"{part.cut_gpus}{where}" + (f" ({part.phantom_gpus} phantom)" if part.phantom_gpus else "")
