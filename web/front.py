"""The front as one ASGI application: it identifies the caller, reads the request, checks the rights, and asks the door.

It keeps nothing but counts of requests and a connection: two fronts may run beside each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from opentelemetry import context as traces
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from temporalio.converter import PayloadCodec

from client.backstop import Backstop
from client.http_door import ALONE, HEARD
from client.operations import API, by_method
from models.access.principals import Principal, Proof
from models.access.second_persons import COUNTERSIGN
from models.errors import BackstopError, BadInput, Refusal
from models.questions import QUESTIONS
from web.answers import answer_response
from web.arguments import WATCH, arguments, hints
from web.authorized_calls import Asking, Giving, call_operation
from web.callers import Callers
from web.codec import CODEC, CodecEndpoint
from web.console.console import Console
from web.console.login import BrowserClient, Login
from web.events import Streams, changes
from web.failures import Problem, failure_response, forbidden_problem, not_found, unauthenticated_problem
from web.limits import Rate, body_of
from web.metrics import FrontDoor, record_time
from web.openapi import document
from web.rights import Everybody, Rights
from web.routing import Routes, all_routes
from web.slack.endpoint import SLACK_PATHS, SlackDesk, SlackTerms
from web.temporal_connection import Doors

logger = logging.getLogger("backstop.front")
_TRACE = TraceContextTextMapPropagator()
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_KEY = re.compile(r"[!-~]{1,200}")
_LARGE = 100_000
"""A body of more bytes is parsed in a thread, so that other requests do not wait."""
_GUARD = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


About = Callable[[], Awaitable[Mapping[str, Any]]]


async def _of_nothing() -> Mapping[str, Any]:
    return {"oidc": None}


class Codec(NamedTuple):
    """The codec for Temporal's UI and CLI, and the origins of the UIs whose pages may use it."""

    payloads: PayloadCodec
    origins: tuple[str, ...] = ()


