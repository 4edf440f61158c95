"""Finds quotas in YAML files: one row for each dialect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from typing import NamedTuple

import yaml

from activities.quota_files.yaml_text import MERGE, WrittenNumber, documents_in, entry, line_of, place_of, with_numbers
from models.cluster.sources import TEAM, GitDialect, GitSource

SUFFIXES = (".yaml", ".yml", ".json")
"""The suffixes of the files in a folder that may hold quotas."""


class BranchQuotas(NamedTuple):
    """A cluster's quotas, by team, at a commit of its branch."""

    commit: str
    gpus: Mapping[str, int]


class QuotaNode(NamedTuple):
    team: str
    node: yaml.Node
    """The node that holds the GPUs."""
    least: yaml.Node | None = None
    most: yaml.Node | None = None


QuotaNodes = Iterator[QuotaNode]


def _by_pointers(root: yaml.Node, source: GitSource) -> QuotaNodes:
    """Plain YAML: the values that JSON pointers (RFC 6901) lead to. One that leads nowhere has no quota."""
    own = {team: node for team, pointer in source.pointers.items() if (node := _at(root, pointer)) is not None}
    yield from starmap(QuotaNode, own.items())
    if source.pointer is None:
        return
    before, after = source.pointer.split(f"/{TEAM}")
    teams = _at(root, before)
    if not isinstance(teams, yaml.MappingNode):
        return
    named = {id(node) for node in own.values()}
    for name, value in teams.value:
        if name.value == MERGE:
            raise ValueError(
                f"{line_of(name)}: a merge key (<<) may add teams here, and Backstop does not follow it: "
                "write the teams out"
            )
        node = _at(value, after) if isinstance(name, yaml.ScalarNode) else None
        if node is not None and id(node) not in named and name.value not in source.pointers:
            yield QuotaNode(name.value, node)


def _at(node: yaml.Node, pointer: str) -> yaml.Node | None:
    at: yaml.Node | None = node
    for token in pointer.split("/")[1:]:
        at = None if at is None else entry(at, token.replace("~1", "/").replace("~0", "~"))
    return at


def _token(key: str) -> str:
    """Return a key as it is written in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _of_clusterqueues(root: yaml.Node, source: GitSource) -> QuotaNodes:
    """Kueue: the nominalQuota of a ClusterQueue. With several flavors each has its own: QUEUE/FLAVOR."""
    queue = _object(root, "kueue.x-k8s.io/", "ClusterQueue")
    groups = None if queue is None else _at(root, "/spec/resourceGroups")
    quotas = []
    for flavor in (flavor for group in _items(groups) for flavor in _items(entry(group, "flavors"))):
        for resource in _items(entry(flavor, "resources")):
            nominal = entry(resource, "nominalQuota")
            if _text(entry(resource, "name")) == source.resource and nominal is not None:
                quotas.append((_text(entry(flavor, "name")), nominal, entry(resource, "lendingLimit")))
    for name, nominal, lending in quotas:
        yield QuotaNode(f"{queue}/{name}" if len(quotas) > 1 else queue or "", nominal, least=lending)


def _of_kai_queues(root: yaml.Node, _: GitSource) -> QuotaNodes:
    """KAI and Run:ai: the quota of GPUs of a Queue. -1 is no limit, and no promise either."""
    queue = _object(root, "scheduling.run.ai/", "Queue")
    gpus = None if queue is None else _at(root, "/spec/resources/gpu")
    node = None if gpus is None else entry(gpus, "quota")
    if queue is not None and gpus is not None and node is not None and _text(node) != "-1":
        yield QuotaNode(queue, node, most=entry(gpus, "limit"))


def _of_volcano_queues(root: yaml.Node, source: GitSource) -> QuotaNodes:
    """Volcano: the `deserved` of a Queue."""
    queue = _object(root, "scheduling.volcano.sh/", "Queue")
    node, least, most = (
        None if queue is None else _at(root, f"/spec/{field}/{_token(source.resource)}")
        for field in ("deserved", "guarantee/resource", "capability")
    )
    if queue is not None and node is not None:
        yield QuotaNode(queue, node, least, most)


def _of_yunikorn_queues(root: yaml.Node, source: GitSource) -> QuotaNodes:
    """YuniKorn: the `guaranteed` of a queue, by its full name, as in root.research.vision."""

    def below(queue: yaml.Node, above: str) -> QuotaNodes:
        name = f"{above}{_text(entry(queue, 'name'))}"
        node, most = (_at(queue, f"/resources/{field}/{_token(source.resource)}") for field in ("guaranteed", "max"))
        if node is not None:
            yield QuotaNode(name, node, most=most)
        for child in _items(entry(queue, "queues")):
            yield from below(child, f"{name}.")

    for partition in _items(_at(root, "/partitions")):
        for queue in _items(entry(partition, "queues")):
            yield from below(queue, "")


def _object(root: yaml.Node, group: str, kind: str) -> str | None:
    """Return the name of a Kubernetes object of this kind; None if it is another one."""
    if _text(_at(root, "/kind")) != kind or not _text(_at(root, "/apiVersion")).startswith(group):
        return None
    return _text(_at(root, "/metadata/name")) or None


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _text(node: yaml.Node | None) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""


class Dialect(NamedTuple):
    quotas: Callable[[yaml.Node, GitSource], QuotaNodes]
    """Yields the quotas of one document. Errors: ValueError, which names the line."""
    word: str = ""
    """A word that a file must contain to be read: other files have no quota and may not even be YAML."""
    least: str = ""
    most: str = ""
    """The keys of a quota's lower and upper bound."""


