"""The ledger's copy of a scheduler that holds quotas: its limits as last seen, and who writes there now.

The ledger's quotas mirror such a cluster's: fences, receipts, generations and reservations are the ledger's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among, keep, store
from activities.adapters.ledger.database import Database, LedgerPart, once_in_moment
from activities.adapters.ledger.quotas import LedgerQuotas, attribute_changes, locked_cluster
from activities.bad_rows import build_each, those_that_do
from activities.ports.by_cluster import ByCluster
from models.audit_chain import AuditEntry, AuditKind
from models.cluster.island import Island
from models.cluster.readings import ForeignChange, LimitMode, Present
from models.cluster.snapshot import Snapshot
from models.cluster.sources import (
    OF_CLASS,
    GitSource,
    HealthSource,
    KubernetesSource,
    KueueSource,
    PrometheusSource,
    QuotaSource,
    SlurmSource,
    Sources,
    health_source_in,
    quota_source_in,
)
from models.errors import Drift, NoSuchCluster, Refusal, Unavailable
from models.ledger_tables import (
    AuditRow,
    ClusterRow,
    GrantReceiptRow,
    IslandRow,
    QuotaRow,
    RequestRow,
    RolloutRow,
    SchedulerLimitRow,
    SchedulerLockRow,
)
from models.rollout.effects import Change, Fence

LEASE = timedelta(seconds=150)
"""How long a lock holds: longer than all calls of one effect together may take."""
_NO_TEAMS = ("pool:", "qos:", OF_CLASS)
"""Prefixes of limits that belong to no team."""
_ENTRIES = 100
"""The newest archive entries of a cluster to read; an order in an older entry is outdated."""


@dataclass(frozen=True)
class Limit:
    """A limit as last seen. Units: whole GPUs; None: no limit. `first`: before Backstop wrote it, if `ours`."""

    gpus: int | None
    first: int | None = None
    ours: bool = False


@dataclass(frozen=True)
class MirroredQuota:
    gpus: int
    mode: LimitMode
    parent: str | None
    written: int | None
    """The value that Backstop wrote last, even if others have changed it since; None: it never wrote one."""
    block_gpus: int = 0
    """The GPUs of its protected blocks."""
    classes: tuple[str, ...] | None = None
    """The classes of its jobs, the strongest first; None: those of the cluster's policy."""


@dataclass(frozen=True)
class MirroredCluster:
    """A cluster in the ledger at one moment. Two are equal if nothing was written in between."""

    generation: int
    rollout: str | None
    counter: int
    reserved: bool
    flex_gpus: int | None
    quotas: Mapping[str, MirroredQuota]
    limits: Mapping[str, Limit]
    baseline: Mapping[str, int]
    """The open rollout's baseline, up to which a soft quota still admits jobs."""

    def admitted_limit(self, team: str) -> int | None:
        """Return the limit that the scheduler is to enforce; None if the ledger has no such quota.

        A value that others set stays, whatever the quota's mode: softening it must not raise what a person has lowered.
        """
        quota = self.quotas.get(team)
        if quota is None or self._is_others(team, quota):
            return None if quota is None else quota.gpus
        limit = self.limits[team].gpus if team in self.limits else None
        return quota.mode.admits(quota.gpus, self.baseline.get(team, limit))

    def _is_others(self, team: str, quota: MirroredQuota) -> bool:
        """Return whether somebody else has set its value since Backstop wrote it, or since the rollout was opened."""
        ours = self.baseline.get(team) if quota.written is None else quota.written
        return ours is not None and quota.gpus != ours

    @property
    def bound(self) -> int:
        """The GPUs that all quotas may admit, by values that Backstop wrote or read first, not by others' raises."""
        total = 0
        for team, quota in self.quotas.items():
            if quota.parent is None:
                earlier = self.baseline.get(team, 0)
                total += quota.mode.admits(earlier if quota.written is None else quota.written, earlier)
        return total


def differences(seen: MirroredCluster, held: Mapping[str, Present]) -> tuple[list[str], list[str]]:
    """Return the teams that others changed since they were last seen, and those whose unanswered write has landed."""
    foreign, landed = [], []
    for team in sorted({*seen.quotas, *held}):
        there, here = held.get(team), seen.quotas.get(team)
        before = seen.limits[team].gpus if team in seen.limits else None
        now = None if there is None else there.gpus
        wanted = seen.admitted_limit(team)
        if there is not None and here is not None and there.parent != here.parent:
            foreign.append(team)
        elif now == wanted and now != before and team in seen.limits:
            landed.append(team)
        elif now not in (before, wanted) or (here is None) is not (there is None):
            foreign.append(team)
    return foreign, landed


