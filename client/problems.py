"""Translates our errors to problem details (RFC 9457) and back: one sentence, its kind, and a command's exit code."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from models.errors import BY_NAME, AwaitsSecond, BackstopError, BadFile, BadInput, BlastRadius, Refusal, Unavailable

MEDIA = "application/problem+json"
KIND = "urn:backstop:problem:"
"""A problem's type begins with this; the error's class follows, or a lower-case name for the front's own problems."""

_STATUS: dict[str, int] = {"BadInput": 422, "BadFile": 422, "Unavailable": 503, "Barred": 403}
"""HTTP status by error class. Others have 409: the request does not fit the current state."""
_TITLES = {
    "BadInput": "What was given is malformed.",
    "BadFile": "What was given is malformed.",
    "Unavailable": "Something did not answer in time: try again.",
    "Barred": "A right is missing.",
    "Refusal": "It is not allowed now.",
    "BlastRadius": "The command would move more GPUs than may be moved at once.",
    "AwaitsSecond": "It waits for a second person.",
    "Conflict": "A newer owner has taken over.",
    "Drift": "Something has changed in the meantime: look again.",
    "Stuck": "Backstop cannot go on: a person must act.",
}
_OWN: dict[str, type[BackstopError]] = {
    **dict.fromkeys(("unauthenticated", "forbidden", "repeated"), Refusal),
    **dict.fromkeys(("not-found", "not-allowed", "too-large", "not-json", "not-a-form", "precondition"), BadInput),
    **dict.fromkeys(("too-many", "too-slow", "fault", "stopping"), Unavailable),
}
"""The error class for each problem that the front itself raises."""


def problem(error: BackstopError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status, and the document."""
    name = type(error).__name__
    document: dict[str, Any] = {
        "type": KIND + name,
        "title": _TITLES.get(name, "It failed."),
        "status": _STATUS.get(name, 409),
        "detail": error.message,
        "instance": f"urn:backstop:request:{request_id}",
        "exit_code": exit_code(error),
    }
    if isinstance(error, BadFile):
        document["sentences"] = list(error.sentences)
    if isinstance(error, BlastRadius | AwaitsSecond) and error.until is not None:
        document["until"] = error.until.isoformat()
    if isinstance(error, AwaitsSecond):
        document["hash"] = error.digits
    return document["status"], document


def own_problem(kind: str, status: int, title: str, detail: str, request_id: str) -> dict[str, Any]:
    """Return the document of an error that the front itself raises. `kind`: a key of `_OWN`."""
    return {
        "type": KIND + kind,
        "title": title,
        "status": status,
        "detail": detail,
        "instance": f"urn:backstop:request:{request_id}",
        "exit_code": exit_code(_OWN[kind](detail)),
    }


def exit_code(error: BackstopError) -> int:
    """Return the exit code of a command that meets this error: 2 bad input, 3 not allowed now, 1 it failed."""
    if isinstance(error, BadInput):
        return 2
    return 3 if isinstance(error, Refusal) else 1


def error_from(status: int, body: bytes) -> BackstopError:
    """Return the error in the front's answer. Any other answer is Unavailable: something else listens there."""
    try:
        document = json.loads(body)
        kind, detail = str(document["type"]), str(document["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unavailable(
            f"the server that answered (HTTP status {status}) is not a front of Backstop: check its address"
        )
    name = kind.removeprefix(KIND)
    if name == "BadFile":
        error: BackstopError = BadFile([str(one) for one in document.get("sentences", [detail])])
        error.message = detail
        return error
    if name in ("BlastRadius", "AwaitsSecond"):
        until_text = document.get("until")
        until = datetime.fromisoformat(until_text) if isinstance(until_text, str) else None
        return (
            AwaitsSecond(detail, str(document.get("hash", "")), until)
            if name == "AwaitsSecond"
            else BlastRadius(detail, until)
        )
    return (_OWN.get(name) or BY_NAME.get(name, Unavailable))(detail)
