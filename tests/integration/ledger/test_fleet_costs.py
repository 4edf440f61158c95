"""The cost of buffers to a ledger's fleet is the sum of the plans of each cluster's present state."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.rollout.cluster_calls import ClusterActivities
from models.audit_chain import Signature
from models.cluster.jobs import ClusterJob
from models.cluster.readings import HealthSample
from models.planning.fleet_haircut import FleetHaircut
from models.planning.plan import make_plan
from tests.integration.ledger.test_many_looks import NAMES, document
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool, import_fleet

BUFFERS = (Fraction(1, 10), Fraction(3, 20))
_WEEK = timedelta(days=7)


def activities_on(ledger: Ledger) -> ClusterActivities:
    return ClusterActivities(ledger.ports)


def one_by_one(ledger: Ledger, names: list[str], buffer: Fraction, now: datetime) -> list[tuple[int, int, int, str]]:
    """Plan each cluster by itself, as a launch would, in a process that has cached nothing."""
    fresh = activities_on(ledger)
    plans = [make_plan(s, p.but(buffer=buffer)) for s, p in (fresh.present(name, now) for name in names)]
    return [(p.cut_gpus, p.phantom_gpus, p.ceiling_gpus, p.wave.value) for p in plans]


def agrees(whole: FleetHaircut, ledger: Ledger, names: list[str], now: datetime) -> None:
    for n, buffer in enumerate(BUFFERS):
        cuts, phantoms, ceilings, waves = zip(*one_by_one(ledger, names, buffer, now), strict=True)
        part = whole.report.fleet[n]
        assert (part.clusters, part.cut_gpus, part.phantom_gpus, part.ceiling_gpus) == (
            len(names),
            sum(cuts),
            sum(phantoms),
            sum(ceilings),
        )
        assert {w: p[n].clusters for w, p in whole.report.waves.items() if p[n].clusters} == {
            wave: waves.count(wave) for wave in waves
        }


def _health(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    (sample,) = ledger.health.read(["many-2"]).values()
    islands = tuple(i.at_health(8) if i.name == "X" else i for i in sample.islands)
    ledger.fleet.add_health([HealthSample(cluster="many-2", at=now, islands=islands)], "exporter")


def _use(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE usage_samples SET scheduled_gpus = 70, idle_gpus = 0 WHERE cluster = 'many-2'")


def _quota(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE quotas SET gpus = 70 WHERE cluster = 'many-2' AND team = 'evals'")


def _policy(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    policy = json.dumps({"spare_gpus": 40, "max_tier": "idle"})
    tool.run("UPDATE clusters SET policy = ? WHERE name = 'many-2'", policy)


def _history(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    """Let the usual use rise, while the last samples stay."""
    for team, gpus in (("research", 30), ("grading", 20), ("evals", 48)):
        _sampled(tool, "many-2", team, [*[70] * 24, gpus], now + timedelta(seconds=30))


@pytest.mark.parametrize("moved", [_health, _use, _quota, _policy, _history])
def test_what_is_kept_follows_whatever_a_plan_goes_by(ledger: Ledger, tool: ForeignTool, moved: Any) -> None:
    now, names = LEDGER_NOW, list(NAMES)
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    costs = activities_on(ledger).costs
    before = costs.haircut_at(names, BUFFERS, now)
    agrees(before, ledger, names, now)
    moved(ledger, tool, now)
    later = now + timedelta(minutes=1)
    after = costs.haircut_at(names, BUFFERS, later)
    agrees(after, ledger, names, later)
    assert after != before


def test_a_cluster_that_vanished_or_has_no_health_is_left_out(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    costs = activities_on(ledger).costs
    costs.haircut_at(NAMES, BUFFERS, now)
    ledger.fleet.remove_cluster("many-2", Signature("tpm", now, "desk/1"), dry_run=False)
    agrees(costs.haircut_at(["many-1", "many-3"], BUFFERS, now), ledger, ["many-1", "many-3"], now)
    tool.run("DELETE FROM health_samples WHERE cluster = 'many-3'")
    whole = costs.haircut_at(NAMES, BUFFERS, now)
    agrees(whole, ledger, ["many-1"], now)
    assert whole.left_out == 2


def test_whose_work_is_cut_is_told_where_jobs_have_classes(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    tool.run("UPDATE clusters SET policy = ? WHERE name = 'many-2'", json.dumps({"classes": ["prod", "lab"]}))
    jobs = [
        ClusterJob(cluster="many-2", job=name, team="evals", gpus=24, started=now - timedelta(hours=1), job_class=name)
        for name in ("prod", "lab")
    ]
    ledger.jobs.add_jobs(jobs)
    activities = activities_on(ledger)
    whole = activities.costs.haircut_at(NAMES, [Fraction(1, 2)], now)
    ((cut, *_),) = whole.report.works
    assert (cut.cluster, cut.team) == ("many-2", "evals")
    assert "1 job of class lab holds 24 of the 48 GPUs that could yield" in cut.text
    tool.run("DELETE FROM jobs WHERE cluster = 'many-2'")
    assert activities.costs.haircut_at(NAMES, [Fraction(1, 2)], now).report.works == ((),)


def test_a_look_asks_as_often_whatever_there_is(empty_ledger: Ledger) -> None:
    took = dict[int, list[int]]()
    for many in (3, 30):
        clusters = [{**document()["clusters"][0], "name": f"many-{n}"} for n in range(many)]
        import_fleet(empty_ledger, {"clusters": clusters}, f"many/{many}", now=LEDGER_NOW)
        names = [one["name"] for one in clusters]
        costs = activities_on(empty_ledger).costs
        for _ in range(2):
            with counted_queries() as queries:
                assert costs.haircut_at(names, BUFFERS, LEDGER_NOW).report.fleet[0].clusters == many
            took.setdefault(many, []).append(len(queries))
    assert took[30] == took[3]
    assert max(took[30]) <= 12


# --- usual use ------------------------------------------------------------------------------------


def _sampled(tool: ForeignTool, cluster: str, team: str, scheduled: list[int], end: datetime) -> None:
    """One sample a minute, the last one at the end."""
    for n, gpus in enumerate(scheduled):
        at = end - timedelta(minutes=len(scheduled) - 1 - n)
        tool.run(
            "INSERT INTO usage_samples (cluster, team, at, scheduled_gpus, idle_gpus) VALUES (?, ?, ?, ?, 0)",
            cluster,
            team,
            at if tool.postgresql else at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            gpus,
        )


def test_usual_use_of_many_is_the_95th_percentile_of_each(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    tool.run("DELETE FROM usage_samples")
    drawn = {name: [(37 * k + 11 * n) % 41 for k in range(40)] for n, name in enumerate(NAMES)}
    for name, scheduled in drawn.items():
        _sampled(tool, name, "evals", scheduled, now)
    _sampled(tool, "many-1", "research", [7] * 19, now)
    windows = {"many-1": _WEEK, "many-2": timedelta(minutes=30), "many-3": _WEEK}
    samples = {**drawn, "many-2": drawn["many-2"][-31:]}
    for later in (now, now + timedelta(seconds=1)):
        readings = ledger.usage.readings(windows, later)
        for name, scheduled in samples.items():
            inside = scheduled[-30:] if name == "many-2" and later > now else scheduled
            (evals,) = (one for one in readings[name].teams if one.team == "evals")
            assert evals.scheduled_gpus == sorted(inside)[-(-95 * len(inside) // 100) - 1]
        assert readings["many-1"].source == "p95 over 7d, instant for 1 of 2 teams"
        assert readings["many-2"].source == "p95 over 30m"


def test_usual_use_is_read_again_where_a_sample_came_or_left_the_window(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    tool.run("DELETE FROM usage_samples")
    _sampled(tool, "many-2", "evals", [50, *[10] * 20], now)
    windows = {name: timedelta(minutes=21) for name in NAMES}

    def usual(at: datetime) -> list[int]:
        return [one.scheduled_gpus for one in ledger.usage.readings(windows, at)["many-2"].teams]

    assert usual(now) == [10]
    _sampled(tool, "many-2", "evals", [60, 60], now + timedelta(seconds=30))
    assert usual(now + timedelta(seconds=30)) == [60], "of 23 the second from above"
    assert usual(now + timedelta(minutes=2)) == [60]
    assert usual(now + timedelta(minutes=5)) == [60], "19 or fewer are left, and the last one counts"
    with counted_queries() as queries:
        ledger.usage.readings(windows, now + timedelta(minutes=5))
    assert len(queries) == 1, "the last samples alone are read"
