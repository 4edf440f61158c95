"""Reads YAML the way people mean it, fast: `010` and `no` stay text, a key given twice is refused.

Theory of operation. libyaml's events are folded into plain dicts and lists as they come. PyYAML's own way
(events, nodes with marks, generators, objects) takes several times as long on a large fleet, and loses a
duplicate key on the way. Plain scalars follow YAML 1.2's core schema, except that a number with a leading
zero stays text: 1.1 reads 0345 as 229, and a quota should rest on neither reading.

Garbage collection is off meanwhile: everything made here stays reachable, and scanning a million young containers again
and again took most of the time.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import yaml

from models.errors import BadInput

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_REAL = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
GIVEN_TWICE = "is given twice in one mapping"
_MAX_DEPTH = 100
_FREE_NODES = 5_000_000
"""Nodes that aliases may add to a document, beyond ten times the nodes that it spells out."""


def load(text: str, source: str) -> Any:
    """Return the one document in `text` as dicts, lists, text, numbers, booleans and None; None if there is none.

    Errors: BadInput naming `source`, the line and the fault.
    """
    with _gc_resting():
        return _Folder(text, source).document()


def lines_of(text: str, paths: Sequence[tuple[str | int, ...]]) -> list[int | None]:
    """Return the line (from 1) of the deepest part of each path that the document has; None if it is not known."""
    try:
        with _gc_resting():
            node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        node = None
    return [None if node is None else _line_in(node, path) for path in paths]


def _line_in(node: yaml.Node, path: tuple[str | int, ...]) -> int:
    line: int = node.start_mark.line + 1
    for step in path:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == str(step)]
            if not pairs:
                return line
            key, node = pairs[-1]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line


@contextlib.contextmanager
def _gc_resting() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Marked(Protocol):
    """PyYAML's two kinds of marks."""

    @property
    def line(self) -> int: ...


class _Folder:
    """Folds one stream of events into one value."""

    def __init__(self, text: str, source: str) -> None:
        self._parser = yaml.CSafeLoader(text)
        self._source = source
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._scalars: dict[str, Any] = dict(_WORDS)
        self._spelt = 0
        self._depth = 0

    def document(self) -> Any:
        try:
            self._next()  # the stream's start
            if isinstance(self._next(), yaml.StreamEndEvent):
                return None
            value, _ = self._node(self._next())
            self._next()  # the document's end
            after = self._next()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise self._bad(f"not valid YAML: {what}", mark) from None
        except yaml.YAMLError as error:
            raise self._bad(f"not valid YAML: {' '.join(str(error).split())}", None) from None
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._bad("a second document begins here; a file may have only one", after.start_mark)
        return value

    def _next(self) -> yaml.Event:
        event = self._parser.get_event()
        assert event is not None, "the stream has ended, so nothing follows"
        return event

    def _node(self, event: yaml.Event) -> tuple[Any, int]:
        """Return the value that begins with this event, and its number of nodes, aliases followed."""
        if isinstance(event, yaml.ScalarEvent):
            result = self._scalar(event), 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._bad(f"*{event.anchor} refers to an anchor that is not defined before it", event.start_mark)
            return self._anchors[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            result = self._collection(event)
        else:  # pragma: no cover - libyaml's grammar lets nothing else begin a node
            raise AssertionError(f"{event} begins no node")
        if event.anchor is not None:
            self._anchors[event.anchor] = result
        return result

    def _collection(self, event: yaml.CollectionStartEvent) -> tuple[Any, int]:
        if not event.implicit:
            raise self._bad(f"the tag {event.tag} is not supported", event.start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._bad(f"nested more than {_MAX_DEPTH} levels deep", event.start_mark)
        value, size = self._mapping() if isinstance(event, yaml.MappingStartEvent) else self._sequence()
        self._depth -= 1
        self._spelt += 1
        if size > 10 * self._spelt + _FREE_NODES:
            raise self._bad("its aliases expand to too much: write the values out", event.start_mark)
        return value, size

    def _sequence(self) -> tuple[list[Any], int]:
        items, size = [], 1
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            item, nodes = self._node(event)
            items.append(item)
            size += nodes
        return items, size

    def _mapping(self) -> tuple[dict[str, Any], int]:
        fields: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        size = 1
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._bad("a field's name must be plain text", key.start_mark)
            value, nodes = self._node(self._next())
            size += nodes + 1
            name: str = key.value
            if name == "<<" and key.implicit[0]:
                merged = {**self._merge(value, key.start_mark), **merged}
            elif name in fields:
                raise self._bad(f"{name} {GIVEN_TWICE}", key.start_mark)
            else:
                fields[name] = value
        return ({**merged, **fields} if merged else fields), size

    def _merge(self, value: Any, mark: _Marked | None) -> dict[str, Any]:
        """Return the mapping that `<<` merges in; the first of several wins, as in YAML."""
        parts = value if isinstance(value, list) else [value]
        result: dict[str, Any] = {}
        for part in reversed(parts):
            if not isinstance(part, dict):
                raise self._bad("<< takes a mapping or a list of mappings", mark)
            result |= part
        return result

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text: str = event.value
        self._spelt += 1
        if event.implicit[0]:  # plain, without a tag
            try:
                return self._scalars[text]
            except KeyError:
                return self._scalars.setdefault(text, _plain(text))
        if event.tag is None or event.tag in _TEXT_TAGS:
            return text
        raise self._bad(f"the tag {event.tag} is not supported", event.start_mark)

    def _bad(self, what: str, mark: _Marked | None) -> BadInput:
        return BadInput(f"{self._source}{'' if mark is None else f', line {mark.line + 1}'}: {what}")


def is_plain_text(text: str) -> bool:
    """Return whether YAML reads the unquoted text as text."""
    return text not in _WORDS and isinstance(_plain(text), str)


def _plain(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    return text
