"""The access file in force, the proposed one, and the texts about both."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from models.access.access_file import SLACK_ROLES, AccessFile
from models.base import ActorGiven, Count, Model, PositiveCount, Text, Time, Words, duration_text
from models.texts import count_text, some_of

COUNTERSIGNED_WITHIN = timedelta(hours=24)
READS_KEPT, ANEW = timedelta(seconds=15), timedelta(seconds=1)
"""How long a front uses its copy of the file: for commands that read, and for commands that change something."""
EXPIRES_SOON = timedelta(days=14)
ACCESS_CHAIN = "(access)"
"""The chain of the archive that records changes to roles and tokens; each cluster has a chain of its own."""
NOT_CONFIGURED = (
    "No access file is in force: everybody who reaches Temporal may do everything, and only a front verifies who gives "
    "a command. Write an access file (docs/access.md), and run `backstop access import FILE`."
)


class HowImported(StrEnum):
    """The way in which a version came into force."""

    FIRST = "first"
    """The first access file. The person who imported it is an admin in it."""
    COUNTERSIGNED = "countersigned"
    ONE_PERSON = "one person"
    """The previous file had two_person off, so one admin imported this one alone."""
    RECOVERED = "recovered"
    """`backstop access recover`: somebody who has the ledger's address imported the file without a front."""


class AccessVersion(Model):
    """A file that is in force, or was. `second`: the countersigner; empty: nobody."""

    version: PositiveCount
    hash: Text
    file: AccessFile
    by: ActorGiven
    at: Time
    how: HowImported
    second: ActorGiven = ""
    reason: Words = ""


class AccessProposal(Model):
    """A file that waits to be countersigned. It replaces that version, and no other."""

    hash: Text
    file: AccessFile
    by: ActorGiven
    at: Time
    after: Count
    reason: Words = ""

    def is_open(self, now: Time, version: int) -> bool:
        return self.after == version and now < self.at + COUNTERSIGNED_WITHIN


class AccessStands(Model):
    """The file in force, and the one that waits. `version` None: no access is configured."""

    version: AccessVersion | None = None
    proposal: AccessProposal | None = None


class AccessOutcome(Model):
    """The outcome of an import, or of a dry run. `changes`: a sentence for each difference from the file in force."""

    hash: Text
    in_force: bool = False
    version: Count = 0
    awaits: bool = False
    """True: another admin has to countersign the file."""
    by: tuple[str, ...] = ()
    """People who could countersign the file."""
    until: Time | None = None
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    said: Text


class AccessCheck(Model):
    """The facts about access for `doctor`."""

    configured: bool = False
    admins: Count = 0
    two_person: bool = True
    expiring: tuple[str, ...] = ()
    """Tokens that expire within two weeks, each with its time of expiry."""
    wrong: Text = ""
    """The fault of the access file in the ledger; empty: none."""


def changes_between(old: AccessFile | None, new: AccessFile) -> tuple[str, ...]:
    """Return the differences in sentences: grants, people, services, and two_person."""
    before, after = _lines(old), _lines(new)
    gone = [f"- {line}" for line in before if line not in after]
    return (*gone, *(f"+ {line}" for line in after if line not in before))


def _lines(file: AccessFile | None) -> dict[str, None]:
    """Return a line for each name and role: another order is no change."""
    if file is None:
        return {}
    lines = [] if file.two_person else ["two_person is off: no command needs a second person"]
    if set(file.slack_roles) != set(SLACK_ROLES):
        lines.append(f"roles that people may use from Slack: {', '.join(sorted(file.slack_roles)) or 'none'}")
    for grant in file.grants:
        bounds = f" ({grant.bounds})" if grant.bounds else ""
        lines += [f"{name} is {role}{bounds}" for name in sorted(grant.to) for role in sorted(grant.roles)]
    for person in file.people:
        ways = [*(f"machine user {user}" for user in person.machine)]
        ways += [f"{one.subject} at {one.issuer}" for one in person.oidc]
        ways += [f"{one.user} in Slack workspace {one.workspace}" for one in person.slack]
        lines.append(f"{person.user} logs in as {some_of(sorted(ways), 5)}")
    for service in file.services:
        lines.append(f"service:{service.name} belongs to {service.owner}")
        lines += [f"service:{service.name} logs in as {one.subject} at {one.issuer}" for one in service.oidc]
    return dict.fromkeys(lines)


def warnings_of(file: AccessFile) -> tuple[str, ...]:
    """Return warnings about settings that are legal and worth a second look."""
    warnings = []
    if not file.two_person:
        warnings.append(
            "two_person is off: one person alone can launch, approve and change roles, and the audit says so each time"
        )
    elif len(file.admins) < 2:
        warnings.append(
            f"the file names only one admin, {file.admins[0]}, so nobody can countersign the next change of roles: "
            "name a second admin; without one, only `backstop access recover` can change roles"
        )
    return tuple(warnings)


def standing_sentence(version: AccessVersion) -> str:
    """Return which file is in force, and who imported it."""
    second = f", countersigned by {version.second}" if version.second else f" ({version.how})"
    admins = count_text(len(version.file.admins), "admin")
    return (
        f"Version {version.version} ({version.hash}) has been in force since {version.at:%Y-%m-%d %H:%MZ}, imported by "
        f"{version.by}{second}; it names {admins}. Once a new file is in force, Backstop applies it to "
        f"commands within {duration_text(ANEW)}, and to reading within {duration_text(READS_KEPT)}."
    )
