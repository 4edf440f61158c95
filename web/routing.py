"""Finds a request's operation by its raw path, segment by segment, so that a name may hold anything.

A path is split before it is decoded: `%2F` in a cluster's name begins no segment, and `..` is an ordinary name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from client.operations import API, OPERATIONS, Operation, questions
from models.errors import BadInput
from web.failures import Problem, not_found

_MOST = 3000
"""Most characters of a path: a name of 200 characters in percent-encoded UTF-8, and the rest of the path."""


class Asked(NamedTuple):
    """An operation, and its arguments in the path."""

    operation: Operation
    in_path: Mapping[str, str]


class Routes:
    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = tuple(operations)

    def route_of(self, verb: str, raw_path: bytes) -> Asked:
        """Find the operation; fixed words win over names. Errors: Problem 404, 405; BadInput for undecodable text."""
        segments = self._segments(raw_path)
        fitting = [asked for one in self._operations if (asked := _fits(one, segments)) is not None]
        if not fitting:
            raise not_found(f"there is nothing at this path: {API}/openapi.json lists the paths")
        matches = [asked for asked in fitting if asked.operation.verb == verb]
        if not matches:
            verbs = ", ".join(sorted({asked.operation.verb for asked in fitting}))
            text = f"this path does not take {verb}: use {verbs}"
            raise Problem("not-allowed", 405, "The method is not allowed.", text, {"allow": verbs})
        return min(matches, key=lambda asked: len(asked.in_path))

    def _segments(self, raw_path: bytes) -> tuple[str, ...]:
        prefix = f"{API}/".encode()
        if len(raw_path) > _MOST:
            raise BadInput(f"a path may have at most {_MOST:,} characters, not {len(raw_path):,}")
        if not raw_path.startswith(prefix):
            raise not_found(f"there is nothing at this path: all paths begin with {API}")
        try:
            return tuple(unquote(part, errors="strict") for part in raw_path[len(prefix) :].decode("ascii").split("/"))
        except UnicodeDecodeError:
            raise BadInput("the path is not valid text: write names in UTF-8, percent-encoded") from None


def _fits(operation: Operation, segments: tuple[str, ...]) -> Asked | None:
    if len(segments) != len(operation.parts):
        return None
    arguments: dict[str, str] = {}
    for part, segment in zip(operation.parts, segments, strict=True):
        if part.startswith("{"):
            if not segment:
                return None
            arguments[part[1:-1]] = segment
        elif part != segment:
            return None
    return Asked(operation, arguments)


def all_routes() -> Routes:
    """Return the routes of every method, and of every question that is asked from outside."""
    return Routes((*OPERATIONS, *questions()))
