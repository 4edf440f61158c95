"""A ClusterQueue as an API server has it: its quotas, who manages them, and our last write to it. Pure.

Kueue's dialect of quota files reads and writes the quotas: an object in JSON is a YAML file of one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from activities.quota_files.dialects import changed_files, places_in
from activities.quota_files.yaml_text import WrittenNumber
from models.cluster.sources import GitDialect, GitSource
from models.rollout.effects import Change
from models.texts import brief

MANAGER = "backstop"
"""Backstop's name as a field manager."""
FIELD = ".spec.resourceGroups"
"""The field that holds the quotas. Its list is atomic: an applier manages the whole list (docs/adr/0121)."""
_NOTES = "backstop/"
"""The prefix of our annotations."""
_THOUSANDS = re.compile(r"([1-9]\d{0,5})k", re.ASCII)
_LINE = ", line 1"


class OurWrite(NamedTuple):
    """Our last write to a queue, by its annotations. `gpus`: the quotas that it changed, by team."""

    rollout: str
    counter: int
    kind: str
    gpus: Mapping[str, int]


class LiveQueue(NamedTuple):
    name: str
    api: str
    uid: str
    version: str
    generation: int
    """Kubernetes' count of changes to the spec; a new status does not change it."""
    text: str
    """The quotas of the queue, as the dialect reads them."""
    managers: tuple[str, ...]
    """The field managers of the quotas other than ours, the last one first."""
    notes: Mapping[str, str]
    """Our annotations."""

    @property
    def ours(self) -> OurWrite | None:
        """Return our last write; None if there is none, or somebody has written what is none."""
        rollout, counter = self.notes.get("rollout", ""), self.notes.get("fence", "")
        try:
            gpus = json.loads(self.notes.get("gpus", ""))
        except (ValueError, RecursionError):
            return None
        if not rollout or not (counter.isascii() and counter.isdigit()) or not isinstance(gpus, dict):
            return None
        return OurWrite(rollout, int(counter), self.notes.get("effect", ""), gpus)

    def is_as(self, other: LiveQueue) -> bool:
        """Return whether nothing has changed but the status, labels and such."""
        return (self.uid, self.generation, self.managers, self.notes) == (
            *(other.uid, other.generation, other.managers, other.notes),
        )


def queue_in(raw: Any) -> LiveQueue:
    """Return the queue. Errors: ValueError for what is no ClusterQueue."""
    try:
        meta, spec = raw["metadata"], raw["spec"]
        name, uid, version, number = meta["name"], meta["uid"], meta["resourceVersion"], meta.get("generation", 0)
        notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key.startswith(_NOTES)}
        managers, api = _managers(meta.get("managedFields") or ()), raw.get("apiVersion") or "kueue.x-k8s.io/v1beta1"
        groups = spec.get("resourceGroups")
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{brief(raw)} is no ClusterQueue: {type(error).__name__}") from None
    texts = (name, uid, version, api, *notes.values())
    if not all(isinstance(text, str) for text in texts) or not name or not isinstance(number, int):
        raise ValueError(
            "a ClusterQueue's name, uid, version and annotations must be text, and its generation must be a number: "
            f"{brief(meta)}"
        )
    document = {"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": name}}
    text = json.dumps({**document, "spec": {"resourceGroups": spell_out(groups)}}, ensure_ascii=False)
    own = {key.removeprefix(_NOTES): value for key, value in notes.items()}
    return LiveQueue(name, api, uid, version, number, text, managers, own)


def _managers(entries: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the managers of the field that holds the quotas, other than us, the last one first."""
    latest = dict[str, str]()
    for entry in entries:
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        ours = entry["manager"] == MANAGER and entry.get("operation") == "Apply"
        if "f:resourceGroups" in fields and not ours:
            name = str(entry["manager"])
            latest[name] = max(str(entry.get("time") or ""), latest.get(name, ""))
    return tuple(sorted(latest, key=lambda name: (latest[name], name), reverse=True))


def spell_out(value: Any) -> Any:
    """Return the groups with thousands in digits: Kubernetes writes 1000 as 1k."""
    if isinstance(value, list):
        return [spell_out(one) for one in value]
    if not isinstance(value, dict):
        return value
    digits = {key: _THOUSANDS.fullmatch(one) for key, one in value.items() if isinstance(one, str)}
    return {
        key: f"{match[1]}000" if key.endswith(("Quota", "Limit")) and (match := digits.get(key)) else spell_out(one)
        for key, one in value.items()
    }


def without_line(error: ValueError) -> str:
    """Return what a dialect says of an object, without the line: an object has none."""
    return str(error).replace(_LINE, "", 1)


def quotas_in(queues: Mapping[str, LiveQueue], resource: str) -> dict[str, WrittenNumber]:
    """Return the place of each team's quota; its path is the queue. Errors: ValueError with the queue and the value."""
    try:
        return places_in({name: queue.text for name, queue in queues.items()}, _dialect(resource))
    except ValueError as error:
        raise ValueError(f"ClusterQueue {without_line(error)}") from None


def _dialect(resource: str) -> GitSource:
    return GitSource(repository="/-", path="-", dialect=GitDialect.KUEUE, resource=resource)


def applied_objects(
    queues: Mapping[str, LiveQueue],
    places: Mapping[str, WrittenNumber],
    gpus: Mapping[str, int],
    change: Change,
    why: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Return what to apply to each of these queues, so that teams have these GPUs. Errors: ValueError past bounds.

    The list of quotas is whole, with what others wrote as it was read: it is one field. Our annotations name the
    effect, the quotas that it changes and their values before.
    """
    texts = {name: queue.text for name, queue in queues.items()}
    try:
        texts |= changed_files(texts, places, gpus)
    except ValueError as error:
        raise ValueError(f"ClusterQueue {without_line(error)}") from None
    objects = dict[str, dict[str, Any]]()
    for name, queue in queues.items():
        own = {team: number for team, number in sorted(gpus.items()) if places[team].path == name}
        notes = {
            "rollout": change.fence.rollout,
            "fence": str(change.fence.counter),
            "effect": str(change.kind),
            "cluster": change.cluster,
            "gpus": json.dumps(own),
            "gpus-before": json.dumps({team: places[team].gpus for team in own}),
            **{key.lower(): " ".join(value.split()) for key, value in why.items() if value.strip()},
        }
        objects[name] = object_with(queue, texts[name], notes)
    return objects


def object_with(queue: LiveQueue, text: str, notes: Mapping[str, str]) -> dict[str, Any]:
    """Return what to apply: the quotas of the text, and these annotations, at the queue's present version."""
    annotations = {f"{_NOTES}{key}": value for key, value in notes.items()}
    meta = {"name": queue.name, "uid": queue.uid, "resourceVersion": queue.version, "annotations": annotations}
    return {**json.loads(text), "metadata": meta}
