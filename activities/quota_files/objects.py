"""The least of each scheduler's objects that holds quotas, for people who have no files yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


def objects_with(gpus: Mapping[str, int], source: GitSource, flavor: str) -> tuple[dict[str, Any], ...]:
    """Return objects with these quotas and nothing else. `flavor`: of a Kueue team that names none."""
    return tuple(_OBJECTS[source.dialect](dict(sorted(gpus.items())), source, flavor))
