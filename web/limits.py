"""Limits of one caller: requests in a time, bytes of a body, and seconds to send it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request

from web.failures import Problem, not_json, too_large, too_many, too_slow

MOST_BYTES = 8 * 1024 * 1024
"""Most bytes of a body. The largest bodies of the command line are 2,000 health samples."""
BODY_SECONDS = 30.0
_MOST_KNOWN = 10_000
"""Most callers to remember; the one whose last request is the oldest is forgotten first."""


class Rate:
    """A limit of each caller's requests at this front: `burst` at once, and `each_second` in the long run."""

    def __init__(
        self, each_second: float = 50.0, burst: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._each_second, self._burst, self._clock = each_second, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller: how many requests were left, and when."""

    def take(self, caller: str) -> None:
        """Count a request. Errors: Problem 429, saying when to come again."""
        now = self._clock()
        left, since = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._each_second)
        self._left[caller] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if len(self._left) > _MOST_KNOWN:
            self._left.popitem(last=False)
        if left < 1:
            seconds = max(1, math.ceil((1 - left) / self._each_second))
            text = f"{caller} has sent more requests than the {self._burst:g} allowed at once: try again in {seconds} s"
            raise too_many(text, seconds)


async def body_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """Read the whole body. Errors: Problem 413, 408, 400."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    try:
        return await asyncio.wait_for(_read(request, most), BODY_SECONDS)
    except TimeoutError:
        raise too_slow(408, f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise not_json("the body ended too early") from None


def _too_large(most: int) -> Problem:
    return too_large(f"a body may have at most {most} bytes")


async def _read(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)
