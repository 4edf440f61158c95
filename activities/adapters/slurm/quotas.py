"""QuotaPort for clusters whose quotas are accounts of a Slurm: the ledger's, brought to Slurm and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from activities.adapters.slurm.names import POOL
from activities.adapters.slurm.slurm import SLURMS_AT_ONCE, Slurms
from activities.adapters.slurm.wanted_limits import root_limit_of
from activities.ports.by_cluster import ByCluster
from models.cluster.readings import ForeignChange, QuotaReading
from models.cluster.sources import SlurmSource
from models.errors import Refusal, Unavailable
from models.rollout.effects import Change, Receipt


class SlurmQuotas:
    """QuotaPort for all clusters: the ledger's, and for those that Slurm holds, the ledger's and Slurm's."""

    def __init__(self, slurms: Slurms) -> None:
        self._slurms = slurms
        self._ledger = slurms.ledger.quotas

    def read(self, cluster: str) -> QuotaReading:
        source = self._slurms.book.sources([cluster]).get(cluster)
        if source is None:
            return self._ledger.read(cluster)
        bound = root_limit_of(self._slurms.sync(cluster, source), source)
        return self._ledger.read(cluster).but(bound_gpus=bound)

    def look(self, cluster: str) -> QuotaReading:
        sources = self._slurms.book.sources([cluster])
        unread = self._slurms.sync_aside(sources).get(cluster, "")
        return self._last_known(cluster, sources).but(unread=unread)

    def last_known(self, cluster: str) -> QuotaReading:
        return self._last_known(cluster, self._slurms.book.sources([cluster]))

    def _last_known(self, cluster: str, sources: Mapping[str, SlurmSource]) -> QuotaReading:
        return self._ledger.read(cluster).but(bound_gpus=self._bounds(sources).get(cluster))

    def _bounds(self, sources: Mapping[str, SlurmSource]) -> dict[str, int | None]:
        """Return the limit of each root account, as last seen, in one reading of the ledger."""
        names = {cluster: POOL + source.root for cluster, source in sources.items()}
        return self._slurms.book.limits(names) if names else {}

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        sources = self._slurms.book.sources(clusters)
        with ThreadPoolExecutor(SLURMS_AT_ONCE) as pool:
            answers = dict(zip(sources, pool.map(self._sync_one, sources, sources.values()), strict=True))
        wrong = {cluster: why for cluster, (why, _) in answers.items() if why}
        answer = self._ledger.readings([name for name in clusters if name not in wrong])
        for cluster in answers.keys() & answer.keys():
            answer[cluster] = answer[cluster].but(bound_gpus=answers[cluster][1])
        answer.senseless |= wrong
        return answer

    def _sync_one(self, cluster: str, source: SlurmSource) -> tuple[str, int | None]:
        """Return why its limits could not be read, and the limit of its root account."""
        try:
            return "", root_limit_of(self._slurms.sync(cluster, source), source)
        except (Refusal, Unavailable) as error:  # a silent one must not cost the others their answer
            return error.message, None

    def barred_reason(self, cluster: str) -> str:
        source = self._slurms.book.sources([cluster]).get(cluster)
        return self._ledger.barred_reason(cluster) if source is None else self._slurms.barred_reason(cluster, source)

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        self._slurms.refresh_limits(clusters)
        versions = dict(self._ledger.versions(clusters))
        for cluster, bound in self._bounds(self._slurms.book.sources(clusters)).items():
            if bound is not None and cluster in versions:
                versions[cluster] += f" within {bound}"
        return versions

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        return self._ledger.changes(cluster, after)

    def apply(self, change: Change) -> Receipt:
        source = self._slurms.book.sources([change.cluster]).get(change.cluster)
        if source is None:
            return self._ledger.apply(change)
        with self._slurms.book.lock_cluster(change.cluster):
            self._slurms.sync(change.cluster, source)
            receipt = self._ledger.apply(change)
            self._slurms.push(change.cluster, source)
            self._slurms.classes_after_write(change.cluster, source)
            return receipt
