"""The ledger as a quota system: reads with a generation, fenced effects, one transaction each.

An effect first takes the quotas' rows and then the cluster's, in the order in which a foreign UPDATE and
its trigger take them; the other way round the two would wait for each other.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import Row, add, is_among, update
from activities.adapters.ledger.database import LedgerPart
from activities.bad_rows import build_each, making_sense
from activities.ports.by_cluster import ByCluster
from models.cluster.readings import ForeignChange, LimitMode, Present, QuotaReading
from models.errors import Conflict, Drift, HistoryLapse, NoSuchCluster
from models.ledger_tables import (
    ClusterRow,
    GrantReceiptRow,
    QuotaChangeRow,
    QuotaRow,
    ReceiptRow,
    ReserveLimitRow,
    RolloutRow,
)
from models.rollout.effect_table import FOLLOWS_AFTER, GUARDED_BY_GENERATION, MODE_AFTER, WRITES_RESERVATION
from models.rollout.effects import Change, EffectKind, Fence, Receipt, Reserve, ValueConflict, ValueWrite

_ReceiptT = TypeVar("_ReceiptT", ReceiptRow, GrantReceiptRow)

ClusterLine = sa.Row[Any]
"""A cluster's row without its GPU model, node size, policy and ramp."""


class LedgerQuotas(LedgerPart):
    def read(self, cluster: str) -> QuotaReading:
        with self._database.reading() as session:
            of_cluster = {"cluster": cluster}
            row = session.connection().execute(_build_row_query(), of_cluster).first()
            if row is None:
                raise NoSuchCluster(cluster)
            quotas = session.connection().execute(_quotas(), of_cluster).all()
            with making_sense(cluster, "its quotas"):
                return _build_reading(cluster, row, quotas)

    def look(self, cluster: str) -> QuotaReading:
        return self.read(cluster)

    def last_known(self, cluster: str) -> QuotaReading:
        return self.read(cluster)

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        with self._database.reading() as session:
            among_them = {"clusters": list(clusters)}
            rows = session.connection().execute(_all_standing(), among_them).all()
            quotas = groupby(session.connection().execute(_all_quotas(), among_them), lambda row: str(row.cluster))
            of_each = {cluster: list(group) for cluster, group in quotas}
        return build_each(
            "its quotas", ((row.name, row) for row in rows), lambda c, row: _build_reading(c, row, of_each.get(c, ()))
        )

    def barred_reason(self, cluster: str) -> str:
        return ""

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        """Others move the generation, by triggers; Backstop's own effects move the counter."""
        with self._database.reading() as session:
            rows = session.connection().execute(_versions(), {"clusters": clusters})
            return {name: f"{generation} {rollout}#{counter}" for name, generation, rollout, counter in rows}

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        with self._database.reading() as session:
            rows = session.exec(
                select(QuotaChangeRow)
                .where(col(QuotaChangeRow.cluster) == cluster, col(QuotaChangeRow.generation) > after)
                .order_by(col(QuotaChangeRow.team))
            ).all()
        return tuple(
            ForeignChange(team=row.team, by=row.changed_by, at=row.at, generation=row.generation) for row in rows
        )

    def apply(self, change: Change) -> Receipt:
        with self._database.begin() as session:
            return self.land(session, change)

    def land(self, session: Session, change: Change) -> Receipt:
        """Apply the change in the caller's transaction."""
        if _touches_quotas(change):
            _lock_quotas(session, change.cluster)
        cluster = _lock_standing(session, change.cluster)
        alone = change.kind is EffectKind.GRANT and _is_by_request(session, cluster, change.fence)
        stored = (_stored_grant if alone else _stored_receipt)(session, change, cluster)
        if stored is not None:
            return stored
        _refuse_drift(cluster, change)
        receipt = self._carry_out(session, cluster, change, alone=alone)
        add(session, GrantReceiptRow if alone else ReceiptRow, [_receipt_row(receipt)])
        return receipt

    def _carry_out(self, session: Session, cluster: ClusterLine, change: Change, *, alone: bool) -> Receipt:
        before, after, conflicts = _write_quotas(session, change) if _touches_quotas(change) else ({}, {}, ())
        standing = _write_standing(session, cluster, change, alone=alone)
        return Receipt(
            cluster=change.cluster,
            kind=change.kind,
            fence=change.fence,
            at=self._database.now(),
            generation=standing.get("generation", cluster.generation),
            before=before,
            after=after,
            conflicts=conflicts,
            reserved_gpus=standing.get("reserved_gpus", cluster.reserved_gpus),
            flex_gpus=change.flex_gpus,
        )


