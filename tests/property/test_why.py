"""For any cluster, the GPUs that could start match a linear program, and the reasons add up to the gap."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading, TeamUsage
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window, WindowKind
from models.reports.why import Cause, explain_team
from tests.strategies import small_snapshots

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def most(snapshot: Snapshot, asked: dict[str, int], reserved: dict[str, int] | None = None) -> int:
    """The most GPUs that leaves can hold: each so many at most, under every bound above. By a linear program."""
    leaves, islands = list(snapshot.tree.leaves), list(snapshot.islands)
    if not leaves or not islands:
        return 0
    columns = [(leaf, island) for leaf in leaves for island in islands]
    rows, limits = [], []
    for quota in snapshot.quotas:
        below = {leaf for leaf in leaves if leaf == quota.team or quota.team in snapshot.tree.ancestors(leaf)}
        rows.append([float(leaf in below) for leaf, _ in columns])
        limits.append(asked.get(quota.team, quota.gpus))
    for island in islands:
        rows.append([float(i is island) for _, i in columns])
        limits.append(island.healthy_gpus - (reserved or {}).get(island.name, 0))
    for leaf in leaves:
        reach = snapshot.tree.by_team[leaf].islands
        rows.append([float(one == leaf and reach is not None and i.name not in reach) for one, i in columns])
        limits.append(0)
    answer = linprog([-1.0] * len(columns), A_ub=rows, b_ub=limits)
    assert answer.fun is not None
    return round(-answer.fun)


def without(cause: Cause, seen: Evidence, team: str) -> Evidence:
    """The cluster once somebody has done away with a cause."""
    by_team = {q.team: q for q in seen.reading.quotas}
    nothing = {t: TeamUsage(team=t, scheduled_gpus=0) for t in by_team}
    own = seen.usage.get(team)
    assert seen.sample is not None
    match cause:
        case Cause.WITHHELD:
            parents = {q.parent for q in by_team.values()}
            quotas = tuple(q.model_copy(update={"gpus": 1000}) if q.team in parents else q for q in by_team.values())
            return replace(seen, reading=seen.reading.model_copy(update={"quotas": quotas}))
        case Cause.UNHEALTHY:
            mended = [i.model_copy(update={"healthy_gpus": i.total_gpus}) for i in seen.sample.islands]
            return replace(seen, sample=seen.sample.model_copy(update={"islands": tuple(mended)}))
        case Cause.OTHERS:
            alone = {t: u for t, u in nothing.items() if t != team}
            return replace(seen, usage=alone if own is None else {**alone, team: own})
        case Cause.IDLE:
            assert own is not None
            busy = TeamUsage(team=team, scheduled_gpus=min(own.scheduled_gpus - own.idle_gpus, by_team[team].gpus))
            return replace(seen, usage={**seen.usage, team: busy})
        case Cause.USED:
            idle = 0  # what of the quota is idle goes on, a cause of its own
            if own is not None:
                quota = by_team[team].gpus
                idle = min(own.scheduled_gpus, quota) - min(own.scheduled_gpus - own.idle_gpus, quota)
            rest = TeamUsage(team=team, scheduled_gpus=idle, idle_gpus=idle)
            return replace(seen, usage={**seen.usage, team: rest})
        case _:
            raise AssertionError(f"nobody does away with {cause}")


@settings(deadline=None)
@given(snapshot=small_snapshots(), data=st.data())
def test_reasons_add_up_to_the_gap_and_the_first_binds(snapshot: Snapshot, data: st.DataObject) -> None:
    leaves = snapshot.tree.leaves
    assume(leaves)
    team = data.draw(st.sampled_from(leaves))
    usage = {}
    for leaf in leaves:
        scheduled = data.draw(st.none() | st.integers(0, 12))
        if scheduled is not None:
            idle = data.draw(st.integers(0, scheduled))
            usage[leaf] = TeamUsage(team=leaf, scheduled_gpus=scheduled, idle_gpus=idle)
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
    found = explain_team(seen, {}, team, asked, block=block)

    assert sum(r.gpus for r in found.reasons) == found.gap_gpus
    assert all(r.gpus > 0 and r.text for r in found.reasons)
    assert len({r.cause for r in found.reasons}) == len(found.reasons)
    assert 0 <= found.startable_gpus <= found.wanted_gpus <= found.quota_gpus
    assert found.wanted_gpus + found.over_gpus == found.asked_gpus
    values = snapshot.tree.leaf_gpus
    held = {t: min(g, usage[t].scheduled_gpus) if t in usage else g for t, g in values.items()}
    gains = most(snapshot, {**held, team: values[team]}) - most(snapshot, held)
    loose = explain_team(seen, {}, team, asked)
    if loose.reasons and not windows:
        first, alone = loose.reasons[0], {}
        for cause in (Cause.WITHHELD, Cause.UNHEALTHY, Cause.OTHERS, Cause.IDLE, Cause.USED):
            if cause is not Cause.IDLE or team in usage:
                alone[cause] = (
                    explain_team(without(cause, seen, team), {}, team, asked).startable_gpus - loose.startable_gpus
                )
        assert alone.get(first.cause) == first.gpus or not any(alone.values()), "it starts what it is said to hold up"
    assert loose.startable_gpus == min(loose.wanted_gpus, gains)
    assert found.startable_gpus <= loose.startable_gpus, "a block is never easier to have"
    if block and found.startable_gpus:  # somewhere it leaves room for everybody else
        rooms = [i.name for i in snapshot.islands if i.room_for_blocks >= found.startable_gpus]
        assert any(most(snapshot, held, {name: found.startable_gpus}) == most(snapshot, held) for name in rooms)
