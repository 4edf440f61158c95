"""Health and usage samples in the ledger.

Exporters may write the sample tables by plain SQL. No sample moves a cluster's generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among, store
from activities.adapters.ledger.database import Database, LedgerPart, once_in_moment
from activities.adapters.ledger.health_history import stretches_of
from activities.adapters.ledger.scheduler_mirror import sources_of
from activities.bad_rows import build_each, those_that_do
from activities.ports.by_cluster import ByCluster
from models.base import HOUR, duration_text
from models.buffers.hourly_health import Stretch
from models.cluster.island import Island
from models.cluster.readings import CLOCK_SKEW, Excess, HealthSample, TeamUsage, UsageReading
from models.cluster.sources import Sources
from models.columns import LAST
from models.errors import BadInput
from models.ledger_tables import HealthRow, IslandRow, QuotaRow, UsageRow
from models.texts import count_text

ENOUGH_SAMPLES = 20
"""From this number on, one sample in twenty may lie above the 95th percentile, so nearest-rank is not the maximum."""

_KEPT = 50_000
_CLUSTERS_KEPT = 4_000
_CLUSTER = itemgetter(0)

Refresh = Callable[[Sources], Mapping[str, str]]
"""Fetches samples from a source into the ledger, for the clusters that have the source.

While a source is silent, its last samples stay and grow old. Returns recent faults of the source, by cluster.
Errors: none.
"""


class _Fed(LedgerPart):
    """A port on the ledger that refreshes the samples of all sources before it reads the latest."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._refreshes: tuple[Refresh, ...] = ()

    def feed_from(self, *refreshes: Refresh) -> Self:
        self._refreshes = refreshes
        return self

    def _refresh(self, clusters: Sequence[str]) -> dict[str, str]:
        """Return recent faults, by cluster."""
        if not self._refreshes:
            return {}
        with self._database.reading() as session:
            sources = sources_of(session, clusters)
        troubles: dict[str, str] = {}
        for refresh in self._refreshes:
            troubles |= refresh(sources)
        return troubles


