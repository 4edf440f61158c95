"""The explanation why a team cannot use its quota: what could start now, and reasons that add up to the rest.

Theory of operation. A team that asks for N GPUs within its quota G wants min(N, G). What could start now is what
hardware gives it beside all jobs that run inside their quotas, its own included (models/planning/occupancy.py); with
`block` it is at most what one island has free. The gap is the difference: the part that its own jobs hold is used, the
rest is short. It is explained by removing one cause after the other, in the order of `Cause`, and counting each time
what more could start: a cause that limits nothing is not named, and once all named causes are gone, the jobs start.
Jobs on flex are never in the way: they are preempted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from models.base import GpuCount, Model, Name, Time, Words
from models.cluster.island import Island
from models.cluster.jobs import Job, RunsOn, gpus_by_team, jobs_text, outside_quotas
from models.cluster.latest_readings import Evidence
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot, present_snapshot, under_bound
from models.cluster.windows import Window, active, without_absences
from models.errors import Refusal
from models.planning.backing import back
from models.planning.occupancy import held_in_quota, startable, startable_block
from models.reports.jobs_to_end import WeakerJobs, weaker_jobs
from models.texts import gpus_text, verb_of

if TYPE_CHECKING:
    from models.buffers.hourly_health import Stretch


class Cause(StrEnum):
    """The causes of a gap, in the order in which they are removed."""

    BARRED = "barred"
    WITHHELD = "withheld"
    DECLARED = "declared"
    UNHEALTHY = "unhealthy"
    OTHERS = "others"
    IDLE = "idle"
    USED = "used"
    ABSENT = "absent"
    FRAGMENTED = "fragmented"

    @property
    def own(self) -> bool:
        """True for GPUs that the team's own running jobs hold: nothing is missing then."""
        return self in (Cause.IDLE, Cause.USED)


class Reason(Model):
    cause: Cause
    gpus: GpuCount
    text: str


class Missing(Model):
    """GPUs missing in an island that could serve the quota."""

    island: Name
    gpus: GpuCount
    total_gpus: GpuCount
    since: Time | None
    """Time since which the island has lacked GPUs, by samples of the last 30 days; None: unknown."""
    or_earlier: bool = False
    """Whether the island lacked GPUs already in the first of these samples."""


class TeamWhy(Model):
    """One team in one cluster. Units: whole GPUs."""

    cluster: Name
    team: Name
    at: Time
    health_at: Time
    health_stale: bool = False
    """The latest health sample is older than the cluster's policy allows."""
    quota_gpus: GpuCount
    asked_gpus: GpuCount
    block: bool
    wanted_gpus: GpuCount
    """The smaller of `asked_gpus` and `quota_gpus`."""
    startable_gpus: GpuCount
    """GPUs that could start now, inside the quota."""
    gap_gpus: GpuCount
    """`wanted_gpus` - `startable_gpus`."""
    reasons: tuple[Reason, ...]
    """The reasons; their GPUs add up to the gap."""
    missing: tuple[Missing, ...]
    over_gpus: GpuCount
    """GPUs asked for beyond the quota."""
    used_gpus: GpuCount
    """GPUs that the team's jobs hold inside the quota; the whole quota where use is unknown."""
    use_known: bool
    idle_gpus: GpuCount | None = None
    """The part of `used_gpus` that does no work, by the same sample; None: unknown."""
    backed_gpus: GpuCount | None = None
    """GPUs of the quota that have a healthy GPU behind them, counted beside all quotas; None: an older build."""
    namespaces: tuple[Name, ...] | None = None
    """The namespaces that may target the quota in addition to the team itself; None: all."""
    weaker: WeakerJobs | None = None
    """Jobs of weaker classes in the quota whose end lets the block start; None: there are none."""
    barred: Words = ""
    """The namespace that asks but may not target the quota, so nothing can start in quota; empty: none."""
    apart_gpus: GpuCount | None = None
    """GPUs of the gap not due to its own jobs: uninstalled, or startable without other causes; None: older build."""

    @property
    def short_gpus(self) -> int:
        """The wanted GPUs that its own jobs neither hold nor could take. For the whole quota: quota - used - startable.

        Jobs may hold more than hardware gives now. What they hold is used, and never short.
        """
        held_apart = max(0, self.quota_gpus - self.used_gpus - self.startable_gpus)
        others = sum(reason.gpus for reason in self.reasons if not reason.cause.own)
        return min(held_apart, others if self.apart_gpus is None else min(others, self.apart_gpus))

    @property
    def held_gpus(self) -> int:
        """The wanted GPUs that its own jobs hold: wanted = startable + held + short."""
        return self.gap_gpus - self.short_gpus


