"""Compares the quotas of a Git branch with those in force: what applies the branch lags behind it (docs/adr/0122).

An object of the cluster is read as a file of the branch is, by the same dialect: so both have the same teams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from activities.adapters.kubernetes.api import QUEUES, ObjectKind
from activities.adapters.kubernetes.clusterqueues import spell_out, without_line
from activities.adapters.kubernetes.followed import Followed, Pause
from activities.adapters.kubernetes.objects import BadObject, name_of
from activities.clock import Clock
from activities.quota_files.dialects import BranchQuotas, places_in
from models.cluster.sources import GitDialect, GitSource
from models.texts import some_of

_FRESH = timedelta(minutes=2)
"""The greatest age of the queues' objects at which they are compared."""
_LONG = timedelta(minutes=10)
"""A longer lag has another reason than Argo CD's interval of three minutes."""
_NAMED = 3


class _QueueKind(NamedTuple):
    objects: ObjectKind
    group: str
    name: str


_KINDS: Mapping[GitDialect, _QueueKind] = {
    GitDialect.KUEUE: _QueueKind(QUEUES, "kueue.x-k8s.io/v1beta1", "ClusterQueue"),
    GitDialect.KAI: _QueueKind(ObjectKind("queues", ("/apis/scheduling.run.ai/v2",)), "scheduling.run.ai/v2", "Queue"),
    GitDialect.VOLCANO: _QueueKind(
        ObjectKind("queues", ("/apis/scheduling.volcano.sh/v1beta1",)), "scheduling.volcano.sh/v1beta1", "Queue"
    ),
}


Branches = Callable[[str], BranchQuotas | None]
"""Returns the branch of a cluster, as last fetched; None: this worker has not fetched it."""


def queue_quotas(raw: Any, source: GitSource) -> Mapping[str, int] | None:
    """Return the quotas of a queue by team, as the repository names teams; None if it has none. Errors: BadObject."""
    name, kind = name_of(raw), _KINDS[source.dialect]
    spec = spell_out(raw.get("spec"))
    document = {"apiVersion": kind.group, "kind": kind.name, "metadata": {"name": name}, "spec": spec}
    try:
        return {team: place.gpus for team, place in places_in({name: json.dumps(document)}, source).items()} or None
    except ValueError as error:
        raise BadObject(f"{kind.name} {without_line(error)}") from None


class InForce:
    """The quotas of a cluster's queues, as its API server has them."""

    def __init__(self, source: GitSource, now: Clock, pause: Pause) -> None:
        self.queues = Followed(
            _KINDS[source.dialect].objects, None, partial(queue_quotas, source=source), now, lambda: None, pause
        )
        self._now = now
        self._since: dict[str, datetime] = {}
        """By team: when its quota in the cluster was first seen to differ."""

    @staticmethod
    def is_readable(source: GitSource | None) -> bool:
        """Return whether the quotas are in objects of the API server; no other dialect's are."""
        return source is not None and source.dialect in _KINDS

    def lag_text(self, branch: BranchQuotas | None) -> str:
        """Name the quotas that are not in force, and since when; empty: there is none, or nothing is known."""
        now, queues = self._now(), self.queues
        if branch is None or queues.seen_at is None or now - queues.seen_at > _FRESH:
            return ""
        in_force = {team: gpus for quotas in list(queues.kept.values()) for team, gpus in quotas.items()}
        behind = {team: gpus for team, gpus in branch.gpus.items() if in_force.get(team) != gpus}
        self._since = {team: self._since.get(team, now) for team in behind}
        texts = [
            f"{team} has {gpus} in Git and {in_force.get(team, 'no quota')} in the cluster (seen since "
            f"{self._since[team]:%Y-%m-%d %H:%M:%SZ})"
            for team, gpus in sorted(behind.items())
        ]
        return f"commit {branch.commit[:8]} is not in force: {some_of(texts, _NAMED)}" if texts else ""

    def long_lag_text(self, branch: BranchQuotas | None) -> str:
        """Return the same if it has lasted for long."""
        text = self.lag_text(branch)
        return text if text and self._now() - min(self._since.values()) >= _LONG else ""
