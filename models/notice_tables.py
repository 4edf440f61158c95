"""The ledger's rows of what is to be told, and of what was. As models/tables.py: only its adapter imports this."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Index, Text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class MessageRow(SQLModel, table=True):
    """Notices to one audience that go out together, or have gone.

    What it holds was decided at `formed_at` and stays, so that whoever sends it again sends the same. `key`: by which
    the delivery book knows it. It is over where `sent_at` is set, or `refused`, as no contact could be used. `try_at`:
    when it is tried again, and `trouble`: why. `deliveries`: channel, address and time of each, as JSON.
    """

    __tablename__ = "messages"
    __table_args__ = (Index("messages_of", "audience", "formed_at"), Index("messages_open", "over", "try_at"))

    key: str = Field(primary_key=True, sa_type=NameText)
    audience: str = Field(sa_type=NameText)
    formed_at: datetime = Field(sa_type=UtcTime)
    over: bool = False
    sent_at: datetime | None = Field(default=None, sa_type=UtcTime)
    refused: str = Field(default="", sa_type=Text)
    tries: int = 0
    try_at: datetime = Field(sa_type=UtcTime)
    trouble: str = Field(default="", sa_type=Text)
    deliveries: str = Field(default="[]", sa_type=Text)


class NoticeRow(SQLModel, table=True):
    """A notice that is to be sent, or was: `message` NULL: it waits. `notice`: all of it but contacts, as JSON."""

    __tablename__ = "notices"
    __table_args__ = (
        ForeignKeyConstraint(["message"], ["messages.key"]),
        Index("notices_of_message", "message", "audience"),
    )

    key: str = Field(primary_key=True, sa_type=NameText)
    audience: str = Field(sa_type=NameText)
    cluster: str = Field(sa_type=NameText)
    kind: str = Field(sa_type=Text)
    lane: str = Field(sa_type=Text)
    posted_at: datetime = Field(sa_type=UtcTime)
    notice: str = Field(sa_type=Text)
    message: str | None = Field(default=None, sa_type=NameText)
