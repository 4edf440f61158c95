"""Telling teams: rendered from templates, delivered once per key.

Theory of operation. A receiver may let us wait until its delivery's time is over, and a team may have many of that
kind. So each audience of a call is told by a postman of a pool that all calls share. The next one sets out when the one
before is back, so that notices stand in their order, or has been away for a moment. No audience has more than a few
postmen at a time, and a call answers in time, whatever they wait for: what is not delivered by then is named as failed,
and is sent again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from itertools import groupby

from temporalio import activity

from activities.failures import translated
from activities.ports import ClustersPort, NotifyPort
from activities.rendering import render
from models.errors import BackstopError, Unavailable
from models.notices import Delivery, Notice
from models.wire import TellAnswer, TellRequest

_POSTMEN = 32
_OF_ONE_AUDIENCE = 2
_MOMENT_SECONDS = 0.3
_TURN_SECONDS = 1.0
"""How long a postman waits until the audience has one fewer."""
_CALL_SECONDS = 60.0
_LATE = "it is still on its way: it is tried again"


class NoticeActivities:
    def __init__(self, notify: NotifyPort, clusters: ClustersPort) -> None:
        self._notify = notify
        self._clusters = clusters
        self._postmen = ThreadPoolExecutor(_POSTMEN, "postman")
        self._busy = _Busy()

    @activity.defn(name="tell", no_thread_cancel_exception=True)
    def tell(self, request: TellRequest) -> TellAnswer:
        """Every notice is tried; what failed is named, so that the rest is not sent again."""
        with translated():
            contacts = self._clusters.contacts(request.cluster)
        ends = time.monotonic() + _CALL_SECONDS
        rounds = [_Round(tuple(notices)) for _, notices in groupby(request.notices, key=lambda n: n.audience)]
        away = []
        for each in rounds:
            # With the call's context: whoever logs says of which call it is.
            away.append(self._postmen.submit(copy_context().run, self._go, each, contacts, ends))
            wait(away[-1:], timeout=_MOMENT_SECONDS)
        while time.monotonic() < ends and not _leaving() and wait(away, timeout=_MOMENT_SECONDS).not_done:
            pass
        answers = [each.answer() for each in rounds]
        return TellAnswer(
            delivered={key: to for answer in answers for key, to in answer.delivered.items()},
            failed={key: why for answer in answers for key, why in answer.failed.items()},
            refused={key: why for answer in answers for key, why in answer.refused.items()},
        )

    def _go(self, round_: _Round, contacts: Mapping[str, Sequence[str]], ends: float) -> None:
        """One audience is told, its notices in their order."""
        for notice in round_.notices:
            if time.monotonic() >= ends:
                return
            # A rehearsal is written to the log and troubles nobody else (ADR 0002).
            to = () if notice.shadow else tuple(contacts.get(notice.audience, ()))
            addressed = notice.model_copy(update={"contacts": to})
            try:
                with self._busy.one_of(notice.audience):
                    subject, body = render(addressed)
                    round_.delivered[notice.key] = self._notify.deliver(addressed, subject, body)
            except Unavailable as error:
                round_.failed[notice.key] = error.message
            except BackstopError as error:
                round_.refused[notice.key] = error.message
            except Exception as error:  # a bug of ours ends the call, as it always has
                round_.bug = error
                return


def _leaving() -> bool:
    """The worker is stopping, and must not be held up by a receiver that drips."""
    return activity.in_activity() and activity.is_worker_shutdown()


class _Round:
    """What one postman has to bring to one audience, and what became of it so far."""

    def __init__(self, notices: tuple[Notice, ...]) -> None:
        self.notices = notices
        self.delivered: dict[str, tuple[Delivery, ...]] = {}
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.bug: Exception | None = None

    def answer(self) -> TellAnswer:
        """As it is now: what is on its way may arrive yet, and is then found in the book."""
        if self.bug is not None:
            raise self.bug
        delivered, failed, refused = dict(self.delivered), dict(self.failed), dict(self.refused)
        known = delivered.keys() | failed.keys() | refused.keys()
        failed |= {notice.key: _LATE for notice in self.notices if notice.key not in known}
        return TellAnswer(delivered=delivered, failed=failed, refused=refused)


class _Busy:
    """How many postmen are with each audience."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def one_of(self, audience: str) -> Iterator[None]:
        """Errors: Unavailable where the audience keeps as many busy as it may."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._counts[audience] < _OF_ONE_AUDIENCE, _TURN_SECONDS):
                raise Unavailable(f"{audience} is being told other things: it is tried again after them")
            self._counts[audience] += 1
        try:
            yield
        finally:
            with self._changed:
                self._counts[audience] -= 1
                if not self._counts[audience]:
                    del self._counts[audience]
                self._changed.notify_all()
