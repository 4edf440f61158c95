"""A cluster's hourly health on the wire. Its arrays are made when somebody asks: most importers need no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from models.base import GpuCount, Model, Name, PositiveCount, Time
from models.cluster.derived_buffer import HealthTerms

if TYPE_CHECKING:
    from models.buffers.estimator import Hours
    from models.buffers.hourly_health import Series


class HealthHours(Model):
    """A cluster's hours on the wire, with the terms of its buffer. Units: GPUs; hours since 1970."""

    cluster: Name
    total_gpus: GpuCount
    """Installed GPUs today (T)."""
    gpus_per_node: PositiveCount
    terms: HealthTerms | None = None
    """The terms of a buffer from health history; None: the policy does not take its buffer from history."""
    healthy_gpus: GpuCount | None = None
    """Healthy GPUs by the newest sample (H); None: an older build does not report it."""
    spare_gpus: GpuCount = 0
    """Healthy GPUs that the cluster's policy keeps unpromised."""
    health_at: Time | None = None
    first: int = 0
    total: tuple[int | None, ...] = ()
    """Installed GPUs in each hour; None: the hour is unknown."""
    worst: tuple[int | None, ...] = ()
    mean: tuple[float | None, ...] = ()
    planned: tuple[int, ...] = ()

    def with_series(self, series: Series) -> Self:
        """Return a copy with these series."""
        import numpy as np

        mask = ~np.isnan(series.total)

        def column(values: Hours, digits: int = 0) -> tuple[Any, ...]:
            shown = np.round(values, digits).tolist()
            return tuple((v if digits else int(v)) if k else None for v, k in zip(shown, mask, strict=True))

        return self.model_copy(
            update={
                "first": series.first,
                "total": column(series.total),
                "worst": column(series.worst),
                "mean": column(series.mean, 4),
                "planned": tuple(int(v) for v in series.planned),
            }
        )

    @property
    def series(self) -> Series:
        import numpy as np

        from models.buffers.hourly_health import Series

        def row(values: Sequence[float | None]) -> Hours:
            return np.array([np.nan if v is None else float(v) for v in values])

        total, worst, mean, planned = (row(values) for values in (self.total, self.worst, self.mean, self.planned))
        return Series(self.cluster, total, worst, mean, planned, self.gpus_per_node, "gpus", self.first)
