"""The soak clock: the time for which all checks have been green together.

Red restarts the clock; unknown stops it, and counts as red after `stale_after` (models/bringup/check_state.py).
Everything here is a function of the checks, the clock and `now`. Source: docs/bringup.md, "Checks".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from models.base import Duration, Model, Time
from models.bringup.check_state import Checks, Rules, colours, expires_at
from models.bringup.checks import Colour

_ZERO = timedelta(0)


class SoakClock(Model):
    """The time gathered so far, and the time since which the clock runs; None: it is stopped."""

    gathered: Duration = _ZERO
    since: Time | None = None


def tick_clock(clock: SoakClock, checks: Checks, rules: Rules, now: datetime, stale_after: timedelta) -> SoakClock:
    """Return the clock at `now`. Between two ticks colours change by time alone: an answer expired, or went stale."""
    if clock.since is not None:
        ends = min((end for name, c in checks.items() if (end := expires_at(c, rules[name])) is not None), default=None)
        if ends is not None and now > ends:
            clock = SoakClock(gathered=clock.gathered + max(_ZERO, ends - clock.since))
    return turn_clock(clock, colours(checks, rules, now, stale_after), now)


def turn_clock(clock: SoakClock, colours: Mapping[str, Colour], now: datetime) -> SoakClock:
    """Return the clock if the checks have these colours from now on."""
    colours_now = set(colours.values())
    if Colour.RED in colours_now:
        return SoakClock()
    if Colour.UNKNOWN in colours_now:
        return SoakClock(gathered=gathered_time(clock, now))
    return clock if clock.since is not None else clock.but(since=now)


def gathered_time(clock: SoakClock, now: datetime) -> timedelta:
    return clock.gathered + (_ZERO if clock.since is None else now - clock.since)


def edge_times(
    clock: SoakClock, checks: Checks, rules: Rules, stale_after: timedelta, soak: timedelta
) -> Iterator[datetime]:
    """Yield the times at which time alone changes something: a full soak, an answer that expires or goes stale."""
    if clock.since is not None:
        yield clock.since + max(_ZERO, soak - clock.gathered)
    for name, check in checks.items():
        end = expires_at(check, rules[name])
        if end is not None:
            yield end + timedelta(microseconds=1)
            yield end + stale_after
        elif check.unknown_since is not None and not check.skipped:
            yield check.unknown_since + stale_after
