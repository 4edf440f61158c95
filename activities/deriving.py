"""Buffers from health history: what a cluster's samples of a year let it promise."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from activities import meters
from activities.ports import CalendarPort, HealthPort
from models.derived import Derived, HealthTerms
from models.history import Hourly, hourly
from models.promises import REMEMBERED, derived


class Deriver:
    """Whole hours alone are gone by, so that within an hour the same history gives the same buffer."""

    def __init__(self, health: HealthPort, calendar: CalendarPort) -> None:
        self._health = health
        self._calendar = calendar
        self._kept: dict[str, tuple[object, datetime, Derived]] = {}
        """By cluster: what it was derived for, when, and the answer; lost with the process."""

    def hours(self, cluster: str, now: datetime) -> Hourly | None:
        """The cluster's hours up to the last whole one; what was declared (windows) is planned. None: no history.

        Where its samples end earlier, the hours since then are unknown.
        """
        until = now.replace(minute=0, second=0, microsecond=0)
        islands = self._health.history(cluster, until - REMEMBERED, until)
        windows = self._calendar.windows([cluster]).get(cluster, ())
        sample = self._health.read([cluster]).get(cluster)
        there = () if sample is None else [i.name for i in sample.islands if i.total_gpus]
        found = hourly(islands, windows, until.timestamp(), there)
        return None if found is None else found.up_to(int(until.timestamp() // 3600))

    def derived(
        self,
        cluster: str,
        total_gpus: int,
        gpus_per_node: int,
        terms: HealthTerms,
        now: datetime,
        within: timedelta = timedelta(0),
    ) -> Derived:
        """What is asked of the buffer of a cluster of this size. `within`: an answer may be so old."""
        key = (total_gpus, gpus_per_node, terms)
        known = self._kept.get(cluster)
        if known is not None and known[0] == key and timedelta(0) <= now - known[1] < within:
            return known[2]
        found = self.hours(cluster, now)
        down = np.empty(0) if found is None else found.total - found.worst - found.planned
        answer = derived(down, max(1, total_gpus), terms, gpus_per_node)
        self._kept[cluster] = key, now, answer
        meters.buffer(cluster, answer)
        return answer
