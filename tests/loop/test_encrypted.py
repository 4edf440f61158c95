"""Encrypted payloads, on a turned clock: what a worker without the keys schedules, ours do not carry out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from client.connection import NAMESPACE
from client.converter import converter_with
from client.payload_keys import PayloadKeys, new_key
from models.temporal_names import TASK_QUEUE
from tests.e2e.world import fresh, seen, world_of
from tests.encrypted import ring_of
from tests.loop.turned_loop import EPOCH

GIVEN = {"rollout": "r/1", "entries": [], "stage": "planned", "ended": False, "completed": False}


@workflow.defn(name="Rogue")
class Rogue:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            "record", GIVEN, task_queue=TASK_QUEUE, start_to_close_timeout=timedelta(seconds=20)
        )


async def test_an_activity_that_a_worker_without_keys_schedules_is_refused(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """A rogue worker beside ours has no keys: what it schedules ours do not carry out."""
    keys = PayloadKeys(since=EPOCH, keys=(new_key(EPOCH, EPOCH),))
    converter = converter_with(ring_of(tmp_path, keys))
    client = Client(temporal.service_client, namespace=NAMESPACE, data_converter=converter)
    rogue = Worker(temporal, task_queue="rogue", workflows=[Rogue], workflow_runner=UnsandboxedWorkflowRunner())
    async with world_of(client, sqlite_ledger_url, tmp_path, replays=False), rogue:
        handle = await temporal.start_workflow("Rogue", id=fresh("rogue"), task_queue="rogue")

        async def failure() -> str:
            pending = (await handle.describe()).raw_description.pending_activities
            if not (pending and pending[0].HasField("last_failure")):
                return ""
            return str(await client.data_converter.decode_failure(pending[0].last_failure))

        await seen(failure, lambda said: "its arguments are not encrypted" in said, "it is refused")
        await handle.terminate(reason="the story is over")
