"""The least of each scheduler's objects that holds quotas or classes, for people who have no files yet. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from models.cluster.sources import TEAM, GitDialect, GitSource

Objects = Iterable[dict[str, Any]]


def _clusterqueues(gpus: Mapping[str, int], source: GitSource, flavor: str) -> Objects:
    flavors: dict[str, list[dict[str, Any]]] = {}
    for team, number in gpus.items():
        queue, _, own = team.partition("/")
        resource = {"name": source.resource, "nominalQuota": number}
        flavors.setdefault(queue, []).append({"name": own or flavor, "resources": [resource]})
    for queue, rows in flavors.items():
        group = {"coveredResources": [source.resource], "flavors": rows}
        yield _object("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {"resourceGroups": [group]})


def _kai_queues(gpus: Mapping[str, int], _: GitSource, __: str) -> Objects:
    for team, number in gpus.items():
        yield _object("scheduling.run.ai/v2", "Queue", team, {"resources": {"gpu": {"quota": number}}})


def _volcano_queues(gpus: Mapping[str, int], source: GitSource, _: str) -> Objects:
    for team, number in gpus.items():
        yield _object("scheduling.volcano.sh/v1beta1", "Queue", team, {"deserved": {source.resource: number}})


def _yunikorn_queues(gpus: Mapping[str, int], source: GitSource, _: str) -> Objects:
    def below(above: str, names: Iterable[str]) -> list[dict[str, Any]]:
        queues = list[dict[str, Any]]()
        heads = sorted({name.removeprefix(above).partition(".")[0] for name in names})
        for head in heads:
            name = f"{above}{head}"
            own = {"resources": {"guaranteed": {source.resource: gpus[name]}}} if name in gpus else {}
            under = below(f"{name}.", [each for each in names if each.startswith(f"{name}.")])
            queues.append({"name": head, **own, **({"queues": under} if under else {})})
        return queues

    yield {"partitions": [{"name": "default", "queues": below("", list(gpus))}]}


def _by_pointers(gpus: Mapping[str, int], source: GitSource, _: str) -> Objects:
    root: dict[str, Any] = {}
    for team, number in gpus.items():
        if team in source.pointers:
            tokens = source.pointers[team].split("/")[1:]
        else:
            tokens = [team if token == TEAM else token for token in (source.pointer or f"/{TEAM}").split("/")[1:]]
        *above, last = (token.replace("~1", "/").replace("~0", "~") for token in tokens)
        at = root
        for token in above:
            at = at.setdefault(token, {})
        at[last] = number
    yield root


def _object(version: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


_OBJECTS: Mapping[GitDialect, Callable[[Mapping[str, int], GitSource, str], Objects]] = {
    GitDialect.YAML: _by_pointers,
    GitDialect.KUEUE: _clusterqueues,
    GitDialect.KAI: _kai_queues,
    GitDialect.VOLCANO: _volcano_queues,
    GitDialect.YUNIKORN: _yunikorn_queues,
}


def objects_with(
    gpus: Mapping[str, int], source: GitSource, flavor: str, classes: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[dict[str, Any], ...]:
    """Return objects with these quotas, and nothing else but what classes need of them.

    `flavor`: of a Kueue team that names none. `classes`: by team, the strongest first. Errors: as `class_objects`.
    """
    objects = list(_OBJECTS[source.dialect](dict(sorted(gpus.items())), source, flavor) if gpus else ())
    if source.dialect is GitDialect.KUEUE:
        queues = {item["metadata"]["name"]: item["spec"] for item in objects}
        for team in sorted(team for team, own in classes.items() if len(own) > 1):
            queue = team.partition("/")[0]
            if queue not in queues:
                objects.append(_object("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {}))
                queues[queue] = objects[-1]["spec"]
            queues[queue]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    return (*objects, *class_objects(classes, source))


CLASSES = {
    GitDialect.KUEUE: ("kueue.x-k8s.io/v1beta1", "WorkloadPriorityClass", 1000),
    GitDialect.KAI: ("scheduling.k8s.io/v1", "PriorityClass", 99),
    GitDialect.VOLCANO: ("scheduling.k8s.io/v1", "PriorityClass", 1000),
}
"""By dialect: the objects of classes, and their highest value. KAI preempts no job of 100 or more."""
_OBJECT_NAME = re.compile(r"(?!system-)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def class_objects(classes: Mapping[str, Sequence[str]], source: GitSource) -> tuple[dict[str, Any], ...]:
    """Return an object for each class of these teams, the strongest first; none in a dialect that has no such objects.

    Errors: ValueError if teams disagree about the order, as a class has one value for all, or for a name.
    """
    if source.dialect not in CLASSES:
        return ()
    version, kind, highest = CLASSES[source.dialect]
    stronger: dict[str, set[str]] = {}
    for own in classes.values():
        for name in own:
            if not _OBJECT_NAME.fullmatch(name):
                raise ValueError(
                    f"class {name!r} cannot be the name of a {kind}: such a name has up to 63 characters out of "
                    "a-z, 0-9 and -; it neither begins nor ends with -, and does not begin with system-"
                )
            stronger.setdefault(name, set())
        for above, below in pairwise(own):
            stronger[below].add(above)
    try:
        ordered = list(TopologicalSorter({name: sorted(stronger[name]) for name in sorted(stronger)}).static_order())
    except CycleError as error:
        circle = " before ".join(error.args[1])
        raise ValueError(
            f"teams disagree about the order of classes ({circle}): a {kind} has one value for all"
        ) from None
    step = max(1, highest // max(1, len(ordered)))
    return tuple(
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name},
            "value": highest - step * place,
            "description": "A class of jobs inside a quota. The weaker, with the smaller value, yields first.",
        }
        for place, name in enumerate(ordered)
    )