def quotas_as_seen(there: Mapping[str, int], pending: Mapping[str, int], seen: MirroredCluster) -> dict[str, Present]:
    """Return a system's quotas for the ledger: our writes that it has not kept yet keep their old value."""
    held = dict[str, Present]()
    for team, gpus in there.items():
        limit, quota = seen.limits.get(team), seen.quotas.get(team)
        stays = team in pending and limit is not None and limit.gpus is not None
        number = limit.gpus if stays and limit is not None and limit.gpus is not None else gpus
        held[team] = Present(team=team, gpus=number, parent=None if quota is None else quota.parent)
    return held


def wanted_gpus(standing: MirroredCluster) -> dict[str, int]:
    """Return the values that the system should have, by team."""
    admitted = {team: standing.admitted_limit(team) for team in standing.quotas}
    return {team: gpus for team, gpus in admitted.items() if gpus is not None}


def moves_to(after: MirroredCluster, there: Mapping[str, int]) -> dict[str, int]:
    """Return the quotas to write so that the system, which has these, is as it should be after an effect."""
    return {team: gpus for team, gpus in wanted_gpus(after).items() if team in there and there[team] != gpus}


def teams_moved(change: Change, after: MirroredCluster) -> set[str]:
    """Return the teams whose values in the system this effect, or one that it undoes, may write."""
    written = {team for team, quota in after.quotas.items() if quota.written not in (None, after.baseline.get(team))}
    return written | {write.team for write in change.writes if write.gpus != write.expected_gpus}


class _SourcesRead(NamedTuple):
    quotas: ByCluster[QuotaSource]
    health: ByCluster[HealthSource]

    @property
    def slurm(self) -> dict[str, SlurmSource]:
        return {name: source for name, source in self.quotas.items() if isinstance(source, SlurmSource)}

    @property
    def git(self) -> dict[str, GitSource]:
        return {name: source for name, source in self.quotas.items() if isinstance(source, GitSource)}


def sources_of(session: Session, clusters: Sequence[str] | None) -> Sources:
    """Return these clusters' (or all clusters') schedulers, Prometheus servers and API servers."""
    sources = _read_sources(session, clusters)
    of = sources.health
    return Sources(
        sources.slurm,
        {name: source for name, source in of.items() if isinstance(source, PrometheusSource)},
        {name: source for name, source in of.items() if isinstance(source, KubernetesSource)},
        sources.git,
    )


def _read_sources(session: Session, clusters: Sequence[str] | None) -> _SourcesRead:
    """Return the sources, which one look asks for several times."""
    key = "sources", None if clusters is None else tuple(clusters)
    return once_in_moment(session, key, lambda: _select_all_sources(session, clusters))


def _select_all_sources(session: Session, clusters: Sequence[str] | None) -> _SourcesRead:
    parameters = {} if clusters is None else {"clusters": list(clusters)}
    source_rows = session.connection().execute(_select_sources(bool(parameters)), parameters).all()
    # A senseless source is not asked: its last samples grow old, and its cluster is reported.
    quotas = [(name, text) for name, text, _ in source_rows if text is not None]
    health = [(name, text) for name, _, text in source_rows if text is not None]
    return _SourcesRead(
        quotas=build_each("its scheduler", quotas, lambda _, text: quota_source_in(text)),
        health=build_each("its health source", health, lambda _, text: health_source_in(text)),
    )


@cache
def _select_sources(named: bool) -> sa.Select[str, str | None, str | None]:
    """Built once: most calls run it. `named`: only for the clusters given as a parameter."""
    quotas, health = col(ClusterRow.source), col(ClusterRow.health_source)
    rows = sa.select(col(ClusterRow.name), quotas, health).where(quotas.is_not(None) | health.is_not(None))
    return rows.where(is_among(ClusterRow.name, "clusters")) if named else rows


