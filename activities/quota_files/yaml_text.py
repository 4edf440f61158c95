"""Reads whole numbers of YAML files and replaces them in place. Pure.

Only the digits of a value that changes are replaced. Comments, order, quotes and every other byte stay as people wrote
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import yaml

from models.base import MOST_GPUS

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOM = "\ufeff"
MERGE = "<<"


class WrittenNumber(NamedTuple):
    """A whole number in a file. `start`, `end`: the characters of its digits."""

    path: str
    line: int
    start: int
    end: int
    gpus: int
    shared: bool
    """Whether the number is at an anchor, so that a change here also changes other places."""
    least: tuple[str, int] | None = None
    """The name and value of a number beside it that is its lower bound; None: there is none."""
    most: tuple[str, int] | None = None
    """The name and value of a number beside it that is its upper bound; None: there is none."""


class Document:
    """A YAML document, and the nodes that stand in several places. Errors: ValueError with the line."""

    def __init__(self, root: yaml.Node) -> None:
        self.root = root
        self.shared = set[int]()
        """Nodes that occur in several places."""
        self._visit(root, set(), within=False)

    def _visit(self, node: yaml.Node, seen: set[int], *, within: bool) -> None:
        within = within or id(node) in seen
        if within and id(node) in self.shared:
            return
        seen.add(id(node))
        if within:
            self.shared.add(id(node))
        for child in children(node):
            self._visit(child, seen, within=within)


def children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def documents_in(text: str) -> list[Document]:
    """Parse the documents. Errors: ValueError, saying what is no YAML and in which line."""
    try:
        return [Document(root) for root in yaml.compose_all(text.removeprefix(_BOM), Loader=_LOADER)]
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(f"{line}it is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not valid YAML: {type(error).__name__}") from None


def entry(node: yaml.Node, key: str) -> yaml.Node | None:
    """Return the value of a mapping's key, or of a list's index. Errors: ValueError if two have it, or a merge may."""
    if isinstance(node, yaml.SequenceNode):
        return node.value[int(key)] if key.isascii() and key.isdigit() and int(key) < len(node.value) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    values = [value for name, value in node.value if name.value == key]
    if len(values) > 1:
        raise ValueError(f"{line_of(values[1])}: {key} is given twice")
    if not values and any(name.value == MERGE for name, _ in node.value):
        raise ValueError(
            f"{line_of(node)}: a merge key (<<) may set {key} here, and Backstop does not follow it: write {key} out"
        )
    return values[0] if values else None


def line_of(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def place_of(path: str, text: str, document: Document, node: yaml.Node) -> WrittenNumber:
    """Return the number that the node holds. Errors: ValueError for what is no whole number of GPUs."""
    offset = len(text) - len(text.removeprefix(_BOM))
    start, end = node.start_mark.index + offset, node.end_mark.index + offset
    value = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
    digits = text.rfind(value, start, end) if value.isascii() and value.isdigit() else -1
    if digits < 0 or (len(value) > 1 and value[0] == "0") or int(value) > MOST_GPUS:
        rule = "" if digits < 0 else f" of at most {MOST_GPUS}, without leading zeros"
        raise ValueError(f"{line_of(node)}: a quota must be a whole number of GPUs{rule}, not {value[:40]!r}")
    return WrittenNumber(
        path, node.start_mark.line + 1, digits, digits + len(value), int(value), id(node) in document.shared
    )


def with_numbers(text: str, changes: Mapping[WrittenNumber, int]) -> str:
    """Return the text with these numbers in these places."""
    for place in sorted(changes, key=lambda place: place.start, reverse=True):
        text = f"{text[: place.start]}{changes[place]}{text[place.end :]}"
    return text
