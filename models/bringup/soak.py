"""The soak clock: how long all checks have been green together.

A recurring answer counts for two intervals, a `once` answer until something was repaired. Red starts the clock anew;
unknown stops it, and counts as red after `stale_after`. A check that a person skipped is asked no more and counts as
green. Everything here is a function of the checks, the clock and `now`. Source: docs/bringup.md, "Checks".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from models.base import Count, Duration, Model, Text, Time, Words
from models.bringup.checks import CheckAnswer, Colour

_ZERO = timedelta(0)
COUNTS_FOR = 2
"""Intervals for which an answer counts."""


class Terms(NamedTuple):
    """Of one check: how often it is asked, and whether only once."""

    every: timedelta
    once: bool = False


class CheckState(Model):
    """How one check stands."""

    colour: Colour = Colour.UNKNOWN
    """As it answered last."""
    said: Text = "not asked yet"
    number: float | None = None
    at: Time | None = None
    """When it answered; None: it has not."""
    unknown_since: Time | None = None
    """Since when nothing is known; None while the last answer counts."""
    asked_at: Time | None = None
    reds: Count = 0
    """How often it turned red."""
    skipped: Words = ""
    """Why a person had it skipped; empty: nobody had."""

    def take_answer(self, answer: CheckAnswer) -> Self:
        """With the answer taken in. One that knows nothing leaves in place since when nothing is known."""
        red = answer.colour is Colour.RED
        unknown = answer.colour is Colour.UNKNOWN
        return self.but(
            colour=answer.colour,
            said=answer.said,
            number=answer.number,
            at=answer.at,
            unknown_since=(self.unknown_since or answer.at) if unknown else None,
            reds=self.reds + (red and self.colour is not Colour.RED),
        )

    def forget_answers(self, now: datetime) -> Self:
        """As if it had never answered, but for how often it was red."""
        return self.but(colour=Colour.UNKNOWN, said="to be asked again", at=None, unknown_since=now, asked_at=None)


class SoakClock(Model):
    """Time that counts: what was gathered, and since when it goes on; None: it stands."""

    gathered: Duration = _ZERO
    since: Time | None = None


Checks = Mapping[str, CheckState]
Rules = Mapping[str, Terms]


def expires_at(check: CheckState, terms: Terms) -> datetime | None:
    """Until when the last answer counts; None: for good, or there is none that does."""
    if check.skipped or terms.once or check.at is None or check.colour is Colour.UNKNOWN:
        return None
    return check.at + COUNTS_FOR * terms.every


def unknown_from(check: CheckState, terms: Terms, now: datetime) -> datetime | None:
    """Since when nothing has been known of it; None: something is."""
    if check.skipped:
        return None
    end = expires_at(check, terms)
    if end is not None:
        return end if now > end else None
    return check.unknown_since if check.colour is Colour.UNKNOWN else None


def colour_at(check: CheckState, terms: Terms, now: datetime, stale_after: timedelta) -> Colour:
    """What it counts as. One that is asked once waits for the others: unknown, for as long as that takes."""
    if check.skipped:
        return Colour.GREEN
    if terms.once and check.at is None:
        return Colour.UNKNOWN
    since = unknown_from(check, terms, now)
    if since is not None:
        return Colour.RED if now - since >= stale_after else Colour.UNKNOWN
    return check.colour


def colours(checks: Checks, rules: Rules, now: datetime, stale_after: timedelta) -> dict[str, Colour]:
    return {name: colour_at(check, rules[name], now, stale_after) for name, check in checks.items()}


def tick_clock(clock: SoakClock, checks: Checks, rules: Rules, now: datetime, stale_after: timedelta) -> SoakClock:
    """The clock at `now`. Between two ticks colours change by time alone: what counted ran out, or went stale."""
    if clock.since is not None:
        ends = min((end for name, c in checks.items() if (end := expires_at(c, rules[name])) is not None), default=None)
        if ends is not None and now > ends:
            clock = SoakClock(gathered=clock.gathered + max(_ZERO, ends - clock.since))
    return turn_clock(clock, colours(checks, rules, now, stale_after), now)


def turn_clock(clock: SoakClock, colours: Mapping[str, Colour], now: datetime) -> SoakClock:
    """The clock where the checks have these colours from now on."""
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
    """When time alone changes something: a soak is full, an answer counts no more, an unknown one goes stale."""
    if clock.since is not None:
        yield clock.since + max(_ZERO, soak - clock.gathered)
    for name, check in checks.items():
        end = expires_at(check, rules[name])
        if end is not None:
            yield end + timedelta(microseconds=1)
            yield end + stale_after
        elif check.unknown_since is not None and not check.skipped:
            yield check.unknown_since + stale_after
