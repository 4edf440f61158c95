"""The cost of a buffer: the sums are those of the plans, and every form of the report says the same."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import RenderableType

from cli.commands.schemas import makers
from cli.main import run
from cli.output import _plain
from cli.pages.haircut import page
from client.inputs.documents import read_fleet
from models.cluster.island import Island
from models.cluster.jobs import Job
from models.cluster.policy import Policy, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot, snapshot_of
from models.cluster.team_work import team_work
from models.planning.fleet_haircut import USUAL, Part, haircut
from models.planning.plan import make_plan
from views.haircut import as_csv, fleet_parts, percent, sentence

pytestmark = pytest.mark.slow  # takes seconds: `make quick` leaves it to `make test`

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"


def example() -> list[tuple[Snapshot, Policy]]:
    fleet = read_fleet(str(EXAMPLE))
    return [(snapshot_of(cluster), fleet.policy_of(cluster)) for cluster in fleet.clusters]


def one(name: str, total: int, healthy: int, *quotas: int) -> tuple[Snapshot, Policy]:
    held = tuple(Quota(team=f"team-{n}", gpus=gpus, scheduled_gpus=gpus // 2) for n, gpus in enumerate(quotas))
    island = Island(name="main", total_gpus=total, healthy_gpus=healthy)
    return Snapshot(cluster=name, islands=(island,), quotas=held), Policy()


def test_the_worked_case_comes_out_exactly() -> None:
    (case,) = [(s, p) for s, p in example() if s.cluster == "h100-worked"]
    made = haircut([case])
    found = [(p.ceiling_gpus, p.cut_gpus, p.phantom_gpus, p.to_flex_gpus) for p in made.fleet]
    assert found == [(311, 34, 26, 8), (311, 34, 26, 8), (306, 39, 26, 13), (288, 57, 26, 31)]
    assert made.fleet[2].unbacked_gpus == 26
    assert (made.fleet[2].above_gpus, made.fleet[2].clusters_above) == (39, 1)


fleets = st.lists(
    st.integers(0, 300).flatmap(
        lambda total: st.tuples(st.just(total), st.integers(0, total), st.lists(st.integers(0, 120), max_size=4))
    ),
    max_size=4,
)


@given(fleets, st.lists(st.fractions(0, Fraction(1, 2)), min_size=1, max_size=3, unique=True))
def test_every_grouping_adds_up_to_the_fleet(
    clusters: list[tuple[int, int, list[int]]], buffers: list[Fraction]
) -> None:
    fleet = [one(f"c-{n}", total, healthy, *quotas) for n, (total, healthy, quotas) in enumerate(clusters)]
    made = haircut(fleet, sorted(buffers))
    for n, buffer in enumerate(sorted(buffers)):
        plans = [make_plan(s, p.model_copy(update={"buffer": buffer})) for s, p in fleet]
        whole = made.fleet[n]
        assert whole.cut_gpus == sum(p.cut_gpus for p in plans) == whole.phantom_gpus + whole.to_flex_gpus
        assert whole.unbacked_gpus == sum(max(0, p.assigned_gpus - p.healthy_gpus) for p in plans)
        for field in Part.model_fields:
            assert sum(getattr(parts[n], field) for parts in made.clusters.values()) == getattr(whole, field)
            assert sum(getattr(parts[n], field) for parts in made.waves.values()) == getattr(whole, field)
        for field in ("cut_gpus", "phantom_gpus", "to_flex_gpus"):
            assert sum(getattr(parts[n], field) for parts in made.teams.values()) == getattr(whole, field)
        for wave, parts in made.waves.items():
            own = ["after all" if p.short_by_gpus or not p.backed else p.wave.value for p in plans]
            assert parts[n].clusters == own.count(wave), "as `plan` orders them: what no tier limit mends comes last"


def test_a_cluster_that_no_plan_mends_is_in_no_wave() -> None:
    """Nothing of it can be cut: by its cut alone it would be in the first wave, that of unallocated quota."""
    quota = Quota(team="t", gpus=16, minimum_gpus=16)
    stuck = Snapshot(cluster="a", islands=(Island(name="a", total_gpus=16, healthy_gpus=4),), quotas=(quota,))
    made = haircut([(stuck, Policy()), one("fine", 16, 16, 4)], [Fraction(3, 20)])
    assert {wave: parts[0].clusters for wave, parts in made.waves.items() if parts[0].clusters} == {
        "unallocated": 1,
        "after all": 1,
    }
    assert "after all" not in haircut([one("fine", 16, 16, 4)], [Fraction(3, 20)]).waves


def test_a_fleet_of_nothing_has_a_report() -> None:
    made = haircut([])
    assert made.fleet == (Part(),) * len(USUAL)
    assert set(made.waves) == set(Tier)
    assert "0 of 0 clusters" in page(made, 0)


def test_the_sentence_says_of_which_cut_the_phantom_are_a_part() -> None:
    """By hand: of 90, C = min(floor(.85 * 100), 100 - 8) = 85 stay, without a buffer all; of 345, 306 and 311."""
    (worked,) = [(s, p) for s, p in example() if s.cluster == "h100-worked"]
    both = haircut([worked, one("b", 100, 100, 90)], [Fraction(3, 20)])
    assert sentence(both, 0) == (
        "At a buffer of 15%: 44 of 435 promised GPUs are cut: 26 have no healthy GPU behind them now, and 18 move to "
        "flex and stay usable. "
        "Even without a buffer, 34 would be cut. 2 of 2 clusters are above their ceiling, by 44 GPUs."
    )
    large = haircut([one("d", 9000, 4500, 9000)], [Fraction(3, 20)])
    assert "Even without a buffer, 4,508 would be cut." in sentence(large, 0)
    single = haircut([one("c", 100, 93, 86)], [Fraction(3, 20)])
    assert sentence(single, 0).startswith(
        "At a buffer of 15%: 1 of 86 promised GPUs is cut: 0 have no healthy GPU behind them now, and 1 moves to "
        "flex and stays usable. "
    )
    assert sentence(haircut([]), 0).startswith("At a buffer of 5%: 0 of 0 promised GPUs are cut. 0 of 0")


def test_the_largest_cuts_come_first_and_equal_ones_by_name() -> None:
    made = haircut([one("b", 100, 100, 90), one("a", 100, 100, 90), one("c", 100, 100, 100)], [Fraction(3, 20)])
    assert list(made.clusters) == ["c", "a", "b"]


def test_progress_is_told_after_each_cluster() -> None:
    told: list[tuple[int, int]] = []
    haircut(example(), [Fraction(1, 10)], lambda done, of: told.append((done, of)))
    assert told == [(n, 6) for n in range(1, 7)]


def test_the_csv_has_every_figure() -> None:
    made = haircut(example())
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert len(rows) == 4 * (1 + len(Tier) + len(made.clusters) + len(made.teams))
    (row,) = [r for r in rows if (r["what"], r["name"], r["buffer"]) == ("cluster", "h100-worked", "0.15")]
    assert (row["cut_gpus"], row["phantom_gpus"], row["to_flex_gpus"]) == ("39", "26", "13")
    (team,) = [r for r in rows if (r["what"], r["name"], r["buffer"]) == ("team", "research", "0.15")]
    assert (team["quota_gpus"], team["ceiling_gpus"]) == ("345", "")


def test_the_page_needs_nothing_beside_it_and_says_what_the_tables_say() -> None:
    made = haircut(example())
    text = page(made, 2)
    assert sentence(made, 2) in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 3
    words = ["".join(ElementTree.fromstring(p).itertext()) for p in pictures]
    assert "152" in words[0]
    assert "h100-worked" in words[1]
    assert "2 clusters, 79 GPUs cut" in words[2]
    links = re.findall(r"""(?:src|href)=["']([^"'#]+)""", text)
    assert links == []
    assert "<script" not in text


def test_names_that_others_wrote_neither_break_the_page_nor_speak_in_it() -> None:
    text = page(haircut([one("<script>alert(1)</script>$x$", 100, 90, 99)]), 2)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;$x$" in text


@pytest.mark.parametrize(
    ("share", "text"), [("0.15", "15%"), ("0.125", "12.5%"), ("1/3", "1/3"), ("0", "0%"), ("1/200", "0.5%")]
)
def test_shares_are_shown_as_percent(share: str, text: str) -> None:
    assert percent(Fraction(share)) == text


def test_json_keeps_to_its_schema_and_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jsonschema import validate

    html, table = tmp_path / "h.html", tmp_path / "h.csv"
    assert run(["haircut", "--file", str(EXAMPLE), "--json", "--html", str(html), "--csv", str(table)]) == 0
    answer = json.loads(capsys.readouterr().out)
    validate(answer, makers()["haircut"]())
    assert answer["clusters"]["h100-worked"][2]["cut_gpus"] == 39
    assert html.read_text().startswith("<!doctype html>")
    assert table.read_text().startswith("what,name,buffer,clusters,")
    assert run(["haircut", "--file", str(EXAMPLE), "--html", str(html), "--csv", str(table)]) == 0
    assert capsys.readouterr().out.startswith(f"Written: {html} and {table}\n")


def test_csv_on_standard_output_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["haircut", "--file", str(EXAMPLE), "h100-worked", "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {r["name"] for r in rows if r["what"] == "cluster"} == {"h100-worked"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--buffers", "0.1,lots"], "--buffers must be shares such as 0.05,0.10, not 'lots'"),
        (["--buffers", "1.5"], "--buffers must be at least 0 and less than 1, not 1.5"),
        (["--buffers", "nan"], "--buffers must be shares such as 0.05,0.10, not 'nan'"),
        (["--buffers", ",".join(f"0.{n}" for n in range(10, 20))], "--buffers takes at most 8 shares, not 10"),
        (["--at", "0.3"], "--at must be one of --buffers (0.05, 0.1, 0.15, 0.2), not 0.3"),
        (["--at", "x"], "--at must be shares such as 0.05,0.10, not 'x'"),
        (
            ["--policy", "buffer=0.2"],
            "--policy buffer is given, but the report compares the buffers of --buffers: leave --policy buffer out",
        ),
        (["--html", "/nowhere/h.html"], "--html /nowhere/h.html: cannot be written: No such file or directory"),
        (["--json", "--csv", "-"], "--json and --csv - both write to standard output: give one of them"),
        (["--csv", "-", "--html", "-"], "--csv - and --html - both write to standard output: give one of them"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["haircut", "--file", str(EXAMPLE), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"backstop: {said}\n"


STARTED = datetime(2026, 1, 31, tzinfo=UTC)


def running(team: str, gpus: int, job_class: str) -> Job:
    return Job(job=f"{team}-{job_class}", team=team, gpus=gpus, job_class=job_class, started=STARTED)


def at_work(
    name: str, total: int, healthy: int, used: dict[str, tuple[int, int]], *jobs: Job
) -> tuple[Snapshot, Policy]:
    """`used`: quota and scheduled GPUs of each team; of `jobs` engines yield before training."""
    quotas = tuple(Quota(team=t, gpus=gpus, scheduled_gpus=held, idle_gpus=0) for t, (gpus, held) in used.items())
    work = team_work(jobs, dict.fromkeys(used, ("training", "engines")), {t: held for t, (_, held) in used.items()})
    island = Island(name="main", total_gpus=total, healthy_gpus=healthy)
    return Snapshot(cluster=name, islands=(island,), quotas=quotas, work=work), Policy()


WORKING = [
    at_work(
        *("h100", 361, 319, {"research": (345, 310)}),
        *(running("research", 40, "engines"), running("research", 270, "training")),
    ),
    at_work("a100", 100, 100, {"evals": (60, 60), "vision": (40, 40)}, running("evals", 60, "engines")),
]
RESEARCH = (
    "{} GPUs in the cut of research in h100 are in use: 1 job of class engines holds 40 of the 310 GPUs that "
    "could yield"
)
EVALS = (
    "{} GPUs in the cut of evals in a100 are in use: 1 job of class engines holds 60 of the 60 GPUs that could yield."
)


def test_of_what_is_cut_in_use_it_is_said_whose_work_stands_on_it_at_each_buffer() -> None:
    """By hand: of 345, 306 and 252 may be promised, and 35 are idle; of 100, 85 and 70, divided as 60 to 40."""
    made = haircut(WORKING, [Fraction(15, 100), Fraction(30, 100)])
    assert [[(cut.cluster, cut.team, cut.gpus, cut.text) for cut in cuts] for cuts in made.works] == [
        [("a100", "evals", 9, EVALS.format(9)), ("h100", "research", 4, f"{RESEARCH.format(4)}.")],
        [
            ("h100", "research", 58, f"{RESEARCH.format(58)}; beyond them class training yields."),
            ("a100", "evals", 18, EVALS.format(18)),
        ],
    ], "of vision nobody says whose jobs run"
    for text in ("\n".join(plainly(fleet_parts(made, 1))), page(made, 1)):
        assert EVALS.format(18) in text
        assert EVALS.format(9) not in text
    assert "Whose work" not in page(haircut(example()), 2)


def test_of_many_teams_some_are_named_and_it_is_said_how_many_more() -> None:
    many = [at_work(f"c{n}", 100, 100, {"a": (100, 100)}, running("a", 100, "engines")) for n in range(23)]
    made = haircut(many, [Fraction(15, 100)])
    told = plainly(fleet_parts(made, 0))
    assert sum("in the cut of" in text for text in told) == 5
    assert "and 18 more; --json has them." in told
    assert page(made, 0).count("in the cut of") == 20
    assert "And 3 more: backstop haircut --json." in page(made, 0)


@pytest.mark.parametrize(
    ("by", "which", "teams"),
    [
        ("team", "name=evals", ["evals"]),
        ("cluster", "name=h100", ["research"]),
        ("wave", "name=busy", ["evals", "research"]),
        ("wave", "name=idle", []),
    ],
)
def test_whose_work_it_is_is_filtered_as_the_rows_are(
    by: str, which: str, teams: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.haircut.plan_from", lambda *_: (WORKING, {}))  # what a ledger has
    assert run(["haircut", "--by", by, "--filter", which, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [cut["team"] for cut in answer["works"][2]] == teams
    assert run(["haircut", "--by", by, "--filter", which]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [team for team in ("evals", "research") if f"in the cut of {team}" in shown] == teams


def plainly(parts: Sequence[RenderableType]) -> list[str]:
    return [" ".join(text.split()) for part in parts for text in _plain(part)]
