"""Recipes and entries that people hand in: what is wrong is told with file, line and field, all of it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.app import app
from client.inputs.bringups import BRINGUP_TEMPLATES, read_entries, read_recipes
from models.bringup.messages import BringupAnswer, BringupStart
from models.errors import BadFile, BadInput
from tests.unit.bringup_world import ENTRY, RECIPE
from tests.unit.cli_fakes import FakeBackstop, answering

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "cli" / "templates" / "recipe.yaml"
STEP = {"name": "one", "with": "command", "run": ["/opt/site/one", "{cluster}"]}
HEAD = "cluster,recipe,owner,nodes,value.subscription"


def written(folder: Path, name: str, content: Any) -> str:
    file = folder / name
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return str(file)


def refused(folder: Path, **recipe: Any) -> list[str]:
    """The sentences for a file with this recipe, without the file's name."""
    file = written(folder, "r.yaml", {"recipes": [{"name": "slow", "provision": [STEP], **recipe}]})
    with pytest.raises(BadFile) as found:
        read_recipes(file)
    return [sentence.removeprefix(f"{file}, ") for sentence in found.value.sentences]


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"provision": [STEP | {"after": ["one"]}]}, "line 9: recipes[0].provision[0].after has a cycle: one -> one"),
        (
            {"provision": [STEP | {"after": ["two"]}, STEP | {"name": "two", "after": ["one"]}]},
            "recipes[0].provision[0].after has a cycle: one -> two -> one",
        ),
        ({"provision": [STEP | {"after": ["nodse"]}]}, "names 'nodse', which is not a step of this recipe"),
        ({"provision": [STEP, STEP]}, "recipes[0].provision[1].name: step 'one' is given twice"),
        (
            {"provision": [STEP | {"shell": "rm -rf x"}]},
            "recipes[0].provision[0].shell is not a known field",
        ),
        ({"provision": [STEP | {"run": ["site/one"]}]}, "must be the absolute path of a program, without placeholders"),
        ({"provision": [STEP | {"run": ["/opt/../bin/sh"]}]}, "must be the absolute path of a program"),
        ({"provision": [STEP | {"run": ["/opt/{cluster}"]}]}, "must be the absolute path of a program"),
        ({"provision": [STEP | {"with": "bash"}]}, "must be 'command', 'buildkite' or 'http', not 'bash'"),
        ({"provision": [{"name": "one"}]}, "step one needs a runner (with: command, buildkite or http) or a touch"),
        (
            {"provision": [STEP | {"touch": "do it"}]},
            "step one has a touch, which a person does, and a runner: remove one of them",
        ),
        (
            {"provision": [STEP | {"retries": 2}]},
            "retries is 2, but repeatable is not set: set it to true, or remove retries",
        ),
        ({"provision": []}, "recipes[0].provision must have at least 1 entry"),
        ({"accept_at_least": 1.5}, "recipes[0].accept_at_least must be above 0 and at most 1, not 1.5"),
        ({"validate": [{"name": "all", "healthy": 0.9, "http": "https://x"}]}, "has http and healthy"),
        (
            {"validate": [{"name": "none"}]},
            "check none needs exactly one of command, http, promql, healthy, contiguous",
        ),
        ({"soak": "soon"}, "recipes[0].soak must be a duration such as 30s, 10m, 24h or 14d, not 'soon'"),
    ],
)
def test_a_bad_recipe_is_one_sentence_with_its_place(tmp_path: Path, recipe: dict[str, Any], sentence: str) -> None:
    (said,) = refused(tmp_path, **recipe)
    assert said.startswith("line ")
    assert sentence in said


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, soak="soon", accept_at_least=2, provision=[STEP | {"limit": "0s"}])
    assert len(said) == 3


def test_what_the_template_says_fits_the_template_of_recipes() -> None:
    recipes = read_recipes(str(TEMPLATE))
    assert [r.name for r in recipes.recipes] == ["slurm-on-bare-metal"]
    assert {word: text.count("\n") for word, text in BRINGUP_TEMPLATES.items()} == {"bringups": 2, "quotas": 2}


