"""Notifies teams: notices rendered from templates, delivered once per key.

Theory of operation. All notices of a call are written into the log first, together. Those for people go into the
outbox, from which each is sent alone or with others (models/notice_digests.py); the call sends what is due, and returns
when the rest will be sent.

A receiver may let us wait until its delivery's time is over, and a team may have many of that kind. So each audience of
a call has a postman from a pool that all calls share. The next one sets out when the one before is back, so that
notices keep their order, or has been away for a moment. No audience has more than a few postmen at a time, and a call
answers in time, whatever they wait for: a notice that is not delivered by then is reported as failed, and is sent
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime
from itertools import groupby

from temporalio import activity

from activities import metrics as meters
from activities.failures import translate_errors
from activities.notices.rendering import render
from activities.notices.sending import Sender
from activities.ports.notices import NotifyPort, OutboxPort
from activities.ports.registry import ClustersPort
from models.errors import BackstopError, Unavailable
from models.notice_digests import Fate, Lane, lane_of
from models.notices import Delivery, Notice, Notify
from models.temporal_names import RoundInput, TellAnswer, TellRequest

logger = logging.getLogger("backstop.notices")
_POSTMEN = 32
_OF_ONE_AUDIENCE = 2
_MOMENT_SECONDS = 0.3
_TURN_SECONDS = 1.0
"""Seconds that a postman waits until the audience has fewer postmen than it may."""
_CALL_SECONDS = 60.0
_LINES = 20
"""The most notices written to the log together; each one is a file, locked meanwhile."""
_LATE = "an earlier attempt is still sending the notice; Backstop checks again soon"


class NoticeActivities:
    def __init__(self, notify: NotifyPort, clusters: ClustersPort, outbox: OutboxPort, sender: Sender) -> None:
        self._notify = notify
        self._clusters = clusters
        self._outbox = outbox
        self._sender = sender
        self._postmen = ThreadPoolExecutor(_POSTMEN, "postman")
        self._busy = _Busy()

    @activity.defn(name="tell", no_thread_cancel_exception=True)
    def tell(self, request: TellRequest) -> TellAnswer:
        """Write every notice to the log and, if its audience has other channels, bring it on its way.

        What is due is tried at once. Failed notices are named, so that the rest is not sent again; waiting ones are
        named with their time.
        """
        with translate_errors():
            wishes = self._outbox.wishes(sorted({notice.audience for notice in request.notices}))
            # Few teams choose; a call that goes to no person has no use for it.
            asked = any(contacts and choice is None for contacts, choice in wishes.values())
            usual = self._usual(request.cluster) if asked else Notify.EACH
        ends = time.monotonic() + _CALL_SECONDS
        rounds = [_Round(tuple(notices)) for _, notices in groupby(request.notices, key=lambda n: n.audience)]
        # With the call's context: log records name the call.
        _await([self._postmen.submit(copy_context().run, self._write_log, rounds, ends)], ends)
        away = []
        for each in rounds:
            contacts, choice = wishes.get(each.audience, ((), None))
            if posts := each.posts(contacts, usual if choice is None else choice):
                away.append(self._postmen.submit(copy_context().run, self._go, each, posts))
                wait(away[-1:], timeout=_MOMENT_SECONDS)
        _await(away, ends)
        answers = [each.answer() for each in rounds]
        return TellAnswer(
            delivered={key: to for answer in answers for key, to in answer.delivered.items()},
            failed={key: why for answer in answers for key, why in answer.failed.items()},
            refused={key: why for answer in answers for key, why in answer.refused.items()},
            waiting={key: due for answer in answers for key, due in answer.waiting.items()},
            noted=tuple(sorted({key for each in rounds for key in each.noted})),
        )

    @activity.defn(name="send_due", no_thread_cancel_exception=True)
    def send_due(self, request: RoundInput) -> None:
        """Send the due notices of one audience, or leave them to be tried again later."""
        with translate_errors():
            if trouble := self._sender.send(request.audience):
                logger.warning("tried again later: %s", trouble)

    def _usual(self, cluster: str) -> Notify:
        """Return the notification of the cluster's teams that have not chosen one themselves."""
        try:
            return self._clusters.facts(cluster).policy.notify
        except Unavailable:
            raise
        except BackstopError:  # no cluster, or a senseless policy, must not make anybody miss a notice
            return Notify.EACH

    def _write_log(self, rounds: Sequence[_Round], ends: float) -> None:
        """Write all notices into the log, several at a time: a sync takes as long for one."""
        lines: list[tuple[_Round, tuple[Notice, str, str]]] = []
        for each in rounds:
            for notice in each.notices:
                with each.trying([notice.key]):
                    lines.append((each, (notice.but(contacts=()), *render(notice))))
        for some in (lines[n : n + _LINES] for n in range(0, len(lines), _LINES)):
            if time.monotonic() >= ends:
                break
            try:
                for (each, _), delivery in zip(some, self._notify.write_log([line for _, line in some]), strict=True):
                    each.logged[delivery.key] = delivery
            except Exception as error:
                for each, (notice, _, _) in some:
                    each.fail([notice.key], error)

    def _go(self, round_: _Round, posts: Sequence[tuple[Notice, Lane]]) -> None:
        """Put one audience's notices into the outbox, and send what is due."""
        keys = [notice.key for notice, _ in posts]
        first = {notice.key: lane for notice, lane in posts if not round_.logged[notice.key].repeated}
        with round_.trying(keys), self._busy.one_of(round_.audience):
            self._outbox.post(round_.audience, posts)
            self._sender.send(round_.audience, keys)
            round_.noted |= self._sender.noted_keys(keys)
            for key, fate in self._outbox.fates(round_.audience, keys, self._sender.pace).items():
                round_.take_in(key, fate)
                if key in round_.waiting and key in first:  # it may be asked after again
                    meters.held_back.add(1, {"lane": first[key].value})


