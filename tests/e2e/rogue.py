"""A rogue worker: somebody with Temporal's credentials who answers workflow tasks, and asks genuine workers to write.

It polls a queue of its own, so that the tests do not wait for luck; its workflow has our type's name and a rollout's
id, and what it asks for goes to the queues of the genuine workers, as it would from ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from models.temporal_names import GUARD_QUEUE, ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id
from tests.e2e.world import World

ROGUE_QUEUE = "rogue"
_GUARDS = ("apply_effect", "observe", "aim_rollback")


@workflow.defn(name=ROLLOUT_WORKFLOW, sandboxed=False)
class RogueRollout:
    @workflow.run
    async def run(self, asked: list[Any]) -> list[str]:
        """Call each activity with its request; return the failure's type and sentence, or that it was done."""
        answers = []
        for name, request in asked:
            try:
                await workflow.execute_activity(
                    name,
                    request,
                    task_queue=GUARD_QUEUE if name in _GUARDS else TASK_QUEUE,
                    start_to_close_timeout=timedelta(seconds=30),
                    heartbeat_timeout=timedelta(seconds=15),
                    retry_policy=RetryPolicy(maximum_attempts=2),
                )
                answers.append("done")
            except ActivityError as error:
                cause = error.cause
                kind = cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
                answers.append(f"{kind}: {cause}")
        return answers


@asynccontextmanager
async def rogue_worker(client: Client) -> AsyncIterator[None]:
    async with Worker(
        client, task_queue=ROGUE_QUEUE, workflows=[RogueRollout], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        yield


async def asks(world: World, cluster: str, *asked: tuple[str, Any]) -> list[str]:
    """Return the answers to a rogue in the place of the cluster's rollout."""
    world.launched.discard(cluster)  # what its history leads to is no business of ours
    return await asks_as(world, rollout_workflow_id(cluster), *asked)


async def asks_as(world: World, workflow_id: str, *asked: tuple[str, Any]) -> list[str]:
    """Return the answers to a rogue in the place of any workflow."""
    client = world.client
    with suppress(RPCError):
        await client.get_workflow_handle(workflow_id).terminate(reason="a rogue takes its place")
    answers: list[str] = await client.execute_workflow(
        ROLLOUT_WORKFLOW, [list(one) for one in asked], id=workflow_id, task_queue=ROGUE_QUEUE
    )
    return answers
