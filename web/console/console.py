"""The console: pages for people, beside the HTTP API and behind the same door.

`Console.answer` finds the person (by a session, or the kernel at the socket) and the page. The page asks through
web/authorized_calls.py, as the API does, so that nobody sees or does more here than there. Pages work without
JavaScript; every change is a form.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from models.access.principals import Principal
from models.access_questions import EndedSessions
from models.errors import BackstopError, Refusal, Unavailable
from web.authorized_calls import Giving, temporal_as_ours
from web.callers import at_the_socket
from web.console.guarding import HEADERS, cookie, cookie_name, from_our_page, of_this_machine
from web.console.live import Live
from web.console.pages import NAVIGATION, PAGES
from web.console.rendering import compress, download, page, static
from web.console.sessions import Session, Sessions, seconds_of
from web.console.visit import Download, Elsewhere, Page, Visit
from web.failures import Problem, forbidden_problem, not_found
from web.limits import body_of
from web.peer import PEER, Peer
from web.temporal_connection import FRONT

logger = logging.getLogger("backstop.console")
_MOST_FORM = 100_000
_FORM = "application/x-www-form-urlencoded"
_SECONDS = 60.0
_SAID, _SAID_SECONDS = "backstop-said", 600.0
_NOT_KEPT = {"cache-control": "no-store"}

LoginStart = Callable[[Request], Awaitable[Response]]


@dataclass
class Console:
    """A front's console. `log_in`: sends visitors to log in; None: only links of this machine begin a session."""

    giving: Giving
    log_in: LoginStart | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    public_url: str = ""
    """The URL at which browsers find the console, if a proxy speaks TLS for it."""

    def __post_init__(self) -> None:
        self.live = Live(self.giving.doors)
        self.sessions = Sessions(
            self.giving.seconds_now,
            secret=lambda: self.giving.doors.shared_secret(b"sessions of the console"),
            end_in_ledger=self._end_in_ledger,
        )

    async def _end_in_ledger(self, hashes: Sequence[str], at: datetime) -> Mapping[str, datetime]:
        with temporal_as_ours():
            door = await self.giving.doors.door_of(FRONT)
            return await door.ask(EndedSessions(end=tuple(hashes), at=at))

    async def answer(self, request: Request) -> Response:
        """Return a page, or a sentence that says why there is none."""
        request_id = uuid.uuid4().hex
        try:
            of_this_machine(request, self.public_url)
            return compress(request, await asyncio.wait_for(self._answer(request), _SECONDS))
        except Problem as failure:
            return self._render_failure(request, failure.status, failure.title, failure.detail)
        except Unavailable as error:
            return self._render_failure(request, 503, "Nobody answers.", error.message)
        except BackstopError as error:
            return self._render_failure(
                request, 409 if isinstance(error, Refusal) else 400, "Not possible.", error.message
            )
        except TimeoutError:
            return self._render_failure(
                request, 504, "It took too long.", f"there was no answer within {_SECONDS:.0f} s"
            )
        except Exception as error:
            logger.exception("page %s", request_id)
            text = f"this should not have happened, and is a bug in Backstop: {type(error).__name__}"
            return self._render_failure(request, 500, "The page failed.", f"{text} ({request_id})")

    def begin_session(self, request: Request, principal: Principal, to: str = "/") -> Response:
        """Begin a session in this browser. Errors: Refusal."""
        secret = self.sessions.begin(principal)
        response = RedirectResponse(to, 303, headers=HEADERS)
        response.headers["set-cookie"] = cookie(secret, seconds_of(principal), secure=self._secure(request))
        return response

    async def _answer(self, request: Request) -> Response:
        path = _segments(request)
        if path[0] == "static":
            file = static("/".join(path[1:]), compressed="gzip" in request.headers.get("accept-encoding", ""))
            if file is None:
                raise not_found("there is no such file")
            return file
        if path[0] == "open" and len(path) == 2:
            return self._by_link(request, path[1])
        session = await self._session(request)
        if path[0] == "login":
            return await self._login(request)
        principal = self._who(request, session)
        if principal is None:
            return await self._login(request)
        if path == ("live",) and request.method == "GET":
            stream = self.live.follow(principal.name, self.stopping)
            return StreamingResponse(stream, media_type="text/event-stream", headers={**HEADERS, **_NOT_KEPT})
        form = await self._form(request, session) if request.method == "POST" else {}
        if path[0] == "logout" and form:
            return await self._logout(request, session, everywhere="everywhere" in form)
        make = PAGES.get(path[0])
        if make is None or request.method not in ("GET", "HEAD", "POST"):
            raise not_found("there is no such page")
        query = {name: values[-1] for name, values in parse_qs(request.url.query, max_num_fields=50).items()}
        key = form.get("once", "")
        visit = Visit(self.giving, principal, path, query, session, form, key)
        mark = "" if session is None or form else await self.live.mark_now()
        answer = await make(visit)
        if isinstance(answer, Elsewhere):
            response = RedirectResponse(answer.path, 303, headers=HEADERS)
            if session is not None and session.said:
                sentences = self.sessions.seal_sentences(session)
                response.headers["set-cookie"] = self._cookie(request, sentences, _SAID_SECONDS, _SAID)
            return response
        if isinstance(answer, Download):
            return download(answer)
        return self._render(request, answer, session, principal, bool(visit.missed), mark)

    async def _session(self, request: Request) -> Session | None:
        session = self.sessions.session_of(self._secret(request))
        if session is None:
            return None
        await self.sessions.look()
        return None if self.sessions.has_ended(session) else session

    def _who(self, request: Request, session: Session | None) -> Principal | None:
        if session is not None:
            return session.principal
        peer = getattr(request.state, PEER, None)
        return at_the_socket(peer) if isinstance(peer, Peer) and request.method in ("GET", "HEAD") else None

    def _render(
        self,
        request: Request,
        made: Page,
        session: Session | None,
        principal: Principal | None,
        missed: bool = False,
        mark: str = "",
    ) -> Response:
        """Render the page. `principal` None: nobody is logged in. `mark`: the ledger's, from before the reading."""
        messages = [] if session is None or _is_reload(request) else self._read_messages(request, session)
        values = {
            "title": made.title,
            "who": "" if principal is None else principal.name,
            "how": "" if principal is None else principal.how,
            "form_token": "" if session is None else session.form_token,
            "once": secrets.token_urlsafe(16),
            "said": messages,
            "missed": missed,
            "mark": mark,
            "navigation": [] if principal is None else NAVIGATION,
            "here": request.url.path,
            **made.values,
        }
        response = page(made.template, values, made.status)
        if messages:
            response.headers.append("set-cookie", self._cookie(request, "", 0, _SAID))
        return response

    def _read_messages(self, request: Request, session: Session) -> list[str]:
        """Return what the last command said, at whichever front, and what this visit says."""
        kept = request.cookies.get(cookie_name(secure=self._secure(request), name=_SAID), "")
        return [*self.sessions.sentences(session, kept), *session.said]

    def _render_failure(self, request: Request, status: int, title: str, detail: str) -> Response:
        session = self.sessions.session_of(self._secret(request))
        failure = Page("failure.html", title, {"detail": detail}, status)
        return self._render(request, failure, session, None if session is None else session.principal)

    def _secure(self, request: Request) -> bool:
        return request.url.scheme == "https" or bool(self.public_url)

    def _secret(self, request: Request) -> str:
        return request.cookies.get(cookie_name(secure=self._secure(request)), "")

    def _cookie(self, request: Request, content: str, seconds: float, name: str) -> str:
        return cookie(content, seconds, secure=self._secure(request), name=name)

    # --- coming in and going out ----------------------------------------------------------------

    def _by_link(self, request: Request, word: str) -> Response:
        principal = self.sessions.by_link(word)
        if principal is None:
            raise forbidden_problem(
                "this link has been used, or is older than two minutes: run `backstop open` to get another one"
            )
        return self.begin_session(request, principal)

    async def _login(self, request: Request) -> Response:
        if self.log_in is not None:
            return await self.log_in(request)
        detail = "run `backstop open` on this machine: it opens the console with a link that logs you in"
        return self._render_failure(request, 401, "You are not logged in.", detail)

    async def _logout(self, request: Request, session: Session | None, *, everywhere: bool) -> Response:
        heard = session is None or await self.sessions.end(session, everywhere=everywhere)
        detail = "You are logged out" + (" in every browser." if everywhere else ".")
        if not heard:
            detail += " Other fronts could not be notified, and accept a copy of the cookie until it expires."
        response = self._render(request, Page("failure.html", "Logged out", {"detail": detail}), None, None)
        response.headers["set-cookie"] = cookie("", 0, secure=self._secure(request))
        return response

    async def _form(self, request: Request, session: Session | None) -> Mapping[str, str]:
        """Return the fields of a form of ours. Errors: Problem for somebody else's, and for a malformed one."""
        from_our_page(request, self.public_url)
        if session is None:
            raise forbidden_problem(
                "this form was not sent from a logged-in page: reload the page, log in, and send it again"
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM:
            raise Problem("not-a-form", 415, "This is not a form.", f"a form is {_FORM}")
        body = await body_of(request)
        if len(body) > _MOST_FORM:
            raise Problem("too-large", 413, "The form is too large.", f"a form has at most {_MOST_FORM} bytes")
        try:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=200, errors="strict")
        except ValueError:
            raise Problem("not-a-form", 400, "This is not a form.", "its fields are not valid text") from None
        form = {name: values[-1] for name, values in fields.items()}
        if not session.is_own_form(form.pop("form_token", "")):
            raise forbidden_problem("this form is from another session: reload the page, and send it again from there")
        return {"given": "1", **form}


def _is_reload(request: Request) -> bool:
    """Return whether an open page reloads itself. A command's result is for the page that follows the command."""
    return request.headers.get("sec-fetch-dest", "") == "empty"


def _segments(request: Request) -> tuple[str, ...]:
    """Return the path's segments, divided before they are decoded: a name may hold anything. Errors: Problem 404."""
    raw = request.scope["raw_path"]
    try:
        parts = tuple(unquote(part, errors="strict") for part in raw.decode("ascii").strip("/").split("/"))
    except UnicodeDecodeError:
        raise not_found("the path is not valid text") from None
    return parts if parts != ("",) else ("fleet",)
