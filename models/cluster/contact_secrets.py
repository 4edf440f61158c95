"""The secrets in contacts, and how to show a contact without them.

Histories and archives are kept for years and read by many; anybody with a contact such as a webhook's URL can write in
the team's name. So a contact is secret unless it is known not to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from models.texts import some_of

LOG = "log"
"""The contact that means the workers' own log of notices, which gets every notice anyway."""
NAMED = "named:"
"""The prefix of a contact that is a name in the workers' own file."""
SECRET = "secret:"  # noqa: S105 - no secret, but the word before its name
"""The prefix of a contact that is a file's name in the workers' folder of secrets."""
_OPEN = re.compile(
    r"log|(named|secret):\S+|(mailto:(//)?)?[A-Za-z0-9._'+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.IGNORECASE
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)")


def is_log(contact: str) -> bool:
    return contact.strip().lower() == LOG


def is_secret(contact: str) -> bool:
    """Return whether it is anything but the log, a plain e-mail address or a name."""
    return not _OPEN.fullmatch(contact.strip())


def mask_secrets(contact: str) -> str:
    """Return the contact without its secret parts."""
    if not is_secret(contact):
        return contact
    scheme = _SCHEME.match(contact.strip())
    return f"{scheme[0].lower()}://***" if scheme else "***"


def is_masked(contact: str) -> bool:
    """Return whether it is a contact as `mask_secrets` masks it: it refers to that contact, and holds no secret."""
    return is_secret(contact) and mask_secrets(contact) == contact


def teams_in_clear(contacts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the teams, by name, with a contact that holds a secret; a masked one refers to what the ledger has."""
    return sorted(
        team for team, theirs in contacts.items() if any(is_secret(one) and not is_masked(one) for one in theirs)
    )


def in_clear(contacts: Mapping[str, Iterable[str]]) -> str:
    """Return a sentence on contacts that hold a secret, with the remedy; empty if there are none."""
    teams = teams_in_clear(contacts)
    if not teams:
        return ""
    named = some_of(teams, 3)
    return (
        f"contacts of {named} contain a token in clear text, which is refused once an access file is in force: put "
        f"each token into a file of the workers' folder of secrets (BACKSTOP_SECRETS), and write {SECRET}NAME "
        "in its place"
    )
