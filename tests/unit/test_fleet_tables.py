"""Fleets out of spreadsheets: what Excel does to a table, and the sentence for what is refused. Hand-computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client.inputs.fleet_tables import FLEET_TEMPLATES, read_fleet_tables
from models.errors import BadFile, BadInput

CLUSTERS = "cluster,gpu_model,island,total_gpus,healthy_gpus,policy.buffer\nh,H100,X,100,90,0.1\nh,,Y,50,50,\n"
QUOTAS = "cluster,team,gpus,islands,protected_blocks,minimum_gpus,parent\nh,a,40,X;Y,32;8,,\nh,b,10,,,5,\n"
TEAMS = "team,contacts\na,a@x.org log\n"
MEANT: dict[str, Any] = {
    "clusters": [
        {
            "name": "h",
            "gpu_model": "H100",
            "islands": [
                {"name": "X", "total_gpus": 100, "healthy_gpus": 90},
                {"name": "Y", "total_gpus": 50, "healthy_gpus": 50},
            ],
            "policy": {"buffer": 0.1},
            "quotas": [
                {"team": "a", "gpus": 40, "islands": ["X", "Y"], "protected_blocks": [32, 8], "parent": None},
                {"team": "b", "gpus": 10, "islands": None, "protected_blocks": [], "minimum_gpus": 5, "parent": None},
            ],
        }
    ],
    "teams": [{"name": "a", "contacts": ["a@x.org", "log"]}],
}


def read(folder: Path, **tables: str | bytes) -> Any:
    paths = []
    for name, text in tables.items():
        path = folder / f"{name}.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(str(path))
    return read_fleet_tables(paths)


def test_tables_are_told_apart_by_their_headers_whatever_they_are_called(tmp_path: Path) -> None:
    found = read(tmp_path, one=QUOTAS, two=TEAMS, three=CLUSTERS)
    assert found.fleet.model_dump(mode="json", exclude_unset=True) == MEANT
    assert found.partial
    assert found.places([("clusters", 0, "quotas", 1, "gpus"), ("clusters", 0, "islands", 1), ("teams", 0)]) == [
        f"{tmp_path}/one.csv, line 3",
        f"{tmp_path}/three.csv, line 3",
        f"{tmp_path}/two.csv, line 2",
    ]


def test_a_column_that_is_not_known_is_answered_with_each_column_that_is_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, one=CLUSTERS, two="cluster,team,gpus,colour\nh,a,4,red\n")
    assert str(refused.value) == (
        f"{tmp_path}/two.csv, line 1: column 'colour' is unknown; known columns are cluster, team, gpus, "
        "scheduled_gpus, idle_gpus, pending_gpus, protected_blocks, minimum_gpus, parent, islands, namespaces, classes"
    )


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_a_line_ends_where_csv_ends_it_and_nowhere_else(mark: str, tmp_path: Path) -> None:
    """Other standards' line ends are characters of a cell like any other: the row goes on."""
    quotas = f"cluster,team,gpus\nh,a,4{mark}0\nh,b,10\n"
    with pytest.raises(BadInput, match=r"quotas\.csv, line 2: gpus must be a whole number") as refused:
        read(tmp_path, clusters=CLUSTERS, quotas=quotas)
    assert "line 3" not in refused.value.message


EXCEL = {
    "a byte order mark and its line ends": "\ufeff" + CLUSTERS.replace("\n", "\r\n"),
    "semicolons": CLUSTERS.replace(",", ";"),
    "tabs": CLUSTERS.replace(",", "\t"),
    "sep=": "sep=;\r\n" + CLUSTERS.replace(",", ";").replace("\n", "\r\n"),
    "empty rows and columns at the end": CLUSTERS.replace("\n", ",,\n") + ",,,,,,,\n,,\n\n",
    "floats": CLUSTERS.replace(",100,90,", ",100.0,90.00,"),
    "quotes": CLUSTERS.replace("H100", '"H100"').replace("X", '" X "'),
}


