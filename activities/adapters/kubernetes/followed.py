"""Follows the objects of one kind: lists them, watches what changes, and keeps the little that counts of each.

The list comes in pages; the watch goes on from the list's version, and from the version of the last event or bookmark
after a connection that ended or dropped. A server that has forgotten that version answers 410: then the objects are
listed again. Until a new list is whole the last one stands, and visibly grows old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Generic, TypeVar

from activities.adapters.kubernetes.api import ApiServer, Gone, NoEvent, NoSuchKind, ObjectKind
from activities.adapters.kubernetes.objects import BadObject, name_of
from activities.adapters.source_threads import sentence
from activities.clock import Clock
from models.errors import BackstopError, Unavailable
from models.texts import brief, some_of

_T = TypeVar("_T")
_LONGEST_PAUSE = 30.0
_BRIEF_SECONDS = 1.0
"""A watch that ends sooner counts as a failure, so a server that ends every watch at once is asked less and less."""
_NAMED = 3

Pause = Callable[[int], Awaitable[None]]
"""Waits, given the number of failures in a row."""


async def pause_longer(failures: int) -> None:
    """Wait 1 s, 2 s, 4 s up to 30 s, and at random a little less, so that many workers do not come back at once."""
    await asyncio.sleep(min(_LONGEST_PAUSE, 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1))  # noqa: S311


class Followed(Generic[_T]):
    """The objects of one kind, as an API server last described them."""

    def __init__(
        self,
        kind: ObjectKind,
        selector: str | None,
        read: Callable[[Any], _T | None],
        now: Clock,
        changed: Callable[[], object],
        pause: Pause = pause_longer,
        *,
        optional: bool = False,
    ) -> None:
        """`read`: returns what counts of an object, None for one that does not count. `changed`: is called then.

        `optional`: a server that has no such kind has no object of it, and is asked again later.
        """
        self.kind = kind
        self.kept: dict[str, _T] = {}
        self.bad: dict[str, str] = {}
        """By name: why an object makes no sense."""
        self.seen_at: datetime | None = None
        """The time at which `kept` was last known to be true; None: nothing was listed yet."""
        self.fault = ""
        """Why the server cannot be followed now; empty: it can."""
        self._selector = selector
        self._read = read
        self._now = now
        self._changed = changed
        self._pause = pause
        self._optional = optional

    @property
    def bad_text(self) -> str:
        """The objects that make no sense, in a sentence; empty: there is none."""
        bad = self.bad
        if not bad:
            return ""
        name, what = min(bad.items())
        others = f"; also invalid: {some_of(sorted(bad.keys() - {name}), _NAMED)}" if len(bad) > 1 else ""
        return f"invalid {self.kind.plural}: {brief(name)}: {what}{others}"

    async def follow(self, server: ApiServer) -> None:
        """Follow the server for ever. Errors: none."""
        version, failures, loop = "", 0, asyncio.get_running_loop()
        while True:
            try:
                if not version:
                    version = await self.list_all(server)
                if not version:  # no such kind
                    failures += 1
                    await self._pause(failures)
                    continue
                began = loop.time()
                version = await self._watch(server, version)
                self.fault = ""
                if loop.time() - began >= _BRIEF_SECONDS:
                    failures = 0
                    continue
            except Gone:
                version = ""
                if not failures:  # listed at once, but not again and again
                    failures = 1
                    continue
            except _Dropped as dropped:
                version = dropped.version
                self.fault = dropped.text if failures else ""  # one that goes on at once is no fault
            except Exception as error:  # whatever a server sends must not end this
                version = ""
                self.fault = sentence(error)
                self._changed()
            failures += 1
            await self._pause(failures)

    async def list_all(self, server: ApiServer) -> str:
        """List the objects again; return the list's version, empty for no such kind. Errors: Gone, Unavailable."""
        began, version = self._now(), ""
        kept: dict[str, _T] = {}
        bad: dict[str, str] = {}
        try:
            async with aclosing(server.pages(self.kind, self._selector)) as pages:
                async for page in pages:
                    for raw in page.items:
                        try:
                            self._take(name_of(raw), raw, kept, bad)
                        except BadObject as error:
                            raise Unavailable(
                                f"its list of {self.kind.plural} has an object without a name: {error}"
                            ) from None
                    version = page.version
        except NoSuchKind:
            if not self._optional:
                raise
        self.kept, self.bad, self.seen_at, self.fault = kept, bad, began, ""
        self._changed()
        return version

    async def _watch(self, server: ApiServer, version: str) -> str:
        """Keep what changes until the server ends the watch; return the last version.

        Errors: Gone, BadObject, NoEvent, _Dropped.
        """
        try:
            async with aclosing(server.events(self.kind, self._selector, version)) as events:
                async for what, raw in events:
                    version = self._take_event(what, raw)
                    self.seen_at = self._now()
        except (Gone, BadObject, NoEvent):
            raise  # from the same version it would come again
        except NoSuchKind:  # the server was upgraded: another API version has it
            raise Gone from None
        except BackstopError as error:
            raise _Dropped(version, error.message) from None
        self.seen_at = self._now()
        return version

    def _take_event(self, what: str, raw: Any) -> str:
        """Keep the change; return its version. Errors: BadObject for an object that cannot be named: list again."""
        meta = raw.get("metadata") if isinstance(raw, dict) else None
        version = meta.get("resourceVersion") if isinstance(meta, dict) else None
        if not isinstance(version, str) or not version:
            raise BadObject(f"its watch of {self.kind.plural} sent an object without a resourceVersion")
        if what != "BOOKMARK":
            name = name_of(raw)
            before = self.kept.get(name), self.bad.get(name)
            if what == "DELETED":
                self.kept.pop(name, None)
                self.bad.pop(name, None)
            else:
                self._take(name, raw, self.kept, self.bad)
            if before != (self.kept.get(name), self.bad.get(name)):
                self._changed()
        return version

    def _take(self, name: str, raw: Any, kept: dict[str, _T], bad: dict[str, str]) -> None:
        """Keep what counts of the object, in place of what was kept under its name."""
        try:
            one = self._read(raw)
        except BadObject as error:
            kept.pop(name, None)
            bad[name] = str(error)
            return
        bad.pop(name, None)
        if one is None:
            kept.pop(name, None)
        else:
            kept[name] = one


class _Dropped(Exception):
    """The watch ended before its time; it can go on from `version`."""

    def __init__(self, version: str, text: str) -> None:
        super().__init__(text)
        self.version = version
        self.text = text
