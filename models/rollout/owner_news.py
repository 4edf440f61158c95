"""News for the owner of a rollout: a breach, a rollback, an objection, a pause, missing health, a blast radius.

Each is told once while it lasts. A realignment outside the envelope, a drift and spent attempts are told where they
happen; this module tells what follows from commands or time, or what happens to many rollouts at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from models.audit_chain import BACKSTOP
from models.cluster.policy import RollbackTo
from models.lifecycle.holds import Hold, HoldKind
from models.notices import NoticeKind
from models.rollout.gates import holds_standing
from models.rollout.stages import Stage
from models.rollout.state import Rollout, UndoCause
from models.texts import count_text

_MOST = 20
"""The most quotas of a rollback that a notice to the owner lists."""
_GUARD = "guard"


class News(NamedTuple):
    """A piece of news. `mark`: identifies it among those already told."""

    mark: str
    kind: NoticeKind
    detail: str
    facts: dict[str, Any] = {}  # noqa: RUF012 - never written to


def news_for_owner(rollout: Rollout, now: datetime) -> tuple[News, ...]:
    """Return the news that is current and has not been told."""
    return tuple(n for n in _standing_news(rollout, now) if n.mark not in rollout.post.owner_told)


def rollback_for_owner(rollout: Rollout) -> tuple[News, ...]:
    """Return the news of a completed rollback that has not been told."""
    return tuple(n for n in _rollback_news(rollout) if n.mark not in rollout.post.owner_told)


def tell_owner(rollout: Rollout, pieces: Iterable[News]) -> Rollout:
    """Queue a notice for each piece of news, and mark it as told."""
    for news in pieces:
        rollout = rollout.notify(news.kind, [rollout.owner], detail=news.detail, facts=news.facts)
        rollout = rollout.but(post=rollout.post.but(owner_told=(*rollout.post.owner_told, news.mark)))
    return rollout


def forget_news(rollout: Rollout, now: datetime) -> Rollout:
    """Forget the news that is no longer current, so that it is told again when it comes back."""
    if not rollout.post.owner_told:
        return rollout
    standing = {n.mark for n in (*_standing_news(rollout, now), *_rollback_news(rollout))}
    left = tuple(mark for mark in rollout.post.owner_told if mark in standing)
    return rollout if left == rollout.post.owner_told else rollout.but(post=rollout.post.but(owner_told=left))


def _rollback_news(rollout: Rollout) -> Iterator[News]:
    """Yield the outcome of a rollback by quota, with the reason if a breach caused it."""
    if rollout.undo is None or rollout.stage not in (Stage.ROLLED_BACK, Stage.ABORTED):
        return
    undo, leaves = rollout.undo, rollout.baseline.tree.leaves
    moved = {team: (undo.was.get(team), rollout.written.get(team)) for team in sorted(leaves)}
    left = [
        f"{team}: {old:,} -> {new:,}{f' ({reason})' if (reason := rollout.why_set_back(team)) else ''}"
        for team, (old, new) in moved.items()
        if old is not None and new is not None
    ]
    hidden = len(left) - _MOST
    more = (
        [f"and {count_text(hidden, 'more quota')}: backstop audit {shlex.quote(rollout.cluster)}"] if hidden > 0 else []
    )
    facts = {
        "to_owner": True,
        "left": [*left[:_MOST], *more],
        "breach": undo.why is UndoCause.BREACH and rollout.policy.rollback_to is RollbackTo.BACKED,
    }
    text = undo.reason if undo.actor in (BACKSTOP, _GUARD) else f"{undo.actor} asked for it: {undo.reason}"
    yield News(f"rolled back {undo.at.isoformat()}", NoticeKind.ROLLED_BACK, text, facts)


def _standing_news(rollout: Rollout, now: datetime) -> Iterator[News]:
    if rollout.stage.has_ended:
        return
    if rollout.breach_of:
        lacks = rollout.clocks.lacks(rollout.breach_of)
        back = rollout.stay.aiming or (rollout.stage is Stage.ROLLING_BACK and rollout.answers_breach)
        facts = {"to_owner": True, **({"goes_back": True} if back else {})}
        yield News(f"breach {' '.join(rollout.breach_of)}", NoticeKind.BREACH, lacks, facts)
    for hold in holds_standing(rollout, now):
        text = _text(hold, rollout.owner)
        if text:  # missing health has a new time with each look
            mark = hold.id if hold.kind is HoldKind.UNKNOWN_HEALTH else f"{hold.id} {hold.at.isoformat()}"
            yield News(mark, NoticeKind.HELD, text, _hold_facts(hold))


def _text(hold: Hold, owner: str) -> str:
    """Return the text about a hold; empty if its start or the calendar tells it, or the owner made it."""
    match hold.kind:
        case HoldKind.PAUSED:
            return "" if hold.actor == owner else f"{hold.actor} paused it: {hold.reason}"
        case HoldKind.OBJECTION:
            return f"{hold.team} objects, by {hold.actor}: {hold.reason}"
        case HoldKind.UNKNOWN_HEALTH:
            return hold.reason
        case HoldKind.BLAST_RADIUS if hold.until is not None:
            return hold.reason
        case _:
            return ""


def _hold_facts(hold: Hold) -> dict[str, Any]:
    """Return the facts about a hold that waits for no person, or about an objection that holds nothing."""
    if hold.after_enforced:
        return {"late": True}
    if hold.kind is HoldKind.UNKNOWN_HEALTH:
        return {"goes_on": "once there is health to believe"}
    return {} if hold.until is None else {"goes_on": f"at {hold.until:%Y-%m-%d %H:%MZ}"}
