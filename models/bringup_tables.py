"""The ledger's rows of bring-ups. As models/tables.py: only its adapter imports this."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKeyConstraint, Index, Text, text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime

_OPEN = text("ended_at IS NULL")


class BringupBookRow(SQLModel, table=True):
    """A bring-up as it was last noted; `board` is all that is shown of it, as JSON.

    No foreign key: its cluster is in the fleet only later, and not any more once it is retired. `opening`: by which
    the same start is known again. `orders`: how many grants of what is owed have been noted; the next one is fenced by
    one more.
    """

    __tablename__ = "bringups"
    __table_args__ = (
        CheckConstraint("number >= 1 AND orders >= 0", name="bringups_counts"),
        CheckConstraint("ended_at >= opened_at", name="bringups_forward"),
        # One at once.
        Index("bringups_open", "cluster", unique=True, postgresql_where=_OPEN, sqlite_where=_OPEN),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    number: int = Field(primary_key=True)
    opening: str = Field(sa_type=Text)
    opened_at: datetime = Field(sa_type=UtcTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcTime)
    stage: str = Field(sa_type=Text)
    stage_at: datetime = Field(sa_type=UtcTime)
    orders: int = Field(default=0, sa_type=BigInteger)
    board: str = Field(sa_type=Text)


class OwedRow(SQLModel, table=True):
    """What the entry wanted for a team, and what of it was granted. NULL `until`: the rest is not owed."""

    __tablename__ = "owed"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("wanted_gpus >= 0 AND granted_gpus >= 0", name="owed_counts"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    team: str = Field(primary_key=True, sa_type=NameText)
    wanted_gpus: int
    granted_gpus: int
    until: datetime | None = Field(default=None, sa_type=UtcTime)
