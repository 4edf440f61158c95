"""Why a team cannot use its quota: what could start now, what is missing, and reasons that add up to it.

Theory of operation. Who asks for N GPUs within its quota G wants min(N, G). What could start now is what stands behind
the quota (its backing B) less what its own jobs hold inside it (U = min(S, G)), and with `block` no more than one
island's hardware could hold. The gap is the difference. It is told in reasons, counted in this order, each up to what
is left of the gap: what the quotas above withhold, what declared windows took, what is unhealthy, what the team's own
jobs hold idle, what they hold busy; then what only fragmentation takes. G - B splits into the first three and U into
the next two, so the reasons always add up to the gap. Jobs on flex are in nobody's way: they are preempted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np

from models.base import GpuCount, Model, Name, Time
from models.buffers.hourly_health import Stretch
from models.cluster.jobs import Job, RunsOn, named
from models.cluster.readings import HealthSample, QuotaReading, TeamUsage
from models.cluster.snapshot import present_snapshot
from models.cluster.windows import Window, active, explained
from models.errors import Refusal
from models.planning.backing import back


class Cause(StrEnum):
    """In the order in which they are counted."""

    WITHHELD = "withheld"
    DECLARED = "declared"
    UNHEALTHY = "unhealthy"
    IDLE = "idle"
    USED = "used"
    FRAGMENTED = "fragmented"


class Reason(Model):
    cause: Cause
    gpus: GpuCount
    text: str


class Missing(Model):
    """What an island lacks that could serve the quota."""

    island: Name
    gpus: GpuCount
    total_gpus: GpuCount
    since: Time | None
    """Since then it has not been whole, as far as samples of thirty days say; None: nobody knows."""
    or_earlier: bool = False
    """It was not whole in the first of them either."""


class TeamWhy(Model):
    """One team in one cluster. Units: whole GPUs."""

    cluster: Name
    team: Name
    at: Time
    health_at: Time
    quota_gpus: GpuCount
    asked_gpus: GpuCount
    block: bool
    wanted_gpus: GpuCount
    """min(asked, quota)."""
    startable_gpus: GpuCount
    """What could start now, inside the quota."""
    gap_gpus: GpuCount
    """wanted - startable."""
    reasons: tuple[Reason, ...]
    """They add up to the gap."""
    missing: tuple[Missing, ...]
    over_gpus: GpuCount
    """Asked for beyond the quota."""
    used_gpus: GpuCount
    """Held by its jobs inside the quota; all of it where that is not known."""
    use_known: bool


def why(
    reading: QuotaReading,
    sample: HealthSample,
    usage: Mapping[str, TeamUsage],
    windows: Sequence[Window],
    history: Mapping[str, Stretch],
    team: str,
    asked_gpus: int | None,
    now: datetime,
    *,
    block: bool = False,
    jobs: Sequence[Job] = (),
) -> TeamWhy:
    """Why the team cannot have so many GPUs now; all of its quota where none are named.

    Errors: Refusal where the team holds no quota that jobs run in.
    """
    snapshot = present_snapshot(reading, sample.islands)
    tree = snapshot.tree
    if team not in tree.leaves:
        what = "is a sum of others: name one of them" if team in tree.by_team else "is not there"
        raise Refusal(f"the quota of {team!r} in cluster {reading.cluster} {what}")
    quota = tree.by_team[team]
    backing, as_declared = back(snapshot), back(snapshot.with_islands(explained(snapshot.islands, windows, now)))
    entitled = backing.of[team] + backing.shortage.get(team, 0)
    declared = max(0, min(entitled, as_declared.of[team]) - backing.of[team])
    said = usage.get(team)
    used = quota.gpus if said is None else min(said.scheduled_gpus, quota.gpus)
    idle = 0 if said is None else min(said.idle_gpus, used)
    own = [j for j in jobs if j.team == team and j.ended is None and j.on is RunsOn.QUOTA]
    asked = quota.gpus if asked_gpus is None else asked_gpus
    wanted = min(asked, quota.gpus)
    loose = min(wanted, max(0, backing.of[team] - used))
    reach = [i for i in snapshot.islands if quota.islands is None or i.name in quota.islands]
    largest = max((i.room_for_blocks for i in reach), default=0)
    startable = min(loose, largest) if block else loose
    missing = tuple(
        Missing(
            island=i.name,
            gpus=i.total_gpus - i.healthy_gpus,
            total_gpus=i.total_gpus,
            **_since(history.get(i.name)),
        )
        for i in reach
        if i.healthy_gpus < i.total_gpus
    )
    parts = (
        (Cause.WITHHELD, quota.gpus - entitled, "the quotas above it promise less than the sum of theirs"),
        (Cause.DECLARED, declared, _windows(windows, now)),
        (Cause.UNHEALTHY, entitled - backing.of[team] - declared, _unhealthy(missing, sample)),
        (Cause.IDLE, idle, _idle(team, own)),
        (Cause.USED, used - idle, _used(team, used, quota.gpus, own, known=said is not None)),
    )
    reasons, left = [], wanted - loose
    for cause, most, text in parts:
        gpus = min(left, most)
        left -= gpus
        if gpus:
            reasons.append(Reason(cause=cause, gpus=gpus, text=text))
    if loose > startable:
        text = f"{loose} are there, and the largest block of healthy nodes in one island is {largest}"
        reasons.append(Reason(cause=Cause.FRAGMENTED, gpus=loose - startable, text=text))
    return TeamWhy(
        cluster=reading.cluster,
        team=team,
        at=now,
        health_at=sample.at,
        quota_gpus=quota.gpus,
        asked_gpus=asked,
        block=block,
        wanted_gpus=wanted,
        startable_gpus=startable,
        gap_gpus=wanted - startable,
        reasons=tuple(reasons),
        missing=missing,
        over_gpus=asked - wanted,
        used_gpus=used,
        use_known=said is not None,
    )


def _since(stretch: Stretch | None) -> dict[str, Any]:
    """From when on the island has not been whole, and whether that is only as far as anybody knows."""
    if stretch is None or not len(stretch.since):
        return {"since": None}
    whole = np.flatnonzero(stretch.healthy >= stretch.total)
    first = int(whole[-1]) + 1 if len(whole) else 0
    since = float(stretch.since[min(first, len(stretch.since) - 1)])
    return {"since": datetime.fromtimestamp(since, UTC), "or_earlier": not len(whole)}


def _windows(windows: Sequence[Window], now: datetime) -> str:
    named = [f"{w.kind}: {w.reason}, until {w.ends:%Y-%m-%d %H:%MZ}" for w in active(windows, now)]
    return f"declared as absent ({'; '.join(named)})"


def _unhealthy(missing: Sequence[Missing], sample: HealthSample) -> str:
    lacking = ", ".join(
        f"{m.gpus} of {m.total_gpus} in {m.island}"
        + (f" since {m.since:%Y-%m-%d %H:%MZ}{' or earlier' * m.or_earlier}" if m.since else "")
        for m in missing
    )
    healthy = f"no healthy GPU stands behind them: {sample.healthy_gpus} of {sample.total_gpus} are healthy"
    return f"{healthy} (unhealthy: {lacking})" if lacking else f"{healthy}, and more is promised"


def _idle(team: str, own: Sequence[Job]) -> str:
    names = named((j.job, j.idle_gpus) for j in own if j.idle_gpus)
    return f"{team}'s own running jobs hold them and do no work on them" + (f": {names}" if names else "")


def _used(team: str, used: int, quota: int, own: Sequence[Job], *, known: bool) -> str:
    if not known:
        return f"nobody says what {team}'s jobs hold, so all of the quota counts as used"
    names = named((j.job, j.gpus) for j in own)
    return f"{team}'s own running jobs hold {used} of its {quota}" + (f": {names}" if names else "")
