"""Times that people give as options: a time, a day, or a duration from now or ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from models.errors import BadInput


def instant(option: str, text: str, since: datetime) -> datetime:
    """Parse a time with a zone, or a duration after `since`. Errors: BadInput naming the option and the value."""
    if _is_duration(text):
        return _shift(option, text, since, 1)
    at = _parse(option, text, "must be a time such as 2026-12-01T18:00Z, or a duration such as 4h, not")
    if at.tzinfo is None:
        raise _needs_zone(option, text)
    return _in_utc(option, text, at)


def beginning_of(option: str, text: str, now: datetime) -> datetime:
    """Parse a duration ago, a day or a past time. Errors: BadInput naming the option and the value."""
    begin = moment_of(option, text, now, back=True)
    if begin >= now:
        raise BadInput(f"{option} {text} is not in the past")
    return begin


def moment_of(option: str, text: str, now: datetime, *, back: bool = False) -> datetime:
    """Parse a time with a zone, a day's beginning in UTC or (`back`) a duration ago. Errors: BadInput."""
    if back and _is_duration(text):
        return _shift(option, text, now, -1)
    at = _parse(option, text, f"must look like {'28d, ' * back}2026-11-01 or 2026-11-01T12:00Z, not")
    if at.tzinfo is None and len(text) > len("2026-11-01"):
        raise _needs_zone(option, text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else _in_utc(option, text, at)


def _is_duration(text: str) -> bool:
    return text[:1].isdigit() and text[-1:] in "smhdw"


def _shift(option: str, duration: str, at: datetime, sign: int) -> datetime:
    from models.base import parse_duration

    try:
        length = parse_duration(duration)
    except ValueError as error:
        raise BadInput(f"{option} {error}") from None
    return shift_time(option, duration, at, sign * length)


def shift_time(option: str, text: str, at: datetime, by: timedelta) -> datetime:
    """Return the time so much later. Errors: BadInput naming the option and its text where there is no such time."""
    try:
        return at + by
    except OverflowError:
        raise _no_such_time(option, text) from None


def _parse(option: str, text: str, wrong: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{option} {wrong} {text!r}") from None


def _needs_zone(option: str, text: str) -> BadInput:
    return BadInput(f"{option} needs a time zone (for example a final Z): {text}")


def _in_utc(option: str, text: str, at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise _no_such_time(option, text) from None


def _no_such_time(option: str, text: str) -> BadInput:
    return BadInput(f"{option} {text} gives a time outside the years 1 to 9999")
