"""Declared windows in the ledger: those of fleet files, and those that people and calendars declare beside them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.bulk import Row, add, is_among
from activities.adapters.ledger.database import LedgerPart, once_in_moment, one_at_a_time
from activities.bad_rows import making_sense, why_senseless
from activities.ports.by_cluster import ByCluster
from models.audit_chain import AuditEntry, Deed
from models.cluster.windows import FILE, FLEET_HOLD, Declaration, Declared, Entry, Window, WindowKind
from models.errors import BadInput, Refusal
from models.ledger_tables import AuditRow, ClusterRow, IslandRow, WindowRow
from models.texts import gpus_text, some_of

_NAMED = 3
_LEFT = frozenset({"id", "window", "source", "declared_by"})
"""Fields of an ended window that the archive keeps."""


class LedgerCalendar(LedgerPart):
    """CalendarPort on the ledger, and FleetPort's part of declaring."""

    def windows(self, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
        with self._database.reading() as session:
            return windows_of(session, clusters)

    def calendar(self, cluster: str, since: datetime) -> tuple[Entry, ...]:
        """List the windows that end after `since`, by cluster and start; those of all clusters if none is named."""
        with self._database.reading() as session:
            rows = sa.select(*sa.inspect(WindowRow).columns).where(col(WindowRow.ends) > since)
            if cluster:
                _refuse_unknown_clusters(session, {cluster})
                rows = rows.where(col(WindowRow.cluster) == cluster)
            order = (col(WindowRow.cluster), col(WindowRow.starts), col(WindowRow.id))
            return _entries(session.connection().execute(rows.order_by(*order)))

    def faults(self) -> dict[str, str]:
        with self._database.reading() as session:
            columns = sa.select(*sa.inspect(WindowRow).columns).order_by(col(WindowRow.id))
            wrong: dict[str, list[str]] = {}
            for row in session.connection().execute(columns):
                if isinstance(why := _window_or_why(row), str):
                    wrong.setdefault(row.cluster, []).append(f"window {row.id} is none: {why}")
        return {name: some_of(faults, _NAMED, by="; ") for name, faults in wrong.items()}

    def declare(self, declared: Sequence[Declared], actor: str, now: datetime) -> Declaration:
        """Store all of the windows or none, in place of their sources' earlier windows that are not over.

        A window that is declared again keeps its number. One that is withdrawn after it has begun is cut short, so that
        it still explains what it explained.
        """
        with self._database.begin() as session:
            one_at_a_time(session, "calendar")
            _refuse_unknown(session, declared)
            theirs = col(WindowRow.source).in_([d.source for d in declared])
            live = (
                sa.select(*sa.inspect(WindowRow).columns)
                .where(theirs, col(WindowRow.ends) > now)
                .order_by(col(WindowRow.id))
            )
            wanted = {(name, each.source, window.in_order) for each in declared for name, window in each.windows}
            present = _entries(session.connection().execute(live))
            stale = [e for e in present if (e.cluster, e.source, e.window) not in wanted]
            for entry in stale:
                _end(session, entry, now)
            new = sorted(wanted - {(e.cluster, e.source, e.window) for e in present}, key=_by_name)
            add(session, WindowRow, [window_row(name, window, source, actor) for name, source, window in new])
            before = {e.id for e in present}
            stand = _entries(session.connection().execute(live))
            return Declaration(stand=stand, new=tuple(e for e in stand if e.id not in before), gone=tuple(stale))

    def end_window(self, cluster: str, number: int, now: datetime, deed: Deed[Entry]) -> Entry:
        """End the window: cut it short if it has begun, else remove it. A repeated call changes nothing.

        Returns it as it was left. Errors: Refusal for one that the cluster does not have.
        """
        with never_dropped(), self._database.begin() as session:
            for entry in _read_ended(session, deed.key):
                return entry
            row = session.exec(select(WindowRow).where(WindowRow.cluster == cluster, WindowRow.id == number)).first()
            if row is None:
                raise Refusal(
                    f"cluster {cluster} has no window {number}: "
                    f"`backstop calendar show {shlex.quote(cluster)}` lists them"
                )
            with making_sense(cluster, f"its window {number}"):
                entry = _entry(row, _window(row))
            left = entry if row.ends <= now else _end(session, entry, now)
            append_all(session, [deed.entry(left)])
            return left

    def end_hold(self, source: str, clusters: Sequence[str], now: datetime, deed: Deed[Entry]) -> tuple[Entry, ...]:
        """End all or none; windows that are over already are left out, unless this very deed has ended them."""
        with never_dropped(), self._database.begin() as session:
            one_at_a_time(session, "calendar")
            if ended := _read_ended(session, deed.key):
                return ended
            live = sa.select(*sa.inspect(WindowRow).columns).where(
                col(WindowRow.source) == source, col(WindowRow.ends) > now, is_among(WindowRow.cluster, "clusters")
            )
            rows = session.connection().execute(live.order_by(col(WindowRow.id)), {"clusters": list(clusters)})
            left = tuple([_end(session, entry, now) for entry in _entries(rows)])
            append_all(session, [deed.entry(entry) for entry in left])
            return left


def _read_ended(session: Session, key: str) -> tuple[Entry, ...]:
    """Return from the archive the windows that this deed has ended: those that had not begun have no row."""
    own = sa.or_(col(AuditRow.key) == key, col(AuditRow.key).startswith(f"{key}/", autoescape=True))
    texts = session.scalars(sa.select(col(AuditRow.entry)).where(own)).all()
    done = [entry for entry in map(AuditEntry.model_validate_json, texts) if entry.data.keys() >= _LEFT]
    entries = [Entry(cluster=e.cluster, **{name: e.data[name] for name in _LEFT}) for e in done]
    return tuple(sorted(entries, key=lambda entry: entry.id))


def _end(session: Session, entry: Entry, now: datetime) -> Entry:
    """Cut the window short if it has begun, else remove it. Returns it as it was left."""
    same = col(WindowRow.id) == entry.id
    if entry.window.starts >= now:
        session.connection().execute(sa.delete(WindowRow).where(same))
        return entry
    session.connection().execute(sa.update(WindowRow).where(same).values(ends=now))
    return entry.but(window=entry.window.but(ends=now))


def hold_new_clusters(session: Session, clusters: Sequence[str], now: datetime) -> None:
    """Declare for new clusters the holds of every cluster that are not over."""
    columns = [column for column in sa.inspect(WindowRow).columns if column.name not in ("id", "cluster")]
    live = sa.select(*columns).where(col(WindowRow.source).startswith(FLEET_HOLD), col(WindowRow.ends) > now).distinct()
    rows = [dict(row) for row in session.connection().execute(live).mappings()]
    add(session, WindowRow, [{**row, "cluster": name} for name in clusters for row in rows])


def _by_name(each: tuple[str, str, Window]) -> tuple[str, datetime, str]:
    name, source, window = each
    return name, window.starts, source


def windows_of(session: Session, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
    key = "windows", tuple(clusters)
    return once_in_moment(session, key, lambda: _by_cluster(session, clusters, _windows()))


def open_windows(session: Session, clusters: Sequence[str], now: datetime) -> ByCluster[tuple[Window, ...]]:
    """Return the windows that have begun and not ended."""
    return _by_cluster(session, clusters, _windows().where(col(WindowRow.starts) <= now, col(WindowRow.ends) > now))


def file_windows(session: Session, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
    """Return the windows that fleet files declared."""
    return _by_cluster(session, clusters, _windows().where(col(WindowRow.source) == FILE))


def _by_cluster(
    session: Session, clusters: Sequence[str], rows: sa.Select[*tuple[Any, ...]]
) -> ByCluster[tuple[Window, ...]]:
    lines = session.connection().execute(rows, {"clusters": list(clusters)}).all()
    by_cluster = groupby(lines, lambda row: row.cluster)
    return ByCluster(
        {name: tuple(w for row in rows if isinstance(w := _window_or_why(row), Window)) for name, rows in by_cluster}
    )


def window_row(cluster: str, window: Window, source: str, declared_by: str) -> Row:
    return {
        "cluster": cluster,
        "kind": window.kind.value,
        "starts": window.starts,
        "ends": window.ends,
        "reason": window.reason,
        "islands": comma_joined(window.islands),
        "gpus": window.gpus,
        "source": source,
        "declared_by": declared_by,
    }


def comma_joined(names: Iterable[str] | None) -> str | None:
    """Join the names, sorted, so that the same islands always make the same text."""
    return None if names is None else ",".join(sorted(names))


@cache
def _windows() -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*sa.inspect(WindowRow).columns)
        .where(is_among(WindowRow.cluster, "clusters"))
        .order_by(col(WindowRow.cluster), col(WindowRow.starts), col(WindowRow.id))
    )


def _refuse_unknown(session: Session, declared: Sequence[Declared]) -> None:
    windows = [each for d in declared for each in d.windows]
    _refuse_unknown_clusters(session, {cluster for cluster, _ in windows})
    columns = (col(IslandRow.cluster), col(IslandRow.name), col(IslandRow.total_gpus))
    installed: dict[str, dict[str, int]] = {}
    for cluster, island, total in session.connection().execute(sa.select(*columns)):
        installed.setdefault(cluster, {})[island] = total
    for cluster, window in windows:
        for island in window.islands or ():
            if island not in installed[cluster]:
                raise BadInput(f"cluster {cluster!r} has no island {island!r}")
        most = sum(installed[cluster][island] for island in window.islands or installed[cluster])
        if window.gpus is not None and window.gpus > most:
            where = f" in {some_of(window.islands)}" if window.islands else ""
            raise BadInput(f"cluster {cluster!r} has {gpus_text(most)}{where}: a window cannot take {window.gpus:,}")


def _refuse_unknown_clusters(session: Session, wanted: set[str]) -> None:
    rows = session.connection().execute(sa.select(col(ClusterRow.name)).where(col(ClusterRow.name).in_(wanted)))
    for name in sorted(wanted - set(rows.scalars())):
        raise BadInput(f"the ledger has no cluster {name!r}")


def _entries(rows: Iterable[sa.Row[Any]]) -> tuple[Entry, ...]:
    return tuple(_entry(row, w) for row in rows if isinstance(w := _window_or_why(row), Window))


def _window_or_why(row: sa.Row[Any]) -> Window | str:
    """Return the window, or why it makes no sense: plain SQL may have written it (`faults` reports it)."""
    try:
        return _window(row)
    except ValueError as error:
        return why_senseless(error)


def _entry(row: WindowRow | sa.Row[Any], window: Window) -> Entry:
    assert row.id is not None
    return Entry(id=row.id, cluster=row.cluster, window=window, source=row.source, declared_by=row.declared_by)


def _window(row: WindowRow | sa.Row[Any]) -> Window:
    return Window(
        kind=WindowKind(row.kind),
        starts=row.starts,
        ends=row.ends,
        reason=row.reason,
        islands=tuple(row.islands.split(",")) if row.islands else None,
        gpus=row.gpus,
    )
