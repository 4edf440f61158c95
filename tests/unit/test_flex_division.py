"""Dividing flex: cases with known answers from published sources, and cases of our own by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from cli.commands.schemas import makers
from cli.main import run
from models.flex.division import FlexDemand, FlexMode, division

ROOT = Path(__file__).parents[2]
MUCH = 10**6

KESHAV = "S. Keshav, An Engineering Approach to Computer Networking, 1997, pp. 215-217 (max-min fair share)"
STOICA = "I. Stoica, CS262a lecture 24, 2016, on Ghodsi et al., Dominant Resource Fairness, NSDI 2011: one resource"
RUN_AI = "Run:ai documentation, quick start: Over Quota, Fairness and Preemption"
RUN_AI_RULE = "Run:ai: what is over quota is shared in proportion to quota (issue 6's scenario)"
WEBSTER = "Wikipedia, Sainte-Lague method, examples"
ELECTOWIKI = "electowiki, Sainte-Lague method, 35-seat example"
BALINSKI = "M. Balinski, H. P. Young, Fair Representation, 1982: five states, 26 seats, Webster's column"
ALABAMA = "Wikipedia, Apportionment paradox: states of 6, 6, 2; largest remainder takes a seat from C, Webster none"
THOMSON = "W. Thomson, Math. Social Sciences 45 (2003): constrained equal awards, on the Talmud's claims 100, 200, 300"
LOTTERY = "C. Waldspurger, W. Weihl, Lottery Scheduling, OSDI 1994: tickets 3:2:1"
STRIDE = "C. Waldspurger, W. Weihl, Stride Scheduling, MIT/LCS/TM-528, 1995: tickets 3:2:1 over six quanta"
MESOS = "Apache Mesos documentation, Weights: a role of weight 2 gets twice the share of one of weight 1"
SPARK = "Apache Spark documentation, Job Scheduling: a pool of weight 2 gets twice what other active pools get"


class Case(NamedTuple):
    source: str
    capacity: int
    mode: FlexMode
    teams: Sequence[Mapping[str, Any]]
    shares: Sequence[int]


def wanting(*demands: int) -> list[dict[str, Any]]:
    return [{"demand_gpus": d} for d in demands]


def weighing(*weights: float, demands: Sequence[int] = ()) -> list[dict[str, Any]]:
    return [{"weight": w, "demand_gpus": d} for w, d in zip(weights, demands or [MUCH] * len(weights), strict=True)]


def quotas(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    """(quota, demand) of each."""
    return [{"quota_gpus": q, "demand_gpus": d} for q, d in pairs]


EQUAL, QUOTA, WEIGHT = FlexMode.EQUAL, FlexMode.QUOTA, FlexMode.WEIGHT
CASES = (
    Case(f"{KESHAV}, in tenths", 100, EQUAL, wanting(20, 26, 40, 50), (20, 26, 27, 27)),
    Case(f"{KESHAV}, weighted", 16, WEIGHT, weighing(2.5, 4, 0.5, 1, demands=(4, 2, 10, 4)), (4, 2, 6, 4)),
    Case(STOICA, 99, EQUAL, wanting(99, 99, 99), (33, 33, 33)),
    Case(STOICA, 100, EQUAL, wanting(20, 100, 100), (20, 40, 40)),
    Case(STOICA, 99, WEIGHT, weighing(1, 2), (33, 66)),
    Case(f"{RUN_AI}: b runs one", 4, QUOTA, quotas((2, 3), (2, 1)), (3, 1)),
    Case(f"{RUN_AI}: b submits b2", 4, QUOTA, quotas((2, 3), (2, 2)), (2, 2)),
    Case(RUN_AI_RULE, 16, QUOTA, quotas((4, 16), (2, 16), (2, 16), (8, 0)), (8, 4, 4, 0)),
    Case(f"{RUN_AI_RULE}; d is back", 16, QUOTA, quotas((4, 16), (2, 16), (2, 16), (8, 8)), (4, 2, 2, 8)),
    Case(WEBSTER, 7, WEIGHT, weighing(53_000, 24_000, 23_000), (3, 2, 2)),
    Case(WEBSTER, 8, WEIGHT, weighing(100_000, 80_000, 30_000, 20_000), (3, 3, 1, 1)),
    Case(ELECTOWIKI, 35, WEIGHT, weighing(503, 304, 193), (17, 11, 7)),
    Case(BALINSKI, 26, WEIGHT, weighing(9061, 7179, 5259, 3319, 1182), (9, 8, 5, 3, 1)),
    Case(ALABAMA, 10, WEIGHT, weighing(6, 6, 2), (5, 4, 1)),
    Case(ALABAMA, 11, WEIGHT, weighing(6, 6, 2), (5, 5, 1)),
    Case(THOMSON, 150, EQUAL, wanting(100, 200, 300), (50, 50, 50)),
    Case(THOMSON, 300, EQUAL, wanting(100, 200, 300), (100, 100, 100)),
    Case(THOMSON, 400, EQUAL, wanting(100, 200, 300), (100, 150, 150)),
    Case(THOMSON, 500, EQUAL, wanting(100, 200, 300), (100, 200, 200)),
    Case(THOMSON, 600, EQUAL, wanting(100, 200, 300), (100, 200, 300)),
    Case(LOTTERY, 600, WEIGHT, weighing(3, 2, 1), (300, 200, 100)),
    Case(STRIDE, 6, WEIGHT, weighing(3, 2, 1), (3, 2, 1)),
    Case(MESOS, 30, WEIGHT, weighing(1, 2), (10, 20)),
    Case(SPARK, 40, WEIGHT, weighing(2, 1, 1), (20, 10, 10)),
)


def shares(capacity: int, mode: FlexMode, teams: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, int]:
    """Teams without a name are called a, b, c and so on."""
    named = [{"team": chr(ord("a") + n), **team} for n, team in enumerate(teams)]
    asked = FlexDemand.model_validate({"capacity_gpus": capacity, "mode": mode, "teams": named, **more})
    found = division(asked)
    assert sum(p.gpus for p in found.portions) + found.unused_gpus == capacity
    return {p.team: p.gpus for p in found.portions}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source[:40]}, {case.capacity}")
def test_a_published_case_comes_out_as_it_was_published(case: Case) -> None:
    assert tuple(shares(case.capacity, case.mode, case.teams).values()) == tuple(case.shares)


def test_each_source_is_named_in_the_docs() -> None:
    text = (ROOT / "docs" / "flex.md").read_text()
    for case in CASES:
        assert case.source.split(",")[0].split(":")[0] in text, case.source


# --- by hand -----------------------------------------------------------------------------------------------


def test_quota_comes_before_anybodys_flex() -> None:
    teams = quotas((6, 10), (2, 10), (0, 10))
    assert shares(8, EQUAL, teams) == {"a": 6, "b": 2, "c": 0}
    assert shares(11, EQUAL, teams) == {"a": 7, "b": 3, "c": 1}
    assert shares(12, QUOTA, teams) == {"a": 9, "b": 3, "c": 0}


def test_where_there_is_too_little_for_all_quotas_it_is_divided_by_quota() -> None:
    assert shares(6, EQUAL, quotas((8, 8), (4, 4))) == {"a": 4, "b": 2}


def test_in_mode_quota_who_has_none_comes_after_the_others_and_equally() -> None:
    assert shares(20, QUOTA, quotas((4, 6), (0, 50), (0, 50))) == {"a": 6, "b": 7, "c": 7}


def test_a_limit_holds_whatever_is_free() -> None:
    assert shares(20, EQUAL, [{"demand_gpus": 20, "limit_gpus": 5}, {"demand_gpus": 6}]) == {"a": 5, "b": 6}
    assert shares(20, EQUAL, [{"demand_gpus": 20, "quota_gpus": 9, "limit_gpus": 5}]) == {"a": 5}


TREE = (
    {"team": "x", "quota_gpus": 8},
    {"team": "x1", "parent": "x", "quota_gpus": 4, "demand_gpus": 9},
    {"team": "x2", "parent": "x", "quota_gpus": 4, "demand_gpus": 1},
    {"team": "y", "quota_gpus": 8, "demand_gpus": 20},
)


def test_siblings_have_each_others_unused_quota_before_anybody_has_flex() -> None:
    assert shares(16, QUOTA, TREE) == {"x1": 7, "x2": 1, "y": 8}
    assert shares(15, QUOTA, TREE) == {"x1": 6, "x2": 1, "y": 8}, "and a guest is junior to every quota"
    assert shares(8, QUOTA, TREE) == {"x1": 3, "x2": 1, "y": 4}, "a shortage of quota is shared by quotas"


def test_namespaces_are_equal_whatever_number_of_teams_they_have() -> None:
    teams = [{"team": f"x{n}", "parent": "x", "demand_gpus": 50} for n in range(4)]
    found = shares(40, EQUAL, [*teams, {"team": "y", "demand_gpus": 50}])
    assert found == {"x0": 5, "x1": 5, "x2": 5, "x3": 5, "y": 20}


def test_a_namespaces_limit_holds_for_all_of_it() -> None:
    teams = [{"team": f"x{n}", "parent": "x", "demand_gpus": 50} for n in range(2)]
    assert shares(40, EQUAL, [{"team": "x", "limit_gpus": 10}, *teams]) == {"x0": 5, "x1": 5}


def test_priority_counts_inside_a_namespace_alone() -> None:
    first, second = {"priority": 5, "demand_gpus": 9}, {"priority": 1, "demand_gpus": 9}
    assert shares(10, EQUAL, [first, second]) == {"a": 5, "b": 5}
    assert shares(10, EQUAL, [{**first, "parent": "x"}, {**second, "parent": "x"}]) == {"a": 9, "b": 1}


def test_priority_takes_nothing_that_a_quota_promises() -> None:
    teams = [
        {"parent": "x", "priority": 9, "demand_gpus": 10},
        {"parent": "x", "quota_gpus": 4, "demand_gpus": 4},
    ]
    assert shares(10, EQUAL, teams) == {"a": 6, "b": 4}


def test_who_used_much_flex_lately_gets_less_of_it_now_and_forgetting_takes_time() -> None:
    teams = wanting(100, 100)
    fresh = shares(60, EQUAL, teams, usage=[{"team": "a", "gpu_hours": 900, "hours_ago": 0}])
    assert fresh["a"] < 20
    both = [{"team": "a", "gpu_hours": 900, "hours_ago": 400}, {"team": "b", "gpu_hours": 300}]
    later = shares(60, EQUAL, teams, usage=both, half_life_hours=100)
    assert later["b"] < 30 < later["a"], "900 of 400 hours ago are 56 now"
    assert shares(60, EQUAL, teams, usage=[{"team": "a", "gpu_hours": 1}, {"team": "b", "gpu_hours": 1}]) == {
        "a": 30,
        "b": 30,
    }


def test_use_takes_nothing_that_a_quota_promises() -> None:
    found = shares(20, EQUAL, quotas((10, 10), (0, 50)), usage=[{"team": "a", "gpu_hours": 1e9}])
    assert found == {"a": 10, "b": 10}


# --- the command ---------------------------------------------------------------------------------------------


def written(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "f.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_the_command_answers_as_schedulers_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "flex.yaml")
    assert run(["flex", "divide", "--file", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, makers()["flex-shares"]())
    assert found == {
        "shares": [{"team": t, "gpus": g} for t, g in (("a", 8), ("b", 4), ("c", 4), ("d", 0))],
        "unused_gpus": 0,
    }
    assert run(["flex", "divide", "--file", file, "--mode", "equal"]) == 0
    shown = capsys.readouterr().out
    assert "16 of 16 GPUs are given out, the part beyond quotas equally" in shown


def test_nulls_are_what_was_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = {"team": "a", "parent": None, "quota_gpus": None, "demand_gpus": 3}
    team |= {"weight": None, "limit_gpus": None}
    document = {"capacity_gpus": 5, "teams": [team]}
    jsonschema.validate(document, makers()["flex-demand"]())
    team["priority"] = None
    assert run(["flex", "divide", "--file", written(tmp_path, document), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shares": [{"team": "a", "gpus": 3}], "unused_gpus": 2}


A, B = {"team": "a", "demand_gpus": 4}, {"team": "b", "demand_gpus": 4}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be a mapping with the fields capacity_gpus and teams"),
        ({"capacity_gpus": 4, "teams": []}, "teams"),
        ({"capacity_gpus": -1, "teams": [A]}, "capacity_gpus must be"),
        ({"capacity_gpus": 4, "teams": [{**A, "demand_gpus": 1.5}]}, "teams[0].demand_gpus must be a whole number"),
        ({"capacity_gpus": 4, "teams": [{**A, "weight": -1}]}, "teams[0].weight must be at least 0, not -1"),
        ({"capacity_gpus": 4, "teams": [{**A, "wait": 1}]}, "teams[0].wait is not a known field"),
        ({"capacity_gpus": 4, "teams": [A, A]}, "team 'a' is given twice"),
        ({"capacity_gpus": 4, "teams": [{**A, "parent": "a"}]}, "the parents of 'a' go round in a circle: a -> a"),
        ({"capacity_gpus": 4, "teams": [{**A, "parent": "b"}, {**B, "parent": "a"}]}, "circle: a -> b -> a"),
        (
            {"capacity_gpus": 4, "teams": [A, {**B, "parent": "a", "demand_gpus": 3}]},
            "demand_gpus of the namespace 'a'",
        ),
        ({"capacity_gpus": 4, "mode": "fair", "teams": [A]}, "mode must be"),
        ({"capacity_gpus": 4, "teams": [A], "usage": [{"team": "z", "gpu_hours": 1}]}, "usage names the team 'z'"),
    ],
)
def test_a_bad_document_is_one_sentence(
    document: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["flex", "divide", "--file", written(tmp_path, document), "--json"]) == 2
    caught = capsys.readouterr()
    assert (said in caught.err, caught.err.count("\n"), caught.out) == (True, 1, ""), caught.err


def test_a_bad_mode_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flex", "divide", "--file", str(ROOT / "examples" / "flex.yaml"), "--mode", "fair"]) == 2
    assert "--mode must be one of equal, quota, weight, not 'fair'" in capsys.readouterr().err
