"""Health history: a year of samples, of which only those that changed something leave the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import is_among
from models.base import MOST_GPUS
from models.buffers.hourly_health import STANDS, Stretch
from models.cluster.readings import CLOCK_SKEW
from models.columns import UtcTime
from models.ledger_tables import HealthRow


def stretches_of(
    session: Session, clusters: Sequence[str], since: datetime, now: datetime
) -> dict[str, dict[str, Stretch]]:
    """Return the health of each island from `since` up to now, by cluster and island."""
    parameters = {"clusters": list(clusters), "since": since, "latest": now + CLOCK_SKEW}
    # SQLite compares times as texts: a text among them that is no time was read as the first of all times.
    rows = [row for row in session.connection().execute(_changes(), parameters) if row.at >= since]
    stretches: dict[str, dict[str, Stretch]] = {}
    for (cluster, island), of_island in groupby(rows, lambda row: (row.cluster, row.island)):
        stretches.setdefault(cluster, {})[island] = _stretch(list(of_island))
    return stretches


def _stretch(rows: Sequence[Any]) -> Stretch:
    """Shapes: one stretch for each row that begins one; it ends with its last sample's hour, or as the next begins."""
    begins = [number for number, row in enumerate(rows) if row.begins]
    since = np.array([rows[n].at.timestamp() for n in begins])
    # The sample before the next beginning is the last of this stretch; the last of all is the last row.
    lasts = np.array([max(rows[n].before, rows[0].at).timestamp() for n in begins[1:]] + [rows[-1].at.timestamp()])
    return Stretch(
        since=since,
        until=np.minimum(lasts + STANDS, np.append(since[1:], np.inf)),
        total=np.array([float(rows[n].total_gpus) for n in begins]),
        healthy=np.array([float(rows[n].healthy_gpus) for n in begins]),
        planned=np.zeros(len(begins)),
    )


@cache
def _changes() -> sa.Select[Any]:
    """Select each island's first and last sample, and those that differ from the one before or come long after it."""
    of_island: dict[str, Any] = {
        "partition_by": (col(HealthRow.cluster), col(HealthRow.island)),
        "order_by": col(HealthRow.at),
    }
    at, total, healthy = col(HealthRow.at), col(HealthRow.total_gpus), col(HealthRow.healthy_gpus)
    before = sa.func.lag(at).over(**of_island)
    looks = (
        sa.select(
            col(HealthRow.cluster).label("cluster"),
            col(HealthRow.island).label("island"),
            at.label("at"),
            total.label("total_gpus"),
            healthy.label("healthy_gpus"),
            sa.type_coerce(before, UtcTime).label("before"),
            sa.or_(
                before.is_(None),
                total != sa.func.lag(total).over(**of_island),
                healthy != sa.func.lag(healthy).over(**of_island),
                sa.extract("epoch", at) - sa.extract("epoch", before) > STANDS,
            ).label("begins"),
            sa.func.lead(at).over(**of_island).is_(None).label("ends"),
        )
        .where(
            is_among(HealthRow.cluster, "clusters"),
            at >= sa.bindparam("since"),
            at <= sa.bindparam("latest"),
            total <= MOST_GPUS,  # one old sample from before the ledger's constraints
        )
        .subquery()
    )
    return (
        sa.select(*looks.c)
        .where(sa.or_(looks.c.begins, looks.c.ends))
        .order_by(looks.c.cluster, looks.c.island, looks.c.at)
    )
