"""The conditions that a promote does not waive, in the words shown before it and in its answer.

A promote waives the notice period of teams and their answers. So the person who gives it reads whether any team was
notified at all, and who objects: an objection still holds the gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from models.base import duration_text
from models.lifecycle.holds import Hold, HoldKind
from models.rollout.gates import conditions, gate_of, holds_now
from models.rollout.mailing import newly_cut
from models.rollout.stages import Stage
from models.rollout.state import Rollout
from models.texts import shorten, some_of

WAIVED = "the rest of this gate's notice, soak and acknowledgements is waived, and nothing else"
_NAMED, _WORDS_BYTES = 3, 200
_LEFT_OUT = ("holds", "drift")
"""Conditions without a text here: holds are listed one by one; a drift is a hold too, or the next look settles it."""


def promotion_text(rollout: Rollout, now: datetime) -> str:
    """Return the answer to a promote."""
    return "; ".join((WAIVED, *unwaived_conditions(rollout, now)))


def unwaived_conditions(rollout: Rollout, now: datetime) -> tuple[str, ...]:
    """Return teams not notified, objections and other reasons the gate stays shut; alike before and after a promote."""
    if gate_of(rollout.stage) is None:
        return ()
    return (*_unnotified_teams(rollout), *_objections(rollout, now), *_other_holds(rollout, now))


def _unnotified_teams(rollout: Rollout) -> Iterator[str]:
    """Yield the teams that a promote at the first gate leaves without notice. A shadow notifies nobody."""
    if rollout.stage is not Stage.PLANNED or rollout.shadow:
        return
    if not rollout.is_approved:
        teams = sorted(newly_cut(rollout, rollout.plan)) if rollout.plan is not None and not rollout.stay.replan else []
        whom = f" ({some_of(teams, _NAMED)})" if teams else ""
        if rollout.plan is None or rollout.stay.replan or teams:
            yield (
                f"the notice of {duration_text(rollout.policy.notice)} has not begun: teams{whom} are notified once a "
                "plan is approved, and from then on their quotas may change at any time"
            )
        yield "if another plan needs approval, the promotion no longer applies"
    elif rollout.announced.undelivered:
        silent = some_of(rollout.announced.undelivered, _NAMED, by="; ")
        yield f"these teams could not be notified, and their quotas may change: {silent}"
    elif rollout.announced.delivered_at is None and (cut := _teams_in_mail(rollout)):
        length = duration_text(rollout.policy.notice)
        yield (
            f"the notice is not delivered yet, so its {length} have not begun: the quotas of "
            f"{some_of(cut, _NAMED)} may change before those teams are notified"
        )


def _teams_in_mail(rollout: Rollout) -> list[str]:
    """Return the teams whose notice is on its way, or is about to be."""
    ahead = {} if rollout.plan is None else newly_cut(rollout, rollout.plan)
    return sorted({*rollout.announced.cuts, *ahead})


def _objections(rollout: Rollout, now: datetime) -> Iterator[str]:
    standing = [h for h in holds_now(rollout, now) if h.kind is HoldKind.OBJECTION]
    if standing:
        yield f"held until these objections are resolved: {_holds_text(standing)}"
    if late := [h for h in rollout.holds if h.after_enforced]:
        yield f"these objections do not hold the rollout, but wait for an answer: {_holds_text(late)}"


def _other_holds(rollout: Rollout, now: datetime) -> Iterator[str]:
    """Yield the reasons beside objections that keep the gate shut once its wait is waived."""
    holds = [h for h in holds_now(rollout, now) if h.kind is not HoldKind.OBJECTION]
    if holds:
        yield f"held: {_holds_text(holds)}"
    unmet = [c for c in conditions(rollout.with_stay(waived=True), now) if not c.met and c.name not in _LEFT_OUT]
    yield from (c.text for c in unmet)


def _holds_text(holds: Sequence[Hold]) -> str:
    return some_of([_hold_text(h) for h in holds], _NAMED, by="; ")


def _hold_text(hold: Hold) -> str:
    kind = "" if hold.kind is HoldKind.OBJECTION else f"{hold.kind} by "
    own = hold.team in (None, "", hold.actor)
    who = hold.actor if own else f"{hold.team} by {hold.actor}"
    return f'{kind}{who} ("{shorten(hold.reason, _WORDS_BYTES)}")'
