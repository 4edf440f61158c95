"""Renders pages from templates. Text that people and other systems wrote is always escaped."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from models.audit_chain import text_with_subject
from views.flex import AT_MOST
from views.words import clean, count, gpus, line, moment, number
from web.console.guarding import HEADERS
from web.console.views_html import group_digits, markup, place, sentence
from web.console.visit import Download

STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".json": "application/json"}
_WORTH_IT = 1_000
_FOR_GOOD = "public, max-age=31536000, immutable"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("web.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": moment,
        "number": _number,
        "count_of": count,
        "capital": lambda text: text[:1].upper() + text[1:],
        "gpus": gpus,
        "clean": clean,
        "what": lambda entry: clean(text_with_subject(entry.text, entry.actor, entry.data)),
        "parts": markup,
        "sentence": lambda text: sentence(line(text)),
    }
    environment.globals |= {"place": place, "static": static_path, "at_most": AT_MOST}
    return environment


def page(template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    text = _environment().get_template(template).render(values)
    return Response(text, status, headers={**HEADERS, "cache-control": "no-store"}, media_type="text/html")


def download(made: Download) -> Response:
    """Return a file to download, which the browser never shows as a page of ours."""
    name = quote(made.name, safe="")
    headers = {**HEADERS, "cache-control": "no-store", "content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(made.text, headers=headers, media_type=made.kind)


def compress(request: Request, response: Response) -> Response:
    """Compress a page where the browser asked for it by itself or from a page of ours.

    Otherwise another site could request it again and again with guesses, and learn its content from its length (BREACH;
    docs/adr/0065-the-console.md).
    """
    own = request.headers.get("sec-fetch-site", "") in ("same-origin", "none")
    whole = type(response) is Response and response.media_type == "text/html" and len(response.body) > _WORTH_IT
    if own and whole and "gzip" in request.headers.get("accept-encoding", ""):
        response.body = gzip.compress(response.body, 5, mtime=0)
        response.headers["content-length"] = str(len(response.body))
        response.headers["content-encoding"] = "gzip"
    return response


def _number(value: object) -> object:
    """Write a count with its digits in groups; anything else stays."""
    if isinstance(value, str):
        return group_digits(value)
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else value


@cache
def _digest(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:16]


def static_path(name: str) -> str:
    """Return the path with the file's digest: browsers keep it for good, and a changed file has another path."""
    return f"/static/{name}?{_digest(name)}" if (STATIC / name).is_file() else ""


def static(name: str, *, compressed: bool = False) -> Response | None:
    """Return a file of ours; None if there is none. `compressed`: the browser takes gzip."""
    file = STATIC / name
    if file.suffix not in _TYPES or ".." in name.split("/") or not file.is_file():
        return None
    headers = {"cache-control": _FOR_GOOD, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if compressed:
        headers["content-encoding"] = "gzip"
    return Response(_gzip(name) if compressed else file.read_bytes(), headers=headers, media_type=_TYPES[file.suffix])


@cache
def _gzip(name: str) -> bytes:
    return gzip.compress((STATIC / name).read_bytes(), mtime=0)
