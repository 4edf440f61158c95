"""Reads clusters as a fleet file would describe them now, for an import to compare with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.calendar import file_windows
from activities.adapters.ledger.cluster_settings import settings_of
from activities.adapters.ledger.quotas import present_of
from activities.bad_rows import SENSELESS, fault_of
from models.cluster.fleet_diff import ClusterNow, OtherCluster
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.sources import health_field, quota_field
from models.hashes import json_object
from models.ledger_tables import (
    BringupBookRow,
    ClusterRow,
    ContactRow,
    FleetRow,
    GrantReceiptRow,
    IslandRow,
    QuotaRow,
    ReceiptRow,
    RequestRow,
    RolloutRow,
    TeamRow,
)
from models.notices import notify_of
from models.rollout.effects import EffectKind
from models.rollout.stages import command_line
from models.texts import count_text, gpus_text


def present_clusters(
    session: Session, names: Sequence[str], specs: Mapping[str, ClusterSpec] | None = None
) -> dict[str, ClusterNow | str]:
    """Return the clusters of these names that exist, or why one makes no sense.

    `specs`: the file's clusters; values that rollouts have overwritten are read only for a cluster that differs.
    """
    islands: dict[str, dict[str, int]] = {name: {} for name in names}
    for row in _rows_of(session, IslandRow, IslandRow.cluster, names, IslandRow.name):
        islands[row.cluster][row.name] = row.total_gpus
    quotas: dict[str, list[sa.Row[Any]]] = {name: [] for name in names}
    for row in _rows_of(session, QuotaRow, QuotaRow.cluster, names, QuotaRow.team):
        quotas[row.cluster].append(row)
    windows = file_windows(session, names)
    clusters = _rows_of(session, ClusterRow, ClusterRow.name, names, ClusterRow.name)
    busy = {row.name: _busy(session, row) for row in clusters}
    asked = [name for name in busy if _may_be_older((specs or {}).get(name), quotas[name])]
    overwritten = _overwritten_values(session, asked)

    def now(row: sa.Row[Any]) -> ClusterNow:
        theirs = {quota.team for quota in quotas[row.name] if busy[row.name] or _is_ours(quota)}
        return ClusterNow(
            name=row.name,
            gpu_model=row.gpu_model,
            gpus_per_node=row.gpus_per_node,
            islands=islands[row.name],
            policy=settings_of(row.policy),
            quotas=tuple(present_of(quota) for quota in quotas[row.name]),
            windows=windows.get(row.name, ()),
            **quota_field(row.source),
            **health_field(row.health_source),
            busy=busy[row.name],
            overwritten={team: tuple(value) for team, value in overwritten.get(row.name, {}).items() if team in theirs},
        )

    present: dict[str, ClusterNow | str] = {}
    for row in clusters:
        try:
            present[row.name] = now(row)
        except SENSELESS as error:
            present[row.name] = fault_of(row.name, "its rows", error)
    return present


def _rows_of(session: Session, table: Any, cluster: Any, names: Sequence[str], order: Any) -> Sequence[sa.Row[Any]]:
    rows = sa.select(*sa.inspect(table).columns).where(is_among(cluster, "names")).order_by(cluster, order)
    return session.connection().execute(rows, {"names": list(names)}).all()


def _busy(session: Session, cluster: sa.Row[Any]) -> str:
    """Return why only a rollout may write its quotas; empty if anybody may. A shadow writes none."""
    if cluster.open_rollout is not None:
        rollout = session.get(RolloutRow, cluster.open_rollout)
        if rollout is None or not rollout.shadow:
            stage = "" if rollout is None else f" ({rollout.stage})"
            return f"rollout {cluster.open_rollout} is open{stage}"
    if cluster.reserve_limit is not None:
        lost = f"the lost rollout {cluster.reserved_by}" if cluster.reserved_by else "a lost, unknown rollout"
        return f"{lost} still reserves the GPUs that it freed"
    return ""


def _is_ours(row: sa.Row[Any]) -> bool:
    """Return whether Backstop wrote the present value."""
    return row.written_by is not None and row.written_gpus == row.gpus


def _may_be_older(spec: ClusterSpec | None, rows: Sequence[sa.Row[Any]]) -> bool:
    """Return whether the file has another value of a quota than the ledger."""
    gpus_in_file = {} if spec is None else {quota.team: quota.gpus for quota in spec.quotas}
    return any(gpus_in_file.get(row.team, row.gpus) != row.gpus for row in rows)


def _overwritten_values(session: Session, clusters: Sequence[str]) -> dict[str, dict[str, set[int]]]:
    """Return the values of baselines and those that grants have overwritten, by cluster and team."""
    values: dict[str, dict[str, set[int]]] = {name: {} for name in clusters}
    if not clusters:
        return values
    named = {"names": list(clusters)}
    baselines = sa.select(col(RolloutRow.cluster), col(RolloutRow.baseline)).where(
        is_among(RolloutRow.cluster, "names"), col(RolloutRow.shadow).is_(False)
    )
    for cluster, text in session.connection().execute(baselines, named):
        for quota in json_object(text).get("quotas", ()):
            values[cluster].setdefault(quota["team"], set()).add(quota["gpus"])
    for table in (ReceiptRow, GrantReceiptRow):
        grants = sa.select(table.cluster, table.receipt).where(  # type: ignore[call-overload]
            is_among(table.cluster, "names"), col(table.kind) == EffectKind.GRANT.value
        )
        for cluster, text in session.connection().execute(grants, named):
            for team, gpus in json_object(text).get("before", {}).items():
                values[cluster].setdefault(team, set()).add(gpus)
    return values


def fleet_policy(session: Session) -> dict[str, Any]:
    row = session.get(FleetRow, 1)
    return {} if row is None else settings_of(row.policy)


def teams_by_name(session: Session) -> dict[str, Team]:
    """Return every team of the ledger, with its contacts in their order."""
    teams = session.connection().execute(sa.select(col(TeamRow.name), col(TeamRow.notify)).order_by(col(TeamRow.name)))
    notify = {row.name: notify_of(row.notify) for row in teams}
    contacts: dict[str, list[str]] = {name: [] for name in notify}
    rows = sa.select(col(ContactRow.team), col(ContactRow.address)).order_by(
        col(ContactRow.team), col(ContactRow.position)
    )
    for team, address in session.connection().execute(rows):
        contacts.setdefault(team, []).append(address)
    return {
        name: Team.model_construct(name=name, contacts=tuple(contacts[name]), notify=notify.get(name))
        for name in sorted(contacts)
    }


def others(session: Session, named: Iterable[str], *, prune: bool) -> list[OtherCluster]:
    """List the ledger's other clusters by name. `prune`: say whether each can be removed."""
    names = sorted(set(session.scalars(sa.select(col(ClusterRow.name)))) - set(named))
    roots = sa.select(
        col(QuotaRow.cluster),
        sa.func.count(),
        sa.func.sum(sa.case((col(QuotaRow.parent).is_(None), col(QuotaRow.gpus)), else_=0)),
    ).group_by(col(QuotaRow.cluster))
    sums = {cluster: (count, total) for cluster, count, total in session.connection().execute(roots)}

    def summary(name: str) -> str:
        count, total = sums.get(name, (0, 0))
        return f"{count_text(count, 'quota')} of {gpus_text(int(total))}" if count else "no quotas"

    bars = barred_reasons(session, names) if prune else {}
    return [OtherCluster(name=name, summary=summary(name), barred=bars.get(name, "")) for name in names]