def _is_leaving() -> bool:
    """Return whether the worker is stopping, and must not be held up by a receiver that drips."""
    return activity.in_activity() and activity.is_worker_shutdown()


def _await(away: Sequence[Future[None]], ends: float) -> None:
    """Wait until all are back, the time is over, or the worker stops."""
    while time.monotonic() < ends and not _is_leaving() and wait(away, timeout=_MOMENT_SECONDS).not_done:
        pass


class _Round:
    """The notices that one postman brings to one audience, and their fate so far."""

    def __init__(self, notices: tuple[Notice, ...]) -> None:
        self.notices = notices
        self.audience = notices[0].audience
        self.delivered: dict[str, tuple[Delivery, ...]] = {}
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.waiting: dict[str, datetime] = {}
        self.noted: set[str] = set()
        self.logged: dict[str, Delivery] = {}
        self.bug: Exception | None = None

    def posts(self, contacts: Sequence[str], notify: Notify) -> list[tuple[Notice, Lane]]:
        """Return the logged notices that go to people, each with its lane; the others are delivered."""
        posts: list[tuple[Notice, Lane]] = []
        for notice in self.notices:
            if notice.key not in self.logged:
                continue
            lane = lane_of(notice, notify)
            # A rehearsal is written to the log and troubles nobody else (ADR 0002).
            if notice.shadow or not contacts or lane is None:
                self.delivered[notice.key] = (self.logged[notice.key],)
            else:
                posts.append((notice, lane))
        return posts

    @contextmanager
    def trying(self, keys: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.fail(keys, error)

    def fail(self, keys: Sequence[str], error: Exception) -> None:
        """Note why these notices were not sent."""
        if isinstance(error, Unavailable):
            self.failed.update(dict.fromkeys(keys, error.message))
        elif isinstance(error, BackstopError):
            self.refused.update(dict.fromkeys(keys, error.message))
        else:  # a bug of ours ends the call, as it always has
            self.bug = error

    def take_in(self, key: str, fate: Fate) -> None:
        """Note the fate of a notice that was posted."""
        if fate.sent_at is not None:
            self.delivered[key] = fate.deliveries
        elif fate.refused:
            self.refused[key] = fate.refused
        elif fate.trouble:
            self.failed[key] = fate.trouble
        else:
            self.waiting[key] = fate.due

    def answer(self) -> TellAnswer:
        """Return the present state: notices on their way may arrive yet, and are then in the book."""
        if self.bug is not None:
            raise self.bug
        delivered, failed, refused = dict(self.delivered), dict(self.failed), dict(self.refused)
        waiting = dict(self.waiting)
        keys = delivered.keys() | failed.keys() | refused.keys() | waiting.keys()
        failed |= {notice.key: _LATE for notice in self.notices if notice.key not in keys}
        return TellAnswer(delivered=delivered, failed=failed, refused=refused, waiting=waiting)


class _Busy:
    """Counts the postmen with each audience."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def one_of(self, audience: str) -> Iterator[None]:
        """Be one of the audience's postmen within. Errors: Unavailable if the audience has as many as it may."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._counts[audience] < _OF_ONE_AUDIENCE, _TURN_SECONDS):
                raise Unavailable(f"other notices are being sent to {audience}: this one follows")
            self._counts[audience] += 1
        try:
            yield
        finally:
            with self._changed:
                self._counts[audience] -= 1
                if not self._counts[audience]:
                    del self._counts[audience]
                self._changed.notify_all()
