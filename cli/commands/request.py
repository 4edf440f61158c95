"""`backstop request`: ask for more quota, and decide on requests."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands_from_rows import TypedOrder, add_orders
from cli.completion_names import note_requests
from cli.list_options import Listing, listed, tell
from cli.options import (
    Actor,
    AsJson,
    Cluster,
    ClusterOrAll,
    Otherwise,
    ReasonOption,
    actor_of,
    arg,
    check_model,
    examples,
    flag,
    opt,
)
from cli.session import ask, or_nobody
from models.errors import BadInput
from models.lifecycle.command_rows import DECIDE
from models.requests.command_rows import REQUEST_ROWS

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.requests.state import RequestState

_MOST = 10_000_000
_REFUSED = 3
_LOOKS, _PAUSE_SECONDS = 12, 0.5
"""How often, and how many seconds apart, the command checks whether the approved quota is written."""

Id = Annotated[str, arg("ID", "The request's id, as `backstop request list` shows it.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(cls=_Request, help="Ask for more quota, and decide on requests.")
    for name, command, lines in (
        (
            "new",
            new,
            (
                "backstop request research h100-pods 16 --until 7d --reason 'final run before the deadline'",
                "backstop request new evals h100-pods 8 --until 2026-12-24 --namespace evals-nightly --json",
            ),
        ),
        ("list", list_all, ("backstop request list", "backstop request list --filter stage=asked --sort ask.gpus")),
        ("show", show_one, ("backstop request show q-4f2a9c1b",)),
    ):
        group.command(name, epilog=examples(*lines))(command)
    add_orders(group, REQUEST_ROWS, _decide, Id)
    app.add_typer(group, name="request", rich_help_panel=DECIDE)


class _Request(Otherwise):
    """The group whose default is `new`: `backstop request TEAM CLUSTER GPUS` is `backstop request new`."""

    otherwise, alone = "new", False


def new(
    team: Annotated[str, arg("TEAM", "The team whose quota grows.", show_default=False)],
    cluster: Cluster,
    gpus: Annotated[str, arg("GPUS", "How many GPUs more.", show_default=False)],
    until: Annotated[
        str | None,
        opt(
            "DATE",
            "When Backstop takes the GPUs back: at the end of a day (UTC) such as 2026-12-24, or after 7d.",
            show_default="never",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        opt(
            "NAME",
            "The scheduler's namespace that the jobs run in; needed only for a quota that is limited to certain "
            "namespaces.",
            show_default="the one with the team's name",
        ),
    ] = None,
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Ask for more quota. A request that does not fit is refused at once; the answer lists what would fit. `backstop
    request TEAM CLUSTER GPUS` is short for this.

    A request that fits waits for an owner of the cluster (the policy's `owners`) or of the rollout that is open there;
    an approved one is a *grant* (docs/requests.md).
    """
    from models.requests.state import QuotaAsk, RequestStage
    from models.requests.undo_lines import undo_of_ask

    if not team.strip():
        raise BadInput("TEAM is empty: name a team")
    if not (gpus.isascii() and gpus.isdigit() and 1 <= int(gpus[:20]) <= _MOST):
        raise BadInput(f"GPUS must be a whole number from 1 to {_MOST}, not {gpus!r}")
    now, person = datetime.now(UTC), actor_of(actor)
    for option, text in (("--until", until), ("--namespace", namespace)):
        if text is not None and not text.strip():
            raise BadInput(f"{option} is empty: give it a value, or leave it out")
    if namespace is not None and "," in namespace:
        raise BadInput(f"--namespace takes one name, not {namespace!r}")
    ends = None if until is None else _day(until, now)
    asked = check_model(
        QuotaAsk,
        request=f"q-{secrets.token_hex(4)}",
        team=team,
        cluster=cluster,
        gpus=int(gpus),
        until=ends,
        namespace=namespace or "",
        actor=person,
        reason=reason,
    )
    state = ask(person, lambda door: door.request(asked))
    _answer(state, undo_of_ask(state), as_json=as_json)
    if state.stage is RequestStage.REFUSED:
        raise typer.Exit(_REFUSED)


