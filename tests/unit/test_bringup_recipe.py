"""Recipes and entries: each fault is one sentence with its place, and nothing of a bad file is taken."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from client.inputs.sentences import first_problem
from models.bringup.entry import BringupEntry, BringupFile, unfilled_text
from models.bringup.messages import BringupStart
from models.bringup.recipe import ClusterRecipe, RecipeFile
from models.bringup.reducers import open_bringup
from models.bringup.request_builders import check_order, run_order
from models.bringup.runs import RunOrder
from tests.unit.bringup_world import ENTRY, NOON, RECIPE, entry, recipe

STEP = {"name": "x", "with": "command", "run": ["/bin/true"]}


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The data with one thing changed; `...` as the value: left out."""
    data = copy.deepcopy(data)
    at: Any = data
    *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
    for step in steps:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return data


def fault(model: type[BaseModel], data: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(data)
    return first_problem(refused.value, data).sentence


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (
            "provision.0.withs",
            "command",
            "provision[0].withs is not a known field (its value is 'command'",
        ),
        ("provision.0.with", "jenkins", "provision[0].with must be 'command', 'buildkite' or 'http', not 'jenkins'"),
        (
            "provision.0.with",
            ...,
            "provision[0]: step bootstrap needs a runner (with: command, buildkite or http) or a",
        ),
        ("provision.0.pipeline", ..., "provision[0]: pipeline is missing: a step with buildkite needs it"),
        ("provision.0.run", ["/a"], "provision[0].run is only for a step with command, but this step has buildkite"),
        ("provision.0.undo", {"run": ["/a"]}, "provision[0].undo: pipeline is missing"),
        ("provision.0.undo", {"with": "command", "run": ["a"]}, "provision[0].undo.run[0] must be the absolute path"),
        ("provision.0.after", ["services"], "provision[0].after has a cycle: bootstrap -> services -> nodes -> boot"),
        ("provision.2.after", ["nodes"], "provision[2].after has a cycle: nodes -> nodes"),
        ("provision.2.after", ["notes"], "provision[2].after names 'notes', which is not a step of this recipe"),
        (
            "provision.2.after",
            ["check-in", "check-in"],
            "provision[2].after has the same step twice: check-in, check-in",
        ),
        ("provision.2.run", ["scale"], "provision[2].run[0] must be the absolute path of a program, without placeh"),
        ("provision.2.run", ["/opt/{cluster}"], "provision[2].run[0] must be the absolute path of a program, without"),
        ("provision.2.run", ["/opt/../bin/sh"], "provision[2].run[0] must be the absolute path of a program"),
        ("provision.2.name", "bootstrap", "provision[2].name: step 'bootstrap' is given twice"),
        (
            "provision.2.name",
            "-x",
            "provision[2].name must be up to 64 lower-case letters, digits, dots, dashes and unders",
        ),
        (
            "provision.3.retries",
            2,
            "provision[3].retries is 2, but repeatable is not set: set it to true, or remove retries",
        ),
        (
            "provision.1.with",
            "command",
            "provision[1]: step check-in has a touch, which a person does, and a runner: remove one of them",
        ),
        ("provision.1.undo", {"run": ["/a"]}, "provision[1].undo: with is missing: step check-in has no runner, so"),
        ("provision", [], "provision must have at least 1 entry"),
        ("validate.0.healthy", 1.5, "validate[0].healthy must be above 0 and at most 1, not 1.5"),
        (
            "validate.0.http",
            "https://x",
            "validate[0]: check health needs exactly one of command, http, promql, healthy, con",
        ),
        (
            "validate.0.healthy",
            ...,
            "validate[0]: check health needs exactly one of command, http, promql, healthy, contiguous, but",
        ),
        ("validate.0", {"name": "q", "promql": "up"}, "validate[0]: check q needs at_least or at_most"),
        ("validate.0.at_least", 1, "validate[0]: check health has at_least or at_most, which are only for promql"),
        ("validate.1.name", "health", "validate[1].name: check 'health' is given twice"),
        ("validate.1.name", "capacity", "validate[1].name: 'capacity' is reserved by Backstop: choose another name"),
        ("validate.1.command", ["plan"], "validate[1].command[0] must be the absolute path of a program"),
        ("validate.1.every", "0s", "validate[1].every must be above"),
        ("soak", "2 hours", "soak must be a duration such as 30s, 10m, 24h or 14d, not '2 hours'"),
        ("accept_at_least", 0, "accept_at_least must be above 0 and at most 1, not 0"),
        ("supply.needs", {}, "supply.needs must have at least 1 entry"),
        ("supply.needs", {"gpus": 1.5}, "supply.needs.gpus must be a whole number, not 1.5"),
        ("supply.with", "buildkite", "supply.with must be command or http, not buildkite"),
        ("supply.run", ["quota"], "supply.run[0] must be the absolute path of a program"),
        ("supply.url", "https://x", "supply.url cannot be given together with run"),
    ],
)
def test_a_bad_recipe_is_one_sentence_with_its_place(path: str, value: Any, sentence: str) -> None:
    told = fault(ClusterRecipe, changed(RECIPE, path, value))
    assert told.startswith(sentence)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("cluster", "-rf", "cluster must be up to 100 letters, digits, dots, dashes and underscores"),
        ("cluster", "a/b", "cluster must be up to 100 letters, digits, dots, dashes and underscores"),
        (
            "values.subscription",
            "--force",
            "values.subscription must be up to 200 letters, digits or characters of _./:+,=- and must not begin",
        ),
        (
            "values.subscription",
            "a; rm",
            "values.subscription must be up to 200 letters, digits or characters of _./:+,=- and must not begin",
        ),
        (
            "values.subscription",
            "$(id)",
            "values.subscription must be up to 200 letters, digits or characters of _./:+,=- and must not begin",
        ),
        (
            "values",
            {"cluster": "other"},
            "values.cluster is reserved for the cluster's name: choose an",
        ),
        ("nodes", 0, "nodes must be at least 1, not 0"),
        ("islands", [{"name": "x", "nodes": 7}], "nodes is 8, but the islands have 7"),
        ("islands", [{"name": "x", "nodes": 4}] * 2, "islands[1].name: island 'x' is given twice"),
        ("quotas", [{"team": "a", "gpus": 8, "scheduled_gpus": 0}], "quotas[0].scheduled_gpus must be left out: not"),
        ("quotas", [{"team": "a", "gpus": 8, "islands": ["z"]}], "quotas[0].islands names 'z', which this cluster"),
        ("quotas", [{"team": "a", "gpus": 8}] * 2, "quotas[1].team: team 'a' is given twice"),
        ("owed_until", "2026-06-01T00:00:00Z", "owed_until is given without quotas"),
    ],
)
def test_a_bad_entry_is_one_sentence_with_its_place(path: str, value: Any, sentence: str) -> None:
    assert fault(BringupEntry, changed(ENTRY, path, value)).startswith(sentence)