@contextmanager
def attribute_changes(session: Session, clusters: Sequence[str], actor: str) -> Iterator[None]:
    """Attribute the foreign changes made inside to this person, not to the database user."""
    with_rollout = col(ClusterRow.name).in_(clusters), col(ClusterRow.open_rollout).is_not(None)
    of_clusters = sa.select(col(ClusterRow.name), col(ClusterRow.generation)).where(*with_rollout)
    before = session.connection().execute(of_clusters).all()
    yield
    for cluster, generation in before:
        session.connection().execute(
            sa.update(QuotaChangeRow)
            .where(col(QuotaChangeRow.cluster) == cluster, col(QuotaChangeRow.generation) > generation)
            .values(changed_by=actor)
        )


def locked_cluster(session: Session, cluster: str) -> ClusterRow:
    """Return the cluster's row, locked until the transaction ends. Errors: Refusal for an unknown cluster."""
    # NO KEY: a foreign INSERT of a quota refers to the row and must not be waited for.
    row = session.get(ClusterRow, cluster, with_for_update={"key_share": True})
    if row is None:
        raise NoSuchCluster(cluster)
    return row


def _lock_standing(session: Session, cluster: str) -> ClusterLine:
    """Lock as `locked_cluster` does, about twice as fast."""
    row = session.connection().execute(_build_locking_query(), {"cluster": cluster}).first()
    if row is None:
        raise NoSuchCluster(cluster)
    return row


_STANDING: tuple[Any, ...] = tuple(
    getattr(ClusterRow, name)
    for name in (
        *("name", "generation", "open_rollout", "last_counter", "reserved_gpus", "reserve_limit"),
        *("follows_health", "flex_gpus", "flex_band_gpus"),
    )
)


@cache
def _build_row_query() -> sa.Select[Any]:
    return sa.select(*_STANDING).where(col(ClusterRow.name) == sa.bindparam("cluster"))


def _build_reading(cluster: str, row: sa.Row[Any], quotas: Sequence[sa.Row[Any]]) -> QuotaReading:
    """Return the reading of a cluster. Errors: ValueError if its rows make no sense."""
    return QuotaReading(
        cluster=cluster,
        generation=row.generation,
        quotas=tuple(present_of(quota) for quota in quotas),
        reserved_gpus=row.reserved_gpus,
        follows_health=row.follows_health,
        flex_gpus=row.flex_gpus,
        flex_band_gpus=row.flex_band_gpus,
        counts_modes=True,
        rollout=row.open_rollout or "",
        counter=row.last_counter,
    )


@cache
def _all_standing() -> sa.Select[Any]:
    return sa.select(*_STANDING).where(is_among(ClusterRow.name, "clusters"))


@cache
def _all_quotas() -> sa.Select[Any]:
    rows = sa.select(*sa.inspect(QuotaRow).columns).where(is_among(QuotaRow.cluster, "clusters"))
    return rows.order_by(col(QuotaRow.cluster), col(QuotaRow.team))


@cache
def _versions() -> sa.Select[Any]:
    columns = ("name", "generation", "open_rollout", "last_counter")
    return sa.select(*(getattr(ClusterRow, name) for name in columns)).where(is_among(ClusterRow.name, "clusters"))


@cache
def _build_locking_query() -> sa.Select[Any]:
    return _build_row_query().with_for_update(key_share=True)


@cache
def _teams_for_update() -> sa.Select[Any]:
    of_cluster = col(QuotaRow.cluster) == sa.bindparam("cluster")
    teams = sa.select(col(QuotaRow.team)).where(of_cluster).order_by(col(QuotaRow.team))
    return teams.with_for_update(key_share=True)


@cache
def _quotas() -> sa.Select[Any]:
    of_cluster = col(QuotaRow.cluster) == sa.bindparam("cluster")
    return sa.select(*sa.inspect(QuotaRow).columns).where(of_cluster).order_by(col(QuotaRow.team))


