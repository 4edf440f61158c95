"""Reads a CSV that people hand in, gzipped or not: its columns are checked, and each row knows its line."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from client.inputs.documents import content, decode_text
from models.errors import BadInput

_AHEAD = timedelta(days=1)
_UNKNOWN = frozenset(("", "?", "-", "n/a", "na", "nan", "none", "null", "unknown"))
_MADE_INERT = re.compile(r"'(?='*[=+\-@\t\n])")
"""An apostrophe before text that a spreadsheet would take for a formula; it is not part of the value."""
LEAVE_OUT = "is unknown, so leave the row out"
"""Refuses an unknown count: a missing row means that health is unknown, but an unreadable number may be an error."""
# No leading zeros: they are refused in a fleet file as well.
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
CsvRow = tuple[int, list[str]]
"""A row's line number in its file, and its cells."""


def says_nothing(cell: str) -> bool:
    """Return whether a cell is empty, or has what other programs write for unknown: NaN, null."""
    return cell.strip().lower() in _UNKNOWN


def latest(now: datetime | None) -> float:
    """Return the latest time of a sample, in seconds since 1970: a day from `now`, as clocks and zones differ."""
    return ((now or datetime.now(UTC)) + _AHEAD).timestamp()


TOO_LATE = "is more than a day ahead of now"


def csv_text(path: str | Path) -> tuple[str, str]:
    """Return the file's name for messages, and its text. Errors: BadInput."""
    name, raw = content(path)
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"{name} is not complete gzip data: {error}") from None
    return name, decode_text(name, raw)


def csv_rows(name: str, text: str, delimiter: str = ",", skipped: int = 0) -> Iterator[CsvRow]:
    """Return each row with the line it begins on. `skipped`: lines of the file before the text. Errors: BadInput."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    line = skipped + 1
    try:
        for row in reader:
            yield line, [cell[1:] if cell[:1] == "'" and _MADE_INERT.match(cell) else cell for cell in row]
            line = skipped + reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{name}, line {skipped + reader.line_num}: not valid CSV: {error}") from None


class CsvTable:
    """A table whose rows come one by one. `line`: the last row's.

    `needed` and `optional` columns; without needed ones any column may be there.
    Errors: BadInput naming the file, the line, and the column or the value.
    """

    def __init__(
        self, name: str, rows: Iterator[CsvRow], needed: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.line = 1
        self._rows = rows
        self.columns = [cell.strip() for cell in next(rows, (1, []))[1]]
        if not any(self.columns):
            names = f"the columns {', '.join(needed)}" if needed else "its columns"
            raise BadInput(f"{name} is empty: its first line must name {names}")
        for column in self.columns:
            if needed and column not in (*needed, *optional):
                raise self.bad(f"column {column!r} is unknown; known columns are {', '.join((*needed, *optional))}")
            if self.columns.count(column) > 1:
                raise self.bad(f"column {column} is given twice")
        for column in needed:
            if column not in self.columns:
                raise self.bad(f"column {column} is missing; the file has the columns {', '.join(self.columns)}")

    @classmethod
    def read(cls, path: str | Path, needed: Sequence[str] = (), optional: Sequence[str] = ()) -> Self:
        name, text = csv_text(path)
        return cls(name, csv_rows(name, text), needed, optional)

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells of each row as they are; there is at least one row, and empty lines are skipped."""
        width, empty = len(self.columns), True
        for self.line, row in self._rows:  # noqa: B020
            if row:
                if len(row) != width:
                    raise self.bad(f"{len(row)} values for {width} columns")
                empty = False
                yield row
        if empty:
            raise BadInput(f"{self.name} has no rows below its header")

    def records(self) -> Iterator[dict[str, str]]:
        """Yield the rows by column, without blanks around the values."""
        for row in self.rows():
            yield {column: cell.strip() for column, cell in zip(self.columns, row, strict=True)}

    def count(self, column: str, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise self.bad(f"{column} must be a whole number, zero or more, not {text!r}")
        return int(text)

    def bad(self, what: str, line: int | None = None) -> BadInput:
        """Return the error for the last row, or for another line."""
        return BadInput(f"{self.name}, line {line or self.line}: {what}")
