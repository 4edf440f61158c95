"""Receives Slack's requests: POST /slack/interactive for buttons, POST /slack/command for the slash command.

Theory of operation. Slack wants an answer within three seconds, and takes the real one later at an address of its own.
So the request is checked whole (size, signature, time, that it is new, form), then the work goes on in the background.
These checks give nobody a right: they say who it is, and the door judges them as everybody else.
Source: docs/adr/0074 to 0076.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from client.slack_secret import SigningSecret
from models.access.access_file import SLACK, in_slack
from models.errors import AwaitsSecond, BackstopError, Refusal
from web.authorized_calls import Giving
from web.console.visit import Visit, why_of
from web.failures import Problem, not_found
from web.limits import Rate, body_of
from web.slack import messages
from web.slack.actions import Acts, Caller, Reply
from web.slack.metrics import slack_ended
from web.slack.reading import MOST_BYTES, Pressed, SlackPerson, Typed, form_of, read_press, read_typed
from web.slack.replies import send
from web.slack.signing import Signatures

logger = logging.getLogger("backstop.slack")
SLACK_PATHS = "/slack/"
INTERACTIVE, COMMAND = f"{SLACK_PATHS}interactive", f"{SLACK_PATHS}command"
REPLIES = ("https://hooks.slack.com", "https://hooks.slack-gov.com")
_PATIENCE_SECONDS = 2.0
_MOST_AT_ONCE = 200
_GOODBYE_SECONDS = 5.0


@dataclass
class SlackTerms:
    """The front's settings for Slack. `replies`: origins where answers may go; `page`: the console's URL."""

    secret: SigningSecret
    replies: tuple[str, ...] = REPLIES
    page: str = ""


@dataclass
class SlackDesk:
    terms: SlackTerms
    giving: Giving
    rate: Rate
    _working: set[asyncio.Task[list[Reply]]] = field(default_factory=set)

    @cached_property
    def signatures(self) -> Signatures:
        return Signatures(self.terms.secret.read, self.giving.seconds_now)

    @cached_property
    def acts(self) -> Acts:
        return Acts(self.signatures.secret, self.terms.page, self.giving.seconds_now)

    async def answer(self, request: Request) -> Response:
        """Answer a request. Errors: Problem, BackstopError: nothing was done."""
        path = request.scope["path"]
        if path not in (INTERACTIVE, COMMAND):
            raise not_found(f"Slack must send its requests to {INTERACTIVE} and {COMMAND}")
        if request.method != "POST":
            raise Problem(
                "not-allowed", 405, "The method is not allowed.", "this address answers only POST", {"allow": "POST"}
            )
        try:
            return await self._receive(request)
        except Exception as error:
            slack_ended(path == INTERACTIVE, error)
            raise

    async def _receive(self, request: Request) -> Response:
        body = await body_of(request, MOST_BYTES)
        try:
            mark = self.signatures.check(request.headers, body)
        except Problem:
            client = request.client
            self.rate.take(f"an unknown caller at {client.host if client else 'the socket'}")
            raise
        form = form_of(request.headers.get("content-type", ""), body)
        if form.get("ssl_check") == "1":  # Slack looks whether somebody listens
            return Response(status_code=200)
        read = read_press if request.scope["path"] == INTERACTIVE else read_typed
        press = read(form, self.terms.replies)
        self.rate.take(f"{press.who.user} of Slack workspace {press.who.workspace}")
        return await self._begin_work(press, mark)

    async def _begin_work(self, given: Pressed | Typed, mark: str) -> Response:
        if len(self._working) >= _MOST_AT_ONCE:
            raise Problem(
                "too-many",
                429,
                "Too many requests.",
                "too many requests are under way: try again in a moment",
            )
        work = self._start_task(self._work(given, mark))
        if isinstance(given, Pressed):
            await asyncio.wait({self._start_task(_send_replies(work))}, timeout=_PATIENCE_SECONDS)
            return Response(status_code=200)
        await asyncio.wait({work}, timeout=_PATIENCE_SECONDS)
        if work.done():
            return JSONResponse(work.result()[0].message)
        self._start_task(_send_replies(work))
        return JSONResponse(messages.to_one(text="Looking…"))

    def _start_task(self, work: Coroutine[Any, Any, list[Reply]]) -> asyncio.Task[list[Reply]]:
        """Start the work, which goes on if its caller stops waiting."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    async def finish(self) -> None:
        """Give the work under way a moment to end."""
        if self._working:
            await asyncio.wait(set(self._working), timeout=_GOODBYE_SECONDS)

    async def _work(self, given: Pressed | Typed, mark: str) -> list[Reply]:
        """Return the answers, whether the work succeeds or fails."""
        try:
            replies = await self._carry_out(given, mark)
        except Exception as error:
            slack_ended(isinstance(given, Pressed), error)
            return [Reply(given.reply_at, messages.to_one(text=_explain_error(error, given)))]
        slack_ended(isinstance(given, Pressed), None)
        return replies

    async def _carry_out(self, given: Pressed | Typed, mark: str) -> list[Reply]:
        who = await self._caller(given.who, mark)
        if isinstance(given, Typed):
            return [Reply(given.reply_at, await self.acts.type_command(who, given))]
        return await self.acts.press(who, given)

    async def _caller(self, slack: SlackPerson, mark: str) -> Caller:
        """Return the person as the access file names them. Errors: Refusal if it does not; Unavailable."""
        if not await self.giving.rights.is_in_force():
            raise Refusal(
                "no access file is in force, so Backstop knows nobody in Slack: import an access file that gives "
                "people's Slack names (docs/slack.md)"
            )
        principal = in_slack(slack.workspace, slack.user)
        name = (await self.giving.principal_for(principal, None)).name
        if name.startswith(SLACK):
            raise Refusal(
                f"the access file names nobody as {slack.user} of Slack workspace {slack.workspace}. To use "
                "Backstop from Slack, have "
                f"an admin add `slack: [{{workspace: {slack.workspace}, user: {slack.user}}}]` to your entry under "
                "people, and import it (docs/slack.md)"
            )
        return Caller(slack, name, Visit(self.giving, principal, (), {}, key=f"{name}\0slack {mark}"))


def _explain_error(error: Exception, given: Pressed | Typed) -> str:
    if isinstance(error, AwaitsSecond):
        return f"Nothing is done yet: {error.message}."
    if isinstance(error, BackstopError | Problem):
        return f"{'Nothing was done' if _does(given) else 'Not possible'}: {why_of(error).rstrip('.')}."
    logger.error("a request of Slack's", exc_info=error)
    return f"This should not have happened, and is a bug in Backstop: {type(error).__name__}."


def _does(given: Pressed | Typed) -> bool:
    """Return whether the request would have changed something; an unanswered question leaves nothing undone."""
    return isinstance(given, Pressed) or given.text.split(maxsplit=1)[:1] in (["ack"], ["object"])


async def _send_replies(work: Awaitable[list[Reply]]) -> list[Reply]:
    replies = await work
    for reply in replies:
        await send(reply.at, reply.message)
    return replies