def test_a_spreadsheet_and_a_file_say_the_same(tmp_path: Path) -> None:
    recipes = read_recipes(str(TEMPLATE))
    bringups = written(tmp_path, "b.csv", BRINGUP_TEMPLATES["bringups"].replace(",", "\t"))
    quotas = written(tmp_path, "q.csv", BRINGUP_TEMPLATES["quotas"])
    document = {
        "bringups": [
            {
                "cluster": "h100-new",
                "recipe": "slurm-on-bare-metal",
                "owner": "capacity",
                "nodes": 44,
                "gpus_per_node": 8,
                "gpu_model": "H100",
                "islands": [{"name": "island1", "nodes": 22}, {"name": "island2", "nodes": 22}],
                "values": {"subscription": "sub-17"},
                "quotas": [{"team": "research", "gpus": 256}],
            }
        ]
    }
    file = written(tmp_path, "b.yaml", json.dumps(document))
    assert read_entries([bringups, quotas], recipes) == read_entries([file], recipes)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("new,slow,capacity,44,s", "line 2: bringups[0].recipe: there is no recipe 'slow'; the recipes are slurm-on"),
        ("new,slurm-on-bare-metal,capacity,many,s", "line 2: nodes must be a whole number, zero or more, not 'many'"),
        ("new,slurm-on-bare-metal,capacity,0,s", "line 2: bringups[0].nodes must be at least 1, not 0"),
        (
            "-rf,slurm-on-bare-metal,capacity,4,s",
            "line 2: bringups[0].cluster must be up to 100 letters, digits, dots, dashes",
        ),
        (
            "new,slurm-on-bare-metal,capacity,4,--all",
            "line 2: bringups[0].values.subscription must be up to 200 letters, digits or",
        ),
        (
            "new,slurm-on-bare-metal,capacity,4,$(id)",
            "line 2: bringups[0].values.subscription must be up to 200 letters, digits or",
        ),
        (
            "new,slurm-on-bare-metal,capacity,3,s",
            "bringups[0].nodes: the largest island is ordered with 24 GPUs, but check block of recipe slurm-on",
        ),
        ("new,slurm-on-bare-metal,capacity,4,", "{subscription} has no value: add subscription to the values of"),
        ("new,slurm-on-bare-metal,,4,s", "line 2: owner is missing"),
        ("new,slurm-on-bare-metal,=A1,4,s", "line 2: owner is a formula, not a value: '=A1'"),
    ],
)
def test_a_bad_row_is_named_and_the_others_faults_beside_it(tmp_path: Path, row: str, sentence: str) -> None:
    recipes = read_recipes(str(TEMPLATE))
    file = written(tmp_path, "b.csv", f"{HEAD}\n{row}\nlast,slurm-on-bare-metal,capacity,4,s\n")
    with pytest.raises(BadFile) as found:
        read_entries([file], recipes)
    (said,) = found.value.sentences
    assert said.startswith(f"{file}, ")
    assert sentence in said


def test_a_hundred_rows_with_three_faults_name_three(tmp_path: Path) -> None:
    rows = [f"c{n},slurm-on-bare-metal,capacity,4,s" for n in range(100)]
    rows[7], rows[41] = "c7,fast,capacity,4,s", "c41,slow,capacity,4,s"
    rows[99] = "c7,slurm-on-bare-metal,capacity,4,s"
    file = written(tmp_path, "b.csv", "\n".join([HEAD, *rows]))
    with pytest.raises(BadFile) as found:
        read_entries([file], read_recipes(str(TEMPLATE)))
    assert "line 101: bringups[99].cluster: cluster 'c7' is given twice" in found.value.sentences[0]


def test_kinds_are_not_mixed_and_one_table_of_each_is_given(tmp_path: Path) -> None:
    recipes = read_recipes(str(TEMPLATE))
    table = written(tmp_path, "b.csv", BRINGUP_TEMPLATES["bringups"])
    for files, sentence in (
        ([table, "b.yaml"], "is a table and b.yaml is not: give only tables"),
        ([table, table], "are both tables of bringups: join them into one"),
        ([written(tmp_path, "q.csv", BRINGUP_TEMPLATES["quotas"])], "a table of bringups is missing"),
        (["a.yaml", "b.yaml"], "2 files of entries are given: give one"),
    ):
        with pytest.raises(BadInput, match=sentence):
            read_entries(files, recipes)


