"""Health sources in doubt, as the ledger keeps them: a source's samples within the last hour are judged as a whole.

The judgement is models/cluster/implausible_falls.py. Here are its facts: the clusters of a source, their best health of
the last hour, their health now with declared absences put back, and what a person has confirmed. A cluster's source
is the Prometheus or Slurm that it names; else it is the writer of its last sample, and every writer of two or more
samples within the hour, so that a new label does not make a new source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among, store
from activities.adapters.ledger.calendar import windows_of
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from activities.adapters.ledger.health_and_usage import last_sample_at, latest_health
from activities.adapters.ledger.scheduler_mirror import sources_of
from models.base import HOUR
from models.cluster.implausible_falls import (
    LEDGER,
    DoubtedSource,
    Judgement,
    Level,
    doubt_reason,
    sample_before,
    still_fallen,
)
from models.cluster.island import Island
from models.cluster.readings import CLOCK_SKEW, Doubt
from models.cluster.windows import without_absences
from models.errors import Refusal
from models.ledger_tables import ClusterRow, HealthRow, ImportRow, IslandRow, SourceDoubtRow

_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True)
class _Standing:
    """A source in doubt as it is now. `levels`: those of its clusters that have not come back."""

    source: str
    since: datetime
    why: str
    levels: Mapping[str, Level]

    def describe(self) -> DoubtedSource:
        return DoubtedSource(source=self.source, why=self.why, since=self.since, clusters=tuple(sorted(self.levels)))


class LedgerDoubts(LedgerPart):
    def doubt(self, cluster: str, plausible_drop: Fraction | None, most_clusters: int | None) -> Doubt | None:
        now = self._database.now()
        with self._database.reading() as session:
            rows = _rows(session)
            doubt = _doubt_of(cluster, _list_standing(session, now, rows, cluster))
            if doubt is not None or plausible_drop is None or most_clusters is None:
                return doubt
            limits = plausible_drop, most_clusters
            if _is_surely_believed(session, cluster, limits, now, rows):
                return None
        with self._database.begin() as session:
            one_at_a_time(session, "doubts")
            rows = _rows(session)
            stand = _list_standing(session, now, rows, cluster)
            for source, judgement in _judge_sources(session, cluster, limits, now, rows).items():
                if source not in {one.source for one in stand}:
                    _store(session, source, since=now, judgement=judgement.model_dump_json())
            return _doubt_of(cluster, _list_standing(session, now, only=cluster))

    def doubted_clusters(self) -> dict[str, str]:
        return {cluster: one.source for one in self.sources_in_doubt() for cluster in one.clusters}

    def sources_in_doubt(self) -> tuple[DoubtedSource, ...]:
        now = self._database.now()
        with self._database.reading() as session:
            stand = _list_standing(session, now)
        if any(not one.levels for one in stand):
            with self._database.begin() as session:
                one_at_a_time(session, "doubts")
                for one in _list_standing(session, now):
                    if not one.levels:
                        _store(session, one.source)
        return tuple(one.describe() for one in stand if one.levels)

    def confirm(self, source: str, actor: str) -> DoubtedSource:
        now = self._database.now()
        with self._database.begin() as session:
            one_at_a_time(session, "doubts")
            stand = {one.source: one for one in _list_standing(session, now)}
            if source not in stand and (done := _repeated_confirmation(session, source, actor, now)) is not None:
                return done
            if source not in stand:
                names = ", ".join(sorted(stand)) or "none"
                raise Refusal(f"source {source!r} is not in doubt; sources in doubt: {names}")
            judgement = session.get_one(SourceDoubtRow, source).judgement
            _store(session, source, judgement=judgement, confirmed_at=now, confirmed_by=actor)
            return stand[source].describe()


def _store(session: Session, source: str, **values: Any) -> None:
    row = session.get(SourceDoubtRow, source)
    kept = {} if row is None else {"confirmed_at": row.confirmed_at, "confirmed_by": row.confirmed_by}
    blank = {"since": None, "judgement": "", "confirmed_at": None, "confirmed_by": ""}
    store(session, SourceDoubtRow, [{"source": source, **blank, **kept, **values}])


def _repeated_confirmation(session: Session, source: str, actor: str, now: datetime) -> DoubtedSource | None:
    """Return the source if the same person confirmed it a moment ago: a repeated call gets the same answer."""
    row = session.get(SourceDoubtRow, source)
    if row is None or row.confirmed_at is None or row.confirmed_by != actor or now - row.confirmed_at > _AGAIN:
        return None
    judgement = _judgement(row.judgement)
    fallen = still_fallen(judgement.levels, judgement.plausible_drop)
    return DoubtedSource(source=source, why=judgement.why, since=row.confirmed_at, clusters=tuple(sorted(fallen)))


def _doubt_of(cluster: str, stand: Iterable[_Standing]) -> Doubt | None:
    for one in stand:
        level = one.levels.get(cluster)
        if level is not None:
            return Doubt(source=one.source, why=one.why, since=one.since, before=sample_before(level, one.since))
    return None


def _rows(session: Session) -> Sequence[Any]:
    """Read a row for each source that is or ever was in doubt: few."""
    return session.connection().execute(_select_doubts()).all()


@cache
def _select_doubts() -> sa.Select[Any]:
    return sa.select(*sa.inspect(SourceDoubtRow).columns)


def _list_standing(
    session: Session, now: datetime, rows: Sequence[Any] | None = None, only: str = ""
) -> list[_Standing]:
    """List every source in doubt, with its clusters that are not back where they were.

    `only`: look at this cluster alone. `rows`: the sources' rows, if they are read already.
    """
    doubts = []
    for row in sorted(_rows(session) if rows is None else rows, key=lambda row: row.source):
        if row.since is None:
            continue
        judgement = _judgement(row.judgement)
        present = _present(
            session, [name for one in judgement.levels if (name := one.cluster) == only or not only], now
        )
        levels = {
            level.cluster: _level_now(level, present[level.cluster])
            for level in judgement.levels
            if level.cluster in present
        }
        fallen = still_fallen(levels.values(), judgement.plausible_drop)
        doubts.append(_Standing(row.source, row.since, judgement.why, {name: levels[name] for name in fallen}))
    return doubts


@lru_cache(maxsize=32)
def _judgement(text: str) -> Judgement:
    """Cached: for a source of a thousand clusters it is long, and each look at one of them reads it."""
    return Judgement.model_validate_json(text)


def _present(session: Session, clusters: Sequence[str], now: datetime) -> dict[str, tuple[Island, ...]]:
    """Return the islands' health now, as if there were no declared absences."""
    windows = windows_of(session, clusters)
    samples = latest_health(session, clusters, now)
    return {name: without_absences(sample.islands, windows.get(name, ()), now) for name, sample in samples.items()}


