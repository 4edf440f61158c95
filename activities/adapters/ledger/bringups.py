"""The book of bring-ups: their state, the clusters that went into the fleet, and the GPUs that are owed since.

A cluster goes into the fleet as by an import: whole, once, with a receipt in `imports`, and in its archive with the
plan's hash and the person who entered it. Entries are archived in a second transaction, as an import's are
(activities/adapters/ledger/fleet_file_port.py says why).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.bulk import add, store, update
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from activities.adapters.ledger.fleet_diff_reader import fleet_policy
from activities.adapters.ledger.fleet_file_port import archive_import, store_import, stored_import
from activities.adapters.ledger.fleet_rows_writer import lock_clusters, read_other_sample_times, write_fleet
from activities.adapters.ledger.health_and_usage import health_row
from activities.adapters.ledger.quotas import attribute_changes, locked_cluster
from activities.adapters.ledger.removal_and_renaming import remove_rows
from activities.bad_rows import those_that_do
from activities.ports.bringup import Incoming, LandedGrant, Owed
from models.audit_chain import AuditEntry, AuditKind, Signature
from models.bringup.entry import policy_fault
from models.bringup.first_quotas import opening_policy, too_much
from models.bringup.messages import BringupRecord, BringupRow, BringupStart, HandedOver, OpenedBringup
from models.bringup.stages import BringupStage
from models.bringup.state import bringup_key
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.errors import Conflict, Refusal
from models.hashes import canonical_json, hash_of
from models.ledger_tables import (
    AuditRow,
    BringupBookRow,
    ClusterRow,
    GrantReceiptRow,
    HealthRow,
    IslandRow,
    OwedRow,
    QuotaRow,
)
from models.rollout.effects import Fence, Receipt
from models.temporal_names import bringup_workflow_id


class LedgerBringups(LedgerPart):
    """BringupLedger of activities/ports/bringup.py."""

    # --- the book -------------------------------------------------------------------------------

    def open_bringup(self, start: BringupStart, at: datetime) -> OpenedBringup:
        cluster, opening = start.entry.cluster, _opening(start)
        with self._database.begin() as session:
            one_at_a_time(session, f"bringup of {cluster}")
            last = _last(session, cluster)
            if last is not None and last.ended_at is None and last.opening == opening:
                last.opened_at = max(last.opened_at, at)
                return OpenedBringup(number=last.number)
            refused = _why_not(session, start, at, last)
            number = 1 if last is None else last.number + 1
            if refused:
                return OpenedBringup(number=number, refused=refused)
            row = BringupBookRow(
                cluster=cluster,
                number=number,
                opening=opening,
                opened_at=at,
                stage=BringupStage.PLANNED.value,
                stage_at=at,
                board=_first_row(start, number, at).model_dump_json(),
            )
            session.add(row)
            return OpenedBringup(number=number)

    def why_not_open(self, start: BringupStart, at: datetime) -> str:
        with self._database.reading() as session:
            last = _last(session, start.entry.cluster)
            if last is not None and last.ended_at is None and last.opening == _opening(start):
                return ""
            return _why_not(session, start, at, last)

    def note_bringup(self, record: BringupRecord) -> bool:
        record_row = record.row
        with never_dropped(), self._database.begin() as session:
            append_all(session, record.entries)
            row = session.get(BringupBookRow, (record_row.cluster, record_row.number), with_for_update=True)
            if row is None:
                return True  # it was lost
            if row.ended_at is not None and not (record_row.stage.has_ended and record_row.stage_at == row.stage_at):
                return False  # this record comes too late
            shown, new = BringupRow.model_validate_json(row.board).accounted_at, record_row.accounted_at
            if shown is not None and new is not None and new < shown and not record_row.stage.has_ended:
                return False  # a late attempt: the board has the record of a later call
            row.stage, row.stage_at, row.board = (
                record_row.stage.value,
                record_row.stage_at,
                record_row.model_dump_json(),
            )
            if record_row.stage.has_ended:
                row.ended_at = row.ended_at or max(record_row.stage_at, row.opened_at)
            return True

    def bringups(self, ended: bool) -> tuple[BringupRow, ...]:
        rows = select(BringupBookRow.board).order_by(col(BringupBookRow.cluster), col(BringupBookRow.number))
        if not ended:
            rows = rows.where(col(BringupBookRow.ended_at).is_(None))
        with self._database.reading() as session:
            as_recorded = those_that_do(session.exec(rows).all(), BringupRow.model_validate_json)
            now = self._database.now()
            return tuple(row.as_of(now) for row in as_recorded)

    def give_up(self, cluster: str, by: Signature) -> BringupRow:
        with self._database.begin() as session:
            row = _last(session, cluster)
            if row is None:
                raise Refusal(f"there was never a bring-up of {cluster}")
            board = BringupRow.model_validate_json(row.board)
            if row.ended_at is not None:
                return board
            text = f"bring-up {row.number} is given up while {row.stage}: nothing that it made was torn down"
            append_all(session, [by.entry(cluster, text, {"command": "give_up_bringup", "number": row.number})])
            ended = BringupStage.RETIRED if row.stage == BringupStage.RETIRING else BringupStage.CANCELLED
            board = board.as_of(by.at).but(stage=ended, stage_at=by.at, waits_for="", needs="")
            row.stage, row.stage_at, row.board = ended.value, by.at, board.model_dump_json()
            row.ended_at = max(by.at, row.opened_at)
            return board

    # --- into the fleet -------------------------------------------------------------------------

    def default_policy(self) -> Policy:
        with self._database.reading() as session:
            return Policy.model_validate(fleet_policy(session))

    def is_in_fleet(self, cluster: str) -> bool:
        with self._database.reading() as session:
            return session.get(ClusterRow, cluster) is not None

    def number(self, cluster: str) -> int:
        with self._database.reading() as session:
            last = _last(session, cluster)
            return 0 if last is None else last.number

    def is_over(self, cluster: str, number: int) -> bool:
        with self._database.reading() as session:
            return _is_over(_last(session, cluster), number)

    def read_handover(self, cluster: str, number: int) -> HandedOver | None:
        with self._database.reading() as session:
            stored = stored_import(session, bringup_key(cluster, number))
        return None if stored is None else self._archive_stored(stored)

    def take_in(self, incoming: Incoming) -> HandedOver:
        cluster, number = incoming.spec.name, incoming.number
        with self._database.begin() as session:
            one_at_a_time(session, "imports")
            import_id = bringup_key(cluster, number)
            stored = stored_import(session, import_id)
            if stored is None:
                if _is_over(_last(session, cluster, lock=True), number):
                    raise Conflict(
                        f"bring-up {number} of {cluster} has ended, so it does not bring {cluster} into the fleet"
                    )
                if session.get(ClusterRow, cluster) is not None:
                    raise Refusal(
                        f"{cluster} is in the fleet already, but its bring-up did not bring it there: run "
                        f"`backstop fleet remove {shlex.quote(cluster)}`, then retry"
                    )
                fleet = Fleet(clusters=(incoming.spec,))
                terms = ImportTerms(whole=True)
                outcome, _ = write_fleet(session, fleet, terms, incoming.actor, incoming.at, brought_up=True)
                add(session, OwedRow, [{"cluster": cluster, **row} for row in _owed_rows(incoming)])
                by, handed = Signature(incoming.actor, incoming.at, import_id), incoming.handed.model_dump(mode="json")
                stored = store_import(session, by, outcome, [_handed_entry(incoming)], handed=handed)
        return self._archive_stored(stored)

    def _archive_stored(self, stored: Mapping[str, Any]) -> HandedOver:
        archive_import(self._database, stored)
        return HandedOver.model_validate(stored["handed"])

    def add_islands(self, cluster: str, islands: Sequence[Island], actor: str, at: datetime) -> None:
        with self._database.begin() as session:
            lock_clusters(session, [cluster])
            of_cluster = sa.select(col(IslandRow.name), col(IslandRow.total_gpus)).where(
                col(IslandRow.cluster) == cluster
            )
            totals = {row.name: row.total_gpus for row in session.connection().execute(of_cluster)}
            more = [i for i in islands if i.total_gpus > totals.get(i.name, -1)]
            if not more:
                return
            with attribute_changes(session, [cluster], actor):
                rows = [{"cluster": cluster, "name": i.name, "total_gpus": i.total_gpus} for i in more]
                update(session, IslandRow, [row for row in rows if row["name"] in totals])
                add(session, IslandRow, [row for row in rows if row["name"] not in totals])
            fed = read_other_sample_times(session, [cluster])
            seen = [i for i in more if (cluster, i.name) not in fed]
            store(session, HealthRow, [health_row(cluster, island, at, actor) for island in seen])

    # --- what is owed ---------------------------------------------------------------------------

    def read_owed(self, cluster: str) -> Owed | None:
        with self._database.reading() as session:
            last = _last(session, cluster)
            rows = session.exec(select(OwedRow).where(OwedRow.cluster == cluster).order_by(col(OwedRow.team))).all()
            if last is None or not rows:
                return None
            return Owed(
                number=last.number,
                orders=last.orders,
                wanted={row.team: row.wanted_gpus for row in rows},
                granted={row.team: row.granted_gpus for row in rows},
                until=rows[0].until,
            )

    def owed_gpus(self, cluster: str, now: datetime) -> dict[str, int]:
        still = sa.and_(col(OwedRow.cluster) == cluster, col(OwedRow.until) > now)
        lacks = (col(OwedRow.wanted_gpus) - col(OwedRow.granted_gpus)).label("lacks")
        rows = sa.select(col(OwedRow.team), lacks).where(still, lacks > 0)
        with self._database.reading() as session:
            return {row.team: row.lacks for row in session.connection().execute(rows.order_by(col(OwedRow.team)))}

    def note_granted(self, cluster: str, order: int, raised: Mapping[str, int], entry: AuditEntry) -> None:
        with never_dropped(), self._database.begin() as session:
            append_all(session, [entry])
            last = _last(session, cluster, lock=True)
            if last is None or last.orders >= order:
                return
            last.orders = order
            for row in session.exec(select(OwedRow).where(OwedRow.cluster == cluster)).all():
                row.granted_gpus += raised.get(row.team, 0)
                session.add(row)

    def landed_grant(self, fence: Fence, cluster: str, request: str) -> LandedGrant | None:
        mention = col(AuditRow.entry).contains(f'"request":{json.dumps(request)}', autoescape=True)
        with self._database.reading() as session:
            own = session.get(GrantReceiptRow, (fence.rollout, fence.counter))
            if own is not None:
                return LandedGrant(Receipt.model_validate_json(own.receipt).raised, "itself")
            rows = session.exec(select(AuditRow.entry).where(AuditRow.cluster == cluster, mention)).all()
        entries = (AuditEntry.model_validate_json(text) for text in rows)
        return next(
            (LandedGrant(e.data["raised"], f"rollout {e.rollout}") for e in entries if e.data.get("raised")), None
        )

    # --- out of the fleet -----------------------------------------------------------------------

    def open_floors(self, cluster: str, by: Signature) -> None:
        with self._database.reading() as session:
            floors = _floors(session, cluster)
        if not floors:
            return
        named = {row["team"]: {"minimum": row["minimum"], "blocks": row["blocks"]} for row in floors}
        text = (
            f"minimums and protected blocks of {', '.join(sorted(named))} no longer apply: the cluster is being retired"
        )
        data = {"command": "retire", "floors": named}
        with never_dropped(), self._database.begin() as session:
            append_all(session, [by.entry(cluster, text, data)])
            rows = [{**row, "minimum": 0, "blocks": ""} for row in _floors(session, cluster)]
            with attribute_changes(session, [cluster], by.actor):
                update(session, QuotaRow, rows)

    def leave_fleet(self, cluster: str, by: Signature) -> None:
        with never_dropped(), self._database.begin() as session:
            if session.get(ClusterRow, cluster) is None:
                return
            append_all(session, [by.entry(cluster, "left the fleet, because it is retired", {"command": "retire"})])
            locked_cluster(session, cluster)
            remove_rows(session, cluster, retired=True)


def _opening(start: BringupStart) -> str:
    return hash_of(canonical_json(start.model_dump(mode="json", include={"entry", "recipe"})))


def _last(session: Session, cluster: str, *, lock: bool = False) -> BringupBookRow | None:
    rows = select(BringupBookRow).where(BringupBookRow.cluster == cluster).order_by(col(BringupBookRow.number).desc())
    rows = rows.with_for_update() if lock else rows
    return session.exec(rows.limit(1)).first()


def _is_over(last: BringupBookRow | None, number: int) -> bool:
    return last is not None and (last.number > number or last.ended_at is not None)


def _why_not(session: Session, start: BringupStart, at: datetime, last: BringupBookRow | None) -> str:
    """Return why it cannot begin, in one sentence; empty if it can."""
    entry = start.entry
    if last is not None and last.ended_at is None:
        return (
            f"bring-up {last.number} of {entry.cluster} is open ({last.stage}): "
            f"`backstop bringup status {shlex.quote(entry.cluster)}` shows it"
        )
    if last is not None and at <= last.opened_at:  # a late attempt of the call that opened it
        cluster, number = entry.cluster, last.number
        return (
            f"bring-up {number} of {cluster} was opened in the meantime, and has already ended: run "
            "`backstop bringup add` again"
        )
    if session.get(ClusterRow, entry.cluster) is not None:
        return f"{entry.cluster} is already in the fleet: a bring-up is only for a new cluster"
    default = Policy.model_validate(fleet_policy(session))
    return policy_fault(entry, default) or too_much(entry, opening_policy(entry.policy_over(default)))


def _first_row(start: BringupStart, number: int, at: datetime) -> BringupRow:
    entry, recipe = start.entry, start.recipe
    return BringupRow(
        cluster=entry.cluster,
        number=number,
        recipe=recipe.name,
        recipe_hash=recipe.hash,
        owner=entry.owner,
        entered_by=start.actor,
        entered_at=at,
        stage=BringupStage.PLANNED,
        stage_at=at,
        nodes=entry.nodes,
        gpus=entry.gpus,
        owed_until=entry.owed_until,
        accounted_at=at,
    )


def _owed_rows(incoming: Incoming) -> list[dict[str, Any]]:
    granted = incoming.handed.granted
    return [
        {"team": team, "wanted_gpus": gpus, "granted_gpus": granted.get(team, 0), "until": incoming.owed_until}
        for team, gpus in sorted(incoming.wanted.items())
    ]


def _handed_entry(incoming: Incoming) -> AuditEntry:
    cluster, handed = incoming.spec.name, incoming.handed
    return AuditEntry(
        key=f"{bringup_key(cluster, incoming.number)}/handed-over",
        cluster=cluster,
        rollout=bringup_workflow_id(cluster),
        at=incoming.at,
        kind=AuditKind.PLAN,
        actor=incoming.actor,
        text=f"into the fleet: {handed.said}",
        data={
            "command": "hand_over",
            "import": bringup_key(cluster, incoming.number),
            "plan": handed.plan_hash,
            "approved_by": incoming.actor,
            "ceiling_gpus": incoming.ceiling_gpus,
            "granted": handed.granted,
            "owed": handed.owed,
            "islands": [island.model_dump(mode="json") for island in handed.islands],
        },
    )


def _floors(session: Session, cluster: str) -> list[dict[str, Any]]:
    """Read the quotas with a minimum or protected blocks: their key and their floors."""
    names = ("cluster", "team", "minimum", "blocks")
    floored = sa.or_(col(QuotaRow.minimum) > 0, col(QuotaRow.blocks) != "")
    rows = sa.select(*(getattr(QuotaRow, name) for name in names)).where(col(QuotaRow.cluster) == cluster, floored)
    return [dict(row) for row in session.connection().execute(rows.order_by(col(QuotaRow.team))).mappings()]
