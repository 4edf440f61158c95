"""Classes in the ledger: how they get in, the two views that schedulers read, and what is refused. By plain SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.facade import Ledger
from activities.rollout.cluster_calls import ClusterActivities
from models.cluster.jobs import ClusterJob
from models.errors import BadInput
from models.flex.division import FlexMode
from models.planning.plan import make_plan
from models.rollout.messages import ObserveRequest
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, NOW, ForeignTool, fleet, import_fleet, open_rollout

OF_TEAM = "SELECT class, rank FROM quota_classes WHERE cluster = ? AND team = ? ORDER BY rank"
OF_JOBS = """
    SELECT team, runs_on, class, rank, gpus, jobs FROM jobs_by_class WHERE cluster = ? ORDER BY team, runs_on, rank
"""
ODD = 'eval "1"\\2 \u00e9\''


def classed(**classes: list[str]) -> dict[str, Any]:
    """The small fleet with classes of teams of alpha, of its policy (`here`) and of the fleet's (`all`)."""
    made = fleet()
    for quota in made["clusters"][0]["quotas"]:
        if quota["team"] in classes:
            quota["classes"] = classes[quota["team"]]
    for policy, name in ((made["policy"], "all"), (made["clusters"][0]["policy"], "here")):
        policy |= {"classes": classes[name]} if name in classes else {}
    return made


def job(name: str, team: str, gpus: int, **more: Any) -> ClusterJob:
    return ClusterJob.model_validate(
        {"cluster": CLUSTER, "job": name, "team": team, "gpus": gpus, "started": NOW, **more}
    )


@pytest.mark.parametrize(
    ("given", "team", "classes"),
    [
        ({}, "a", []),
        ({"a": ["training", "engines"]}, "a", ["training", "engines"]),
        ({"a": ["z", "a", "m"], "here": ["x"], "all": ["y"]}, "a", ["z", "a", "m"]),
        ({"a": [], "here": ["x"], "all": ["y"]}, "a", []),
        ({"b": ["x"], "here": ["p", "q"], "all": ["y"]}, "a", ["p", "q"]),
        ({"b": ["x"], "here": [], "all": ["y"]}, "a", []),
        ({"b": ["x"], "all": ["y", "z"]}, "a", ["y", "z"]),
        ({"all": ["y"]}, "org-1", ["y"]),
        ({"all": ["y"]}, "org", []),
        ({"a": [ODD, "b]"]}, "a", [ODD, "b]"]),
        ({"here": [ODD]}, "a", [ODD]),
    ],
)
def test_a_view_has_the_classes_of_each_quota_that_jobs_run_in(
    given: dict[str, list[str]], team: str, classes: list[str], empty_ledger: Ledger, tool: ForeignTool
) -> None:
    import_fleet(empty_ledger, classed(**given))
    assert tool.rows(OF_TEAM, CLUSTER, team) == [(name, rank) for rank, name in enumerate(classes)]
    own = None if team not in given else tuple(given[team])
    assert next(q.classes for q in empty_ledger.quotas.read(CLUSTER).quotas if q.team == team) == own
    assert tool.one("SELECT classes FROM quotas WHERE cluster = ? AND team = ?", CLUSTER, team) == (
        None if own is None else ",".join(own)
    )


def test_a_job_ends_when_it_was_requeued_not_when_that_was_read(empty_ledger: Ledger, tool: ForeignTool) -> None:
    """`late` runs again already, `odd` was requeued before its start, and Slurm says nothing of `gone`."""
    import_fleet(empty_ledger, classed())
    names = ("waits", "late", "odd", "silent", "gone")
    empty_ledger.jobs.keep(CLUSTER, [job(name, "a", 8, on="flex") for name in names], {}, NOW)
    read, taken = NOW + timedelta(minutes=9), NOW + timedelta(minutes=2)
    again = [job("late", "a", 8, on="flex", started=NOW + timedelta(minutes=4))]
    since = {"waits": taken, "late": taken, "odd": NOW - timedelta(minutes=1), "silent": None}
    empty_ledger.jobs.keep(CLUSTER, again, since, read)
    found = {j.job: (j.ended, j.preempted) for j in empty_ledger.jobs.jobs([CLUSTER], NOW)[CLUSTER] if j.started == NOW}
    ends = {"waits": (taken, True), "late": (taken, True), "odd": (read, True), "silent": (read, True)}
    assert found == ends | {"gone": (read, False)}
    assert tool.one("SELECT count(*) FROM jobs WHERE ended IS NULL") == 1


