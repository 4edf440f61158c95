"""The reasons add up to the gap, whatever the cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from models.cluster.evidence import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window, WindowKind
from models.planning.backing import back
from models.reports.why import Cause, why
from tests.strategies import small_snapshots

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDER = list(Cause)


@settings(deadline=None)
@given(snapshot=small_snapshots(), data=st.data())
def test_reasons_add_up_to_the_gap_and_stand_in_their_order(snapshot: Snapshot, data: st.DataObject) -> None:
    leaves = snapshot.tree.leaves
    if not leaves:
        return
    team = data.draw(st.sampled_from(leaves))
    scheduled = data.draw(st.none() | st.integers(0, 12))
    usage = {}
    if scheduled is not None:
        idle = data.draw(st.integers(0, scheduled))
        usage[team] = TeamUsage(team=team, scheduled_gpus=scheduled, idle_gpus=idle)
    windows = []
    if data.draw(st.booleans()):
        windows.append(
            Window(
                kind=data.draw(st.sampled_from(WindowKind)),
                starts=NOW - timedelta(hours=1),
                ends=NOW + timedelta(hours=1),
                reason="switches",
                gpus=data.draw(st.none() | st.integers(0, 8)),
            )
        )
    reading = QuotaReading(
        cluster="c",
        generation=1,
        quotas=tuple(
            Present(team=q.team, gpus=q.gpus, islands=q.islands, protected_blocks=q.protected_blocks, parent=q.parent)
            for q in snapshot.quotas
        ),
    )
    sample = HealthSample(cluster="c", at=NOW, islands=snapshot.islands)
    asked = data.draw(st.none() | st.integers(0, 20))
    block = data.draw(st.booleans())
    seen = Evidence(reading, sample, usage, NOW, windows=windows)
    found = why(seen, {}, team, asked, block=block)

    assert sum(r.gpus for r in found.reasons) == found.gap_gpus
    assert all(r.gpus > 0 and r.text for r in found.reasons)
    causes = [ORDER.index(r.cause) for r in found.reasons]
    assert causes == sorted(set(causes))
    assert 0 <= found.startable_gpus <= found.wanted_gpus <= found.quota_gpus
    assert found.wanted_gpus + found.over_gpus == found.asked_gpus
    bare = snapshot.with_values({})  # idle and scheduled do not matter to backing
    backing = back(bare).of[team]
    assert found.startable_gpus <= max(0, backing - found.used_gpus)
    if not block and found.gap_gpus:
        assert found.startable_gpus == max(0, backing - found.used_gpus)
    loose = why(seen, {}, team, asked)
    assert found.startable_gpus <= loose.startable_gpus, "a block is never easier to have"
