"""`backstop status` for many: one screen whatever their number, filters, and what is known without a worker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.ledger_fallback import LastWord
from cli.main import run
from client.answer_models import Check
from client.doctor import clock_check, health_check, histories_check, rollouts_check, without_answers
from models.lifecycle.holds import Hold, HoldKind
from models.questions import LedgerCheck
from models.reports.rollout_summary import RolloutSummary
from models.rollout.stages import Stage
from models.rollout.status_models import TeamStatus, WouldStand
from models.status_questions import Overview
from tests.unit.cli_fakes import FakeBackstop, answering
from tests.unit.cli_fakes import status as one_status

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAGES = ("planned", "buffered", "enforced", "monitored", "monitored", "monitored", "stuck", "closed")
WAVES = ("unallocated", "unscheduled", "idle", "busy", "")


def one(number: int, **changes: Any) -> RolloutSummary:
    stage = changes.pop("stage", STAGES[number % len(STAGES)])
    given: dict[str, Any] = {
        "cluster": f"cluster-{number:04}",
        "stage": stage,
        "wave": WAVES[number % len(WAVES)],
        "owner": ("tpm", "oncall")[number % 2],
        "unbacked_gpus": number % 7 if number % 50 == 3 else 0,
        "started": NOON,
        "closed": NOON if stage == "closed" else None,
        "open": stage != "closed",
        "needs": "mend the cause, then give: backstop retry" if stage == "stuck" else "",
        "held": "freeze: year end" if number % 100 == 4 else "",
        "health_at": datetime.now(UTC) - timedelta(seconds=20),
        "asked_at": datetime.now(UTC),
    }
    return RolloutSummary(**given | changes)


def status(capsys: pytest.CaptureFixture[str], summaries: list[RolloutSummary], *words: str) -> str:
    with answering(FakeBackstop(summaries=summaries)):
        assert run(["status", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def thousand() -> list[RolloutSummary]:
    """Made when they are asked for: their health grows old."""
    return [one(number) for number in range(1000)]


def test_a_thousand_fit_on_one_screen(thousand: list[RolloutSummary], capsys: pytest.CaptureFixture[str]) -> None:
    said = status(capsys, thousand)
    assert len(said.splitlines()) <= 40
    assert said.startswith("875 open rollouts, 125 ended\n")
    (monitored,) = [line.split() for line in said.splitlines() if line.startswith("monitored ")]
    assert monitored[-2] == "375"
    assert "125 rollouts need a person" in said
    assert "and 117 more: backstop status --needs" in said
    risky = [s for s in thousand if s.open and s.unbacked_gpus]
    total = sum(s.unbacked_gpus or 0 for s in risky)
    assert f"{len(risky)} rollouts at risk: {total} GPUs have no healthy hardware behind them" in said


def test_what_cannot_wait_stands_before_the_plans_that_wait(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [one(n, stage="planned", needs="approve the plan: backstop approve c") for n in range(60)]
    pressing = [
        one(70, stage="monitored", needs="evals lacks hardware: wait for it", unbacked_gpus=9),
        one(71, stage="stuck"),
        one(72, stage="buffered", needs="taken over", lost=True),
    ]
    said = status(capsys, [*plans, *pressing]).partition("63 rollouts need a person")[2]
    named = [line.split()[0] for line in said.splitlines() if line.startswith("cluster-")]
    assert named[:3] == ["cluster-0072", "cluster-0071", "cluster-0070"]


def test_by_stage_and_wave_everything_is_counted_once(
    thousand: list[RolloutSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line.split() for line in status(capsys, thousand).splitlines()]
    table = rows[
        rows.index(["STAGE", "UNALLOCATED", "UNSCHEDULED", "IDLE", "BUSY", "NO", "PLAN", "ALL", "UNBACKED"]) + 1 :
    ]
    counted = [[int(cell) if cell != "-" else 0 for cell in row[1:-1]] for row in table[: table.index([])]]
    assert sum(row[-1] for row in counted) == 1000
    assert all(sum(row[:-1]) == row[-1] for row in counted)


def test_clusters_after_all_waves_are_counted_apart_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    several = [one(n, stage="planned", wave="after all" if n % 2 else "busy") for n in range(20)]
    said = status(capsys, several)
    headers, row = (next(line for line in said.splitlines() if line.startswith(at)) for at in ("STAGE", "planned"))
    assert " ".join(headers.split()) == "STAGE UNALLOCATED UNSCHEDULED IDLE BUSY AFTER ALL NO PLAN ALL UNBACKED"
    assert row.split()[1:7] == ["-", "-", "-", "10", "10", "-"]
    assert status(capsys, several, "--wave", "after all").count("cluster-") >= 10
    with answering(FakeBackstop(statuses=[one_status(wave="after all", plan_hash="abc")])):
        assert run(["status", "h100-worked"]) == 0
    assert ", after all waves, cuts" in capsys.readouterr().out


def test_a_sample_in_doubt_has_been_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The sums on the next line are computed from it."""
    now = datetime.now(UTC)
    found = one_status(health_at=now - timedelta(minutes=5), health_known=False, doubted_gpus=0)
    with answering(FakeBackstop(statuses=[found], source_at=now)):
        assert run(["status", "h100-worked"]) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("health")]
    assert "its source has a newer sample, from" in line
    assert "which does not count yet" in line
    assert "not read" not in line


