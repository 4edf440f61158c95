"""Health history as the CSV that `backstop backtest` reads."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from models.buffers.hourly_health import Series
from views.csv_out import csv_text


def as_csv(series: Series) -> str:
    """Return a line for each known hour."""
    unit = series.unit
    rows: list[list[object]] = [
        ["cluster", "ts", f"total_{unit}", f"healthy_{unit}_min", f"healthy_{unit}_mean", f"planned_{unit}"]
    ]
    for hour in np.flatnonzero(~np.isnan(series.total)).tolist():
        at = datetime.fromtimestamp((series.first + hour) * 3600, UTC)
        total, worst, planned = (int(column[hour]) for column in (series.total, series.worst, series.planned))
        rows.append([series.cluster, f"{at:%Y-%m-%dT%H:%M:%SZ}", total, worst, f"{series.mean[hour]:.4f}", planned])
    return csv_text(rows)
