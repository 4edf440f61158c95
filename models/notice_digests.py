"""When a notice goes out, and which go together.

Theory of operation. What is to be told to an audience waits in the ledger, each notice in a lane:

    urgent   breaches, rollbacks and what endangers a promise: at once, whatever the audience has chosen
    each     as it comes. A moment is waited for companions, so that forty clusters that begin together are one
             message; and after a few messages within minutes the next ones go together
    digest   once a day, at the installation's hour

All is decided here from what waits and from when the audience was last told; nothing of it is stored, so that no
worker that dies leaves a decision behind. Notice periods run from the sending, and a notice that starts one waits at
most as long as its own period (docs/adr/0046).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import NamedTuple

from models.base import Count, Model, Name, Time
from models.notices import STARTS_A_CLOCK, Delivery, Notice, NoticeKind, Notify

MOST_TOGETHER = 200
"""Notices of one message: more would not be read, and some channels cut what is longer."""
_URGENT = frozenset({NoticeKind.BREACH, NoticeKind.ROLLED_BACK, NoticeKind.STUCK, NoticeKind.EMERGENCY})
_TAKES_EFFECT = frozenset({NoticeKind.BUFFERED, NoticeKind.ENFORCED})
_PLANNED = ("", "planned")
"""Stages of a rollout that holds no promise yet."""


class Lane(StrEnum):
    URGENT = "urgent"
    EACH = "each"
    DIGEST = "digest"


class MailPace(Model):
    """How fast an audience may be told."""

    digest_at: time = time(8, 0)
    """The hour of digests, UTC."""
    moment: timedelta = timedelta(seconds=10)
    """So long nothing must have come before a message goes."""
    longest_moment: timedelta = timedelta(seconds=60)
    """Whatever comes."""
    most: Count = 3
    """Messages of a window that go as they come."""
    window: timedelta = timedelta(minutes=10)
    urgent_pause: timedelta = timedelta(minutes=1)
    """Between urgent messages, from as many on."""


class Told(NamedTuple):
    """A message that has been formed. `urgent`: for urgent news, whatever else went with it."""

    at: datetime
    urgent: bool


class Posted(Model):
    """A notice that waits to be sent."""

    notice: Notice
    posted_at: Time
    lane: Lane


def lane_of(notice: Notice, notify: Notify) -> Lane | None:
    """Where it waits; None: this audience does not want to be told of it."""
    if is_urgent(notice):
        return Lane.URGENT
    return {Notify.EACH: Lane.EACH, Notify.DIGEST: Lane.DIGEST, Notify.BREACH_ONLY: None}[notify]


def is_urgent(notice: Notice) -> bool:
    """A breach, a rollback, or a rollout that cannot go on while quotas of its making stand."""
    return notice.kind in _URGENT or (notice.kind is NoticeKind.HELD and notice.stage not in _PLANNED)


def overtake_lane(notice: Notice, lane: Lane, waiting: Iterable[Notice]) -> Lane:
    """Its lane beside what waits: a cut that takes effect before its audience was told of it is told at once."""
    untold = any(w.cluster == notice.cluster and w.kind in STARTS_A_CLOCK for w in waiting)
    return Lane.URGENT if untold and notice.kind in _TAKES_EFFECT else lane


def next_digest(after: datetime, pace: MailPace) -> datetime:
    """The first hour of digests after a time."""
    at = datetime.combine(after.astimezone(UTC).date(), pace.digest_at, UTC)
    return at if at > after else at + timedelta(days=1)


def due_of(posted: Posted, pace: MailPace) -> datetime:
    """When it may go, companions and pace aside. A clock that a notice starts waits no longer than it runs."""
    if posted.lane is not Lane.DIGEST:
        return posted.posted_at
    at = next_digest(posted.posted_at, pace)
    effective = posted.notice.effective_at
    if posted.notice.kind not in STARTS_A_CLOCK or effective is None:
        return at
    return min(at, max(effective, posted.posted_at))


def due_at(waiting: Sequence[Posted], messages: Sequence[Told], pace: MailPace) -> datetime | None:
    """When the audience's next message goes; None where nothing waits. `messages`: its messages so far."""
    times = [_due_in(lane, [w for w in waiting if w.lane is lane], messages, pace) for lane in Lane]
    return min((at for at in times if at is not None), default=None)


def notices_together(
    waiting: Sequence[Posted], messages: Sequence[Told], now: datetime, pace: MailPace
) -> tuple[Posted, ...]:
    """What goes in one message now, the oldest first; empty where nothing does.

    What waits of a cluster goes with urgent news of it: no older news of it may follow.
    """
    lanes = {
        lane: at
        for lane in Lane
        if (at := _due_in(lane, [w for w in waiting if w.lane is lane], messages, pace)) is not None and at <= now
    }
    if not lanes:
        return ()
    clusters = {w.notice.cluster for w in waiting if w.lane is Lane.URGENT and Lane.URGENT in lanes}
    if Lane.URGENT in lanes:
        lanes = {Lane.URGENT: lanes[Lane.URGENT]}
    going = [w for w in waiting if w.lane in lanes or w.notice.cluster in clusters]
    return tuple(sorted(going, key=lambda w: (w.posted_at, w.notice.key))[:MOST_TOGETHER])


