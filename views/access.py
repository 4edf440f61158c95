"""The access file, rights and tokens for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from models.access.access_versions import (
    COUNTERSIGNED_WITHIN,
    NOT_CONFIGURED,
    AccessOutcome,
    AccessStands,
    changes_between,
    standing_sentence,
    warnings_of,
)
from models.access.decision import roles_for, who_could
from models.access.rights import RIGHTS, Where
from models.texts import some_of
from views.row_models import RightLine
from views.words import count, line, moment, row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from models.access.access_file import AccessFile
    from models.access.decision import Target
    from models.access.principals import Principal
    from models.access.rights import Right
    from models.access.tokens import TokenLine


def describe_access(stands: AccessStands) -> str:
    """Return a sentence or two about the access file in force."""
    return NOT_CONFIGURED if stands.version is None else standing_sentence(stands.version)


def access_parts(stands: AccessStands) -> list[RenderableType]:
    parts: list[RenderableType] = [line(describe_access(stands))]
    if stands.version is None:
        return parts
    parts += _file_parts(stands.version.file)
    if (waits := stands.proposal) is not None:
        until = f"{waits.at + COUNTERSIGNED_WITHIN:%Y-%m-%d %H:%MZ}"
        parts += [
            line(),
            line(
                (f"{waits.hash} waits", "bold"),
                f", proposed by {waits.by}: another admin must confirm it before {until}",
            ),
            *map(line, changes_between(stands.version.file, waits.file)),
            line(f"backstop access import --confirm {waits.hash}"),
        ]
    return parts


def _file_parts(file: AccessFile) -> Iterator[RenderableType]:
    yield from (line((f"! {warning}", "yellow")) for warning in warnings_of(file))
    rows = table("WHO", "~ROLES", "~WHERE", least=["WHERE"])
    for grant in file.grants:
        for name in grant.to:
            row(rows, name, ", ".join(grant.roles), grant.bounds or "everywhere")
    yield rows
    for service in file.services:
        accounts = [f"{one.subject} at {one.issuer}" for one in service.oidc]
        comes_in = f", and logs in as {some_of(accounts, 5)}" if accounts else ""
        yield line(f"service:{service.name} belongs to {service.owner}{comes_in}")


_MOST_CHANGES = 100
"""The most changes of a file that are listed; the others are counted."""


def outcome_parts(outcome: AccessOutcome) -> list[RenderableType]:
    parts: list[RenderableType] = [line(change) for change in outcome.changes[:_MOST_CHANGES]]
    if len(outcome.changes) > _MOST_CHANGES:
        parts.append(line(f"and {count(len(outcome.changes) - _MOST_CHANGES, 'more change')}"))
    if not outcome.changes:
        parts.append(line("Nothing differs from the file in force."))
    parts += [line((f"! {warning}", "yellow")) for warning in outcome.warnings]
    parts.append(line(f"Access file {outcome.hash}: {outcome.said}"))
    if outcome.in_force and outcome.changes:
        first = "You cannot undo this import: an access file is now in force, and only another one can replace it."
        before = "To undo: import the file that was in force before."
        parts.append(line(first if outcome.version <= 1 else before))
    return parts


def who_lines(file: AccessFile, key: str, target: Target) -> list[RightLine]:
    """Return, for one row of the table of rights and each of its cases, the people who could give that command."""
    return [
        _right_line(key, case, right, who=who_could(file, key, target.but(cases=frozenset({case} if case else ()))))
        for case, right in RIGHTS[key].with_cases
    ]


def may_lines(file: AccessFile, principal: Principal, target: Target) -> list[RightLine]:
    """Return, for the whole table of rights, what somebody may do there, and by which roles."""
    return [
        _right_line(key, case, right, roles=roles)
        for key, row in RIGHTS.items()
        for case, right in row.with_cases
        if (roles := roles_for(file, principal, right, target))
    ]


def _right_line(
    key: str, case: str, right: Right, roles: tuple[str, ...] | None = None, who: tuple[str, ...] = ()
) -> RightLine:
    return RightLine(
        command=key,
        to=right.to,
        roles=tuple(map(str, right.roles if roles is None else roles)),
        where=right.where,
        second=right.second,
        case=case,
        who=who,
    )


def by_team_line(what: str) -> RenderableType:
    """Return a note that the answer depends on the team, where no team was named."""
    return line(f"{what} depends on the team: give --team TEAM.")


def rights_parts(lines: Sequence[RightLine], *, who: bool, team: str = "") -> list[RenderableType]:
    """Return a table of the lines. `who`: show who could; else the roles by which somebody may. `team`: the named."""
    rows = table("COMMAND", "~", "~WHO COULD" if who else "=ROLE", "~SECOND PERSON", least=["SECOND PERSON"])
    for one in lines:
        second = "" if one.second == "none" else one.second
        nobody = "nobody for all teams" if one.where == Where.TEAM and not team else "nobody"
        last = (some_of(one.who) or nobody) if who else ", ".join(one.roles)
        row(rows, one.command, one.to, last, second)
    by_team = next((one for one in lines if who and not team and one.where == Where.TEAM), None)
    return [rows, *([] if by_team is None else [by_team_line(f"Who could {by_team.to}")])]


def token_parts(tokens: Sequence[TokenLine], now: datetime) -> list[RenderableType]:
    if not tokens:
        return [line("There is no valid token: `backstop access token new` makes one.")]
    rows = table("TOKEN", "OWNER", "~SCOPE", "=UNTIL", "MADE BY", "~", least=["MADE BY"])
    for one in tokens:
        ended = one.expires_at <= now
        note = f"revoked by {one.revoked_by}" if one.revoked_at else "expired" if ended else ""
        row(rows, one.name, one.owner, one.scope.text, moment(one.expires_at), one.made_by, note)
    return [rows]
