"""Reads files that people hand in to bring clusters up: recipes, and entries as YAML or from a spreadsheet.

Entries are checked against their recipes before anything is sent: a placeholder without a value and an unknown recipe
are reported together, each with its line. Only the ledger, which has the fleet's policy, knows whether first quotas fit
under C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from client.inputs.document_from_tables import POLICY, TabledDocument, are_tables, one_of_each, policy_of
from client.inputs.documents import Handed, read_unchecked
from client.inputs.sentences import Path, Problem, path_text
from client.inputs.spreadsheet import TableKind, TableRow, fields_of, read_table
from models.bringup.entry import BringupEntry, BringupFile, policy_fault, unfilled_text
from models.bringup.recipe import RecipeFile
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.texts import gpus_text

_VALUE = "value."
_MEASURED = ("scheduled_gpus", "idle_gpus", "pending_gpus")
"""Fields of a quota that its running and queued jobs determine: a new cluster has no jobs yet."""
_KINDS = (
    TableKind(
        "bringups",
        mark="recipe",
        names=("cluster", "recipe", "owner"),
        fields=fields_of(BringupEntry, "nodes", "gpus_per_node", "gpu_model", "owed_until"),
        settings=(_VALUE, POLICY),
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
        mark="gpus",
        names=("cluster",),
        fields={name: its for name, its in Quota.model_fields.items() if name not in _MEASURED},
        example={"cluster": "h100-new", "team": "research", "gpus": "256", "protected_blocks": "", "minimum_gpus": "0"},
    ),
)
BRINGUP_TEMPLATES = {kind.word: kind.template for kind in _KINDS}
"""For each kind of table a header and one example row, as CSV."""


def read_recipes(path: str) -> RecipeFile:
    """Read the recipes of a file. "-": standard input. Errors: BadFile with all that is wrong with it; BadInput."""
    return read_unchecked(path, "the field recipes").check(RecipeFile)


def read_entries(paths: Sequence[str], recipes: RecipeFile) -> tuple[BringupEntry, ...]:
    """Read the clusters to bring up, from one YAML file or from tables; each one's values fill its recipe.

    Errors: BadFile with all that is wrong with them; BadInput.
    """
    tabled = are_tables(paths, "files of entries", "bringups and quotas")
    handed = _join_tables(paths) if tabled else read_unchecked(paths[0], "the field bringups")
    entries = handed.check(BringupFile).bringups
    problems = [problem for number, entry in enumerate(entries) for problem in _against(entry, number, recipes)]
    if problems:
        raise handed.refusal(problems)
    return entries


def _against(entry: BringupEntry, number: int, recipes: RecipeFile) -> list[Problem]:
    place: Path = ("bringups", number)

    def problem(field: str, text: str) -> Problem:
        path = (*place, field)
        return Problem(path, f"{path_text(path)}: {text}", 0)

    recipe = recipes.recipe(entry.recipe)
    if recipe is None:
        names = ", ".join(recipe.name for recipe in recipes.recipes)
        return [problem("recipe", f"there is no recipe {entry.recipe!r}; the recipes are {names}")]
    problems = [
        problem("values", f"recipe {recipe.name}, {path_text(at)}: {text}") for at, text in unfilled_text(entry, recipe)
    ]
    if fault := policy_fault(entry, Policy()):
        problems.append(problem("policy", fault.removeprefix("policy: ")))
    largest = max(island.total_gpus for island in entry.planned_islands)
    problems += [
        problem(
            "islands" if entry.islands else "nodes",
            f"the largest island is ordered with {gpus_text(largest)}, but check {check.name} of recipe {recipe.name} "
            f"needs a block of {check.contiguous} in one island, so the check could never pass",
        )
        for check in recipe.checks
        if check.contiguous is not None and check.contiguous > largest
    ]
    return problems


def _join_tables(paths: Sequence[str]) -> Handed:
    tables = [read_table(path, _KINDS) for path in paths]
    document = _Entries("bringups")
    for table in one_of_each(tables, _KINDS, "backstop bringup template"):
        document.take(table, document.add_entry if table.kind.word == "bringups" else document.add_quota)
    return document.hand_over(paths)


class _Entries(TabledDocument):
    def add_entry(self, row: TableRow) -> None:
        entry: dict[str, Any] = {name: row.text(name) for name in row.kind.names}
        entry |= {name: value for name, value in row.fields().items() if value is not None}
        if row.cells.get("islands"):
            entry["islands"] = _islands(row)
        if values := dict(row.settings(_VALUE)):
            entry["values"] = values
        if policy := policy_of(row):
            entry["policy"] = policy
        self.add_cluster(row, entry["cluster"], entry)


def _islands(row: TableRow) -> list[dict[str, Any]]:
    """Parse `island1:22; island2:22` into islands, each with its nodes."""
    islands = []
    for part in filter(None, (part.strip() for part in re.split("[;,]", row.cells["islands"]))):
        name, _, nodes = part.rpartition(":")
        if not name or not re.fullmatch("[0-9]{1,9}", nodes):
            row.faults.append(
                f"{row.place}: islands must be names with node counts, such as `island1:22; island2:22`, not {part!r}"
            )
            continue
        islands.append({"name": name.strip(), "nodes": int(nodes)})
    return islands
