"""Finds grants that are past their day and that nobody takes back, and restarts their request from the ledger.

A request's workflow gives its grant back by itself. One that was terminated, or lost with Temporal's database, does
not; so the shared watch looks into the ledger now and then, and starts a workflow for each such request. If one runs,
nothing happens; a new one repeats no write, as fences count on from the ledger's.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities.ports.registry import RequestsPort
from activities.workflow_starts import start_unless_running
from models.errors import BackstopError
from models.requests.messages import RequestInput
from models.requests.state import RequestState
from models.temporal_names import REQUEST_WORKFLOW, request_workflow_id

EVERY_SECONDS = 60.0


class Sweeper:
    def __init__(self, client: Client, requests: RequestsPort) -> None:
        self._client = client
        self._requests = requests
        self._last = float("-inf")

    async def go_on(self, now: datetime) -> None:
        """Start a workflow for every overdue grant, which gives it back; do nothing before its time."""
        time = asyncio.get_running_loop().time()
        if time - self._last < EVERY_SECONDS:
            return
        self._last = time
        try:
            for request in await asyncio.to_thread(self._requests.requests):
                if request.is_overdue(now):
                    await self._care_for(request)
        except (BackstopError, RPCError) as error:
            activity.logger.warning("could not look for overdue grants: %s", error)

    async def _care_for(self, request: RequestState) -> None:
        argument, workflow_id = RequestInput(ask=request.ask, state=request), request_workflow_id(request.ask.request)
        summary = f"gives back what is overdue: {request.wanted_text}"
        await start_unless_running(self._client, REQUEST_WORKFLOW, argument, workflow_id, summary)
