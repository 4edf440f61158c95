"""Writes answers as HTTP: the JSON of `--json`, pages of a list, and an ETag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter
from starlette.datastructures import QueryParams
from starlette.responses import Response

from models.errors import BadInput

JSON = "application/json"
MOST_ROWS, MOST_LEFT_OUT = 1000, 10**9
_OF_NOW = frozenset({"at", "asked_at"})
"""Fields with the time of reading, which a tag leaves out: the same content read again has the same tag."""


def answer_response(
    adapter: TypeAdapter[Any], answer: Any, path: str, query: QueryParams, wanted_tag: str, *, paged: bool, tagged: bool
) -> Response:
    """Return 200 with the answer, or 304 where the caller has it. `wanted_tag`: the value of If-None-Match."""
    headers: dict[str, str] = {}
    if paged:
        answer, headers = _page(answer, path, query)
    body = adapter.dump_json(answer, by_alias=True)
    if tagged:
        headers["etag"] = tag = tag_of(body)
        if _names(wanted_tag, tag):
            return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=JSON)


def tag_of(body: bytes) -> str:
    """Return a weak ETag of the answer's content, without the time at which it was read."""
    return f'W/"{hashlib.sha256(json.dumps(_drop_passing(json.loads(body))).encode()).hexdigest()[:32]}"'


def _drop_passing(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_passing(one) for one in value]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name not in _OF_NOW}
    return value


def _names(wanted: str, tag: str) -> bool:
    """Return whether If-None-Match names the tag; weak comparison ignores W/ (RFC 9110)."""
    bare = tag.removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == bare for one in wanted.split(",") if one.strip())


def _page(rows: list[Any], path: str, query: QueryParams) -> tuple[list[Any], dict[str, str]]:
    """Return the requested part; without a limit all of it. Errors: BadInput."""
    limit, after = _number(query, "limit", MOST_ROWS), _number(query, "after", MOST_LEFT_OUT)
    headers = {"backstop-total": str(len(rows))}
    if not limit:
        return rows[after:], headers
    if after + limit < len(rows):
        others = "".join(
            f"&{name}={quote(value, safe='')}" for name, value in query.items() if name not in ("limit", "after")
        )
        headers["link"] = f'<{path}?limit={limit}&after={after + limit}{others}>; rel="next"'
    return rows[after : after + limit], headers


def _number(query: Mapping[str, str], name: str, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= most):
        raise BadInput(f"{name} must be a whole number from 0 to {most}, not {text[:40]!r}")
    return int(text)
