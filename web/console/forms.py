"""Forms of the console: reads their fields, carries them out, and says why one was refused."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pydantic import ValidationError

from models.base import Model, in_one_sentence, parse_duration
from models.errors import AwaitsSecond, BackstopError, BadInput
from web.console.visit import Visit, why_of
from web.failures import Problem

_T = TypeVar("_T")
_ModelT = TypeVar("_ModelT", bound=Model)
_MOST = 10_000_000


async def try_work(visit: Visit, work: Awaitable[_T]) -> tuple[_T | None, str]:
    """Return the result, and why there is none. A command that waits for a second person is reported as waiting."""
    try:
        return await work, ""
    except AwaitsSecond as waits:
        visit.add_sentence(f"Nothing is done yet: {waits.message}. The Access page lists the command.")
        return None, ""
    except (BackstopError, Problem) as error:
        return None, why_of(error)


def given_fields(form: Mapping[str, str], *fields: str) -> dict[str, str]:
    """Return these fields, without blanks around them."""
    return {name: form.get(name, "").strip() for name in fields}


def fill_model(kind: type[_ModelT], **values: Any) -> _ModelT:
    """Make the model. Errors: BadInput in one sentence."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise BadInput(in_one_sentence(error)) from None


def is_like(name: str, asked: str) -> bool:
    """Return whether a name passes a filter: a pattern with stars, a part of the name, or empty for all names."""
    return not asked or fnmatchcase(name, asked if "*" in asked else f"*{asked}*")


def number(name: str, text: str) -> int:
    """Parse a number. Errors: BadInput naming the field and the value."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= _MOST):
        raise BadInput(f"{name} must be a whole number from 1 to {_MOST}, not {text[:80]!r}")
    return int(text)


def day_ahead(name: str, text: str, now: datetime) -> datetime:
    """Parse the end of a day, a time, or a duration from now. Errors: BadInput naming the field and the value."""
    end = _moment(name, text, now, timedelta(1))
    if end <= now:
        raise BadInput(f"{name} {text} is in the past")
    return end


def day_behind(name: str, text: str, now: datetime) -> datetime:
    """Parse the beginning of a day, a time, or a duration ago. Errors: BadInput naming the field and the value."""
    return _moment(name, text, now, timedelta(0), back=True)


def _moment(name: str, text: str, now: datetime, of_day: timedelta, *, back: bool = False) -> datetime:
    try:
        if text[:1].isdigit() and text[-1:] in "smhdw":
            length = parse_duration(text)
            return now - length if back else now + length
        at = datetime.fromisoformat(text)
        if len(text) == len("2026-12-01"):
            return at.replace(tzinfo=UTC) + of_day
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{name} must be a length of time or a date, such as 7d, 2026-12-01 or 2026-12-01T12:00Z, not {text[:80]!r}"
        ) from None