def present_of(row: QuotaRow | sa.Row[Any]) -> Present:
    return Present(
        team=row.team,
        gpus=row.gpus,
        mode=LimitMode(row.mode),
        islands=tuple(row.islands.split(",")) if row.islands else None,
        protected_blocks=tuple(int(block) for block in row.blocks.split(",") if block),
        minimum_gpus=row.minimum,
        parent=row.parent,
        hand=row.hand + (row.gpus != row.written_gpus),
        namespaces=None if row.namespaces is None else tuple(name for name in row.namespaces.split(",") if name),
        classes=None if row.classes is None else tuple(n for n in row.classes.split(",") if n),
    )


def _lock_quotas(session: Session, cluster: str) -> None:
    """Keep everybody else from writing the cluster's quotas; their values are read after this."""
    session.connection().execute(_teams_for_update(), {"cluster": cluster}).all()


def _touches_quotas(change: Change) -> bool:
    return bool(change.writes) or change.kind in MODE_AFTER


def _quotas_by_team(session: Session, cluster: str) -> dict[str, Row]:
    names = ("cluster", "team", "gpus", "mode", "written_by", "written_gpus", "hand")
    rows = session.connection().execute(_quotas(), {"cluster": cluster})
    return {row.team: {name: getattr(row, name) for name in names} for row in rows}


def _stored_receipt(session: Session, change: Change, cluster: ClusterLine) -> Receipt | None:
    """Return the receipt of a repeated fence; None if the fence is new. Errors: Conflict for a dead one."""
    fence = change.fence
    if cluster.open_rollout != fence.rollout:
        return _last_receipt_of_an_ended_rollout(session, change, cluster)
    if fence.counter > cluster.last_counter:
        return None
    if fence.counter < cluster.last_counter:
        raise HistoryLapse(
            f"effect {fence.counter} of rollout {fence.rollout} came too late and was not written: "
            f"the ledger already has a later one, effect {cluster.last_counter}"
        )
    row = session.get_one(ReceiptRow, (fence.rollout, fence.counter))
    if row.kind != change.kind:
        raise HistoryLapse(
            f"the ledger has effect {fence.counter} of rollout {fence.rollout} as {row.kind}, not as {change.kind}"
        )
    return Receipt.model_validate_json(row.receipt)


def _is_by_request(session: Session, cluster: ClusterLine, fence: Fence) -> bool:
    """Return whether the fence is a request's own. A rollout's is dead once it has ended, for a grant too."""
    return cluster.open_rollout != fence.rollout and session.get(RolloutRow, fence.rollout) is None


def _stored_grant(session: Session, change: Change, cluster: ClusterLine) -> Receipt | None:
    """Return as `_stored_receipt`, for a request that writes while no rollout is open. Errors: Conflict if one is."""
    fence = change.fence
    last = _last(session, GrantReceiptRow, fence)
    if last is not None and last.counter == fence.counter:
        return Receipt.model_validate_json(last.receipt)
    if last is not None and last.counter > fence.counter:
        raise Conflict(
            f"effect {fence.counter} of {fence.rollout} came too late and was not written: "
            f"the ledger already has a later one, effect {last.counter}"
        )
    if cluster.open_rollout is not None:
        raise Conflict(
            f"rollout {cluster.open_rollout} is open in cluster {change.cluster}: a grant has to go "
            "through that rollout"
        )
    if cluster.reserve_limit is not None:
        raise Conflict(
            f"cluster {change.cluster} still has capacity reserved by a lost rollout: take over that rollout first "
            f"(`backstop launch {shlex.quote(change.cluster)} --adopt`)"
        )
    return None


def _last(session: Session, table: type[_ReceiptT], fence: Fence) -> _ReceiptT | None:
    """Return the newest receipt of the fence's rollout or request."""
    newest = select(table).where(table.rollout == fence.rollout).order_by(col(table.counter).desc())
    return session.exec(newest.limit(1)).first()


def _last_receipt_of_an_ended_rollout(session: Session, change: Change, cluster: ClusterLine) -> Receipt:
    """Return the last receipt: a rollout that ended in good order may still ask for it."""
    fence = change.fence
    rollout = session.get(RolloutRow, fence.rollout)
    if cluster.open_rollout is None and rollout is not None and rollout.superseded_by is None:
        last = _last(session, ReceiptRow, fence)
        if last is not None and last.counter == fence.counter:
            return Receipt.model_validate_json(last.receipt)
    owner = f"rollout {cluster.open_rollout} is" if cluster.open_rollout else "no rollout is"
    raise Conflict(f"rollout {fence.rollout} may not write to cluster {change.cluster}: {owner} open there")


