"""How YAML files say quotas: one row for each dialect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import yaml

from activities.adapters.git.yaml_text import (
    MERGE,
    Document,
    WrittenNumber,
    documents_in,
    entry,
    line_of,
    place_of,
    with_numbers,
)
from models.cluster.sources import TEAM, GitDialect, GitSource

Quotas = Iterator[tuple[str, yaml.Node]]
"""By team the node that has its GPUs."""


def _by_pointers(root: yaml.Node, source: GitSource) -> Quotas:
    """Plain YAML: what a JSON pointer (RFC 6901) leads to. One that leads nowhere has no quota."""
    own = {team: node for team, pointer in source.pointers.items() if (node := _at(root, pointer)) is not None}
    yield from own.items()
    if source.pointer is None:
        return
    before, after = source.pointer.split(f"/{TEAM}")
    teams = _at(root, before)
    if not isinstance(teams, yaml.MappingNode):
        return
    named = {id(node) for node in own.values()}
    for name, value in teams.value:
        if name.value == MERGE:
            raise ValueError(f"{line_of(name)}: teams may come by a merge key (<<): write them out")
        node = _at(value, after)
        if node is not None and id(node) not in named and name.value not in source.pointers:
            yield name.value, node


def _at(node: yaml.Node, pointer: str) -> yaml.Node | None:
    at: yaml.Node | None = node
    for token in pointer.split("/")[1:]:
        at = None if at is None else entry(at, token.replace("~1", "/").replace("~0", "~"))
    return at


class Dialect(NamedTuple):
    quotas: Callable[[yaml.Node, GitSource], Quotas]
    """Of one document. Errors: ValueError with the line."""


DIALECTS: Mapping[GitDialect, Dialect] = {GitDialect.YAML: Dialect(_by_pointers)}


def places_in(texts: Mapping[str, str], source: GitSource) -> dict[str, WrittenNumber]:
    """By team where its quota is, of files by path. Errors: ValueError with the file, the line and the value."""
    dialect, places = DIALECTS[source.dialect], dict[str, WrittenNumber]()
    for path, text in sorted(texts.items()):
        try:
            for document in documents_in(text):
                for team, place in _places(path, text, document, dialect.quotas(document.root, source)):
                    if team in places:
                        raise ValueError(f"line {place.line}: the quota of {team} is given twice")
                    places[team] = place
        except ValueError as error:
            raise ValueError(f"{path}, {error}") from None
    return places


def _places(path: str, text: str, document: Document, quotas: Quotas) -> Iterator[tuple[str, WrittenNumber]]:
    for team, node in quotas:
        yield team, place_of(path, text, document, node)


def changed_files(
    texts: Mapping[str, str], places: Mapping[str, WrittenNumber], gpus: Mapping[str, int]
) -> dict[str, str]:
    """Of files by path, those that change where these teams get these GPUs. Errors: ValueError for a shared value."""
    by_path: dict[str, dict[WrittenNumber, int]] = {}
    for team, number in sorted(gpus.items()):
        place = places[team]
        if place.shared:
            raise ValueError(
                f"{place.path}, line {place.line}: the quota of {team} is an anchor or alias: write it out"
            )
        by_path.setdefault(place.path, {})[place] = number
    return {path: with_numbers(texts[path], changes) for path, changes in by_path.items()}