class WhyAnswers(Model):
    """A team in every cluster where it has a quota; `unanswered`: the reason why a cluster has no answer."""

    teams: tuple[TeamWhy, ...]
    unanswered: dict[str, str] = Field(default_factory=dict)


class _World(NamedTuple):
    """A cluster as it is, or as it would be without a cause. `held`: GPUs by leaf that jobs hold inside their quota."""

    snapshot: Snapshot
    held: Mapping[str, int]


class _Held(NamedTuple):
    """The GPUs that a team's own jobs hold inside its quota."""

    used: int
    idle: int
    known: bool
    jobs: tuple[Job, ...]


def explain_team(
    seen: Evidence,
    history: Mapping[str, Stretch],
    team: str,
    asked_gpus: int | None,
    *,
    block: bool = False,
    namespace: str = "",
    stale_after: timedelta | None = None,
) -> TeamWhy:
    """Explain why the team cannot have so many GPUs now, or, without a number, its whole quota.

    `history`: the recent health of each island. `namespace`: the one that asks, where it is not the team itself.
    Errors: Refusal if the team has no quota that holds jobs, or the cluster's health is unknown.
    """
    cluster, sample = seen.reading.cluster, seen.sample
    if sample is None:
        raise Refusal(f"the health of cluster {cluster} is unknown: import a sample (`backstop fleet import --health`)")
    snapshot = under_bound(present_snapshot(seen.reading, sample.islands), seen.reading.bound_gpus)
    quota = _job_quota(snapshot, team)
    held = _own_use(quota, seen)
    asked = quota.gpus if asked_gpus is None else asked_gpus
    wanted = min(asked, quota.gpus)
    beside, placed = _beside_outside(snapshot, seen)
    here = _World(beside, held_in_quota(beside.tree, seen.usage))
    loose = min(wanted, startable(*here, team))
    largest = startable_block(*here, team, placed.jobs) if block else loose
    as_declared = beside.with_islands(without_absences(snapshot.islands, seen.windows, seen.at))
    reach = _islands_of(as_declared, quota)
    missing = tuple(
        _find_missing(island, history.get(island.name)) for island in reach if island.healthy_gpus < island.total_gpus
    )
    counted = _count_reasons(here, as_declared, seen, quota, held, wanted, missing)
    fits = min(loose, largest)
    barred = bool(namespace) and not quota.admits(namespace)
    if barred and fits:
        text = f"jobs of namespace {namespace} may not target this quota"
        counted.insert(0, Reason(cause=Cause.BARRED, gpus=fits, text=text))
    if fits < loose:
        counted.append(
            Reason(cause=Cause.FRAGMENTED, gpus=loose - fits, text=_fragments_text(loose, largest, here, placed))
        )
    wants_block = block and fits < wanted and not barred
    could = 0 if barred else fits
    mended = _world_without({cause for cause in Cause if not cause.own}, here, as_declared, team, held)
    absent = sum(reason.gpus for reason in counted if reason.cause is Cause.ABSENT)
    return TeamWhy(
        cluster=cluster,
        team=team,
        at=seen.at,
        health_at=sample.at,
        health_stale=stale_after is not None and seen.at - sample.at >= stale_after,
        quota_gpus=quota.gpus,
        asked_gpus=asked,
        block=block,
        wanted_gpus=wanted,
        startable_gpus=could,
        gap_gpus=wanted - could,
        reasons=tuple(counted),
        missing=missing,
        over_gpus=asked - wanted,
        used_gpus=held.used,
        use_known=held.known,
        idle_gpus=held.idle if held.known else None,
        backed_gpus=quota.gpus - back(snapshot).shortage.get(team, 0),
        namespaces=quota.namespaces,
        weaker=weaker_jobs(placed, *here, team, wanted) if wants_block else None,
        barred=namespace if barred else "",
        apart_gpus=max(0, min(wanted, startable(*mended, team)) - could) + absent,
    )


def _beside_outside(snapshot: Snapshot, seen: Evidence) -> tuple[Snapshot, Evidence]:
    """Give the jobs outside any quota a quota of just what they hold in each island: so they keep it from others.

    Jobs on flex yield to every claim, so those outside any quota are left out.
    """
    name = "outside"
    while any(team.startswith(name) for team in snapshot.tree.by_team):
        name += "'"
    outside = [job for job in outside_quotas(seen.jobs, snapshot.tree.leaves) if job.on is RunsOn.QUOTA]
    within = {f"{name} {island.name}": (island.name,) for island in snapshot.islands}
    placed = [job.but(team=own if (own := f"{name} {job.island}") in within else name) for job in outside]
    quotas = (Quota(team=own, gpus=gpus, islands=within.get(own)) for own, gpus in gpus_by_team(placed).items())
    inside = (job for job in seen.jobs if job.team in snapshot.tree.leaves)
    return snapshot.but(quotas=(*snapshot.quotas, *quotas)), replace(seen, jobs=(*inside, *placed))


