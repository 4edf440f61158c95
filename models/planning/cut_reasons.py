"""The sentence that a researcher reads beside a cut."""

from __future__ import annotations

from models.base import gpus_text
from models.cluster.policy import Scope, Tier
from models.cluster.snapshot import Snapshot


def reason_for(
    *,
    snapshot: Snapshot,
    team: str,
    tier: Tier,
    gpus: int,
    parent: bool,
    ceiling: int,
    for_backing: bool,
    scope: Scope,
) -> str:
    """Why this team gives these GPUs from this tier, in one sentence."""
    if parent:
        return f"follows its child quotas, so that no sibling takes up the {gpus_text(gpus)} they give"
    return f"{_what(snapshot, tier, gpus)}; {_why(snapshot, team, ceiling, for_backing, scope)}"


def _seen(snapshot: Snapshot) -> str:
    """Where usage comes from, as an aside."""
    if snapshot.usage_from == "unknown":
        return "usage is unknown"
    return "at this moment" if snapshot.usage_from == "instant" else snapshot.usage_from


def _what(snapshot: Snapshot, tier: Tier, gpus: int) -> str:
    are, jobs = ("is", "a job") if gpus == 1 else ("are", "jobs")
    match tier:
        case Tier.UNSCHEDULED:
            return f"{gpus_text(gpus)} of the quota {are} held by no running job ({_seen(snapshot)})"
        case Tier.IDLE:
            return f"{gpus_text(gpus)} {are} held by {jobs} doing no work ({_seen(snapshot)})"
        case Tier.BUSY:
            return f"{gpus_text(gpus)} {are} in use: what runs on them runs on, as flex"
        case Tier.UNALLOCATED:
            return f"{gpus_text(gpus)} {are} held by no quota"


def _why(snapshot: Snapshot, team: str, ceiling: int, for_backing: bool, scope: Scope) -> str:
    quota = next(q for q in snapshot.quotas if q.team == team)
    if for_backing and quota.islands is not None:
        names = ", ".join(quota.islands)
        able = sum(i.healthy_gpus for i in snapshot.islands if i.name in quota.islands)
        return f"its islands ({names}) have {able} healthy GPUs, fewer than the quotas on them promise"
    healthy, total = snapshot.healthy_gpus, snapshot.total_gpus
    base = f"{snapshot.cluster} has {healthy} healthy of {total} GPUs and may promise {ceiling}"
    return f"{base} (the buffer is taken from each quota)" if scope is Scope.QUOTA else base
