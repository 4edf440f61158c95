"""A fleet from a spreadsheet: tables of clusters, quotas and teams, which are told apart by their headers.

What spreadsheets do to a table is taken as it is meant: a byte order mark, semicolons or tabs between cells, a first
line `sep=;`, empty rows and empty columns at the end, 96.0 for 96. What could mean two things is refused: `1,024` is
1024 to one reader and 1.024 to another. A formula is no value, and neither is what came of one that failed.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.inputs.csv_table import CsvTable, csv_text
from client.inputs.documents import MOST_PROBLEMS, FleetDocument, checked_fleet
from client.inputs.sentences import Path
from models.cluster.policy import Policy
from models.cluster.sources import WHOLE
from models.errors import BadFile, BadInput

_SEPARATORS = ",;\t"
_WHOLE_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})(\.0*)?", re.ASCII)
_GROUPED = re.compile(r"[0-9]{1,3}([.,' \u00a0\u202f][0-9]{3})+")
_FAILED = re.compile(r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NUM!|NULL!|SPILL!)")
_POLICY = "policy."
"""Before a setting's name in the header of a column."""


@dataclass(frozen=True)
class _Kind:
    """One kind of table. `marks`: columns that no other one has."""

    word: str
    marks: tuple[str, ...]
    needed: tuple[str, ...]
    counts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    example: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.needed, *self.example, *self.counts, *self.lists, *self.texts)))


_KINDS = (
    _Kind(
        "clusters",
        marks=("total_gpus",),
        needed=("cluster", "total_gpus", "healthy_gpus"),
        counts=("total_gpus", "healthy_gpus", "block_gpus", "gpus_per_node"),
        texts=("gpu_model", "island"),
        example={
            "cluster": "h100-worked",
            "gpu_model": "H100",
            "island": "main",
            "total_gpus": "361",
            "healthy_gpus": "319",
            "gpus_per_node": "8",
            "policy.buffer": "0.15",
        },
    ),
    _Kind(
        "quotas",
        marks=("gpus",),
        needed=("cluster", "team", "gpus"),
        counts=("gpus", "scheduled_gpus", "idle_gpus", "pending_gpus", "minimum_gpus"),
        lists=("islands", "protected_blocks", "namespaces", "classes"),
        texts=("parent",),
        example={
            "cluster": "h100-worked",
            "team": "research",
            "gpus": "345",
            "scheduled_gpus": "310",
            "protected_blocks": "",
            "minimum_gpus": "0",
            "parent": "",
        },
    ),
    _Kind(
        "teams",
        marks=("contacts",),
        needed=("team", "contacts"),
        lists=("contacts",),
        texts=("notify",),
        example={"team": "research", "contacts": "research-leads@example.org"},
    ),
)
TEMPLATES = tuple(kind.word for kind in _KINDS)


def template(word: str) -> str:
    """A header and one row as an example, as CSV."""
    kind = next(kind for kind in _KINDS if kind.word == word)
    return f"{','.join(kind.example)}\n{','.join(kind.example.values())}\n"


def is_table(path: str) -> bool:
    return path.lower().endswith((".csv", ".csv.gz", ".tsv"))


def read_fleet_tables(paths: Sequence[str]) -> FleetDocument:
    """The fleet that the tables make up together. Errors: BadFile with all that is wrong with them; BadInput."""
    tables = [_table(path) for path in paths]
    by_kind: dict[str, _Table] = {}
    for table in tables:
        if other := by_kind.setdefault(table.kind.word, table) if table.kind.word in by_kind else None:
            raise BadInput(f"{table.name} and {other.name} are both tables of {table.kind.word}: put them into one")
        by_kind[table.kind.word] = table
    if "clusters" not in by_kind:
        raise BadInput(
            f"{', '.join(t.name for t in tables)}: a table of clusters is missing (`backstop fleet template clusters`)"
        )
    fleet = _Fleet()
    for kind in _KINDS:
        if kind.word in by_kind:
            fleet.take(by_kind[kind.word])
    if fleet.faults:
        raise BadFile(fleet.faults[:MOST_PROBLEMS], max(0, len(fleet.faults) - MOST_PROBLEMS))
    return FleetDocument(checked_fleet(fleet.data, fleet.where), ", ".join(paths), fleet.where, partial=True)


@dataclass(frozen=True)
class _Table:
    name: str
    kind: _Kind
    rows: list[tuple[int, dict[str, str]]]
    """Each with its line."""


