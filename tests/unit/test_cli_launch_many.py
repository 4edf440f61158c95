"""`backstop launch` of several clusters: who is meant, what is shown, what became of each."""

from __future__ import annotations

import json
import sys

import pytest
from jsonschema import Draft202012Validator

from cli.commands.schemas import makers
from cli.main import run
from models.rollout.messages import LaunchRequest
from tests.unit.cli_fakes import FakeBackstop, answering

FREE = ("h100-01", "h100-02", "b200 lab")


def launched(fake: FakeBackstop) -> list[LaunchRequest]:
    return [asked[1] for asked in fake.asked if asked[0] == "launch"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["h100-02", "h100-01", "h100-02"], ["h100-02", "h100-01"]),
        (["h100-*"], ["h100-01", "h100-02"]),
        (["*"], ["b200 lab", "h100-01", "h100-02"]),
        (["b200 lab", "h100-0[12]"], ["b200 lab", "h100-01", "h100-02"]),
        (["h100-worked", "h100-*"], ["h100-worked", "h100-01", "h100-02"]),
    ],
)
def test_names_and_globs_of_clusters_without_a_rollout_are_launched(words: list[str], meant: list[str]) -> None:
    fake = FakeBackstop(free=FREE)
    with answering(fake):
        assert run(["launch", *words, "--shadow", "--reason", "rehearsal", "--actor", "tpm", "--yes"]) == 0
    requests = launched(fake)
    assert [r.cluster for r in requests] == meant
    assert {(r.owner, r.actor, r.reason, r.shadow, r.adopt) for r in requests} == {
        ("tpm", "tpm", "rehearsal", True, False)
    }
    assert len({r.rollout for r in requests}) == len(meant)
    assert all(r.rollout.startswith(f"{r.cluster}/2") for r in requests)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a100-*"], "a100-*: the glob matches no cluster: see `backstop fleet show`"),
        (["h100-w*"], "h100-w*: every cluster that the glob matches (1) already has an open rollout"),
        (["h100-01", "", "h100-02"], "CLUSTER is empty: name a cluster"),
        (
            ["h100-01", "h100-02", "--adopt"],
            "--adopt takes one CLUSTER: name one, or give --all for every lost rollout",
        ),
        (["h100-01", "h100-02", "--fleet"], "CLUSTER 'h100-01 h100-02' is given together with --fleet"),
    ],
)
def test_what_means_no_cluster_is_refused_before_anything_is_launched(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeBackstop(free=FREE)
    with answering(fake):
        assert run(["launch", *words, "--yes"]) == 2
    assert launched(fake) == []
    assert capsys.readouterr().err.startswith(f"backstop: {said}")


def test_without_a_terminal_and_a_yes_nothing_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeBackstop(free=FREE)
    with answering(fake):
        assert run(["launch", "h100-*"]) == 2
    assert launched(fake) == []
    assert "There is no terminal to ask on, so nothing was changed: give --yes" in capsys.readouterr().err


def test_a_glob_that_matches_nothing_is_told_before_a_yes_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop(free=FREE)):
        assert run(["launch", "ord9*"]) == 2
    assert capsys.readouterr().err.startswith("backstop: ord9*: the glob matches no cluster")


@pytest.mark.parametrize("yes", [True, False])
def test_the_plans_are_shown_and_asked_for_together(
    yes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    questions: list[str] = []

    def answer(question: str) -> bool:
        questions.append(question)
        return yes

    monkeypatch.setattr("typer.confirm", answer)
    fake = FakeBackstop(free=FREE)
    with answering(fake):
        assert run(["launch", "h100-01", "h100-02", "--shadow"]) == int(not yes)
    assert questions == ["Open 2 rollouts?"]
    assert len(launched(fake)) == 2 * yes
    out = capsys.readouterr().out
    assert "2 clusters; 78 GPUs cut: 52 are phantom, 26 move to flex." in out
    assert "Each cluster gets its own rollout" in out
    assert "no quota is written, no team is notified" in " ".join(out.split())


def test_one_that_is_refused_keeps_no_other_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeBackstop(free=FREE, taken=("h100-01",))
    with answering(fake):
        assert run(["launch", "*", "--yes"]) == 1
    out = capsys.readouterr().out
    assert "2 opened, 1 refused." in out
    assert "h100-01 was not launched: another has it" in out
    assert "\n  backstop approve 'b200 lab' h100-02\n" in out
    assert "\nUndo: backstop abort 'b200 lab' h100-02 --reason '...'\n" in out


def test_json_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeBackstop(free=FREE, taken=("h100-01",))
    with answering(fake):
        assert run(["launch", "h100-01", "h100-02", "--yes", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    Draft202012Validator(makers()["launches"]()).validate(answer)
    assert [one["cluster"] for one in answer["launched"]] == ["h100-02"]
    assert answer["refused"] == [{"cluster": "h100-01", "reason": "h100-01 was not launched: another has it"}]
