"""A fleet from a spreadsheet: tables of clusters, quotas and teams, which are told apart by their headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from client.inputs.documents import MOST_PROBLEMS, FleetDocument, checked_fleet
from client.inputs.sentences import Path
from client.inputs.spreadsheet import Table, TableKind, TableRow, read_table, setting_of
from models.cluster.policy import Policy
from models.cluster.sources import WHOLE
from models.errors import BadFile, BadInput

_POLICY = "policy."
"""Before a setting's name in the header of a column."""
_KINDS = (
    TableKind(
        "clusters",
        marks=("total_gpus",),
        needed=("cluster", "total_gpus", "healthy_gpus"),
        counts=("total_gpus", "healthy_gpus", "block_gpus", "gpus_per_node"),
        texts=("gpu_model", "island"),
        settings=(_POLICY,),
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
    TableKind(
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
    TableKind(
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
    return next(kind for kind in _KINDS if kind.word == word).template


def read_fleet_tables(paths: Sequence[str]) -> FleetDocument:
    """The fleet that the tables make up together. Errors: BadFile with all that is wrong with them; BadInput."""
    tables = [_of_a_fleet(read_table(path, _KINDS)) for path in paths]
    by_kind: dict[str, Table] = {}
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


def _of_a_fleet(table: Table) -> Table:
    """Errors: BadInput where a column names a setting that there is not."""
    for column in table.rows[0][1] if table.rows else ():
        if table.kind.setting(column) and column.removeprefix(_POLICY) not in Policy.model_fields:
            raise BadInput(
                f"{table.name}, line 1: column {column!r} is no setting of a policy (docs/fleet-file.md lists them)"
            )
    return table


class _Fleet:
    """The document as it grows, and where its parts come from."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"clusters": []}
        self.faults: list[str] = []
        self._lines: dict[Path, str] = {}
        self._numbers: dict[str, int] = {}

    def take(self, table: Table) -> None:
        rows: dict[str, Callable[[TableRow], None]] = {
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
            row = TableRow(f"{table.name}, line {line}", table.kind, cells)
            rows[table.kind.word](row)
            self.faults += row.faults

    def where(self, paths: Sequence[Path]) -> list[str]:
        return [self._where(path) for path in paths]

    def _where(self, path: Path) -> str:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, "the tables")

    def _cluster(self, row: TableRow) -> None:
        name, number = row.text("cluster"), len(self.data["clusters"])
        island = row.fields("total_gpus", "healthy_gpus", "block_gpus")
        island = {"name": row.cells.get("island", "") or WHOLE, **island}
        said, policy = row.fields("gpu_model", "gpus_per_node"), _policy(row)
        if name not in self._numbers:
            self._numbers[name] = number
            cluster = {"name": name, "islands": [], **said}
            if policy:
                cluster["policy"] = policy
            self.data["clusters"].append(cluster)
            self._lines["clusters", number] = row.place
        number = self._numbers[name]
        cluster = self.data["clusters"][number]
        _agree(row, cluster, said, policy)
        self._lines["clusters", number, "islands", len(cluster["islands"])] = row.place
        cluster["islands"].append(island)

    def _quota(self, row: TableRow) -> None:
        name = row.text("cluster")
        number = self._numbers.get(name)
        if number is None:
            row.faults.append(f"{row.place}: cluster {name!r} is not in the table of clusters")
            return
        quotas = self.data["clusters"][number]["quotas"]
        self._lines["clusters", number, "quotas", len(quotas)] = row.place
        fields = row.fields(*(c for c in row.kind.columns if c not in ("cluster", "team")))
        quotas.append({"team": row.text("team"), **fields})

    def _team(self, row: TableRow) -> None:
        self._lines["teams", len(self.data["teams"])] = row.place
        team = {"name": row.text("team"), "contacts": row.several("contacts"), **row.fields("notify")}
        self.data["teams"].append(team)


def _policy(row: TableRow) -> dict[str, Any]:
    return {name: setting_of(cell) for name, cell in row.settings(_POLICY)}


def _agree(row: TableRow, cluster: Mapping[str, Any], fields: Mapping[str, Any], policy: Mapping[str, Any]) -> None:
    """A cluster of several islands has several rows, which say the same of it, or nothing."""
    for name, given, standing in (
        *((f, fields[f], cluster.get(f)) for f in fields),
        *((f"{_POLICY}{k}", policy[k], cluster.get("policy", {}).get(k)) for k in policy),
    ):
        if given not in (None, standing):
            row.faults.append(f"{row.place}: {name} is {given}, and {standing} in an earlier row of the cluster")
