"""Jobs by name: who would go first, how long flex jobs lived, what a block has free, and the file they come in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.output import show
from client.inputs.jobs import classes_in, read_jobs
from models.cluster.fleet_file import Fleet
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn, first_to_go, flex_lives
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.errors import BadInput
from models.flex.flex_now import FlexNow, flex_now
from models.reports.why import explain_team
from views.flex import cluster_parts

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HEAD = "cluster,job,team,gpus,idle_gpus,on,island,started,ended,preempted\n"


def job(name: str, gpus: int, hours: float = 1, **more: Any) -> Job:
    """Return a job of team a in quota that has run for so many hours."""
    fields = {"job": name, "team": "a", "gpus": gpus, "started": NOW - hours * HOUR, **more}
    return Job.model_validate(fields)


def flex_job(name: str, gpus: int, hours: float = 1, **more: Any) -> Job:
    return job(name, gpus, hours, on="flex", **more)


def seen(*jobs: Job, **islands: tuple[int, int]) -> FlexNow:
    """Twelve are scheduled of eight. Islands: total, and healthy on whole nodes."""
    where = islands or {"x": (16, 16)}
    made = tuple(Island(name=n, total_gpus=t, healthy_gpus=h) for n, (t, h) in where.items())
    reading = QuotaReading(cluster="c1", generation=1, quotas=(Present(team="a", gpus=8),))
    sample = HealthSample(cluster="c1", at=NOW, islands=made)
    usage = {"a": TeamUsage(team="a", scheduled_gpus=12)}
    return flex_now(Evidence(reading, sample, usage, NOW, jobs)).but(lives=flex_lives(jobs, NOW - 168 * HOUR))


def test_of_who_is_furthest_above_its_share_the_youngest_goes_first() -> None:
    jobs = [flex_job("old", 1, 9), flex_job("new", 1, 1), flex_job("b", 8, 2, team="b"), job("quota", 8)]
    assert [j.job for j in first_to_go(jobs, {"a": 3, "b": 1}, {})] == ["new", "old", "b"]
    assert [j.job for j in first_to_go(jobs, {"a": 1, "b": 3}, {})] == ["b", "new", "old"]


def test_how_long_flex_jobs_lived_counts_those_that_were_preempted() -> None:
    over = {"ended": NOW - HOUR, "preempted": True}
    jobs = [
        flex_job("p1", 1, 3, **over),
        flex_job("p2", 1, 11, **over),
        flex_job("p3", 1, 5, **over),
        flex_job("done", 1, 90, ended=NOW),
        flex_job("runs", 1, 90),
        job("quota", 1, 3, ended=NOW),
        flex_job("long ago", 1, 900, ended=NOW - 200 * HOUR, preempted=True),
    ]
    lives = flex_lives(jobs, NOW - 168 * HOUR)
    assert (lives.ended, lives.preempted) == (4, 3)
    assert (lives.median_seconds, lives.shortest_seconds) == (4 * 3600, 2 * 3600)
    nothing = flex_lives([], NOW)
    assert (nothing.ended, nothing.median_seconds, nothing.shortest_seconds) == (0, None, None)


def test_the_free_block_is_what_no_job_runs_on_where_jobs_account_for_all() -> None:
    assert [i.free_block_gpus for i in seen(job("j", 12)).islands] == [4]
    assert [i.free_block_gpus for i in seen(job("j", 11)).islands] == [None], "one GPU is held by nobody knows whom"
    assert [i.free_block_gpus for i in seen().islands] == [None]
    assert [i.free_block_gpus for i in seen(job("j", 13)).islands] == [None], "more than samples of use say"
    assert [i.free_block_gpus for i in seen(job("j", 12), flex_job("f", 2)).islands] == [2], "flex is in no sample here"
    two = {"x": (16, 16), "y": (8, 8)}
    assert [i.free_block_gpus for i in seen(job("j", 12, island="x"), **two).islands] == [4, 8]
    assert [i.free_block_gpus for i in seen(job("j", 12), **two).islands] == [None, None], "where does it run?"


def test_a_team_whose_jobs_target_flex_is_not_above_a_share_that_nobody_else_asks_for() -> None:
    """No sample of use counts them. At 16 GPUs all fit; at 6 the 5 in quota leave one."""
    quotas = (Present(team="a", gpus=5), Present(team="z", gpus=1))
    usage = {"a": TeamUsage(team="a", scheduled_gpus=5), "z": TeamUsage(team="z", scheduled_gpus=0)}
    for healthy, share, above in ((16, 2, 0), (6, 1, 1)):
        here = (Island(name="x", total_gpus=16, healthy_gpus=healthy),)
        sample = HealthSample(cluster="c1", at=NOW, islands=here)
        reading = QuotaReading(cluster="c1", generation=1, quotas=quotas)
        (on_flex,) = flex_now(Evidence(reading, sample, usage, NOW, (flex_job("f", 2, team="z"),))).on_flex
        assert (on_flex.team, on_flex.gpus, on_flex.share_gpus, on_flex.above_gpus) == ("z", 2, share, above)


def test_the_view_names_jobs_and_their_lives(capsys: pytest.CaptureFixture[str]) -> None:
    found = seen(job("train", 8, 30), flex_job("sweep", 4, 2), flex_job("gone", 4, 9, ended=NOW, preempted=True))
    show(*cluster_parts(found, []))
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.startswith(("x ", "sweep "))] == [
        ["x", "16/16", "16", "4"],
        ["sweep", "a", "4", "2h", "-"],
    ]
    assert "By Backstop's rule these jobs yield in this order. The scheduler may choose another order." in out
    assert "In 7 days 1 job on flex ended, preempted; median run 9h, shortest 9h." in out


def test_why_names_the_jobs_that_hold_the_quota_and_those_that_idle() -> None:
    quotas = (Present(team="a", gpus=16), Present(team="b", gpus=0))
    reading = QuotaReading(cluster="c1", generation=1, quotas=quotas)
    sample = HealthSample(cluster="c1", at=NOW, islands=(Island(name="x", total_gpus=16, healthy_gpus=16),))
    usage = {"a": TeamUsage(team="a", scheduled_gpus=16, idle_gpus=4)}
    jobs = [job("train", 8), *(job(f"eval-{n}", 1, idle_gpus=n % 2) for n in range(8)), flex_job("sweep", 9)]
    found = explain_team(Evidence(reading, sample, usage, NOW, [*jobs, job("other", 1, team="b")]), {}, "a", None)
    idle, used = found.reasons
    assert idle.text == (
        "a's own running jobs hold them and do no work on them: eval-1 1, eval-3 1, eval-5 1, eval-7 1"
    )
    assert (
        used.text
        == "a's own running jobs work on 12 of its 16: train 8, eval-0 1, eval-2 1, eval-4 1 and 1 more with 1 in all"
    )
    assert idle.gpus + used.gpus == found.gap_gpus == 16


# --- the file ----------------------------------------------------------------------------------


def test_a_file_of_jobs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        HEAD + "c1,train,a,8,,,x,2026-01-31T00:00Z,,\nc1,sweep,b,4,1,flex,,2026-01-31T00:00Z,2026-01-31T02:00Z,true\n"
    )
    train, sweep = read_jobs(path)
    assert (train.cluster, train.gpus, train.on, train.island, train.ended) == ("c1", 8, RunsOn.QUOTA, "x", None)
    assert (sweep.idle_gpus, sweep.on, sweep.island, sweep.preempted) == (1, RunsOn.FLEX, None, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty: its first line must name the columns cluster, job, team, gpus, started"),
        (HEAD.replace("team,", ""), "line 1: column team is missing; the file has the columns"),
        (
            HEAD.replace("island", "rack"),
            "line 1: column 'rack' is unknown; known columns are cluster, job, team, gpus",
        ),
        (HEAD + "c1,j,a,1.5,,,,2026-01-31T00:00Z,,\n", "line 2: gpus"),
        (HEAD + "c1,j,a,0,,,,2026-01-31T00:00Z,,\n", "line 2: gpus"),
        (HEAD + "c1,j,a,1,2,,,2026-01-31T00:00Z,,\n", "line 2: idle_gpus is 2, above gpus 1"),
        (HEAD + "c1,j,a,1,,spot,,2026-01-31T00:00Z,,\n", "line 2: on"),
        (HEAD + "c1,j,a,1,,,,2026-01-31,,\n", "line 2: started"),
        (
            HEAD + "c1,j,a,1,,,,2026-01-31T00:00Z,,yes\n",
            "line 2: preempted is true, but the job has no ended: give its end too",
        ),
        (HEAD + "c1,j,a,1,,,,2026-01-31T02:00Z,2026-01-31T01:00Z,\n", "is before started"),
        (HEAD, "has no rows below its header"),
        (HEAD + "c1,j,a,010,,,,2026-01-31T00:00Z,,\n", "line 2: gpus"),
        (HEAD + 2 * "c1,j,a,1,,,,2026-01-31T00:00Z,,\n", "line 3: job 'j' is already in line 2"),
        (
            HEAD + "c1,j,a,1,,,,2026-01-31T00:00Z,,\nc1,j,a,1,,,,2026-01-30T00:00Z,,\n",
            "line 3: job 'j' is already in line 2",
        ),
        (HEAD.replace("island", "team"), "line 1: column team is given twice"),
        (HEAD + "c1,j,a\n", "line 2: 3 values for 10 columns"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_value(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_jobs(path)
    assert sentence in refused.value.message
    assert refused.value.message.startswith(str(path))


CLASSED = HEAD.replace("preempted", "preempted,job_class") + (
    "c1,e,a,8,,,,2026-01-31T00:00Z,,,engines\nc1,t,a,8,,,,2026-01-31T00:00Z,,,\nc1,d,{},8,,,,2026-01-31T00:00Z,,,{}\n"
)


def test_a_file_of_jobs_says_their_classes_and_none_that_their_quotas_have_not(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(CLASSED.format("b", "dev"))
    known = {("c1", "a"): ("training", "engines")}
    assert [j.job_class for j in read_jobs(path, known)] == ["engines", None, "dev"], "nobody has said what b has"
    for team, has in (("a", "has the classes training, engines"), ("b", "has no classes")):
        path.write_text(CLASSED.format(team, "dev"))
        with pytest.raises(BadInput) as refused:
            read_jobs(path, {**known, ("c1", "b"): ()})
        assert refused.value.message == f"{path}, line 4: job_class is 'dev', but the quota of {team} in c1 {has}"


def test_a_fleet_file_says_the_classes_that_it_names_and_no_others() -> None:
    """Without a policy in the file the ledger's holds, and its classes are unknown here."""
    island = {"name": "x", "total_gpus": 8, "healthy_gpus": 8}
    quotas = [{"team": "a", "gpus": 1, "classes": ["p", "q"]}, {"team": "b", "gpus": 1}]
    bare = {"clusters": [{"name": "c1", "islands": [island], "quotas": quotas}]}
    own = {"clusters": [{**bare["clusters"][0], "policy": {"classes": ["r"]}}]}
    said = [classes_in(Fleet.model_validate(one)) for one in (bare, own, {**bare, "policy": {"classes": ["s"]}})]
    assert [one.get(("c1", "b")) for one in said] == [None, ("r",), ("s",)]
    assert [one[("c1", "a")] for one in said] == 3 * [("p", "q")]
