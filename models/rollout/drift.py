"""Changes that others make in the quota system: the answer to them, and their effect on promises and sums.

Theory of operation. `written` is what we believe the quota system holds, whoever set it. `unapproved` names the quotas
among them that others set without approval, with the values approved before. So every sum counts what others raised or
added from the moment a look sees it, and it is no promise until a person accepts it or approves a plan with it. Source:
docs/design.md, "Guard and rollback"; ADR 0088.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from models.audit_chain import AuditKind
from models.cluster.quota import Quota
from models.cluster.readings import Present
from models.cluster.snapshot import Snapshot, on_islands
from models.rollout.gates import approved_values, mode_drift
from models.rollout.stages import Stage
from models.rollout.state import Rollout


def is_bounded(rollout: Rollout) -> bool:
    """Return whether the quota system has a limit above all quotas, and our values are in force under it."""
    bound = None if rollout.seen is None else rollout.seen.reading.bound_gpus
    return bound is not None and rollout.stage.is_guarded and rollout.values_stand and not rollout.shadow


def answer_hold(rollout: Rollout, freed: Rollout, how: str, now: datetime, *, refits: bool) -> tuple[Rollout, str]:
    """Answer a drift as a person asked, and say what was done, which may be less.

    Backstop cannot write again what others added or removed. `freed`: the rollout without the hold. `refits`: the limit
    above all quotas follows the accepted values.
    """
    if how != "restore":
        taken, sentence = accept_changes(freed, now, approved=True), "the changed values are accepted"
        if not (refits and is_bounded(rollout)):
            return taken, sentence
        sentence += "; the limit that bounds all quotas changes to match once hardware backs the values"
        return taken.with_stay(refitting=True), sentence
    present, ours = {} if rollout.seen is None else rollout.seen.reading.values, approved_values(rollout)
    back = [f"{team} at {ours[team]}" for team in sorted(ours) if present.get(team, ours[team]) != ours[team]]
    limits = [f"the limits of {', '.join(sorted(modes))}"] if (modes := mode_drift(rollout)) else []
    written = (
        f"Backstop writes again: {', '.join([*back, *limits])}"
        if back or limits
        else "Backstop has nothing left to write"
    )
    gone, new = sorted(ours.keys() - present.keys()), sorted(present.keys() - ours.keys())
    answers, waits = [written], rollout.asks and bool(gone or new)
    fate = "which still waits for an answer" if waits else "which is accepted"
    answers += [f"others removed {', '.join(gone)}, {fate}"] if gone else []
    answers += [f"others added {', '.join(new)}, {fate}"] if new else []
    answers += ["accept these changes (--how accept), or undo them in the quota system"] if waits else []
    held = rollout.but(look_asked=True) if waits else freed
    if back or limits:
        return restore_values(held, now), "; ".join(answers)
    return held if waits else accept_changes(freed, now), "; ".join(answers)


def restore_values(rollout: Rollout, now: datetime) -> Rollout:
    """Plan to write our values over those of others; a person decides on quotas that others added or removed."""
    if not rollout.asks:
        return accept_changes(rollout, now, but_values=True).with_stay(restoring=True)
    return rollout.with_stay(
        restoring=True, replan="others changed the cluster" if rollout.is_realigning else rollout.stay.replan
    )


def can_write(rollout: Rollout) -> bool:
    """Return whether others changed a quota of ours that still exists."""
    assert rollout.seen is not None
    present, ours = rollout.seen.reading.values, approved_values(rollout)
    return bool(mode_drift(rollout)) or any(present.get(team, gpus) != gpus for team, gpus in ours.items())


def accept_changes(rollout: Rollout, now: datetime, *, but_values: bool = False, approved: bool = False) -> Rollout:
    """Accept what others changed: the baseline follows it, so that an undo leaves it alone.

    `but_values`: the values of quotas that we know stay ours, to be written again. `approved`: a person accepts;
    otherwise GPUs beyond the approved ones are no promise.
    """
    if rollout.seen is None:
        return rollout
    reading = rollout.seen.reading
    present, ours = {quota.team: quota for quota in reading.quotas}, approved_values(rollout)
    changed = {t for t in {*present, *ours} if (present[t].gpus if t in present else None) != ours.get(t)}
    modes = {} if but_values else {team: mode for team, (_, mode) in mode_drift(rollout).items()}
    if but_values:
        changed -= {*present} & {*ours}
    others_teams = changed | {*rollout.foreign}
    baseline_of = {quota.team: quota for quota in rollout.baseline.quotas}
    parents = {quota.parent for quota in reading.quotas}
    quotas = tuple(
        _quota_from(quota, None if t in others_teams else baseline_of.get(t), baseline_of.get(t), t in parents)
        for t, quota in present.items()
    )
    kept = {t: gpus for t, gpus in rollout.written.items() if t not in changed and (rollout.shadow or but_values)}
    written = {t: kept.get(t, quota.gpus) for t, quota in present.items()}
    undo = rollout.undo
    if undo is not None and rollout.stage is Stage.ROLLING_BACK:
        undo = undo.but(
            target={t: present[t].gpus if t in changed else v for t, v in undo.target.items() if t in present}
        )
    baseline = rollout.baseline.model_copy(update={"quotas": quotas, "generation": reading.generation})
    taken = rollout.but(
        baseline=on_islands(baseline, rollout.baseline.islands),
        generation=reading.generation,
        modes={**{t: quota.mode for t, quota in present.items()}, **rollout.modes, **modes},
        modes_given={**rollout.modes_given, **modes},
        written=written,
        foreign=tuple(sorted({*rollout.foreign, *changed} & {*present})) if rollout.values_stand else (),
        unapproved={} if approved else _unapproved_values(rollout, changed, reading.values),
        undo=undo,
    )
    if rollout.stage is Stage.PLANNED or rollout.is_realigning:
        taken = taken.with_stay(replan="others changed the cluster")
    return taken.record(
        AuditKind.PLAN,
        f"accepted a change by others: {', '.join(sorted({*changed, *modes})) or 'it moved no quota'}",
        now,
        teams=sorted({*changed, *modes}),
        generation=reading.generation,
    )


def _unapproved_values(rollout: Rollout, changed: Iterable[str], present: Mapping[str, int]) -> dict[str, int | None]:
    """Return the quotas above their approved value after these changes, with that value."""
    approved = {**{team: rollout.written.get(team) for team in changed}, **rollout.unapproved}
    return {t: gpus for t, gpus in approved.items() if t in present and (gpus is None or present[t] > gpus)}


def _quota_from(present: Present, ours: Quota | None, baseline_quota: Quota | None, parent: bool) -> Quota:
    """Return a baseline quota as others left it, at our baseline value if that still counts."""
    value = present if ours is None else present.model_copy(update={"gpus": ours.gpus})
    if baseline_quota is None or parent:
        return value.as_quota()
    scheduled = value.gpus if baseline_quota.scheduled_gpus is None else baseline_quota.scheduled_gpus
    idle = None if baseline_quota.idle_gpus is None else min(baseline_quota.idle_gpus, scheduled)
    return value.as_quota(baseline_quota.scheduled_gpus, idle)


def promised_teams(rollout: Rollout, present: Mapping[str, int]) -> frozenset[str]:
    """Return the teams whose quota is a promise at these values: approved, and within the quotas above.

    The children of a quota may together exceed it by as much as in the plan, and no more.
    """
    if not rollout.stage.promises or rollout.shadow:
        return frozenset()
    quotas = rollout.baseline.quotas if rollout.seen is None else rollout.seen.reading.quotas
    parents = {quota.team: quota.parent for quota in quotas if quota.team in present}
    approved = {team: _approved_gpus(rollout, team) for team in parents}
    counted = {team: min(present[team], gpus or 0) for team, gpus in approved.items()}
    planned = {} if rollout.standing_plan is None else rollout.standing_plan.values
    before, now = _excess_of(parents, planned, planned), _excess_of(parents, counted, present)
    bound = {team for team, gpus in now.items() if gpus > before.get(team, 0)}
    if beyond_bound(rollout, present) is not None:
        return frozenset()
    kept = set()
    for team, gpus in approved.items():
        above = list(_ancestors_of(parents, team))
        fits = all(present[team] <= present[one] for one in above) and not bound & {team, *above}
        if gpus is not None and present[team] <= gpus and fits and team not in rollout.breach_of:
            kept.add(team)
    return frozenset(kept)


def beyond_bound(rollout: Rollout, present: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the sum that approved quotas need and the lower limit above them; None without one, or if they fit."""
    if rollout.seen is None or rollout.seen.reading.bound_gpus is None:
        return None
    tops = [quota.team for quota in rollout.seen.reading.quotas if quota.team in present and quota.parent is None]
    together = sum(min(present[team], _approved_gpus(rollout, team) or 0) for team in tops)
    return (together, rollout.seen.reading.bound_gpus) if together > rollout.seen.reading.bound_gpus else None