@pytest.mark.parametrize("what", EXCEL)
def test_what_a_spreadsheet_does_to_a_table_is_taken_as_meant(what: str, tmp_path: Path) -> None:
    found = read(tmp_path, clusters=EXCEL[what]).fleet.model_dump(mode="json", exclude_unset=True)
    assert found == {"clusters": [{k: v for k, v in MEANT["clusters"][0].items() if k != "quotas"}]}


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "thousands": (CLUSTERS.replace(",100,", ',"1,024",'), r"line 2: total_gpus must be .* not '1,024' \(write 1024, "),
    "a fraction": (CLUSTERS.replace(",90,", ",90.5,"), "line 2: healthy_gpus must be a whole number, .* not '90.5'"),
    "a leading zero": (CLUSTERS.replace(",90,", ",090,"), "line 2: healthy_gpus must be a whole number, .* not '090'"),
    "a formula": (CLUSTERS.replace(",90,", ",=B2-1,"), "line 2: healthy_gpus is a formula, not a value: '=B2-1'"),
    "a failed one": (
        CLUSTERS.replace(",90,", ",#REF!,"),
        "line 2: healthy_gpus is the result of a formula that failed",
    ),
    "an empty count": (CLUSTERS.replace(",90,", ",,"), "line 2: healthy_gpus is missing"),
    "another column": (CLUSTERS.replace("gpu_model", "modell"), "line 1: column 'modell' is unknown"),
    "another setting": (
        CLUSTERS.replace("buffer", "bufer"),
        r"line 1: column 'policy.bufer' is not a setting of a policy",
    ),
    "a setting with a field twice": (
        CLUSTERS.replace(",0.1\n", ',"{""ramp"": [0.05], ""ramp"": [0.4]}"\n'),
        r"line 2: policy\.buffer: ramp is given twice in one object",
    ),
    "a column twice": (CLUSTERS.replace("gpu_model", "island"), "line 1: column island is given twice"),
    "no header": ("h,1,2\n", "its header must have the columns of clusters or quotas or teams"),
    "too many cells": (CLUSTERS.replace("0.1\n", "0.1,7\n"), "line 2: 7 values for 6 columns"),
    "rows that disagree": (CLUSTERS.replace("h,,", "h,B200,"), "line 3: gpu_model is B200, but H100 in an earlier row"),
    "more healthy than there are": (CLUSTERS.replace(",50,50,", ",50,51,"), "line 3: .*healthy_gpus is 51, above"),
    "UTF-16": (CLUSTERS.encode("utf-16"), "line 1: not UTF-8 text"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_mean_two_things_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    text, sentence = REFUSED[what]
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path, clusters=text)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    rows = "".join(f"x{n},t,many\n" for n in range(30))
    with pytest.raises(BadFile) as refused:
        read(tmp_path, clusters=CLUSTERS, quotas=f"cluster,team,gpus\n{rows}")
    sentences = refused.value.sentences
    assert (len(sentences), sentences[-1]) == (21, "and 10 more problems")
    assert sentences[7] == f"{tmp_path}/quotas.csv, line 9: cluster 'x7' is not in the table of clusters"


def test_one_bad_cell_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as refused:
        read(tmp_path, clusters="cluster,total_gpus,healthy_gpus,gpus_per_node\nh,100,90,many\n")
    (said,) = refused.value.sentences
    assert said == f"{tmp_path}/clusters.csv, line 2: gpus_per_node must be a whole number, zero or more, not 'many'"


def test_quotas_alone_and_two_tables_of_one_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a table of clusters is missing"):
        read(tmp_path, quotas=QUOTAS)
    with pytest.raises(BadInput, match="are both tables of quotas: join them into one"):
        read(tmp_path, clusters=CLUSTERS, quotas=QUOTAS, more=QUOTAS)


def test_the_templates_make_up_a_fleet(tmp_path: Path) -> None:
    found = read(tmp_path, **FLEET_TEMPLATES).fleet
    (cluster,) = found.clusters
    assert (cluster.name, cluster.islands[0].healthy_gpus, cluster.quotas[0].gpus) == ("h100-worked", 319, 345)
    assert found.teams[0].contacts == ("research-leads@example.org",)
