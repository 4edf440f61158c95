"""Reads iCalendar files as declared windows. Source: RFC 5545.

An event names its clusters by its location, with commas between them, its kind by a category (maintenance, sev,
freeze), and what it takes by X-BACKSTOP-GPUS and X-BACKSTOP-ISLANDS. A series of events is followed for a year.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import icalendar
import recurring_ical_events
from pydantic import ValidationError

from client.inputs.sentences import first_problem
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import BadInput

_AHEAD, _BEHIND = timedelta(days=366), timedelta(days=10 * 366)
_DAY = timedelta(days=1)
"""How long before now the library searches: it counts wall-clock hours, so it may end an event too early."""
_DATES = ("DTSTART", "DTEND", "RECURRENCE-ID", "EXDATE", "RDATE")
"""The properties of an event that may have a time zone."""
_DURATION = re.compile(
    r"([+-]?)P(?:(\d{1,5})W|(?:(\d{1,6})D)?(?:T(?:(\d{1,7})H)?(?:(\d{1,7})M)?(?:(\d{1,9})S)?)?)", re.ASCII
)
_AS_WRITTEN = "X-BACKSTOP-DURATION"
"""Holds the text of an event's DURATION: once parsed, P1D and PT24H are the same."""
_TOO_OFTEN = ("SECONDLY", "MINUTELY")
_MOST_TIMES = 5_000
_MOST_IN_ALL = 20_000
_MOST_BYTES = 16 * 2**20
_KINDS = {kind.value: kind for kind in WindowKind}


class CalendarRead(NamedTuple):
    """The windows that a file declares, and for each event that was left out what is wrong with it."""

    declared: tuple[Declared, ...]
    left_out: tuple[str, ...] = ()


def read_calendar(
    path: str, now: datetime, clusters: Sequence[str] = (), kind: WindowKind = WindowKind.MAINTENANCE
) -> CalendarRead:
    """Read the windows that the file's events declare, from now on; a cancelled event withdraws its own.

    An event that cannot be read is left out, with all others of its UID, and withdraws nothing. `clusters`: of all
    events, whatever their location. `kind`: of events that have no category with a kind. Errors: BadInput naming the
    file, the event and its fault, where no event is left, and where the file is no calendar.
    """
    name = Path(path).name
    calendar = _parse(path, name)
    events: dict[str, list[Any]] = {}
    left_out: list[BadInput] = []
    try:
        all_events = calendar.walk("VEVENT")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadInput(f"{name} has an event that cannot be read: {_words(error)}") from None
    for event in all_events:
        try:
            events.setdefault(_source(event, name), []).append(event)
        except BadInput as error:
            left_out.append(error)
    declared: list[Declared] = []
    times = 0
    for source, its in events.items():
        try:
            declared.append(_declare(source, its, name, now, clusters, kind))
            times += len({window.starts for _, window in declared[-1].windows})
        except BadInput as error:
            left_out.append(error)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:  # a property that is broken
            left_out.append(BadInput(f"{name} has an event that cannot be read: {_words(error)}"))
        if times > _MOST_IN_ALL:
            raise BadInput(f"{name}: its events take place more than {_MOST_IN_ALL} times within a year")
    if not declared:
        raise left_out[0] if left_out else BadInput(f"{name} has no event")
    return CalendarRead(tuple(declared), tuple(error.message for error in left_out))


def _declare(
    source: str, events: Sequence[Any], name: str, now: datetime, clusters: Sequence[str], kind: WindowKind
) -> Declared:
    """Return the windows of one UID's events: a series, and its exceptions."""
    for event in events:
        _refuse_nonsense(event, name, now)
    windows: list[tuple[str, Window]] = []
    for event in _list_coming(events, name, now):
        if str(event.get("STATUS", "")).upper() != "CANCELLED":
            window = _window(event, name, kind)
            windows += [(cluster, window) for cluster in clusters or _clusters(event, name)]
    return Declared(source=source, windows=tuple(windows))


def _list_coming(events: Sequence[Any], name: str, now: datetime) -> list[Any]:
    """Return each time that these events take place within a year, times that have begun included."""
    calendar = icalendar.Calendar()
    for event in events:
        calendar.add_component(event)
    try:
        coming: list[Any] = recurring_ical_events.of(calendar, skip_bad_series=False).between(now - _DAY, now + _AHEAD)
    except Exception as error:  # the library has no error of its own for what it cannot follow
        raise BadInput(f"{name}: a repeating event cannot be read: {_words(error)}") from None
    coming = [one for one in coming if _end(one, name) > now]
    if len(coming) > _MOST_TIMES:
        raise BadInput(
            f"{name}: event {_title(events[0])!r} takes place {len(coming)} times within a year: "
            f"the most is {_MOST_TIMES}"
        )
    return coming


def _parse(path: str, name: str) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise BadInput(f"{name} has more than {_MOST_BYTES} bytes")
    try:
        return icalendar.Calendar.from_ical(_with_durations_as_written(data))
    except (ValueError, IndexError, KeyError) as error:
        raise BadInput(f"{name} is not an iCalendar file: {_words(error)}") from None


def _with_durations_as_written(data: bytes) -> bytes:
    """Return the text with each DURATION, unfolded, repeated as it was written in a property of our own."""
    unfolded = re.sub(rb"\r?\n[ \t]", b"", data)
    return re.sub(rb"(?im)^(DURATION(?:;[^:\r\n]*)?:([^\r\n]*))", rb"\1\n" + _AS_WRITTEN.encode() + rb":\2", unfolded)


