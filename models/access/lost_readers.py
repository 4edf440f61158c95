"""A warning before an import: people who can read now and could not once the new access file is in force.

The role `viewer` lets people read; operator and approver include it, admin does not. Somebody who gives themselves only
admin can no longer see the pages that they look at each day.
"""

from __future__ import annotations

from models.access.access_file import GROUP, AccessFile, Grant
from models.access.principals import Principal, Proof
from models.access.roles import Role, with_included
from models.texts import some_of

_NAMED = 5
WHAT = "clusters and their rollouts (status, plan, report)"


def no_longer_read(before: AccessFile | None, after: AccessFile, importer: Principal) -> tuple[str, ...]:
    """Return sentences about the importer, under their name in `after`, and about its admins by name.

    `before` None: there was no access file, and everybody could read.
    """
    people = {importer.name: importer} | {
        name: Principal(name=name, proof=Proof.OIDC) for name in after.admins if name != importer.name
    }
    blind = [name for name, one in people.items() if _reads(before, one) and not _reads(after, one)]
    narrowed = [
        name
        for name, one in people.items()
        if _reads(before, one, all_at_once=True) and _reads(after, one) and not _reads(after, one, all_at_once=True)
    ]
    sentences = []
    if blind:
        every = not any(_reads(after, people[name]) for name in after.admins)
        whom = f"no admin can read {WHAT} any more ({{}})" if every else f"{{}} can no longer read {WHAT}"
        sentences.append(
            f"after this import {whom.format(some_of(sorted(blind), _NAMED))}"
            f"{_groups_text(after, importer, blind)}: reading needs the role viewer, which admin does not include"
        )
    if narrowed:
        sentences.append(
            f"after this import {some_of(sorted(narrowed), _NAMED)} can no longer read all clusters at once, only the "
            "clusters that the file names for them"
        )
    return tuple(sentences)


def _reads(file: AccessFile | None, one: Principal, *, all_at_once: bool = False) -> bool:
    if file is None:
        return True
    held = [grant for grant in file.grants_of(one) if _lets_read(grant)]
    return any(grant.everywhere for grant in held) if all_at_once else bool(held)


def _lets_read(grant: Grant) -> bool:
    return Role.VIEWER in with_included(grant.roles) and grant.for_all_teams


def _groups_text(after: AccessFile, importer: Principal, blind: list[str]) -> str:
    """Return an aside on groups: their members are not known here."""
    groups = {name for grant in after.grants if _lets_read(grant) for name in grant.to if name.startswith(GROUP)}
    if not groups or blind == [importer.name]:
        return ""
    return f", except as a member of {some_of(sorted(groups), _NAMED)}"
