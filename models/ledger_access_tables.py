"""The ledger's rows on access: access files, tokens, commands that wait for a second person, seals, warrants.

As with models/ledger_tables.py, only activities/adapters imports them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, Text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class AccessFileRow(SQLModel, table=True):
    """An access file, as JSON. `version` NULL: it was proposed to replace version `stands_after`."""

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
    """A token by its hash. `scope`: JSON of models.access.tokens.TokenScope."""

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


class EndedSessionRow(SQLModel, table=True):
    """A session of a browser, or all of one human, that ended before its time, by the hash of its name."""

    __tablename__ = "ended_sessions"
    __table_args__ = (CheckConstraint("length(hash) = 64", name="ended_sessions_hash"),)

    hash: str = Field(primary_key=True, sa_type=Text)
    ended_at: datetime = Field(sa_type=UtcTime)


class WaitingRow(SQLModel, table=True):
    """A command that waits for a second person, or did. `document`: a models.access.second_persons.KeptCommand."""

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
    """A command that somebody gave alone. `key`: the request's, so that a repeated request is one row."""

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


# --- seals ----------------------------------------------------------------------------------------


class SealRow(SQLModel, table=True):
    """A seal and its note, as keepers have them: each sealer continues from the last one."""

    __tablename__ = "seals"
    __table_args__ = (CheckConstraint("number >= 1", name="seals_counts"),)

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at: datetime = Field(sa_type=UtcTime)
    leaf: str = Field(sa_type=Text)
    note: str = Field(sa_type=Text)


class SealingRow(SQLModel, table=True):
    """The state of sealing, in one row. `trouble`: in a sentence; empty: none."""

    __tablename__ = "sealing"
    __table_args__ = (CheckConstraint("id = 1", name="sealing_one"),)

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    every_seconds: int
    since: datetime = Field(sa_type=UtcTime)
    trouble: str = Field(sa_type=Text)


# --- warrants, and what effects stand on ----------------------------------------------------------


class WarrantRow(SQLModel, table=True):
    """A ticket that was admitted (`inherits` NULL), or a machine's ground: models.access.warrants.Warrant.

    Void from `voided_at` on. `principal`, `message` and `content` are JSON; `human` is the principal's, for people who
    read by SQL.
    """

    __tablename__ = "warrants"
    __table_args__ = (Index("warrants_of_subject", "subject", "admitted_at"),)

    nonce: str = Field(primary_key=True, sa_type=NameText)
    command: str = Field(sa_type=NameText)
    workflow: str = Field(sa_type=Text)
    subject: str = Field(sa_type=NameText)
    update_id: str = Field(default="", sa_type=Text)
    attempt: int = 0
    plan_hash: str = Field(default="", sa_type=Text)
    policy_hash: str = Field(default="", sa_type=Text)
    generation: int = Field(default=0, sa_type=BigInteger)
    principal: str = Field(sa_type=Text)
    human: str = Field(default="", sa_type=Text)
    ticket: str = Field(default="", sa_type=Text)
    message: str = Field(default="{}", sa_type=Text)
    content: str = Field(default="{}", sa_type=Text)
    content_sha256: str = Field(default="", sa_type=Text)
    inherits: str | None = Field(default=None, sa_type=NameText)
    admitted_at: datetime = Field(sa_type=UtcTime)
    voided_at: datetime | None = Field(default=None, sa_type=UtcTime)
    voided_by: str = Field(default="", sa_type=Text)


class DrawnRow(SQLModel, table=True):
    """A document that a genuine activity made from its own readings: a plan, or a breach's target (`kind`).

    `subject`: the rollout or fleet rollout. `hash` (64 bits) is shown to people, `sha256` covers all of `content`.
    """

    __tablename__ = "drawn"
    __table_args__ = (Index("drawn_of_subject", "subject", "kind", "drawn_at"),)

    subject: str = Field(primary_key=True, sa_type=NameText)
    sha256: str = Field(primary_key=True, sa_type=NameText)
    kind: str = Field(sa_type=Text)
    hash: str = Field(default="", sa_type=Text)
    content: str = Field(sa_type=Text)
    drawn_at: datetime = Field(sa_type=UtcTime)


class EffectProofRow(SQLModel, table=True):
    """The grounds of one effect, beside its receipt. `outcome`: called (landed, if it has a receipt), refused, failed.

    `stood_on`: the nonces of warrants, comma-joined. `evidence`: in words. `after`: for a grant, the values that an
    undo restores once it has landed, as JSON.
    """

    __tablename__ = "effect_proofs"

    rollout: str = Field(primary_key=True, sa_type=NameText)
    counter: int = Field(primary_key=True, sa_type=BigInteger)
    kind: str = Field(sa_type=Text)
    outcome: str = Field(sa_type=Text)
    ground: str = Field(sa_type=Text)
    stood_on: str = Field(default="", sa_type=Text)
    evidence: str = Field(sa_type=Text)
    after: str = Field(default="", sa_type=Text)
    at: datetime = Field(sa_type=UtcTime)
