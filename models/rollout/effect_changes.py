"""The changes to the quota system that make each effect: values, modes, and the reservation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.cluster.quota import QuotaTree
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.planning.grants import GrantOrder, moved_values, raises
from models.rollout.effect_table import MODE_AFTER
from models.rollout.effects import Change, EffectKind, Fence, Reserve, ValueWrite
from models.rollout.flex_following import flex_band, flex_moves, flex_wanted
from models.rollout.gates import approved_values, mode_drift
from models.rollout.state import Rollout, UndoCause


def baseline_with(rollout: Rollout, order: GrantOrder) -> Snapshot:
    """Return the baseline with the grant, or without it after its end."""
    values = rollout.baseline.values
    raised = order.raised or raises(rollout.baseline.tree, values, order.team, order.gpus)
    return rollout.baseline.with_values(moved_values(values, raised, ends=order.ends))


def _grant_content(rollout: Rollout) -> dict[str, Any]:
    """Return the order's writes and reservation. GPUs of a grant that a plan has cut are not taken back twice."""
    order = rollout.grant_order
    assert order is not None
    after = baseline_with(rollout, order)
    kept, written = after.values, rollout.written
    raised = order.raised or {
        quota.team: kept[quota.team] - quota.gpus for quota in rollout.baseline.quotas if kept[quota.team] != quota.gpus
    }
    there = {team: gpus for team, gpus in raised.items() if team in kept and team in written}
    values = {t: written[t] + gpus for t, gpus in there.items()}
    if order.ends:
        top = order.request in rollout.on_top
        values = {t: min(kept[t], max(0, written[t] - gpus * top)) for t, gpus in there.items()}
    return {
        "expected_generation": rollout.generation,
        "writes": _writes(rollout, values, dict.fromkeys(values, _mode(rollout))),
        "reserve": reserve_beside(after, {**rollout.written, **values}),
    }


def change_for(rollout: Rollout, kind: EffectKind) -> Change:
    """Build the call that makes one effect, under the next fence."""
    fence = Fence(rollout=rollout.id, counter=rollout.fence + 1)
    return Change(cluster=rollout.cluster, kind=kind, fence=fence, **_content(rollout, kind))


def _content(rollout: Rollout, kind: EffectKind) -> dict[str, Any]:
    """Return the fields of the call. Forward calls name the generation they were made from."""
    plan = rollout.plan
    match kind:
        case EffectKind.RESERVE:
            assert plan is not None
            return {"expected_generation": plan.generation, "reserve": reserve_beside(rollout.baseline, plan.values)}
        case EffectKind.SET_SOFT if rollout.stay.restoring:
            assert rollout.seen is not None
            reading = rollout.seen.reading
            return {"expected_generation": reading.generation, "writes": _rewrite_writes(rollout, reading.values)}
        case EffectKind.SET_SOFT if rollout.stay.refitting and not rollout.is_realigning:
            return {"expected_generation": rollout.generation, "writes": _writes(rollout, rollout.written, {})}
        case EffectKind.SET_SOFT:
            assert plan is not None
            writes = _writes(rollout, plan.values, dict.fromkeys(plan.values, _mode(rollout)))
            return {"expected_generation": plan.generation, "writes": writes}
        case EffectKind.HARDEN:
            return {"expected_generation": rollout.generation, "mode": MODE_AFTER[kind]}
        case EffectKind.FOLLOW if flex_moves(rollout, kind):
            # Flex is the rest beside the present quotas, whoever wrote them: a shrink waits for nobody.
            return {"flex_gpus": flex_wanted(rollout), "flex_band_gpus": flex_band(rollout)}
        case EffectKind.FOLLOW:
            band = flex_band(rollout)
            return {"expected_generation": rollout.generation, "flex_gpus": _surplus(rollout), "flex_band_gpus": band}
        case EffectKind.GRANT:
            return _grant_content(rollout)
        case EffectKind.RELEASE:
            if rollout.undo is None or not rollout.answers_breach:
                return {}
            return {"reserve": reserve_beside(rollout.baseline, rollout.undo.target)}
        case EffectKind.RESTORE:
            return {"writes": _restore_writes(rollout)}
        case EffectKind.SOFTEN:
            return {"mode": MODE_AFTER[kind]}
        case EffectKind.UNFOLLOW | EffectKind.CLOSE:
            return {}


def _surplus(rollout: Rollout) -> int | None:
    return None if rollout.seen is None or rollout.seen.flex is None else rollout.seen.flex.surplus_gpus


def _mode(rollout: Rollout) -> LimitMode:
    """Return SOFT, or HARD for a write in place if limits are hard already."""
    return LimitMode.HARD if EffectKind.HARDEN in rollout.standing else LimitMode.SOFT


def _restore_writes(rollout: Rollout) -> tuple[ValueWrite, ...]:
    """Return the writes back to the rollback's target; the expected values protect what others changed.

    An undo also restores the baseline's modes; a breach leaves limits soft.
    """
    assert rollout.undo is not None
    target = rollout.undo.target
    return _writes(
        rollout, target, rollout.modes if rollout.undo.why is UndoCause.UNDO else dict.fromkeys(target, LimitMode.SOFT)
    )


def _writes(rollout: Rollout, values: Mapping[str, int], modes: Mapping[str, LimitMode]) -> tuple[ValueWrite, ...]:
    tree = rollout.baseline.tree
    return tuple(
        ValueWrite(
            team=team,
            expected_gpus=rollout.written.get(team, gpus),
            gpus=gpus,
            mode=modes.get(team),
            leaf=team not in tree.children,
        )
        for team, gpus in sorted(values.items())
    )


def _rewrite_writes(rollout: Rollout, present: Mapping[str, int]) -> tuple[ValueWrite, ...]:
    """Return writes of our values over those of others, which are the expected ones: no change goes unseen."""
    tree, modes = rollout.baseline.tree, mode_drift(rollout)
    return tuple(
        ValueWrite(
            team=team, expected_gpus=present[team], gpus=gpus, mode=_mode(rollout), leaf=team not in tree.children
        )
        for team, gpus in sorted(approved_values(rollout).items())
        if team in present and (present[team] != gpus or team in modes)
    )


def reserve_beside(baseline: Snapshot, values: Mapping[str, int]) -> Reserve:
    """Return the reservation if these values replace those of the baseline."""
    tree: QuotaTree = baseline.tree
    before = baseline.values
    by_islands: dict[str, int] = {}
    for leaf in tree.leaves:
        islands = tree.by_team[leaf].islands
        if islands is not None:
            key = ",".join(sorted(islands))
            by_islands[key] = by_islands.get(key, 0) + values.get(leaf, before[leaf])
    return Reserve(
        freed_gpus=max(0, tree.assigned_gpus(before) - tree.assigned_gpus({**before, **values})),
        limit_gpus=sum(values.get(leaf, before[leaf]) for leaf in tree.leaves),
        limits_by_islands=by_islands,
    )