def test_what_holds_a_rollout_is_counted_for_many_and_said_for_few(
    thousand: list[RolloutSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\n10 rollouts on hold: backstop status --held\n" in status(capsys, thousand)
    listed = status(capsys, thousand, "--held").partition("10 rollouts on hold\n")[2].splitlines()
    rows = [line.split(maxsplit=2) for line in listed[1:]]
    assert sorted(rows) == [[s.cluster, s.stage, "freeze: year end"] for s in thousand if s.held]
    stages = [stage for _, stage, _ in rows]
    assert (stages[0], stages[-1]) == ("monitored", "planned"), "what is written is more urgent than a plan"
    free = [one(n) for n in range(3)]
    assert "on hold" not in status(capsys, free)
    unknown = [one(7, stage="buffered", held=None), *free]
    sentence = "Whether 1 rollout is on hold is unknown: it has not recorded it yet."
    assert status(capsys, unknown, "--held") == f"{sentence}\n"
    assert sentence in status(capsys, unknown)


def test_few_have_a_line_each(thousand: list[RolloutSummary], capsys: pytest.CaptureFixture[str]) -> None:
    said = status(capsys, thousand[:10])
    assert [line.split()[0] for line in said.splitlines()[1:11]] == [s.cluster for s in thousand[:10]]
    assert "1 rollout needs a person" in said


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["--stage", "stuck"], lambda s: s.stage == "stuck"),
        (["--wave", "busy"], lambda s: s.wave == "busy"),
        (["--owner", "oncall"], lambda s: s.owner == "oncall"),
        (["--needs"], lambda s: bool(s.needs)),
        (["--at-risk"], lambda s: s.open and s.unbacked_gpus > 0),
        (["--held"], lambda s: s.open and s.held.startswith("freeze")),
        (["--open"], lambda s: s.open),
        (["--all"], lambda s: True),
        (["--stage", "stuck", "--owner", "oncall"], lambda s: False),
    ],
)
def test_filters_leave_what_fits(
    words: list[str], fits: Any, thousand: list[RolloutSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(status(capsys, thousand, "--json", *words))
    assert [r["cluster"] for r in answer["rollouts"]] == [s.cluster for s in thousand if fits(s)]
    said = status(capsys, thousand, *words)
    if answer["rollouts"]:
        assert said.count("cluster-") >= len(answer["rollouts"])
    else:
        assert said == "None of 1,000 rollouts matches.\n"


def test_without_a_worker_it_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    said = status(capsys, [one(n, needs=None, health_at=None) for n in range(100)])
    assert "What rollouts need from a person is unknown: no worker answered in time." in said
    assert "without health" not in said


def test_who_needs_what_is_not_none_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is unknown: no worker answered in time" in status(
        capsys, [one(6, stage="monitored", needs=None)], "--needs"
    )
    old = [one(n, stage="stuck", asked_at=None) for n in range(2)]
    said = status(capsys, [*old, one(6, stage="stuck")], "--needs")
    assert "2 of these are from the ledger, because the rollout was not asked or did not answer." in said
    assert "from the ledger" not in status(capsys, [one(6, stage="stuck")], "--needs")


def test_a_shadow_is_marked_and_what_would_be_has_a_column_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    rehearsal = one(3, stage="monitored", shadow=True, unbacked_gpus=26, would_unbacked_gpus=0)
    real = one(4, stage="monitored", unbacked_gpus=0)
    rows = [line.split() for line in status(capsys, [rehearsal, real]).splitlines()]
    assert rows[0] == ["CLUSTER", "STAGE", "WAVE", "OWNER", "UNBACKED", "WOULD", "BE", "STARTED", "ENDED"]
    assert rows[1][1:3] == ["monitored", "(shadow)"]
    assert (rows[1][5:7], rows[2][4:6]) == (["26", "0"], ["0", "-"])
    many = status(capsys, [rehearsal, *(one(n, stage="monitored", unbacked_gpus=0) for n in range(30))])
    counted = [line for line in many.splitlines() if line.startswith("monitored")]
    assert [line.split()[-1] for line in counted] == ["0", "26"]
    assert counted[1].startswith("monitored (shadow)")


def test_a_shadow_in_full_has_what_is_beside_what_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    would = WouldStand(assigned_gpus=435, backed_gpus=435, phantom_gpus=0, flex_gpus=69, flex_published_gpus=69)
    team = TeamStatus(team="research", baseline_gpus=496, quota_gpus=496, would_gpus=435, planned_gpus=435)
    found = one_status(Stage.MONITORED, shadow=True, would=would, assigned_gpus=496, teams=(team,))
    with answering(FakeBackstop(statuses=[found])):
        assert run(["status", "h100-worked"]) == 0
    said = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in said.splitlines()}
    assert " 496 promised" in rows["now"]
    assert " 435 promised, 435 backed, 0 phantom; surplus 0, flex 69" in rows["would be"]
    assert rows["published"].endswith("nothing; a real rollout would publish 69 of the surplus")
    assert rows["research"].split() == ["research", "496", "496", "435", "-", "435", "-", "advisory", "-"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, ""), (600, "; its source has a newer sample, from"), (-7200, "; not known or stale")],
    ids=["as its source", "older than its source", "silent"],
)
def test_health_says_how_old_it_is_and_what_its_source_has(
    seconds: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    shown = now - timedelta(seconds=3600 if seconds < 0 else 900)
    newest = shown if seconds <= 0 else shown + timedelta(seconds=seconds)
    found = one_status(health_at=shown, health_known=True, stale_after=timedelta(minutes=30))
    with answering(FakeBackstop(statuses=[found], source_at=newest)):
        assert run(["status", "h100-worked"]) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("health")]
    assert " ago)" in line
    assert said in line
    assert bool(said) or line.endswith("ago)")


