"""Cached results equal fresh ones, whatever has changed and whoever changed it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.ports.by_cluster import ByCluster
from activities.rollout.many_looks import ManyLooks
from models.audit_chain import Signature
from models.cluster.jobs import ClusterJob, RunsOn
from models.cluster.readings import HealthSample, QuotaReading
from models.errors import BackstopError, Refusal, Unavailable
from models.flex.division import FlexMode
from models.questions import WhyNot
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool, import_fleet

NAMES = ("many-1", "many-2", "many-3")
ASK = WhyNot(team="research")


def looks_at(ledger: Ledger) -> ManyLooks:
    return ManyLooks(ledger.ports)


def document() -> dict[str, Any]:
    return {
        "clusters": [
            {
                "name": name,
                "gpu_model": "H100",
                "islands": [
                    {"name": "X", "total_gpus": 64, "healthy_gpus": 60},
                    {"name": "Y", "total_gpus": 64, "healthy_gpus": 64},
                ],
                "quotas": [
                    {"team": "org", "gpus": 60},
                    {"team": "research", "gpus": 40, "parent": "org", "scheduled_gpus": 30, "idle_gpus": 4},
                    {"team": "grading", "gpus": 20, "parent": "org", "scheduled_gpus": 20, "idle_gpus": 0},
                    {"team": "evals", "gpus": 50, "scheduled_gpus": 48, "idle_gpus": 0},
                ],
            }
            for name in NAMES
        ]
    }


def _health(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    (sample,) = ledger.health.read(["many-2"]).values()
    islands = tuple(i.at_health(8) if i.name == "X" else i for i in sample.islands)
    ledger.fleet.add_health([HealthSample(cluster="many-2", at=now, islands=islands)], "exporter")


def _same_health_later(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    (sample,) = ledger.health.read(["many-2"]).values()
    ledger.fleet.add_health([sample.model_copy(update={"at": now})], "exporter")


def _use(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE usage_samples SET idle_gpus = 9 WHERE cluster = 'many-2' AND team = 'research'")


def _quota(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE quotas SET gpus = 58 WHERE cluster = 'many-2' AND team = 'evals'")


def _islands_of_a_quota(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE quotas SET islands = 'X' WHERE cluster = 'many-2' AND team = 'research'")


def _job(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    started = now - timedelta(hours=1)
    job = ClusterJob(cluster="many-2", job="j-1", team="evals", gpus=16, started=started, on=RunsOn.FLEX)
    ledger.jobs.add_jobs([job])


def _model(ledger: Ledger, tool: ForeignTool, now: datetime) -> None:
    tool.run("UPDATE clusters SET gpu_model = 'H200' WHERE name = 'many-2'")


@pytest.mark.parametrize("moved", [_health, _same_health_later, _use, _quota, _islands_of_a_quota, _job, _model])
def test_what_is_kept_follows_whatever_moves(ledger: Ledger, tool: ForeignTool, moved: Any) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    ours = looks_at(ledger)
    before = ours.flex(NAMES, FlexMode.EQUAL, now), ours.explain(NAMES, ASK, now)
    moved(ledger, tool, now)
    later = now + timedelta(minutes=1)
    fresh = looks_at(ledger)
    flex, why = ours.flex(NAMES, FlexMode.EQUAL, later), ours.explain(NAMES, ASK, later)
    assert flex == fresh.flex(NAMES, FlexMode.EQUAL, later)
    assert why == fresh.explain(NAMES, ASK, later)
    assert (flex["many-2"], why.teams[1]) != (before[0]["many-2"], before[1].teams[1])
    settled = {"at", "health_at"}
    assert flex["many-1"].model_dump(exclude=settled) == before[0]["many-1"].model_dump(exclude=settled)
    assert ours.flex_sums(NAMES, FlexMode.EQUAL, later) == fresh.flex_sums(NAMES, FlexMode.EQUAL, later)


def test_flex_in_numbers_alone_is_what_hardware_and_quotas_leave(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    ours = looks_at(ledger)
    ours.flex_sums(NAMES, FlexMode.EQUAL, now)
    tool.run("UPDATE usage_samples SET scheduled_gpus = 53 WHERE cluster = 'many-2' AND team = 'evals'")
    tool.run("DELETE FROM health_samples WHERE cluster = 'many-3'")
    held = "SELECT cluster, sum(scheduled_gpus) FROM usage_samples GROUP BY cluster ORDER BY cluster"
    healthy = "SELECT sum(healthy_gpus) FROM health_samples WHERE cluster = ?"
    first, second, third = ours.flex_sums(NAMES, FlexMode.EQUAL, now)
    jobs = dict(tool.rows(held))
    assert [first.available_gpus, second.available_gpus] == [
        tool.rows(healthy, name)[0][0] - jobs[name] for name in NAMES[:2]
    ]
    assert (second.promised_gpus, second.in_quota_gpus, second.used_gpus) == (60 + 50, 30 + 20 + 50, 3)
    assert (second.flex_gpus, second.total_gpus, second.gpu_model) == (124 - 100, 128, "H100")
    assert second.largest_free_block == (124 - 103, False), "less than an island, and nobody says where jobs run"
    assert (third.cluster, third.health_at) == ("many-3", None)


def test_the_health_that_numbers_go_by_is_of_the_last_sample(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(minutes=9))
    ours = looks_at(ledger)
    before = ours.flex_sums(NAMES, FlexMode.EQUAL, now)
    _same_health_later(ledger, tool, now)
    after = ours.flex_sums(NAMES, FlexMode.EQUAL, now)
    assert [one.health_at for one in after] == [now - timedelta(minutes=9), now, now - timedelta(minutes=9)]
    assert [one.but(health_at=now) for one in after] == [one.but(health_at=now) for one in before]


def test_a_thousand_clusters_take_no_more_questions_than_three(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    import_fleet(ledger, document(), "many", now=LEDGER_NOW)
    ours, asked = looks_at(ledger), list[str]()
    ours.flex(NAMES, FlexMode.EQUAL, LEDGER_NOW)
    reading = ledger.quotas.readings

    def noting(clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        asked.extend(clusters)
        return reading(clusters)

    monkeypatch.setattr(ledger.quotas, "readings", noting)
    again = ours.flex(NAMES, FlexMode.EQUAL, LEDGER_NOW)
    assert set(again) == set(NAMES)
    assert asked == [], "what has not moved is not read again"


def test_a_first_look_asks_as_often_whatever_there_is(empty_ledger: Ledger) -> None:
    """Three clusters and thirty take as many queries: one query a cluster would be three thousand in a fleet."""
    took = dict[tuple[str, int], int]()
    for many in (3, 30):
        clusters = [{**document()["clusters"][0], "name": f"many-{n}"} for n in range(many)]
        import_fleet(empty_ledger, {"clusters": clusters}, f"many/{many}", now=LEDGER_NOW)
        names = [one["name"] for one in clusters]
        with counted_queries() as queries:
            assert len(looks_at(empty_ledger).flex_sums(names, FlexMode.EQUAL, LEDGER_NOW)) == many
        took["flex", many] = len(queries)
        with counted_queries() as queries:
            assert len(looks_at(empty_ledger).explain(names, ASK, LEDGER_NOW).teams) == many
        took["why", many] = len(queries)
    assert (took["flex", 30], took["why", 30]) == (took["flex", 3], took["why", 3])
    assert max(took.values()) <= 12


def test_quotas_that_are_read_at_once_are_those_in_the_tables(ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(ledger, document(), "many", now=LEDGER_NOW)
    tool.run("UPDATE quotas SET islands = 'X', minimum = 3, gpus = 39 WHERE cluster = 'many-1' AND team = 'research'")
    tool.run("UPDATE quotas SET namespaces = ? WHERE cluster = 'many-2' AND team = 'research'", "a\tb")
    tool.run("DELETE FROM quotas WHERE cluster = 'many-3'")
    readings = ledger.quotas.readings([*NAMES, "there-is-no-such"])
    rows = tool.rows("SELECT team, gpus, parent, islands, minimum FROM quotas WHERE cluster = 'many-1' ORDER BY team")
    assert [
        (one.team, one.gpus, one.parent, ",".join(one.islands or ()) or None, one.minimum_gpus)
        for one in readings["many-1"].quotas
    ] == rows
    generations = dict(tool.rows("SELECT name, generation FROM clusters"))
    assert {name: one.generation for name, one in readings.items()} == {n: generations[n] for n in ("many-1", "many-3")}
    assert readings["many-3"].quotas == ()
    assert list(readings.senseless) == ["many-2"]
    for name in ("many-1", "many-3"):
        assert readings[name] == ledger.quotas.read(name)
    with pytest.raises(Refusal) as one:
        ledger.quotas.read("many-2")
    assert one.value.message == readings.senseless["many-2"]


@pytest.mark.parametrize("trouble", [Refusal, Unavailable])
def test_quotas_that_slurm_holds_are_read_from_it_first(
    ledger: Ledger, tool: ForeignTool, trouble: type[BackstopError]
) -> None:
    import_fleet(ledger, document(), "many", now=LEDGER_NOW)

    def sync(cluster: str, _: object) -> SimpleNamespace:
        if cluster == "many-2":
            raise trouble("Slurm has no account of research")
        tool.run("UPDATE quotas SET gpus = 47 WHERE cluster = ? AND team = 'evals'", cluster)
        return SimpleNamespace(limits={})

    sources = {name: SimpleNamespace(root="research") for name in NAMES[:2]}
    slurms: Any = SimpleNamespace(ledger=ledger, book=SimpleNamespace(sources=lambda _: sources), sync=sync)
    readings = SlurmQuotas(slurms).readings(NAMES)
    assert {name: one.values["evals"] for name, one in readings.items()} == {"many-1": 47, "many-3": 50}
    assert readings.senseless == {"many-2": "Slurm has no account of research"}


def test_one_that_makes_no_sense_or_is_unknown_is_named_and_the_others_are_told(
    ledger: Ledger, tool: ForeignTool
) -> None:
    import_fleet(ledger, document(), "many", now=LEDGER_NOW)
    tool.run("UPDATE quotas SET islands = 'X,X' WHERE cluster = 'many-2' AND team = 'research'")
    flex = looks_at(ledger).flex([*NAMES, "there-is-no-such"], FlexMode.EQUAL, LEDGER_NOW)
    assert set(flex) == {"many-1", "many-3"}
    assert "twice" in flex.senseless["many-2"]
    assert flex.senseless["there-is-no-such"] == "the ledger has no cluster 'there-is-no-such'"


def test_what_teams_are_promised_in_all_is_the_sum_of_leaves(ledger: Ledger, tool: ForeignTool) -> None:
    import_fleet(ledger, document(), "many", now=LEDGER_NOW)
    tool.run("UPDATE quotas SET gpus = 44 WHERE cluster = 'many-2' AND team = 'evals'")
    sums = {one.team: (one.clusters, one.gpus) for one in ledger.fleet.team_sums()}
    rows = tool.rows(
        "SELECT team, count(*), sum(gpus) FROM quotas AS q WHERE NOT EXISTS"
        " (SELECT 1 FROM quotas AS c WHERE c.cluster = q.cluster AND c.parent = q.team) GROUP BY team"
    )
    assert sums == {team: (clusters, gpus) for team, clusters, gpus in rows}
    assert sums["research"][0] >= 3
    assert "org" not in sums


def test_why_says_what_is_backed_and_idle(ledger: Ledger) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now)
    (one, *_) = looks_at(ledger).explain(NAMES, ASK, now).teams
    assert (one.quota_gpus, one.backed_gpus, one.used_gpus, one.idle_gpus) == (40, 40, 30, 4)


def test_a_cluster_that_is_removed_leaves_the_sums_of_the_past(ledger: Ledger, tool: ForeignTool) -> None:
    now = LEDGER_NOW
    import_fleet(ledger, document(), "many", now=now - timedelta(days=2))
    at = "INSERT INTO tallies (cluster, at, seen_at, total_gpus, healthy_gpus, assigned_gpus, backed_gpus) VALUES"
    text = (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for name in NAMES:
        tool.run(f"{at} (?, ?, ?, 128, 120, 110, 110)", name, text, text)
    times, within = [now - timedelta(hours=20)], timedelta(days=1)
    (before,) = ledger.tallies.points("", times, within)
    assert ledger.tallies.points("", times, within) == (before,)
    ledger.fleet.remove_cluster("many-2", Signature("tpm", now, "desk/1"), dry_run=False)
    (after,) = ledger.tallies.points("", times, within)
    assert (before.total_gpus, after.total_gpus) == (384, 256)
