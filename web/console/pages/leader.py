"""The leader's page: the week, the milestones, the outcome, and the cost of a buffer. It can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from client.weekly_report import weekly
from models.fleet_cut_questions import HaircutSums
from models.page_questions import LEADER_CURVE, times_back
from models.planning.fleet_haircut import USUAL, Haircut
from models.reports.weekly import WEEK, Week
from views.haircut import fleet_parts
from views.haircut import percent as percent_text
from views.layout import Grid
from views.report import MOST, Section, emergencies, lead, numbers, sections, title
from views.words import row, table
from web.console.pages.gpu_curves import curve_of
from web.console.visit import Page, Visit
from web.console.visit_door import door_of
from web.failures import not_found

_AT_ONCE = 50
"""Up to this many clusters, the page always shows what a buffer costs; for more, only on request."""
_REPORT_SECONDS, _PLAN_SECONDS = 14.0, 42.0
_PAGES = {"backstop status": "/", "backstop status --at-risk": "/?show=risk", "backstop calendar show": "/calendar"}
_LEAST, _MOST, _USUAL = 0, 50, 15
"""The smallest, largest and usual buffer, in percent."""


async def leader(visit: Visit) -> Page:
    if len(visit.path) > 1:
        raise not_found("there is no such page of the leader")
    week, no_week = await visit.try_read(_week(visit), _REPORT_SECONDS)
    percent, asked = _percent(visit.query.get("buffer", "")), bool(visit.query.get("buffer"))
    plans = asked or (week is not None and week.clusters <= _AT_ONCE)
    cost, no_cost = await visit.try_read(_haircut(visit, percent), _PLAN_SECONDS) if plans else (None, "")
    values: dict[str, Any] = {
        "no_week": no_week,
        "week": None if week is None else _report_values(week),
        "curve": None if week is None else curve_of([p for p in week.points if p.known]),
        "percent": percent,
        "least": _LEAST,
        "most": _MOST,
        "cost": [] if cost is None else cost.parts,
        "bars": [] if cost is None else cost.bars,
        "left_out": "" if cost is None else cost.left_out,
        "no_cost": no_cost,
        "asked_for": plans,
    }
    return Page("leader.html", "Leader", values)


async def _week(visit: Visit) -> Week:
    times, step = times_back(visit.now, *LEADER_CURVE)
    return await weekly(door_of(visit), visit.now - WEEK, visit.now, times, step, live=True, most=MOST)


def _report_values(week: Week) -> dict[str, Any]:
    return {
        "title": title(week),
        "lead": lead(week),
        "alone": emergencies(week, typed=False),
        "numbers": numbers(week),
        "sections": [
            (section.title, [_grid(section)] if section.rows else [], *_note(section.note))
            for section in sections(week)
        ],
    }


def _note(note: str) -> tuple[str, str]:
    """Return a section's note without the command that lists the rest, and the page that does."""
    for command, page in _PAGES.items():
        if f"`{command}`" in note:
            return note.replace(f": `{command}`", ""), page
    for unlisted in (": `--json`", ": `backstop milestones set FILE`"):
        note = note.replace(unlisted, "")
    return note, ""


def _grid(section: Section) -> Grid:
    columns = [f"{'>' if n >= section.numbers_from else '~'}{name}" for n, name in enumerate(section.columns)]
    grid = table(*("CLUSTER" if name == "~Cluster" else name for name in columns))
    for cells in section.rows:
        row(grid, *cells)
    return grid


def _percent(text: str) -> int:
    """Parse the range input; anything else gives the usual value."""
    return min(_MOST, max(_LEAST, int(text))) if text.isascii() and text.isdigit() and len(text) < 4 else _USUAL


class Bar(NamedTuple):
    """A buffer's cut: `phantom` GPUs have no healthy one behind them, `to_flex` stay usable. Widths: of 1,000."""

    buffer: str
    chosen: bool
    cut: int
    phantom: int
    to_flex: int
    phantom_width: int
    flex_width: int


class Cost(NamedTuple):
    parts: Sequence[Any]
    bars: Sequence[Bar]
    left_out: str


async def _haircut(visit: Visit, percent: int) -> Cost | None:
    """Return the cost of buffers. A worker plans and caches it: the front only draws."""
    at = Fraction(percent, 100)
    buffers = tuple(sorted({*USUAL, at}))
    whole = await visit.ask(HaircutSums(buffers=buffers))
    chosen = buffers.index(at)
    if not whole.report.fleet[chosen].clusters and not whole.left_out:
        return None
    parts = fleet_parts(whole.report, chosen, whole.untold[chosen])
    return Cost(parts, _bars(whole.report, chosen), _left_out_text(whole.left_out))


def _left_out_text(clusters: int) -> str:
    if not clusters:
        return ""
    are = "cluster cannot be planned now and is" if clusters == 1 else "clusters cannot be planned now and are"
    whose = "its" if clusters == 1 else "their"
    return f"{clusters:,} {are} left out: {whose} health, quotas or policy are missing or invalid."


def _bars(report: Haircut, chosen: int) -> list[Bar]:
    most = max(1, *(part.cut_gpus for part in report.fleet))
    return [
        Bar(
            percent_text(buffer),
            n == chosen,
            part.cut_gpus,
            part.phantom_gpus,
            part.to_flex_gpus,
            round(1000 * part.phantom_gpus / most),
            round(1000 * part.to_flex_gpus / most),
        )
        for n, (buffer, part) in enumerate(zip(report.buffers, report.fleet, strict=True))
    ]
