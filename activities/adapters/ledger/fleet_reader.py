"""Shows the clusters and teams of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from activities.adapters.ledger.calendar import LedgerCalendar, windows_of
from activities.adapters.ledger.cluster_settings import settings_of
from activities.adapters.ledger.fleet_diff_reader import teams_by_name
from activities.adapters.ledger.fleet_file_port import LedgerFleetFile
from activities.adapters.ledger.health_and_usage import LedgerSamples, latest_health, latest_usage
from activities.adapters.ledger.invalid_rows import faults_of, team_faults
from activities.adapters.ledger.quotas import present_of
from activities.adapters.ledger.rollouts import open_rollouts
from activities.bad_rows import SENSELESS, build_each, fault_of, those_that_do
from activities.ports.desk import Described
from activities.ports.registry import OpenRollout
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample, TeamUsage
from models.cluster.sources import health_field, quota_field
from models.ledger_tables import ClusterRow, IslandRow, QuotaRow, RolloutRow
from models.questions import TeamSum

_LOOKED_THROUGH = 200
"""The number of clusters on one page of the search for invalid rows."""


class LedgerFleet(LedgerSamples, LedgerCalendar, LedgerFleetFile):
    """FleetPort on the ledger (`add_health` comes with LedgerSamples, declaring windows with LedgerCalendar)."""

    def clusters(self, after: str, limit: int) -> tuple[tuple[ClusterSpec, OpenRollout | None], ...]:
        """Return the clusters by name after `after` that make sense."""
        return tuple((each.spec, each.rollout) for each in self.describe(after, limit) if each.spec is not None)

    def describe(
        self, after: str, limit: int, *, free: bool = False, names: Collection[str] = ()
    ) -> tuple[Described, ...]:
        """Describe clusters by name after `after`. T is the registry's; without health nothing is healthy."""
        which = select(ClusterRow).where(ClusterRow.name > after)
        if free:
            which = which.where(col(ClusterRow.open_rollout).is_(None))
        if names:
            which = which.where(col(ClusterRow.name).in_(names))
        with self._database.reading() as session:
            rows = session.exec(which.order_by(col(ClusterRow.name)).limit(limit)).all()
            page = _Page(session, rows, self._database.now())
            return tuple(page.line(row) for row in rows)

    def senseless(self) -> dict[str, tuple[str, ...]]:
        sentences: dict[str, tuple[str, ...]] = {}
        after = ""
        while page := self.describe(after, _LOOKED_THROUGH):
            after = page[-1].name
            with self._database.reading() as session:
                beside = faults_of(session, [one.name for one in page], self._database.now())
            for one in page:
                wrong = (*([one.wrong] if one.wrong else ()), *beside.get(one.name, ()))
                sentences |= {one.name: wrong} if wrong else {}
        return sentences

    def teams(self) -> tuple[Team, ...]:
        with self._database.reading() as session:
            return tuple(teams_by_name(session).values())

    def team_sums(self) -> tuple[TeamSum, ...]:
        child = aliased(QuotaRow)
        same = (col(child.cluster) == col(QuotaRow.cluster), col(child.parent) == col(QuotaRow.team))
        leaf = ~sa.select(sa.literal(1)).where(*same).correlate(QuotaRow).exists()
        sums_of: list[Any] = [sa.func.count().label("clusters"), sa.func.sum(QuotaRow.gpus).label("gpus")]
        sums = (
            sa.select(col(QuotaRow.team), *sums_of)
            .where(leaf)
            .group_by(col(QuotaRow.team))
            .order_by(col(QuotaRow.team))
        )
        with self._database.reading() as session:
            return tuple(those_that_do(session.execute(sums), lambda row: TeamSum(**row._mapping)))

    def senseless_teams(self) -> dict[str, str]:
        with self._database.reading() as session:
            return team_faults(session)


class _Page:
    """All rows that the shown clusters need, in one query for each table."""

    def __init__(self, session: Session, rows: Sequence[ClusterRow], now: datetime) -> None:
        names = [row.name for row in rows]
        self.health = latest_health(session, names, now)
        self.usage = latest_usage(session, names, now)
        self.windows = windows_of(session, names)
        self.islands: dict[str, list[IslandRow]] = {name: [] for name in names}
        self.quotas: dict[str, list[QuotaRow]] = {name: [] for name in names}
        islands = select(IslandRow).where(col(IslandRow.cluster).in_(names)).order_by(col(IslandRow.name))
        for island in session.exec(islands):
            self.islands[island.cluster].append(island)
        quotas = select(QuotaRow).where(col(QuotaRow.cluster).in_(names)).order_by(col(QuotaRow.team))
        for quota in session.exec(quotas):
            self.quotas[quota.cluster].append(quota)
        opened = [row.open_rollout for row in rows if row.open_rollout is not None]
        rollouts = session.exec(select(RolloutRow).where(col(RolloutRow.id).in_(opened))).all()
        self.rollouts = build_each(
            "its rollout",
            ((rollout.cluster, rollout) for rollout in rollouts),
            lambda _, row: open_rollouts(session, [row])[row.id],
        )

    def line(self, row: ClusterRow) -> Described:
        """Describe one cluster, or say why it makes no sense: no constraint judges a cluster as a whole."""
        for part in (self.health, self.windows, self.rollouts):
            if row.name in part.senseless:
                return Described(name=row.name, spec=None, wrong=part.senseless[row.name])
        try:
            return Described(name=row.name, spec=self._spec(row), rollout=self.rollouts.get(row.name))
        except SENSELESS as error:
            return Described(name=row.name, spec=None, wrong=fault_of(row.name, "its rows", error))

    def _spec(self, row: ClusterRow) -> ClusterSpec:
        return ClusterSpec(
            name=row.name,
            gpu_model=row.gpu_model,
            gpus_per_node=row.gpus_per_node,
            islands=tuple(_shown_island(island, self.health.get(row.name)) for island in self.islands[row.name]),
            policy=settings_of(row.policy),
            quotas=tuple(_quota(quota, self.usage.get(row.name, {})) for quota in self.quotas[row.name]),
            windows=self.windows.get(row.name, ()),
            **quota_field(row.source),
            **health_field(row.health_source),
        )


def _shown_island(row: IslandRow, sample: HealthSample | None) -> Island:
    seen = next((island for island in sample.islands if island.name == row.name), None) if sample else None
    if seen is None:
        return Island(name=row.name, total_gpus=row.total_gpus, healthy_gpus=0)
    healthy = min(seen.healthy_gpus, row.total_gpus)
    blocks = None if seen.block_gpus is None else min(seen.block_gpus, healthy)
    return Island(name=row.name, total_gpus=row.total_gpus, healthy_gpus=healthy, block_gpus=blocks)


def _quota(row: QuotaRow, usage: dict[str, TeamUsage]) -> Quota:
    used = usage.get(row.team)
    if used is None:
        return present_of(row).as_quota()
    return present_of(row).as_quota(used.scheduled_gpus, used.idle_gpus, used.pending_gpus)
