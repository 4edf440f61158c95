"""Answers that the door makes itself. Imports nothing of Temporal, because the HTTP door reads these models too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field

from models.audit_chain import AuditKind
from models.base import Model, Time

STALE = timedelta(minutes=30)
"""The age from which views doubt a health figure. Gates use the policy's `stale_after` instead."""


class Check(Model):
    """A condition that should hold, and what to do when it does not."""

    name: str
    ok: bool
    text: str
    remedy: str
    """How to mend a failed condition; empty: nothing is to be done."""

    @classmethod
    def good(cls, name: str, text: str) -> Check:
        return cls(name=name, ok=True, text=text, remedy="")

    @classmethod
    def bad(cls, name: str, text: str, remedy: str = "") -> Check:
        return cls(name=name, ok=False, text=text, remedy=remedy)


class Build(Model):
    """A build of the worker. `rollouts`: open rollouts that run on it; `workers`: its workers that poll."""

    build: str
    status: str
    """current: new rollouts start on it. Otherwise ramping, draining, drained or inactive."""
    workers: int
    rollouts: int
    created: Time

    @property
    def is_stranded(self) -> bool:
        """Return whether the build holds rollouts and no worker serves them."""
        return self.rollouts > 0 and self.workers == 0


class AuditRecord(Model):
    """An event of a workflow's history. `event`: its id in its run."""

    at: Time
    kind: AuditKind
    actor: str
    text: str
    reason: str = ""
    refused: bool = False
    run: str = ""
    event: int = 0
    data: dict[str, Any] = Field(default_factory=dict)