def _approved_gpus(rollout: Rollout, team: str) -> int | None:
    """Return the team's approved GPUs; None if nobody approved the quota."""
    return rollout.unapproved[team] if team in rollout.unapproved else rollout.written.get(team)


def _ancestors_of(parents: Mapping[str, str | None], team: str) -> Iterator[str]:
    above = parents[team]
    while above is not None and above in parents:
        yield above
        above = parents[above]


def _excess_of(
    parents: Mapping[str, str | None], of_leaves: Mapping[str, int], limits: Mapping[str, int]
) -> dict[str, int]:
    """Return the GPUs that the children of each quota have beyond its value."""
    sums: dict[str, int] = {}
    order = sorted(parents, key=lambda team: (-len(list(_ancestors_of(parents, team))), team))
    for team in order:
        own = of_leaves.get(team, 0) if team not in sums else min(limits.get(team, 0), sums[team])
        above = parents[team]
        if above is not None:
            sums[above] = sums.get(above, 0) + own
    return {team: max(0, gpus - limits.get(team, 0)) for team, gpus in sums.items()}


def note_others(rollout: Rollout, others: Mapping[str, int | None], before: Mapping[str, int]) -> Rollout:
    """Note that others set these quotas (None: removed them) and nobody has answered. `before`: our values."""
    approved = {team: before.get(team) for team, gpus in others.items() if before.get(team) != gpus}
    stands = {team: gpus for team, gpus in others.items() if gpus is not None}
    return rollout.but(
        written={**{team: gpus for team, gpus in rollout.written.items() if team not in others}, **stands},
        foreign=tuple(sorted({*rollout.foreign, *others})),
        unapproved={**approved, **rollout.unapproved} if rollout.asks else rollout.unapproved,
    )


