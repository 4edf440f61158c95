"""The sources of a cluster's quotas, health and use, where that is not the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from models.base import Documented, Duration, Name, fault_at
from models.hashes import json_object
from models.texts import brief

WHOLE = "main"
"""The island of a cluster whose source names none."""
OF_CLASS = "class:"
"""The prefix of a class's QOS in the list of limits that Backstop wrote."""


class ClassesInSlurm(StrEnum):
    OFF = "off"
    WRITE = "write"


class OnYield(StrEnum):
    REQUEUE = "requeue"
    CANCEL = "cancel"


class Yield(Documented):
    """The way in which running jobs of a class yield to a stronger one of their team."""

    how: OnYield = OnYield.REQUEUE
    """requeue: the jobs wait again; cancel: they end. A job that may not be requeued ends in any case."""
    grace: Duration = Field(default=timedelta(0), ge=timedelta(0), le=timedelta(days=1))
    """The time between the signal (SIGTERM) and the end of the job."""

    @model_validator(mode="after")
    def _of_seconds(self) -> Self:
        if self.grace % timedelta(seconds=1):
            raise ValueError("grace must be whole seconds")
        return self


class SlurmSource(Documented):
    """A Slurm cluster that holds a cluster's quotas, health and use, and the names that it uses."""

    field: ClassVar = "slurm"
    title: ClassVar = "Slurm"
    sets: ClassVar = ("gpus", "parent")  # fields of a quota that no fleet file changes
    lacks: ClassVar = (
        "Slurm had no account of this name with a limit when Backstop last read it: create it in Slurm, with a limit"
    )
    connection: Name = "local"
    """The connection, by its name in the file that BACKSTOP_SLURM names. A fleet file has no commands."""
    cluster: Name | None = None
    """The cluster's name in Slurm. Default: the cluster's name."""
    root: Name = "root"
    """The account above the teams' accounts. Unless it is Slurm's own root, its limit bounds them all."""
    gres: Name = "gpu"
    """The promised resource: its TRES is gres/ and this name."""
    flex_root: Name = "flex-pool"
    """The account above the accounts for flex; they hold no quota."""
    flex_suffix: Name = "-flex"
    """The suffix of a team's account for flex, after the team's name."""
    flex_qos: Name = "flex"
    """The QOS of flex jobs. If a QOS with this name, `-` and the cluster's name exists, it is used instead."""
    size_flex: bool = True
    """Whether Backstop sets the size of the flex QOS, if there is one. Needs a Slurm Administrator."""
    classes: ClassesInSlurm = ClassesInSlurm.OFF
    """write: Backstop writes a QOS for each class of each team, so that the weaker yields in Slurm too (docs/slurm.md).
    Needs a Slurm Administrator. off: it writes none, and removes those that it made.
    """
    yields: dict[Name, Yield] = Field(default_factory=dict)
    """For each class: how its running jobs yield, and their grace. Default: they are requeued, without grace."""

    @property
    def tres(self) -> str:
        return f"gres/{self.gres}"

    def own_flex_qos(self, cluster: str) -> str:
        """Return the name of this cluster's own QOS. Where clusters share a slurmdbd, a QOS has one limit for all."""
        return f"{self.flex_qos}-{cluster}".lower()


class GitDialect(StrEnum):
    YAML = "yaml"
    KUEUE = "kueue"
    KAI = "kai"
    VOLCANO = "volcano"
    YUNIKORN = "yunikorn"


class GitMode(StrEnum):
    PUSH = "push"
    PROPOSE = "propose"


TEAM = "{team}"
"""The placeholder for a team's name in a pointer."""
_REPOSITORY = re.compile(r"/\S+|https://[^\s@]+|ssh://\S+|[\w.-]+@[\w.-]+:\S+", re.ASCII)
_SECRET = re.compile(r"\w+://[^/\s]*:[^/\s]*@|https?://[^/\s]*@", re.ASCII)
_DRIVER = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_BRANCH = re.compile(r"(?!-)(?!.*(\.\.|@\{|//|/\.|\.lock$|[/.]$))[^\x00-\x20~^:?*\[\\\x7f]+")