def _table(path: str) -> _Table:
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
    kind = next((k for k in _KINDS if set(k.marks) <= set(header_cells)), None)
    if kind is None:
        needed = "; ".join(f"{k.word}: {', '.join(k.needed)}" for k in _KINDS)
        raise BadInput(f"{name}: its header says neither clusters nor quotas nor teams ({needed})")
    settings = tuple(c for c in header_cells if c.startswith(_POLICY)) if kind.word == "clusters" else ()
    for column in settings:
        if column.removeprefix(_POLICY) not in Policy.model_fields:
            raise BadInput(
                f"{name}, line 1: column {column!r} is no setting of a policy (docs/fleet-file.md lists them)"
            )
    text = "".join(_csv_line(row) for row in tidy)
    optional = tuple(dict.fromkeys((*kind.columns, *settings)))
    table = CsvTable(name, text, kind.needed, optional)
    rows = list(table.records())
    return _Table(name, kind, list(zip(lines[1:], rows, strict=True)))


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


class _Fleet:
    """The document as it grows, and where its parts come from."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"clusters": []}
        self.faults: list[str] = []
        self._lines: dict[Path, str] = {}
        self._numbers: dict[str, int] = {}

    def take(self, table: _Table) -> None:
        rows: dict[str, Callable[[_Row], None]] = {
            "clusters": self._cluster,
            "quotas": self._quota,
            "teams": self._team,
        }
        if table.kind.word == "teams":
            self.data["teams"] = []
        if table.kind.word == "quotas":
            for cluster in self.data["clusters"]:
                cluster["quotas"] = []
        for line, cells in table.rows:
            row = _Row(f"{table.name}, line {line}", table.kind, cells)
            rows[table.kind.word](row)
            self.faults += row.faults

    def where(self, paths: Sequence[Path]) -> list[str]:
        return [self._where(path) for path in paths]

    def _where(self, path: Path) -> str:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, "the tables")

    def _cluster(self, row: _Row) -> None:
        name, number = row.text("cluster"), len(self.data["clusters"])
        island = row.fields("total_gpus", "healthy_gpus", "block_gpus")
        island = {"name": row.cells.get("island", "") or WHOLE, **island}
        if name not in self._numbers:
            self._numbers[name] = number
            cluster = {"name": name, "islands": [], **row.fields("gpu_model", "gpus_per_node")}
            if policy := dict(row.settings()):
                cluster["policy"] = policy
            self.data["clusters"].append(cluster)
            self._lines["clusters", number] = row.place
        number = self._numbers[name]
        cluster = self.data["clusters"][number]
        row.agree(cluster, row.fields("gpu_model", "gpus_per_node"), dict(row.settings()))
        self._lines["clusters", number, "islands", len(cluster["islands"])] = row.place
        cluster["islands"].append(island)

    def _quota(self, row: _Row) -> None:
        name = row.text("cluster")
        number = self._numbers.get(name)
        if number is None:
            row.faults.append(f"{row.place}: cluster {name!r} is not in the table of clusters")
            return
        quotas = self.data["clusters"][number]["quotas"]
        self._lines["clusters", number, "quotas", len(quotas)] = row.place
        fields = row.fields(*(c for c in row.kind.columns if c not in ("cluster", "team")))
        quotas.append({"team": row.text("team"), **fields})

    def _team(self, row: _Row) -> None:
        self._lines["teams", len(self.data["teams"])] = row.place
        team = {"name": row.text("team"), "contacts": row.several("contacts"), **row.fields("notify")}
        self.data["teams"].append(team)


class _Row:
    def __init__(self, place: str, kind: _Kind, cells: Mapping[str, str]) -> None:
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
        found: dict[str, Any] = {}
        for column in columns:
            if column not in self.cells:
                continue
            if column in self.kind.needed:
                self.text(column)
            if column in self.kind.lists:
                found[column] = self._list(column)
            elif column in self.kind.counts:
                found |= self._count(column)
            else:
                found[column] = self.cells[column] or None
        return found

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

    def settings(self) -> Iterator[tuple[str, Any]]:
        for column, cell in self.cells.items():
            if column.startswith(_POLICY) and cell:
                yield column.removeprefix(_POLICY), _setting(cell)

    def agree(self, cluster: Mapping[str, Any], fields: Mapping[str, Any], policy: Mapping[str, Any]) -> None:
        """A cluster of several islands has several rows, which say the same of it, or nothing."""
        for name, given, standing in (
            *((f, fields[f], cluster.get(f)) for f in fields),
            *((f"{_POLICY}{k}", policy[k], cluster.get("policy", {}).get(k)) for k in policy),
        ):
            if given not in (None, standing):
                self.faults.append(f"{self.place}: {name} is {given}, and {standing} in an earlier row of the cluster")


def _setting(cell: str) -> Any:
    """A number, list or mapping where it reads as JSON, else the text itself: 10m, busy."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
