"""The entry that a person makes when a cluster first becomes known: the first of the two touches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from models.base import Documented, NameGiven, PositiveCount, Time, Words, fault_at, in_one_sentence
from models.bringup.placeholders import (
    LATER,
    RUN_KEY,
    URL_FIELDS,
    Place,
    Value,
    placeholders,
    spelling_of,
    unfilled_placeholders,
    url_fault,
)
from models.bringup.recipe import ClusterRecipe, StepName
from models.cluster.fleet_file import MOST_QUOTAS, merged_policy
from models.cluster.island import Island
from models.cluster.policy import MOST_NAMES, Policy
from models.cluster.quota import Quota, QuotaTree, check_floors, check_islands
from models.cluster.sources import WHOLE, GitSource, KubernetesSource, KueueSource, PrometheusSource, SlurmSource
from models.texts import count_text, gpus_text

ClusterName = Annotated[
    str,
    *spelling_of(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?",
        "up to 100 letters, digits, dots, dashes and underscores, a letter or digit at both ends",
    ),
]
"""A name that fits commands, URLs and keys: letters, digits, dots, dashes and underscores."""
ValueName = Annotated[
    str, *spelling_of(r"[a-z][a-z0-9_]{0,62}", "a name of lower-case letters, digits and underscores")
]


class IslandOrdered(Documented):
    """A topology block as it was ordered."""

    name: NameGiven
    """The island's name, unique in its cluster; without a comma."""
    nodes: PositiveCount
    """The number of nodes that were ordered for the island."""


class BringupEntry(Documented):
    """A cluster to be brought up."""

    cluster: ClusterName
    """The cluster's name, unique in the fleet."""
    recipe: StepName
    """The name of the recipe that builds the cluster."""
    owner: NameGiven
    """The person or team that Backstop notifies."""
    nodes: PositiveCount
    """The number of nodes that were ordered."""
    gpus_per_node: PositiveCount = 8
    """The number of GPUs in a node."""
    gpu_model: Words | None = None
    """The GPU model, for people to read. Default: none."""
    islands: tuple[IslandOrdered, ...] = Field(default=(), max_length=MOST_NAMES)
    """The cluster's topology blocks; their nodes sum to `nodes`. Default: one island, named main."""
    values: dict[ValueName, Value] = Field(default_factory=dict, max_length=MOST_NAMES)
    """Values for the recipe's other placeholders. Default: none."""
    slurm: SlurmSource | None = None
    """The Slurm that will hold its quotas and report its health and use. Default: none."""
    prometheus: PrometheusSource | None = None
    """The Prometheus that will report its healthy GPUs. Default: none."""
    git: GitSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Git repository that will hold its quotas, and already has the first ones. Default: none."""
    kueue: KueueSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Kueue that will hold its quotas; its ClusterQueues already have the first ones. Default: none."""
    kubernetes: KubernetesSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Kubernetes API server that will report its health and use. Default: none."""
    policy: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the fleet's policy, with the same fields. Default: nothing."""
    quotas: tuple[Quota, ...] = Field(default=(), max_length=MOST_QUOTAS)
    """The cluster's first quotas. Default: none."""
    owed_until: Time | None = None
    """Until this time, GPUs that arrive later raise the first quotas automatically. Default: they never do."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [i.name for i in self.islands]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise fault_at(("islands", number, "name"), f"island {name!r} is given twice")
            if "," in name:
                raise fault_at(("islands", number, "name"), f"{name!r} has a comma, which separates island names")
        ordered = sum(i.nodes for i in self.islands)
        if self.islands and ordered != self.nodes:
            raise ValueError(f"nodes is {self.nodes}, but the islands have {ordered} in all")
        self._check_sources()
        self._check_quotas()
        for name in self.values.keys() & OWN_VALUES:
            raise fault_at(("values", name), f"is reserved for {OWN_VALUES[name]}: choose another name")
        return self

    def _check_sources(self) -> None:
        first, *others = [one.field for one in (self.slurm, self.git, self.kueue) if one is not None] or [""]
        if others:
            raise fault_at((others[0],), f"cannot be given together with {first}: only one source can hold the quotas")
        if self.quotas and first in ("git", "kueue"):
            raise fault_at(("quotas",), f"must be left out: Backstop reads them from {first}")
        for field in ("slurm", "prometheus"):
            if self.kubernetes is not None and getattr(self, field) is not None:
                raise fault_at(
                    ("kubernetes",), f"cannot be given together with {field}: only one source can report the health"
                )

    def _check_quotas(self) -> None:
        for number, quota in enumerate(self.quotas):
            for field in ("scheduled_gpus", "idle_gpus", "pending_gpus"):
                if getattr(quota, field) is not None:
                    raise fault_at(("quotas", number, field), "must be left out: nothing runs on a new cluster")
        QuotaTree(self.quotas)
        check_islands(self.quotas, [i.name for i in self.planned_islands])
        check_floors(self.quotas)
        if self.owed_until is not None and not self.quotas:
            raise ValueError("owed_until is given without quotas: give the first quotas, or leave owed_until out")

    @property
    def planned_islands(self) -> tuple[Island, ...]:
        """The ordered islands, as if all of their nodes had arrived and were healthy."""
        ordered = self.islands or (IslandOrdered(name=WHOLE, nodes=self.nodes),)
        return tuple(
            Island(name=i.name, total_gpus=i.nodes * self.gpus_per_node, healthy_gpus=i.nodes * self.gpus_per_node)
            for i in ordered
        )

    @property
    def gpus(self) -> int:
        """The number of GPUs ordered."""
        return self.nodes * self.gpus_per_node

    @property
    def all_values(self) -> dict[str, str]:
        """The values of all placeholders."""
        own = {
            "cluster": self.cluster,
            "nodes": str(self.nodes),
            "gpus": str(self.gpus),
            "gpus_per_node": str(self.gpus_per_node),
        }
        return {**self.values, **own}

    def policy_over(self, default: Policy) -> Policy:
        """Return the cluster's policy. Errors: pydantic.ValidationError."""
        return merged_policy(default, self.policy)

    @property
    def text(self) -> str:
        model = f" of {self.gpu_model}" if self.gpu_model else ""
        return f"{count_text(self.nodes, 'node')}{model} ({gpus_text(self.gpus)})"


