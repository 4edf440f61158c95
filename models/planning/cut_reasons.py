"""The sentence that a researcher reads beside a cut.

A plan's hash includes it, and a plan is drawn again to compare the two: another spelling of a number is another plan.
So digits stay ungrouped here, and views/plan.py groups them for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from models.base import GpuCount, Model, Name
from models.cluster.policy import Scope, Tier
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot

MOST_SHORT = 5
"""The most sets of islands that a plan names: those that lack the most GPUs."""


class ShortIslands(Model):
    """A set of islands whose own quotas promise more than is healthy there. Units: whole GPUs."""

    islands: tuple[Name, ...]
    healthy_gpus: GpuCount
    promised_gpus: GpuCount


def short_islands(snapshot: Snapshot, values: Mapping[str, int]) -> tuple[ShortIslands, ...]:
    """Return the short sets of islands under these values, the shortest first; the whole cluster is none of them."""
    every = tuple(island.name for island in snapshot.islands)
    stand = {
        quota.team: quota.canonical(every).islands for quota in snapshot.quotas if quota.team in snapshot.tree.leaves
    }
    short = []
    for islands in sorted({tuple(sorted(names)) for names in stand.values() if names is not None}):
        healthy = sum(island.healthy_gpus for island in snapshot.islands if island.name in islands)
        promised = sum(values[team] for team, names in stand.items() if names is not None and {*names} <= {*islands})
        if promised > healthy:
            short.append(ShortIslands(islands=islands, healthy_gpus=healthy, promised_gpus=promised))
    return tuple(sorted(short, key=lambda one: one.healthy_gpus - one.promised_gpus))


class Mends(NamedTuple):
    """A leaf that could not have all of itself, and the parent that a sibling's cut lowers for it."""

    team: str
    parent: str
    reachable_gpus: int

    @property
    def text(self) -> str:
        are = "is" if self.reachable_gpus == 1 else "are"
        able = f"the {_gpus_text(self.reachable_gpus)} that {are} healthy on the islands it may use"
        return f"that lowers {self.parent}, which promises {self.team} more than {able}"


def reason_for(
    *,
    snapshot: Snapshot,
    team: str,
    tier: Tier,
    gpus: int,
    parent: bool,
    ceiling: int,
    short: ShortIslands | None,
    scope: Scope,
    mends: Mends | None = None,
) -> str:
    """Return why this team gives these GPUs from this tier, in one sentence.

    `short`: its islands, where its GPUs go because these are short.
    """
    if parent:
        return f"shrinks with its sub-quotas, so that no other of them takes up the {_gpus_text(gpus)} they give"
    quota = snapshot.tree.by_team[team]
    why = _why_text(snapshot, ceiling, short, scope) if mends is None else mends.text
    return f"{_what_text(snapshot, quota, tier, gpus)}; {why}"


TiersTaken = tuple[int, int, int]
"""GPUs that a quota gives up: unscheduled, idle and busy."""
_HELD = ("no running job held", "idle jobs held", "working jobs held")


def breach_reason(quota: Quota, taken: Mapping[str, TiersTaken]) -> str:
    """Return what a breach rollback takes from a quota that the shortage touches, in one sentence. Units: whole GPUs.

    `quota`: the baseline's, whose usage is older than the breach: hence the past tense. `taken`: from each such quota.
    """
    parts = [f"{gpus} that {held}" for gpus, held in zip(taken[quota.team], _HELD, strict=True) if gpus]
    before = f"the {_gpus_text(quota.gpus)} that the quota would have without the rollout"
    if not parts:
        used, busy = quota.in_use
        deepest = max((tier for tiers in taken.values() for tier, gpus in enumerate(tiers) if gpus), default=0)
        has_none_as_cheap = not any((quota.gpus - used, used - busy, busy)[: deepest + 1])
        gave = "GPUs that cost less" if has_none_as_cheap else "enough"
        return f"Backstop takes none of {before}: other quotas gave {gave}"
    return f"from {before}, Backstop takes {' and '.join(parts)}"


def _gpus_text(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _usage_source(snapshot: Snapshot) -> str:
    if snapshot.usage_from == "unknown":
        return "usage is unknown"
    return "at this moment" if snapshot.usage_from == "instant" else snapshot.usage_from


def _what_text(snapshot: Snapshot, quota: Quota, tier: Tier, gpus: int) -> str:
    are, jobs, them = ("is", "a job", "it") if gpus == 1 else ("are", "jobs", "them")
    match tier:
        case Tier.UNSCHEDULED:
            return f"{_gpus_text(gpus)} of the quota {are} held by no running job ({_usage_source(snapshot)})"
        case Tier.IDLE:
            return f"{_gpus_text(gpus)} {are} held by {jobs} doing no work ({_usage_source(snapshot)})"
        case Tier.BUSY if quota.scheduled_gpus is None:
            these = "this GPU" if gpus == 1 else f"these {_gpus_text(gpus)}"
            return f"whether jobs run on {these} is not known (if some do, they go on, as flex)"
        case Tier.BUSY:
            return f"{_gpus_text(gpus)} {are} in use: the jobs on {them} go on, as flex"
        case Tier.UNALLOCATED:
            return f"{_gpus_text(gpus)} {are} held by no quota"


def _why_text(snapshot: Snapshot, ceiling: int, short: ShortIslands | None, scope: Scope) -> str:
    if short is not None:
        its, have, them = ("island", "has", "it") if len(short.islands) == 1 else ("islands", "have", "them")
        healthy = f"{short.healthy_gpus} healthy {'GPU' if short.healthy_gpus == 1 else 'GPUs'}"
        return f"its {its} ({', '.join(short.islands)}) {have} {healthy}, fewer than the quotas on {them} promise"
    there = f"{snapshot.healthy_gpus} healthy of {_gpus_text(snapshot.total_gpus)}"
    base = f"{snapshot.cluster} has {there} and may promise {ceiling}"
    return f"{base} (the buffer is taken from each quota)" if scope is Scope.QUOTA else base


def no_room_text(team: str, gpus: int) -> str:
    """Return the text for a protected block without a place."""
    return f"no island has room for the protected block of {gpus:,} of {team}"