def barred_reasons(session: Session, names: Sequence[str], *, retired: bool = False) -> dict[str, str]:
    """Return why clusters can be neither removed nor renamed now. `retired`: their bring-ups themselves remove them."""
    reasons: dict[str, str] = {}
    for row in _rows_of(session, ClusterRow, ClusterRow.name, names, ClusterRow.name):
        if row.open_rollout is not None:
            rollout = session.get(RolloutRow, row.open_rollout)
            stage = "" if rollout is None else f" ({rollout.stage})"
            reasons[row.name] = f"rollout {row.open_rollout} is open{stage}: close or abort it first"
        elif row.reserve_limit is not None:
            reasons[row.name] = (
                f"{_busy(session, row)}: take that rollout over with `{command_line('launch', row.name)} --adopt`, "
                "then close it"
            )
    for cluster in [] if retired else _clusters_in_bringup(session, names, in_fleet=True):
        reasons.setdefault(
            cluster,
            f"its bring-up is open: `backstop bringup retire {shlex.quote(cluster)}` takes the cluster out of "
            "the fleet",
        )
    waiting = (
        sa.select(col(RequestRow.cluster), sa.func.count())
        .where(is_among(RequestRow.cluster, "names"), col(RequestRow.ended).is_(False))
        .group_by(col(RequestRow.cluster))
    )
    for cluster, count in session.connection().execute(waiting, {"names": list(names)}):
        are = "is" if count == 1 else "are"
        reasons.setdefault(
            cluster, f"{count_text(count, 'request')} for more quota in it {are} open: see `backstop request list`"
        )
    return reasons


def find_being_made(session: Session, names: Sequence[str]) -> dict[str, str]:
    """Return why clusters that a bring-up makes, and has not handed over yet, cannot come in by a file."""
    return {
        name: f"its bring-up is open and will bring it into the fleet: `backstop bringup status {shlex.quote(name)}`"
        for name in _clusters_in_bringup(session, names, in_fleet=False)
    }


def _clusters_in_bringup(session: Session, names: Sequence[str], *, in_fleet: bool) -> list[str]:
    """Return the clusters that have an open bring-up, and are in the fleet, or not yet."""
    there = sa.exists().where(col(ClusterRow.name) == col(BringupBookRow.cluster))
    rows = sa.select(col(BringupBookRow.cluster)).where(
        is_among(BringupBookRow.cluster, "names"), col(BringupBookRow.ended_at).is_(None), there if in_fleet else ~there
    )
    result = session.connection().execute(rows.order_by(col(BringupBookRow.cluster)), {"names": list(names)})
    return [name for (name,) in result]
