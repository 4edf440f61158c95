"""Buffers from health history: the GPUs that a year of a cluster's samples lets it promise."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from activities import metrics as meters
from activities.bad_rows import one_of
from activities.ports.clusters import ClusterPorts
from models.buffers.estimator import REMEMBERED, derive_buffer
from models.buffers.hourly_health import Series, hourly
from models.cluster.derived_buffer import Derived, HealthTerms
from models.cluster.island import Island, total


class Deriver:
    """Derives buffers from whole hours alone, so that within an hour the same history gives the same buffer."""

    def __init__(self, ports: ClusterPorts) -> None:
        self._ports = ports
        self._kept: dict[str, tuple[object, datetime, Derived]] = {}
        """By cluster, the terms, time and result of the last derivation; lost when the process ends."""

    def hours(self, cluster: str, islands: tuple[Island, ...], now: datetime) -> Series | None:
        """Return the cluster's hours up to the last whole one; declared windows count as planned. None: no history.

        `islands`: those it has today. If samples end earlier, the hours since then are unknown.
        """
        until = now.replace(minute=0, second=0, microsecond=0)
        samples = self._ports.health.history(cluster, until - REMEMBERED, until)
        windows = one_of(self._ports.calendar.windows([cluster]), cluster) or ()
        hours = hourly(samples, windows, until.timestamp(), [i.name for i in islands if i.total_gpus], cluster)
        return None if hours is None else hours.up_to(int(until.timestamp() // 3600))

    def derive(
        self,
        cluster: str,
        islands: tuple[Island, ...],
        gpus_per_node: int,
        terms: HealthTerms,
        now: datetime,
        within: timedelta = timedelta(0),
    ) -> Derived:
        """Return the buffer needed for a cluster of these islands. `within`: the greatest age of an earlier answer."""
        key = (total(islands), gpus_per_node, terms)
        kept = self._kept.get(cluster)
        if kept is not None and kept[0] == key and timedelta(0) <= now - kept[1] < within:
            return kept[2]
        hours = self.hours(cluster, islands, now)
        down = np.empty(0) if hours is None else hours.down
        answer = derive_buffer(down, max(1, total(islands)), terms, gpus_per_node)
        self._kept[cluster] = key, now, answer
        meters.buffer.set(answer.needed, {"cluster": cluster})
        return answer
