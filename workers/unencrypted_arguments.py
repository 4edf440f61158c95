"""Refuses arguments that came in clear, unless the activity was scheduled before payloads were encrypted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from client.encryption import Encrypted, arrived_in_clear
from models.errors import Unavailable


class NothingInClear(Interceptor):
    """Intercepts activities. `since`: returns when payloads began to be encrypted, as it is known now."""

    def __init__(self, since: Callable[[], datetime]) -> None:
        self._since = since

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Hidden(next, self._since)


def nothing_in_clear(codec: Any) -> list[Interceptor]:
    """Return the interceptor for a client's codec; none if it does not encrypt."""
    return [NothingInClear(lambda: codec.ring.since)] if isinstance(codec, Encrypted) else []


class _Hidden(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, since: Callable[[], datetime]) -> None:
        super().__init__(following)
        self._since = since

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        # It is tried again: a worker without the keys may have scheduled it, and a person has to mend that.
        if arrived_in_clear.get() and activity.info().scheduled_time >= self._since():
            raise ApplicationError(
                "its arguments are not encrypted, but must be: give the process that scheduled it the payload keys",
                type=Unavailable.__name__,
            )
        return await super().execute_activity(input)
