"""Removes a cluster from the ledger, or renames it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col

from activities.adapters.ledger.bulk import Row, add
from activities.adapters.ledger.fleet_diff_reader import barred_reasons
from activities.adapters.ledger.quotas import locked_cluster
from models.cluster.windows import FILE
from models.errors import BadInput, Refusal
from models.ledger_tables import (
    AwaitedMergeRow,
    BreachRow,
    ClusterRow,
    FleetPlanRow,
    GrantReceiptRow,
    HealthPushRow,
    HealthRow,
    IslandRow,
    JobRow,
    MoveRow,
    OwedRow,
    QuotaChangeRow,
    QuotaRow,
    ReceiptRow,
    RequestRow,
    ReserveLimitRow,
    RolloutRow,
    SchedulerLimitRow,
    SchedulerLockRow,
    TallyDayRow,
    TallyRow,
    UsageRow,
    WindowRow,
)

_GOES: Mapping[str, type[SQLModel]] = {
    "health samples": HealthRow,
    "usage samples": UsageRow,
    "jobs": JobRow,
    "tallies": TallyRow,
    "windows": WindowRow,
    "rollouts": RolloutRow,
}
"""The tables whose rows are lost with a removed cluster, by people's word for the rows."""
_MOVES: tuple[type[Any], ...] = (
    *(HealthRow, UsageRow, JobRow, TallyRow, WindowRow, RolloutRow, ReceiptRow, GrantReceiptRow, FleetPlanRow),
    *(
        QuotaChangeRow,
        ReserveLimitRow,
        SchedulerLimitRow,
        SchedulerLockRow,
        AwaitedMergeRow,
        MoveRow,
        BreachRow,
        RequestRow,
        QuotaRow,
        OwedRow,
        HealthPushRow,
        TallyDayRow,
    ),
)
"""The tables that follow a renamed cluster, after its islands; the archive stays as it is (docs/adr/0039)."""


def history_of(session: Session, cluster: str, *, in_file: bool) -> dict[str, int]:
    """Count the rows beside the cluster and its quotas; words without rows are left out.

    `in_file`: count also windows that the fleet file declares; without them it is the history that no file brings back.
    """
    counts = {}
    for word, table in _GOES.items():
        rows = sa.select(sa.func.count()).select_from(table).where(table.cluster == cluster)  # type: ignore[attr-defined]
        if table is WindowRow and not in_file:
            rows = rows.where(col(WindowRow.source) != FILE)
        counts[word] = session.scalar(rows) or 0
    return {word: count for word, count in counts.items() if count}


def may_go(session: Session, cluster: str, *, retired: bool = False) -> None:
    """Lock the cluster's row. Errors: Refusal if it must stay. `retired`: its own bring-up removes it."""
    locked_cluster(session, cluster)
    if why := barred_reasons(session, [cluster], retired=retired).get(cluster):
        raise Refusal(f"{cluster} stays as it is: {why}")


def remove_rows(session: Session, cluster: str, *, retired: bool = False) -> None:
    """Remove the cluster, its history and its past rollouts; its archive and its requests stay. Errors: Refusal."""
    may_go(session, cluster, retired=retired)
    past = sa.select(col(RolloutRow.id)).where(col(RolloutRow.cluster) == cluster)
    session.execute(sa.delete(ReceiptRow).where(col(ReceiptRow.rollout).in_(past)))
    below: tuple[type[Any], ...] = (RolloutRow, QuotaRow, IslandRow, SchedulerLockRow)
    for table in below:
        session.execute(sa.delete(table).where(table.cluster == cluster))
    session.execute(sa.delete(ClusterRow).where(col(ClusterRow.name) == cluster))


def rename_rows(session: Session, cluster: str, name: str) -> None:
    """Move all of the cluster but its archive to the other name. Errors: Refusal; BadInput: the name is taken."""
    may_go(session, cluster)
    refuse_taken(session, name)
    columns = sa.select(*sa.inspect(ClusterRow).columns).where(col(ClusterRow.name) == cluster)
    row = dict(session.connection().execute(columns).mappings().one())
    # Its name in other systems stays: only Backstop's own name for it changes.
    sources = {field: _keep_name_there(row[field], cluster) for field in ("source", "health_source")}
    add(session, ClusterRow, [{**row, **sources, "name": name}])
    islands = sa.select(*sa.inspect(IslandRow).columns).where(col(IslandRow.cluster) == cluster)
    island_rows: list[Row] = [dict(island) for island in session.connection().execute(islands).mappings()]
    add(session, IslandRow, [{**island, "cluster": name} for island in island_rows])
    _rename_requests(session, cluster, name)
    for table in _MOVES:
        session.execute(sa.update(table).where(table.cluster == cluster).values(cluster=name))
    session.execute(sa.delete(IslandRow).where(col(IslandRow.cluster) == cluster))
    session.expire_all()
    session.execute(sa.delete(ClusterRow).where(col(ClusterRow.name) == cluster))


def refuse_taken(session: Session, name: str) -> None:
    """Raise BadInput if another cluster has the name."""
    if session.get(ClusterRow, name) is not None:
        raise BadInput(f"the ledger already has a cluster {name!r}")


def _keep_name_there(source: str | None, cluster: str) -> str | None:
    if source is None:
        return None
    return json.dumps({"cluster": cluster, **json.loads(source)})


def _rename_requests(session: Session, cluster: str, name: str) -> None:
    """Rename the cluster in requests that are over: an open one bars the renaming."""
    rows = sa.select(col(RequestRow.id), col(RequestRow.state)).where(col(RequestRow.cluster) == cluster)
    for request, text in session.connection().execute(rows).all():
        state = json.loads(text)
        state["ask"]["cluster"] = name
        same = col(RequestRow.id) == request
        session.execute(sa.update(RequestRow).where(same).values(state=json.dumps(state)))