class SchedulerBook(LedgerPart):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._held: dict[str, str] = {}
        """By cluster, the lock that this process took last."""

    def renew(self, cluster: str) -> None:
        """Extend the lock to its whole time again. Errors: Unavailable if somebody else has it by now."""
        mine = (col(SchedulerLockRow.cluster) == cluster, col(SchedulerLockRow.holder) == self._held.get(cluster, ""))
        with self._database.begin() as session:
            renewed = session.connection().execute(
                sa.update(SchedulerLockRow).where(*mine).values(until=self._database.now() + LEASE)
            )
        if renewed.rowcount == 0:
            raise Unavailable(f"another write to the scheduler of {cluster} began during this one: try again")

    def sources(self, clusters: Sequence[str] | None = None) -> dict[str, SlurmSource]:
        """Return the clusters whose quotas Slurm holds.

        Errors: Refusal if the only one asked for has a senseless source.
        """
        return self._sources(clusters).slurm

    def git_sources(self, clusters: Sequence[str] | None = None) -> dict[str, GitSource]:
        """Return those of these clusters (or of all) whose quotas a Git repository holds. Errors: as `sources`."""
        return self._sources(clusters).git

    def kueue_sources(self, clusters: Sequence[str] | None = None) -> dict[str, KueueSource]:
        """Return those of these clusters (or of all) whose quotas ClusterQueues hold. Errors: as `sources`."""
        quotas = self._sources(clusters).quotas
        return {name: source for name, source in quotas.items() if isinstance(source, KueueSource)}

    def _sources(self, clusters: Sequence[str] | None) -> _SourcesRead:
        with self._database.reading() as session:
            sources = _read_sources(session, clusters)
        if clusters is not None and len(clusters) == 1 and clusters[0] in sources.quotas.senseless:
            # Left out, it would count as a cluster whose quotas the ledger holds, and be written past its scheduler.
            raise Refusal(sources.quotas.senseless[clusters[0]])
        return sources

    @contextmanager
    def one_moment(self, cluster: str) -> Iterator[None]:
        """Let this thread's reads within see one moment, until it writes, if the cluster has no source but the ledger.

        Any other source is asked within, and its answers are written for later reads: each sees its own moment.
        """
        with self._database.one_moment() as session:
            sources = _read_sources(session, [cluster])
            if any((*sources.quotas, *sources.quotas.senseless, *sources.health, *sources.health.senseless)):
                self._database.end_moment()
            yield

    def all_sources(self) -> Sources:
        with self._database.reading() as session:
            return sources_of(session, None)

    def mirrored_cluster(self, cluster: str) -> MirroredCluster:
        with self._database.reading() as session:
            return _read_mirror(session, cluster)

    def rehearse(self, change: Change) -> MirroredCluster:
        """Return the cluster as it would be after the effect; nothing is written. Errors: those of QuotaPort.apply."""
        with self._database.begin() as session:
            trial = session.begin_nested()
            LedgerQuotas(self._database).land(session, change)
            after = _read_mirror(session, change.cluster)
            trial.rollback()
        return after

    def rehearse_begun(
        self, change: Change, there: Mapping[str, int], changes: Iterable[ForeignChange]
    ) -> MirroredCluster:
        """Rehearse an effect that the system has, wholly or in part, though the ledger has not kept it yet.

        One that is whole was written under the generation that it expects: others' changes of other quotas make it
        late, but valid. Errors: Refusal if it is not whole, or they have changed what it wrote. Drift would say that
        nothing was written.
        """
        try:
            return self.rehearse(change)
        except Drift as drift:
            after = self.rehearse(change.but(expected_generation=None))
            if moves_to(after, there) or teams_moved(change, after) & {each.team for each in changes}:
                raise Refusal(f"{drift.message}, after the effect had begun") from None
            return after

    def limits(self, names: Mapping[str, str]) -> dict[str, int | None]:
        """Return each cluster's limit of this name, as it was last seen or written; None if it has none."""
        row = SchedulerLimitRow
        with self._database.reading() as session:
            among_them = (col(row.cluster).in_([*names]), col(row.name).in_({*names.values()}))
            rows = session.exec(select(row.cluster, row.name, row.gpus).where(*among_them)).all()
        return dict.fromkeys(names) | {cluster: gpus for cluster, name, gpus in rows if names[cluster] == name}

    def awaits(self, cluster: str, fence: Fence) -> bool:
        """Return whether this effect may still be kept: its rollout or request is open, and kept none later."""
        with self._database.reading() as session:
            row = session.get(ClusterRow, cluster)
            if row is not None and row.open_rollout == fence.rollout:
                return fence.counter > row.last_counter
            request = session.get(RequestRow, fence.rollout.removeprefix("request/"))
            receipt = session.get(GrantReceiptRow, (fence.rollout, fence.counter))
            return request is not None and not request.ended and receipt is None

    def order_of(self, cluster: str, rollout: str) -> dict[str, str]:
        """Return the archived plan of a rollout, and who gave its last command and why, by trailer name."""
        with self._database.reading() as session:
            row = session.get(RolloutRow, rollout)
            newest = select(AuditRow.entry).where(AuditRow.cluster == cluster).order_by(col(AuditRow.seq).desc())
            texts = session.exec(newest.limit(_ENTRIES)).all()
        entries = [entry for entry in those_that_do(texts, AuditEntry.model_validate_json) if entry.rollout == rollout]
        plans = [str(entry.data["plan"]) for entry in entries if entry.kind is AuditKind.PLAN and "plan" in entry.data]
        orders = [entry for entry in entries if entry.kind is AuditKind.COMMAND and not entry.refused]
        owner = "" if row is None else row.owner
        return {
            "Plan": plans[0] if plans else "",
            "Actor": orders[0].actor if orders else owner,
            "Reason": orders[0].reason if orders else "",
        }

    @contextmanager
    def lock_cluster(self, cluster: str) -> Iterator[None]:
        """Keep others from writing to the cluster's scheduler meanwhile. Errors: Unavailable while somebody does."""
        holder = uuid.uuid4().hex
        now = self._database.now()
        with self._database.begin() as session:
            row = session.get(SchedulerLockRow, cluster, with_for_update=True)
            if row is not None and row.until > now:
                raise Unavailable(f"another write to the scheduler of {cluster} is under way: try again in a moment")
            self._held[cluster] = holder
            store(session, SchedulerLockRow, [{"cluster": cluster, "holder": holder, "until": now + LEASE}])
        try:
            yield
        finally:
            with self._database.begin() as session:
                mine = (col(SchedulerLockRow.cluster) == cluster, col(SchedulerLockRow.holder) == holder)
                session.execute(sa.delete(SchedulerLockRow).where(*mine))

    def take(
        self,
        cluster: str,
        seen: MirroredCluster,
        held: Mapping[str, Present],
        foreign: Sequence[str],
        landed: Sequence[str],
        actors: Mapping[str, str],
    ) -> bool:
        """Take the scheduler's present state into the ledger: others' changes as changes by others, ours as ours.

        False, and nothing is written, if the ledger has changed since it was `seen`.
        """
        with self._database.begin() as session:
            locked_cluster(session, cluster)
            if _read_mirror(session, cluster) != seen:
                return False
            for team in foreign:
                by = actors.get(team, "somebody, by sacctmgr")
                with attribute_changes(session, [cluster], by), _lift_reservation(session, cluster):
                    _take_one(session, cluster, team, held.get(team))
            teams = {team for team in {*seen.quotas, *seen.limits, *held} if not team.startswith(_NO_TEAMS)}
            limits = {team: held[team].gpus if team in held else None for team in teams}
            _note(session, cluster, {t: gpus for t, gpus in limits.items() if t not in landed})
            _note(session, cluster, {t: limits[t] for t in landed}, ours=True)
            return True

    def note(self, cluster: str, limits: Mapping[str, int | None], *, ours: bool) -> None:
        """Record the scheduler's present limits; `ours`: Backstop has written them."""
        with self._database.begin() as session:
            _note(session, cluster, limits, ours=ours)

    def intend(self, cluster: str, names: Iterable[str]) -> None:
        """Mark these limits as ours before they are written, so that their present values count as the first ones."""
        with self._database.begin() as session:
            rows = {name: session.get(SchedulerLimitRow, (cluster, name)) for name in sorted(names)}
            _note(session, cluster, {name: row.gpus for name, row in rows.items() if row is not None}, ours=True)

    def record_astray(self, cluster: str, limits: Mapping[str, int | None]) -> None:
        """Record other values of limits that are Backstop's own: the next write puts them right."""
        with self._database.begin() as session:
            for name, gpus in sorted(limits.items()):
                row = session.get(SchedulerLimitRow, (cluster, name))
                if row is not None:
                    row.gpus = gpus
                    session.add(row)

    def forget(self, cluster: str, names: Sequence[str]) -> None:
        """Remove these limits from the cluster's: their values in the scheduler are somebody else's."""
        with self._database.begin() as session:
            of = (col(SchedulerLimitRow.cluster) == cluster, col(SchedulerLimitRow.name).in_(names))
            session.execute(sa.delete(SchedulerLimitRow).where(*of))

    def note_islands(self, cluster: str, islands: Sequence[Island]) -> None:
        """Add islands to a cluster that was imported without any. Those of an import change by import alone."""
        of_cluster = select(IslandRow.name).where(col(IslandRow.cluster) == cluster)
        with self._database.reading() as session:
            if session.exec(of_cluster).first() is not None:
                return
        with self._database.begin() as session:
            rows = [{"cluster": cluster, "name": island.name, "total_gpus": island.total_gpus} for island in islands]
            keep(session, IslandRow, rows)

    def detach(self, cluster: str) -> None:
        """Let the ledger itself hold the cluster's quotas again. Errors: Refusal while a rollout is open."""
        with self._database.begin() as session:
            row = locked_cluster(session, cluster)
            if row.open_rollout is not None:
                raise Refusal(f"rollout {row.open_rollout} is open in {cluster}: close or abort it first")
            row.source = None
            session.execute(sa.delete(SchedulerLimitRow).where(col(SchedulerLimitRow.cluster) == cluster))