def _due_in(lane: Lane, waiting: Sequence[Posted], messages: Sequence[Told], pace: MailPace) -> datetime | None:
    if not waiting:
        return None
    first = min(w.posted_at for w in waiting)
    # Ordinary mail never makes urgent news wait.
    told_at = [message.at for message in messages if message.urgent or lane is not Lane.URGENT]
    if lane is Lane.URGENT:
        return _paced(first, told_at, pace, pace.urgent_pause)
    if lane is Lane.EACH:
        return min([_paced(_quiet(waiting, pace), told_at, pace, None), *(_at_most(w, pace) for w in waiting)])
    at = min(due_of(w, pace) for w in waiting)
    if any(due_of(w, pace) == at == next_digest(w.posted_at, pace) for w in waiting):
        return _paced(at, told_at, pace, pace.urgent_pause)
    short = [w for w in waiting if due_of(w, pace) < next_digest(w.posted_at, pace)]
    return min([_paced(max(at, _quiet(short, pace)), told_at, pace, None), *(_at_most(w, pace) for w in short)])


def _at_most(posted: Posted, pace: MailPace) -> datetime:
    """Until then it waits for others at most: a gate is shut until a notice that starts its clock has gone.

    As long as that clock runs, and where it does not run at all as urgent news waits for its like.
    """
    notice = posted.notice
    if notice.kind not in STARTS_A_CLOCK or notice.effective_at is None:
        return posted.posted_at + pace.longest_moment + pace.window
    return max(notice.effective_at, posted.posted_at + max(pace.urgent_pause, pace.longest_moment))


def _quiet(waiting: Sequence[Posted], pace: MailPace) -> datetime:
    """When nothing more has come for a moment, or the longest moment is over."""
    times = [w.posted_at for w in waiting]
    return min(max(times) + pace.moment, min(times) + pace.longest_moment)


def _paced(at: datetime, told_at: Sequence[datetime], pace: MailPace, pause: timedelta | None) -> datetime:
    """Not before then; where too many messages have gone, after a pause, or once the first is out of the window."""
    lately = sorted(moment for moment in told_at if at - moment < pace.window)
    if len(lately) < pace.most:
        return at
    return max(at, lately[-1] + pause if pause is not None else lately[-pace.most] + pace.window)


def restate_notices(going: Sequence[Posted], sent_at: datetime) -> tuple[Notice, ...]:
    """As they are true when they are sent together: a period that runs from the sending ends by as much later.

    One that a later notice has made past starts no period any more.
    """
    past = superseded_keys([posted.notice for posted in going])
    return tuple(_restated(posted, sent_at, past=posted.notice.key in past) for posted in going)


def _restated(posted: Posted, sent_at: datetime, *, past: bool) -> Notice:
    notice = posted.notice
    if notice.kind not in STARTS_A_CLOCK or notice.effective_at is None:
        return notice
    later = None if past else notice.effective_at + (sent_at - posted.posted_at)
    return notice.model_copy(update={"effective_at": later})


def subject_of(notice: Notice) -> str:
    """What it is about: a rollout, a request, a fleet rollout. Keys begin with it."""
    return notice.key.rsplit("/", 2)[0]


def superseded_keys(notices: Sequence[Notice]) -> frozenset[str]:
    """Keys of those that a later notice about the same has made past, of notices in the order of their posting."""
    later: dict[str, set[NoticeKind]] = {}
    past = set()
    for notice in reversed(notices):
        kinds = later.setdefault(subject_of(notice), set())
        if any(_makes_past(kind, notice) for kind in kinds):
            past.add(notice.key)
        kinds.add(notice.kind)
    return frozenset(past)


def _makes_past(later: NoticeKind, notice: Notice) -> bool:
    """A hold stands beside what was so before it, another hold too; so does a risk, but beside an earlier risk."""
    if later is NoticeKind.AT_RISK:
        return notice.kind is NoticeKind.AT_RISK
    if notice.kind is NoticeKind.HELD and notice.facts.get("late"):  # no gate waits for its answer
        return later in (NoticeKind.ROLLED_BACK, NoticeKind.CLOSED)
    return later is not NoticeKind.HELD


def still_asks(notices: Sequence[Notice]) -> frozenset[str]:
    """Keys of those that want an answer, and that no later one has made past."""
    return frozenset(n.key for n in notices if asks(n)) - superseded_keys(notices)


def asks(notice: Notice) -> bool:
    """Whether its reader has something to answer."""
    if notice.facts.get("ends"):
        return False
    if notice.kind is NoticeKind.HELD:
        return not notice.facts.get("goes_on")
    if notice.kind is NoticeKind.REQUEST:
        return bool(notice.facts.get("to_owner"))
    if notice.kind is NoticeKind.BRINGUP:
        return bool(notice.facts.get("commands"))
    return notice.kind in {*STARTS_A_CLOCK, NoticeKind.STUCK, NoticeKind.FLEET_HELD}


class Untold(Model):
    """What waits for one audience, for people to see."""

    audience: str
    notices: Count
    since: Time
    due: Time
    digest: bool
    """It waits for its digest."""
    trouble: str = ""
    """Why a message that was due did not go; empty: none was due."""
    remedy: str = ""
    """What to do about that, where it is not the contact."""


class Letter(Model):
    """Notices to one audience that go together. What it holds never changes, so that it can be sent again."""

    key: str
    audience: Name
    formed_at: Time
    notices: tuple[Notice, ...]
    posted_at: dict[str, Time]
    """By the notice's key."""


class Fate(Model):
    """What became of a notice that was posted: sent, refused, tried in vain, or still waiting."""

    sent_at: Time | None = None
    refused: str = ""
    """Why its contacts cannot be used."""
    trouble: str = ""
    """Why it is tried again; empty: it is not its turn yet."""
    deliveries: tuple[Delivery, ...] = ()
    due: Time
