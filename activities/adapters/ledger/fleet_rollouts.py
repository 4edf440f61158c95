"""Fleet rollouts as the ledger keeps them: their plans, and what their clusters' rollouts have noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import col

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.database import LedgerPart
from activities.bad_rows import making_sense
from models.audit_chain import AuditEntry
from models.fleet.archived_state import KeptFleet, replay_fleet
from models.fleet.messages import Noted
from models.fleet.state import FLEET
from models.ledger_tables import AuditRow, ClusterRow, FleetPlanRow, RolloutRow
from models.planning.plan import Envelope

FIRST_ENTRY = "000001"
"""The end of the key of a fleet rollout's first entry, its launch; the key starts with the rollout's id."""


class LedgerFleetRollouts(LedgerPart):
    """The fleet rollouts' part of RegistryPort."""

    def names(self) -> tuple[str, ...]:
        with self._database.reading() as session:
            return tuple(session.scalars(sa.select(col(ClusterRow.name)).order_by(col(ClusterRow.name))))

    def kept_fleet(self) -> KeptFleet | None:
        own = col(AuditRow.cluster) == FLEET
        first = sa.select(col(AuditRow.key)).where(own, col(AuditRow.key).like(f"%/{FIRST_ENTRY}"))
        with self._database.reading() as session:
            key = session.scalars(first.order_by(col(AuditRow.seq).desc()).limit(1)).first()
            if key is None:
                return None
            fleet = key.removesuffix(f"/{FIRST_ENTRY}")
            rows = sa.select(col(AuditRow.entry)).where(own, col(AuditRow.key).startswith(f"{fleet}/", autoescape=True))
            entries = session.scalars(rows.order_by(col(AuditRow.key))).all()
            planned = sa.select(col(FleetPlanRow.cluster)).where(col(FleetPlanRow.fleet) == fleet)
            with making_sense(FLEET, f"the archive of {fleet}"):
                return replay_fleet(map(AuditEntry.model_validate_json, entries), session.scalars(planned).all())

    def of_fleet(self, fleet: str) -> dict[str, tuple[Noted, datetime]]:
        columns = [getattr(RolloutRow, name) for name in ("id", "cluster", "stage", "needs", "rollbacks", "opened_at")]
        rows = sa.select(*columns).where(col(RolloutRow.fleet) == fleet).order_by(col(RolloutRow.opened_at))
        with self._database.reading() as session:
            return {
                row.cluster: (
                    Noted(rollout=row.id, stage=row.stage, needs=row.needs, rollbacks=row.rollbacks),
                    row.opened_at,
                )
                for row in session.execute(rows)
            }

    def keep_fleet_plan(self, fleet: str, envelopes: Mapping[str, Envelope]) -> None:
        rows = [
            {"fleet": fleet, "cluster": cluster, "envelope": envelope.model_dump_json()}
            for cluster, envelope in sorted(envelopes.items())
        ]
        own = sa.and_(col(AuditRow.cluster) == FLEET, col(AuditRow.key).startswith(f"{fleet}/", autoescape=True))
        archived_plan = sa.select(col(AuditRow.seq)).where(own, col(AuditRow.entry).contains('"kind":"plan"'))
        with self._database.begin() as session:
            if session.execute(archived_plan.limit(1)).first() is not None:
                return  # a late attempt: people were shown another plan
            session.execute(sa.delete(FleetPlanRow).where(col(FleetPlanRow.fleet) == fleet))
            if rows:
                session.execute(sa.insert(FleetPlanRow), rows)

    def fleet_envelope(self, fleet: str, cluster: str) -> Envelope | None:
        with self._database.reading() as session:
            row = session.get(FleetPlanRow, (fleet, cluster))
            if row is None:
                return None
            with making_sense(cluster, f"its plan in fleet rollout {fleet}"):
                return Envelope.model_validate_json(row.envelope)

    def fleet_envelopes(self, fleet: str, clusters: Sequence[str]) -> dict[str, Envelope]:
        envelopes = {cluster: self.fleet_envelope(fleet, cluster) for cluster in clusters}
        return {cluster: envelope for cluster, envelope in envelopes.items() if envelope is not None}

    def noted_rollouts(self, rollouts: Sequence[str], fleet: str = "") -> dict[str, Noted]:
        rows = self._read_noted(is_among(RolloutRow.id, "rollouts"), rollouts=list(rollouts))
        if fleet:
            rows += self._read_noted(col(RolloutRow.fleet) == fleet)
        return {noted.rollout: noted for _, noted in rows}

    def newest(self, clusters: Sequence[str]) -> dict[str, Noted]:
        opened = sa.select(col(ClusterRow.open_rollout)).where(is_among(ClusterRow.name, "clusters"))
        return dict(self._read_noted(col(RolloutRow.id).in_(opened), clusters=list(clusters)))

    def _read_noted(self, which: sa.ColumnElement[bool], **given: list[str]) -> list[tuple[str, Noted]]:
        """List the rollouts that `which` selects, each after the name of its cluster."""
        columns = [getattr(RolloutRow, name) for name in ("id", "cluster", "stage", "needs", "rollbacks")]
        with self._database.reading() as session:
            return [
                (row.cluster, Noted(rollout=row.id, stage=row.stage, needs=row.needs, rollbacks=row.rollbacks))
                for row in session.execute(sa.select(*columns).where(which).order_by(RolloutRow.cluster), given)
            ]
