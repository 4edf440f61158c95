"""Rows of views and of `--json`, made from several models."""

from __future__ import annotations

from models.base import Model, Time


class FlexOffered(Model):
    at: Time
    flex_gpus: int
    healthy_gpus: int


class RightLine(Model):
    """A row of the table of rights, and the people or roles that have the right."""

    command: str
    to: str
    roles: tuple[str, ...]
    where: str
    second: str
    case: str = ""
    """The circumstance under which the row holds; empty: always."""
    who: tuple[str, ...] = ()
