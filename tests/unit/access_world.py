"""Access files for tests, and who comes in by them."""

from __future__ import annotations

from typing import Any

from models.access.access_file import AccessFile
from models.access.principals import Principal

ISSUER = "https://login.example.org"
ADMINS = {"to": ["user:tpm", "user:sre-lead"], "roles": ["admin"]}
PEOPLE = [
    {"name": name, "machine": [name], "oidc": [{"issuer": ISSUER, "subject": f"sub-{name}"}]}
    for name in ("tpm", "sre-lead", "sre", "research-lead", "hw-lead")
]


def access(*grants: dict[str, Any], **more: Any) -> AccessFile:
    """Return an access file with two admins by name, and five people who each come in by two ways."""
    services = [{"name": "ci", "owner": "user:sre"}]
    return AccessFile.model_validate({"people": PEOPLE, "services": services, "grants": [ADMINS, *grants], **more})


def grant(to: str, *roles: str, **bounds: list[str]) -> dict[str, Any]:
    teams = {"teams": ["*"]} if "member" in roles else {}
    return {"to": [to], "roles": list(roles), **teams, **bounds}


def at_provider(file: AccessFile, name: str, *groups: str) -> Principal:
    return file.at_provider(ISSUER, f"sub-{name}", groups)
