"""Quotas of each scheduler's objects, by golden files and the published schemas of those objects."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from activities.quota_files.dialects import changed_files, places_in
from models.base import in_one_sentence
from models.cluster.sources import GitDialect, GitSource

GOLDEN = Path(__file__).parents[1] / "git" / "golden"
CRDS = Path(__file__).parents[3] / "shared" / "data" / "crds"

CASES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "kueue": (
        {"vision": 200, "speech/island1": 96, "speech/island2": 65},
        {"vision": 72, "speech/island1": 100, "speech/island2": 8},
    ),
    "kai": ({"research": 361, "vision": 200}, {"research": 324, "vision": 163}),
    "volcano": ({"research": 361, "vision": 200}, {"research": 324, "vision": 64}),
    "yunikorn": (
        {"root.research": 361, "root.research.vision": 200},
        {"root.research": 324, "root.research.vision": 163},
    ),
}


def source(dialect: str, **more: object) -> GitSource:
    return GitSource.model_validate({"repository": "/srv/q.git", "path": "queues", "dialect": dialect, **more})


def golden(dialect: str, when: str) -> dict[str, str]:
    return {"queues/queues.yaml": (GOLDEN / f"{dialect}.{when}.yaml").read_bytes().decode()}


def gpus(texts: dict[str, str], dialect: str, **more: object) -> dict[str, int]:
    return {team: place.gpus for team, place in places_in(texts, source(dialect, **more)).items()}


def test_every_scheduler_has_a_golden_file() -> None:
    assert {*CASES, "yaml"} == set(GitDialect)


@pytest.mark.parametrize("dialect", CASES)
def test_quotas_are_read_and_written_as_the_golden_files_say(dialect: str) -> None:
    before, after = CASES[dialect]
    texts = golden(dialect, "before")
    assert gpus(texts, dialect) == before
    written = changed_files(texts, places_in(texts, source(dialect)), after)
    assert written == golden(dialect, "after")
    assert gpus(written, dialect) == after
    back = changed_files(written, places_in(written, source(dialect)), before)
    assert back == texts


@pytest.mark.skipif(not CRDS.exists(), reason="the published schemas are not beside this checkout")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dialect", ["kueue", "kai", "volcano"])
def test_the_written_objects_are_what_the_published_schemas_take(dialect: str, when: str) -> None:
    (text,) = golden(dialect, when).values()
    schemas = published_schemas()
    objects = list(yaml.safe_load_all(text))
    assert objects
    for one in objects:
        schema = schemas[one["apiVersion"], one["kind"]]
        assert [error.message for error in Draft202012Validator(schema).iter_errors(one)] == []


@functools.cache
def published_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the schemas by group, version and kind. PyYAML takes a third of a second for all."""
    return dict(_schemas())


def _schemas() -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for path in sorted(CRDS.glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            yield (f"{spec['group']}/{version['name']}", spec["names"]["kind"]), version["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize(
    ("dialect", "changes", "sentence"),
    [
        ("kueue", {"vision": 63}, "line 22: the quota of vision cannot go to 63, below its lendingLimit of 64"),
        ("kai", {"vision": 241}, "line 20: the quota of vision cannot go to 241, above its limit of 240"),
        ("volcano", {"vision": 63}, "line 18: the quota of vision cannot go to 63, below its guarantee of 64"),
        ("volcano", {"vision": 241}, "above its capability of 240: raise that first"),
        ("yunikorn", {"root.research.vision": 241}, "above its max of 240: raise that first"),
    ],
)
def test_a_quota_past_what_stands_beside_it_is_refused(dialect: str, changes: dict[str, int], sentence: str) -> None:
    texts = golden(dialect, "before")
    with pytest.raises(ValueError, match=r"^queues/queues\.yaml, ") as error:
        changed_files(texts, places_in(texts, source(dialect)), changes)
    assert sentence in str(error.value)


def test_files_without_a_queue_are_not_read() -> None:
    texts = golden("kueue", "before") | {
        "queues/chart.yaml": "{{- if .Values.x }}\na: [\n",
        "queues/x.yaml": "kind: Pod\n",
    }
    assert gpus(texts, "kueue") == CASES["kueue"][0]


def test_another_resource_is_another_quota() -> None:
    text = golden("kueue", "before")["queues/queues.yaml"].replace("nvidia.com/gpu", "amd.com/gpu")
    assert gpus({"q.yaml": text}, "kueue") == {}
    assert gpus({"q.yaml": text}, "kueue", resource="amd.com/gpu") == CASES["kueue"][0]


def test_two_queues_of_one_name_are_refused() -> None:
    (text,) = golden("kai", "before").values()
    with pytest.raises(ValueError, match="the quota of research is given twice"):
        places_in({"a.yaml": text, "b.yaml": text}, source("kai"))


def test_only_plain_yaml_takes_a_pointer() -> None:
    with pytest.raises(ValidationError) as refusal:
        source("kueue", pointer="/teams/{team}/gpus")
    assert "is kueue, which needs no pointer" in in_one_sentence(refusal.value)