def _level_now(level: Level, now: tuple[Island, ...]) -> Level:
    """Return the level today, without GPUs that an import removed: no source lost those."""
    installed = {island.name: island.total_gpus for island in now}
    before = tuple(
        i.at_health(min(i.healthy_gpus, installed[i.name])).but(total_gpus=installed[i.name])
        for i in level.before
        if i.name in installed
    )
    return level.but(before=before, now=now)


# --- judging ---------------------------------------------------------------------------------


def _is_surely_believed(
    session: Session, cluster: str, limits: tuple[Fraction, int], now: datetime, rows: Sequence[Any]
) -> bool:
    """Return whether the few clusters that lost GPUs of late prove that no source of this one is in doubt.

    Each look at a cluster that has fallen asks this. A source of a thousand clusters writes 100,000 rows within the
    hour, of which the database makes one for each island; clusters without losses are not examined further.
    """
    drop, most = limits
    since, confirmed = now - HOUR, _confirmations(rows)
    suspects = _suspects(session, cluster, drop, confirmed, now)
    named = _named_sources(session, None) if suspects else {}
    for source in suspects:
        start = _start_of(confirmed, source, since)
        by_it = {name: source in sources for name, sources in named.items()}
        lost, whole_gpus = _sums(session, source, by_it, since, now)
        histories = _histories(session, lost, since, now).values()
        levels = [history.level(start) for history in histories if source in history.sources]
        if doubt_reason(source, levels, drop, most, whole_gpus):
            return False
    return True