def _read_mirror(session: Session, cluster: str) -> MirroredCluster:
    row = session.get(ClusterRow, cluster)
    if row is None:
        raise NoSuchCluster(cluster)
    quotas = session.exec(select(QuotaRow).where(col(QuotaRow.cluster) == cluster)).all()
    limits = session.exec(select(SchedulerLimitRow).where(col(SchedulerLimitRow.cluster) == cluster)).all()
    return MirroredCluster(
        generation=row.generation,
        rollout=row.open_rollout,
        counter=row.last_counter,
        reserved=row.reserve_limit is not None,
        flex_gpus=row.flex_gpus if row.follows_health else None,
        quotas={quota.team: _mirrored_quota(quota) for quota in quotas},
        limits={limit.name: Limit(limit.gpus, limit.first_gpus, limit.ours) for limit in limits},
        baseline=_baseline(session, row.open_rollout),
    )


def _mirrored_quota(row: QuotaRow) -> MirroredQuota:
    classes = None if row.classes is None else tuple(name for name in row.classes.split(",") if name)
    blocks = sum(int(block) for block in row.blocks.split(",") if block)
    return MirroredQuota(row.gpus, LimitMode(row.mode), row.parent, row.written_gpus, blocks, classes)


def _baseline(session: Session, rollout: str | None) -> dict[str, int]:
    row = None if rollout is None else session.get(RolloutRow, rollout)
    return (
        {} if row is None else {quota.team: quota.gpus for quota in Snapshot.model_validate_json(row.baseline).quotas}
    )


