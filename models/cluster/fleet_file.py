"""The fleet file: clusters, quotas, policies and teams as people write them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from models.base import Documented, NameGiven, PositiveCount, Words, fault_at, find_repeated, of_ordinary_bytes
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota, QuotaTree, check_floors, check_islands
from models.cluster.sources import GitSource, KubernetesSource, KueueSource, PrometheusSource, SlurmSource
from models.cluster.windows import Window
from models.notices import Notify
from models.texts import brief, count_text

NAMES_BYTES = 48 * 1024
"""The most bytes that the names of a cluster's quotas take when compressed."""
MOST_QUOTAS = 10_000
"""The most quotas of one cluster. Its rollout through Temporal was tested up to this number (docs/adr/0011)."""


def _check_name(name: str, where: tuple[str | int, ...]) -> None:
    """Check the size of a name. Errors: ValueError with the path of the name."""
    try:
        of_ordinary_bytes(name)
    except ValueError as error:
        raise fault_at(where, f"name {brief(name)} {error}") from None


def _check_size(quotas: tuple[Quota, ...]) -> None:
    """Check the size of all names: a rollout carries each dozens of times. Errors: ValueError."""
    size = len(zlib.compress("\n".join(quota.team for quota in quotas).encode(), 1))
    if size > NAMES_BYTES:
        many = f"the names of its {count_text(len(quotas), 'quota')} take {size} bytes when compressed"
        raise ValueError(f"{many}, above the limit of {NAMES_BYTES}: shorten the names")


class ClusterSpec(Documented):
    """A scheduling domain of one GPU model with its quotas."""

    name: NameGiven
    """The cluster's name, unique in the fleet."""
    gpu_model: Words | None = None
    """The GPU model, for people to read. Default: none."""
    gpus_per_node: PositiveCount = 8
    """The number of GPUs in a node; also the default of spare_gpus."""
    islands: tuple[Island, ...] = Field(min_length=1)
    """Topology blocks, at least one. A contiguous block of GPUs lies within one of them."""
    policy: dict[str, Any] = Field(default_factory=dict)
    """The settings that differ from the fleet's policy, with the same fields. Default: nothing."""
    quotas: tuple[Quota, ...] = Field(default=(), max_length=MOST_QUOTAS)
    """The promises to teams; no team twice. Default: none."""
    windows: tuple[Window, ...] = ()
    """Declared maintenance, SEVs and freezes. Default: none."""
    slurm: SlurmSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Slurm that holds its quotas, health and use (docs/slurm.md). Default: the ledger holds them."""
    git: GitSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Git repository that holds its quotas (docs/git.md). Default: Slurm or the ledger holds them."""
    kueue: KueueSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Kueue that holds its quotas (docs/kubernetes.md). Default: Slurm or the ledger holds them."""
    prometheus: PrometheusSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Prometheus that reports its health (docs/prometheus.md). Default: Slurm, or a program that writes samples."""
    kubernetes: KubernetesSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Kubernetes API server that reports its health and use (docs/kubernetes.md). Default: Slurm,
    or a program that writes samples.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        first, *others = [one.field for one in (self.slurm, self.git, self.kueue) if one is not None] or [""]
        if others:
            what = f"cannot be given together with {first}: only one source can hold the quotas of cluster {self.name}"
            raise fault_at((others[0],), what)
        beside = "slurm" if self.slurm is not None else "prometheus" if self.prometheus is not None else ""
        if self.kubernetes is not None and beside:
            what = f"cannot be given together with {beside}: only one source can report the health of {self.name}"
            raise fault_at(("kubernetes",), what)
        seen: set[str] = set()
        for number, name in enumerate(i.name for i in self.islands):
            if name in seen:
                raise fault_at(("islands", number), f"island {name!r} is given twice (cluster {self.name})")
            seen.add(name)
            _check_name(name, ("islands", number))
            if "," in name:
                what = f"island {name!r} has a comma, which separates the names of islands"
                raise fault_at(("islands", number), what)
        for number, quota in enumerate(self.quotas):
            # Parents and islands are such names too.
            for name in (quota.team, *(quota.namespaces or ()), *(quota.classes or ())):
                _check_name(name, ("quotas", number))
        _check_size(self.quotas)
        QuotaTree(self.quotas)
        check_islands(self.quotas, seen)
        for window in self.windows:
            for island in window.islands or ():
                if island not in seen:
                    raise ValueError(f"windows names island {island!r}, which this cluster does not have")
        return self