class GitSource(Documented):
    """A Git repository that holds a cluster's quotas in YAML, which Argo CD, Flux or a person applies."""

    field: ClassVar = "git"
    title: ClassVar = "Git"
    sets: ClassVar = ("gpus",)  # fields of a quota that no fleet file changes
    lacks: ClassVar = "the repository had no quota of this name when Backstop last read it: add it there"
    repository: Name
    """An absolute path on the worker's machine, or an SSH or HTTPS URL. Git's own configuration has the credentials."""
    branch: Name = "main"
    """The branch that is applied. Backstop reads it, and changes it as `mode` says."""
    mode: GitMode = GitMode.PUSH
    """push: Backstop commits to the branch. propose: it commits to its own branch, which people merge (docs/git.md)."""
    path: Name
    """The file in the repository that has the quotas, or the folder with its files."""
    dialect: GitDialect = GitDialect.YAML
    """The form of the files: plain YAML, or objects of a scheduler (docs/git.md)."""
    resource: Name = "nvidia.com/gpu"
    """The name of the GPU resource in the files. Not for yaml and kai."""
    pointer: Name | None = None
    """For yaml: the JSON pointer to a team's quota, with {team} for its name. Default: none; only `pointers` count."""
    pointers: dict[Name, Name] = Field(default_factory=dict)
    """For yaml, by team: the JSON pointer to its quota, in place of `pointer`. Default: none."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if _SECRET.match(self.repository):
            what = "contains a password or token: remove it and give it to git's credential helper or the SSH agent"
            raise fault_at(("repository",), what)
        if not _REPOSITORY.fullmatch(self.repository):
            what = "must be an absolute path, https://..., ssh://... or user@host:path"
            raise fault_at(("repository",), what)
        if not _BRANCH.fullmatch(self.branch):
            raise fault_at(("branch",), "must be the name of a branch such as main")
        if self.path.startswith("/") or {"", ".", ".."} & set(self.path.rstrip("/").split("/")):
            raise fault_at(("path",), "must be a path inside the repository such as clusters/h100/quotas.yaml")
        self._check_pointers()
        return self

    def _check_pointers(self) -> None:
        if self.dialect is not GitDialect.YAML:
            if self.pointer is not None or self.pointers:
                raise fault_at(
                    ("dialect",), f"is {self.dialect}, which needs no pointer: leave pointer and pointers out"
                )
            return
        if self.pointer is None and not self.pointers:
            raise fault_at(("pointer",), "is missing: say where a team's quota is, as in /teams/{team}/gpus")
        if self.pointer is not None and self.pointer.split("/").count(TEAM) != 1:
            raise fault_at(("pointer",), "must have {team} once between two slashes, as in /teams/{team}/gpus")
        pointers = {("pointers", team): pointer for team, pointer in self.pointers.items()}
        for place, pointer in [*pointers.items(), *([] if self.pointer is None else [(("pointer",), self.pointer)])]:
            if not pointer.startswith("/"):
                raise fault_at(place, "must begin with /")


class KueueSource(Documented):
    """The ClusterQueues of a Kueue that hold a cluster's quotas; Backstop writes them to the API server."""

    field: ClassVar = "kueue"
    title: ClassVar = "Kueue"
    sets: ClassVar = ("gpus",)  # fields of a quota that no fleet file changes
    lacks: ClassVar = "Kueue had no ClusterQueue of this name when Backstop last read it: create it in Kubernetes"
    connection: Name = "local"
    """The connection, by its name in the file that BACKSTOP_KUBERNETES names. A fleet file has no address."""
    queues: Name | None = None
    """A label selector of the cluster's ClusterQueues, such as example.com/model=h100. Default: all of them."""
    resource: Name = "nvidia.com/gpu"
    """The promised resource, as ClusterQueues name it."""


class PrometheusSource(Documented):
    """A Prometheus that reports a cluster's health, and its name for the cluster."""

    connection: Name = "local"
    """The connection, by its name in the file that BACKSTOP_PROMETHEUS names."""
    cluster: Name | None = None
    """The value of the connection's cluster label. Default: the cluster's name."""


class KubernetesUse(StrEnum):
    OFF = "off"
    PODS = "pods"
    KUEUE = "kueue"


