"""The ports of the watch: clusters whose health to look at now, and the tallies that it keeps for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from models.reports.tallies import Point, Tally


class PushPort(Protocol):
    """Clusters whose health is to be looked at now. What a push says about it is not kept."""

    def push(self, clusters: Sequence[str]) -> tuple[str, ...]:
        """Let them wait to be looked at; return those that exist. Idempotent until somebody takes them."""

    def take(self, mine: Callable[[str], bool]) -> dict[str, datetime]:
        """Take the waiting clusters among these, and since when they wait. At most 1,000, the oldest first."""


class TallyPort(Protocol):
    """The tallies: the state of each cluster in each slot of time."""

    def due_clusters(self, slot: datetime, most: int) -> tuple[str, ...]:
        """Return clusters without a tally of this slot, by name; at most so many."""

    def keep(self, tallies: Sequence[Tally]) -> None:
        """Store the tallies; a cluster that has one of its slot already keeps that."""

    def thin_out(self, day: datetime) -> None:
        """Keep only each cluster's first tally of the day that begins then. Idempotent."""

    def sum_up(self, since: datetime, until: datetime) -> bool:
        """Keep the next day in this time with tallies as sums, too, for means; return False if there is none left."""

    def points(self, cluster: str, times: Sequence[datetime], within: timedelta) -> tuple[Point, ...]:
        """Sum up, for each time, the last tally of each cluster up to then that is no older than `within`.

        Only of one cluster, if one is named. A time without any is left out. Errors: BadInput, unknown cluster.
        """

    def begin_at(self, cluster: str) -> datetime | None:
        """Return when the tallies begin, of one cluster or of all; None if there are none."""
