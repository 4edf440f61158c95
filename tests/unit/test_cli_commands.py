"""The command line with a Backstop that has no server: what is sent, what is shown, how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from client.answer_models import AuditRecord, Check
from models.audit_chain import ChainedEntry, ChainHead
from models.cluster.fleet_file import ClusterInSlurm
from models.cluster.quota import Quota
from models.cluster.sources import SlurmSource
from models.cluster.windows import Entry, Window, WindowKind
from models.errors import BadInput, BlastRadius, Conflict, Refusal, Stuck, Unavailable
from models.questions import LedgerCluster
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from tests.unit.cli_fakes import PLAN, WORKED, FakeBackstop, answering, chain, status

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "fleet.yaml")
GIVEN: dict[Command, list[str]] = {
    Command.APPROVE: ["--plan", "0123456789abcdef"],
    Command.ACK: ["--team", "research"],
    Command.OBJECT: ["--team", "research"],
    Command.RESOLVE: ["--hold", "drift", "--how", "accept"],
}
ASKED = (Command.ABORT, Command.ROLLBACK, Command.CLOSE)
"""Commands that a script gives with --yes."""
NEED_REASON = (Command.OBJECT, Command.RESOLVE, Command.PROMOTE, Command.PAUSE, Command.ROLLBACK, Command.ABORT)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.delenv("BACKSTOP_ACTOR", raising=False)
    with answering(FakeBackstop()) as door:
        yield door


# --- commands to a rollout -------------------------------------------------------------------------


@pytest.mark.parametrize("command", list(Command))
def test_every_command_reaches_the_rollout(
    fake: FakeBackstop, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    yes = ["--yes"] if command in ASKED else []
    assert run([command, "h100-worked", *GIVEN.get(command, []), "--reason", "why", "--actor", "tpm", *yes]) == 0
    ((what, cluster, sent, request),) = fake.asked
    assert (what, cluster, sent) == ("command", "h100-worked", command)
    assert isinstance(request, CommandRequest)
    assert (request.actor, request.reason) == ("tpm", "why")
    given = dict(zip(GIVEN.get(command, [])[::2], GIVEN.get(command, [])[1::2], strict=True))
    assert {"--plan": request.plan_hash, "--team": request.team, "--hold": request.hold, "--how": request.how} == {
        option: given.get(option, "") for option in ("--plan", "--team", "--hold", "--how")
    }
    said = "h100-worked (buffered): so be it\nUndo: backstop pause h100-worked --reason '...'\n"
    assert capsys.readouterr().out == said
    assert fake.closed


@pytest.mark.parametrize("command", list(Command))
def test_a_reason_is_asked_for_where_the_rollout_needs_one(
    fake: FakeBackstop, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([command, "h100-worked", *GIVEN.get(command, [])])
    if command in NEED_REASON:
        assert code == 2
        assert "--reason" in capsys.readouterr().err
        assert not fake.asked
    else:
        assert code == 0


def test_the_actor_is_the_option_then_the_environment_then_the_login_name(
    fake: FakeBackstop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "login")
    run(["resume", "h100-worked"])
    assert fake.actor == "login"
    monkeypatch.setenv("BACKSTOP_ACTOR", "environment")
    run(["resume", "h100-worked"])
    assert fake.actor == "environment"
    run(["resume", "h100-worked", "--actor", "option"])
    assert fake.actor == "option"
    assert [request.actor for *_, request in fake.asked] == ["login", "environment", "option"]


def test_nobody_is_no_actor(
    fake: FakeBackstop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody() -> str:
        raise KeyError("uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert run(["resume", "h100-worked"]) == 2
    assert "--actor is missing" in capsys.readouterr().err


def test_what_cannot_be_sent_is_bad_input(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pause", "h100-worked", "--reason", "x" * 2001]) == 2
    assert "--reason must be at most 2000 characters long" in capsys.readouterr().err
    assert run(["launch", "a\nb", "--yes"]) == 2
    assert "CLUSTER must be a name: one line" in capsys.readouterr().err
    assert not fake.asked


# --- how commands end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("so"), 2),
        (Refusal("so"), 3),
        (BlastRadius("so"), 3),
        (Unavailable("so"), 1),
        (Conflict("so"), 1),
        (Stuck("so"), 1),
        (RuntimeError("so"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_each_failure_has_its_exit_code_and_one_sentence(
    fake: FakeBackstop, error: Any, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.refuses = error
    assert run(["status", "h100-worked"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    if code < 100:
        assert said.err.count("\n") == 1
        assert said.err.startswith("backstop: ")
        assert said.err.endswith("so\n")
    else:
        assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--bogus"], "No such option"),
        (["nothing"], "No such command"),
        (["approve", "c"], "--plan is missing: there is no terminal to show a plan and ask"),
        (["status", "a", "b"], "unexpected extra argument"),
        (["watch", "c", "--every", "often"], "--every must be a number, not 'often'"),
        (["watch", "c", "--every", "0"], "--every must be from 0.1 to 3600, not 0"),
        (["watch", "c", "--every", "nan"], "--every must be from 0.1 to 3600, not nan"),
        (["up", "--port", "70000"], "--port must be from 0 to 65535, not 70000"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(
    fake: FakeBackstop, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_text_of_others_cannot_speak_to_the_terminal(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "h100-worked"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert "\x1b" not in out
    assert "in one \\x1b[31mlong  sentence" in out
    assert "on and on" in out
    assert "…" not in out


# --- launch ------------------------------------------------------------------------------------------------


def test_launch_sends_what_lies_over_the_policy_and_shows_how_to_approve(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--buffer 0.10 --max-tier idle --policy notice=1m --policy attempts=2 --shadow --adopt --reason pilot"
    assert run(["launch", "h100-worked", *options.split(), "--actor", "tpm"]) == 0
    ((_, request),) = fake.asked
    assert isinstance(request, LaunchRequest)
    assert request.policy == {"buffer": "0.10", "max_tier": "idle", "notice": "1m", "attempts": 2}
    assert (request.owner, request.shadow, request.adopt, request.reason) == ("tpm", True, True, "pilot")
    assert request.rollout.startswith("h100-worked/2")
    out = capsys.readouterr().out
    assert "Cut 39 GPUs: 26 are phantom (without a healthy GPU now), 13 move to flex" in out
    assert f"\n  backstop approve h100-worked --plan {PLAN.hash}\n" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--buffer", "2"], "--buffer must be at least 0 and below 1, not 2"),
        (["--max-tier", "deep"], "--max-tier must be 'unallocated', 'unscheduled', 'idle' or 'busy', not 'deep'"),
        (["--policy", "notice=soon"], "--policy notice must be a duration"),
        (["--policy", "sok=1"], "--policy sok is not a known field"),
        (["--policy", "notice"], "--policy takes KEY=VALUE, not 'notice'"),
        (
            ["--policy", 'buffer={"ramp": [0.05], "ramp": [0.4]}'],
            "--policy buffer: ramp is given twice in one object",
        ),
        (["--policy", "attempts=NaN"], "--policy attempts must be a whole number, not nan"),
        (
            ["--policy", "buffer=0.1", "--buffer", "0.2"],
            "--buffer '0.2' is given together with buffer=0.1: give one of them",
        ),
    ],
)
@pytest.mark.parametrize("command", [["launch", "h100-worked"], ["plan", "h100-worked"]])
def test_a_bad_setting_is_refused_before_anything_is_sent(
    fake: FakeBackstop, command: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, *options]) == 2
    assert f"backstop: {said}" in capsys.readouterr().err
    assert not [what for what, *_ in fake.asked if what == "launch"]


@pytest.mark.parametrize("where", ["h100-worked", "--fleet"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("requests=refuse", "requests='refuse'"),
        ('owners=["capacity"]', "owners=['capacity']"),
        ('classes=["training", "engines"]', "classes=['training', 'engines']"),
    ],
)
def test_no_launch_says_what_belongs_to_the_cluster(
    fake: FakeBackstop, where: str, setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", where, "--policy", setting]) == 2
    assert f"backstop: --policy {said} belongs to the cluster, not to one rollout" in capsys.readouterr().err
    assert fake.asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reason", "x" * 5_000_000], "reason must be at most 2000 characters long; it begins 'xxx"),
        (["--reason", "a\udcff"], "reason must be valid Unicode text, not 'a\\udcff'"),
        (["--reason", "r", "--actor", "x" * 201], "must be at most 200 characters long; it begins 'xxx"),
    ],
    ids=["5 MB", "a byte that is no text", "a long actor"],
)
def test_what_the_audit_cannot_keep_is_refused_before_it_is_sent(
    fake: FakeBackstop, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["pause", "h100-worked"], ["launch", "h100-worked", "--yes"]):
        assert run([*command, *arguments]) == 2
        err = capsys.readouterr().err
        assert err.startswith("backstop: --")
        assert said in err
        assert err.count("\n") == 1
        assert len(err) < 500
    assert fake.asked == []


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "h100\udcff"], ids=["long", "two lines", "no text"])
@pytest.mark.parametrize(
    "command", [["status"], ["watch"], ["fleet", "show"], ["audit"], ["retry"], ["plan"], ["launch"]]
)
def test_what_can_be_no_cluster_is_refused_before_it_is_sent(
    fake: FakeBackstop, command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, name]) == 2
    err = capsys.readouterr().err
    assert err.startswith("backstop: CLUSTER must be a name: one line of at most 200 characters, not '")
    assert err.count("\n") == 1
    assert fake.asked == []


def test_two_rollouts_never_have_one_id(fake: FakeBackstop) -> None:
    for _ in range(2):
        run(["launch", "h100-worked", "--yes"])
    first, second = (request.rollout for _, request in fake.asked)
    assert first != second


# --- reading -----------------------------------------------------------------------------------------------


def test_plan_without_a_file_asks_the_ledger(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "h100-worked", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == PLAN.hash
    assert run(["plan", "--json"]) == 0
    assert [p["hash"] for p in json.loads(capsys.readouterr().out)["plans"]] == [PLAN.hash]
    assert run(["plan", "nope"]) == 3


def test_plan_of_the_ledger_says_how_old_stale_health_is(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.source_at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert run(["plan", "h100-worked"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The newest health sample of h100-worked is " in shown
    assert "d old (2026-01-31 12:00:00Z) and stale: the limit is 30m. No gate opens until a newer one arrives." in shown
    assert (
        "Backed at that time: by that sample, with this plan every promised GPU has a healthy one behind it;" in shown
    )


@pytest.mark.parametrize("command", [["plan"], ["haircut"], ["fleet", "show"]])
def test_one_cluster_that_makes_no_sense_keeps_no_other_from_its_answer(
    command: list[str], fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "cluster gamma in the ledger does not make sense: its quotas: a circle\x1b[31m"
    fake.senseless_ones = (LedgerCluster(cluster=None, name="gamma", wrong=why),)
    assert run([*command, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("left out: cluster gamma in the ledger does not make sense: its quotas: a circle")
    assert "\x1b" not in told.err
    assert json.loads(told.out).get("left_out", {"gamma": why}) == {"gamma": why}
    assert run(["fleet", "show", "gamma"]) == 3
    assert "its quotas: a circle" in capsys.readouterr().err


def test_plan_takes_one_cluster(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "a", "--cluster", "b"]) == 2
    assert "--cluster 'b' is given together with CLUSTER 'a'" in capsys.readouterr().err


def test_fleet_import_checks_both_files_before_anything_is_sent(
    fake: FakeBackstop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    health = tmp_path / "health.csv"
    health.write_text("cluster,time,total_gpus,healthy_gpus\nh100-worked,2026-01-01T00:00:00Z,361,319\n")
    assert run(["fleet", "import", EXAMPLE, "--health", str(health)]) == 0
    assert [what for what, *_ in fake.asked] == ["take_fleet", "add_health"]
    assert (
        "6 clusters, 1 of 15 quotas, 1 health row; differences: 16 added, 0 changed, 0 removed, 0 kept, 0 refused; "
        in capsys.readouterr().out
    )
    fake.asked.clear()
    health.write_text("cluster,time,total_gpus,healthy_gpus\nh100-worked,2026-01-01T00:00:00Z,361,400\n")
    assert run(["fleet", "import", EXAMPLE, "--health", str(health)]) == 2
    assert "line 2: healthy_gpus is 400, above total_gpus 361" in capsys.readouterr().err
    assert not fake.asked


def test_fleet_show_in_short_and_in_full(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "show"]) == 0
    assert "h100-worked  H100         1    361      319       1       345  planned\n" in capsys.readouterr().out
    assert run(["fleet", "show", "h100-worked"]) == 0
    assert "research  -         345        310     0        0  -       -\n" in capsys.readouterr().out
    assert run(["fleet", "show", "nope"]) == 2


def test_status_of_all_cuts_no_name_and_no_number(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    out = capsys.readouterr().out
    assert "cluster-with-a-rather-long-name-000002  monitored  busy  tpm     1234567  2026-01-31 12:00:00Z  -\n" in out


def test_status_in_full_tells_what_a_person_asks(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "h100-worked"]) == 0
    out = capsys.readouterr().out
    for said in (
        "h100-worked  buffered since 2026-01-31 12:00:00Z",
        f"plan     {PLAN.hash}, approved by tpm, wave busy, cuts 39 GPUs\n",
        "health   300 healthy of 361, as of 2026-01-31 12:00:00Z (",
        "now      306 promised, 300 backed, 6 phantom; surplus 0, flex 0\n",
        "at risk  research has 300 healthy GPUs behind a quota of 306; a breach at 2026-01-31 12:00:00Z\n",
        "hold     paused [paused] by oncall: a SEV\n",
        "needs    paused by oncall: backstop resume h100-worked\n",
        "research       345    306   306      300  advisory  yes\n",
    ):
        assert said in out


def test_an_ended_rollout_says_nothing_of_the_approval_that_its_undo_ended(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage, said in ((Stage.ABORTED, ""), (Stage.PLANNED, ", not approved")):
        fake.statuses = [status(stage, at_risk=(), approved_by="")]
        assert run(["status", "h100-worked"]) == 0
        assert f" {PLAN.hash}{said}, wave busy, cuts 39 GPUs\n" in capsys.readouterr().out


def test_an_ended_rollout_asks_for_nothing(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    fake.statuses = [status(Stage.ABORTED, at_risk=(), ended_because="aborted by tpm")]
    assert run(["status", "h100-worked"]) == 0
    out = capsys.readouterr().out
    assert "aborted by tpm" in out
    assert "needs" not in out
    assert "hold" not in out


@pytest.mark.parametrize("chain_of", ["(access)", "(fleet)", "(milestones)"])
def test_what_is_of_no_cluster_is_told_from_the_archive(
    fake: FakeBackstop, chain_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", chain_of]) == 0, "as docs/access.md prints it"
    assert "approved" in capsys.readouterr().out
    assert fake.asked[-1] == ("read_archive", chain_of)
    fake.archive = ([], None)
    assert run(["audit", chain_of]) == 0, "the archive has nothing about it yet"


@pytest.mark.parametrize("option", [[], ["--archive"], ["--verify"]])
def test_an_unknown_cluster_is_bad_input_to_audit(
    fake: FakeBackstop, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.archive = ([], None)
    assert run(["audit", "nosuch", *option]) == 2
    assert capsys.readouterr().err == "backstop: the ledger has no cluster 'nosuch'\n"


def test_of_a_cluster_that_was_removed_the_archive_tells_still(fake: FakeBackstop) -> None:
    assert run(["audit", "gone", "--archive"]) == 0
    assert run(["audit", "gone"]) == 3, "no rollout of it is known; it is not unknown"


def test_audit_from_the_archive(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "h100-worked", "--archive"]) == 0
    assert "2026-01-31 12:00:00Z  command  tpm    approved  -\n" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_whole_chain_is_0_and_a_broken_one_1(
    fake: FakeBackstop, as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "h100-worked", "--verify", *as_json]) == 0
    rows, head = chain("launched", "approved", "promoted")
    fake.archive = (rows[:-1], head)
    assert run(["audit", "h100-worked", "--verify", *as_json]) == 1
    shown = capsys.readouterr().out
    assert "the chain must end at row 3 with the stored hash, but ends at row 2 with another hash" in shown
    fake.archive = ([], None)
    assert run(["audit", "h100-worked", "--verify", *as_json]) == 3


def test_doctor_ends_with_1_when_something_is_not_well(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    fake.checks.append(Check(name="workers", ok=False, text="none is polling", remedy="backstop worker"))
    assert run(["doctor"]) == 1
    assert "workers   NOT OK  none is polling  backstop worker\n" in capsys.readouterr().out
    fake.refuses = Unavailable("Temporal does not answer at x:7233: start it with `backstop up`")
    assert run(["doctor"]) == 1
    assert "temporal  NOT OK  Temporal does not answer at x:7233  start it with" in capsys.readouterr().out


def test_builds_say_who_serves_and_who_may_go(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["builds", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["2026-11-21.1", "current", "2", "40"],
        ["2026-11-07.2", "draining", "0", "2"],
        ["2026-11-01.1", "drained", "1", "0"],
    ]
    assert lines[2].endswith("its rollouts wait for a worker: start one of this build")
    assert lines[3].endswith("its workers may be stopped")
    assert run(["builds", "use", "2026-11-21.1"]) == 0
    assert "Serving build 2026-11-21.1; until now: 2026-11-07.2." in capsys.readouterr().out
    assert fake.asked[-1] == ("use_build", "2026-11-21.1")
    fake.refuses = Refusal("no worker of build x is running, so new rollouts would wait: start one first")
    assert run(["builds", "use", "x"]) == 3


# --- health alone --------------------------------------------------------------------------------------


def test_health_may_come_without_a_fleet_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health = tmp_path / "health.csv"
    health.write_text("cluster,island,time,total_gpus,healthy_gpus\nh100-worked,main,2026-01-31T12:00:00Z,361,319\n")
    with answering(FakeBackstop()) as door:
        assert run(["fleet", "import", "--health", str(health)]) == 0
    assert [what for what, *_ in door.asked] == ["clusters", "add_health"]
    assert capsys.readouterr().out == (
        f"Imported {health}: 1 health row.\n"
        "The import of health cannot be undone: samples stay, and the latest of each island counts.\n"
    )


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            "h100-worked",
            "job_class is 'dev', but the quota of research in h100-worked has the classes training, engines",
        ),
        ("unknown", ""),  # that there is no such cluster is the ledger's to say
    ],
)
def test_jobs_of_a_class_that_the_ledger_s_quota_has_not_are_refused_with_their_line(
    cluster: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / "jobs.csv"
    row = "{},{},research,8,2026-01-31T12:00:00Z,{}\n"
    head = "cluster,job,team,gpus,started,job_class\n" + row.format("h100-worked", "e", "engines")
    jobs.write_text(head + row.format(cluster, "d", "dev"))
    with answering(FakeBackstop(classes=("training", "engines"))) as door:
        assert run(["fleet", "import", "--jobs", str(jobs)]) == (2 if said else 0)
    assert capsys.readouterr().err == (f"backstop: {jobs}, line 3: {said}\n" if said else "")
    assert ("add_jobs" in [what for what, *_ in door.asked]) is not bool(said)


def test_what_was_said_of_a_slurm_stands_until_it_is_said_otherwise() -> None:
    known = SlurmSource(connection="controller", cluster="lab", root="research", flex_root="spare")
    with answering(FakeBackstop(specs=(WORKED.model_copy(update={"name": "lab", "slurm": known}),))) as door:
        assert run(["fleet", "import", "--slurm", "lab", "--no-size-flex"]) == 0
    asked = [words for what, *words in door.asked if what == "describe_slurm"]
    assert asked[0] == asked[-1], "once more when the ledger follows it"
    cluster, source = asked[0]
    assert (cluster, source) == ("lab", known.model_copy(update={"size_flex": False}))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["fleet", "import", "--slurm", "b"], ["b"]),
        (["calendar", "show", "b"], ["b"]),
        (["hold", "b", "--kind", "sev", "--until", "1h", "--reason", "x"], ["b"]),
        (["hold", "b", "c", "--kind", "sev", "--until", "1h", "--reason", "x", "--yes"], ["b", "c"]),
    ],
)
def test_a_command_to_few_clusters_reads_no_others(words: list[str], read: list[str]) -> None:
    """In a fleet of 1,000, reading all would take twenty answers of the desk."""
    specs = tuple(WORKED.model_copy(update={"name": name}) for name in "abcd")
    now = datetime.now(UTC)
    window = Window(kind=WindowKind.FREEZE, starts=now, ends=now + timedelta(hours=1), reason="year end")
    entry = Entry(id=1, cluster="b", window=window, source="hold 1", declared_by="tpm")
    with answering(FakeBackstop(specs=specs, entries=[entry])) as door:
        assert run(words) == 0
    asked = [what for what, *_ in door.asked]
    assert "clusters" not in asked
    assert [names for what, names in (one for one in door.asked if one[0] == "clusters_named")] == [read]


def test_an_import_from_slurm_says_which_quotas_are_gone_and_what_it_does_not_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    had = [Quota(team="research", gpus=345), Quota(team="gone", gpus=8), Quota(team="moved", gpus=4)]
    has = [Quota(team="research", gpus=345), Quota(team="new", gpus=1), Quota(team="moved", gpus=2)]
    fake = FakeBackstop(specs=(WORKED.model_copy(update={"quotas": tuple(had), "slurm": SlurmSource()}),))
    fake.in_slurm = ClusterInSlurm(**{**dict(WORKED), "quotas": tuple(has)}, unread=("QOS x limits gres/gpu",))
    with answering(fake):
        assert run(["fleet", "import", "--slurm", "h100-worked"]) == 0
        told = capsys.readouterr()
        assert run(["fleet", "import", "--slurm", "h100-worked", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert told.out.endswith("; 1 added, 1 changed, 1 removed.\n")
    assert told.err == "backstop: warning: h100-worked: QOS x limits gres/gpu\n"
    assert {what: answer["counts"][what] for what in ("added", "changed", "removed")} == {
        "added": 1,
        "changed": 1,
        "removed": 1,
    }
    assert answer["unread"] == ["QOS x limits gres/gpu"]


@pytest.mark.parametrize("option", [["--root", "x"], ["--connection", "x"], ["--size-flex"], ["--policy", "notice=1d"]])
def test_what_is_said_of_a_slurm_needs_its_name(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["fleet", "import", "--health", "-", *option]) == 2
    assert door.asked == []
    said = f"backstop: {option[0]} needs --slurm; without --slurm, write this setting into the fleet file\n"
    assert capsys.readouterr().err == said


def test_an_import_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["fleet", "import"]) == 2
    assert door.asked == []
    assert capsys.readouterr().err == (
        "backstop: FILE is missing: give a fleet file, --health, --jobs or --slurm, or several\n"
    )


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (
            {"proof": {"proof": "peer", "how": "this machine", "note": "two persons are off"}},
            "tpm, proven (this machine), two persons are off",
        ),
        ({"proof": {"name": "user:tpm", "proof": "peer", "how": "this machine"}}, "tpm, proven (this machine)"),
        ({"proof": "token"}, "tpm, proven (token)"),
        ({"proof": "asserted"}, "tpm, asserted"),
        ({"proof": {"proof": "asserted", "how": ""}}, "tpm, asserted"),
        ({"proof": 7}, "tpm"),
        ({}, "tpm"),
    ],
)
@pytest.mark.parametrize("archive", [False, True], ids=["history", "archive"])
def test_the_audit_says_whether_who_commanded_was_proven(
    data: dict[str, Any], shown: str, archive: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proof is read from the entry's data, wherever the entry comes from; in the table and in JSON."""

    class Audited(FakeBackstop):
        async def audit(self, cluster: str) -> list[AuditRecord]:
            (one, *_) = await super().audit(cluster)
            return [one.but(actor="tpm", data=data)]

        async def read_archive(self, cluster: str) -> tuple[list[ChainedEntry], ChainHead | None]:
            (one, *_), head = await super().read_archive(cluster)
            return [one.but(entry=one.entry.but(actor="tpm", data=data))], head

    words = ["audit", "h100-worked", *(["--archive"] if archive else [])]
    with answering(Audited(statuses=[status()])):
        assert run(words) == 0
        out = capsys.readouterr().out
        name, _, note = shown.partition(", two")
        assert re.search(rf"  {re.escape(name)}  ", out)
        assert not note or f"(two{note})" in out, "beside what was done"
        assert run([*words, "--json"]) == 0
    (document,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert document["proof"] == shown.removeprefix("tpm").removeprefix(", ")


def test_status_says_what_is_not_in_force_in_words_and_in_json(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    note = (
        "Kubernetes east: not in force: vision has 64 in Git and 72 in the cluster, first seen at 2026-11-26 10:02:11Z"
    )
    fake.statuses = [status(health_fault=note)]
    assert run(["status", "h100-worked"]) == 0
    assert f"source {note}" in " ".join(capsys.readouterr().out.split())
    assert run(["status", "h100-worked", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["health_fault"] == note
