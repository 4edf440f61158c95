"""The flex of one cluster as plain numbers: one line of a list of clusters."""

from __future__ import annotations

from models.base import GpuCount, Model, Name, Time
from models.flex.flex_now import FlexNow


class FlexSum(Model):
    """The sums of a `FlexNow`, without its islands, teams and jobs. Units: whole GPUs."""

    cluster: Name
    gpu_model: str | None = None
    health_at: Time | None
    """Time of the latest health sample; None: health is unknown, and all numbers below are zero."""
    total_gpus: GpuCount = 0
    healthy_gpus: GpuCount = 0
    promised_gpus: GpuCount = 0
    in_quota_gpus: GpuCount = 0
    flex_gpus: GpuCount = 0
    used_gpus: GpuCount = 0
    available_gpus: GpuCount = 0
    block_gpus: GpuCount = 0
    block_sure: bool = True
    """Whether `block_gpus` is exact; otherwise it is an upper bound."""

    @property
    def largest_free_block(self) -> tuple[int, bool]:
        return self.block_gpus, self.block_sure


def sum_of(one: FlexNow) -> FlexSum:
    block, sure = one.largest_free_block
    return FlexSum.model_validate(one, from_attributes=True).but(block_gpus=block, block_sure=sure)
