"""The time at which a notice is sent, and the notices that go together.

Theory of operation. Notices to an audience wait in the ledger, each in a lane:

    urgent   breaches, rollbacks and what endangers a promise: at once, whatever the audience has chosen
    each     as it comes. A message waits a moment for companions, so that forty clusters that begin together are one
             message; and after a few messages within minutes the next notices go together
    digest   once a day, at the installation's hour

Everything is decided here from what waits and from the times of the audience's messages; no decision is stored, so
that no worker that dies leaves one behind. Notice periods run from the sending, and a notice that starts one waits at
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
"""The most notices in one message. People would not read more, and some channels cut longer messages."""
_URGENT = frozenset({NoticeKind.BREACH, NoticeKind.ROLLED_BACK, NoticeKind.STUCK, NoticeKind.EMERGENCY})
_TAKES_EFFECT = frozenset({NoticeKind.BUFFERED, NoticeKind.ENFORCED})
_PLANNED = ("", "planned")
"""Stages in which a rollout promises nothing yet."""


class Lane(StrEnum):
    URGENT = "urgent"
    EACH = "each"
    DIGEST = "digest"


class MailPace(Model):
    """The pace at which an audience may get messages."""

    digest_at: time = time(8, 0)
    """The time of day for digests, UTC."""
    moment: timedelta = timedelta(seconds=10)
    """A message is sent once no new notice has come for this long."""
    longest_moment: timedelta = timedelta(seconds=60)
    """The longest time for which a message waits while new notices keep coming."""
    most: Count = 3
    """The number of messages within `window` that are sent without waiting for the next ones."""
    window: timedelta = timedelta(minutes=10)
    urgent_pause: timedelta = timedelta(minutes=1)
    """The pause between urgent messages once there were `most` messages within `window`."""


class Told(NamedTuple):
    """A message that has been formed. `urgent`: it carries urgent news, whatever else went with it."""

    at: datetime
    urgent: bool


class Posted(Model):
    """A notice that waits to be sent."""

    notice: Notice
    posted_at: Time
    lane: Lane


def lane_of(notice: Notice, notify: Notify) -> Lane | None:
    """Return the lane in which a notice waits; None: this audience has chosen not to get it."""
    if is_urgent(notice):
        return Lane.URGENT
    return {Notify.EACH: Lane.EACH, Notify.DIGEST: Lane.DIGEST, Notify.BREACH_ONLY: None}[notify]


def is_urgent(notice: Notice) -> bool:
    """Return whether it is a breach, a rollback, or a rollout that cannot go on while its quotas are in force."""
    return notice.kind in _URGENT or (notice.kind is NoticeKind.HELD and notice.stage not in _PLANNED)


def overtake_lane(notice: Notice, lane: Lane, waiting: Iterable[Notice]) -> Lane:
    """Return its lane beside what waits: a cut that takes effect before its audience was notified is urgent."""
    untold = any(other.cluster == notice.cluster and other.kind in STARTS_A_CLOCK for other in waiting)
    return Lane.URGENT if untold and notice.kind in _TAKES_EFFECT else lane


def next_digest(after: datetime, pace: MailPace) -> datetime:
    """Return the first hour of digests after a time."""
    at = datetime.combine(after.astimezone(UTC).date(), pace.digest_at, UTC)
    return at if at > after else at + timedelta(days=1)


def due_time_of(posted: Posted, pace: MailPace) -> datetime:
    """Return when it may be sent, companions and pace aside. It waits no longer than the clock that it starts."""
    if posted.lane is not Lane.DIGEST:
        return posted.posted_at
    at = next_digest(posted.posted_at, pace)
    effective = posted.notice.effective_at
    if posted.notice.kind not in STARTS_A_CLOCK or effective is None:
        return at
    return min(at, max(effective, posted.posted_at))


def next_message_time(waiting: Sequence[Posted], messages: Sequence[Told], pace: MailPace) -> datetime | None:
    """Return when the audience's next message is due; None where nothing waits. `messages`: its messages so far."""
    return min(_message_time_by_lane(waiting, messages, pace).values(), default=None)


def notices_together(
    waiting: Sequence[Posted], messages: Sequence[Told], now: datetime, pace: MailPace
) -> tuple[Posted, ...]:
    """Return the notices to send in one message now, the oldest first; empty if none is due.

    All waiting notices of a cluster go with urgent news of it: no older news of it may follow.
    """
    due = {lane for lane, at in _message_time_by_lane(waiting, messages, pace).items() if at <= now}
    clusters = set[str]()
    if Lane.URGENT in due:
        due = {Lane.URGENT}
        clusters = {posted.notice.cluster for posted in waiting if posted.lane is Lane.URGENT}
    going = [posted for posted in waiting if posted.lane in due or posted.notice.cluster in clusters]
    return tuple(sorted(going, key=lambda w: (w.posted_at, w.notice.key))[:MOST_TOGETHER])


def _message_time_by_lane(waiting: Sequence[Posted], messages: Sequence[Told], pace: MailPace) -> dict[Lane, datetime]:
    due = {}
    for lane in Lane:
        at = _lane_message_time(lane, [posted for posted in waiting if posted.lane is lane], messages, pace)
        if at is not None:
            due[lane] = at
    return due


