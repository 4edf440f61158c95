"""The selection of a command's clusters, and the command's result in each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli.act_on_each import AT_ONCE, act_on_each
from cli.main import run
from cli.selection import chosen_clusters, selection
from cli.send_command import _join_undo_commands
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.reports.rollout_summary import RolloutSummary
from models.rollout.command_previews import Ahead
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command, Stage
from tests.unit.cli_fakes import AHEAD, NOON, FakeBackstop, answering


def rollout(cluster: str, stage: str = "monitored", wave: str = "busy", needs: str | None = "", **more: Any) -> Any:
    known = {"owner": "tpm", "unbacked_gpus": 0, "started": NOON, "closed": None, "open": True}
    return RolloutSummary(cluster=cluster, stage=stage, wave=wave, needs=needs, **{**known, **more})


OPEN = (
    rollout("h100-1"),
    rollout("h100-2", stage="planned", needs="approve the plan"),
    rollout("h100-10", wave="idle"),
    rollout("a100-1", wave="unscheduled", stage="planned"),
    rollout("a100-old", open=False, stage="closed"),
    rollout("odd[1]", wave="unallocated"),
)


@pytest.mark.parametrize(
    ("names", "filters", "left"),
    [
        (["h100-1"], {}, "h100-1"),
        (["not-open"], {}, "not-open"),  # it is refused by name, as ever
        (["h100-*"], {}, "h100-1 h100-10 h100-2"),
        (["h100-?"], {}, "h100-1 h100-2"),
        (["a100-*"], {}, "a100-1"),  # what has ended is not open
        (["h100-2", "h100-*", "h100-2"], {}, "h100-2 h100-1 h100-10"),
        (["odd[1]"], {}, "odd[1]"),  # its own name, before it is a glob
        (["*"], {"stage": "planned"}, "a100-1 h100-2"),
        ([], {"stage": "planned"}, "a100-1 h100-2"),
        ([], {"wave": "4"}, "h100-1 h100-2"),
        ([], {"wave": "busy"}, "h100-1 h100-2"),
        ([], {"wave": "1"}, "odd[1]"),
        ([], {"needs": True}, "h100-2"),
        (["h100-*"], {"wave": "busy", "stage": "monitored"}, "h100-1"),
        (["h100-1", "h100-10"], {"wave": "idle"}, "h100-10"),
    ],
)
def test_names_globs_and_filters_leave_the_clusters_that_are_meant(
    names: list[str], filters: dict[str, Any], left: str
) -> None:
    of = selection(names, filters.get("wave", ""), filters.get("stage", ""), needs=filters.get("needs", False))
    assert chosen_clusters(of, OPEN) == tuple(left.split())
    assert of.plain_cluster == (names[0] if names in (["h100-1"], ["not-open"]) else "")


@pytest.mark.parametrize(
    ("names", "filters", "said"),
    [
        ([], {}, "CLUSTER is missing: name clusters, or open rollouts by --wave, --stage or --needs"),
        ([" "], {}, "CLUSTER is empty: name a cluster"),
        (["b200-*"], {}, "b200-*: the glob matches no open rollout (5 are open: backstop status --open)"),
        (["h100-1", "b200-*"], {}, "b200-*: the glob matches no open rollout"),
        (["b200"], {"wave": "busy"}, "b200: this cluster has no open rollout"),
        (["a100-*"], {"wave": "busy"}, "no open rollout matches a100-* --wave busy (5 are open"),
        ([], {"stage": "stuck"}, "no open rollout matches --stage stuck"),
        ([], {"stage": "closed"}, "--stage must be one of planned, buffered"),
        (
            [],
            {"wave": "6"},
            "--wave must be one of 1 (unallocated), 2 (unscheduled), 3 (idle), 4 (busy), 5 (after all)",
        ),
        ([], {"wave": "5"}, "no open rollout matches --wave after all (5 are open"),
    ],
)
def test_what_means_nothing_is_one_sentence(names: list[str], filters: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        chosen_clusters(selection(names, filters.get("wave", ""), filters.get("stage", ""), needs=False), OPEN)
    assert error.value.message.startswith(said)


def test_where_no_worker_says_what_rollouts_need_none_is_taken_to_need_nothing() -> None:
    with pytest.raises(BadInput, match="--needs: no worker answers, so needs are unknown"):
        chosen_clusters(selection([], "", "", needs=True), [rollout("h100-1", needs=None)])


async def test_a_few_go_at_a_time_and_one_that_is_refused_keeps_no_other_from_its_turn() -> None:
    under_way, most = 0, 0

    async def act(number: int) -> int:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        await asyncio.sleep(0)  # the others have their turn
        under_way -= 1
        if number % 7 == 0:
            raise Refusal(f"not {number}")
        return number

    answers = await act_on_each(range(50), act)
    assert [item for item, _ in answers] == list(range(50))
    assert [a if isinstance(a, int) else a.message for _, a in answers] == [
        n if n % 7 else f"not {n}" for n in range(50)
    ]
    assert most == AT_ONCE


# --- at the command line ---------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.setenv("BACKSTOP_ACTOR", "tpm")
    with answering(FakeBackstop(summaries=list(OPEN), taken=("h100-10",))) as door:
        yield door


def commanded(fake: FakeBackstop) -> list[tuple[str, str]]:
    return sorted((asked[1], asked[2].value) for asked in fake.asked if asked[0] == "command")


@pytest.mark.parametrize(
    "line",
    [
        "abort h100-1 --reason why",
        "rollback h100-1 --reason why",
        "abort h100-1 --reason why --json",
        "pause h100-1 h100-2 --reason why",
        "pause h100-* --reason why",
        "resume --wave busy",
        "ack h100-1 h100-2 --team research",
        "close h100-1 h100-2",
        "close h100-risk",
        "approve h100-1",
        "approve --stage planned",
        "fleet abort --reason why",
        "fleet abort --undo --reason why",
        "fleet approve",
    ],
)
def test_without_a_terminal_nothing_is_done_that_a_person_would_be_asked_for(
    fake: FakeBackstop, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads["h100-risk"] = AHEAD.model_copy(update={"at_risk": {"research": 6}})
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert "here is no terminal" in error
    assert ("--plan" if "approve" in line else "give --yes if you mean it") in error
    assert error.count("\n") == 1
    assert not [a for a in fake.asked if a[0] in ("command", "fleet_command")]


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("abort h100-1 --reason why --yes", ["h100-1"]),
        ("rollback h100-? --reason why -y", ["h100-1", "h100-2"]),
        ("pause --wave idle --reason why", ["h100-10"]),  # one alone is not asked for
        ("pause h100-1 --reason why", ["h100-1"]),
        ("resume h100-1 a100-1 --yes", ["a100-1", "h100-1"]),
        ("close h100-1", ["h100-1"]),  # nothing of it is at risk
        ("close h100-1 --yes", ["h100-1"]),
        ("approve h100-1 --plan 0123", ["h100-1"]),
        ("approve h100-1 -y", ["h100-1"]),
        ("approve h100-? --yes --json", ["h100-1", "h100-2"]),
        ("promote --needs --reason why", ["h100-2"]),
    ],
)
def test_with_yes_or_where_nobody_has_to_be_asked_each_gets_the_command(
    fake: FakeBackstop, line: str, reached: list[str]
) -> None:
    fake.taken = ()
    assert run(line.split()) == 0
    command = Command(line.split(maxsplit=1)[0]).value
    assert commanded(fake) == [(cluster, command) for cluster in reached]


def test_several_are_answered_with_a_line_each_and_the_refused_with_why(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pause", "h100-*", "--reason", "why", "--yes"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["h100-1", "buffered", "so", "be", "it"]
    assert lines[2].startswith("h100-10  refused   pause is not possible while h100-10 is monitored")
    assert lines[3].split() == ["h100-2", "buffered", "so", "be", "it"]
    assert lines[-2:] == ["2 accepted, 1 refused.", "Undo: backstop pause h100-1 h100-2 --reason '...'"]


@pytest.mark.parametrize(
    ("undos", "lines"),
    [
        ({"a": "Undo: backstop resume a", "b c": "Undo: backstop resume 'b c'"}, ["Undo: backstop resume a 'b c'"]),
        (
            {"to": "It cannot be undone; to go: backstop pause to --reason '...'"},
            ["It cannot be undone; to go: backstop pause to --reason '...'"],
        ),
        (
            {"a": "Undo: backstop object a --team ab", "b": "Undo: backstop object b --team bb"},
            ["Undo: backstop object a --team ab", "Undo: backstop object b --team bb"],
        ),
        ({"a": "It cannot be undone.", "b": ""}, ["a: It cannot be undone."]),
        (
            {"a": "When it has ended: backstop launch a", "b": "When it has ended: backstop launch b"},
            ["When it has ended: backstop launch CLUSTER, for each of a, b"],
        ),
    ],
)
def test_the_same_undo_is_told_once_for_all(undos: dict[str, str], lines: list[str]) -> None:
    answers = [
        CommandAnswer(cluster=c, command=Command.PAUSE, stage=Stage.BUFFERED, said="so", undo=u)
        for c, u in undos.items()
    ]
    assert _join_undo_commands(answers) == lines


def test_json_is_a_list_where_several_were_asked_and_one_object_for_one_name(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pause", "h100-*", "--reason", "why", "--yes", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "backstop.commands/1"
    assert [(a["cluster"], a["stage"], a["refused"]) for a in answer["answers"]] == [
        ("h100-1", "buffered", False),
        ("h100-10", None, True),
        ("h100-2", "buffered", False),
    ]
    assert run(["pause", "h100-1", "--reason", "why", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["schema"], one["cluster"], one["undo"][:5]) == ("backstop.command/1", "h100-1", "Undo:")
    assert run(["pause", "--wave", "idle", "--reason", "why", "--json"]) == 1  # a filter: a list of one
    assert len(json.loads(capsys.readouterr().out)["answers"]) == 1


def test_one_name_is_refused_with_its_own_exit_code(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pause", "h100-10", "--reason", "why"]) == 3
    assert "already at the last stage" in capsys.readouterr().err


def test_a_plan_s_hash_is_of_one_cluster(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["approve", "h100-*", "--plan", "0123"]) == 2
    assert "--plan 0123 is one cluster's plan: name that cluster, and no other" in capsys.readouterr().err


@pytest.fixture
def agree(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody is at the terminal and says yes; these are the questions."""
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)
    monkeypatch.setattr("cli.send_command.can_ask", lambda **_: True)
    monkeypatch.setattr("typer.confirm", confirm)
    return questions


