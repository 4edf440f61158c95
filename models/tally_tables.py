"""The ledger's sums of tallies. As models/tables.py: only activities/adapters imports them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class TallyDayRow(SQLModel, table=True):
    """A cluster's tallies of the slots that begin in the UTC day at `at`, summed up: `monitored` ones, and the others.

    `lacking_gpus` is a sum over the `lacking_known` tallies that know it, `phantom_gpus` over `phantom_known`.
    """

    __tablename__ = "tally_days"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        Index("tally_days_by_time", "at"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(primary_key=True, sa_type=UtcTime)
    monitored: bool = Field(primary_key=True)
    tallies: int
    first_at: datetime = Field(sa_type=UtcTime)
    last_at: datetime = Field(sa_type=UtcTime)
    lacking_known: int
    lacking_gpus: int = Field(sa_type=BigInteger)
    phantom_known: int
    phantom_gpus: int = Field(sa_type=BigInteger)