class LedgerHealth(_Fed):
    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        wrong = self._refresh(clusters)
        with self._database.reading() as session:
            now, key = self._database.now(), ("health", tuple(clusters))
            latest = once_in_moment(session, key, lambda: latest_health(session, clusters, now))
        for cluster in latest.keys() & wrong:  # a source has a fault, so that the moment is not shared
            latest[cluster] = latest[cluster].but(fault=wrong[cluster])
        return latest

    def least_healthy(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        with self._database.reading() as session:
            parameters = {"cluster": cluster, "since": since, "latest": now + CLOCK_SKEW}
            return {row.name: row.healthy for row in session.connection().execute(_least(), parameters)}

    def usual_healthy(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        with self._database.reading() as session:
            parameters = {
                "cluster": cluster,
                "since": now - window,
                "latest": now + CLOCK_SKEW,
                "enough": ENOUGH_SAMPLES,
            }
            return {row.island: row.healthy for row in session.connection().execute(_medians(), parameters)}

    def history(self, cluster: str, since: datetime, now: datetime) -> dict[str, Stretch]:
        return self.histories([cluster], since, now).get(cluster, {})

    def histories(self, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, dict[str, Stretch]]:
        with self._database.reading() as session:
            return stretches_of(session, clusters, since, now)


class LedgerSamples(LedgerPart):
    """Stores health samples: from a file or an exporter, and from the sources that a worker reads."""

    def add_health(self, samples: Sequence[HealthSample], actor: str) -> int:
        """Store the samples, marked with their source; return the number of rows.

        Errors: BadInput for a sample that is dated ahead, and for a cluster or an island that the ledger does not have;
        nothing is stored then.
        """
        _refuse_dated_ahead(samples, self._database.now())
        rows = {
            (sample.cluster, island.name, sample.at): health_row(sample.cluster, island, sample.at, actor)
            for sample in samples
            for island in sample.islands
        }
        with self._database.begin() as session:
            _refuse_unknown_islands(session, {(cluster, island) for cluster, island, _ in rows})
            store(session, HealthRow, list(rows.values()))
        return len(rows)

    def keep(self, sample: HealthSample, source: str, *, whole: bool = False) -> tuple[str, ...]:
        """Store the sample; return its islands that the cluster does not have: only an import adds islands.

        If nothing changes, the last one moves on in time, to save rows. `whole`: the source lists all that there is, so
        that an island without a GPU in the sample has none.
        """
        with self._database.begin() as session:
            islands = set(session.exec(select(IslandRow.name).where(col(IslandRow.cluster) == sample.cluster)))
            sampled = {island.name: island for island in sample.islands}
            empty = [Island(name=name, total_gpus=0, healthy_gpus=0) for name in sorted(islands - sampled.keys())]
            for island in [*sample.islands, *(empty if whole else [])]:
                if island.name not in islands:
                    continue
                row = health_row(sample.cluster, island, sample.at, source)
                of_island = (col(HealthRow.cluster) == sample.cluster, col(HealthRow.island) == island.name)
                last = session.exec(
                    select(HealthRow).where(*of_island).order_by(col(HealthRow.at).desc()).limit(2)
                ).all()
                values = {name: row[name] for name in ("total_gpus", "healthy_gpus", "block_gpus")}
                same = [all(getattr(one, n) == value for n, value in values.items()) for one in last]
                if same == [True, True]:
                    session.delete(last[0])
                    session.flush()
                store(session, HealthRow, [row])
        return tuple(sorted(sampled.keys() - islands))


class _Usual(NamedTuple):
    """The usual use of a cluster, and what it was computed from: the window, and the last samples."""

    window: timedelta
    instant: Mapping[str, TeamUsage]
    since: datetime
    until: datetime
    """The result holds until this time: then a sample leaves the window, or an hour has passed without a reader."""
    reading: UsageReading

    def stands(self, window: timedelta, instant: Mapping[str, TeamUsage], now: datetime) -> bool:
        return self.since <= now <= self.until and (self.window, self.instant) == (window, instant)


class LedgerUsage(_Fed):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._kept: dict[str, _Usual] = {}

    def read(self, cluster: str, window: timedelta, now: datetime) -> UsageReading:
        """Read S and L per leaf quota of today; `source` says which teams have a p95 and which an instant value."""
        self._refresh([cluster])
        with self._database.reading() as session:
            instant = latest_usage(session, [cluster], now).get(cluster, {})
            return _compute_usual(session, {cluster: instant}, window, now)[cluster].reading

    def readings(self, windows: Mapping[str, timedelta], now: datetime) -> dict[str, UsageReading]:
        self._refresh(list(windows))
        moved: dict[timedelta, dict[str, Mapping[str, TeamUsage]]] = {}
        with self._database.reading() as session:
            latest = latest_usage(session, list(windows), now)
            for cluster, window in windows.items():
                kept, instant = self._kept.get(cluster), latest.get(cluster, {})
                if kept is None or not kept.stands(window, instant, now):
                    moved.setdefault(window, {})[cluster] = instant
            new = {
                c: one for window, of in moved.items() for c, one in _compute_usual(session, of, window, now).items()
            }
        usual = {c: new[c] if c in new else self._kept[c] for c in windows}
        self._kept = usual if len(usual) <= _KEPT else {}
        return {c: one.reading for c, one in usual.items()}

    def latest(self, clusters: Sequence[str], now: datetime) -> dict[str, dict[str, TeamUsage]]:
        self._refresh(clusters)
        with self._database.reading() as session:
            return latest_usage(session, clusters, now)

    def keep(self, cluster: str, usage: Sequence[TeamUsage]) -> None:
        """Store these samples, one for each team and time."""
        rows = [{"cluster": cluster, **one.model_dump()} for one in usage]
        with self._database.begin() as session:
            store(session, UsageRow, rows)


def _usage_to_plan(usage: TeamUsage) -> TeamUsage:
    """Return S and L alone, which a plan is made from."""
    return usage if usage.at is None else TeamUsage(**usage.model_dump(include={"team", "scheduled_gpus", "idle_gpus"}))


def latest_health(session: Session, clusters: Sequence[str], now: datetime) -> ByCluster[HealthSample]:
    """Return the latest samples of each cluster's islands, dated as the oldest; an import sets the installed GPUs.

    Samples dated ahead of now, and those with more healthy GPUs than are installed, are left out, so that they shadow
    none; `ahead_to` and `beyond` report them.
    """
    latest = now + CLOCK_SKEW
    rows = session.connection().execute(_latest_samples(), {"clusters": list(clusters), "latest": latest})
    by_cluster = groupby(starmap(_SampleRow, rows.all()), _CLUSTER)
    return build_each("its health", by_cluster, lambda cluster, islands: _sample(cluster, tuple(islands), latest))


class _SampleRow(NamedTuple):
    """A row of `_latest_samples`, as a tuple, which is hashed and compared much faster than SQLAlchemy's."""

    cluster: str
    island: str
    at: datetime
    healthy_gpus: int
    block_gpus: int | None
    total_gpus: int
    newest: datetime


class _UsageRow(NamedTuple):
    """A row of `_latest_usage`, as `_SampleRow`."""

    cluster: str
    team: str
    at: datetime
    scheduled_gpus: int
    idle_gpus: int
    pending_gpus: int | None


def last_sample_at(sample: type[HealthRow], *which: Any) -> Any:
    """Return a subquery of the time of an island's last such sample. `sample`: an alias of the samples."""
    of_island = (col(sample.cluster) == IslandRow.cluster, col(sample.island) == IslandRow.name)
    return sa.select(sa.func.max(sample.at)).where(*of_island, *which).correlate(IslandRow).scalar_subquery()


@cache
def _latest_samples() -> sa.Select[Any]:
    """Built once: this query is run most, and building it takes longer than running it."""
    newest = aliased(HealthRow)
    # Only an import changes T: a sample beyond it is wrong (ADR 0029).
    fits = col(newest.healthy_gpus) <= col(IslandRow.total_gpus)
    latest_at = last_sample_at(newest, col(newest.at) <= sa.bindparam("latest"), fits)
    names = ("cluster", "island", "at", "healthy_gpus", "block_gpus")
    # From the islands: one step into the samples' index for each, however long the history.
    return (
        sa.select(
            *(getattr(HealthRow, name) for name in names),
            col(IslandRow.total_gpus),
            last_sample_at(newest).label("newest"),
        )
        .select_from(IslandRow)
        .join(
            HealthRow,
            sa.and_(
                col(HealthRow.cluster) == col(IslandRow.cluster),
                col(HealthRow.island) == col(IslandRow.name),
                col(HealthRow.at) == latest_at,
            ),
        )
        .where(is_among(IslandRow.cluster, "clusters"))
        # The islands' own columns keep SQLite from walking through all samples first.
        .order_by(col(IslandRow.cluster), col(IslandRow.name))
    )


@cache
def _least() -> sa.Select[Any]:
    """A sample holds until the next one, so the last one before `since` counts too."""
    earlier, at = aliased(HealthRow), col(HealthRow.at)
    stood = last_sample_at(earlier, col(earlier.at) <= sa.bindparam("since"))
    columns: list[Any] = [col(IslandRow.name), sa.func.min(HealthRow.healthy_gpus).label("healthy")]
    return (
        sa.select(*columns)
        .select_from(IslandRow)
        .join(
            HealthRow,
            sa.and_(col(HealthRow.cluster) == col(IslandRow.cluster), col(HealthRow.island) == col(IslandRow.name)),
        )
        .where(
            col(IslandRow.cluster) == sa.bindparam("cluster"),
            at >= sa.func.coalesce(stood, sa.bindparam("since")),
            at <= sa.bindparam("latest"),
        )
        .group_by(col(IslandRow.name))
        .order_by(col(IslandRow.name))
    )


@cache
def _medians() -> sa.Select[Any]:
    """Nearest-rank, and the smaller of two middle samples: a promise is never rounded up."""
    island, at, healthy = col(HealthRow.island), col(HealthRow.at), col(HealthRow.healthy_gpus)
    of_cluster = col(HealthRow.cluster) == sa.bindparam("cluster")
    ranked = (
        sa.select(
            island.label("island"),
            healthy.label("healthy"),
            sa.func.row_number().over(partition_by=island, order_by=healthy).label("place"),
            sa.func.count().over(partition_by=island).label("samples"),
        )
        .where(of_cluster, at >= sa.bindparam("since"), at <= sa.bindparam("latest"))
        .subquery()
    )
    first = aliased(HealthRow)
    begins = sa.select(sa.literal(1)).where(
        col(first.cluster) == sa.bindparam("cluster"),
        col(first.island) == ranked.c.island,
        col(first.at) <= sa.bindparam("since"),
    )
    columns: list[Any] = [ranked.c.island, ranked.c.healthy]
    return (
        sa.select(*columns)
        .where(ranked.c.place == (ranked.c.samples + 1) // 2, ranked.c.samples >= sa.bindparam("enough"))
        .where(begins.exists())
        .order_by(ranked.c.island)
    )


def latest_usage(session: Session, clusters: Sequence[str], now: datetime) -> dict[str, dict[str, TeamUsage]]:
    """Return the latest sample of each leaf quota, by cluster and team, without those dated ahead."""
    usage: dict[str, dict[str, TeamUsage]] = {}
    rows = latest_usage_rows(session, clusters, now)
    for cluster, of_cluster in groupby(starmap(_UsageRow, rows), _CLUSTER):
        if by_team := _usage_by_team(tuple(of_cluster)):
            usage[cluster] = dict(by_team)
    return usage


def latest_usage_rows(session: Session, clusters: Sequence[str], now: datetime) -> Sequence[Any]:
    parameters = {"clusters": list(clusters), "latest": now + CLOCK_SKEW}
    return session.connection().execute(_latest_usage(), parameters).all()


def usage_of(row: Any) -> TeamUsage:
    """Return the row as a sample. Errors: ValueError if it makes no sense."""
    return _usage(row.team, row.scheduled_gpus, row.idle_gpus, row.pending_gpus, row.at)


@lru_cache(maxsize=_CLUSTERS_KEPT)
def _usage_by_team(rows: tuple[_UsageRow, ...]) -> Mapping[str, TeamUsage]:
    """Return one cluster's samples, without rows that make no sense. Cached, as `_usage`."""
    return {one.team: one for one in those_that_do(rows, usage_of)}


@lru_cache(maxsize=_KEPT)
def _usage(team: str, scheduled: int, idle: int, pending: int | None, at: datetime) -> TeamUsage:
    """Cached: of 1,000 clusters most rows were checked at an earlier read."""
    return TeamUsage(team=team, scheduled_gpus=scheduled, idle_gpus=idle, pending_gpus=pending, at=at)


@lru_cache(maxsize=_KEPT)
def _island(name: str, total: int, healthy: int, block: int | None) -> Island:
    return Island(name=name, total_gpus=total, healthy_gpus=healthy, block_gpus=block)


@cache
def _latest_usage() -> sa.Select[Any]:
    newest, child = aliased(UsageRow), aliased(QuotaRow)
    latest_at = (
        sa.select(sa.func.max(newest.at))
        .where(
            col(newest.cluster) == QuotaRow.cluster,
            col(newest.team) == QuotaRow.team,
            col(newest.at) <= sa.bindparam("latest"),
        )
        .correlate(QuotaRow)
        .scalar_subquery()
    )
    has_children = (
        sa.select(sa.literal(1))
        .where(col(child.cluster) == QuotaRow.cluster, col(child.parent) == QuotaRow.team)
        .correlate(QuotaRow)
        .exists()
    )
    names = ("cluster", "team", "at", "scheduled_gpus", "idle_gpus", "pending_gpus")
    return (
        sa.select(*(getattr(UsageRow, name) for name in names))
        .select_from(QuotaRow)
        .join(
            UsageRow,
            sa.and_(
                col(UsageRow.cluster) == col(QuotaRow.cluster),
                col(UsageRow.team) == col(QuotaRow.team),
                col(UsageRow.at) == latest_at,
            ),
        )
        .where(is_among(QuotaRow.cluster, "clusters"), ~has_children)
        .order_by(col(QuotaRow.cluster), col(QuotaRow.team))
    )


def health_row(cluster: str, island: Island, at: datetime, source: str) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "island": island.name,
        "at": at,
        "total_gpus": island.total_gpus,
        "healthy_gpus": island.healthy_gpus,
        "block_gpus": island.block_gpus,
        "source": source,
    }


def _sample(cluster: str, rows: tuple[_SampleRow, ...], latest: datetime) -> HealthSample:
    """Return the cluster's sample. While none is dated ahead, `latest` has no part in it."""
    return _sample_of(cluster, rows, latest if any(row.newest > latest for row in rows) else LAST)


@lru_cache(maxsize=_CLUSTERS_KEPT)
def _sample_of(cluster: str, rows: tuple[_SampleRow, ...], latest: datetime) -> HealthSample:
    """Cached, as `_usage`."""
    beyond = next((row for row in rows if row.at < row.newest <= latest), None)
    return HealthSample(
        cluster=cluster,
        at=min(row.at for row in rows),
        ahead_to=max((row.newest for row in rows if row.newest > latest), default=None),
        beyond=None if beyond is None else Excess(at=beyond.newest, island=beyond.island, total_gpus=beyond.total_gpus),
        islands=tuple(_island(row.island, row.total_gpus, row.healthy_gpus, row.block_gpus) for row in rows),
    )


def _refuse_dated_ahead(samples: Sequence[HealthSample], now: datetime) -> None:
    for sample in samples:
        if sample.at > now + CLOCK_SKEW:
            raise BadInput(
                f"a health sample of cluster {sample.cluster!r} is dated {sample.at:%Y-%m-%d %H:%M:%SZ}, "
                f"ahead of now ({now:%Y-%m-%d %H:%M:%SZ}): correct the clock of its source"
            )


def _refuse_unknown_islands(session: Session, wanted: set[tuple[str, str]]) -> None:
    clusters = sorted({cluster for cluster, _ in wanted})
    rows = session.exec(select(IslandRow.cluster, IslandRow.name).where(col(IslandRow.cluster).in_(clusters))).all()
    there = set(rows)
    unknown = sorted(wanted - there)
    if unknown:
        cluster, island = unknown[0]
        has_cluster = cluster in {c for c, _ in there}
        what = f"of cluster {cluster!r} names island {island!r}" if has_cluster else f"names cluster {cluster!r}"
        raise BadInput(f"a health sample {what}, which the ledger does not have")


def _compute_usual(
    session: Session, instants: Mapping[str, Mapping[str, TeamUsage]], window: timedelta, now: datetime
) -> dict[str, _Usual]:
    """Return the 95th percentile (nearest-rank) of each team with enough samples in the window up to now, by cluster.

    `instants`: the last sample by cluster and team.
    """
    parameters = {"clusters": list(instants), "since": now - window, "latest": now + CLOCK_SKEW}
    until = dict.fromkeys(instants, now + HOUR)
    usual: dict[str, dict[str, TeamUsage]] = {cluster: {} for cluster in instants}
    rows = session.connection().execute(_percentiles(), parameters).all()
    for row in rows:
        until[row.cluster] = min(until[row.cluster], row.oldest + window)
    for cluster, one in those_that_do(
        rows, lambda row: (row.cluster, TeamUsage(team=row.team, scheduled_gpus=row.scheduled, idle_gpus=row.idle))
    ):
        if one.team in instants[cluster]:
            usual[cluster][one.team] = one
    return {
        c: _Usual(window, instant, now, until[c], _build_reading(c, instant, usual[c], window))
        for c, instant in instants.items()
    }


def _build_reading(
    cluster: str, instant: Mapping[str, TeamUsage], usual: Mapping[str, TeamUsage], window: timedelta
) -> UsageReading:
    return UsageReading(
        cluster=cluster,
        source=_source(len(usual), len(instant), window),
        teams=tuple(_usage_to_plan(usage) for _, usage in sorted({**instant, **usual}.items())),
    )


@cache
def _percentiles() -> sa.Select[Any]:
    team, at, cluster = col(UsageRow.team), col(UsageRow.at), col(UsageRow.cluster)
    of_team = (cluster, team)
    scheduled, idle = col(UsageRow.scheduled_gpus), col(UsageRow.idle_gpus)
    ranked = (
        sa.select(
            cluster.label("cluster"),
            team.label("team"),
            at.label("at"),
            scheduled.label("scheduled"),
            idle.label("idle"),
            sa.func.row_number().over(partition_by=of_team, order_by=scheduled).label("by_scheduled"),
            sa.func.row_number().over(partition_by=of_team, order_by=idle).label("by_idle"),
            sa.func.count().over(partition_by=of_team).label("samples"),
        )
        .where(is_among(cluster, "clusters"), at >= sa.bindparam("since"), at <= sa.bindparam("latest"))
        .subquery()
    )
    rank = (95 * ranked.c.samples + 99) // 100  # rounds up, in whole numbers
    return (
        sa.select(
            ranked.c.cluster,
            ranked.c.team,
            sa.func.max(sa.case((ranked.c.by_scheduled == rank, ranked.c.scheduled))).label("scheduled"),
            sa.func.max(sa.case((ranked.c.by_idle == rank, ranked.c.idle))).label("idle"),
            sa.func.min(ranked.c.at).label("oldest"),
        )
        .where(ranked.c.samples >= ENOUGH_SAMPLES)
        .group_by(ranked.c.cluster, ranked.c.team)
    )


def _source(usual: int, teams: int, window: timedelta) -> str:
    if teams == 0:
        return "unknown"
    if usual == 0:
        return "instant"
    mixed = "" if usual == teams else f", instant for {teams - usual} of {count_text(teams, 'team')}"
    return f"p95 over {duration_text(window)}{mixed}"
