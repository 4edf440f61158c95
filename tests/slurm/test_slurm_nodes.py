"""Slurm's nodes as health, and its jobs as use, told by sinfo and squeue themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from models.cluster.jobs import RunsOn
from models.cluster.latest_readings import Evidence
from models.flex.flex_now import flex_now
from models.reports.why import explain_team
from tests.slurm.conftest import Site
from tests.slurm.lab import GPUS

pytestmark = pytest.mark.nightly  # a real Slurm


def healthy(site: Site) -> dict[str, int]:
    return {i.name: i.healthy_gpus for i in site.health.read([site.cluster])[site.cluster].islands}


def until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, what
        time.sleep(0.2)


@pytest.mark.parametrize("state", ["drain", "down", "fail"])
def test_a_node_that_is_out_is_not_healthy_and_back_it_is(site: Site, state: str) -> None:
    site.adopt()
    assert healthy(site) == {"island1": 24, "island2": 24}
    site.lab.run("scontrol", "update", "nodename=gpu001", f"state={state}", "reason=Xid 79")
    try:
        assert healthy(site) == {"island1": 16, "island2": 24}
    finally:
        site.lab.run("scontrol", "update", "nodename=gpu001", "state=resume")
    until(lambda: healthy(site) == {"island1": 24, "island2": 24}, "healthy again")


def test_a_node_in_maintenance_is_not_healthy(site: Site) -> None:
    site.adopt()
    site.lab.run(
        *("scontrol", "create", "reservation", "ReservationName=maint1", "StartTime=now", "Duration=60"),
        *("Flags=maint,ignore_jobs", "Nodes=gpu004", "Users=root"),
    )
    try:
        until(lambda: healthy(site)["island2"] == 16, "the reservation has begun")
    finally:
        site.lab.run("scontrol", "delete", "reservation", "maint1")
    until(lambda: healthy(site)["island2"] == 24, "it is over")


def test_a_node_that_does_not_answer_is_not_healthy(site: Site) -> None:
    site.adopt()
    site.lab.kill("slurmd.gpu006")
    try:
        until(lambda: healthy(site)["island2"] == 16, "Slurm has noticed")
    finally:
        site.lab.start()
    until(lambda: healthy(site)["island2"] == 24, "it answers again")


def test_what_jobs_hold_is_use_and_flex_jobs_stand_on_no_quota(site: Site) -> None:
    lab, team = site.lab, site.team("a")
    lab.account(f"{site.root}-flex-pool")
    lab.account(f"{team}-flex", f"{site.root}-flex-pool", qos="flex", defaultqos="flex")
    jobs = [lab.submit(team, 16, "train"), lab.submit(f"{team}-flex", 8, "sweep", "--qos=flex", "--requeue")]
    waiting = lab.submit(team, 16, "more")
    try:
        for job in jobs:
            lab.until(lambda job=job: lab.job(job)[0] == "RUNNING", "they run")  # type: ignore[misc]
        site.adopt()
        use = site.usage.latest([site.cluster], site.ledger.now())[site.cluster]
        assert (use[team].scheduled_gpus, use[team].idle_gpus, use[team].pending_gpus) == (16, 0, 16)
        assert use[site.team("b")].scheduled_gpus == 0
        found = site.ledger.jobs.jobs([site.cluster], site.ledger.now())[site.cluster]
        assert {(j.job, j.team, j.gpus, j.on) for j in found} == {
            (f"train ({jobs[0]})", team, 16, RunsOn.QUOTA),
            (f"sweep ({jobs[1]})", team, 8, RunsOn.FLEX),
        }
        lab.run("scancel", jobs[0])
        lab.until(
            lambda: not lab.run("squeue", "-h", "-t", "RUNNING,COMPLETING", "-j", jobs[0], "-o", "%i"), "it is over"
        )
        site.usage.latest([site.cluster], site.ledger.now())
        left = site.ledger.jobs.jobs([site.cluster], site.ledger.now())[site.cluster]
        assert f"train ({jobs[0]})" not in {j.job for j in left if j.ended is None}
    finally:
        lab.run("scancel", *jobs, waiting)


def test_a_job_of_an_account_without_a_limit_holds_its_team_s_quota(site: Site) -> None:
    lab, team = site.lab, site.team("a")
    lab.account(f"{team}-sub", team)
    job, waiting = lab.submit(f"{team}-sub", 16, "train"), lab.submit(f"{team}-sub", 16, "more")
    try:
        lab.until(lambda: lab.job(waiting)[1] == "AssocGrpGRES", "Slurm counts both in the limit of the account above")
        site.adopt()
        use = site.usage.latest([site.cluster], site.ledger.now())[site.cluster][team]
        assert (use.scheduled_gpus, use.pending_gpus) == (16, 16)
        shown = lab.run("scontrol", "-o", "show", "assoc_mgr", "flags=assoc", f"accounts={team}")
        assert "gres/gpu=24(16)" in shown
        (found,) = site.ledger.jobs.jobs([site.cluster], site.ledger.now())[site.cluster]
        assert (found.job, found.team, found.on) == (f"train ({job})", team, RunsOn.QUOTA)
        told = {quota.team: quota.scheduled_gpus for quota in site.slurms.describe(site.cluster, site.source).quotas}
        assert told == {team: 16, site.team("b"): 0}
    finally:
        lab.run("scancel", job, waiting)


def test_a_preempted_job_ended_when_slurm_says(site: Site) -> None:
    """Backstop reads the jobs only some seconds later."""
    lab, team = site.lab, site.team("b")
    lab.account(f"{site.root}-flex-pool")
    lab.account(f"{team}-flex", f"{site.root}-flex-pool", qos="flex", defaultqos="flex")
    lab.account(f"{site.root}-rest")
    jobs = [
        lab.submit(f"{site.root}-rest", 40, "rest"),
        lab.submit(f"{team}-flex", 8, "sweep", "--qos=flex", "--requeue"),
    ]
    try:
        lab.until(lambda: all(lab.job(job)[0] == "RUNNING" for job in jobs), "they run")
        site.adopt()
        site.usage.latest([site.cluster], site.ledger.now())
        jobs.append(lab.submit(team, 8, "train"))
        lab.until(lambda: lab.job(jobs[2])[0] == "RUNNING" and lab.job(jobs[1])[0] == "PENDING", "the sweep yields")
        time.sleep(5)
        ended = ("sacct", "-D", "-X", "-n", "-P", "-o", "State,End", "-j")
        lab.until(lambda: lab.run(*ended, jobs[1]).startswith("PREEMPTED|"), "Slurm has recorded it")
        site.usage.latest([site.cluster], site.ledger.now())
        found = site.ledger.jobs.jobs([site.cluster], site.ledger.now() - timedelta(hours=1))[site.cluster]
        (sweep,) = (job for job in found if job.job == f"sweep ({jobs[1]})")
        told = lab.run(*ended, jobs[1]).split("\n")[0].partition("|")[2]
        assert sweep.ended is not None
        assert sweep.preempted
        assert abs(sweep.ended.astimezone().replace(tzinfo=None) - datetime.fromisoformat(told)) <= timedelta(seconds=1)
    finally:
        lab.run("scancel", *jobs)


def test_gpus_that_accounts_outside_the_tree_hold_are_not_free(site: Site) -> None:
    lab, team, strangers = site.lab, site.team("a"), f"{site.root}-strangers"
    lab.account(strangers)
    jobs = [lab.submit(team, 8, "train"), lab.submit(strangers, 24, "theirs"), lab.submit(site.root, 8, "roots")]
    try:
        lab.until(lambda: all(lab.job(job)[0] == "RUNNING" for job in jobs), "they run")
        site.adopt()
        free = GPUS * lab.idle()
        seen = evidence(site)
        flex = flex_now(seen)
        assert (flex.promised_gpus, flex.backed_gpus, flex.in_quota_gpus) == (40, 40, 8), "no promise changes"
        assert (flex.outside, flex.available_gpus, free) == ({strangers: 24, site.root: 8}, 8, 8)
        answer = explain_team(seen, {}, team, None)
        assert (answer.startable_gpus, answer.used_gpus, answer.short_gpus) == (8, 8, 8)
        assert answer.reasons[0].text == f"jobs outside any quota run there: {strangers} 24, {site.root} 8"
        jobs += [lab.submit(team, 16, "more")]
        lab.until(lambda: lab.job(jobs[-1]) == ("PENDING", "Resources"), "Slurm finds no room for 16")
        jobs += [lab.submit(site.team("b"), 8, "one")]
        lab.run("scancel", jobs[1])
        lab.until(lambda: lab.job(jobs[-1])[0] == "RUNNING" and lab.job(jobs[3])[0] == "RUNNING", "both have room now")
        seen = evidence(site)
        assert (flex_now(seen).outside, flex_now(seen).available_gpus) == ({site.root: 8}, GPUS * lab.idle())
    finally:
        lab.run("scancel", *jobs)


def evidence(site: Site) -> Evidence:
    """Return what Backstop knows of the cluster, read now."""
    name, now = site.cluster, site.ledger.now()
    reading, sample, usage = (
        site.quotas.read(name),
        site.health.read([name])[name],
        site.usage.latest([name], now)[name],
    )
    return Evidence(reading, sample, usage, now, site.ledger.jobs.jobs([name], now)[name])


def test_every_task_of_an_array_that_waits_is_counted_however_long_their_list(site: Site) -> None:
    lab, team = site.lab, site.team("a")
    primes = [n for n in range(2, 200) if all(n % d for d in range(2, n))]
    assert len(primes) == 46
    array = lab.submit(team, 8, "sweep", f"--array={','.join(map(str, primes))}")
    throttled = lab.submit(team, 8, "slow", "--array=0-49%5", "--hold")
    try:
        lab.until(lambda: len(lab.run("squeue", "-h", "-t", "RUNNING", "-j", array, "-o", "%i").split()) == 3, "24 run")
        site.adopt()
        use = site.usage.latest([site.cluster], site.ledger.now())[site.cluster][team]
        assert (use.scheduled_gpus, use.pending_gpus) == (24, 8 * (46 - 3 + 5))
    finally:
        lab.run("scancel", array, throttled)


def test_of_a_slurm_that_does_not_answer_the_last_health_stands_and_grows_old(site: Site) -> None:
    site.adopt()
    before = site.health.read([site.cluster])[site.cluster]
    talk = site.slurms.talk(site.source)
    whole, talk._connection = talk._connection, talk._connection.model_copy(update={"conf": "/nowhere/slurm.conf"})
    try:
        found = site.health.read([site.cluster])[site.cluster]
        assert found.model_copy(update={"fault": ""}) == before
        assert found.fault.startswith("nodes of Slurm: "), "and it is said why"
    finally:
        talk._connection = whole
    until(lambda: site.health.read([site.cluster])[site.cluster].at > before.at, "it is read again")


def test_steady_health_keeps_two_rows_an_island_however_often_it_is_read(site: Site) -> None:
    site.adopt()
    for _ in range(5):
        site.health.read([site.cluster])
    history = site.health.history(site.cluster, site.ledger.now().replace(year=2000), site.ledger.now())
    assert len(history["island1"].since) <= 3
