"""The size of the flex pool (healthy and not promised, or promised and unused), and the size to publish."""

from __future__ import annotations

from models.base import Count, Model


class FlexPool(Model):
    """The flex pool. Units: whole GPUs. `surplus_gpus`: beyond all quotas; `unused_gpus`: in a quota, without a job."""

    surplus_gpus: int
    unused_gpus: int

    @property
    def gpus(self) -> int:
        return self.surplus_gpus + self.unused_gpus


class FlexSight(Model):
    """The surplus at one look. Units: whole GPUs. `standing_gpus`: the least it has been for `clear_after`."""

    surplus_gpus: Count
    standing_gpus: Count


def follow_surplus(published_gpus: int | None, sight: FlexSight, band_gpus: int) -> int:
    """Return the surplus to publish after `published_gpus`: less at once, more only past the band, once it lasts.

    A pool that is too large is room for jobs that no healthy GPU will run, so no band delays a shrink.
    """
    if published_gpus is None or sight.surplus_gpus < published_gpus:
        return sight.surplus_gpus
    stands = min(sight.surplus_gpus, sight.standing_gpus)
    return stands if stands - published_gpus > band_gpus else published_gpus


def flex_pool(healthy_gpus: int, backed_gpus: int, in_quota_use_gpus: int) -> FlexPool:
    """Return the pool of one cluster. Source: docs/design.md, "Words": unused = max(0, H - in-quota use - surplus)."""
    surplus = healthy_gpus - backed_gpus
    return FlexPool(surplus_gpus=surplus, unused_gpus=max(0, healthy_gpus - in_quota_use_gpus - surplus))
