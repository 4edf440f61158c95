"""Reads tables as spreadsheets write them.

Usual marks of a spreadsheet are accepted: a byte order mark, semicolons or tabs between cells, a first line `sep=;`,
empty rows and empty columns at the end, 96.0 for 96. Ambiguous ones are refused: `1,024` is 1024 to one reader and
1.024 to another. A formula is no value, nor is the result of a failed one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from client.inputs.csv_table import CsvRow, CsvTable, csv_rows, csv_text
from models.base import Model
from models.errors import BadInput
from models.hashes import GivenTwice, each_once

_SEPARATORS = ",;\t"
_WHOLE_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})(\.0*)?", re.ASCII)
_GROUPED = re.compile(r"[0-9]{1,3}([.,' \u00a0\u202f][0-9]{3})+")
_FAILED = re.compile(r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NUM!|NULL!|SPILL!)")


@dataclass(frozen=True)
class TableKind:
    """A kind of table. `mark`: the column that no other kind has. `names`: columns that each row must fill."""

    word: str
    mark: str
    names: tuple[str, ...]
    fields: Mapping[str, FieldInfo]
    """Columns of the row's models, each with its type, and whether each row must fill it."""
    settings: tuple[str, ...] = ()
    """Prefixes of columns that name a setting, such as `policy.`."""
    example: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def needed_columns(self) -> tuple[str, ...]:
        return (*self.names, *(column for column, its in self.fields.items() if its.is_required()))

    @property
    def optional(self) -> tuple[str, ...]:
        return tuple(column for column in {**self.example, **self.fields} if column not in self.needed_columns)

    @cached_property
    def types(self) -> dict[str, tuple[Any, ...]]:
        return {column: tuple(_types(its.annotation)) for column, its in self.fields.items()}

    @property
    def template(self) -> str:
        """Return a header and one example row, as CSV."""
        return f"{','.join(self.example)}\n{','.join(self.example.values())}\n"

    def is_setting(self, column: str) -> bool:
        """Return whether the column's name names a setting."""
        return any(column.startswith(prefix) for prefix in self.settings)


def _types(annotation: Any) -> Iterator[Any]:
    """Return the types that an annotation is made of: `tuple[int, ...] | None` has a tuple and an int."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _types(part)


def fields_of(model: type[Model], *names: str) -> dict[str, FieldInfo]:
    return {name: model.model_fields[name] for name in names}


@dataclass(frozen=True)
class Table:
    name: str
    kind: TableKind
    rows: list[tuple[int, dict[str, str]]]
    """Each row with its line number."""


def read_table(path: str, kinds: Sequence[TableKind]) -> Table:
    """Read a file's table, as the first kind that fits its header. Errors: BadInput."""
    name, text = csv_text(path)
    first, _, rest = text.partition("\n")
    skipped = 0
    if re.fullmatch(r"sep=.\r?", first):
        delimiter, text, skipped = first[4], rest, 1
    else:
        header = first.strip("\r")
        delimiter = max(_SEPARATORS, key=lambda sign: (header.count(sign), -_SEPARATORS.index(sign)))
    rows = _tidy(name, csv_rows(name, text, delimiter, skipped))
    header_cells = [cell.strip() for cell in rows[0][1]] if rows else []
    kind = next((k for k in kinds if k.mark in header_cells), None)
    if kind is None:
        needed = "; ".join(f"{k.word}: {', '.join(k.needed_columns)}" for k in kinds)
        words = " or ".join(k.word for k in kinds)
        raise BadInput(f"{name}: its header must have the columns of {words} ({needed})")
    settings = [c for c in header_cells if kind.is_setting(c) and c not in kind.example]
    table = CsvTable(name, iter(rows), kind.needed_columns, (*kind.optional, *settings))
    return Table(name, kind, [(table.line, row) for row in table.records()])


def _tidy(name: str, rows: Iterable[CsvRow]) -> list[CsvRow]:
    """Return the rows that hold anything, cut to the header's width; line breaks in a cell become blanks."""
    tidy = [(line, _without_end(row)) for line, row in rows if any(cell.strip() for cell in row)]
    width = len(tidy[0][1]) if tidy else 0
    for line, row in tidy:
        if len(row) > width:
            raise BadInput(f"{name}, line {line}: {len(row)} values for {width} columns")
        row.extend([""] * (width - len(row)))
    return tidy


def _without_end(row: Sequence[str]) -> list[str]:
    cells = [cell.replace("\n", " ").replace("\r", "") for cell in row]
    while not cells[-1].strip():
        cells.pop()
    return cells


class TableRow:
    def __init__(self, place: str, kind: TableKind, cells: Mapping[str, str]) -> None:
        self.place, self.kind, self.faults = place, kind, list[str]()
        self.cells = {column: self._value(column, cell) for column, cell in cells.items()}

    def _value(self, column: str, cell: str) -> str:
        if cell.startswith("=") or _FAILED.fullmatch(cell):
            what = "a formula" if cell.startswith("=") else "the result of a formula that failed"
            self.faults.append(f"{self.place}: {column} is {what}, not a value: {cell!r}")
            return ""
        return cell

    def text(self, column: str) -> str:
        if not self.cells[column] and not self.faults:
            self.faults.append(f"{self.place}: {column} is missing")
        return self.cells[column]

    def fields(self, *columns: str) -> dict[str, Any]:
        """Return the values of these columns, or of all fields. An empty cell is left out, unless a value is needed."""
        values: dict[str, Any] = {}
        for column in columns or self.kind.fields:
            if column not in self.cells:
                continue
            if column in self.kind.needed_columns:
                self.text(column)
            if tuple in self.kind.types[column]:
                values[column] = self._list(column)
            elif int in self.kind.types[column]:
                if cell := self.cells[column]:  # an empty one leaves the count at its default, or unknown
                    values[column] = self._number(column, cell)
            else:
                values[column] = self.cells[column] or None
        return values

    def several(self, column: str) -> list[str]:
        """Return the cell's parts, separated by spaces or semicolons."""
        return [each for each in re.split(r"[;\s]+", self.cells[column]) if each]

    def _list(self, column: str) -> Any:
        each = [part.strip() for part in re.split("[;,]", self.cells[column]) if part.strip()]
        if int in self.kind.types[column]:
            return [self._number(column, part) for part in each]
        return each or None

    def _number(self, column: str, cell: str) -> Any:
        if whole := _WHOLE_NUMBER.fullmatch(cell):
            return int(whole[1])
        hint = ""
        if _GROUPED.fullmatch(cell):
            hint = f" (write {re.sub('[^0-9]', '', cell)}, without a separator)"
        self.faults.append(f"{self.place}: {column} must be a whole number, zero or more, not {cell!r}{hint}")
        return 0

    def settings(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the non-empty cells of columns whose names begin with the prefix, each with the rest of the name."""
        for column, cell in self.cells.items():
            if column.startswith(prefix) and cell:
                yield column.removeprefix(prefix), cell

    def parsed_settings(self, prefix: str) -> dict[str, Any]:
        """Return the settings: numbers, lists and mappings where cells read as JSON, else their text: 10m, busy."""
        return {name: self._parse(f"{prefix}{name}", cell) for name, cell in self.settings(prefix)}

    def _parse(self, column: str, cell: str) -> Any:
        try:
            return json.loads(cell, object_pairs_hook=each_once)
        except GivenTwice as error:
            self.faults.append(f"{self.place}: {column}: {error}")
        except (ValueError, RecursionError):
            pass
        return cell