def test_a_view_has_what_running_jobs_hold_by_class(empty_ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(empty_ledger, classed(a=["training", "engines"]))
    jobs = [
        *(job("t1", "a", 32, job_class="training"), job("t2", "a", 8)),
        *(job(f"e{n}", "a", n, job_class="engines") for n in (1, 2, 4)),
        *(job("f1", "a", 3, job_class="engines", on="flex"), job("b1", "b", 16)),
        job("over", "a", 64, job_class="engines", ended=NOW),
    ]
    assert empty_ledger.jobs.add_jobs(jobs) == len(jobs)
    assert tool.rows(OF_JOBS, CLUSTER) == [
        ("a", "flex", "engines", 1, 3, 1),
        ("a", "quota", "training", 0, 40, 2),
        ("a", "quota", "engines", 1, 7, 3),
        ("b", "quota", None, 0, 16, 1),
    ]
    read = {j.job: j.job_class for j in empty_ledger.jobs.jobs([CLUSTER], NOW)[CLUSTER]}
    assert read == dict(tool.rows("SELECT job, job_class FROM jobs")) == {j.job: j.job_class for j in jobs}


def test_a_class_that_the_quota_has_not_is_refused_and_nothing_is_stored(
    empty_ledger: Ledger, tool: ForeignTool
) -> None:
    import_fleet(empty_ledger, classed(a=["training", "engines"]))
    for team, has in (("a", "has the classes training, engines"), ("b", "has no classes")):
        with pytest.raises(BadInput) as refused:
            empty_ledger.jobs.add_jobs([job("j1", team, 1), job("j2", team, 1, job_class="dev")])
        assert refused.value.message == (
            f"job 'j2' of cluster 'alpha' is of class 'dev', but the quota of {team} {has}"
        )
    assert tool.one("SELECT count(*) FROM jobs") == 0


def test_jobs_that_another_tool_wrote_with_a_class_that_is_not_there_are_named(
    empty_ledger: Ledger, tool: ForeignTool
) -> None:
    import_fleet(empty_ledger, classed(a=["training", "engines"]))
    for name in ("one", "two"):
        tool.run(
            "INSERT INTO jobs (cluster, job, started, team, gpus, job_class)"
            f" VALUES ('alpha', '{name}', '2026-03-01T12:00:00.000000Z', 'a', 8, 'dev')"
        )
    (said,) = empty_ledger.fleet.senseless()[CLUSTER]
    assert said.endswith(
        "2 jobs are of class 'dev', but the team's quota has the classes training, engines: Backstop counts them in "
        "the strongest class"
    )
    assert tool.rows(OF_JOBS, CLUSTER) == [("a", "quota", "training", 0, 16, 2)]


def test_other_classes_are_no_other_promise(ledger: Ledger, tool: ForeignTool) -> None:
    """Neither by SQL nor by an import do they move the generation, take anything, or wait for a rollout's end."""
    open_rollout(ledger)
    before = tool.generation()
    tool.run("UPDATE quotas SET classes = 'training,engines' WHERE cluster = 'alpha' AND team = 'a'")
    import_fleet(ledger, classed(b=["x", "y"]), "second")
    assert (tool.generation(), tool.one("SELECT count(*) FROM quota_changes")) == (before, 0)
    assert dict(tool.rows("SELECT team, classes FROM quotas WHERE cluster = 'alpha' AND classes IS NOT NULL")) == {
        "b": "x,y"
    }


def activities_on(ledger: Ledger) -> ClusterActivities:
    return ClusterActivities(ledger.ports)


def test_what_is_told_of_classes_is_what_the_view_has(empty_ledger: Ledger, tool: ForeignTool) -> None:
    """This holds in flex, in a plan of GPUs in use and in a breach; a team with jobs of unknown class is left out."""
    import_fleet(empty_ledger, classed(all=["training", "engines"]))
    jobs = [
        *(job("t1", "a", 50, job_class="training"), job("t2", "a", 2)),
        *(job(f"e{n}", "a", 19, job_class="engines", island="X") for n in (1, 2)),
        *(job("b1", "b", 64, job_class="engines"), job("c1", "c", 8, job_class="engines", on="flex")),
    ]
    empty_ledger.jobs.add_jobs(jobs)
    site = activities_on(empty_ledger)
    flex = site.looks.flex([CLUSTER], FlexMode.EQUAL, LEDGER_NOW)[CLUSTER]
    told = {(w.team, w.on.value, c.job_class, c.gpus, c.jobs) for w in flex.yields for c in w.classes}
    of_view = "SELECT team, runs_on, class, gpus, jobs FROM jobs_by_class WHERE cluster = ? AND team <> 'b'"
    assert (
        told
        == set(tool.rows(of_view, CLUSTER))
        == {
            *(("a", "quota", "engines", 38, 2), ("a", "quota", "training", 52, 2), ("c", "flex", "engines", 8, 1)),
        }
    ), "120 of b are in use, and 64 are known by name"

    snapshot, policy = site.present(CLUSTER, LEDGER_NOW, {"buffer": 0.6})
    plan = make_plan(site.works.with_work(snapshot, policy, LEDGER_NOW), policy)
    (under,) = plan.work
    assert {("a", "quota", c.job_class, c.gpus, c.jobs) for c in under.classes} == {t for t in told if t[0] == "a"}
    assert plan.hash == make_plan(snapshot, policy).hash

    request = ObserveRequest(cluster=CLUSTER, at=LEDGER_NOW)
    assert ActivityEnvironment().run(site.observe, request).work == ()
    tool.run(
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus)"
        " VALUES ('alpha', 'X', '2026-03-01T12:09:00.000000Z', 200, 40)"
    )
    seen = ActivityEnvironment().run(site.observe, request)
    assert seen.shortage["a"] > 0
    assert seen.work == (under,)


def test_a_policy_that_makes_no_sense_keeps_no_guard_from_its_look(empty_ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(empty_ledger, classed(a=["training", "engines"]))
    empty_ledger.jobs.add_jobs([job("e", "a", 90, job_class="engines")])
    tool.run("UPDATE health_samples SET healthy_gpus = 0, block_gpus = 0 WHERE island = 'X'")
    tool.run("UPDATE clusters SET policy = ? WHERE name = 'alpha'", '{"buffer": 7}')
    seen = ActivityEnvironment().run(
        activities_on(empty_ledger).observe, ObserveRequest(cluster=CLUSTER, at=LEDGER_NOW)
    )
    assert (seen.shortage["a"], seen.work) == (100, ())
