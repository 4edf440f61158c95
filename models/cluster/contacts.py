"""What may be said of a contact anywhere, and what holds a secret.

Histories and archives are kept for years and read by many; a contact such as a webhook's URL lets whoever has it write
in the team's name. So a contact is secret unless it is known not to be.
"""

from __future__ import annotations

import re

NAMED = "named:"
"""Before the name of a contact that stands in the workers' own file."""
_OPEN = re.compile(r"log|named:\S+|(mailto:(//)?)?[A-Za-z0-9._'+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)")


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
