"""Sends due notices from the outbox: the shared watch starts a round for each audience that has some.

A round is a workflow of its own, one per audience at a time: the queue of notices waits for people's servers, never the
watch. If one runs already nothing happens, and the watch sees the rest in its next round.
"""

from __future__ import annotations

import asyncio

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities.ports.notices import OutboxPort
from activities.workflow_starts import start_unless_running
from models.errors import BackstopError
from models.notice_digests import MailPace
from models.temporal_names import ROUND_WORKFLOW, RoundInput, round_workflow_id


class Rounds:
    def __init__(self, client: Client, outbox: OutboxPort, pace: MailPace) -> None:
        self._client = client
        self._outbox = outbox
        self._pace = pace

    async def go_on(self) -> None:
        """Start a round for every audience with a due notice. Log every error: the watch goes on."""
        try:
            for audience in await asyncio.to_thread(self._outbox.audiences_due, self._pace):
                argument, workflow_id = RoundInput(audience=audience), round_workflow_id(audience)
                summary = f"tells {audience} what is due"
                await start_unless_running(self._client, ROUND_WORKFLOW, argument, workflow_id, summary)
        except (BackstopError, RPCError) as error:
            activity.logger.warning("notices that are due could not be sent: %s", error)
        except Exception:
            activity.logger.exception("notices that are due could not be sent")