def reclaim_values(rollout: Rollout) -> Rollout:
    """Claim again the quotas that others have set back to their approved value."""
    assert rollout.seen is not None
    present = rollout.seen.reading.values
    back = {team: gpus for team, gpus in rollout.unapproved.items() if present.get(team) == gpus}
    if not back:
        return rollout
    ours = {team: gpus for team, gpus in back.items() if gpus is not None}
    return rollout.but(
        unapproved={team: gpus for team, gpus in rollout.unapproved.items() if team not in back},
        written={**{team: gpus for team, gpus in rollout.written.items() if team not in back}, **ours},
        foreign=tuple(team for team in rollout.foreign if team not in back),
    )


def approve_others(rollout: Rollout) -> Rollout:
    """Approve, with the plan, the quotas of others that it starts from."""
    assert rollout.plan is not None
    begins = {quota.team: quota.before_gpus for quota in rollout.plan.quotas}
    left = {team: gpus for team, gpus in rollout.unapproved.items() if begins.get(team) != rollout.written.get(team)}
    return rollout.but(unapproved=left)


def baseline_beside(baseline: Snapshot, present: Sequence[Present], others: Collection[str]) -> Snapshot:
    """Return the baseline with others' quotas as they are now: their additions in, their removals out."""
    if not others:
        return baseline
    baseline_of, parents = {quota.team: quota for quota in baseline.quotas}, {quota.parent for quota in present}
    quotas = tuple(
        _quota_from(quota, None if quota.team in others else ours, ours, quota.team in parents)
        for quota in present
        for ours in (baseline_of.get(quota.team),)
    )
    return on_islands(baseline.model_copy(update={"quotas": quotas}), baseline.islands)
