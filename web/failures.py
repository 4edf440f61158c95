"""Errors of the front itself, each in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from client.problems import MEDIA, own_problem, problem
from models.errors import BackstopError


class Problem(Exception):
    """A failure that is answered as problem details. `kind`: a key of client/problems.py."""

    def __init__(
        self, kind: str, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.kind, self.status, self.title, self.detail = kind, status, title, detail
        self.headers = dict(headers or {})


def not_found(detail: str) -> Problem:
    return Problem("not-found", 404, "There is no such address.", detail)


def unauthenticated_problem(detail: str) -> Problem:
    return Problem(
        "unauthenticated", 401, "You are not logged in.", detail, {"www-authenticate": 'Bearer realm="backstop"'}
    )


def forbidden_problem(detail: str) -> Problem:
    return Problem("forbidden", 403, "You may not do this.", detail)


def too_large(detail: str) -> Problem:
    return Problem("too-large", 413, "The request is too large.", detail, {"connection": "close"})


def not_json(detail: str) -> Problem:
    return Problem("not-json", 400, "The body is not JSON.", detail)


def too_many(detail: str, seconds: int) -> Problem:
    return Problem("too-many", 429, "Too many requests.", detail, {"retry-after": str(seconds)})


def too_slow(status: int, detail: str) -> Problem:
    return Problem("too-slow", status, "It took too long.", detail, {"connection": "close"} if status == 408 else {})


def failure_response(failure: Problem | BackstopError, request_id: str) -> Response:
    if isinstance(failure, Problem):
        document = own_problem(failure.kind, failure.status, failure.title, failure.detail, request_id)
        return JSONResponse(document, failure.status, headers=failure.headers, media_type=MEDIA)
    status, document = problem(failure, request_id)
    return JSONResponse(document, status, headers={"retry-after": "1"} if status == 503 else {}, media_type=MEDIA)
