"""Islands: the parts of a cluster, and how many GPUs of each a job could be placed on now."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from models.base import Documented, GpuCount, Name


class Island(Documented):
    """A topology block of one cluster. A contiguous block of GPUs cannot cross islands.

    Units: whole GPUs. `block_gpus`: healthy GPUs on wholly healthy nodes, where contiguous blocks
    can stand; None means that all healthy GPUs can serve.
    """

    name: Name
    """The island's name, unique in its cluster; without a comma."""
    total_gpus: GpuCount
    """GPUs installed."""
    healthy_gpus: GpuCount
    """GPUs a job could be placed on now; at most total_gpus."""
    block_gpus: GpuCount | None = None
    """Healthy GPUs on wholly healthy nodes; at most healthy_gpus. Default: healthy_gpus."""

    @model_validator(mode="after")
    def _within_total(self) -> Self:
        if self.healthy_gpus > self.total_gpus:
            raise ValueError(
                f"healthy_gpus is {self.healthy_gpus}, above total_gpus {self.total_gpus} (island {self.name})"
            )
        if self.block_gpus is not None and self.block_gpus > self.healthy_gpus:
            raise ValueError(
                f"block_gpus is {self.block_gpus}, above healthy_gpus {self.healthy_gpus} (island {self.name})"
            )
        return self

    @property
    def room_for_blocks(self) -> int:
        """Healthy GPUs that contiguous blocks may use."""
        return self.healthy_gpus if self.block_gpus is None else self.block_gpus

    def block_beside(self, used_gpus: int) -> int:
        """Return the largest block beside GPUs in use; those on nodes that are not wholly healthy do not reduce it."""
        unfit = self.healthy_gpus - self.room_for_blocks
        return max(0, self.room_for_blocks - max(0, used_gpus - unfit))

    @property
    def canonical(self) -> Self:
        """The same island in one spelling."""
        return self.model_copy(update={"block_gpus": None}) if self.block_gpus == self.healthy_gpus else self

    def at_health(self, gpus: int) -> Self:
        """Return the island with so many healthy GPUs, its blocks limited to these."""
        block = None if self.block_gpus is None else min(self.block_gpus, gpus)
        return self.model_copy(update={"healthy_gpus": gpus, "block_gpus": block})


def total(islands: tuple[Island, ...]) -> int:
    """Return T: the installed GPUs."""
    return sum(island.total_gpus for island in islands)


def healthy(islands: tuple[Island, ...]) -> int:
    """Return H: the GPUs a job could be placed on now."""
    return sum(island.healthy_gpus for island in islands)
