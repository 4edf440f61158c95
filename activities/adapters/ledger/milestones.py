"""The plan's milestones in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import add, keep
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from models.errors import Refusal
from models.ledger_tables import MilestoneNoteRow, MilestoneRow
from models.reports.milestones import MEASURED, Milestone, MilestoneNote, Milestones, Planned, replace_plan


class LedgerMilestones(LedgerPart):
    def milestones(self) -> Milestones:
        with self._database.reading() as session:
            planned = _read_plan(session)
            names = [each.milestone.name for each in planned]
            rows = session.exec(
                select(MilestoneNoteRow)
                .where(col(MilestoneNoteRow.milestone).in_(names))
                .order_by(col(MilestoneNoteRow.at), col(MilestoneNoteRow.key))
            )
            notes = tuple(
                MilestoneNote(milestone=row.milestone, at=row.at, number=row.number, actor=row.actor, reason=row.reason)
                for row in rows
            )
            return Milestones(planned=planned, notes=notes)

    def plan_milestones(
        self, milestones: Sequence[Milestone], measured: Mapping[str, int | None], now: datetime
    ) -> None:
        with self._database.begin() as session:
            one_at_a_time(session, "milestones")
            plan = replace_plan(_read_plan(session), milestones, now, measured)
            session.execute(sa.delete(MilestoneRow))
            add(session, MilestoneRow, [_row(number, planned) for number, planned in enumerate(plan)])

    def note_milestone(self, key: str, note: MilestoneNote) -> None:
        with self._database.begin() as session:
            row = session.get(MilestoneRow, note.milestone)
            if row is None:
                raise Refusal(f"there is no milestone {note.milestone!r}: `backstop milestones show` lists them")
            if row.measure in MEASURED:
                raise Refusal(
                    f"Backstop measures milestone {note.milestone!r} itself ({row.measure}): you cannot add a "
                    "note to it"
                )
            keep(session, MilestoneNoteRow, [{"key": key, **note.model_dump()}])


def _read_plan(session: Session) -> tuple[Planned, ...]:
    return tuple(
        Planned(
            milestone=Milestone(name=row.name, measure=row.measure, target=row.target, due=date.fromisoformat(row.due)),
            began=row.began,
            started_from=row.started_from,
        )
        for row in session.exec(select(MilestoneRow).order_by(col(MilestoneRow.position)))
    )


def _row(number: int, planned: Planned) -> dict[str, object]:
    milestone = planned.milestone
    return {
        "name": milestone.name,
        "position": number,
        "measure": milestone.measure,
        "target": milestone.target,
        "due": milestone.due.isoformat(),
        "began": planned.began,
        "started_from": planned.started_from,
    }
