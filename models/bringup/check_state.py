"""The state of one bring-up check: its last answer, when that stops counting, and what colour it counts as.

A recurring answer counts for two intervals, a `once` answer until something was repaired. A check that a person skipped
is not asked and counts as green. All here are functions of the check and `now`. Source: docs/bringup.md, "Checks".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from models.base import Count, Model, Text, Time, Words
from models.bringup.checks import CheckAnswer, Colour

COUNTS_FOR = 2
"""The number of intervals for which an answer counts."""


class Terms(NamedTuple):
    """The rules for one check: the interval between questions, and whether it is asked only once."""

    every: timedelta
    once: bool = False


class CheckState(Model):
    """The state of one check."""

    colour: Colour = Colour.UNKNOWN
    """The colour of its last answer."""
    said: Text = "not asked yet"
    number: float | None = None
    at: Time | None = None
    """Time of its last answer; None: there was none."""
    unknown_since: Time | None = None
    """Time since which its colour has been unknown; None: the last answer was red or green, or nobody asked yet."""
    asked_at: Time | None = None
    reds: Count = 0
    """The number of times it turned red."""
    skipped: Words = ""
    """The reason that a person gave for skipping the check; empty: nobody skipped it."""

    def take_answer(self, answer: CheckAnswer) -> Self:
        """Apply the answer. An unknown answer keeps the time since which nothing is known."""
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
        """Return the check as if it had never answered, except for its count of reds."""
        return self.but(colour=Colour.UNKNOWN, said="to be asked again", at=None, unknown_since=now, asked_at=None)


Checks = Mapping[str, CheckState]
Rules = Mapping[str, Terms]


def expires_at(check: CheckState, terms: Terms) -> datetime | None:
    """Return when the last answer stops counting; None if it counts for good, or none does."""
    if check.skipped or terms.once or check.at is None or check.colour is Colour.UNKNOWN:
        return None
    return check.at + COUNTS_FOR * terms.every


def unknown_from(check: CheckState, terms: Terms, now: datetime) -> datetime | None:
    """Return since when nothing has been known of the check; None if something is."""
    if check.skipped:
        return None
    end = expires_at(check, terms)
    if end is not None:
        return end if now > end else None
    return check.unknown_since if check.colour is Colour.UNKNOWN else None


def colour_at(check: CheckState, terms: Terms, now: datetime, stale_after: timedelta) -> Colour:
    """Return the colour that the check counts as. One asked once waits for the others: unknown meanwhile."""
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