@contextmanager
def _lift_reservation(session: Session, cluster: str) -> Iterator[None]:
    """Accept what the scheduler let through although the ledger would have refused it: it counts as drift."""
    of_cluster = col(ClusterRow.name) == cluster
    connection = session.connection()
    limit = connection.execute(sa.select(col(ClusterRow.reserve_limit)).where(of_cluster)).scalar()
    connection.execute(sa.update(ClusterRow).where(of_cluster).values(reserve_limit=None))
    yield
    connection.execute(sa.update(ClusterRow).where(of_cluster).values(reserve_limit=limit))


def _take_one(session: Session, cluster: str, team: str, held: Present | None) -> None:
    connection = session.connection()
    row = (col(QuotaRow.cluster) == cluster, col(QuotaRow.team) == team)
    if held is None:
        connection.execute(sa.delete(QuotaRow).where(*row))
        return
    news: dict[str, Any] = {"gpus": held.gpus, "parent": held.parent}
    if connection.execute(sa.update(QuotaRow).where(*row).values(**news)).rowcount == 0:
        connection.execute(sa.insert(QuotaRow).values(cluster=cluster, team=team, mode="hard", **news))


def _note(session: Session, cluster: str, limits: Mapping[str, int | None], *, ours: bool = False) -> None:
    row_of = session.get(ClusterRow, cluster)
    baseline = _baseline(session, row_of.open_rollout) if ours and row_of is not None else {}
    for name, gpus in sorted(limits.items()):
        row = session.get(SchedulerLimitRow, (cluster, name))
        if row is None:
            row = SchedulerLimitRow(cluster=cluster, name=name, gpus=gpus, first_gpus=gpus)
        if ours and not row.ours:
            # The rollout's baseline; a value that others set meanwhile, and that was not accepted, is not the first.
            row.first_gpus, row.ours = baseline.get(name, row.gpus), True
        elif not ours and row.gpus != gpus:
            row.first_gpus, row.ours = gpus, False  # somebody else's now: nothing of ours is to be taken back
        row.gpus = gpus
        session.add(row)
