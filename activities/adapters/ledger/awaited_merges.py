"""Effects on branches of a repository that people have not merged yet: one for each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlmodel import col

from activities.adapters.ledger.bulk import is_among, store
from activities.adapters.ledger.database import LedgerPart
from models.base import Model, Time
from models.ledger_tables import AwaitedMergeRow, ClusterRow, RequestRow, RolloutRow
from models.rollout.effects import EffectKind, Fence

_ABANDONED = timedelta(hours=2)
"""The time after which a grant is given up if its request does not deliver it again."""


class AwaitedMerge(Model):
    """An effect on a branch. Units: whole GPUs."""

    fence: Fence
    kind: EffectKind
    branch: str
    at: Time
    asked_at: Time
    """Time at which the effect was last delivered."""
    pushed: bool = False
    """Whether the branch was ever at the server; if so and it is gone now, people deleted it."""
    gpus: dict[str, int]
    """The quotas that the effect writes, by team."""
    before: dict[str, int]
    """These quotas in the tracked branch when the effect was made."""


class LedgerMerges(LedgerPart):
    def of_cluster(self, cluster: str) -> AwaitedMerge | None:
        return self.of_clusters([cluster]).get(cluster)

    def of_clusters(self, clusters: Sequence[str]) -> dict[str, AwaitedMerge]:
        """Return those of these clusters, by cluster, in one query."""
        if not clusters:
            return {}
        table = AwaitedMergeRow
        rows = sa.select(col(table.cluster), col(table.document)).where(is_among(col(table.cluster), "names"))
        with self._database.reading() as session:
            read = session.connection().execute(rows, {"names": list(clusters)}).all()
        return {cluster: AwaitedMerge.model_validate_json(document) for cluster, document in read}

    def keep(self, cluster: str, merge: AwaitedMerge) -> None:
        """Keep it in place of the cluster's earlier one."""
        with self._database.begin() as session:
            store(session, AwaitedMergeRow, [{"cluster": cluster, "document": merge.model_dump_json()}])

    def drop(self, cluster: str) -> None:
        with self._database.begin() as session:
            session.execute(sa.delete(AwaitedMergeRow).where(col(AwaitedMergeRow.cluster) == cluster))

    def is_wanted(self, cluster: str, merge: AwaitedMerge) -> bool:
        """Return whether its rollout or request is open, and may still deliver the effect."""
        with self._database.reading() as session:
            row = session.get(ClusterRow, cluster)
            if row is not None and row.open_rollout == merge.fence.rollout:
                # A request that was withdrawn delivers its grant no more, and nothing says so here.
                return merge.kind is not EffectKind.GRANT or self._database.now() - merge.asked_at < _ABANDONED
            request = session.get(RequestRow, merge.fence.rollout.removeprefix("request/"))
            return request is not None and not request.ended

    def is_ours(self, rollout: str) -> bool:
        """Return whether this ledger has, or had, the rollout or request."""
        with self._database.reading() as session:
            if session.get(RolloutRow, rollout) is not None:
                return True
            return session.get(RequestRow, rollout.removeprefix("request/")) is not None