def _job_quota(snapshot: Snapshot, team: str) -> Quota:
    """Return the team's quota. Errors: Refusal unless it is a quota that holds jobs."""
    if team not in snapshot.tree.leaves:
        under = ", ".join(snapshot.tree.children.get(team, ()))
        raise Refusal(
            f"the quota of {team!r} in cluster {snapshot.cluster} "
            + (f"is the sum of its sub-quotas: name one of those ({under})" if under else "does not exist")
        )
    return snapshot.tree.by_team[team]


def _islands_of(snapshot: Snapshot, quota: Quota) -> list[Island]:
    return [island for island in snapshot.islands if quota.islands is None or island.name in quota.islands]


def _count_reasons(
    here: _World,
    as_declared: Snapshot,
    seen: Evidence,
    quota: Quota,
    held: _Held,
    wanted: int,
    missing: Sequence[Missing],
) -> list[Reason]:
    """Return the GPUs that could not start loose, by cause."""
    assert seen.sample is not None
    declared = bool(active(seen.windows, seen.at))
    texts = {
        Cause.WITHHELD: lambda one: _withheld_text(one=one),
        Cause.DECLARED: lambda one: _windows_text(seen.windows, seen.at, one=one),
        Cause.UNHEALTHY: lambda one: _unhealthy_text(missing, seen.sample, declared=declared, one=one),
        Cause.OTHERS: lambda one: _others_text(here, quota, seen),
        Cause.IDLE: lambda one: _idle_text(quota.team, held, one=one),
        Cause.USED: lambda one: _used_text(quota, held),
    }
    counted, could = [], min(wanted, startable(*here, quota.team))
    for cause, more in _lift_causes(here, as_declared, quota, held, wanted):
        counted.append(Reason(cause=cause, gpus=more, text=texts[cause](more == 1)))
        could += more
    if could < wanted:
        total = sum(i.total_gpus for i in _islands_of(as_declared, quota))
        installed = f"the islands that {quota.team} may use have {gpus_text(total)} in all"
        counted.append(Reason(cause=Cause.ABSENT, gpus=wanted - could, text=installed))
    return counted


def _lift_causes(
    here: _World, as_declared: Snapshot, quota: Quota, held: _Held, wanted: int
) -> Iterator[tuple[Cause, int]]:
    """Remove one cause after the other, and yield how many more GPUs could start then.

    The next one is the first that starts something by itself; where none does, they bind together, and the first is
    removed unnamed.
    """
    gone: list[Cause] = []
    left = [Cause.WITHHELD, Cause.DECLARED, Cause.UNHEALTHY, Cause.OTHERS, Cause.IDLE, Cause.USED]
    could = min(wanted, startable(*here, quota.team))
    while left and could < wanted:
        for cause in left:
            world = _world_without({*gone, cause}, here, as_declared, quota.team, held)
            more = min(wanted, startable(*world, quota.team)) - could
            if more > 0:
                yield cause, more
                break
        else:
            cause, more = left[0], 0
        could += more
        gone.append(cause)
        left.remove(cause)


def _world_without(gone: Set[Cause], here: _World, as_declared: Snapshot, team: str, held: _Held) -> _World:
    tree, snapshot = here.snapshot.tree, here.snapshot
    if Cause.WITHHELD in gone:
        snapshot = snapshot.with_values(
            dict.fromkeys(tree.ancestors(team), sum(quota.gpus for quota in snapshot.quotas))
        )
    islands = []
    for now, declared in zip(snapshot.islands, as_declared.islands, strict=True):
        mended = (declared.healthy_gpus - now.healthy_gpus) * (Cause.DECLARED in gone)
        mended += (now.total_gpus - declared.healthy_gpus) * (Cause.UNHEALTHY in gone)
        islands.append(now.model_copy(update={"healthy_gpus": now.healthy_gpus + mended}))
    own = (0 if Cause.USED in gone else held.used - held.idle) + (0 if Cause.IDLE in gone else held.idle)
    others = dict.fromkeys(here.held, 0) if Cause.OTHERS in gone else here.held
    return _World(snapshot.with_islands(tuple(islands)), {**others, team: own})


def _own_use(quota: Quota, seen: Evidence) -> _Held:
    usage = seen.usage.get(quota.team)
    use = {} if usage is None else {"scheduled_gpus": usage.scheduled_gpus, "idle_gpus": usage.idle_gpus}
    used, busy = quota.model_copy(update=use).in_use
    jobs = tuple(job for job in seen.jobs if job.team == quota.team and job.ended is None and job.on is RunsOn.QUOTA)
    return _Held(used, used - busy, usage is not None, jobs)


