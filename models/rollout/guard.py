"""The guard: from health samples to "at risk", "breach" and "recovered", with hysteresis.

Theory of operation. `Sight` decides which samples to believe: an implausible drop or rise stays UNKNOWN until more
samples agree or a person confirms it, and a sample of a source in doubt (models/cluster/implausible_falls.py) until the
doubt is over. `Clocks` keeps one timer per quota: it runs while the quota is short, stops while it is not, and starts
again only after the quota was good for `clear_after`. So a blip shorter than `breach_after` breaches nothing, and a
quota that flaps breaches when its short times together reach `breach_after`. Times are passed in; nothing here reads a
clock. Source: docs/design.md, "Guard and rollback".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from fractions import Fraction

from pydantic import Field

from models.base import Count, Model, Time
from models.cluster.readings import Doubt, HealthSample
from models.texts import lacks_text


class Sight(Model):
    """The believed health of a cluster, and a sample that is not yet believed."""

    known: HealthSample | None = None
    """The last believed sample, which counts while later ones are UNKNOWN."""
    suspect: HealthSample | None = None
    agreeing: Count = 0
    """Samples after the first implausible one that agree with it."""
    doubted: str = ""
    """The source of the suspect, if that source is in doubt: then no number of samples confirms it. Empty: no doubt."""

    @property
    def unknown(self) -> bool:
        return self.known is None or self.suspect is not None

    @property
    def is_rising(self) -> bool:
        """True if the suspect sample has more healthy GPUs than the believed one."""
        return (
            self.known is not None and self.suspect is not None and self.suspect.healthy_gpus > self.known.healthy_gpus
        )

    def after_sample(
        self, sample: HealthSample, plausible_drop: Fraction, confirm_samples: int, *, rises: bool = True
    ) -> Sight:
        """Return the sight after one more sample of a source that is not in doubt.

        Samples older than the last are ignored. The first sample after a doubt is believed: the cluster is back where
        it was, or a person has confirmed it. `rises`: False in an older history, which believed every rise at once.
        """
        if self.known is None or self.doubted:
            return Sight(known=sample)
        last = self.suspect or self.known
        if sample.at < last.at:
            return self
        rise = sample.healthy_gpus > self.known.healthy_gpus
        if (rise and not rises) or not is_implausible(self.known, sample, plausible_drop):
            return Sight(known=sample)
        agreeing = 0
        if self.suspect is not None and not is_implausible(self.suspect, sample, plausible_drop):
            agreeing = self.agreeing + (sample.at > self.suspect.at)
        if agreeing >= confirm_samples:
            return Sight(known=sample)
        return Sight(known=self.known, suspect=sample, agreeing=agreeing)

    def after_doubted_sample(self, sample: HealthSample, doubt: Doubt) -> Sight:
        """Return the sight after a sample of a source in doubt: the sample before the doubt counts again."""
        return Sight(known=doubt.before, suspect=sample, doubted=doubt.source)

    def confirm_suspect(self) -> Sight:
        """Return the sight after a person confirmed the implausible sample."""
        return self if self.suspect is None else Sight(known=self.suspect)


def is_implausible(last: HealthSample, sample: HealthSample, plausible_drop: Fraction) -> bool:
    """Return whether more of the cluster vanished or came back in one step than failures and repairs explain."""
    return abs(last.healthy_gpus - sample.healthy_gpus) > plausible_drop * max(last.total_gpus, 1)


class QuotaClock(Model):
    """The breach timer of one quota. Exactly one of `short_since` and `good_since` is set."""

    short_since: Time | None = None
    good_since: Time | None = None
    earlier: timedelta = timedelta(0)
    """Time spent short before `short_since` or `good_since`, since the timer was last reset."""
    missing_gpus: Count = 0

    def breaches_at(self, breach_after: timedelta) -> datetime | None:
        """Return when the quota breaches, if nothing changes; None if it is not short."""
        return None if self.short_since is None else self.short_since + max(timedelta(0), breach_after - self.earlier)

    def time_spent(self, now: datetime) -> timedelta:
        if self.short_since is None:
            return self.earlier
        return self.earlier + max(timedelta(0), now - self.short_since)


class Clocks(Model):
    """The timers of one cluster's quotas, and the time since which none is short."""

    by_team: dict[str, QuotaClock] = Field(default_factory=dict)
    all_good_since: Time | None = None
    """Time since which every quota has been backed; None while one is not, or before the first look."""

    def after_shortage(
        self, shortage: Mapping[str, int], now: datetime, clear_after: timedelta, *, backed: bool | None = None
    ) -> Clocks:
        """Return the timers after a look that saw these quotas short (GPUs missing by team).

        `backed`: False if a declared absence explains a shortage that is not listed: no breach comes of it, but health
        is not good either.
        """
        clocks: dict[str, QuotaClock] = {}
        for team in sorted({*self.by_team, *shortage}):
            clock = self.by_team.get(team, QuotaClock(good_since=now))
            if clock.good_since is not None and now - clock.good_since >= clear_after:
                clock = QuotaClock(good_since=clock.good_since)
            if team in shortage:
                since = clock.short_since if clock.short_since is not None else now
                clocks[team] = QuotaClock(short_since=since, earlier=clock.earlier, missing_gpus=shortage[team])
            elif clock.short_since is not None:
                clocks[team] = QuotaClock(good_since=now, earlier=clock.time_spent(now))
            elif clock.earlier > timedelta(0):
                clocks[team] = clock
        good = (self.all_good_since or now) if not shortage and backed is not False else None
        return Clocks(by_team=clocks, all_good_since=good)

    @property
    def at_risk(self) -> dict[str, int]:
        """GPUs missing by team, for quotas that are short now."""
        return {team: c.missing_gpus for team, c in self.by_team.items() if c.short_since is not None}

    def lacks(self, teams: Iterable[str]) -> str:
        """Return the GPUs that the short ones among these teams lack now, as a sentence says it."""
        short = {team: gpus for team, gpus in self.at_risk.items() if team in set(teams)}
        return lacks_text(short) if short else "the quotas are backed again, but not yet for long enough"

    def breached_teams(self, now: datetime, breach_after: timedelta) -> tuple[str, ...]:
        """Return the teams whose quota has been short for at least `breach_after`."""
        return tuple(
            team
            for team, clock in self.by_team.items()
            if clock.short_since is not None and clock.time_spent(now) >= breach_after
        )

    def next_breach(self, breach_after: timedelta, but: Collection[str] = ()) -> datetime | None:
        """Return when the first short quota (but these) breaches, if nothing changes."""
        due = (clock.breaches_at(breach_after) for team, clock in self.by_team.items() if team not in but)
        return min((at for at in due if at is not None), default=None)