def test_what_a_dead_worker_left_behind_is_not_well() -> None:
    listed = [Check.good(name, "so") for name in ("temporal", "workers", "watch")]
    assert [without_answers(check).ok for check in listed] == [True, False, False]
    now = datetime.now(UTC)
    rows = [
        Overview(cluster=f"c{n}", rollout="r", stage="monitored", needs="", health_at=now - timedelta(hours=n))
        for n in range(5)
    ]
    check = health_check([*rows, rows[4].model_copy(update={"ended": True})], now)
    assert not check.ok
    assert check.text.startswith(
        "no figures for 30m in 4 of 5 open rollouts: c1, c2, c3 and 1 more; the oldest figure is of"
    )
    assert health_check(rows[:1], now).ok


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(0.0, ""), (-59.0, ""), (600.0, "is 10m ahead of Temporal's"), (-7260.4, "is 121m behind Temporal's")],
)
def test_a_clock_that_differs_from_temporals_is_named(ahead: float, said: str) -> None:
    check = clock_check(ahead)
    assert check.ok is (not said)
    assert said in check.text
    asked = LedgerCheck(open_rollouts=0, worker_ahead_seconds=ahead)
    assert ("worker_ahead_seconds" in asked.model_dump(mode="json")) is bool(said)  # older clients do not know it


