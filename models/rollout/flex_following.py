"""The flex pool of a monitored cluster: what surplus is published, and what should be."""

from __future__ import annotations

from models.cluster.flex_size import following
from models.rollout.effects import EffectKind
from models.rollout.stages import Stage
from models.rollout.state import Rollout


def flex_wanted(r: Rollout) -> int | None:
    """The surplus to publish in place of the published one; None while that stands, or nothing believable says more."""
    if r.stage is not Stage.MONITORED or EffectKind.FOLLOW not in r.standing or r.look_failed:
        return None
    if r.seen is None or r.seen.flex is None or r.looked_after != r.fence:
        return None
    if r.seen.health is None or r.seen.health != r.sight.known:
        return None
    wanted = following(flex_published(r), r.seen.flex, flex_band(r))
    return None if wanted == flex_published(r) else wanted


def flex_moves(r: Rollout, kind: EffectKind) -> bool:
    """The call moves a flex pool that follows already; of an adopted rollout one may follow before its step."""
    return kind is EffectKind.FOLLOW and r.stage is Stage.MONITORED


def flex_published(r: Rollout) -> int | None:
    """What a scheduler reads, as last seen: others may have written there. In shadow: what it would read."""
    return r.flex.gpus if r.shadow or r.seen is None else r.seen.reading.flex_gpus


def flex_band(r: Rollout) -> int:
    return r.baseline.gpus_per_node if r.policy.flex_band_gpus is None else r.policy.flex_band_gpus
