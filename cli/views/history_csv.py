"""Health history as the CSV that `backstop backtest` reads."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import numpy as np

from models.buffers.hourly_health import Hourly


def header(unit: str) -> str:
    """The first line. `unit`: nodes or gpus."""
    return f"cluster,ts,total_{unit},healthy_{unit}_min,healthy_{unit}_mean,planned_{unit}\n"


def rows(cluster: str, hours: Hourly) -> str:
    """A line for each hour that is known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for n in np.flatnonzero(~np.isnan(hours.total)).tolist():
        at = datetime.fromtimestamp((hours.first + n) * 3600, UTC)
        total, worst, planned = (int(column[n]) for column in (hours.total, hours.worst, hours.planned))
        writer.writerow([cluster, f"{at:%Y-%m-%dT%H:%M:%SZ}", total, worst, f"{hours.mean[n]:.4f}", planned])
    return out.getvalue()


def as_csv(cluster: str, hours: Hourly, unit: str) -> str:
    return header(unit) + rows(cluster, hours)