def test_clusters_that_nobody_reports_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    old = [one(n, stage="monitored", health_at=datetime.now(UTC) - timedelta(hours=n)) for n in range(5)]
    said = status(capsys, [*old, *(one(n, stage="monitored") for n in range(5, 30)), one(99, health_at=None)])
    assert "5 clusters without a health report for 30m: cluster-0001, cluster-0002, cluster-0003 and 2 more" in said


def test_a_windows_hold_names_the_calendar(capsys: pytest.CaptureFixture[str]) -> None:
    hold = Hold(id="sev-1", kind=HoldKind.SEV, reason="fabric", actor="calendar", at=NOON)
    with answering(FakeBackstop(statuses=[one_status(holds=(hold,))])):
        assert run(["status", "h100-worked"]) == 0
    assert "by calendar: fabric; see backstop calendar show h100-worked" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["h100-worked"]], ids=["fleet", "one"])
def test_a_dead_watch_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dead = Check.bad("watch", "silent since 2026-01-31 12:00:00Z; each rollout still looks at its cluster")
    with answering(FakeBackstop(watching=dead)):
        assert run(["status", *words]) == 0
    said = capsys.readouterr().out
    assert "The watch is silent since 2026-01-31 12:00:00Z; each rollout still looks at its cluster." in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stage", "sleeping"], "--stage must be one of planned, "),
        (["--wave", "9"], "--wave must be one of unallocated, unscheduled, idle, busy, after all, not '9'"),
        (["c", "--needs"], "--needs is given together with CLUSTER 'c': give one of them"),
    ],
)
def test_bad_filters_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["status", *words]) == 2
    assert door.asked == []
    assert capsys.readouterr().err.startswith(f"backstop: {said}")


def lost(*names: str) -> list[Overview]:
    return [
        Overview(cluster=n, rollout=f"{n}/1", stage="monitored", needs="", health_at=None, owner="ana", opened_at=NOON)
        for n in names
    ]


