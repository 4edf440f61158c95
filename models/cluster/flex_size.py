"""How large the flex pool is (what is healthy and not promised, promised and unused), and what size to publish."""

from __future__ import annotations

from models.base import Count, Model


class FlexPool(Model):
    """Units: whole GPUs. `surplus_gpus`: no quota stands on it; `unused_gpus`: a quota does, and no job."""

    surplus_gpus: int
    unused_gpus: int

    @property
    def gpus(self) -> int:
        return self.surplus_gpus + self.unused_gpus


class FlexSight(Model):
    """The surplus of one look. Units: whole GPUs. `standing_gpus`: the least it has been for `clear_after`."""

    surplus_gpus: Count
    standing_gpus: Count


def follow_surplus(published_gpus: int | None, sight: FlexSight, band_gpus: int) -> int:
    """The surplus to publish where `published_gpus` is: less at once, more only beyond the band, and once it stands.

    A pool that is too large is room for jobs that no healthy GPU will run, so no band delays a shrink.
    """
    if published_gpus is None or sight.surplus_gpus < published_gpus:
        return sight.surplus_gpus
    stands = min(sight.surplus_gpus, sight.standing_gpus)
    return stands if stands - published_gpus > band_gpus else published_gpus


def flex_pool(healthy_gpus: int, backed_gpus: int, in_quota_use_gpus: int) -> FlexPool:
    """The pool of one cluster. Source: docs/design.md, "Words": unused = max(0, H - in-quota use - surplus)."""
    surplus = healthy_gpus - backed_gpus
    return FlexPool(surplus_gpus=surplus, unused_gpus=max(0, healthy_gpus - in_quota_use_gpus - surplus))
