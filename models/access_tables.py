"""The ledger's rows of access: the files that were ever in force or proposed, tokens, and what takes a second person.

As models/tables.py: only activities/adapters imports them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class AccessFileRow(SQLModel, table=True):
    """An access file, as JSON. `version` NULL: it was proposed, in place of version `stands_after`."""

    __tablename__ = "access_files"
    __table_args__ = (
        CheckConstraint("number >= 1 AND version >= 1 AND stands_after >= 0", name="access_files_counts"),
    )

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    version: int | None = Field(default=None, unique=True)
    stands_after: int
    hash: str = Field(sa_type=Text)
    document: str = Field(sa_type=Text)
    imported_by: str = Field(sa_type=Text)
    imported_at: datetime = Field(sa_type=UtcTime)
    reason: str = Field(default="", sa_type=Text)
    how: str = Field(default="", sa_type=Text)
    in_force_at: datetime | None = Field(default=None, sa_type=UtcTime)
    second: str = Field(default="", sa_type=Text)


class AccessTokenRow(SQLModel, table=True):
    """A token by the hash of it. `scope`: JSON of models.access.tokens.TokenScope."""

    __tablename__ = "access_tokens"
    __table_args__ = (CheckConstraint("length(hash) = 64", name="access_tokens_hash"),)

    name: str = Field(primary_key=True, sa_type=NameText)
    hash: str = Field(unique=True, sa_type=Text)
    owner: str = Field(sa_type=Text)
    scope: str = Field(sa_type=Text)
    made_by: str = Field(sa_type=Text)
    made_at: datetime = Field(sa_type=UtcTime)
    expires_at: datetime = Field(sa_type=UtcTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcTime)
    revoked_by: str = Field(default="", sa_type=Text)


class WaitingRow(SQLModel, table=True):
    """A command that waits for a second person, or did. `document`: JSON of models.access.waiting.KeptCommand."""

    __tablename__ = "waiting_commands"
    __table_args__ = (
        CheckConstraint("length(hash) = 64", name="waiting_commands_hash"),
        CheckConstraint("ended IN ('', 'given', 'withdrawn')", name="waiting_commands_ended"),
    )

    hash: str = Field(primary_key=True, sa_type=Text)
    command: str = Field(sa_type=Text)
    given_by: str = Field(sa_type=Text)
    given_at: datetime = Field(sa_type=UtcTime)
    document: str = Field(sa_type=Text)
    second: str = Field(default="", sa_type=Text)
    taken_at: datetime | None = Field(default=None, sa_type=UtcTime)
    ended: str = Field(default="", sa_type=Text)
    ended_at: datetime | None = Field(default=None, sa_type=UtcTime)


class EmergencyRow(SQLModel, table=True):
    """What somebody did alone. `key`: of the request, so that one told twice is one."""

    __tablename__ = "emergencies"
    __table_args__ = (CheckConstraint("number >= 1", name="emergencies_counts"),)

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    key: str = Field(unique=True, sa_type=Text)
    given_by: str = Field(sa_type=Text)
    given_at: datetime = Field(sa_type=UtcTime)
    what: str = Field(sa_type=Text)
    reason: str = Field(sa_type=Text)
    seen_by: str = Field(default="", sa_type=Text)
    seen_at: datetime | None = Field(default=None, sa_type=UtcTime)
    seen_reason: str = Field(default="", sa_type=Text)
