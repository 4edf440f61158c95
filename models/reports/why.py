"""Why a team cannot use its quota: what could start now, what is missing, and reasons that add up to it.

Theory of operation. Who asks for N GPUs within its quota G wants min(N, G). What could start now is what stands behind
the quota (its backing B) less what its own jobs hold inside it (U = min(S, G)), and with `block` no more than one
island's hardware could hold. The gap is the difference. It is told in reasons, counted in this order, each up to what
is left of the gap: what the quotas above withhold, what declared windows took, what is unhealthy, what the team's own
jobs hold idle, what they hold busy; then what only fragmentation takes. G - B splits into the first three and U into
the next two, so the reasons always add up to the gap. Jobs on flex are in nobody's way: they are preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from models.base import GpuCount, Model, Name, Time
from models.buffers.hourly_health import Stretch
from models.cluster.evidence import Evidence
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn, jobs_text
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot, present_snapshot
from models.cluster.windows import Window, active, without_absences
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


class _Behind(NamedTuple):
    """A quota, split by what stands behind it: it is the sum of these."""

    backed: int
    unhealthy: int
    declared: int
    withheld: int


class _Held(NamedTuple):
    """What a team's own jobs hold inside its quota."""

    used: int
    idle: int
    known: bool
    jobs: tuple[Job, ...]


def why(
    seen: Evidence, history: Mapping[str, Stretch], team: str, asked_gpus: int | None, *, block: bool = False
) -> TeamWhy:
    """Why the team cannot have so many GPUs now; all of its quota where none are named.

    `history`: the health of each island of late. Errors: Refusal where the team holds no quota that jobs run in, or
    nobody knows the cluster's health.
    """
    cluster, sample = seen.reading.cluster, seen.sample
    if sample is None:
        raise Refusal(f"nobody knows the health of cluster {cluster}")
    snapshot = present_snapshot(seen.reading, sample.islands)
    if team not in snapshot.tree.leaves:
        what = "is a sum of others: name one of them" if team in snapshot.tree.by_team else "is not there"
        raise Refusal(f"the quota of {team!r} in cluster {cluster} {what}")
    quota = snapshot.tree.by_team[team]
    behind, held = _behind(snapshot, quota, seen), _held(quota, seen)
    asked = quota.gpus if asked_gpus is None else asked_gpus
    wanted = min(asked, quota.gpus)
    loose = min(wanted, max(0, behind.backed - held.used))
    reach = [i for i in snapshot.islands if quota.islands is None or i.name in quota.islands]
    largest = max((i.room_for_blocks for i in reach), default=0)
    startable = min(loose, largest) if block else loose
    missing = tuple(_missing(i, history.get(i.name)) for i in reach if i.healthy_gpus < i.total_gpus)
    causes = (
        (Cause.WITHHELD, behind.withheld, "the quotas above it promise less than the sum of theirs"),
        (Cause.DECLARED, behind.declared, _windows(seen.windows, seen.at)),
        (Cause.UNHEALTHY, behind.unhealthy, _unhealthy(missing, sample)),
        (Cause.IDLE, held.idle, _idle(team, held)),
        (Cause.USED, held.used - held.idle, _used(quota, held)),
    )
    fragments = f"{loose} are there, and the largest block of healthy nodes in one island is {largest}"
    return TeamWhy(
        cluster=cluster,
        team=team,
        at=seen.at,
        health_at=sample.at,
        quota_gpus=quota.gpus,
        asked_gpus=asked,
        block=block,
        wanted_gpus=wanted,
        startable_gpus=startable,
        gap_gpus=wanted - startable,
        reasons=(
            *_counted(causes, wanted - loose),
            *_counted([(Cause.FRAGMENTED, loose - startable, fragments)], loose - startable),
        ),
        missing=missing,
        over_gpus=asked - wanted,
        used_gpus=held.used,
        use_known=held.known,
    )


def _behind(snapshot: Snapshot, quota: Quota, seen: Evidence) -> _Behind:
    backing, team = back(snapshot), quota.team
    as_declared = back(snapshot.with_islands(without_absences(snapshot.islands, seen.windows, seen.at)))
    backed = backing.of[team]
    entitled = backed + backing.shortage.get(team, 0)
    declared = max(0, min(entitled, as_declared.of[team]) - backed)
    return _Behind(backed, entitled - backed - declared, declared, quota.gpus - entitled)


def _held(quota: Quota, seen: Evidence) -> _Held:
    usage = seen.usage.get(quota.team)
    used = quota.gpus if usage is None else min(usage.scheduled_gpus, quota.gpus)
    idle = 0 if usage is None else min(usage.idle_gpus, used)
    jobs = tuple(j for j in seen.jobs if j.team == quota.team and j.ended is None and j.on is RunsOn.QUOTA)
    return _Held(used, idle, usage is not None, jobs)


def _counted(causes: Iterable[tuple[Cause, int, str]], gap: int) -> Iterator[Reason]:
    """Each cause up to what is left of the gap."""
    for cause, most, text in causes:
        gpus = min(gap, most)
        gap -= gpus
        if gpus:
            yield Reason(cause=cause, gpus=gpus, text=text)


def _missing(island: Island, stretch: Stretch | None) -> Missing:
    gpus = island.total_gpus - island.healthy_gpus
    return Missing(island=island.name, gpus=gpus, total_gpus=island.total_gpus, **_since(stretch))


def _since(stretch: Stretch | None) -> dict[str, Any]:
    """From when on the island has not been whole, and whether that is only as far as anybody knows."""
    if stretch is None or not len(stretch.since):
        return {"since": None}
    whole = np.flatnonzero(stretch.healthy >= stretch.total)
    first = int(whole[-1]) + 1 if len(whole) else 0
    since = float(stretch.since[min(first, len(stretch.since) - 1)])
    return {"since": datetime.fromtimestamp(since, UTC), "or_earlier": not len(whole)}


def _windows(windows: Sequence[Window], now: datetime) -> str:
    spans = [f"{w.kind}: {w.reason}, until {w.ends:%Y-%m-%d %H:%MZ}" for w in active(windows, now)]
    return f"declared as absent ({'; '.join(spans)})"


def _unhealthy(missing: Sequence[Missing], sample: HealthSample) -> str:
    lacking = ", ".join(
        f"{m.gpus} of {m.total_gpus} in {m.island}"
        + (f" since {m.since:%Y-%m-%d %H:%MZ}{' or earlier' * m.or_earlier}" if m.since else "")
        for m in missing
    )
    healthy = f"no healthy GPU stands behind them: {sample.healthy_gpus} of {sample.total_gpus} are healthy"
    return f"{healthy} (unhealthy: {lacking})" if lacking else f"{healthy}, and more is promised"


def _idle(team: str, held: _Held) -> str:
    names = jobs_text((j.job, j.idle_gpus) for j in held.jobs if j.idle_gpus)
    return f"{team}'s own running jobs hold them and do no work on them" + (f": {names}" if names else "")


def _used(quota: Quota, held: _Held) -> str:
    if not held.known:
        return f"nobody says what {quota.team}'s jobs hold, so all of the quota counts as used"
    names = jobs_text((j.job, j.gpus) for j in held.jobs)
    return f"{quota.team}'s own running jobs hold {held.used} of its {quota.gpus}" + (f": {names}" if names else "")
