"""The flex pool of a monitored cluster: the surplus that is published, and the surplus that should be."""

from __future__ import annotations

from models.cluster.flex_size import follow_surplus
from models.rollout.effects import EffectKind
from models.rollout.stages import Stage
from models.rollout.state import Rollout


def flex_wanted(rollout: Rollout) -> int | None:
    """Return the surplus to publish; None if the published one is right, or no believed health says otherwise."""
    if rollout.stage is not Stage.MONITORED or EffectKind.FOLLOW not in rollout.standing or rollout.look_failed:
        return None
    if rollout.seen is None or rollout.seen.flex is None or rollout.is_overtaken:
        return None
    if rollout.seen.health is None or rollout.seen.health != rollout.sight.known:
        return None
    wanted = follow_surplus(flex_published(rollout), rollout.seen.flex, flex_band(rollout))
    return None if wanted == flex_published(rollout) else wanted


def flex_moves(rollout: Rollout, kind: EffectKind) -> bool:
    """Return whether the call moves a pool that already follows. An adopted rollout may follow before its step."""
    return kind is EffectKind.FOLLOW and rollout.stage is Stage.MONITORED


def flex_published(rollout: Rollout) -> int | None:
    """Return the surplus that a scheduler reads, as last seen (others may write it) or, in shadow, would read."""
    return rollout.flex.gpus if rollout.shadow or rollout.seen is None else rollout.seen.reading.flex_gpus


def flex_band(rollout: Rollout) -> int:
    return rollout.baseline.gpus_per_node if rollout.policy.flex_band_gpus is None else rollout.policy.flex_band_gpus