@listed
def list_all(
    cluster: ClusterOrAll = "",
    ended: Annotated[bool, flag("--all", "Show ended requests too.")] = False,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show the requests that wait, and the approved ones (grants) that have an end."""
    from cli.json_answers import RequestsAnswer
    from models.requests.state import RequestState
    from views.request import list_parts

    async def question(door: Backstop) -> tuple[RequestState, ...]:
        from models.status_questions import RequestsOf

        return await door.ask(RequestsOf(cluster=cluster, ended=ended))

    all_requests = ask(actor_of(actor), question)
    if not cluster and not ended:
        note_requests(
            {
                request.ask.request: f"{request.ask.team} {request.ask.cluster} {request.stage}"
                for request in all_requests
            }
        )
    requests = how.rows(all_requests, RequestState)
    how.tell(
        lambda: RequestsAnswer(requests=tuple(requests)),
        lambda: list_parts(requests, cluster, ended=ended),
        [one.ask.request for one in requests],
        (len(all_requests), "request"),
    )


def show_one(request: Id, as_json: AsJson = False, actor: Actor = "") -> None:
    """Show one request: what was asked for, by whom, and where it is."""

    name = _id(request)

    async def question(door: Backstop) -> tuple[RequestState, list[str]]:
        from models.questions import OneRequest
        from models.requests.state import RequestStage

        state = await door.ask(OneRequest(request=name))
        waits = state.stage is RequestStage.ASKED and not as_json
        return state, await or_nobody(door.who_could("backstop request approve ID", subject=name)) if waits else []

    state, could = ask(actor_of(actor), question)
    _answer(state, "", as_json=as_json, could=could)


def _decide(typed: TypedOrder) -> None:
    from models.requests.commands import RequestCommand, RequestOrder
    from models.requests.state import RequestStage
    from models.requests.undo_lines import request_undo_line

    person = actor_of(typed.actor)
    fields = {name: _day(day, datetime.now(UTC)) for name, day in typed.fields.items()}
    order, name_of = check_model(RequestOrder, actor=person, reason=typed.reason, **fields), _id(typed.of)
    under_way = (RequestStage.ASKED, RequestStage.APPROVED, RequestStage.RETURNING)

    async def question(door: Backstop) -> RequestState:
        from models.questions import OneRequest

        state = await door.decide_request(name_of, RequestCommand(typed.row.name), order)
        for _ in range(_LOOKS):
            if state.stage not in under_way or state.waits_for:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
            state = await door.ask(OneRequest(request=name_of))
        return state

    state = ask(person, question)
    _answer(state, request_undo_line(state, RequestCommand(typed.row.name)), as_json=typed.as_json)
    if state.stage is RequestStage.REFUSED:
        raise typer.Exit(_REFUSED)


def _id(request: str) -> str:
    """Return a request's id. Errors: BadInput naming the value."""
    if not re.fullmatch(r"[a-z0-9-]{1,100}", request):
        raise BadInput(f"ID must be a request's id, such as q-4f2a9c1b, not {request!r}")
    return request


def _day(text: str, now: datetime) -> datetime:
    """Parse a time, a duration from now, or the end of a day. Errors: BadInput naming the option and the value."""
    from cli.time_options import instant, shift_time

    whole_day = re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None
    end = instant("--until", f"{text}T00:00Z" if whole_day else text, now)
    end = shift_time("--until", text, end, timedelta(days=whole_day))
    if end <= now:
        raise BadInput(f"--until {text} is in the past")
    return end


def _answer(state: RequestState, undo: str, *, as_json: bool, could: Sequence[str] = ()) -> None:
    from cli.json_answers import RequestAnswer
    from views.request import request_parts
    from views.words import line

    answer = RequestAnswer(request=state.but(outbox=(), mail=()))
    tell(answer, lambda: [*request_parts(state, could), *([line(undo)] if undo else [])], as_json=as_json)