def test_a_check_says_what_is_done_in_which_order_and_what_the_worker_must_allow(tmp_path: Path) -> None:
    entries = written(tmp_path, "b.csv", BRINGUP_TEMPLATES["bringups"])
    run = CliRunner().invoke(app, ["bringup", "recipe", "check", str(TEMPLATE), "--entry", entries])
    assert run.exit_code == 0, run.output
    steps = [line.split()[0] for line in run.output.splitlines() if line.split()[2:3] in (["buildkite"], ["command"])]
    assert steps == ["bootstrap", "nodes"]
    assert "4 steps, 1 touch besides the entry" in run.output
    assert (
        "A cancel would not undo 3 steps (check-in, nodes, services); it would only list what they made." in run.output
    )
    assert "1 cluster fits its recipe." in run.output
    document = json.loads(
        CliRunner().invoke(app, ["bringup", "recipe", "check", str(TEMPLATE), "--entry", entries, "--json"]).output
    )
    assert document["schema"] == "backstop.recipes/1"
    assert [e["cluster"] for e in document["entries"]] == ["h100-new"]


@pytest.mark.parametrize(
    ("gpus", "policy", "said"),
    [
        (54, {}, ""),
        (60, {}, "quotas sum to 60, 6 GPUs above the 54 that h100-new may promise of the 64 ordered: lower them."),
        (56, {"buffer": 0.05}, ""),
        (57, {"buffer": 0.05}, "quotas sum to 57, 1 GPU above the 56 that h100-new may promise of the 64 ordered: "),
    ],
)
def test_first_quotas_above_what_may_be_promised_are_told_where_nothing_is_asked(
    tmp_path: Path, gpus: int, policy: dict[str, Any], said: str
) -> None:
    """T = 64 on 8 nodes: C = min(floor(0.85 * 64), 64 - 8) = 54; with a buffer of 5 % min(60, 56) = 56."""
    entry = {**ENTRY, "policy": policy, "quotas": [{"team": "a", "gpus": gpus}]}
    files = [written(tmp_path, "e.yaml", {"bringups": [entry]}), "--recipes"]
    files.append(written(tmp_path, "r.yaml", {"recipes": [{**RECIPE, "name": entry["recipe"]}]}))
    run = CliRunner().invoke(app, ["bringup", "add", *files, "--dry-run"])
    assert run.exit_code == 0, run.output
    told = " ".join(run.output.split())
    assert said in told
    assert ("the fleet's policy applies" in told) == bool(said)


class Door(FakeBackstop):
    async def bring_up(self, start: BringupStart) -> BringupAnswer:
        return BringupAnswer(begun=True, cluster=start.entry.cluster)


SOURCES: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"prometheus": {}}, True),
    ({"kubernetes": {}}, True),
    ({"slurm": {}}, True),
]


@pytest.mark.parametrize(("source", "answered"), SOURCES, ids=str)
def test_a_check_of_health_that_nobody_answers_is_warned_of(
    tmp_path: Path, source: dict[str, Any], answered: bool
) -> None:
    files = {"e": {"bringups": [{**ENTRY, **source}]}, "r": {"recipes": [RECIPE]}}
    entries, recipes = (written(tmp_path, f"{name}.yaml", content) for name, content in files.items())
    warning = (
        "h100-new: check health would stay unknown, because the entry has no source of health. Add slurm, prometheus "
        "or kubernetes, or use a check with command, http or promql."
    )
    add = ["bringup", "add", entries, "--recipes", recipes, "--reason", "r", "--actor", "ann"]
    for words in (["bringup", "recipe", "check", recipes, "--entry", entries], [*add, "--dry-run"], add):
        with answering(Door()):
            run = CliRunner().invoke(app, words)
        assert run.exit_code == 0, run.output
        assert (warning in " ".join(run.output.split())) is not answered


def test_a_file_with_faults_ends_with_two(tmp_path: Path) -> None:
    file = written(tmp_path, "r.yaml", {"recipes": [{"name": "slow"}]})
    run = CliRunner().invoke(app, ["bringup", "recipe", "check", file])
    assert isinstance(run.exception, BadInput)
    assert "recipes[0].provision is missing" in str(run.exception)


def test_the_example_on_one_machine_fits_its_recipe() -> None:
    folder = ROOT / "examples" / "local-slurm"
    (entry,) = read_entries([str(folder / "entry.yaml")], read_recipes(str(folder / "recipes.yaml")))
    assert entry.gpus == 32
