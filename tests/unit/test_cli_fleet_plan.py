"""A fleet's plan is kept in a file, and approved from it: what is another by then is shown first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from models.cluster.policy import Tier
from models.fleet.messages import FleetLaunch, FleetPlan, Prospect
from models.fleet.order import plan_hash, take_prospects
from models.planning.plan import Envelope
from tests.property.test_fleet_machine import prospect
from tests.unit.cli_fakes import FakeBackstop, answering
from tests.unit.test_cli_docs import validator
from tests.unit.test_cli_fleet_rollout import fleet, status_at


def planned(*prospects: Prospect) -> FleetPlan:
    taken = take_prospects(FleetLaunch(fleet="f", owner="tpm"), prospects)
    return FleetPlan(fleet="f", hash=plan_hash(taken), clusters=taken)


BEFORE = planned(prospect(0, cut=10), prospect(1, cut=20), prospect(2))
NOW = planned(prospect(0, cut=10), prospect(1, cut=50).model_copy(update={"plan_hash": "anew"}), prospect(3, cut=7))


def envelope(of: Prospect, **cuts: int) -> Envelope:
    return Envelope(plan_hash=of.plan_hash, largest_cut=cuts, deepest_tier=Tier.BUSY)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"a": 20}, {"a": 50}, "a 20 -> 50"),
        ({"a": 20, "b": 0, "c": 5}, {"a": 20, "b": 6, "c": 0, "d": 0}, "2 teams, the most b 0 -> 6"),
        ({"a": 9, "b": 11}, {"b": 0}, "2 teams, the most b 11 -> 0"),
        ({"a": 20}, {"a": 20, "b": 0}, "as before"),
        ({"a": 20}, None, "-"),  # the ledger has kept another plan
    ],
)
def test_teams_whose_cuts_are_others_now_are_named_by_cluster(
    before: dict[str, int], now: dict[str, int] | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from models.fleet.state import FleetStage

    path = tmp_path / "plan.json"
    waiting = status_at(fleet()).model_copy(update={"stage": FleetStage.PLANNED})
    first = {p.cluster: envelope(p, **before) for p in BEFORE.clusters}
    with answering(FakeBackstop(fleet=waiting, awaits=BEFORE, envelopes=first)):
        assert run(["fleet", "plan", "--out", str(path)]) == 0
    second = first if now is None else first | {p.cluster: envelope(p, **now) for p in NOW.clusters[1:]}
    capsys.readouterr()
    with answering(FakeBackstop(awaits=NOW, envelopes=second)) as door:
        assert run(["fleet", "approve", str(path)]) == 3
    ((asked,),) = [words[-1:] for words in door.asked if words[0] == "fleet_envelopes"]
    assert asked == ("c0000", "c0001"), "of those in both alone"
    (row,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("c0001")]
    assert re.split(r"  +", row)[4] == said


@pytest.fixture
def kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The plan of before, as the command keeps it while it awaits approval."""
    from models.fleet.state import FleetStage

    path = tmp_path / "plan.json"
    waiting = status_at(fleet()).model_copy(update={"stage": FleetStage.PLANNED})
    with answering(FakeBackstop(fleet=waiting, awaits=BEFORE)):
        assert run(["fleet", "plan", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"The plan is in {path}. After the launch, approve it: backstop fleet approve {path}" in said
    validator("fleet-plan-file").validate(json.loads(path.read_text()))
    return path


def approved(door: FakeBackstop) -> list[str]:
    return [asked[2].plan_hash for asked in door.asked if asked[0] == "fleet_command"]


def test_the_plan_of_the_file_is_approved_where_it_is_the_one_of_now(kept: Path) -> None:
    with answering(FakeBackstop(awaits=BEFORE)) as door:
        assert run(["fleet", "approve", str(kept), "--actor", "tpm"]) == 0
    assert approved(door) == [BEFORE.hash]


def test_a_figure_of_a_team_that_is_not_the_plans_is_refused_by_its_team(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan's hash names each cluster's plan, and not what stands beside it in the file, which people read."""
    from models.fleet.state import FleetStage

    path = tmp_path / "plan.json"
    waiting = status_at(fleet()).model_copy(update={"stage": FleetStage.PLANNED})
    envelopes = {p.cluster: envelope(p, a=p.cut_gpus - 1, b=1) for p in BEFORE.clusters}
    with answering(FakeBackstop(fleet=waiting, awaits=BEFORE, envelopes=envelopes)):
        assert run(["fleet", "plan", "--out", str(path)]) == 0
    whole = path.read_text()

    def approve(alter: Callable[[Any], object], awaits: FleetPlan = BEFORE) -> tuple[int, list[str], str]:
        document = json.loads(whole)
        alter(document)
        path.write_text(json.dumps(document))
        capsys.readouterr()
        with answering(FakeBackstop(awaits=awaits, envelopes=envelopes)) as door:
            code = run(["fleet", "approve", str(path), "--actor", "tpm"])
        return code, approved(door), " ".join(capsys.readouterr().err.split())

    code, sent, err = approve(lambda d: d["cuts"]["c0001"].update(a=3))
    assert (code, sent) == (2, [])
    assert "was edited: it cuts 3 GPUs of team a in c0001, but the plan that awaits approval cuts 19" in err
    code, sent, err = approve(lambda d: d["cuts"]["c0001"].pop("b"))
    assert (code, sent) == (2, [])
    assert "was edited: it cuts 0 GPUs of team b in c0001, but the plan that awaits approval cuts 1" in err
    code, sent, err = approve(lambda d: d["cuts"]["c0000"].update(a=3), NOW)
    assert (code, sent) == (2, []), "also where another cluster's plan is another by now"
    assert "team a in c0000, but the plan that awaits approval cuts 9" in err
    code, sent, err = approve(lambda d: d["plan"]["clusters"][0].update(cut_gpus=1))
    assert (code, sent) == (2, [])
    assert "was edited: it has cut_gpus 1 for c0000, but the plan that awaits approval has 10" in err
    assert approve(lambda d: None) == (0, [BEFORE.hash], "")


def test_with_yes_the_plan_that_awaits_approval_is_approved_unseen(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop(awaits=NOW)) as door:
        assert run(["fleet", "approve", "--yes", "--actor", "tpm"]) == 0
    assert approved(door) == [NOW.hash]
    assert capsys.readouterr().out == "fleet rollout (running): so be it\n"


def test_what_is_another_now_is_shown_and_not_approved_unseen(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: c0000 is unchanged, c0001 cuts 50 instead of 20, c0002 (which cut 10) is gone, and c0003 is new."""
    with answering(FakeBackstop(awaits=NOW)) as door:
        assert run(["fleet", "approve", str(kept), "--actor", "tpm"]) == 3
    assert approved(door) == []
    out, err = capsys.readouterr()
    rows = {
        words[0]: " ".join(words[1:]) for text in out.splitlines() if (words := text.split()) and words[0][0] == "c"
    }
    assert "c0000" not in rows
    assert "20 -> 50" in rows["c0001"]
    assert rows["c0002"].endswith("is gone")
    assert rows["c0003"].endswith("comes in")
    assert "3 clusters differ, 1 is alike; GPUs cut: 40 -> 67." in " ".join(out.split())
    assert f"plan {NOW.hash} awaits approval, but {kept} has plan {BEFORE.hash}" in err


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lambda d: d["plan"]["clusters"][1].update(plan_hash="other"), "plan.hash is"),
        (
            lambda d: d["plan"]["clusters"][1].update(cut_gpus=-4),
            "cut_gpus must be at least 0, not -4",
        ),
        (lambda d: d.pop("plan"), "plan is missing"),
        (lambda d: d.update(more=1), "more"),
    ],
)
def test_a_file_that_was_altered_is_refused_by_its_field(
    kept: Path, capsys: pytest.CaptureFixture[str], alter: Callable[[Any], object], said: str
) -> None:
    document = json.loads(kept.read_text())
    alter(document)
    kept.write_text(json.dumps(document))
    with answering(FakeBackstop(awaits=BEFORE)) as door:
        assert run(["fleet", "approve", str(kept)]) == 2
    err = capsys.readouterr().err
    assert str(kept) in err
    assert said in err
    assert approved(door) == []