def _refuse_drift(cluster: ClusterLine, change: Change) -> None:
    expected = change.expected_generation
    if expected is not None and change.kind in GUARDED_BY_GENERATION and expected != cluster.generation:
        raise Drift(
            f"cluster {change.cluster} is at generation {cluster.generation} and the plan was made from "
            f"{expected}: somebody else changed its quotas or installed GPUs"
        )


def _write_quotas(session: Session, change: Change) -> tuple[dict[str, int], dict[str, int], tuple[ValueConflict, ...]]:
    """Write the quotas; return their values before and after, and those that are not as expected."""
    written_by = f"{change.fence.rollout}#{change.fence.counter}"
    quotas = _quotas_by_team(session, change.cluster)
    named = [write.team for write in change.writes if write.team in quotas]
    as_read = {team: dict(row) for team, row in quotas.items()}
    conflicts = _write_values(quotas, change.writes, written_by, only_ours=change.only_ours)
    if conflicts and change.kind is EffectKind.GRANT:
        quotas = as_read  # a grant stands whole, up to the top of the tree, or not at all
    if change.kind in MODE_AFTER:
        mode = change.mode or MODE_AFTER[change.kind]
        quotas = {team: row | {"mode": mode, "written_by": written_by} for team, row in quotas.items()}
    update(session, QuotaRow, [row for row in quotas.values() if row["written_by"] == written_by])
    before, after = ({team: of[team]["gpus"] for team in named} for of in (as_read, quotas))
    return before, after, conflicts


def _write_standing(session: Session, cluster: ClusterLine, change: Change, *, alone: bool) -> Row:
    """Write the cluster's row and return it. `alone`: a grant without a rollout, which is a change by others."""
    row: Row = {"name": change.cluster}
    row |= {"generation": cluster.generation + 1} if alone else {"last_counter": change.fence.counter}
    if change.kind in WRITES_RESERVATION and not alone:
        reserve = None if change.kind is EffectKind.CLOSE else change.reserve
        row |= _set_reservation(session, change.cluster, reserve, change.fence)
    if change.kind in FOLLOWS_AFTER:
        row |= {"follows_health": FOLLOWS_AFTER[change.kind]}
        row |= {"flex_gpus": change.flex_gpus, "flex_band_gpus": change.flex_band_gpus}
    update(session, ClusterRow, [row])
    return row


def _write_values(
    quotas: Mapping[str, Row], writes: Sequence[ValueWrite], written_by: str, *, only_ours: bool = False
) -> tuple[ValueConflict, ...]:
    conflicts = []
    for write in writes:
        row = quotas.get(write.team)
        theirs = row is not None and only_ours and row["gpus"] != row["written_gpus"]
        # Already the new value: a call whose answer was lost has landed.
        if row is None or theirs or row["gpus"] not in (write.expected_gpus, write.gpus):
            there = None if row is None else row["gpus"]
            conflicts.append(ValueConflict(team=write.team, expected_gpus=write.expected_gpus, found_gpus=there))
            continue
        row["hand"] += row["gpus"] != row["written_gpus"]
        row["gpus"], row["mode"] = write.gpus, write.mode or row["mode"]
        row["written_by"], row["written_gpus"] = written_by, write.gpus
    return tuple(conflicts)


def _set_reservation(session: Session, cluster: str, reserve: Reserve | None, fence: Fence) -> Row:
    """Replace the reservation's limits; return the new values of the cluster's row."""
    session.connection().execute(sa.delete(ReserveLimitRow).where(col(ReserveLimitRow.cluster) == cluster))
    if reserve is None:
        return {"reserved_gpus": 0, "reserve_limit": None, "reserved_by": None}
    limits = [
        {"cluster": cluster, "islands": islands, "limit_gpus": limit}
        for islands, limit in sorted(reserve.limits_by_islands.items())
    ]
    add(session, ReserveLimitRow, limits)
    return {"reserved_gpus": reserve.freed_gpus, "reserve_limit": reserve.limit_gpus, "reserved_by": fence.rollout}


def _receipt_row(receipt: Receipt) -> dict[str, Any]:
    return {
        "rollout": receipt.fence.rollout,
        "counter": receipt.fence.counter,
        "cluster": receipt.cluster,
        "kind": receipt.kind,
        "at": receipt.at,
        "receipt": receipt.model_dump_json(),
    }
