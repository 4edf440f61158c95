"""Heartbeats for activities that block: the server misses a killed worker's calls in seconds, not minutes.

A call in a thread cannot send a heartbeat while it waits for a database. The worker's event loop sends it instead, so
that silence means a dead worker and not a slow call; a slow one has its own timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput, Interceptor

_BEATS_A_TIMEOUT = 3


class Heartbeats(Interceptor):
    """Beats for every blocking activity that has a heartbeat timeout; asynchronous ones do it themselves."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Beating(next)


class _Beating(ActivityInboundInterceptor):
    _out: ActivityOutboundInterceptor

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._out = outbound
        super().init(outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        timeout = activity.info().heartbeat_timeout
        if timeout is None or inspect.iscoroutinefunction(input.fn):
            return await super().execute_activity(input)
        beat = asyncio.create_task(self._beat(timeout.total_seconds() / _BEATS_A_TIMEOUT))
        try:
            return await super().execute_activity(input)
        finally:
            beat.cancel()

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._out.heartbeat()
