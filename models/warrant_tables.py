"""The ledger's rows of warrants, of what genuine activities drew, and of what effects stood on.

As models/tables.py: only activities/adapters imports them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, Text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime


class WarrantRow(SQLModel, table=True):
    """A ticket that was admitted (`inherits` NULL), or what a machine stands on: models.access.warrants.Warrant.

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
    """What a genuine activity drew up from its own readings: a plan, or where a breach goes (`kind`).

    `subject`: the rollout or fleet rollout. `hash` is what people are shown of it (64 bits), `sha256` is of all of
    `content`.
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
    """What one effect stood on, beside its receipt. `outcome`: called (landed, if it has a receipt), refused, failed.

    `stood_on`: the nonces of warrants, comma-joined. `evidence`: in words. `after`: of a grant, what an undo brings
    back once it has landed, as JSON.
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
