"""Finds rollouts that the ledger has open and Temporal does not run: its database is gone, or they were terminated.

Their effects stay, and nobody guards them until a launch adopts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from models.temporal_names import rollout_workflow_id

if TYPE_CHECKING:
    from models.status_questions import Overview

_AT_ONCE = 16
STOPPED = {
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.CANCELED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.TIMED_OUT,
}
"""Statuses of a workflow that does not run and did not finish by itself."""
_RowT = TypeVar("_RowT")


async def find_lost(client: Client, rows: Sequence[Overview], listed: Collection[str] = ()) -> list[Overview]:
    """Return the ledger's open rows whose rollout runs nowhere. `listed`: clusters whose rollout is known to run.

    Temporal's list is a moment late, so each one that is not in it is asked for by its name.
    """
    doubted = [row for row in rows if not row.ended and row.cluster not in listed]
    return await run_nowhere(client, doubted, lambda row: rollout_workflow_id(row.cluster))


async def run_nowhere(client: Client, rows: Sequence[_RowT], workflow_id: Callable[[_RowT], str]) -> list[_RowT]:
    """Return the rows whose workflow Temporal does not run."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def runs(row: _RowT) -> bool:
        async with turn:
            return await runs_there(client, workflow_id(row))

    running = await asyncio.gather(*map(runs, rows))
    return [row for row, alive in zip(rows, running, strict=True) if not alive]


async def runs_there(client: Client, workflow_id: str) -> bool:
    """Return whether Temporal runs a workflow of this id."""
    return await status_there(client, workflow_id) is WorkflowExecutionStatus.RUNNING


async def status_there(client: Client, workflow_id: str) -> WorkflowExecutionStatus | None:
    """Return Temporal's status of a workflow; None: it has none of this id. Errors: RPCError without an answer."""
    try:
        return (await client.get_workflow_handle(workflow_id).describe()).status
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