class ClusterInSlurm(ClusterSpec):
    """A cluster as Slurm has it."""

    unread: tuple[str, ...] = Field(default=(), exclude_if=lambda sentences: not sentences)
    """A sentence for each limit in Slurm that Backstop does not read. Left out where there is none."""


class Team(Documented):
    """A team to notify. `contacts` are channel addresses: log, mailto:, slack or webhook URLs."""

    name: NameGiven
    """The team's name, as in quotas."""
    contacts: tuple[Words, ...] = ()
    """E-mail addresses, Slack or webhook URLs (docs/notices.md). Default: only the log."""
    notify: Notify | None = Field(default=None, exclude_if=lambda choice: choice is None)
    """The notices that the team gets: each, digest or breach-only. Default: what each cluster's policy says."""


class Fleet(Documented):
    """A whole fleet file, checked."""

    # A person may head the file with `$schema:` so that an editor checks it.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    clusters: tuple[ClusterSpec, ...] = Field(min_length=1)
    """The clusters, at least one; no name twice."""
    policy: Policy = Policy()
    """The policy of every cluster, except where a cluster's own policy differs. Default: each field's own default."""
    teams: tuple[Team, ...] = ()
    """The teams to notify, and their contacts. The log has every notice anyway. Default: none."""
    schema_: Words | None = Field(default=None, alias="$schema")
    """The address of the JSON Schema, for an editor that checks the file. Backstop ignores it. Default: none."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, names in (("cluster", [c.name for c in self.clusters]), ("team", [team.name for team in self.teams])):
            for number, name in find_repeated(names):
                raise fault_at((f"{what}s", number, "name"), f"{what} {name!r} is given twice")
        for number, cluster in enumerate(self.clusters):
            check_floors(cluster.quotas, ("clusters", number))
            if cluster.slurm is not None and cluster.slurm.yields:
                self._check_yields(cluster, cluster.slurm, number)
        return self

    def _check_yields(self, cluster: ClusterSpec, source: SlurmSource, number: int) -> None:
        """Check the classes of `yields`. Errors: ValueError for one that no quota there has, if any has classes."""
        try:
            classes = dict.fromkeys(self.policy_of(cluster).classes)
        except ValidationError:  # the policy's own check reports it
            return
        classes |= dict.fromkeys(name for quota in cluster.quotas for name in quota.classes or ())
        for name in source.yields if classes else ():
            if name not in classes:
                what = f"no quota of cluster {cluster.name} has this class; its classes are {', '.join(classes)}"
                raise fault_at(("clusters", number, "slurm", "yields", name), what)

    def policy_of(self, cluster: ClusterSpec) -> Policy:
        """Return the cluster's policy: the default with the cluster's own settings laid over it.

        Errors: pydantic.ValidationError as for any policy.
        """
        return merged_policy(self.policy, cluster.policy)

    def cluster(self, name: str) -> ClusterSpec | None:
        return next((cluster for cluster in self.clusters if cluster.name == name), None)


def merged_policy(default: Policy, override: Mapping[str, Any]) -> Policy:
    """Lay a cluster's own settings over a default; terms of a health buffer are laid over the default's terms."""
    if not override:
        return default
    kept = default.model_dump(mode="json", exclude_unset=True)
    own_terms, standing = (
        buffer.get("health") if isinstance(buffer, dict) else None
        for buffer in (override.get("buffer"), kept.get("buffer"))
    )
    if isinstance(own_terms, dict) and isinstance(standing, dict):
        override = {**override, "buffer": {**override["buffer"], "health": {**standing, **own_terms}}}
    return Policy.model_validate({**kept, **override})