@dataclass
class Front:
    """One process's front. `about`: public facts, such as how to log in. `codec` None: payloads stay encrypted."""

    doors: Doors
    callers: Callers
    about: About = _of_nothing
    rights: Rights = field(default_factory=Everybody)
    rate: Rate = field(default_factory=Rate)
    routes: Routes = field(default_factory=all_routes)
    streams: Streams = field(default_factory=Streams)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    codec: Codec | None = None
    with_console: bool = False
    public_url: str = ""
    console_at: str = ""
    """The console's URL, once the front listens there."""
    browsers: BrowserClient | None = None
    """The client with which browsers log in; None: they log in only by links made on this machine."""
    slack: SlackTerms | None = None
    """How the front verifies Slack's requests; None: it accepts none."""

    @cached_property
    def console(self) -> Console | None:
        if not self.with_console:
            return None
        console = Console(self.giving, stopping=self.stopping, public_url=self.public_url)
        if self.browsers is not None:
            console.log_in = Login(
                self.browsers.terms,
                lambda: self.console_at,
                console.begin_session,
                self.browsers.secret,
                self.giving.seconds_now,
            )
        return console

    @cached_property
    def slack_desk(self) -> SlackDesk | None:
        return None if self.slack is None else SlackDesk(self.slack, self.giving, self.rate)

    @cached_property
    def giving(self) -> Giving:
        return Giving(self.doors, self.rights)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self.codec is not None and scope["path"].startswith(CODEC):
            await CodecEndpoint(self.codec.payloads, self._may_read, origins=self.codec.origins)(scope, receive, send)
            return
        request = Request(scope, receive)
        if (
            self.console is not None
            and not self._is_slacks(request)
            and not scope["path"].startswith(("/api/", "/healthz"))
        ):
            await self._page(self.console, request, send)
            return
        response = await self._response(request)
        for name, value in _GUARD.items():
            response.headers.setdefault(name, value)
        with contextlib.suppress(OSError):
            await response(scope, receive, send)

    def _is_slacks(self, request: Request) -> bool:
        return self.slack_desk is not None and request.scope["path"].startswith(SLACK_PATHS)

    async def _page(self, console: Console, request: Request, send: Send) -> None:
        """Answer a page. Browsers are counted by their address."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            client = request.client
            self.rate.take(f"a browser at {client.host if client else 'the socket'}")
            response = await console.answer(request)
        except Problem as failure:
            response = failure_response(failure, uuid.uuid4().hex)
        record_time(FrontDoor.PAGE, response.status_code, loop.time() - began)
        with contextlib.suppress(OSError):
            await response(request.scope, request.receive, send)

    async def _response(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        asked_id, began = request.headers.get("x-request-id", ""), loop.time()
        request_id = asked_id if _ID.fullmatch(asked_id) else uuid.uuid4().hex
        try:
            response = await self._answer(request, request_id)
        except (Problem, BackstopError) as failure:
            response = failure_response(failure, request_id)
        except Exception as error:
            logger.exception("request %s", request_id)
            text = f"this should not have happened, and is a bug in Backstop: {type(error).__name__}"
            response = failure_response(Problem("fault", 500, "The front failed.", text), request_id)
        response.headers["x-request-id"] = request_id
        if self.doors.heard_lately:
            response.headers[HEARD] = "1"
        seconds = loop.time() - began
        record_time(FrontDoor.SLACK if self._is_slacks(request) else FrontDoor.API, response.status_code, seconds)
        logger.info("%s %s %s %.3f s", request.method, request.url.path, response.status_code, seconds)
        return response

    async def _answer(self, request: Request, request_id: str) -> Response:
        if self.slack_desk is not None and self._is_slacks(request):
            return await self.slack_desk.answer(request)
        open_to_all = await self._open_to_all(request)
        if open_to_all is not None:
            return open_to_all
        principal = await self._principal(request)
        if request.method == "POST" and request.scope["raw_path"] == f"{API}/console-link".encode():
            return self._link(principal)
        if request.method == "GET" and request.scope["raw_path"] == f"{API}/whoami".encode():
            return JSONResponse((await self.rights.principal_for(principal, None)).model_dump(mode="json"))
        asked = self.routes.route_of(request.method, request.scope["raw_path"])
        body = await _body(request)
        principal = await self.giving.principal_for(principal, asked.operation)
        read = partial(arguments, asked.operation, asked.in_path, request.query_params, body, principal)
        values = await asyncio.to_thread(read) if len(body) > _LARGE else read()
        alone = request.headers.get(ALONE) == "1"
        asking = Asking(principal, asked.operation, asked.in_path, values, alone, _key(request, principal))
        door = await self.giving.allow(asking)
        # The caller's trace goes on behind us; of what else the header could carry along nothing is taken.
        trace = traces.attach(_TRACE.extract(request.headers))
        try:
            return await self._respond(asking, door, request, request_id)
        finally:
            traces.detach(trace)

    def _link(self, principal: Principal) -> Response:
        """Answer a caller whom the kernel knows with a link that begins a browser's session, once and soon."""
        if self.console is None or not self.console_at:
            raise not_found("this front has no console: start it with `backstop serve --listen HOST:PORT`")
        if principal.proof is not Proof.PEER:
            raise forbidden_problem(
                "a login link is given only over this machine's own socket: log in on the console's page instead"
            )
        return JSONResponse({"url": f"{self.console_at}/open/{self.console.sessions.link(principal)}"})

    async def _may_read(self, request: Request) -> tuple[int, str] | None:
        """Return why the caller may not read Temporal's payloads; None: they may, as viewers of all clusters do."""
        try:
            principal = await self._principal(request)
            principal = await self.rights.principal_for(principal, by_method()["audit"])
            judged = await self.rights.judge(principal, by_method()["audit"], "read.audit", {"cluster": ""})
        except Problem as failure:
            return failure.status, failure.detail
        except BackstopError as error:
            return 503, error.message
        return (403, judged.why_not) if judged.why_not else None

    async def _open_to_all(self, request: Request) -> Response | None:
        path = request.scope["raw_path"].decode("latin-1")
        if request.method == "GET" and path == f"{API}/auth":
            return JSONResponse(dict(await self.about()))
        if request.method == "GET" and path == f"{API}/openapi.json":
            return JSONResponse(await asyncio.to_thread(document))  # making it takes seconds
        if request.method == "GET" and path == "/healthz":
            return JSONResponse({"front": "answers"})
        return None

    async def _principal(self, request: Request) -> Principal:
        """Return the caller, who has not called too often."""
        try:
            principal = await self.callers.principal_of(request)
        except (Problem, Refusal) as failure:
            client = request.client
            self.rate.take(f"an unknown caller at {client.host if client else 'the socket'}")
            raise (failure if isinstance(failure, Problem) else unauthenticated_problem(failure.message)) from None
        self.rate.take(principal.name)
        return principal

    async def _respond(self, asking: Asking, door: Backstop, request: Request, request_id: str) -> Response:
        operation = asking.operation
        answer = await self.giving.carry_out(asking, door)
        if operation.command == COUNTERSIGN:
            return JSONResponse(answer.model_dump(mode="json"))
        adapter: TypeAdapter[Any] = (
            QUESTIONS[operation.question].answers() if operation.question else (hints(operation.method).answer)
        )
        if WATCH in request.query_params:
            events = self._stream(asking, door, adapter, answer, request_id)
            first = await anext(events)  # before the answer begins, so that one stream too many is answered with 429
            return StreamingResponse(_with_first(first, events), media_type="text/event-stream")
        return answer_response(
            adapter,
            answer,
            request.scope["raw_path"].decode("ascii"),
            request.query_params,
            request.headers.get("if-none-match", ""),
            paged=operation.paged,
            tagged=operation.tagged,
        )

    async def _stream(
        self, asking: Asking, door: Backstop, adapter: TypeAdapter[Any], first: Any, request_id: str
    ) -> AsyncIterator[bytes]:
        with self.streams.one_more(asking.who.name):
            async for part in changes(
                lambda: call_operation(asking.operation, door, asking.found), adapter, first, request_id, self.stopping
            ):
                yield part


async def _with_first(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in others:
        yield part


async def _body(request: Request) -> bytes:
    body = await body_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise Problem(
            "not-json",
            415,
            "The body is not JSON.",
            f"the Content-Type must be application/json, {f'not {kind[:80]}' if kind else 'and the request has none'}",
        )
    return body


def _key(request: Request, who: Principal) -> str:
    """Return the caller's idempotency key, which no other principal shares. Errors: BadInput."""
    key = request.headers.get("idempotency-key", "")
    if not key or request.method != "POST":
        return ""
    if not _KEY.fullmatch(key):
        raise BadInput("Idempotency-Key must be at most 200 ASCII characters without spaces")
    return f"{who.name}\0{key}"