def _find_missing(island: Island, stretch: Stretch | None) -> Missing:
    gpus = island.total_gpus - island.healthy_gpus
    return Missing(island=island.name, gpus=gpus, total_gpus=island.total_gpus, **_unhealthy_since(stretch))


def _unhealthy_since(stretch: Stretch | None) -> dict[str, Any]:
    """Return since when the island has not been whole, and whether that is only as far back as samples go."""
    if stretch is None or not len(stretch.since):
        return {"since": None}
    whole = (stretch.healthy >= stretch.total).nonzero()[0]
    first = int(whole[-1]) + 1 if len(whole) else 0
    since = float(stretch.since[min(first, len(stretch.since) - 1)])
    return {"since": datetime.fromtimestamp(since, UTC), "or_earlier": not len(whole)}


def _withheld_text(*, one: bool) -> str:
    above = "the quotas above this one promise less than their sub-quotas together"
    return f"{above}, or jobs of other sub-quotas hold {'this GPU' if one else 'these GPUs'}"


def _windows_text(windows: Sequence[Window], now: datetime, *, one: bool) -> str:
    spans = [f"{w.kind}: {w.reason}, until {w.ends:%Y-%m-%d %H:%MZ}" for w in active(windows, now)]
    return f"{'it is' if one else 'they are'} declared as absent ({'; '.join(spans)})"


def _unhealthy_text(missing: Sequence[Missing], sample: HealthSample, *, declared: bool, one: bool) -> str:
    """Return the text for unhealthy GPUs. `since` is an island's first failure; the number that it lacks is today's."""
    beside = " beside what is declared" * declared
    lacking = "; ".join(
        f"{m.island} lacks {m.gpus:,}"
        + (f" of {m.total_gpus:,}" if m.total_gpus != sample.total_gpus else "")
        + beside
        + (f", not wholly healthy since {m.since:%Y-%m-%d %H:%MZ}{' or earlier' * m.or_earlier}" if m.since else "")
        for m in missing
    )
    lack = "it has no healthy GPU behind it" if one else "they have no healthy GPU behind them"
    healthy = f"{sample.healthy_gpus:,} of {sample.total_gpus:,} {verb_of(sample.healthy_gpus)} healthy"
    return f"{lack}: {healthy} ({lacking})"


def _others_text(here: _World, quota: Quota, seen: Evidence) -> str:
    """Return the text for other teams' jobs in its islands, the largest first, and for those outside any quota."""
    tree, mine = here.snapshot.tree, quota.islands
    teams = {one.team for one in seen.reading.quotas} - {quota.team}
    held = {
        leaf: gpus
        for leaf, gpus in here.held.items()
        if gpus and leaf in teams and (mine is None or not {*mine}.isdisjoint(tree.by_team[leaf].islands or mine))
    }
    outside = gpus_by_team(
        job
        for job in outside_quotas(seen.jobs, tree.leaves)
        if job.on is RunsOn.QUOTA and (mine is None or job.island is None or job.island in mine)
    )
    texts = [f"other teams' jobs run there inside their own quotas: {jobs_text(held.items())}"] * (
        bool(held) or not outside
    )
    texts += [f"jobs outside any quota run there: {jobs_text(outside.items())}"] * bool(outside)
    return "; ".join(texts)


def _fragments_text(loose: int, largest: int, here: _World, seen: Evidence) -> str:
    text = f"{loose} could start, but not as one block: the largest that is free in one island is {largest}"
    named = sum(
        job.gpus for job in seen.jobs if job.ended is None and job.on is RunsOn.QUOTA and job.island is not None
    )
    return text if named >= sum(here.held.values()) else f"{text} at most: Backstop does not know where all jobs run"


def _idle_text(team: str, held: _Held, *, one: bool) -> str:
    names = jobs_text((job.job, job.idle_gpus) for job in held.jobs if job.idle_gpus)
    them = "it" if one else "them"
    return f"{team}'s own running jobs hold {them} and do no work on {them}" + (f": {names}" if names else "")


def _used_text(quota: Quota, held: _Held) -> str:
    if not held.known:
        return f"Backstop does not know what {quota.team}'s jobs hold, so all of the quota counts as used"
    busy = held.used - held.idle
    # Idle GPUs, where any are known, have a reason of their own.
    at_work = [(job.job, job.gpus - job.idle_gpus * bool(held.idle)) for job in held.jobs]
    names = jobs_text((job, gpus) for job, gpus in at_work if gpus)
    does = "work on" if held.idle else "hold"
    return f"{quota.team}'s own running jobs {does} {busy:,} of its {quota.gpus:,}" + (f": {names}" if names else "")
