"""Tables as spreadsheets write them, whatever they are of.

What a spreadsheet does to a table is taken as it is meant: a byte order mark, semicolons or tabs between cells, a first
line `sep=;`, empty rows and empty columns at the end, 96.0 for 96. What could mean two things is refused: `1,024` is
1024 to one reader and 1.024 to another. A formula is no value, and neither is what came of one that failed.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.inputs.csv_table import CsvTable, csv_text
from models.errors import BadInput

_SEPARATORS = ",;\t"
_WHOLE_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})(\.0*)?", re.ASCII)
_GROUPED = re.compile(r"[0-9]{1,3}([.,' \u00a0\u202f][0-9]{3})+")
_FAILED = re.compile(r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NUM!|NULL!|SPILL!)")


@dataclass(frozen=True)
class TableKind:
    """One kind of table. `marks`: columns that no other one has."""

    word: str
    marks: tuple[str, ...]
    needed: tuple[str, ...]
    counts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Of columns that name a setting: what stands before the name, `policy.` for instance."""
    example: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.needed, *self.example, *self.counts, *self.lists, *self.texts)))

    @property
    def template(self) -> str:
        """A header and one row as an example, as CSV."""
        return f"{','.join(self.example)}\n{','.join(self.example.values())}\n"

    def setting(self, column: str) -> bool:
        """The column is named for a setting."""
        return any(column.startswith(prefix) for prefix in self.settings)


def is_table(path: str) -> bool:
    return path.lower().endswith((".csv", ".csv.gz", ".tsv"))


@dataclass(frozen=True)
class Table:
    name: str
    kind: TableKind
    rows: list[tuple[int, dict[str, str]]]
    """Each with its line."""


def read_table(path: str, kinds: Sequence[TableKind]) -> Table:
    """A file's table, of the first kind that its header is of. Errors: BadInput."""
    name, text = csv_text(path)
    first, _, rest = text.partition("\n")
    skipped = 0
    if re.fullmatch(r"sep=.\r?", first):
        delimiter, text, skipped = first[4], rest, 1
    else:
        header = first.strip("\r")
        delimiter = max(_SEPARATORS, key=lambda sign: (header.count(sign), -_SEPARATORS.index(sign)))
    tidy, lines = _tidied(name, text, delimiter, skipped)
    header_cells = [cell.strip() for cell in tidy[0]] if tidy else []
    kind = next((k for k in kinds if set(k.marks) <= set(header_cells)), None)
    if kind is None:
        needed = "; ".join(f"{k.word}: {', '.join(k.needed)}" for k in kinds)
        words = " nor ".join(k.word for k in kinds)
        raise BadInput(f"{name}: its header says neither {words} ({needed})")
    settings = tuple(c for c in header_cells if kind.setting(c))
    text = "".join(_csv_line(row) for row in tidy)
    optional = tuple(dict.fromkeys((*kind.columns, *settings)))
    table = CsvTable(name, text, kind.needed, optional)
    rows = list(table.records())
    return Table(name, kind, list(zip(lines[1:], rows, strict=True)))


def _csv_line(row: Sequence[str]) -> str:
    """One line: what stands in a cell is one line to us."""
    cells = (" ".join(cell.split("\n")).replace("\r", "") for cell in row)
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def _tidied(name: str, text: str, delimiter: str, skipped: int) -> tuple[list[list[str]], list[int]]:
    """The rows that hold anything, without the empty columns at the end; and each one's line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines, begins = list[list[str]](), list[int](), 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(begins + skipped)
            begins = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{name}, line {reader.line_num + skipped}: not valid CSV: {error}") from None
    width = max((len(_without_end(row)) for row in rows), default=0)
    header = len(_without_end(rows[0])) if rows else 0
    for row, line in zip(rows, lines, strict=True):
        if len(_without_end(row)) > header:
            raise BadInput(f"{name}, line {line}: {len(_without_end(row))} values for {header} columns")
    return [[*row[:width], *[""] * (width - len(row))] for row in rows], lines


def _without_end(row: Sequence[str]) -> Sequence[str]:
    width = len(row)
    while width and not row[width - 1].strip():
        width -= 1
    return row[:width]


class TableRow:
    def __init__(self, place: str, kind: TableKind, cells: Mapping[str, str]) -> None:
        self.place, self.kind, self.faults = place, kind, list[str]()
        self.cells = {column: self._value(column, cell) for column, cell in cells.items()}

    def _value(self, column: str, cell: str) -> str:
        if cell.startswith("=") or _FAILED.fullmatch(cell):
            what = "a formula" if cell.startswith("=") else "what came of a formula that failed"
            self.faults.append(f"{self.place}: {column} is {what}, not a value: {cell!r}")
            return ""
        return cell

    def text(self, column: str) -> str:
        if not self.cells[column] and not self.faults:
            self.faults.append(f"{self.place}: {column} is missing")
        return self.cells[column]

    def fields(self, *columns: str) -> dict[str, Any]:
        """What these columns say: of one that is there an empty cell says none, but for what is needed."""
        values: dict[str, Any] = {}
        for column in columns:
            if column not in self.cells:
                continue
            if column in self.kind.needed:
                self.text(column)
            if column in self.kind.lists:
                values[column] = self._list(column)
            elif column in self.kind.counts:
                values |= self._count(column)
            else:
                values[column] = self.cells[column] or None
        return values

    def several(self, column: str) -> list[str]:
        """Separated by spaces or semicolons."""
        return [each for each in re.split(r"[;\s]+", self.cells[column]) if each]

    def _list(self, column: str) -> Any:
        each = [part.strip() for part in re.split("[;,]", self.cells[column]) if part.strip()]
        if column == "protected_blocks":
            return [self._number(column, part) for part in each]
        return each or None

    def _count(self, column: str) -> dict[str, Any]:
        """An empty cell says nothing of a count: its default, or unknown."""
        return {column: self._number(column, self.cells[column])} if self.cells[column] else {}

    def _number(self, column: str, cell: str) -> Any:
        if whole := _WHOLE_NUMBER.fullmatch(cell):
            return int(whole[1])
        hint = ""
        if _GROUPED.fullmatch(cell):
            hint = f" (write {re.sub('[^0-9]', '', cell)}: what separates thousands here separates fractions elsewhere)"
        self.faults.append(f"{self.place}: {column} must be a whole number, zero or more, not {cell!r}{hint}")
        return 0

    def settings(self, prefix: str) -> Iterator[tuple[str, str]]:
        """What the columns say whose names begin so: the rest of the name, and the cell; empty cells say nothing."""
        for column, cell in self.cells.items():
            if column.startswith(prefix) and cell:
                yield column.removeprefix(prefix), cell


def setting_of(cell: str) -> Any:
    """A number, list or mapping where it reads as JSON, else the text itself: 10m, busy."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