def test_a_name_given_twice_in_a_file_is_refused() -> None:
    assert fault(RecipeFile, {"recipes": [RECIPE] * 2}) == "recipes[1].name: recipe 'bare-metal' is given twice"
    assert fault(BringupFile, {"bringups": [ENTRY] * 2}) == "bringups[1].cluster: cluster 'h100-new' is given twice"


def test_a_placeholder_that_the_entry_does_not_fill_is_named_with_its_place() -> None:
    asks = recipe(
        provision=[STEP | {"run": ["/bin/x", "{region}", "{nodes}"]}],
        validate=[{"name": "c", "http": "https://{host}/{id}"}],
    )
    told = [(".".join(map(str, place)), text) for place, text in unfilled_text(entry(), asks)]
    assert [place for place, _ in told] == ["provision.0.run.1", "validate.0.http", "validate.0.http", "supply.run.1"][
        :3
    ]
    assert told[0][1] == "{region} has no value: add region to the values of the entry of h100-new"


@pytest.mark.parametrize(
    ("url", "value", "sentence"),
    [
        ("https://h/clusters/{v}/apply", "../../admin/delete", "remove `..` and `.` from the path"),
        ("https://h/clusters/{v}/apply", "..", "remove `..` and `.` from the path"),
        ("https://h/clusters/.{v}", ".", "remove `..` and `.` from the path"),
        ("https://{v}.example/ready", "admin.other/x", "a value may fill only one label of the host name"),
        ("https://{v}.example/ready", "other:80", "a value may fill only one label of the host name"),
        ("https://h:{v}/ready", "80/x", "a value may fill only one label of the host name"),
        ("{v}/ready", "https://h", "a value may fill only one label of the host name"),
        ("https://{v}.example/ready", "a.b_c-d", ""),
        ("https://h:{v}/ready", "8443", ""),
        ("https://h/x?at={v}", "../..", ""),
        ("https://h/{v}", "a/b..c/...", ""),
    ],
)
def test_a_value_that_would_lead_a_url_elsewhere_is_refused_at_entry(url: str, value: str, sentence: str) -> None:
    entered = entry(values={"subscription": "abc-1", "v": value})
    step = {"name": "x", "with": "http", "url": "https://h/runs"}
    undone = step | {"undo": {"url": url}}
    for made_by in (
        recipe(provision=[step | {"url": url}]),
        recipe(provision=[step | {"status_url": f"{url}&of={{id}}&key={{key}}" if "?" in url else url}]),
        recipe(provision=[undone]),
        recipe(validate=[{"name": "c", "http": url}]),
        recipe(capacity={"with": "http", "url": url}),
    ):
        faults = [text for _, text in unfilled_text(entered, made_by)]
        assert [sentence in text for text in faults] == ([True] if sentence else [])


