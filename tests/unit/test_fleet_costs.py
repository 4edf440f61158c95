"""The cost of a buffer to a fleet is the sum of plans made one by one, whatever is cached or has changed since."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.fleet.haircut import FleetCosts
from activities.ports.by_cluster import ByCluster
from models.cluster.policy import Policy, Tier
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage, UsageReading
from models.cluster.snapshot import Snapshot
from models.planning.fleet_haircut import FleetHaircut, Part, plan_at
from models.planning.plan import Plan, make_plan
from models.questions import ClusterFacts
from tests.strategies import SMALL, policies, snapshots
from tests.tried import examples

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
Fleet = dict[str, tuple[Snapshot, Policy]]


class _Sources:
    """The readings of a fleet, as a ledger would have them."""

    def __init__(self) -> None:
        self.fleet: Fleet = {}

    def costs(self) -> FleetCosts:
        sources: Any = SimpleNamespace(
            readings=lambda names: self._each(names, self._reading),
            believed_samples=lambda names, _: self._each(names, self._sample),
            jobs_of=lambda *_: {},
        )
        ports: Any = SimpleNamespace(
            usage=SimpleNamespace(readings=self._usage),
            registry=SimpleNamespace(facts_of=lambda names: self._each(names, self._facts)),
        )
        return FleetCosts(sources, ports)

    def _each(self, names: Sequence[str], tell: Any) -> ByCluster[Any]:
        return ByCluster({name: tell(name) for name in names if name in self.fleet})

    def _reading(self, name: str) -> QuotaReading:
        quotas = tuple(
            Present(
                team=q.team,
                gpus=q.gpus,
                islands=q.islands,
                protected_blocks=q.protected_blocks,
                minimum_gpus=q.minimum_gpus,
                parent=q.parent,
            )
            for q in self.fleet[name][0].quotas
        )
        return QuotaReading(cluster=name, generation=3, quotas=quotas)

    def _sample(self, name: str) -> HealthSample:
        return HealthSample(cluster=name, at=NOW, islands=self.fleet[name][0].islands)

    def _usage(self, windows: Mapping[str, timedelta], now: datetime) -> dict[str, UsageReading]:
        return {name: UsageReading(cluster=name, source="instant", teams=self._teams(name)) for name in windows}

    def _teams(self, name: str) -> tuple[TeamUsage, ...]:
        quotas = self.fleet[name][0].quotas
        return tuple(
            TeamUsage(team=q.team, scheduled_gpus=q.scheduled_gpus, idle_gpus=q.idle_gpus or 0)
            for q in quotas
            if q.scheduled_gpus is not None
        )

    def _facts(self, name: str) -> ClusterFacts:
        snapshot, policy = self.fleet[name]
        return ClusterFacts(
            name=name,
            gpu_model="H100",
            gpus_per_node=snapshot.gpus_per_node,
            policy=policy,
            completed_rollouts=snapshot.completed_rollouts,
            contacts={},
        )


def sums(plans: Sequence[Plan]) -> dict[str, int]:
    """Field by field, from the plans alone."""
    above = [max(0, plan.assigned_gpus - plan.ceiling_gpus) for plan in plans]
    return {
        "clusters": len(plans),
        "total_gpus": sum(p.total_gpus for p in plans),
        "healthy_gpus": sum(p.healthy_gpus for p in plans),
        "assigned_gpus": sum(p.assigned_gpus for p in plans),
        "unbacked_gpus": sum(p.phantom_gpus + p.unbacked_gpus for p in plans),
        "ceiling_gpus": sum(p.ceiling_gpus for p in plans),
        "above_gpus": sum(above),
        "clusters_above": sum(1 for gpus in above if gpus),
        "cut_gpus": sum(p.cut_gpus for p in plans),
        "phantom_gpus": sum(p.phantom_gpus for p in plans),
        "to_flex_gpus": sum(p.to_flex_gpus for p in plans),
        "short_gpus": sum(p.short_by_gpus for p in plans),
    }


def one_by_one(fleet: Fleet, buffer: Fraction) -> list[Plan]:
    return [make_plan(s, p.but(buffer=buffer)) for s, p in fleet.values()]


def agrees(whole: FleetHaircut, fleet: Fleet, buffers: Sequence[Fraction]) -> None:
    report = whole.report
    assert report.buffers == tuple(buffers)
    assert dict(report.without) == sums(one_by_one(fleet, Fraction(0)))
    for n, buffer in enumerate(buffers):
        plans = one_by_one(fleet, buffer)
        assert dict(report.fleet[n]) == sums(plans)
        waves = ["after all" if plan.why_last else plan.wave for plan in plans]
        assert {w: dict(p[n]) for w, p in report.waves.items() if w in [*Tier, *waves]} == {
            wave: sums([plan for plan, its in zip(plans, waves, strict=True) if its == wave])
            for wave in {*Tier, *waves}
        }


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, Policy]:
    """Idle GPUs are known only where it is known what is held, and parents hold nothing themselves."""
    drawn = draw(snapshots(SMALL))
    parents = {q.parent for q in drawn.quotas}
    quotas = tuple(
        q.model_copy(update={"scheduled_gpus": None, "idle_gpus": None})
        if q.team in parents or q.scheduled_gpus is None
        else q
        for q in drawn.quotas
    )
    return drawn.model_copy(update={"quotas": quotas}), draw(policies())


buffers_asked = st.lists(st.fractions(0, Fraction(1, 2)), min_size=1, max_size=3, unique=True)


@settings(max_examples=examples(100))
@given(st.lists(clusters(), min_size=3, max_size=4), clusters(), policies(), buffers_asked, buffers_asked)
def test_the_sums_are_those_of_plans_made_one_by_one(
    drawn: list[tuple[Snapshot, Policy]],
    other: tuple[Snapshot, Policy],
    policy: Policy,
    buffers: list[Fraction],
    other_buffers: list[Fraction],
) -> None:
    sources = _Sources()
    costs = sources.costs()
    sources.fleet = {f"c-{n}": (s.model_copy(update={"cluster": f"c-{n}"}), p) for n, (s, p) in enumerate(drawn)}
    agrees(costs.haircut_at([*sources.fleet], buffers, NOW), sources.fleet, buffers)
    agrees(costs.haircut_at([*sources.fleet], other_buffers, NOW), sources.fleet, other_buffers)
    sources.fleet["c-0"] = other[0].model_copy(update={"cluster": "c-0"}), sources.fleet["c-0"][1]
    agrees(costs.haircut_at([*sources.fleet], buffers, NOW), sources.fleet, buffers)
    sources.fleet["c-1"] = sources.fleet["c-1"][0], policy
    agrees(costs.haircut_at([*sources.fleet], buffers, NOW), sources.fleet, buffers)
    gone = sources.fleet.pop("c-2")
    agrees(costs.haircut_at([*sources.fleet], other_buffers, NOW), sources.fleet, other_buffers)
    sources.fleet["c-2"] = gone
    agrees(costs.haircut_at([*sources.fleet], buffers, NOW), sources.fleet, buffers)


def of_three() -> _Sources:
    sources = _Sources()
    for n in range(3):
        snapshot = Snapshot.model_validate(
            {
                "cluster": f"c-{n}",
                "islands": [{"name": "main", "total_gpus": 100, "healthy_gpus": 96}],
                "quotas": [{"team": "a", "gpus": 60, "scheduled_gpus": 50}, {"team": "b", "gpus": 35 + n}],
            }
        )
        sources.fleet[f"c-{n}"] = snapshot, Policy()
    return sources


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Fraction]]:
    """Every cluster that is planned from now on, with the buffer."""
    seen = list[tuple[str, Fraction]]()

    def noting(snapshot: Snapshot, policy: Policy, buffer: Fraction) -> Plan:
        seen.append((snapshot.cluster, buffer))
        return plan_at(snapshot, policy, buffer)

    monkeypatch.setattr("activities.fleet.haircut.plan_at", noting)
    return seen


def test_only_what_moved_is_planned_again(planned: list[tuple[str, Fraction]]) -> None:
    sources, buffers = of_three(), [Fraction(1, 10), Fraction(3, 20)]
    costs = sources.costs()
    costs.haircut_at([*sources.fleet], buffers, NOW)
    assert sorted(planned) == sorted((f"c-{n}", b) for n in range(3) for b in (Fraction(0), *buffers))
    planned.clear()
    costs.haircut_at([*sources.fleet], buffers, NOW + timedelta(hours=1))
    assert planned == []
    costs.haircut_at([*sources.fleet], [*buffers, Fraction(1, 5)], NOW)
    assert sorted(planned) == [(f"c-{n}", Fraction(1, 5)) for n in range(3)]
    planned.clear()
    snapshot, _ = sources.fleet["c-1"]
    sources.fleet["c-1"] = snapshot.with_values({"a": 61}), Policy()
    costs.haircut_at([*sources.fleet], buffers, NOW)
    assert {cluster for cluster, _ in planned} == {"c-1"}


def test_what_is_kept_has_a_bound(planned: list[tuple[str, Fraction]]) -> None:
    sources = of_three()
    costs = sources.costs()
    for hundredths in range(50):
        costs.haircut_at([*sources.fleet], [Fraction(3, 20), Fraction(hundredths, 100)], NOW)
    assert all(len(one.by) <= 16 for one in costs._kept.values())
    planned.clear()
    costs.haircut_at([*sources.fleet], [Fraction(3, 20), Fraction(49, 100)], NOW)
    assert planned == [], "what every look asked for is still there"
    del sources.fleet["c-2"]
    costs.haircut_at([*sources.fleet], [Fraction(3, 20)], NOW)
    assert set(costs._kept) == {"c-0", "c-1"}, "a cluster that is gone is kept no more"


def test_two_who_ask_at_once_have_it_planned_once(planned: list[tuple[str, Fraction]]) -> None:
    sources, buffers = of_three(), [Fraction(3, 20)]
    costs, answers = sources.costs(), list[FleetHaircut]()
    readers = [
        threading.Thread(target=lambda: answers.append(costs.haircut_at([*sources.fleet], buffers, NOW)))
        for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(planned) == 3 * 2
    assert answers[1:] == answers[:-1]
    agrees(answers[0], sources.fleet, buffers)


def test_one_that_cannot_be_planned_is_left_out_and_counted() -> None:
    sources = of_three()
    whole = sources.costs().haircut_at([*sources.fleet, "unknown"], [Fraction(3, 20)], NOW)
    assert whole.left_out == 1
    agrees(whole, sources.fleet, [Fraction(3, 20)])


def test_of_no_cluster_there_is_a_report() -> None:
    whole = _Sources().costs().haircut_at([], [Fraction(3, 20)], NOW)
    assert whole.report.fleet == (Part(),)
    assert set(whole.report.waves) == set(Tier)
    assert FleetHaircut.model_validate(whole.model_dump(mode="json")) == whole, "so it crosses"
