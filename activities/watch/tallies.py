"""Keeps the tallies: a portion of the clusters at a time, so that no edge waits for them."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

from activities.ports.clusters import ClusterPorts
from activities.ports.watch import TallyPort
from models.base import DAY
from models.cluster.readings import HealthSample, TeamUsage, truthful
from models.errors import BadInput, Refusal
from models.reports.tallies import Tally, slot_of, tally_of
from models.rollout.stages import Stage

logger = logging.getLogger("backstop.tallies")
PORTION = 50
"""The most clusters in one go."""
BUDGET_SECONDS = 0.25
"""Seconds of one go, which shares the processor with looks at health. A cluster that is begun is finished."""
LOOKS_AGAIN = timedelta(minutes=1)
"""A cluster imported in the middle of a slot gets its first tally within about this time."""
KEPT_WHOLE = timedelta(days=100)
"""The time for which all tallies are kept; older days keep one each."""


class Tallier:
    """Writes each cluster's tally once in each slot. Not for several threads at once."""

    def __init__(self, ports: ClusterPorts, tallies: TallyPort) -> None:
        self._ports = ports
        self._tallies = tallies
        self._rests_until: datetime | None = None
        """Until this time only new clusters have work to do; lost with the process, which costs a query."""

    def go_on(self, now: datetime, every: timedelta) -> int:
        """Keep the tallies of some more clusters in this slot; return how many. Errors: Unavailable."""
        if self._rests_until is not None and now < self._rests_until:
            return 0
        slot = slot_of(now, every)
        due = self._tallies.due_clusters(slot, PORTION)
        tallies = self._tally_all(due, slot, now) if due else []
        if tallies:
            self._keep(tallies)
        if len(due) < PORTION and len(tallies) == len(due):
            self._rests_until = min(slot + every, now + LOOKS_AGAIN)
            today = slot_of(slot, DAY)
            self._tallies.thin_out(today - KEPT_WHOLE - DAY)
            if self._tallies.sum_up(today - KEPT_WHOLE, today - DAY):
                self._rests_until = None  # another day may be left: with the next go
        return len(tallies)

    def _keep(self, tallies: list[Tally]) -> None:
        """Keep the tallies; one that the ledger refuses must not keep out the others of its portion for good."""
        try:
            self._tallies.keep(tallies)
        except BadInput:
            for tally in tallies:
                try:
                    self._tallies.keep([tally])
                except BadInput as error:
                    logger.warning("no tally of %s: %s", tally.cluster, error)
                    self._tallies.keep(
                        [_unknown_tally(tally.cluster, tally.at, tally.seen_at, (tally.stage, tally.shadow))]
                    )

    def _tally_all(self, clusters: tuple[str, ...], slot: datetime, now: datetime) -> list[Tally]:
        ends = time.monotonic() + BUDGET_SECONDS
        samples, usage = self._ports.health.read(clusters), self._ports.usage.latest(clusters, now)
        rollouts = self._ports.registry.open_clusters()
        tallies: list[Tally] = []
        for cluster in clusters:
            sample = truthful(samples.get(cluster), now)
            tallies.append(self._tally(cluster, slot, sample, usage.get(cluster, {}), rollouts.get(cluster), now))
            if time.monotonic() > ends:
                break
        return tallies

    def _tally(
        self,
        cluster: str,
        slot: datetime,
        sample: HealthSample | None,
        usage: dict[str, TeamUsage],
        rollout: tuple[Stage, bool] | None,
        now: datetime,
    ) -> Tally:
        try:
            return tally_of(slot, self._ports.quotas.last_known(cluster), sample, usage, rollout, now)
        except (Refusal, ValueError) as error:
            # Another tool left it so. It must neither delay the others nor be asked for again and again.
            logger.warning("no tally of %s: %s", cluster, error)
            return _unknown_tally(cluster, slot, now, rollout or (None, False))


def _unknown_tally(cluster: str, slot: datetime, now: datetime, rollout: tuple[str | None, bool]) -> Tally:
    """Return a tally without figures, but with the stage of the cluster's rollout."""
    return Tally(cluster=cluster, at=slot, seen_at=now, stage=rollout[0], shadow=rollout[1])