def _suspects(
    session: Session, cluster: str, drop: Fraction, confirmed: Mapping[str, datetime | None], now: datetime
) -> list[str]:
    own = _histories(session, [cluster], now - HOUR, now).get(cluster)
    if own is None:
        return []
    return sorted(
        source for source in own.sources if own.level(_start_of(confirmed, source, now - HOUR)).has_fallen(drop)
    )


def _sums(
    session: Session, source: str, named: Mapping[str, bool], since: datetime, now: datetime
) -> tuple[list[str], int]:
    """Return the clusters that may have fallen by this source, and the GPUs of others that are surely its own.

    A cluster that names no source and has fallen by this one has a sample of it within the hour. `named`: clusters that
    name a source, and whether it is this one.
    """
    window = {"since": since, "latest": now + CLOCK_SKEW}
    written = {"sources": ["", LEDGER] if source == LEDGER else [source], **window}
    near = {row.cluster for row in session.connection().execute(_select_clusters_of(), written)}
    near |= {name for name, by_it in named.items() if by_it}
    near -= {name for name, by_it in named.items() if not by_it}
    lost, whole_gpus = list[str](), 0
    islands = session.connection().execute(_extremes(), {"clusters": sorted(near), **window}).all()
    for cluster, group in groupby(islands, lambda row: row.cluster):
        those = list(group)
        if sum(one.best for one in those) > sum(one.present for one in those):
            lost.append(cluster)
        elif cluster in named or any((one.source or LEDGER) == source for one in those):
            whole_gpus += sum(one.total_gpus for one in those)
    return lost, whole_gpus


def _judge_sources(
    session: Session, cluster: str, limits: tuple[Fraction, int], now: datetime, rows: Sequence[Any]
) -> dict[str, Judgement]:
    """Return the judgements on the sources of this cluster that are not to be believed, by source."""
    drop, most = limits
    since, confirmed = now - HOUR, _confirmations(rows)
    sources = _suspects(session, cluster, drop, confirmed, now)
    if not sources:
        return {}
    every = _histories(session, list(session.exec(select(ClusterRow.name))), since, now)
    judgements = {}
    for source in sources:
        start = _start_of(confirmed, source, since)
        levels = tuple(history.level(start) for _, history in sorted(every.items()) if source in history.sources)
        why = doubt_reason(source, levels, drop, most)
        if why:
            judgements[source] = Judgement(why=why, plausible_drop=drop, levels=levels)
    return judgements


def _confirmations(rows: Iterable[Any]) -> dict[str, datetime | None]:
    return {row.source: row.confirmed_at for row in rows}


def _start_of(confirmed: Mapping[str, datetime | None], source: str, since: datetime) -> datetime:
    return max(since, confirmed.get(source) or since)


@dataclass(frozen=True)
class _History:
    """The samples of one cluster within an hour, by island in the order of time, and the one before them."""

    cluster: str
    gpus_per_node: int
    sources: frozenset[str]
    rows: Sequence[Sequence[Any]]
    now: tuple[Island, ...]

    def level(self, since: datetime) -> Level:
        """Return the level since then."""
        return Level(
            cluster=self.cluster,
            gpus_per_node=self.gpus_per_node,
            before=tuple(
                _island(max(_rows_since(rows, since), key=lambda row: row.healthy_gpus)) for rows in self.rows
            ),
            now=self.now,
        )


def _rows_since(rows: Sequence[Any], since: datetime) -> Sequence[Any]:
    stood = sum(row.at <= since for row in rows)
    return rows[max(0, stood - 1) :]


def _island(row: Any) -> Island:
    return Island(name=row.name, total_gpus=row.total_gpus, healthy_gpus=row.healthy_gpus, block_gpus=row.block_gpus)


def _histories(session: Session, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, _History]:
    parameters = {"clusters": list(clusters), "since": since, "latest": now + CLOCK_SKEW}
    named = _named_sources(session, clusters)
    windows = windows_of(session, clusters)
    importers = cache(lambda: frozenset(session.exec(select(ImportRow.actor).distinct())))
    histories = {}
    lines = session.connection().execute(_select_hour(), parameters).all()
    for (cluster, gpus_per_node), rows in groupby(lines, lambda row: (row.cluster, row.gpus_per_node)):
        islands = [list(of_island) for _, of_island in groupby(rows, lambda row: row.name)]
        present = tuple(_island(of_island[-1]) for of_island in islands)
        histories[cluster] = _History(
            cluster=cluster,
            gpus_per_node=gpus_per_node,
            sources=named.get(cluster) or _writers(islands, importers),
            rows=islands,
            now=without_absences(present, windows.get(cluster, ()), now),
        )
    return histories


