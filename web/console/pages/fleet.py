"""The fleet page: what needs a person, then every cluster, by stage and wave. Its filters are in the address."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from client.answer_models import STALE
from models.cluster.policy import AFTER_ALL, TIERS
from models.fleet.messages import FleetStatus
from models.fleet.state import FleetStage, MemberState
from models.lifecycle.holds import Hold, holds_text, standing_text
from models.reports.rollout_summary import RolloutSummary
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command, Stage
from models.texts import some_of
from views.layout import commands_in
from views.overview import unknown_holds_text
from views.words import clean, gpus, span
from web.console.forms import is_like
from web.console.pages.fleet_rollout import fleet_buttons
from web.console.pages.gpu_curves import burn_down_of, curve_of, tallied_points
from web.console.views_html import place
from web.console.visit import Page, Visit

_SHOWN = 1_000
_NOT_STARTED = "not started"
_FIRST = 20
"""The most clusters in need of a person that get a button each."""
_FEW = 20
"""Up to this many clusters need no map: a list is enough."""
_CURVE, _POINTS = timedelta(weeks=4), 57
_STAGES = [stage.value for stage in Stage]
_WAVES = [*(tier.value for tier in TIERS), AFTER_ALL]


class Deed(NamedTuple):
    """A button's label and path. Dots in the label: it asks before it does anything."""

    label: str
    path: str


_DEEDS = {
    Command.APPROVE: "Approve...",
    Command.RESOLVE: "Resolve...",
    Command.RESUME: "Resume...",
    Command.ACK: "Acknowledge...",
}
_LOOK = "Look..."
_CARE = re.compile(r"\b(mend|wait|import)\b")


def deed_of(cluster: str, needs: str) -> Deed:
    """Return the button of the only command that the cluster needs; else a button that opens the cluster's page."""
    commands = {needs[start:end].split()[1] for start, end in commands_in(needs) if " " in needs[start:end]}
    for command, label in _DEEDS.items():
        if commands == {command.value} and not _CARE.search(needs):
            return Deed(label, place("clusters", cluster, command.value))
    return Deed(_LOOK, f"{place('clusters', cluster)}#do")


class Row(NamedTuple):
    """A cluster's row. `unbacked`: its GPUs without hardware now; `would`: those that a shadow would have."""

    cluster: str
    stage: str
    shadow: bool
    open: bool
    wave: str
    owner: str
    unbacked: int | None
    would: int | None
    needs: str
    could: str
    silent: str
    lost: bool
    urgency: tuple[int, int, str]
    held: str = ""
    holds: tuple[Hold, ...] = ()

    @property
    def news(self) -> str:
        """The text of what the cluster needs or lacks, without the command that its button gives."""
        commands = commands_in(self.needs)
        if self.deed.label == _LOOK or commands[0][1] < len(self.needs.rstrip("`")):
            return self.needs or self.silent
        return self.needs[: commands[0][0]].rstrip("`: ").removesuffix(", then")

    @property
    def story(self) -> str:
        """The text of what the cluster needs or lacks, and what holds its rollout."""
        held = f"on hold: {self.held}" if self.held else ""
        is_said = self.held.startswith(self.news) or self.news in map(standing_text, self.holds)
        parts = (held,) if is_said else (self.news, held)
        return "; ".join(part for part in parts if part) or self.news

    @property
    def hint(self) -> str:
        """The tooltip of the cluster's square on the map."""
        unbacked = f"{gpus(self.unbacked)} unbacked" if self.open and self.unbacked else ""
        rest = [clean(text) for text in (self.stage, self.wave, unbacked, self.story) if text]
        return f"{clean(self.cluster)}: {', '.join(rest)}"

    @property
    def deed(self) -> Deed:
        return deed_of(self.cluster, self.needs)

    @property
    def mood(self) -> str:
        """The row's urgency, as a CSS class."""
        if self.lost or self.stage == Stage.STUCK:
            return "bad"
        return "warn" if self.needs or self.silent else "bad" if self.open and self.unbacked else ""


class Filter(NamedTuple):
    name: str = ""
    stage: str = ""
    wave: str = ""
    show: str = ""

    def has(self, row: Row) -> bool:
        return (
            is_like(row.cluster, self.name)
            and (not self.stage or row.stage == self.stage)
            and (not self.wave or row.wave == self.wave)
            and (self.show != "needs" or bool(row.needs))
            and (self.show != "risk" or bool(row.open and row.unbacked))
            and (self.show != "silent" or bool(row.silent))
            and (self.show != "held" or bool(row.held))
        )


