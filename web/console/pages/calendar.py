"""Declared windows that are not over, what they will take, and a form that ends a window or a hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

from models.cluster.windows import FLEET_HOLD, HOLD, Entry, Foretold, hold_name
from models.errors import BadInput
from models.planning.window_forecast import forecast_windows
from models.questions import Calendar, EndHold, EndWindow
from views.calendar import calendar_parts, declarations, which_clusters
from views.words import count as counted
from web.console.forms import try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit
from web.console.visit_door import door_of
from web.failures import not_found

_ENDABLE = 200
"""The most windows and holds that a form offers; for others, the address must name the cluster."""


async def calendar(visit: Visit) -> Page | Elsewhere:
    if len(visit.path) > 1:
        raise not_found("there is no such page of the calendar")
    if not visit.form:
        return await _page(visit)
    reason, which = visit.form.get("reason", "").strip(), visit.form.get("window", "")
    done, failed = await try_work(visit, _end(visit, which, reason))
    if failed:
        return await _page(visit.without_form, failed, which, reason)
    if done:
        visit.add_sentence(done)
    cluster = visit.query.get("cluster", "")
    return Elsewhere(place("calendar") + (f"?cluster={quote(cluster, safe='')}" if cluster else ""))


async def _end(visit: Visit, which: str, reason: str) -> str:
    """End a window (`which`: number, blank, cluster) or a hold (its source). Errors: BadInput, the question's."""
    if not reason:
        raise BadInput("ending a window needs a reason")
    if which.startswith((HOLD, FLEET_HOLD)):
        entries = await visit.without_form.ask(Calendar(since=visit.now))
        clusters = tuple(dict.fromkeys(e.cluster for e in entries if e.source == which))
        if not clusters:
            raise BadInput("that hold is over already")
        ended = await visit.ask(EndHold(source=which, clusters=clusters, reason=reason))
        return f"Hold {hold_name(which)} of {counted(len(clusters), 'cluster')} is {_over(ended, visit.now)}."
    count, _, cluster = which.partition(" ")
    if not (count.isascii() and count.isdigit() and cluster):
        raise BadInput("name a window of the list")
    one = await visit.ask(EndWindow(cluster=cluster, number=int(count[:18]), reason=reason))
    return f"Window {int(count)} of {cluster} is {_over((one,), visit.now)}."


def _over(ended: Sequence[Entry], now: datetime) -> str:
    """Say what became of the windows: one that has not begun is taken back."""
    return "over" if any(one.window.starts <= now for one in ended) else "taken back"


async def _page(visit: Visit, failed: str = "", which: str = "", reason: str = "") -> Page:
    cluster = visit.query.get("cluster", "")[:200]
    entries = await visit.ask(Calendar(cluster=cluster, since=visit.now))
    ahead, no_forecast = dict[str, tuple[Foretold, ...]](), ""
    named = {e.cluster for e in entries if e.window.starts > visit.now}
    if named:
        specs, no_forecast = await try_work(visit, door_of(visit).clusters_named(named))
        ahead = {c.name: forecast_windows(c.name, c.quotas, c.islands, c.windows, visit.now) for c in specs or ()}
    values = {
        "cluster": cluster,
        "parts": calendar_parts(entries, (), {name: each for name, each in ahead.items() if each}, visit.now),
        "declared": [
            (f"{e.id} {e.cluster}", e.id, e.cluster, e.window)
            if len(clusters) == 1
            else (e.source, hold_name(e.source), which_clusters(e, clusters), e.window)
            for e, clusters in declarations(entries)[:_ENDABLE]
        ],
        "no_forecast": no_forecast,
        "failed": failed,
        "which": which,
        "reason": reason,
    }
    return Page("calendar.html", "Calendar", values, 409 if failed else 200)
