"""The target of a command, as far as its message names it.

The ledger adds the rest (activities/tickets/ticket_rights.py). The front and the workers' admission read messages by
this one function.
"""

from __future__ import annotations

import re
from typing import Any

from models.access.decision import Target
from models.access.rights import RIGHTS, Case, Second

_OF_SOMEBODY = (
    Second.NOT_LAUNCHER,
    Second.NOT_CHANGER,
    Second.NOT_ASKER,
    Second.NOT_ENTERER,
    Second.APPROVER_OR_BREAKER,
)
OBJECTION_ID = "objection-"
"""The prefix of an objection's hold id. The team's name follows, and a number from its second objection on."""
_TYPED = re.compile(r"backstop (?:(fleet|request|bringup) )?([a-z-]+) ((?:(?!backstop )[^`\n])*)")
_TEAM = re.compile(r"--team ('[^'\n]*'|\S+)")
_DOOR = {"confirm": "desk.confirm_source", "calendar end": "desk.end_window"}
_BY_STATE = frozenset({"rollout.close"})
"""Commands whose rights depend on the state of the rollout."""


def target_of(command: str, message: Any, cluster: str = "") -> Target:
    """Return the target of a command, a start, or a question. `cluster`: the default where `message` names none."""
    entry = getattr(message, "entry", None)
    where = str(getattr(message, "cluster", "") or getattr(entry, "cluster", "") or cluster)
    named = {one.cluster for one in getattr(message, "declared", ()) if hasattr(one, "cluster")}
    if command in ("desk.push_health", "desk.end_hold"):
        named |= {*getattr(message, "clusters", ())}
    declared = sorted(named - {where})
    if not where and declared:
        where, *declared = declared
    team = str(getattr(message, "team", "") or "")
    return Target(cluster=where, team=team, more=tuple(declared), cases=_cases(command, message))


def command_awaited(*lines: str) -> tuple[str, frozenset[Case]]:
    """Return the rights key of the first command that the lines name, and its special cases; empty: they name none."""
    for match in _TYPED.finditer(" \n".join((*lines, ""))):
        lifecycle = "fleet" if "--fleet" in match[3] else match[1] or "rollout"
        words = f"calendar {match[3].partition(' ')[0]}" if match[2] == "calendar" else match[2]
        key = _DOOR.get(words, f"{lifecycle}.{words}")
        if key in RIGHTS:
            return key, frozenset({Case.ADOPT} if "--adopt" in match[3] else ())
    return "", frozenset()


def team_awaited(line: str) -> str:
    """Return the team that a line's command is for; empty: it names none."""
    match = _TEAM.search(line)
    return "" if match is None else match[1].strip("'")


def asks_ledger(command: str, target: Target) -> bool:
    """Return whether the ledger must add who started the thing, or its state."""
    row = RIGHTS.get(command)
    if row is None:
        return False
    of_request = command.startswith("request.") and command != "request.ask"
    of_somebody = any(right.second in _OF_SOMEBODY for right in row.rights_under(target.cases))
    return of_request or of_somebody or command in _BY_STATE


def _is_objection(hold: str, team: str) -> bool:
    """Return whether it is the team's objection. The rollout lets only its author withdraw it."""
    first = OBJECTION_ID + team
    return hold == first or (hold.startswith(f"{first}-") and hold.removeprefix(f"{first}-").isdecimal())


def _cases(command: str, message: Any) -> frozenset[Case]:
    cases = set[Case]()
    terms = getattr(message, "terms", None)
    if getattr(message, "dry_run", False) or getattr(terms, "dry_run", False):
        cases.add(Case.DRY_RUN)
    elif command == "desk.take_fleet" and str(getattr(terms, "policy", "")):
        cases.add(Case.POLICY)
    if getattr(message, "adopt", False) or getattr(message, "kept", None) is not None:
        cases.add(Case.ADOPT)
    if command == "fleet.abort" and getattr(message, "undo", False):
        cases.add(Case.UNDO)
    hold, team = str(getattr(message, "hold", "")), str(getattr(message, "team", ""))
    if command == "rollout.resolve" and team and _is_objection(hold, team):
        cases.add(Case.OWN_OBJECTION)
    return frozenset(cases)
