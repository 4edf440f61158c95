"""What may be said of a contact anywhere, and what holds a secret.

Histories and archives are kept for years and read by many; a contact such as a webhook's URL lets whoever has it write
in the team's name. So a contact is secret unless it is known not to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from models.base import some_of

LOG = "log"
"""The contact that is the workers' own log of notices, which has each anyway."""
NAMED = "named:"
"""Before the name of a contact that stands in the workers' own file."""
SECRET = "secret:"  # noqa: S105 - no secret, but the word before its name
"""Before the name of a file in the workers' folder of secrets."""
_OPEN = re.compile(
    r"log|(named|secret):\S+|(mailto:(//)?)?[A-Za-z0-9._'+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.IGNORECASE
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)")


def is_log(contact: str) -> bool:
    return contact.strip().lower() == LOG


def is_secret(contact: str) -> bool:
    """Anything but the log, a plain e-mail address and a name."""
    return not _OPEN.fullmatch(contact.strip())


def shown(contact: str) -> str:
    """The contact, without what may be secret in it."""
    if not is_secret(contact):
        return contact
    scheme = _SCHEME.match(contact.strip())
    return f"{scheme[0].lower()}://***" if scheme else "***"


def is_masked(contact: str) -> bool:
    """Whether it is what `shown` makes of a secret one: it stands for that, and holds no secret."""
    return is_secret(contact) and shown(contact) == contact


def teams_in_clear(contacts: Mapping[str, Iterable[str]], *, masked: bool = False) -> list[str]:
    """The teams, by name, of which a contact holds a secret. `masked`: as `in_clear` has it."""
    return sorted(
        team for team, theirs in contacts.items() if any(is_secret(c) and (masked or not is_masked(c)) for c in theirs)
    )


def in_clear(contacts: Mapping[str, Iterable[str]], *, masked: bool = False) -> str:
    """By team: contacts that hold a secret, as one sentence with what to do; empty where none does.

    `masked`: whether those count that only stand for what the ledger has already.
    """
    teams = teams_in_clear(contacts, masked=masked)
    if not teams:
        return ""
    named = some_of(teams, 3)
    return (
        f"contacts of {named} contain a token in clear text, which is refused once an access file is in force: put "
        f"each token into a file of the workers' folder of secrets (BACKSTOP_SECRETS), and write {SECRET}NAME "
        "in its place"
    )
