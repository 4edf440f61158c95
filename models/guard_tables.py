"""The ledger's rows of the guard: which sources are in doubt, whose breach is being answered, what to look at now.

As models/tables.py: only activities/adapters imports them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class SourceDoubtRow(SQLModel, table=True):
    """A health source that is in doubt (`since`), or was. `judgement`: JSON of models.cluster.source_doubts.Judgement.

    What its clusters were before `confirmed_at` is no measure for what they are after it.
    """

    __tablename__ = "source_doubts"

    source: str = Field(primary_key=True, sa_type=NameText)
    since: datetime | None = Field(default=None, sa_type=UtcTime)
    judgement: str = Field(default="", sa_type=Text)
    confirmed_at: datetime | None = Field(default=None, sa_type=UtcTime)
    confirmed_by: str = Field(default="", sa_type=Text)


class BreachRow(SQLModel, table=True):
    """A cluster whose breach rollback was last booked at `at`, before it was aimed."""

    __tablename__ = "breaches"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)


class HealthPushRow(SQLModel, table=True):
    """Somebody said at `at` that this cluster should be looked at; the watch takes the row away and looks."""

    __tablename__ = "health_pushes"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)
