"""The ledger's rows of seals. As models/tables.py: only its adapter imports this."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Text
from sqlmodel import Field, SQLModel

from models.columns import UtcTime


class SealRow(SQLModel, table=True):
    """A seal and its note, as keepers have them: each sealer goes on from the last one."""

    __tablename__ = "seals"
    __table_args__ = (CheckConstraint("number >= 1", name="seals_counts"),)

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at: datetime = Field(sa_type=UtcTime)
    leaf: str = Field(sa_type=Text)
    note: str = Field(sa_type=Text)


class SealingRow(SQLModel, table=True):
    """How sealing goes, in one row. `trouble`: in a sentence; empty: none."""

    __tablename__ = "sealing"
    __table_args__ = (CheckConstraint("id = 1", name="sealing_one"),)

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    every_seconds: int
    since: datetime = Field(sa_type=UtcTime)
    trouble: str = Field(sa_type=Text)
