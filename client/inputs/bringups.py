"""What people hand in to bring clusters up: recipes, and entries as YAML or from a spreadsheet.

Entries are checked against their recipes before anything is sent: a placeholder that nothing fills and a recipe that is
not there are told together, each with its line. Whether first quotas fit under C the ledger alone knows, which has the
fleet's policy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from client.inputs.documents import MOST_PROBLEMS, Handed, handed_in
from client.inputs.sentences import Path, Problem, path_text
from client.inputs.spreadsheet import Table, TableKind, TableRow, is_table, read_table, setting_of
from models.bringup.entry import BringupEntry, BringupFile, policy_fault, unfilled_text
from models.bringup.recipe import RecipeFile
from models.cluster.policy import Policy
from models.errors import BadFile, BadInput

_VALUE, _POLICY = "value.", "policy."
_KINDS = (
    TableKind(
        "bringups",
        marks=("recipe",),
        needed=("cluster", "recipe", "owner", "nodes"),
        counts=("nodes", "gpus_per_node"),
        texts=("gpu_model", "owed_until", "islands"),
        settings=(_VALUE, _POLICY),
        example={
            "cluster": "h100-new",
            "recipe": "slurm-on-bare-metal",
            "owner": "capacity",
            "nodes": "44",
            "gpus_per_node": "8",
            "gpu_model": "H100",
            "islands": "island1:22; island2:22",
            "value.subscription": "sub-17",
        },
    ),
    TableKind(
        "quotas",
        marks=("gpus",),
        needed=("cluster", "team", "gpus"),
        counts=("gpus", "minimum_gpus"),
        lists=("islands", "protected_blocks", "namespaces", "classes"),
        texts=("parent",),
        example={"cluster": "h100-new", "team": "research", "gpus": "256", "protected_blocks": "", "minimum_gpus": "0"},
    ),
)
TABLES = tuple(kind.word for kind in _KINDS)


def template(word: str) -> str:
    """A header and one row as an example, as CSV."""
    return next(kind for kind in _KINDS if kind.word == word).template


def read_recipes(path: str) -> RecipeFile:
    """The recipes of a file. "-": standard input. Errors: BadFile with all that is wrong with it; BadInput."""
    return handed_in(path, "the field recipes").checked(RecipeFile)


def read_entries(paths: Sequence[str], recipes: RecipeFile) -> tuple[BringupEntry, ...]:
    """The clusters to be brought up, of one YAML file or of tables, each one's recipe filled by its values.

    Errors: BadFile with all that is wrong with them; BadInput.
    """
    tables = [path for path in paths if is_table(path)]
    if tables and len(tables) < len(paths):
        raise BadInput(f"{tables[0]} is a table and {next(p for p in paths if p not in tables)} is not: give one kind")
    if not tables and len(paths) != 1:
        raise BadInput(f"{len(paths)} files of entries are given: give one, or tables of bringups and quotas as CSV")
    handed = _tabled(paths) if tables else handed_in(paths[0], "the field bringups")
    entries = handed.checked(BringupFile).bringups
    problems = [problem for number, entry in enumerate(entries) for problem in _against(entry, number, recipes)]
    if problems:
        raise handed.refusing(problems)
    return entries


def _against(entry: BringupEntry, number: int, recipes: RecipeFile) -> list[Problem]:
    """What is wrong with the entry for its recipe."""
    place: Path = ("bringups", number)

    def problem(field: str, text: str) -> Problem:
        path = (*place, field)
        return Problem(path, f"{path_text(path)}: {text}", 0)

    recipe = recipes.recipe(entry.recipe)
    if recipe is None:
        known = ", ".join(r.name for r in recipes.recipes)
        return [problem("recipe", f"there is no recipe {entry.recipe!r}; there are {known}")]
    found = [
        problem("values", f"recipe {recipe.name}, {path_text(at)}: {text}") for at, text in unfilled_text(entry, recipe)
    ]
    if fault := policy_fault(entry, Policy()):
        found.append(problem("policy", fault.removeprefix("policy: ")))
    return found


def _tabled(paths: Sequence[str]) -> Handed:
    """The document that the tables make up."""
    by_kind: dict[str, Table] = {}
    for path in paths:
        table = read_table(path, _KINDS)
        if other := by_kind.get(table.kind.word):
            raise BadInput(f"{table.name} and {other.name} are both tables of {table.kind.word}: put them into one")
        by_kind[table.kind.word] = table
    if "bringups" not in by_kind:
        names = ", ".join(table.name for table in by_kind.values())
        raise BadInput(f"{names}: a table of bringups is missing (`backstop bringup template bringups`)")
    document = _Document()
    for kind in _KINDS:
        if table_ := by_kind.get(kind.word):
            document.take(table_)
    if document.faults:
        raise BadFile(document.faults[:MOST_PROBLEMS], max(0, len(document.faults) - MOST_PROBLEMS))
    return Handed(", ".join(paths), {"bringups": document.entries}, document.places)


class _Document:
    """Entries as they grow, and where their parts come from."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self._lines: dict[Path, str] = {}

    def take(self, table: Table) -> None:
        for line, cells in table.rows:
            row = TableRow(f"{table.name}, line {line}", table.kind, cells)
            (self._entry if table.kind.word == "bringups" else self._quota)(row)
            self.faults += row.faults

    def places(self, paths: Sequence[Path]) -> list[str]:
        return [self._place(path) for path in paths]

    def _place(self, path: Path) -> str:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, "the tables")

    def _entry(self, row: TableRow) -> None:
        self._lines["bringups", len(self.entries)] = row.place
        entry: dict[str, Any] = {name: row.text(name) for name in ("cluster", "recipe", "owner")}
        said = row.fields("nodes", "gpus_per_node", "gpu_model", "owed_until")
        entry |= {name: value for name, value in said.items() if value is not None}
        if row.cells.get("islands"):
            entry["islands"] = _islands(row)
        if values := dict(row.settings(_VALUE)):
            entry["values"] = values
        if policy := {name: setting_of(cell) for name, cell in row.settings(_POLICY)}:
            entry["policy"] = policy
        self.entries.append(entry)

    def _quota(self, row: TableRow) -> None:
        name = row.text("cluster")
        number = next((n for n, entry in enumerate(self.entries) if entry["cluster"] == name), None)
        if number is None:
            row.faults.append(f"{row.place}: cluster {name!r} is not in the table of bringups")
            return
        quotas = self.entries[number].setdefault("quotas", [])
        self._lines["bringups", number, "quotas", len(quotas)] = row.place
        fields = row.fields(*(c for c in row.kind.columns if c not in ("cluster", "team")))
        quotas.append({"team": row.text("team"), **fields})


def _islands(row: TableRow) -> list[dict[str, Any]]:
    """`island1:22; island2:22`: each with its nodes."""
    found = []
    for part in filter(None, (part.strip() for part in re.split("[;,]", row.cells["islands"]))):
        name, _, nodes = part.rpartition(":")
        if not name or not re.fullmatch("[0-9]{1,9}", nodes):
            row.faults.append(
                f"{row.place}: islands must be names with their nodes, `island1:22; island2:22`: {part!r}"
            )
            continue
        found.append({"name": name.strip(), "nodes": int(nodes)})
    return found
