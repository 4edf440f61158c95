"""Roles, and the roles that they include. Source: docs/access.md, "The table of rights"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads, contacts and secrets aside."""
    MEMBER = "member"
    """Speaks for a team: acknowledges, objects, asks for quota."""
    OPERATOR = "operator"
    """Launches, holds, undoes, ends."""
    APPROVER = "approver"
    """Lets quotas be written. Never a service."""
    ADMIN = "admin"
    """Configures the fleet, and gives roles."""


INCLUDED: dict[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset(),
    Role.MEMBER: frozenset(),
    Role.OPERATOR: frozenset({Role.VIEWER}),
    Role.APPROVER: frozenset({Role.VIEWER}),
    Role.ADMIN: frozenset(),
}
"""Total on purpose. Deciding on quotas and deciding on roles are two offices: `admin` includes no other role."""


def with_included(roles: Iterable[Role]) -> frozenset[Role]:
    """Return these roles and those that they include."""
    return frozenset(one for role in roles for one in (role, *INCLUDED[role]))
