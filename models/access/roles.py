"""Roles, and the roles that they include. Source: docs/access.md, "The table of rights"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads everything except contacts and secrets."""
    MEMBER = "member"
    """Acts for a team: acknowledges, objects, asks for quota."""
    OPERATOR = "operator"
    """Launches, pauses, rolls back and closes."""
    APPROVER = "approver"
    """Approves changes to quotas. A service cannot have this role."""
    ADMIN = "admin"
    """Configures the fleet and grants roles."""


INCLUDED: dict[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset(),
    Role.MEMBER: frozenset(),
    Role.OPERATOR: frozenset({Role.VIEWER}),
    Role.APPROVER: frozenset({Role.VIEWER}),
    Role.ADMIN: frozenset(),
}
"""Every role is a key. `admin` includes no other role: giving roles and deciding on quotas are separate duties."""


def with_included(roles: Iterable[Role]) -> frozenset[Role]:
    """Return these roles and those that they include."""
    return frozenset(one for role in roles for one in (role, *INCLUDED[role]))
