"""Joins several tables into one document; finds each file's kind, and notes the row that each part comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from client.inputs.documents import MOST_PROBLEMS, Handed
from client.inputs.sentences import Path
from client.inputs.spreadsheet import Table, TableKind, TableRow
from models.errors import BadFile, BadInput

POLICY = "policy."
"""Prefix of a setting's name in a column's header."""


def are_tables(paths: Sequence[str], what: str, kinds: str) -> bool:
    """Return whether all files are tables; otherwise there must be one file. Errors: BadInput.

    `what` names such files and `kinds` the tables, in the error.
    """
    tables = [path for path in paths if path.lower().endswith((".csv", ".csv.gz", ".tsv"))]
    if tables and len(tables) < len(paths):
        raise BadInput(
            f"{tables[0]} is a table and {next(p for p in paths if p not in tables)} is not: give only tables"
        )
    if not tables and len(paths) != 1:
        raise BadInput(f"{len(paths)} {what} are given: give one, or tables of {kinds} as CSV")
    return bool(tables)


def one_of_each(tables: Sequence[Table], kinds: Sequence[TableKind], template: str) -> list[Table]:
    """Return the tables in the order of the kinds; the first is required (`template` prints one). Errors: BadInput."""
    table_of: dict[str, Table] = {}
    for table in tables:
        other = table_of.setdefault(table.kind.word, table)
        if other is not table:
            raise BadInput(f"{table.name} and {other.name} are both tables of {table.kind.word}: join them into one")
    first = kinds[0].word
    if first not in table_of:
        names = ", ".join(table.name for table in tables)
        raise BadInput(f"{names}: a table of {first} is missing: `{template} {first}` prints an example")
    return [table_of[kind.word] for kind in kinds if kind.word in table_of]


def policy_of(row: TableRow) -> dict[str, Any]:
    return row.parsed_settings(POLICY)


class TabledDocument:
    """A growing document of clusters with their quotas. `word`: its name for the list of clusters."""

    def __init__(self, word: str) -> None:
        self._word = word
        self.clusters: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {word: self.clusters}
        self.numbers: dict[str, int] = {}
        """Each cluster's index in the list; the first index of a cluster that is given twice."""
        self._faults: list[str] = []
        self._lines: dict[Path, str] = {}

    def take(self, table: Table, add: Callable[[TableRow], None]) -> None:
        for line, cells in table.rows:
            row = TableRow(f"{table.name}, line {line}", table.kind, cells)
            add(row)
            self._faults += row.faults

    def note_place(self, row: TableRow, *path: str | int) -> None:
        """Note that this part of the document comes from the row."""
        self._lines[path] = row.place

    def add_cluster(self, row: TableRow, name: str, cluster: dict[str, Any]) -> None:
        number = len(self.clusters)
        self.numbers.setdefault(name, number)
        self.note_place(row, self._word, number)
        self.clusters.append(cluster)

    def add_quota(self, row: TableRow) -> None:
        """Add a quota to its cluster, whose table came before."""
        name = row.text("cluster")
        number = self.numbers.get(name)
        if number is None:
            row.faults.append(f"{row.place}: cluster {name!r} is not in the table of {self._word}")
            return
        quotas = self.clusters[number].setdefault("quotas", [])
        self.note_place(row, self._word, number, "quotas", len(quotas))
        quotas.append(row.fields())

    def hand_over(self, paths: Sequence[str]) -> Handed:
        """Return the whole document. Errors: BadFile with what is wrong with single rows."""
        if self._faults:
            raise BadFile(self._faults[:MOST_PROBLEMS], max(0, len(self._faults) - MOST_PROBLEMS))
        return Handed(", ".join(paths), self.data, lambda parts: [self._place(part) for part in parts])

    def _place(self, path: Path) -> str:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, "the tables")
