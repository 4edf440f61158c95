"""The order in which clusters of a fleet start: by wave, then healthy headroom, then those that no plan mends.

Source: docs/design.md, "The cut ladder".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from models.base import Model
from models.cluster.windows import Window, active, span_text
from models.fleet.messages import FleetLaunch, Noted, Passed, PickAnswer, Picked, PickRequest, Prospect
from models.fleet.state import BudgetLeft, Pace, Wave
from models.hashes import content_hash
from models.planning.plan import Plan
from models.texts import gpus_text, verb_of


def prospect_of(plan: Plan, rollout: Noted | None = None) -> Prospect:
    """Return a cluster's prospect by its plan of today. `rollout`: the one that is open there already."""
    why = "" if plan.honest else plan.fault
    if plan.honest and not plan.backed:
        why = f"its plan is not backed by healthy GPUs{plan.why_unbacked}"
    return Prospect(
        cluster=plan.cluster,
        wave=Wave.AFTER if plan.why_last else Wave.of(plan.wave),
        headroom=float(plan.headroom),
        cut_gpus=plan.cut_gpus,
        phantom_gpus=plan.phantom_gpus,
        to_flex_gpus=plan.to_flex_gpus,
        assigned_gpus=plan.assigned_gpus,
        total_gpus=plan.total_gpus,
        healthy_gpus=plan.healthy_gpus,
        plan_hash=plan.hash,
        why_not=why,
        why_last=plan.why_last,
        health_at=plan.health_at,
        stale_after=plan.stale_after,
        **({} if rollout is None else rollout.model_dump()),
    )


def order_prospects(prospects: Iterable[Prospect], pilots: Iterable[str] = ()) -> tuple[Prospect, ...]:
    """Sort pilots first, then by wave, then by healthy headroom, the largest first; ties by name."""
    first = set(pilots)
    return tuple(
        sorted(
            prospects,
            key=lambda prospect: (
                prospect.cluster not in first,
                prospect.wave.number,
                -prospect.headroom,
                prospect.cluster,
            ),
        )
    )


def unplanned_prospect(cluster: str, why: str, rollout: Noted | None = None) -> Prospect:
    """Return the prospect of a cluster that cannot be planned: it comes last, with the reason."""
    noted = {} if rollout is None else rollout.model_dump()
    return Prospect(cluster=cluster, wave=Wave.AFTER, headroom=-1.0, why_not=why, **noted)


def take_prospects(launch: FleetLaunch, prospects: Iterable[Prospect]) -> tuple[Prospect, ...]:
    """Return the clusters that a launch takes, in order; for a takeover, those of the lost fleet rollout."""
    if launch.kept is not None:
        mine = {*launch.kept.members, *launch.kept.unplaced}
        return order_prospects((p for p in prospects if p.cluster in mine or p.own), launch.pilots)
    waves = set(launch.waves)
    taken = [
        p
        for p in prospects
        if p.cluster in launch.pilots or (not launch.pilots_only and (not waves or p.wave in waves))
    ]
    return order_prospects(taken, launch.pilots)


def plan_hash(prospects: Sequence[Prospect]) -> str:
    """Return the hash that an approval of all these plans names."""
    rows = sorted((p.cluster, p.wave.value, p.plan_hash) for p in prospects)
    return content_hash(_Approved(clusters=tuple(rows)))


class _Approved(Model):
    clusters: tuple[tuple[str, str, str], ...]


def passed_reason(prospect: Prospect, windows: Sequence[Window], pace: Pace, now: datetime) -> Passed | None:
    """Explain why a cluster cannot start now; None if it can."""
    if prospect.why_not:
        return Passed(reason=prospect.why_not)
    declared = active(tuple(windows), now)
    if declared:
        until = max(w.ends for w in declared)
        return Passed(reason="; ".join(f"{span_text(w)}: {w.reason}" for w in declared), until=until)
    if prospect.cut_gpus > min(pace.budget_per_hour, pace.budget_per_day):
        least = min(pace.budget_per_hour, pace.budget_per_day)
        return Passed(
            reason=f"it would move {gpus_text(prospect.cut_gpus)}, above the budget of {least}: "
            "skip it, or launch it without the fleet rollout"
        )
    return None


class Basket:
    """A picker of clusters in order, until slots or budget are spent. No cluster overtakes one that does not fit."""

    def __init__(self, most: int, hour_gpus: int, day_gpus: int) -> None:
        self._slots = most
        self._gpus = min(hour_gpus, day_gpus)
        self._of = "hour" if hour_gpus <= day_gpus else "day"
        self.short_for = ""
        """The first cluster whose cut exceeds the budget left; empty: none so far."""
        self.picked: list[Picked] = []
        self.waiting: dict[str, str] = {}
        """Why clusters that could start were not taken, by cluster."""

    def offer(self, prospect: Prospect) -> None:
        """Take the cluster, unless one before it did not fit."""
        if self.short_for:
            self.waiting[prospect.cluster] = f"waits for {self.short_for}, which goes first"
        elif len(self.picked) >= self._slots:
            self.waiting[prospect.cluster] = "waits until one of the clusters under way has finished"
        elif prospect.cut_gpus > self._gpus:
            self.short_for = prospect.cluster
            left = f"{self._gpus:,} of this {self._of}'s budget {verb_of(self._gpus)} left"
            self.waiting[prospect.cluster] = f"it would move {gpus_text(prospect.cut_gpus)}, and {left}"
        else:
            self._gpus -= prospect.cut_gpus
            self.picked.append(Picked(cluster=prospect.cluster, wave=prospect.wave, cut_gpus=prospect.cut_gpus))


def pick(
    request: PickRequest,
    prospects: Sequence[Prospect],
    windows: Mapping[str, Sequence[Window]],
    booked: tuple[int, int],
) -> PickAnswer:
    """Pick the first clusters in today's order that can start now, within slots and budget.

    `booked`: GPUs moved by anyone. The answer names the clusters that cannot start, with the reason. A wave that a
    person chose stands; otherwise today's plan decides.
    """
    pace, candidates = request.pace, {c.cluster: c for c in request.candidates}
    waves = {p.cluster: candidates[p.cluster].wave if candidates[p.cluster].moved else p.wave for p in prospects}
    hour, day = booked
    left = BudgetLeft(
        hour_gpus=min(request.hour_gpus, max(0, pace.budget_per_hour - hour)),
        day_gpus=min(request.day_gpus, max(0, pace.budget_per_day - day)),
    )
    basket = Basket(request.most, left.hour_gpus, left.day_gpus)
    passed: dict[str, Passed] = {}
    in_waves = (p.model_copy(update={"wave": waves[p.cluster]}) for p in prospects)
    for prospect in order_prospects(in_waves):
        if prospect.wave.number > request.wave.number:
            break
        why = passed_reason(prospect, windows.get(prospect.cluster, ()), pace, request.at)
        if why is not None:
            passed[prospect.cluster] = why
        else:
            basket.offer(prospect)
    moved = {name: wave for name, wave in waves.items() if wave is not candidates[name].wave}
    taken = sum(prospect.cut_gpus for prospect in basket.picked)
    return PickAnswer(
        picked=tuple(basket.picked),
        passed=passed,
        waves=moved,
        waiting=basket.waiting,
        left=BudgetLeft(hour_gpus=left.hour_gpus - taken, day_gpus=left.day_gpus - taken, short_for=basket.short_for),
    )
