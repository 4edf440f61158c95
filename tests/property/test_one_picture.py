"""The same cluster with the same jobs has the same free GPUs in whatever view tells of it: `why`, `flex`, `flex
simulate`, `status` and `request`; and they are what a linear program finds."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.rollout.observation import observe_from
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.flex.division import FlexTeam
from models.flex.flex_now import flex_now, share_expected
from models.flex.simulation import tell_story
from models.flex.story import FlexJob, FlexStep, FlexStory
from models.reports.why import explain_team
from models.rollout.messages import ObserveRequest
from tests.property.test_why import most
from tests.strategies import SMALL, snapshots

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def unused_after(snapshot: Snapshot, quotas: dict[str, int], running: dict[str, int]) -> Fraction:
    """Return what `flex simulate` leaves free with these jobs, each team's as one job."""
    story = FlexStory(
        capacity_gpus=snapshot.healthy_gpus,
        teams=tuple(FlexTeam(team=team, quota_gpus=gpus) for team, gpus in quotas.items()),
        steps=tuple(
            FlexStep(submit=FlexJob(job=f"{team}-1", team=team, gpus=Fraction(gpus))) for team, gpus in running.items()
        ),
    )
    scenes = tell_story(story)
    assert not scenes or not scenes[-1].queued
    return scenes[-1].unused_gpus if scenes else Fraction(snapshot.healthy_gpus)


@pytest.mark.nightly
@pytest.mark.fuzzed
@settings(deadline=None)
@given(snapshot=snapshots(SMALL, blocks=False), data=st.data())
def test_every_view_tells_the_same_free_gpus(snapshot: Snapshot, data: st.DataObject) -> None:
    values = {q.team: q.gpus for q in snapshot.quotas}
    leaves = snapshot.tree.leaf_gpus
    known = data.draw(st.sets(st.sampled_from(sorted(leaves)))) if leaves else set()
    usage = {t: TeamUsage(team=t, scheduled_gpus=data.draw(st.integers(0, leaves[t]))) for t in sorted(known)}
    quotas = tuple(Present(team=q.team, gpus=q.gpus, islands=q.islands, parent=q.parent) for q in snapshot.quotas)
    seen = Evidence(
        QuotaReading(cluster="c", generation=1, quotas=quotas),
        HealthSample(cluster="c", at=NOW, islands=snapshot.islands),
        usage,
        NOW,
    )
    held = values | {t: usage[t].scheduled_gpus if t in usage else g for t, g in leaves.items()}
    standing, backed = most(snapshot, held), most(snapshot, values)
    free = snapshot.healthy_gpus - standing

    flex = flex_now(seen)
    assert (flex.flex_gpus, flex.backed_gpus) == (free, backed)
    if len(known) == len(leaves):
        assert flex.in_quota_gpus == snapshot.tree.assigned_gpus(held)
        assert flex.used_gpus == sum(held[t] for t in leaves) - flex.in_quota_gpus, "what no quota promises is on flex"
    status = observe_from(seen, ObserveRequest(cluster="c", at=NOW)).now
    assert (status.flex_gpus, status.backed_gpus) == (free, backed)
    plain = not snapshot.tree.children and all(q.islands is None for q in quotas)
    running = {t: held[t] for t in leaves if held[t]}
    if leaves and plain and sum(running.values()) <= snapshot.healthy_gpus:
        assert unused_after(snapshot, leaves, running) == free
    for team, gpus in leaves.items():
        startable = explain_team(seen, {}, team, None).startable_gpus
        assert startable == most(snapshot, held | {team: gpus}) - standing <= free
        # What it would have of flex beside a quota that it uses whole.
        beside = snapshot.healthy_gpus - most(snapshot, held | {team: gpus})
        if plain:
            assert share_expected(snapshot, usage, team, 1000) >= beside
