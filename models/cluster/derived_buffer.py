"""A buffer derived from health history: its terms, its result, and how promises may follow it.

The estimator is in models.buffers.estimator; this is the part that policies, snapshots and plans carry.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Self

from pydantic import model_validator

from models.base import Documented, Duration, Model, Share, duration_text

_LEAST_TARGET, _MOST_TARGET = Fraction(1, 2), Fraction(99999, 100000)


class HealthTerms(Documented):
    """`buffer: {health: {...}}`: the terms of a buffer from health history, and the floor without enough of it."""

    target: Share = Fraction(999, 1000)
    """The share of the horizon's hours in which the promise must hold; from 0.5 to 0.99999."""
    horizon: Duration = timedelta(weeks=4)
    """The time for which Backstop promises; from 1w to 52w."""
    floor: Share = Fraction(15, 100)
    """The least buffer while history is short or stale; at most `most`."""
    most: Share = Fraction(50, 100)
    """The largest acceptable buffer. If history asks for more, Backstop refuses to launch the cluster."""
    history: Duration = timedelta(weeks=13)
    """A history below this length counts as short; from 1d to 52w."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not _LEAST_TARGET <= self.target <= _MOST_TARGET:
            wanted = f"from {float(_LEAST_TARGET):g} to {float(_MOST_TARGET):g}"
            raise ValueError(f"target must be {wanted}, not {float(self.target)}")
        if not timedelta(weeks=1) <= self.horizon <= timedelta(weeks=52):
            raise ValueError(f"horizon must be from 1w to 52w, not {duration_text(self.horizon)}")
        if not timedelta(days=1) <= self.history <= timedelta(weeks=52):
            raise ValueError(f"history must be from 1d to 52w, not {duration_text(self.history)}")
        if not self.floor <= self.most:
            raise ValueError(f"floor must be at most {float(self.most):g} (most), not {float(self.floor):g}")
        return self


TERMS = HealthTerms()


class BufferBasis(StrEnum):
    """The ground of a derived buffer."""

    HISTORY = "history"
    SHORT = "short"
    STALE = "stale"
    WILD = "wild"


class Derived(Model):
    """A derived buffer and its parts. Units: as the history counts (nodes or GPUs), whole; hours."""

    ground: BufferBasis
    terms: HealthTerms
    """The terms by which the buffer was derived."""
    total: int
    needed: int
    """The count that must stay unpromised: level plus reserve, but at least the floor if history is short or stale."""
    level: int
    """The count that was down for at least half of the last two weeks, or of the last day if that is more."""
    reserve: int
    """The count kept for new failures: the target's share of past surprises was at most this large."""
    known_hours: int
    worst: int
    """The count that was down at the worst known instant."""
    text: str

    @property
    def promise(self) -> int | None:
        """The most that may be promised; None: no honest promise is possible."""
        return None if self.ground is BufferBasis.WILD else self.total - self.needed

    @property
    def buffer(self) -> Fraction | None:
        return None if self.ground is BufferBasis.WILD else Fraction(self.needed, self.total)


class Steps(Model):
    """The steps by which a promise may follow what is derived week by week."""

    fall: Share = Fraction(1, 200)
    """The promise falls only by more than this share of the total. In back-tests 1/100 was too much."""
    band: Share = Fraction(1, 100)
    """The promise rises only by more than this share of the total, so that quotas do not wobble."""
    rise: Share = Fraction(5, 100)
    """The promise rises by at most this share of the total in a week."""


PROMISE_STEPS = Steps()


def follow_promise(
    standing: int | None, asked: Derived, steps: Steps = PROMISE_STEPS, of: int | None = None
) -> int | None:
    """Return the promise to propose beside the `standing` one: less at once, more by steps, small changes never.

    Units: as `asked`. `of`: the total when `standing` was promised, where it may differ from today's. None: nothing can
    be promised, or (as `standing`) nothing is.
    """
    if standing is None or asked.promise is None:
        return asked.promise
    standing = scale_promise(standing, of, asked.total)
    more = asked.promise - standing
    if -steps.fall * asked.total <= more <= steps.band * asked.total:
        return standing
    return standing + min(more, max(1, int(steps.rise * asked.total)))


def scale_promise(standing: int, of: int | None, total: int) -> int:
    """Return the standing promise, scaled up with a cluster that has grown; never less."""
    return max(standing, standing * total // of) if of else standing


def step_promise(asked: Derived, standing: int | None, of: int | None = None) -> Derived:
    """Return the derived buffer, held back where the promise may not follow it at once. `of`: see `follow_promise`."""
    promise = follow_promise(standing, asked, of=of)
    if standing is None or promise is None or promise == asked.promise:
        return asked
    now = scale_promise(standing, of, asked.total)
    if now == standing:
        text = f"the promise rises from {standing} only to {promise} for now"
        text = text if promise != standing else f"the promise stays at {standing}, as health now allows about as much"
    else:
        grows = f"the cluster has grown from {of} to {asked.total}, and the promise with it from {standing} to {now}"
        text = (
            f"{grows}; for now it rises only to {promise}"
            if promise != now
            else f"{grows}; health now allows about as much"
        )
    return asked.model_copy(update={"needed": asked.total - promise, "text": f"{asked.text}; {text}"})