def _lane_message_time(
    lane: Lane, waiting: Sequence[Posted], messages: Sequence[Told], pace: MailPace
) -> datetime | None:
    if not waiting:
        return None
    first = min(posted.posted_at for posted in waiting)
    # Ordinary mail never makes urgent news wait.
    told_at = [message.at for message in messages if message.urgent or lane is not Lane.URGENT]
    if lane is Lane.URGENT:
        return _keep_pace(first, told_at, pace, pace.urgent_pause)
    if lane is Lane.EACH:
        paced = _keep_pace(_moment_over(waiting, pace), told_at, pace, None)
        return min([paced, *(_latest(posted, pace) for posted in waiting)])
    at = min(due_time_of(posted, pace) for posted in waiting)
    if any(due_time_of(posted, pace) == at == next_digest(posted.posted_at, pace) for posted in waiting):
        return _keep_pace(at, told_at, pace, pace.urgent_pause)
    short = [posted for posted in waiting if due_time_of(posted, pace) < next_digest(posted.posted_at, pace)]
    paced = _keep_pace(max(at, _moment_over(short, pace)), told_at, pace, None)
    return min([paced, *(_latest(posted, pace) for posted in short)])


def _latest(posted: Posted, pace: MailPace) -> datetime:
    """Return until when it waits for others at most: a gate is shut until the notice that starts its clock has gone.

    That is as long as its clock runs, and without a clock as long as urgent news waits for other urgent news.
    """
    notice = posted.notice
    if notice.kind not in STARTS_A_CLOCK or notice.effective_at is None:
        return posted.posted_at + pace.longest_moment + pace.window
    return max(notice.effective_at, posted.posted_at + max(pace.urgent_pause, pace.longest_moment))


def _moment_over(waiting: Sequence[Posted], pace: MailPace) -> datetime:
    """Return when nothing more has come for a moment, or the longest moment is over."""
    times = [posted.posted_at for posted in waiting]
    return min(max(times) + pace.moment, min(times) + pace.longest_moment)


def _keep_pace(at: datetime, told_at: Sequence[datetime], pace: MailPace, pause: timedelta | None) -> datetime:
    """Return the earliest time from `at` on at the pace: after a pause, or as the first message leaves the window."""
    lately = sorted(moment for moment in told_at if at - moment < pace.window)
    if len(lately) < pace.most:
        return at
    return max(at, lately[-1] + pause if pause is not None else lately[-pace.most] + pace.window)


def restate_notices(going: Sequence[Posted], sent_at: datetime) -> tuple[Notice, ...]:
    """Return the notices as they are true when sent together: a period that starts with the sending ends later.

    A notice that a later one has superseded starts no period.
    """
    past = superseded_keys([posted.notice for posted in going])
    return tuple(_restate(posted, sent_at, past=posted.notice.key in past) for posted in going)


def _restate(posted: Posted, sent_at: datetime, *, past: bool) -> Notice:
    notice = posted.notice
    if notice.kind not in STARTS_A_CLOCK or notice.effective_at is None:
        return notice
    later = None if past else notice.effective_at + (sent_at - posted.posted_at)
    return notice.model_copy(update={"effective_at": later})


def subject_of(notice: Notice) -> str:
    """Return what a notice is about: a rollout, a request, a fleet rollout. Keys begin with it."""
    return notice.key.rsplit("/", 2)[0]


def superseded_keys(notices: Sequence[Notice]) -> frozenset[str]:
    """Return the keys of notices that a later one on the same subject has superseded, given in posting order."""
    later: dict[str, set[NoticeKind]] = {}
    past = set()
    for notice in reversed(notices):
        kinds = later.setdefault(subject_of(notice), set())
        if any(_is_superseded_by(kind, notice) for kind in kinds):
            past.add(notice.key)
        kinds.add(notice.kind)
    return frozenset(past)


def _is_superseded_by(later: NoticeKind, notice: Notice) -> bool:
    """Return whether a later kind supersedes the notice: a hold does not, and a risk only an earlier risk."""
    if later is NoticeKind.AT_RISK:
        return notice.kind is NoticeKind.AT_RISK
    if notice.kind is NoticeKind.HELD and notice.facts.get("late"):  # no gate waits for its answer
        return later in (NoticeKind.ROLLED_BACK, NoticeKind.CLOSED)
    return later is not NoticeKind.HELD


def still_asks(notices: Sequence[Notice]) -> frozenset[str]:
    """Return the keys of notices that want an answer and that no later one has superseded."""
    return frozenset(notice.key for notice in notices if asks(notice)) - superseded_keys(notices)


def asks(notice: Notice) -> bool:
    """Return whether its reader has something to answer."""
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
    """The notices that wait for one audience, for people to see."""

    audience: str
    notices: Count
    since: Time
    due: Time
    digest: bool
    """True: they wait for the daily digest."""
    trouble: str = ""
    """Why a message that was due was not sent; empty: none was due."""
    remedy: str = ""
    """The remedy; empty: the trouble is with the contact, or there is none."""


class Letter(Model):
    """Notices to one audience that go together. Its content never changes, so that it can be sent again."""

    key: str
    audience: Name
    formed_at: Time
    notices: tuple[Notice, ...]
    posted_at: dict[str, Time]
    """The time at which each notice was posted, by its key."""


class Fate(Model):
    """The state of a posted notice: sent, refused, tried in vain, or still waiting."""

    sent_at: Time | None = None
    refused: str = ""
    """Why its contacts cannot be used; empty: they can."""
    trouble: str = ""
    """Why its message was formed but not sent yet; empty: it was sent or refused, or it is not due."""
    deliveries: tuple[Delivery, ...] = ()
    due: Time