DIALECTS: Mapping[GitDialect, Dialect] = {
    GitDialect.YAML: Dialect(_by_pointers),
    GitDialect.KUEUE: Dialect(_of_clusterqueues, "ClusterQueue", least="lendingLimit"),
    GitDialect.KAI: Dialect(_of_kai_queues, "scheduling.run.ai", most="limit"),
    GitDialect.VOLCANO: Dialect(_of_volcano_queues, "scheduling.volcano.sh", "guarantee", "capability"),
    GitDialect.YUNIKORN: Dialect(_of_yunikorn_queues, "partitions", most="max"),
}


def places_in(texts: Mapping[str, str], source: GitSource) -> dict[str, WrittenNumber]:
    """Return the place of each team's quota, in files by path. Errors: ValueError with file, line and value."""
    dialect, places = DIALECTS[source.dialect], dict[str, WrittenNumber]()
    for path, text in sorted(texts.items()):
        try:
            for document in documents_in(text) if dialect.word in text else ():
                for quota in dialect.quotas(document.root, source):
                    place = place_of(path, text, document, quota.node)
                    if not quota.team or len(quota.team) > 200 or not quota.team.isprintable():
                        raise ValueError(f"line {place.line}: {quota.team[:40]!r} cannot be a team's name")
                    if quota.team in places:
                        raise ValueError(f"line {place.line}: the quota of {quota.team} is given twice")
                    bounds = _read_bound(dialect.least, quota.least), _read_bound(dialect.most, quota.most)
                    places[quota.team] = place._replace(least=bounds[0], most=bounds[1])
        except ValueError as error:
            raise ValueError(f"{path}, {error}") from None
    return places


def _read_bound(name: str, node: yaml.Node | None) -> tuple[str, int] | None:
    text = _text(node)
    return (name, int(text)) if text.isascii() and text.isdigit() else None


def changed_files(
    texts: Mapping[str, str], places: Mapping[str, WrittenNumber], gpus: Mapping[str, int]
) -> dict[str, str]:
    """Return the files that change if teams get these GPUs. Errors: ValueError for shared values, and past bounds."""
    by_path: dict[str, dict[WrittenNumber, int]] = {}
    for team, number in sorted(gpus.items()):
        place = places[team]
        if fault := _fault(place, number):
            raise ValueError(f"{place.path}, line {place.line}: the quota of {team} {fault}")
        by_path.setdefault(place.path, {})[place] = number
    return {path: with_numbers(texts[path], changes) for path, changes in by_path.items()}


def _fault(place: WrittenNumber, gpus: int) -> str:
    if place.shared:
        return "is an anchor or alias: write it out"
    if place.least is not None and gpus < place.least[1]:
        return f"cannot go to {gpus}, below its {place.least[0]} of {place.least[1]}: lower that first"
    if place.most is not None and gpus > place.most[1]:
        return f"cannot go to {gpus}, above its {place.most[0]} of {place.most[1]}: raise that first"
    return ""