async def fleet(visit: Visit) -> Page:
    summaries: Sequence[RolloutSummary]
    # Beside one another: where no worker answers each waits for itself.
    summaries, (under_way, why_not), drawn = await asyncio.gather(
        visit.call("overview"), visit.try_call("open_fleet"), _burn_down(visit)
    )
    rows = [_row(summary, visit) for summary in summaries]
    opened = [row for row in rows if row.open]
    waiting = _waiting_rows(under_way, {row.cluster for row in opened}) if under_way is not None else []
    asked = Filter(**{name: visit.query.get(name, "")[:200] for name in Filter._fields})
    shown = [row for row in (*rows, *(waiting if asked.show == "held" else ())) if asked.has(row)]
    if asked.show:
        shown.sort(key=lambda row: row.urgency)
    values: dict[str, Any] = {
        "rows": shown[:_SHOWN],
        "more": max(0, len(shown) - _SHOWN),
        "all": len(rows),
        "opened": len(opened),
        "needs": (needs := sorted((row for row in opened if row.needs or row.lost), key=lambda row: row.urgency)),
        "next": await asyncio.gather(*(_with_deed(visit, row) for row in needs[:_FIRST])),
        "risky": [row for row in opened if row.unbacked],
        "silent": [row for row in opened if row.silent],
        "held": len(waiting) + sum(bool(row.held) for row in opened),
        "held_unknown": unknown_holds_text(summaries),
        "silence": span(STALE),
        "rehearse": any(row.shadow for row in shown),
        "columns": (columns := [w for w in _WAVES if w != AFTER_ALL or any(row.wave == w for row in rows)]),
        "grid": _grid(rows, columns),
        "map": _map(shown[:_SHOWN]) if len(shown) > _FEW else [],
        "waves": _WAVES,
        "asked": asked,
        "stages": [stage for stage in _STAGES if any(row.stage == stage for row in rows)],
        "under_way": under_way,
        "no_fleet": why_not,
        "fleet_can": []
        if under_way is None
        else [button for button in await fleet_buttons(visit, under_way) if not button.why_not],
        "unknown": any(summary.needs is None for summary in summaries),
        **drawn,
    }
    return Page("fleet.html", "Fleet", values)


async def _with_deed(visit: Visit, row: Row) -> tuple[Row, Deed]:
    """Return the row and its button; for visitors who may not give the command, a button to the page that says why."""
    deed = row.deed
    if deed.label == _LOOK:
        return row, deed
    command, request = deed.path.rpartition("/")[2], CommandRequest(actor=visit.principal.name, reason="may it")
    may = await visit.may_by_file("command", cluster=row.cluster, command=Command(command), request=request)
    return row, deed if may else deed_of(row.cluster, "")


def _row(summary: RolloutSummary, visit: Visit) -> Row:
    silent = ""
    if (
        summary.open
        and summary.needs is not None
        and (summary.health_at is None or visit.now - summary.health_at >= STALE)
    ):
        silent = (
            "no health is known"
            if summary.health_at is None
            else f"no health for {span(visit.now - summary.health_at)}"
        )
    needs = "lost: nobody guards its quotas until it is taken over" if summary.lost else summary.needs or ""
    figures = summary.unbacked_gpus, summary.would_unbacked_gpus
    return Row(
        summary.cluster,
        summary.stage,
        summary.shadow,
        summary.open,
        summary.wave,
        summary.owner,
        *figures,
        needs,
        some_of(summary.could, 5),
        silent,
        summary.lost,
        summary.urgency,
        (summary.held or "") if summary.open else "",
        summary.holds,
    )


def _waiting_rows(under_way: FleetStatus, opened: Collection[str]) -> list[Row]:
    """Return the clusters that the fleet rollout may not start now, because it or the cluster is on hold."""
    if under_way.stage is not FleetStage.RUNNING:
        return []
    fleets = f"the whole fleet rollout, {holds_text(under_way.holds)}" if under_way.holds else ""
    return [
        Row(
            *(m.cluster, _NOT_STARTED, under_way.shadow, False, m.wave.value, under_way.owner, None, None),
            *("", "", "", False, (5, 0, m.cluster), "; ".join(text for text in (fleets, m.held) if text)),
        )
        for m in under_way.members
        if m.state is MemberState.WAITING and m.cluster not in opened and (fleets or m.held)
    ]


def _grid(rows: Sequence[Row], waves: Sequence[str]) -> list[tuple[str, list[int], int, int]]:
    """Return a row for each stage: clusters by wave and without one, their sum, and GPUs without healthy hardware."""
    count = Counter((row.stage, row.wave if row.wave in waves else "") for row in rows)
    stages = [*_STAGES, *sorted({row.stage for row in rows} - {*_STAGES})]
    grid = []
    for stage in stages:
        counts = [count[stage, wave] for wave in (*waves, "")]
        if any(counts):
            theirs = [row for row in rows if row.stage == stage and row.open]
            grid.append((stage, counts, sum(counts), sum(row.unbacked or 0 for row in theirs)))
    return grid


def _map(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the clusters of each stage, wave by wave and by name: a square for each."""
    order = {wave: number for number, wave in enumerate(_WAVES)}
    squares = sorted(rows, key=lambda row: (order.get(row.wave, len(order)), row.cluster))
    stages = [*_STAGES, *sorted({row.stage for row in rows} - {*_STAGES})]
    by_stage = [(stage, [row for row in squares if row.stage == stage]) for stage in stages]
    return [(stage, theirs) for stage, theirs in by_stage if theirs]


async def _burn_down(visit: Visit) -> Mapping[str, Any]:
    """Draw phantom GPUs of the whole fleet, four weeks back, with a table."""
    points, why = await tallied_points(visit, _CURVE, _POINTS)
    return {
        "burn_down": burn_down_of(points),
        "curve": curve_of(points),
        "no_curve": why,
        "phantom": points[-1] if points else None,
    }
