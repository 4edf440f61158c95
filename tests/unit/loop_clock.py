"""The event loop's clock, put forward by a test: what waits for a time goes on at once, and before it nothing does."""

from __future__ import annotations

import asyncio


class LoopClock:
    """Goes as fast as the real one, and further ahead of it with each `forward`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real = loop.time
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds
