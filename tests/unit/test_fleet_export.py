"""An exported fleet reads back unchanged, whatever names there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from client.inputs.documents import read_fleet
from client.inputs.fleet_yaml_writer import EXAMPLE, fleet_yaml
from client.inputs.plain_yaml import load
from models.cluster.fleet_diff import ClusterNow
from models.cluster.fleet_export import cluster_document, cut_floors
from models.cluster.fleet_file import Fleet
from models.cluster.readings import Present
from tests.tried import examples

ODD = [
    "\x85",
    "a\u2028b",
    "010",
    "1e3",
    "0x10",
    "no",
    "~",
    "null",
    "1_000",
    "=",
    "<<",
    "- a",
    "a: b",
    "#x",
    "'",
    '"',
    "é",
    "\u2028",
    " x ",
    "2026-01-31",
    ".inf",
    "",
]
texts = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
values = st.recursive(
    texts | st.integers(-(10**17), 10**17) | st.booleans() | st.none() | st.floats(0, 1e6, allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdefg_", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.fuzzed
@settings(max_examples=examples(200), deadline=None)
@given(document=st.dictionaries(st.text("abcdefg_", min_size=1), values, max_size=4))
def test_a_document_reads_back_as_it_was_written(document: dict[str, Any]) -> None:
    assert load(fleet_yaml(document), "export") == (document or {})


@pytest.mark.parametrize("text", ODD)
def test_a_text_stays_text(text: str) -> None:
    assert load(fleet_yaml({"a": text, "b": [text], "c": [{"d": text}]}), "x") == {
        "a": text,
        "b": [text],
        "c": [{"d": text}],
    }


def test_an_export_is_made_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(EXAMPLE)
    assert read_fleet(path).clusters[0].quotas[0].gpus == 345
    document = yaml.safe_load(EXAMPLE)
    assert fleet_yaml(document) == (
        "policy: {buffer: 0.15}\n"
        "clusters:\n"
        "- name: h100-worked\n"
        "  gpu_model: H100\n"
        "  islands:\n"
        "  - {name: main, total_gpus: 361, healthy_gpus: 319}\n"
        "  quotas:\n"
        "  - {team: research, gpus: 345, scheduled_gpus: 310}\n"
        "teams:\n"
        "- {name: research, contacts: [research-leads@example.org]}\n"
    )


def test_a_value_below_its_floors_is_written_so_that_an_import_takes_it() -> None:
    low = Present(team="a", gpus=5, minimum_gpus=10, protected_blocks=(4, 4))
    now = ClusterNow(name="c", islands={"x": 8}, quotas=(low,))
    assert cluster_document(now, {})["quotas"] == [{"team": "a", "gpus": 5, "protected_blocks": [4], "minimum_gpus": 5}]
    assert cut_floors(now) == ["a"]


def test_a_floor_above_what_the_quota_is_part_of_is_written_so_that_an_import_takes_it() -> None:
    quotas = (
        Present(team="org", gpus=200),
        Present(team="sub", gpus=300, parent="org"),
        Present(team="a", gpus=300, parent="sub", minimum_gpus=300, protected_blocks=(128, 128)),
        Present(team="b", gpus=100, parent="org", minimum_gpus=100),
        Present(team="x", gpus=9, parent="y", minimum_gpus=4),
        Present(team="y", gpus=3, parent="x"),  # a circle that another tool left
    )
    now = ClusterNow(name="c", islands={"x": 400}, quotas=quotas)
    assert cut_floors(now) == ["a", "x"]
    document = cluster_document(now, {})
    a = next(q for q in document["quotas"] if q["team"] == "a")
    assert a == {"team": "a", "gpus": 300, "parent": "sub", "minimum_gpus": 200, "protected_blocks": [128]}
    document["quotas"] = document["quotas"][:4]
    Fleet.model_validate({"clusters": [document]})
