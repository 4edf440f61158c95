"""The flex pool: what is healthy and not promised, and what is promised and unused."""

from __future__ import annotations

from collections.abc import Mapping

from models.base import Model


class FlexPool(Model):
    """Units: whole GPUs. `surplus_gpus`: no quota stands on it; `unused_gpus`: a quota does, and no job."""

    surplus_gpus: int
    unused_gpus: int

    @property
    def gpus(self) -> int:
        return self.surplus_gpus + self.unused_gpus


def flex_pool(healthy_gpus: int, backed_gpus: int, in_quota_use_gpus: int) -> FlexPool:
    """The pool of one cluster. Source: DESIGN.md, "Words": unused = max(0, H - in-quota use - surplus)."""
    surplus = healthy_gpus - backed_gpus
    return FlexPool(surplus_gpus=surplus, unused_gpus=max(0, healthy_gpus - in_quota_use_gpus - surplus))


def in_quota_use(values: Mapping[str, int], scheduled: Mapping[str, int]) -> int:
    """GPUs that running jobs hold inside their quota; unknown usage counts as all of it."""
    return sum(min(gpus, scheduled.get(team, gpus)) for team, gpus in values.items())