class KubernetesSource(Documented):
    """A Kubernetes API server that reports a cluster's health and use."""

    connection: Name = "local"
    """The connection, by its name in the file that BACKSTOP_KUBERNETES names. A fleet file has no address."""
    resource: Name = "nvidia.com/gpu"
    """The promised resource, as nodes and pods name it."""
    driver: Name | None = None
    """A DRA driver, such as gpu.nvidia.com: its devices are the GPUs, not `resource`. Default: none; a device plugin
    reports the GPUs.
    """
    device: dict[Name, Name] = Field(default_factory=lambda: {"type": "gpu"})
    """For a driver: the attributes that make a device a GPU. Default: type is gpu."""
    nodes: Name | None = None
    """A label selector of the cluster's nodes, such as gpu.example.com/model=h100. Default: all nodes."""
    island_label: Name | None = None
    """The label that names a node's island. Default: none; all nodes are in the island main."""
    islands: dict[Name, Name] = Field(default_factory=dict)
    """The island's name for each value of island_label. Default: the value itself."""
    tolerated_taints: tuple[Name, ...] = ("nvidia.com/gpu",)
    """Keys of taints that jobs tolerate; any other NoSchedule or NoExecute bars a node. Default: nvidia.com/gpu."""
    use: KubernetesUse = KubernetesUse.PODS
    """pods: use is what pods request; kueue: what ClusterQueues report; off: Backstop does not read it."""
    team_label: Name | None = None
    """For pods: the label of a pod or a claim that names the team. Default: none; the namespace is the team."""
    teams: dict[Name, Name] = Field(default_factory=dict)
    """The team of each namespace, label or ClusterQueue. Default: the team of the same name."""
    flavors: tuple[Name, ...] = ()
    """For kueue: the flavors whose use counts. Default: all."""

    @property
    def counts_pods(self) -> bool:
        return self.use is KubernetesUse.PODS

    @property
    def gpu_text(self) -> str:
        """A GPU of this source, in words."""
        if self.driver is None:
            return self.resource
        attributes = " and ".join(f"{name} {value}" for name, value in sorted(self.device.items()))
        return f"a device of {self.driver}{' with ' if attributes else ''}{attributes}"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.islands and self.island_label is None:
            raise fault_at(("islands",), "needs island_label, the label whose values name the islands")
        if self.team_label is not None and not self.counts_pods:
            raise fault_at(
                ("team_label",), f"is only for use: {KubernetesUse.PODS}, and use is {self.use}: leave team_label out"
            )
        if self.flavors and self.use is not KubernetesUse.KUEUE:
            raise fault_at(
                ("flavors",), f"are only for use: {KubernetesUse.KUEUE}, and use is {self.use}: leave them out"
            )
        if self.driver is not None and not _DRIVER.fullmatch(self.driver):
            what = f"must be the name of a DRA driver such as gpu.nvidia.com, not {brief(self.driver)}"
            raise fault_at(("driver",), what)
        if self.driver is None and "device" in self.model_fields_set:
            raise fault_at(("device",), "needs driver, the DRA driver whose devices it names")
        return self


HealthSource = PrometheusSource | KubernetesSource


def health_source_in(text: str) -> HealthSource:
    """Parse the ledger's text of the source that reports a cluster's health. Errors: ValueError."""
    return (KubernetesSource if "resource" in json_object(text) else PrometheusSource).model_validate_json(text)


def source_text(source: HealthSource | QuotaSource | None) -> str | None:
    """Return the ledger's text of the source; `resource` marks one of Kubernetes."""
    if source is None:
        return None
    marked = {"resource": source.resource} if isinstance(source, KubernetesSource | KueueSource) else {}
    return json.dumps({**source.model_dump(mode="json", exclude_defaults=True), **marked}, separators=(",", ":"))


def health_field(source: str | None) -> dict[str, Any]:
    """Return the same as a field of a cluster; {} where no such source reports its health. Errors: ValueError."""
    if source is None:
        return {}
    reports = health_source_in(source)
    return {"kubernetes" if isinstance(reports, KubernetesSource) else "prometheus": reports}


QuotaSource = SlurmSource | GitSource | KueueSource


def quota_source_in(text: str) -> QuotaSource:
    """Parse the ledger's text of the source that holds a cluster's quotas. Errors: ValueError."""
    fields = json_object(text)
    kind = GitSource if "repository" in fields else KueueSource if "resource" in fields else SlurmSource
    return kind.model_validate_json(text)


def quota_field(source: str | None) -> dict[str, Any]:
    """Return the same as a field of a cluster; {} where the ledger holds the quotas. Errors: ValueError."""
    if source is None:
        return {}
    held = quota_source_in(source)
    return {held.field: held}


class Sources(NamedTuple):
    """The sources by cluster, for clusters that have one."""

    slurm: Mapping[str, SlurmSource]
    prometheus: Mapping[str, PrometheusSource]
    kubernetes: Mapping[str, KubernetesSource] = MappingProxyType({})
    git: Mapping[str, GitSource] = MappingProxyType({})