@pytest.mark.parametrize(("words", "owner"), [([], "ana"), (["--owner", "kim"], "kim")])
def test_lost_rollouts_are_adopted_for_their_owners_and_a_refusal_is_told(
    words: list[str], owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeBackstop(lost_rollouts=lost("a", "b", "c d"), taken=("b",))
    line = ["launch", "--adopt", "--all", "--reason", "the database is gone", "--actor", "tpm", "--yes", *words]
    with answering(fake):
        assert run([*line, "--policy", "notice=1d"]) == 1
    said = capsys.readouterr().out
    assert "2 of 3 lost rollouts adopted. No quota changes. Each adopted rollout waits for an approval" in said
    assert "b was not launched: another has it" in said
    assert "backstop approve 'c d' --plan" in said
    requests = [asked[1] for asked in fake.asked if asked[0] == "launch"]
    assert {(r.cluster, r.owner, r.actor, r.adopt, r.reason) for r in requests} == {
        (name, owner, "tpm", True, "the database is gone") for name in ("a", "b", "c d")
    }
    assert [r.policy for r in requests] == [{"notice": "1d"}] * 3


def test_where_every_adoption_was_refused_no_rollout_is_said_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop(lost_rollouts=lost("a"), taken=("a",))):
        assert run(["launch", "--adopt", "--all", "--reason", "moved", "--yes"]) == 1
    said = capsys.readouterr().out
    assert "0 of 1 lost rollout adopted. No quota changes." in said
    assert "waits" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--all"], "--all is only for --adopt"),
        (["--all", "--adopt", "c"], "CLUSTER 'c' is given together with --adopt --all"),
        (["--all", "--adopt", "--fleet"], "--all is given together with --fleet --adopt"),
        (["--all", "--adopt", "--wave", "1"], "--wave, --pilot or --pace is given together with"),
        (["--all", "--adopt", "--shadow"], "--shadow is given together with"),
        (["--fleet", "--adopt", "c"], "CLUSTER 'c' is given together with --fleet --adopt"),
        (["--fleet", "--adopt", "--wave", "1"], "--wave or --pilot is given together with --fleet --adopt"),
    ],
)
def test_all_goes_with_adopt_alone(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()):
        assert run(["launch", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_lost_rollout_is_named_with_what_to_do() -> None:
    rows = lost("a", "b", "c", "d", "e")
    assert rollouts_check(rows, []).ok
    assert rollouts_check(rows[:1], []).text == "Temporal runs the one that the ledger has open"
    assert rollouts_check([], []).text == "the ledger has none open"
    check = rollouts_check(rows, rows[1:])
    assert (
        check.text == "Temporal has lost 4 of 5 rollouts that the ledger has open, so nobody guards b, c, d and 1 more"
    )
    assert check.remedy.startswith("backstop launch --adopt --all; or one by one:")
    assert rollouts_check(rows, rows[:1]).remedy == "backstop launch a --adopt"


AWAY = LastWord(
    rollouts=tuple(
        Overview(
            cluster=name,
            rollout=f"{name}/1",
            stage=stage,
            needs="",
            health_at=NOON,
            shadow=False,
            ended=False,
            owner="tpm",
        )
        for name, stage in (("h100-1", "buffered"), ("h100-2", "monitored"))
    ),
    at=NOON,
    why="no worker is running, so nobody guards the quotas.",
)


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--stage", "monitored", "-o", "name"], 0, "h100-2\n", f"backstop: {AWAY.sentence}\n"),
        (["-o", "name"], 0, "h100-1\nh100-2\n", f"backstop: {AWAY.sentence}\n"),
        *(
            (
                words,
                1,
                "",
                AWAY.sentence + f" Waves, unbacked GPUs and holds are unknown meanwhile, so {asked} cannot be used.",
            )
            for words, asked in (
                (["--wave", "busy"], "--wave"),
                (["--at-risk"], "--at-risk"),
                (["--held"], "--held"),
                (["--filter", "wave=busy"], "--filter wave=busy"),
                (["--filter", "stage=*", "--filter", "unbacked_gpus>0", "--json"], "--filter unbacked_gpus>0"),
                (["--wave", "busy", "-o", "name"], "--wave"),
            )
        ),
    ],
)
def test_what_the_ledger_alone_cannot_answer_is_no_answer(
    words: list[str], code: int, out: str, err: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.commands.status.ask_or_read", lambda *_: AWAY)
    assert run(["status", *words, "--actor", "tpm"]) == code
    said = capsys.readouterr()
    assert said.out == out
    assert err in said.err


def test_a_history_that_lacks_effects_of_the_ledger_is_named() -> None:
    rows = [row.model_copy(update={"counter": 4}) for row in lost("a", "b", "c")]
    even, behind = (
        one_status(Stage.MONITORED).model_copy(update={"rollout": row.rollout, "fence": fence})
        for row, fence in zip(rows, (4, 2), strict=False)
    )
    assert histories_check(rows, {"a": even, "c": None}).text.startswith("1 open rollout compared: none lacks")
    check = histories_check(rows, {"a": even, "b": behind})
    assert not check.ok
    assert check.text == f"b: the ledger is at effect 4 of {rows[1].rollout}, Temporal at effect 2 of {rows[1].rollout}"
    assert "temporal workflow terminate -w rollout/b, then backstop launch b --adopt" in check.remedy
