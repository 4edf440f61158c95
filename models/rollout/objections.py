"""Objections: one per team and actor, with a limit for each team and for all, and long words cut short.

A rollout carries its holds from run to run, so a person who may object must not be able to make it grow without end.
The archive has every word.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import count

from models.access.command_targets import OBJECTION_ID
from models.lifecycle.holds import Hold, HoldKind
from models.rollout.stages import Stage
from models.rollout.state import Rollout
from models.texts import count_text, shorten

OF_A_TEAM, OF_ALL = 5, 100
"""The most open objections of a team, and of all; a team without one may always make its first."""
WORDS_BYTES = 600
"""Bytes of an objection's reason that its hold keeps."""


def objection_refusal(rollout: Rollout, team: str, actor: str) -> str | None:
    """Explain why the team cannot object once more; None if it can, or if the objection replaces another."""
    standing = [h for h in rollout.holds if h.kind is HoldKind.OBJECTION]
    mine = list(of_team(rollout, team))
    if not mine or any(h.actor == actor for h in mine):
        return None
    person = "an approver" if rollout.ticketed else rollout.owner
    who = f"{', '.join(sorted({h.actor for h in mine}))} can replace their own, or {person} can resolve one"
    if len(mine) >= OF_A_TEAM:
        its = count_text(len(mine), "objection")
        return f"{team} has {its} in {rollout.cluster}, which is the limit: {who}"
    if len(standing) >= OF_ALL:
        every = count_text(len(standing), "objection")
        return f"{rollout.cluster} has {every}, which is the limit, and {team} already has one of them: {who}"
    return None


def objection(rollout: Rollout, team: str, actor: str, reason: str, now: datetime, *, one_each: bool) -> Hold:
    """Return the hold for an objection. `one_each`: it replaces the actor's earlier one for this team."""
    words = shorten(reason, WORDS_BYTES)
    return Hold(
        id=(_id_after if one_each else _lowest_id)(rollout, team, actor, words),
        kind=HoldKind.OBJECTION,
        reason=words,
        actor=actor,
        at=now,
        team=team,
        after_enforced=rollout.stage
        in (Stage.ENFORCED, Stage.MONITORED),  # after a rollback it is in time for the next attempt
    )


def of_team(rollout: Rollout, team: str) -> Iterator[Hold]:
    """Iterate over the open objections of the team."""
    return (h for h in rollout.holds if h.kind is HoldKind.OBJECTION and h.team == team)


def earlier_objections(rollout: Rollout, new: Hold) -> tuple[str, ...]:
    """Return the ids of the objections that the new one replaces."""
    return tuple(h.id for h in of_team(rollout, new.team or "") if h.actor == new.actor)


def _id_after(rollout: Rollout, team: str, actor: str, words: str) -> str:
    """Return a new id for each objection: a resolve on its way must not lift a later one.

    The same words of the same person are the same objection and keep its id.
    """
    first, last = _first_id(team), 0
    for hold in of_team(rollout, team):
        if (hold.actor, shorten(hold.reason, WORDS_BYTES)) == (actor, words):
            return hold.id
        number = hold.id.removeprefix(first).lstrip("-")
        last = max(last, int(number) if number.isdecimal() else 1)
    taken = {h.id for h in rollout.holds}  # even by a team whose name ends with a number
    names = (first if number == 1 else f"{first}-{number}" for number in count(last + 1))
    return next(name for name in names if name not in taken)


def _lowest_id(rollout: Rollout, team: str, actor: str, words: str) -> str:
    """Return the lowest free id, as in runs where each new wording was an objection of its own."""
    standing = {h.id: h for h in rollout.holds}
    for number in range(1, len(standing) + 2):
        name = _first_id(team) if number == 1 else f"{_first_id(team)}-{number}"
        hold = standing.get(name)
        if hold is None:
            return name
        if (hold.team, hold.actor, shorten(hold.reason, WORDS_BYTES)) == (team, actor, words):
            return name
    raise AssertionError("one of the names is free")


def _first_id(team: str) -> str:
    return OBJECTION_ID + team
