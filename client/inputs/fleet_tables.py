"""Reads a fleet from a spreadsheet: tables of clusters, quotas and teams, which their headers tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client.inputs.document_from_tables import POLICY, TabledDocument, are_tables, one_of_each, policy_of
from client.inputs.documents import FleetDocument, fleet_document, read_fleet_document
from client.inputs.spreadsheet import Table, TableKind, TableRow, fields_of, read_table
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.sources import WHOLE
from models.errors import BadInput

_OF_ISLAND = ("total_gpus", "healthy_gpus", "block_gpus")
_OF_HARDWARE = ("gpu_model", "gpus_per_node")
_KINDS = (
    TableKind(
        "clusters",
        mark="total_gpus",
        names=("cluster",),
        fields={**fields_of(Island, *_OF_ISLAND), **fields_of(ClusterSpec, *_OF_HARDWARE)},
        settings=(POLICY,),
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
        mark="gpus",
        names=("cluster",),
        fields=Quota.model_fields,
        example={
            "cluster": "h100-worked",
            "team": "research",
            "gpus": "345",
            "scheduled_gpus": "310",
            "idle_gpus": "0",
            "pending_gpus": "35",
            "protected_blocks": "",
            "minimum_gpus": "0",
            "parent": "",
        },
    ),
    TableKind(
        "teams",
        mark="contacts",
        names=("team", "contacts"),
        fields=fields_of(Team, "notify"),
        example={"team": "research", "contacts": "research-leads@example.org"},
    ),
)
FLEET_TEMPLATES = {kind.word: kind.template for kind in _KINDS}
"""For each kind of table a header and one example row, as CSV."""


def read_fleet_files(paths: Sequence[str]) -> FleetDocument:
    """Read one fleet file, or tables that make one up. Errors: BadFile with all that is wrong with them; BadInput."""
    tabled = are_tables(paths, "fleet files", "clusters and quotas")
    return read_fleet_tables(paths) if tabled else read_fleet_document(paths[0])


def read_fleet_tables(paths: Sequence[str]) -> FleetDocument:
    """Read the fleet that the tables make up together. Errors: BadFile with all that is wrong with them; BadInput."""
    tables = [_of_a_fleet(read_table(path, _KINDS)) for path in paths]
    fleet = _Fleet("clusters")
    for table in one_of_each(tables, _KINDS, "backstop fleet template"):
        fleet.take_table(table)
    return fleet_document(fleet.hand_over(paths), partial=True)


def _of_a_fleet(table: Table) -> Table:
    """Return the table. Errors: BadInput if a column names a setting that does not exist."""
    for column in table.rows[0][1] if table.rows else ():
        if table.kind.is_setting(column) and column.removeprefix(POLICY) not in Policy.model_fields:
            raise BadInput(
                f"{table.name}, line 1: column {column!r} is not a setting of a policy (docs/fleet-file.md lists them)"
            )
    return table


class _Fleet(TabledDocument):
    def take_table(self, table: Table) -> None:
        match table.kind.word:
            case "clusters":
                self.take(table, self._cluster)
            case "quotas":
                for cluster in self.clusters:
                    cluster["quotas"] = []
                self.take(table, self.add_quota)
            case _:
                self.data["teams"] = []
                self.take(table, self._team)

    def _cluster(self, row: TableRow) -> None:
        name = row.text("cluster")
        island = row.fields(*_OF_ISLAND)
        island = {"name": row.cells.get("island", "") or WHOLE, **island}
        hardware, policy = row.fields(*_OF_HARDWARE), policy_of(row)
        if name not in self.numbers:
            self.add_cluster(
                row, name, {"name": name, "islands": [], **hardware, **({"policy": policy} if policy else {})}
            )
        number = self.numbers[name]
        cluster = self.clusters[number]
        _agree(row, cluster, hardware, policy)
        self.note_place(row, "clusters", number, "islands", len(cluster["islands"]))
        cluster["islands"].append(island)

    def _team(self, row: TableRow) -> None:
        self.note_place(row, "teams", len(self.data["teams"]))
        team = {"name": row.text("team"), "contacts": row.several("contacts"), **row.fields()}
        self.data["teams"].append(team)


def _agree(row: TableRow, cluster: Mapping[str, Any], fields: Mapping[str, Any], policy: Mapping[str, Any]) -> None:
    """Report where a row contradicts an earlier one: a cluster of several islands has several rows."""
    for name, value, standing in (
        *((field, fields[field], cluster.get(field)) for field in fields),
        *((f"{POLICY}{k}", policy[k], cluster.get("policy", {}).get(k)) for k in policy),
    ):
        if value not in (None, standing):
            earlier = "empty" if standing is None else standing
            row.faults.append(f"{row.place}: {name} is {value}, but {earlier} in an earlier row of the cluster")