def order(step: dict[str, Any], run: str = "x") -> RunOrder:
    bringup = open_bringup(BringupStart(entry=entry(), recipe=recipe(provision=[step]), actor="ann"), 1, NOON)
    return run_order(bringup.with_run("x", attempt=1), run)


def test_values_are_filled_as_parts_of_arguments_and_nothing_else_in_braces_is_touched() -> None:
    asked = order(STEP | {"run": ["/bin/x", "--sub={subscription}", "{cluster}-{nodes}", "{a b} {} {Cluster}"]})
    assert asked.run == ("/bin/x", "--sub=abc-1", "h100-new-8", "{a b} {} {Cluster}")
    later = order({"name": "x", "with": "http", "url": "https://h/{cluster}", "status_url": "https://h/{id}"})
    assert (later.url, later.status_url) == ("https://h/h100-new", "https://h/{id}")
    by_key = order(
        {"name": "x", "with": "http", "url": "https://h/", "status_url": "https://h/{key}?cluster={cluster}"}
    )
    assert by_key.status_url == "https://h/h100-new%2F1%2Fx?cluster=h100-new"
    query = {"name": "q", "promql": 'up{cluster="{cluster}"}', "at_least": 1}
    bringup = open_bringup(BringupStart(entry=entry(), recipe=recipe(validate=[query]), actor="ann"), 1, NOON)
    assert check_order(bringup, "q").query == 'up{cluster="h100-new"}'
    assert check_order(bringup, "capacity").gpus == 64


@pytest.mark.parametrize(("share", "gpus"), [(1, 64), (0.95, 64), (0.875, 56), (0.5, 32), (0.01, 8)])
def test_whole_nodes_are_accepted(share: float, gpus: int) -> None:
    bringup = open_bringup(BringupStart(entry=entry(), recipe=recipe(accept_at_least=share), actor="ann"), 1, NOON)
    assert check_order(bringup, "capacity").gpus == gpus


def test_a_recipes_hash_is_of_what_it_says() -> None:
    assert (
        recipe().hash
        == recipe(stale_after="30m").hash
        == ClusterRecipe.model_validate_json(recipe().model_dump_json()).hash
    )
    assert recipe().hash != recipe(soak="3h").hash