def _source(event: Any, name: str) -> str:
    uid = str(event.get("UID", "")).strip()
    if not uid:
        raise BadInput(f"{name}: event {_title(event)!r} has no UID, which a later import needs to find it again")
    if len(uid) > 250:
        raise BadInput(f"{name}: event {_title(event)!r} has a UID of more than 250 characters")
    return f"ics {uid}"


def _clusters(event: Any, name: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in str(event.get("LOCATION", "")).split(",") if part.strip()))
    if not names:
        raise BadInput(
            f"{name}: event {_title(event)!r} has no location, which names its clusters: add it, or use --cluster"
        )
    return names


def _window(event: Any, name: str, kind: WindowKind) -> Window:
    islands = [part.strip() for part in str(event.get("X-BACKSTOP-ISLANDS", "")).split(",") if part.strip()]
    gpus = str(event.get("X-BACKSTOP-GPUS", "")).strip()
    fields = {
        "kind": _kind(event) or kind,
        "starts": _moment(event, "DTSTART", name),
        "ends": _end(event, name),
        "reason": _title(event)[:500],
        "islands": tuple(islands) or None,
        "gpus": (int(gpus) if gpus.isdecimal() else gpus) if gpus else None,
    }
    try:
        return Window.model_validate(fields)
    except ValidationError as error:
        raise BadInput(f"{name}: event {_title(event)!r}: {first_problem(error, fields).text}") from None


def _kind(event: Any) -> WindowKind | None:
    categories = event.categories if event.get("CATEGORIES") is not None else ()
    return next((_KINDS[c.lower()] for c in map(str, categories) if c.lower() in _KINDS), None)


def _moment(event: Any, field: str, name: str) -> datetime:
    """Return a property's time; a day begins at midnight UTC. A time without a zone is ambiguous: it is refused."""
    value = event[field].dt
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _without_zone(event, field, value, event[field].params.get("TZID"), name)
        return value.astimezone(UTC)
    if not isinstance(value, date):
        raise BadInput(f"{name}: event {_title(event)!r}: {field} is neither a day nor a time")
    return datetime.combine(value, time(), UTC)


def _without_zone(event: Any, field: str, value: datetime, zone: str | None, name: str) -> BadInput:
    which = "no time zone" if zone is None else f"an unknown time zone, {zone!r}"
    return BadInput(f"{name}: event {_title(event)!r}: {field} has {which}: {value:%Y-%m-%dT%H:%M}")


def _refuse_unknown_zones(event: Any, name: str) -> None:
    """Refuse an unknown zone in a cancelled or added time: that time is ambiguous too."""
    for field in _DATES:
        properties = event.get(field, ())
        for each in properties if isinstance(properties, list) else [properties]:
            for one in getattr(each, "dts", None) or ():
                begins = one.dt[0] if isinstance(one.dt, tuple) else one.dt
                if isinstance(begins, datetime) and begins.tzinfo is None:
                    raise _without_zone(event, field, begins, each.params.get("TZID"), name)


def _end(event: Any, name: str) -> datetime:
    """Return when one time of an event ends: weeks and days of a DURATION follow the wall clock, hours and less are
    exact.

    Source: RFC 5545, 3.3.6. An added time (RDATE) may have a length other than its event's: then that length holds.
    """
    ends, starts = _moment(event, "DTEND", name), event["DTSTART"].dt
    parts = _DURATION.fullmatch(str(event.get(_AS_WRITTEN, "")).strip())
    if parts is None or not isinstance(starts, datetime):
        return ends
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts.groups()[1:])
    sign = -1 if parts[1] == "-" else 1
    nominal = sign * timedelta(weeks=weeks, days=days)
    exact = sign * timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if starts + nominal + exact != event["DTEND"].dt:
        return ends
    return (starts + nominal).astimezone(UTC) + exact


def _refuse_nonsense(event: Any, name: str, now: datetime) -> None:
    """Refuse an event that the library would misread or expand without end."""
    if "DTSTART" not in event:
        raise BadInput(f"{name}: event {_title(event)!r} has no DTSTART")
    rules = _rules(event)
    if any(str(frequency).upper() in _TOO_OFTEN for rule in rules for frequency in rule.get("FREQ", ())):
        raise BadInput(
            f"{name}: event {_title(event)!r} repeats every second or minute, which is too often for a window"
        )
    if any(every < 1 for rule in rules for every in rule.get("INTERVAL", ())):
        raise BadInput(f"{name}: event {_title(event)!r} repeats at an INTERVAL below 1")
    starts = _moment(event, "DTSTART", name)
    _refuse_unknown_zones(event, name)
    if rules and starts < now - _BEHIND:
        raise BadInput(
            f"{name}: event {_title(event)!r} began {starts:%Y-%m-%d}, too long ago to follow its series: "
            "give a later DTSTART"
        )
    if "DTEND" in event and _moment(event, "DTEND", name) < starts:
        raise BadInput(f"{name}: event {_title(event)!r} ends before it starts")


def _rules(event: Any) -> list[Any]:
    try:
        rules = event.get("RRULE", ())
        return [rule for rule in (rules if isinstance(rules, list) else [rules]) if rule and rule.get("FREQ")]
    except ValueError:
        return []  # broken: it is refused when it is followed


def _title(event: Any) -> str:
    return " ".join(str(event.get("SUMMARY", "")).split()) or "no title"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
