"""Temporal's codec protocol: its UI and CLI show decrypted payloads to viewers. An ASGI application to be mounted.

`POST /decode` answers each payload that our keys read, decrypted, and any other unchanged. Imports stay unchanged too:
they have contacts, which viewers may not read. `POST /encode` is refused, because workers would take its result for a
message of somebody with the keys, and viewers may command nothing.
Source: docs.temporal.io, "Codec Server"; the bodies are Protobuf's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from models.import_questions import StageImport
from models.texts import brief

CODEC = "/codec/"
"""The path at which a front serves it."""
MOST_BODY = 32 * 1024 * 1024
"""The most bytes of a body; Temporal's own limit for a page of history is lower."""
_ALLOWED = "authorization, content-type, x-namespace"
_GUARD = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_IMPORT = json.dumps(StageImport.kind).encode()
"""What marks the payload of a part of an import, as our converter writes it."""

WhyNot = Callable[[Request], Awaitable[tuple[int, str] | None]]
"""Returns None if the caller may read, else the status (401, 403) and the sentence of the refusal."""


class CodecEndpoint:
    """The endpoint. `origins`: UIs whose pages may call it, such as https://temporal.example. `namespace`: ours."""

    def __init__(self, codec: PayloadCodec, why_not: WhyNot, namespace: str = "", origins: Sequence[str] = ()) -> None:
        self._codec = codec
        self._why_not = why_not
        self._namespace = namespace
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        response.headers.update({**_GUARD, **self._cors_headers(request)})
        await response(scope, receive, send)

    def _cors_headers(self, request: Request) -> dict[str, str]:
        """Return the CORS headers, for pages of these origins alone, never `*`: their cookies count."""
        origin = request.headers.get("origin", "")
        if origin not in self._origins:
            return {"vary": "Origin"}
        return {
            "vary": "Origin",
            "access-control-allow-origin": origin,
            "access-control-allow-credentials": "true",
            "access-control-allow-headers": _ALLOWED,
            "access-control-allow-methods": "POST, OPTIONS",
        }

    async def _answer(self, request: Request) -> Response:
        what = request.scope["path"].rstrip("/").rpartition("/")[2]
        if what not in ("encode", "decode"):
            return _error_response(404, "this address answers only POST /decode")
        if request.method == "OPTIONS":
            return Response(status_code=204)
        if request.method != "POST":
            return _error_response(405, "this address answers only POST /decode")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins:
            return _error_response(
                403, "pages of this origin may not read decrypted payloads: add the origin to BACKSTOP_CODEC_ORIGINS"
            )
        refused = await self._why_not(request)
        if refused is not None:
            return _error_response(*refused)
        if what == "encode":
            return _error_response(403, "this address only decrypts: give commands with `backstop`")
        return await self._decode(request)

    async def _decode(self, request: Request) -> Response:
        namespace = request.headers.get("x-namespace", "")
        if self._namespace and namespace and namespace != self._namespace:
            theirs = f"X-Namespace is {brief(namespace)}"
            return _error_response(400, f"{theirs}, but this front serves Temporal's namespace {self._namespace}")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                return _error_response(413, f"a body may have at most {MOST_BODY} bytes")
        try:
            if not body.lstrip().startswith(b"{"):
                raise ValueError
            payloads = json_format.Parse(body.decode(), Payloads(), ignore_unknown_fields=True, max_recursion_depth=20)
        except (json_format.ParseError, ValueError, RecursionError):
            return _error_response(
                400, "the body must be a JSON document with payloads, each with metadata and data in Base64"
            )
        decoded = await self._codec.decode(list(payloads.payloads))
        shown = [
            as_came if _IMPORT in one.data else one for as_came, one in zip(payloads.payloads, decoded, strict=True)
        ]
        return Response(json_format.MessageToJson(Payloads(payloads=shown)), media_type="application/json")


def _error_response(status: int, sentence: str) -> Response:
    return Response(json.dumps({"detail": sentence}), status_code=status, media_type="application/json")