def _named_sources(session: Session, clusters: Sequence[str] | None) -> dict[str, frozenset[str]]:
    """Return the source that a cluster names itself, for these clusters or for all."""
    sources = sources_of(session, clusters)
    slurm = {name: frozenset({f"slurm/{source.connection}"}) for name, source in sources.slurm.items()}
    prometheus = {name: frozenset({f"prometheus/{source.connection}"}) for name, source in sources.prometheus.items()}
    kubernetes = {name: frozenset({f"kubernetes/{source.connection}"}) for name, source in sources.kubernetes.items()}
    return slurm | prometheus | kubernetes


def _writers(islands: Iterable[Sequence[Any]], importers: Callable[[], Container[str]]) -> frozenset[str]:
    """Return the writers of the last samples, and those who write repeatedly, without those who import fleet files.

    Importers are read only if there is another repeated writer: there is a row for each import that ever was.
    """
    last, often = set(), set()
    for rows in islands:
        last.add(rows[-1].source)
        times = Counter(row.source for row in rows)
        often |= {source for source, count in times.items() if count > 1}
    if often - last:
        often = {source for source in often if source not in importers()}
    return frozenset(source or LEDGER for source in last | often)


@cache
def _select_hour() -> sa.Select[Any]:
    earlier = aliased(HealthRow)
    fits = col(earlier.healthy_gpus) <= IslandRow.total_gpus
    stood = last_sample_at(earlier, col(earlier.at) <= sa.bindparam("since"), fits)
    names = ("at", "healthy_gpus", "block_gpus", "source")
    columns: list[Any] = [col(IslandRow.cluster), col(IslandRow.name), col(IslandRow.total_gpus)]
    return (
        sa.select(*columns, col(ClusterRow.gpus_per_node), *(getattr(HealthRow, name) for name in names))
        .select_from(IslandRow)
        .join(ClusterRow, col(ClusterRow.name) == col(IslandRow.cluster))
        .join(
            HealthRow,
            sa.and_(
                col(HealthRow.cluster) == col(IslandRow.cluster),
                col(HealthRow.island) == col(IslandRow.name),
                col(HealthRow.at) >= sa.func.coalesce(stood, sa.bindparam("since")),
                col(HealthRow.at) <= sa.bindparam("latest"),
                # Only an import changes T: a sample beyond it is wrong (ADR 0029).
                col(HealthRow.healthy_gpus) <= col(IslandRow.total_gpus),
            ),
        )
        .where(is_among(IslandRow.cluster, "clusters"))
        .order_by(col(IslandRow.cluster), col(IslandRow.name), col(HealthRow.at))
    )


@cache
def _select_clusters_of() -> sa.Select[str]:
    """Select the clusters with a sample of this source within the hour."""
    at = col(HealthRow.at)
    within = at >= sa.bindparam("since"), at <= sa.bindparam("latest")
    return sa.select(col(HealthRow.cluster)).where(is_among(HealthRow.source, "sources"), *within).distinct()


@cache
def _extremes() -> sa.Select[Any]:
    """Select a row for each island: its best health of the hour, its health now, and the source of that."""
    hour = _select_hour().order_by(None).subquery()
    key = hour.c.cluster, hour.c.name, hour.c.total_gpus
    of_island = (
        sa.select(*key, sa.func.max(hour.c.healthy_gpus).label("best"), sa.func.max(hour.c.at).label("newest"))
        .group_by(*key)
        .subquery()
    )
    columns: list[Any] = [of_island.c.cluster, of_island.c.total_gpus, of_island.c.best]
    last = sa.and_(
        col(HealthRow.cluster) == of_island.c.cluster,
        col(HealthRow.island) == of_island.c.name,
        col(HealthRow.at) == of_island.c.newest,
    )
    return (
        sa.select(*columns, col(HealthRow.healthy_gpus).label("present"), col(HealthRow.source))
        .select_from(of_island)
        .join(HealthRow, last)
        .order_by(of_island.c.cluster)
    )
