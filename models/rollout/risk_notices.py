"""Notices of risk: a team is notified when hardware behind its quota goes missing, and once when it is back.

One episode lasts from the first shortage until health has been good for `clear_after`. It is told once at each end,
however often it flaps in between. A breach and a rollback have notices of their own. Source: docs/design.md, "Guard and
rollback".
"""

from __future__ import annotations

from datetime import datetime

from models.cluster.windows import active
from models.notices import NoticeKind
from models.rollout.state import Rollout


def news_of_risk(rollout: Rollout, now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the teams to notify that their quota is at risk, and those to notify that it is backed again."""
    if not rollout.stage.is_guarded:
        return (), ()
    short = rollout.at_risk
    risen = tuple(sorted(short.keys() - {*rollout.warned, *rollout.breach_of}))
    good_since = rollout.clocks.all_good_since
    settled = good_since is None or now - good_since >= rollout.policy.clear_after
    over = tuple(t for t in rollout.warned if settled and t not in short and t not in rollout.clocks.by_team)
    return risen, over


def warn_teams(rollout: Rollout, now: datetime) -> Rollout:
    """Queue the notices of new and ended risks."""
    risen, over = news_of_risk(rollout, now)
    seen = rollout.seen
    explained = set() if seen is None else seen.shortage.keys() - seen.counted.keys()
    ends = [w.ends for w in active(() if seen is None else seen.windows, now)]
    after = rollout.but(warned=tuple(sorted({*rollout.warned, *risen} - {*over})))
    for team in risen:
        facts = {"until": max(ends).isoformat()} if team in explained and ends else {}
        after = after.notify(NoticeKind.AT_RISK, [team], facts=facts)
    return after.notify(NoticeKind.AT_RISK, over) if over else after
