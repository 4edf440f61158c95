"""Requests for more quota: the open ones, and one of them with the forms that decide on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from models.errors import BadInput
from models.questions import OneRequest
from models.requests.command_rows import REQUEST_ROWS
from models.requests.commands import RequestCommand, RequestOrder, refusal
from models.requests.state import RequestStage, RequestState
from models.requests.undo_lines import request_undo_line
from models.status_questions import RequestsOf
from views.request import request_parts
from web.console.forms import day_ahead, fill_model, try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit
from web.failures import not_found

_SHOWN = 500


async def requests(visit: Visit) -> Page | Elsewhere:
    if len(visit.path) == 1:
        return await _all(visit)
    if len(visit.path) == 2:
        return await _decide(visit, visit.path[1]) if visit.form else await _one(visit, visit.path[1])
    raise not_found("there is no such page of a request")


async def _all(visit: Visit) -> Page:
    cluster, ended = visit.query.get("cluster", "")[:200], bool(visit.query.get("ended"))
    requests = await visit.ask(RequestsOf(cluster=cluster, ended=ended))
    waiting = [one for one in requests if one.stage is RequestStage.ASKED]
    values = {
        "cluster": cluster,
        "ended": ended,
        "requests": requests[-_SHOWN:],
        "more": max(0, len(requests) - _SHOWN),
        "waiting": len(waiting),
        "able": any(one.could for one in waiting),
    }
    return Page("requests.html", "Requests", values)


async def _one(visit: Visit, name: str, failed: str = "", reason: str = "") -> Page:
    state = await visit.ask(OneRequest(request=name))
    buttons = [
        (
            command.value,
            REQUEST_ROWS[command].label,
            REQUEST_ROWS[command].summary,
            await _why_not(visit, state, command),
        )
        for command in RequestCommand
    ]
    could: list[str] | None = []
    if state.stage is RequestStage.ASKED:
        could, _ = await visit.try_call("who_could", needs=f"backstop request approve {name}", subject=name)
    values: dict[str, Any] = {
        "request": name,
        "parts": request_parts(state, could or ()),
        "ask": state.ask,
        "ends": state.ends_on is not None and state.stage is RequestStage.GRANTED,
        "buttons": buttons,
        "can": any(not why_not for *_, why_not in buttons),
        "failed": failed,
        "reason": reason,
    }
    return Page("request.html", f"Request {name}", values, 409 if failed else 200)


async def _why_not(visit: Visit, state: RequestState, command: RequestCommand) -> str:
    """Return why a command cannot be given: by the request's stage, then the table of rights."""
    later = None if state.ends_on is None else state.ends_on + timedelta(days=1)
    order = RequestOrder(actor=visit.principal.name, reason="may it", until=later)
    if why := refusal(state, command, order):
        return why
    return await visit.why_not("decide_request", request=state.ask.request, command=command, order=order)


async def _decide(visit: Visit, name: str) -> Page | Elsewhere:
    reason = visit.form.get("reason", "").strip()
    command = visit.form.get("command", "")
    done, failed = await try_work(visit, _send_command(visit, name, command, reason))
    if failed:
        return await _one(visit.without_form, name, failed, reason)
    if done is not None:
        news = f"{done.said[:1].upper()}{done.said[1:]}".rstrip(".")
        undo = request_undo_line(done, RequestCommand(command))
        visit.add_sentence(f"Request {name} is {done.stage}: {news}. {undo}")
    return Elsewhere(place("requests", name))


async def _send_command(visit: Visit, name: str, command: str, reason: str) -> RequestState:
    """Decide on the request. Errors: Refusal, BadInput; those of the operation."""
    if command not in set(RequestCommand):
        raise BadInput(f"the command for a request must be one of {', '.join(RequestCommand)}, not {command[:80]!r}")
    until = visit.form.get("until", "").strip() if command == RequestCommand.EXTEND else ""
    day = day_ahead("Until", until, visit.now) if until else None
    order = fill_model(RequestOrder, actor=await visit.name(), reason=reason, until=day)
    state: RequestState = await visit.call("decide_request", request=name, command=RequestCommand(command), order=order)
    return state
