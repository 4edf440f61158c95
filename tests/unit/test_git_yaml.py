"""Numbers are read from YAML as people write it, and nothing but their digits changes."""

from __future__ import annotations

import pytest
import yaml

from activities.quota_files.dialects import changed_files, places_in
from models.cluster.sources import GitSource

PATH = "quotas.yaml"


def source(**more: object) -> GitSource:
    return GitSource.model_validate({"repository": "/srv/q.git", "path": PATH, "pointer": "/teams/{team}/gpus", **more})


def gpus(text: str, **more: object) -> dict[str, int]:
    return {team: place.gpus for team, place in places_in({PATH: text}, source(**more)).items()}


def after(text: str, changes: dict[str, int], **more: object) -> str:
    places = places_in({PATH: text}, source(**more))
    return changed_files({PATH: text}, places, changes)[PATH]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("teams:\n  a:\n    gpus: 24   # why\n", "teams:\n  a:\n    gpus: 8   # why\n"),
        ("teams: {a: {gpus: 24}, b: {gpus: 24}}", "teams: {a: {gpus: 8}, b: {gpus: 24}}"),
        ("teams:\r\n  ä: {}\r\n  a:\r\n    gpus: '24'\r\n", "teams:\r\n  ä: {}\r\n  a:\r\n    gpus: '8'\r\n"),
        ('\ufeff# ü\nteams: {a: {gpus: "24"}}\n', '\ufeff# ü\nteams: {a: {gpus: "8"}}\n'),
        ("# 🚀 24\nteams:\n  a: {gpus: !!int 24}\n", "# 🚀 24\nteams:\n  a: {gpus: !!int 8}\n"),
        ("other: 1\n---\nteams: {a: {gpus: 24}}\n...\n", "other: 1\n---\nteams: {a: {gpus: 8}}\n...\n"),
        ('{"teams": {"a": {"gpus": 24}}}', '{"teams": {"a": {"gpus": 8}}}'),
        ("teams:\n  a:\n    gpus:\n\n      24\n", "teams:\n  a:\n    gpus:\n\n      8\n"),
        ("teams: {a: {gpus: 24}} # no newline", "teams: {a: {gpus: 8}} # no newline"),
    ],
)
def test_only_the_digits_of_the_value_change(text: str, wanted: str) -> None:
    assert after(text, {"a": 8}) == wanted
    documents = [each for each in yaml.safe_load_all(wanted) if "teams" in each]
    assert int(documents[0]["teams"]["a"]["gpus"]) == 8


def test_several_values_of_other_lengths_change_at_once() -> None:
    text = "teams:\n  a: {gpus: 9}\n  b: {gpus: 1000}\n  c: {gpus: 16}\n"
    changed = after(text, {"a": 10_000, "b": 0, "c": 17})
    assert changed == "teams:\n  a: {gpus: 10000}\n  b: {gpus: 0}\n  c: {gpus: 17}\n"


def test_a_pointer_of_its_own_goes_first_and_names_its_value_alone() -> None:
    text = "org: {total: 40}\nteams: {a: {gpus: 24}, 'b/c': {gpus: 16}, d: {owner: x}}\nlist: [{gpus: 5}, {gpus: 7}]\n"
    assert gpus(text) == {"a": 24, "b/c": 16}
    pointers = {"org": "/org/total", "seven": "/list/1/gpus", "vision": "/teams/a/gpus", "bc": "/teams/b~1c/gpus"}
    assert gpus(text, pointers=pointers) == {"org": 40, "seven": 7, "vision": 24, "bc": 16}
    assert gpus(text, pointers={"none": "/teams/x/gpus"}, pointer=None) == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("teams: {a: {gpus: 24.5}}", "line 1: a quota must be a whole number of GPUs, not '24.5'"),
        ("teams: {a: {gpus: -8}}", "not '-8'"),
        ("teams: {a: {gpus: 010}}", "GPUs of at most 10000000, without leading zeros, not '010'"),
        ("teams: {a: {gpus: 1_000}}", "not '1_000'"),
        ("teams: {a: {gpus: }}", "not ''"),
        ("teams: {a: {gpus: [24]}}", "not 'a list or mapping'"),
        ("teams: {a: {gpus: 9999999999}}", "not '9999999999'"),
        ("teams:\n  a:\n    gpus: 24\n    gpus: 25\n", "line 4: gpus is given twice"),
        ("base: &b {gpus: 24}\nteams:\n  a:\n    <<: *b\n", "line 4: a merge key (<<) may set gpus here"),
        ("base: &b {a: {gpus: 24}}\nteams:\n  <<: *b\n", "line 3: a merge key (<<) may add teams here"),
        ("teams: {a: {gpus: 24}}\n---\nteams: {a: {gpus: 8}}\n", "line 3: the quota of a is given twice"),
        ("teams: {a: {gpus: \x07}}", "it is not valid YAML"),
        ("teams: {a: {gpus: 10000001}}", "not '10000001'"),
        ('teams: {"": {gpus: 1}}', "line 1: '' cannot be a team's name"),
        ('teams: {"a\\nb": {gpus: 1}}', "cannot be a team's name"),
        (f"teams: {{? {'x' * 201} : {{gpus: 1}}}}", "cannot be a team's name"),
    ],
)
def test_what_cannot_be_read_is_named_with_file_and_line(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^quotas\.yaml, ") as error:
        places_in({PATH: text}, source())
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "teams:\n  a: {gpus: &n 24}\n  b: {gpus: *n}\n",
        "teams:\n  a: &t {gpus: 24}\n  b: *t\n",
        "x: &n 24\nteams:\n  a: {gpus: *n}\n",
    ],
)
def test_a_value_that_stands_elsewhere_too_is_read_and_never_written(text: str) -> None:
    assert gpus(text)["a"] == 24
    with pytest.raises(ValueError, match="the quota of a is an anchor or alias"):
        after(text, {"a": 8})


def test_what_is_no_name_or_leads_to_itself_has_no_quota() -> None:
    assert gpus("teams:\n  ? [a, b]\n  : {gpus: 8}\n  1: {gpus: 4}\n  c: &c {d: *c}\n") == {"1": 4}


def test_an_anchor_that_nobody_uses_is_written() -> None:
    assert after("teams: {a: {gpus: &n 24}}", {"a": 8}) == "teams: {a: {gpus: &n 8}}"