def test_the_plan_before_a_launch_is_the_one_that_the_launch_would_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/design.md's worked case, by the ledger: 39 of 345, and the hash that an approval names."""
    from models.cluster.policy import Policy
    from models.cluster.snapshot import snapshot_of
    from models.status_questions import OpenRollouts
    from tests.unit.cli_fakes import PLAN, WORKED

    class Ledger(FakeBackstop):
        async def ask(self, question: Any) -> Any:
            return () if isinstance(question, OpenRollouts) else await super().ask(question)

        async def plannable(self, over: Any = None) -> Any:
            return [(snapshot_of(WORKED), Policy())], {}

    with answering(Ledger()):
        assert run(["fleet", "plan", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(c["cluster"], c["cut_gpus"], c["plan_hash"]) for c in answer["plan"]["clusters"]] == [
        ("h100-worked", 39, PLAN.hash)
    ]
    with answering(Ledger()):
        assert run(["fleet", "plan", "--pilot", "nowhere"]) == 2
    assert "--pilot nowhere: the ledger has no such cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fleet", "approve", "no-such.json"], "no-such.json"),
        (
            ["fleet", "approve", "plan.json", "--plan", "x"],
            "--plan 'x' is given together with FILE 'plan.json': give one",
        ),
        (["fleet", "approve", "plan.json", "--yes"], "--yes is given together with FILE 'plan.json': give one"),
        (["fleet", "plan", "--wave", "seven"], "--wave must be one of"),
        (["fleet", "plan", "--policy", "notice=soon"], "notice"),
    ],
)
def test_slips_are_bad_input(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop(awaits=BEFORE)) as door:
        assert run(words) == 2
    assert said in capsys.readouterr().err
    assert approved(door) == []
