"""Sums up the GPUs that running jobs hold by class. It only explains: if jobs cannot be read it says nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from activities.ports.clusters import ClusterPorts
from models.cluster.classes import those_of
from models.cluster.jobs import RunsOn
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.readings import Observation, Present
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import TeamWork, team_work
from models.errors import BackstopError
from models.planning.busy_work import work_short

log = logging.getLogger(__name__)


class Works:
    def __init__(self, ports: ClusterPorts) -> None:
        self._ports = ports

    def work_of(
        self, cluster: str, quotas: Iterable[Quota | Present], now: datetime, policy: Policy | None = None
    ) -> tuple[TeamWork, ...]:
        """Return the work of these quotas' teams, if jobs are known by name. `policy`: None: the cluster's."""
        try:
            running = self._ports.jobs.jobs([cluster], now).get(cluster, ())
            if not running:
                return ()
            usage = self._ports.usage.latest([cluster], now).get(cluster, {})
            of_policy = (policy or self._ports.registry.facts(cluster).policy).classes
        except BackstopError as error:
            log.warning("could not read whose jobs run in cluster %s: %s", cluster, error)
            return ()
        quotas = tuple(quotas)
        classes = {quota.team: those_of(quota.classes, of_policy) for quota in quotas}
        blocks = {quota.team: sum(quota.protected_blocks) for quota in quotas}
        return team_work(running, classes, {team: used.scheduled_gpus for team, used in usage.items()}, blocks)

    def with_work(self, snapshot: Snapshot, policy: Policy, now: datetime) -> Snapshot:
        """Return the snapshot with the work that plans use: the jobs that run in quota."""
        work = self.work_of(snapshot.cluster, snapshot.quotas, now, policy)
        return snapshot.but(work=tuple(each for each in work if each.on is RunsOn.QUOTA))

    def of_short(self, seen: Observation) -> tuple[TeamWork, ...]:
        return work_short(self.work_of(seen.cluster, seen.reading.quotas, seen.at), seen.shortage)
