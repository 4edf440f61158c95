"""The same door over HTTP: each method of `Backstop` is a request to the front, made from the table of operations.

It knows nothing of Temporal, and of our models only what an answer needs: `backstop status` is read every few seconds
by people and scripts. tests/unit/test_http_door.py says what it may not import.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from client.emergency import acts_alone
from client.http_exchange import FrontPlace, NotHeard, Reply
from client.operations import API, Operation, by_method, composed_method, type_of
from client.problems import error_from
from client.telemetry import is_traced
from models.errors import Unavailable

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.question_base import Question

_AnswerT = TypeVar("_AnswerT")
_T = TypeVar("_T")
_SLACK_SECONDS = 15.0
"""The client waits longer than the front, so that the front can say why it gave up."""
_TRIES = 6
_SILENT_SECONDS = 2.0
"""Seconds after which the caller is told that the answer is late."""
_FRONT_GOES_ON = (
    "The front has the command, and withdraws it if no worker takes it up within half a minute; "
    "`backstop audit` shows the outcome."
)
_WAIT_SECONDS = 5.0
"""Longest wait between two tries, where the front answers 429."""
ALONE = "backstop-emergency"
"""The header that says that an approver acts alone."""
HEARD = "backstop-worker-heard"
"""The header that says that a worker answered the front a moment ago."""


def http_door(place: FrontPlace, bearer: Callable[[], str] = lambda: "") -> Backstop:
    """Return a door to a front, typed as `Backstop`. `bearer`: its token; empty: the socket proves the user."""
    return cast("Backstop", HttpDoor(place, bearer))


class HttpDoor:
    """The HTTP door. Other methods come from the table (client/operations.py) or are composed (client/composed.py)."""

    def __init__(self, place: FrontPlace, bearer: Callable[[], str]) -> None:
        self._place = place
        self._bearer = bearer
        self.heard = asyncio.Event()
        """Set once any worker has answered."""
        self.note: Callable[[str], None] = lambda _: None
        """Called with a sentence for the waiting person, as in `client.workflow_calls.Calls`."""

    async def close(self) -> None:
        """Do nothing: no connection stays open."""

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        """Return the answer of the ledger's desk. Errors: those of the question, Unavailable."""
        fields = question.model_dump(mode="json") | ({"payload": payload} if payload else {})
        from models.access.rights import READS_DESK

        changes = question.kind not in READS_DESK
        body = await self._request("POST", f"/questions/{question.kind}", _json(fields), 345, changes=changes)
        self.heard.set()
        answer: _AnswerT = _read(question.answers(), body)
        return answer

    def __getattr__(self, name: str) -> Any:
        if (method := composed_method(self, name)) is not None:
            return method
        operation = by_method().get(name)
        if operation is None:
            raise AttributeError(name)

        async def call(*given: Any, **named: Any) -> Any:
            return await self._call(operation, dict(zip(operation.arguments, given, strict=False)) | named)

        return call

    async def _call(self, operation: Operation, values: Mapping[str, Any]) -> Any:
        parts = (quote(str(values[name]), safe="") for name in operation.in_path)
        path = operation.path
        for name, part in zip(operation.in_path, parts, strict=True):
            path = path.replace(f"{{{name}}}", part)
        fields = {name: values[name] for name in operation.fields if name in values}
        body = b""
        if operation.body:
            body = values[operation.body].model_dump_json(by_alias=True).encode()
        elif operation.verb == "POST":
            body = _json(fields)
        elif query := "&".join(f"{name}={quote(str(value), safe='')}" for name, value in fields.items() if value != ""):
            path = f"{path}?{query}"
        seconds = operation.seconds + _SLACK_SECONDS
        answer = await self._request(operation.verb, path, body, seconds, changes=operation.changes)
        if operation.changes:
            self.heard.set()
        if answer == b"null" and operation.answer.endswith(" | None"):
            return None
        if answer == b"[]" and operation.answer.startswith("list["):
            return []  # nothing is often the answer, and of nothing no type is needed
        from pydantic import TypeAdapter

        return _read(TypeAdapter(type_of(operation.answer)), answer)

    async def _request(self, verb: str, path: str, body: bytes, seconds: float, *, changes: bool) -> bytes:
        """Return the answer's body; a repeatable request is repeated under one key. Errors: those of models.errors."""
        headers = {"accept": "application/json", "content-type": "application/json", **_trace_headers()}
        if verb == "POST":
            headers["idempotency-key"] = uuid.uuid4().hex
            headers |= {ALONE: "1"} if acts_alone.get() else {}
        if token := self._bearer():
            headers["authorization"] = f"Bearer {token}"
        for left in reversed(range(_TRIES)):
            try:
                exchange = _aside(lambda: self._place.exchange(verb, API + path, headers, body, seconds))
                reply = await self._await_and_note(exchange, changes=changes)
            except NotHeard as error:
                if left < _TRIES - 1:
                    raise Unavailable(error.message) from None
                continue
            if reply.headers.get(HEARD):
                self.heard.set()
            if reply.status == 429 and left:
                await asyncio.sleep(_patience(reply))
                continue
            if reply.status >= 300:
                raise error_from(reply.status, reply.body)
            return reply.body
        raise AssertionError("the last try neither answered nor failed")

    async def _await_and_note(self, exchange: Coroutine[Any, Any, Reply], *, changes: bool) -> Reply:
        """Await the exchange, and note what the front does meanwhile when it is slow or the caller interrupts."""
        asking = asyncio.ensure_future(exchange)
        try:
            done, _ = await asyncio.wait({asking}, timeout=_SILENT_SECONDS)
            if not done:
                self.note(f"The front has not answered yet.{f' {_FRONT_GOES_ON}' * changes}")
            return await asking
        except asyncio.CancelledError:
            if changes:
                self.note(f"Interrupted: {_FRONT_GOES_ON}")
            raise
        finally:
            asking.cancel()


def _patience(reply: Reply) -> float:
    asked = reply.headers.get("retry-after", "1")
    return min(float(asked), _WAIT_SECONDS) if asked.isdigit() else 1.0


def _json(value: Any) -> bytes:
    from pydantic_core import to_json

    return to_json(value)


def _read(adapter: Any, body: bytes) -> Any:
    from pydantic import ValidationError

    from models.base import in_one_sentence

    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise Unavailable(
            f"the front runs another version of Backstop: install the same version here ({in_one_sentence(error)})"
        ) from None


def _trace_headers() -> dict[str, str]:
    """Return the span that this call belongs to, where traces are on."""
    if not is_traced():
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


async def _aside(work: Callable[[], _T]) -> _T:
    """Run the work in a daemon thread, so that an interrupted caller does not wait for a late answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def tell(result: _T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("_T", result))

    def run() -> None:
        try:
            result, error = work(), None
        except BaseException as failed:
            result, error = None, failed
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done