def test_with_yes_the_plan_that_there_is_is_approved_and_who_has_none_is_named(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads |= {"h100-2": AHEAD.model_copy(update={"plan": None}), "a100-1": NO_BUILD}
    assert AHEAD.plan is not None
    assert run(["approve", "h100-1", "h100-2", "a100-1", "--yes"]) == 1
    (given,) = [asked for asked in fake.asked if asked[0] == "command"]
    assert (given[1], given[3].plan_hash) == ("h100-1", AHEAD.plan.hash)
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert "h100-2 refused no plan awaits approval" in rows
    assert f"a100-1 refused {NO_BUILD.message}" in rows
    assert "1 accepted, 2 refused." in rows


def test_where_no_plan_awaits_approval_the_command_that_is_named_can_be_typed(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads |= {name: AHEAD.model_copy(update={"plan": None, "cluster": name}) for name in ("h100-1", "h100-2")}
    for names, see in ((["h100-1"], "backstop status h100-1"), (["h100-1", "h100-2"], "backstop status")):
        assert run(["approve", *names, "--yes"]) == 3
        assert capsys.readouterr().err == f"backstop: no plan awaits approval in {', '.join(names)}: see {see}\n"


def at(stage: Stage, **more: Any) -> Ahead:
    return AHEAD.model_copy(update={"stage": stage, **more})


NO_BUILD = Unavailable("h100-2: its rollout runs on an earlier build")


@pytest.mark.parametrize(
    ("line", "aheads", "question", "shown", "reached"),
    [
        (  # 39 GPUs of one come back; the others' stages let no abort be
            "abort h100-1 h100-2 a100-1",
            {"h100-2": at(Stage.ROLLING_BACK), "a100-1": at(Stage.STUCK)},
            "Abort h100-1?",
            [
                "1 rollout ends; 39 GPUs come back to 1 team; then 26 promised GPUs will have",
                (
                    "h100-2 (rolling_back) will refuse: a rollback is running and cannot be stopped; wait until "
                    "it is done."
                ),
                "a100-1 (stuck) will refuse: the rollback is stuck: ",
            ],
            ["h100-1"],
        ),
        (
            "rollback h100-1 h100-2",
            {"h100-2": at(Stage.PLANNED, undoes=(), back=())},
            "Roll back h100-1?",
            ["h100-2 (planned) will refuse: nothing has been applied yet; `abort` ends the rollout."],
            ["h100-1"],
        ),
        (  # a breach left effects that stand: there is something to undo
            "rollback h100-1 h100-2",
            {"h100-2": at(Stage.ROLLED_BACK)},
            "Roll back 2 rollouts?",
            ["2 rollouts; 78 GPUs come back to 1 team"],
            ["h100-1", "h100-2"],
        ),
        (
            "close h100-1 h100-2 a100-1",
            {"h100-1": at(Stage.MONITORED), "h100-2": at(Stage.ENFORCED), "a100-1": at(Stage.ROLLED_BACK)},
            "Close 2 rollouts?",
            ["2 rollouts end, and so does Backstop's promise", "h100-2 (enforced) will refuse: not monitored yet; "],
            ["a100-1", "h100-1"],
        ),
        (
            "abort h100-1 h100-2",
            {"h100-2": NO_BUILD},
            "Abort h100-1?",
            ["h100-2 is left out: h100-2: its rollout runs on an earlier build. --yes gives it the command too."],
            ["h100-1"],
        ),
    ],
)
def test_a_yes_is_to_what_was_shown_and_the_rest_is_left_out_and_refused(
    fake: FakeBackstop,
    agree: list[str],
    line: str,
    aheads: dict[str, Ahead | BackstopError],
    question: str,
    shown: list[str],
    reached: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.aheads = aheads
    several = len(line.split()) - 1 > len(reached)
    assert run([*line.split(), "--reason", "why"]) == int(several)
    out = capsys.readouterr().out
    assert agree == [question]
    assert [text for text in shown if text not in out] == []
    command = line.split(maxsplit=1)[0]
    assert commanded(fake) == [(cluster, command) for cluster in reached]
    assert (f"{len(reached)} accepted, 1 refused." in out or f"{len(reached)} accepted, 2 refused." in out) is several


@pytest.mark.parametrize(
    ("line", "stage", "said"),
    [
        (
            "abort h100-1",
            Stage.ROLLING_BACK,
            "abort was not given to h100-1 (rolling_back), which would refuse it: a rollback is running",
        ),
        ("rollback h100-1 h100-2", Stage.STUCK, "which would refuse it: the rollback is stuck: "),
    ],
)
def test_where_no_rollout_would_take_it_nobody_is_asked(
    fake: FakeBackstop, agree: list[str], line: str, stage: Stage, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads = {name: at(stage) for name in ("h100-1", "h100-2")}
    assert run([*line.split(), "--reason", "why"]) == 3
    assert said in capsys.readouterr().err
    assert (agree, commanded(fake)) == ([], [])


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (at(Stage.PLANNED, undoes=(), back=()), "h100-1 (planned): nothing has been applied yet."),
        (at(Stage.ROLLED_BACK, undoes=(), back=()), "h100-1 (rolled_back): its changes are undone already."),
        (at(Stage.PLANNED, undoes=(), back=(), undone=True), "h100-1 (planned): its changes are undone already."),
        (at(Stage.BUFFERED, back=(), shadow=True, told=()), "h100-1 (buffered): a shadow: no quota was written."),
        (at(Stage.BUFFERED, back=(), shadow=True, told=()), "A shadow: no team is notified."),
    ],
)
def test_one_that_changes_no_quota_says_why(
    fake: FakeBackstop, agree: list[str], ahead: Ahead, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads["h100-1"] = ahead
    assert run(["abort", "h100-1", "--reason", "why"]) == 0
    assert said in capsys.readouterr().out.splitlines()


def test_of_many_that_change_no_quota_it_says_how_many_it_does_not_show(
    fake: FakeBackstop, agree: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"h100-{n:03d}" for n in range(37)]
    fake.aheads = {name: at(Stage.PLANNED, undoes=(), back=()) for name in names}
    assert run(["abort", *names, "--reason", "why"]) == 0
    out = capsys.readouterr().out
    assert out.count("nothing has been applied yet") == 30
    assert "and 7 more: backstop status CLUSTER" in out


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (AHEAD, "1 team will be notified."),  # a build that does not say: all whom the plan cuts
        (at(Stage.PLANNED, approve_told=("a", "b")), "2 teams will be notified."),
        (at(Stage.PLANNED, approve_told=()), "No team will be notified."),
        (at(Stage.PLANNED, approve_told=(), shadow=True), "A shadow: no team is notified."),
        (at(Stage.PLANNED, shadow=True), "A shadow: no team is notified."),
    ],
)
def test_an_approval_says_how_many_hear_of_it(
    fake: FakeBackstop, agree: list[str], ahead: Ahead, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads["h100-1"] = ahead
    assert run(["approve", "h100-1"]) == 0
    assert said in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_what_is_shown_is_asked_for_and_no_means_nothing(
    fake: FakeBackstop, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)

    def confirm(question: str) -> bool:
        print(question)
        return answer == "y"

    monkeypatch.setattr("typer.confirm", confirm)
    assert run(["abort", "h100-1", "h100-2", "--reason", "why"]) == (0 if answer == "y" else 1)
    out = capsys.readouterr().out
    assert "h100-2   research  306         345           319" in out
    promised = "2 rollouts end; 78 GPUs come back to 1 team; then 52 promised GPUs will have no"
    assert promised in out
    assert "Will be notified: research (1 team)." in out
    assert "Abort 2 rollouts?" in out
    assert len(commanded(fake)) == (2 if answer == "y" else 0)
    assert ("Nothing was changed." in out) is (answer == "n")


@pytest.mark.parametrize(
    ("line", "asked"),
    [("promote h100-1 --reason why", "Promote h100-1?"), ("promote h100-1 h100-2 --reason why", "Promote 2 rollouts?")],
)
def test_a_promote_shows_what_it_leaves_before_it(
    fake: FakeBackstop, agree: list[str], line: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.aheads["h100-1"] = at(Stage.PLANNED, cluster="h100-1", promote_leaves=("nobody was told",))
    assert run(line.split()) == 0
    assert "h100-1: nobody was told." in capsys.readouterr().out.splitlines()
    assert agree == [asked]
    assert ("h100-1", "promote") in commanded(fake)


def test_a_promote_of_one_is_not_asked_about_where_there_is_nothing_to_say_or_nobody_to_ask(
    fake: FakeBackstop, agree: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["promote", "h100-1", "--reason", "why"]) == 0
    fake.aheads["h100-1"] = at(Stage.PLANNED, promote_leaves=("nobody was told",))
    assert run(["promote", "h100-1", "--reason", "why", "--yes"]) == 0
    monkeypatch.setattr("cli.send_command.can_ask", lambda **_: False)
    assert run(["promote", "h100-1", "--reason", "why"]) == 0
    assert not agree
    assert commanded(fake) == [("h100-1", "promote")] * 3