OWN_VALUES: Mapping[str, str] = {
    "cluster": "the cluster's name",
    "nodes": "the nodes ordered",
    "gpus": "the GPUs ordered",
    "gpus_per_node": "the size of a node",
}


class BringupFile(Documented):
    """A file of entries, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    bringups: tuple[BringupEntry, ...] = Field(min_length=1, max_length=10_000)
    """The entries, at least one; no cluster twice."""
    schema_: Words | None = Field(default=None, alias="$schema")
    """The address of the JSON Schema, for an editor that checks the file. Backstop ignores it. Default: none."""

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        names: set[str] = set()
        for number, entry in enumerate(self.bringups):
            if entry.cluster in names:
                raise fault_at(("bringups", number, "cluster"), f"cluster {entry.cluster!r} is given twice")
            names.add(entry.cluster)
        return self


def unfilled_text(entry: BringupEntry, recipe: ClusterRecipe) -> Iterator[tuple[Place, str]]:
    """Yield each place of the recipe that the entry leaves unfilled, or fills with a bad URL, with one sentence."""
    values = entry.all_values
    for place, name in unfilled_placeholders(recipe.texts(), values):
        yield (place, f"{{{name}}} has no value: add {name} to the values of the entry of {entry.cluster}")
    for place, text in recipe.texts():
        named = frozenset(placeholders(text))
        fills = place[-1] in URL_FIELDS and bool(named) and named <= {*values, LATER, RUN_KEY}
        if fills and (fault := url_fault(text, {RUN_KEY: "1", **values})):
            yield place, fault


def policy_fault(entry: BringupEntry, default: Policy) -> str:
    """Explain in one sentence the fault of the entry's policy; empty if there is none."""
    try:
        entry.policy_over(default)
    except ValidationError as error:
        return f"policy: {in_one_sentence(error)}"
    return ""
