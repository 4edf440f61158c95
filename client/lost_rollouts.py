"""Rollouts that the ledger has open and Temporal does not run: its database is gone, or they were terminated.

Their effects stand, and nobody guards them, until a launch adopts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from models.base import count_text
from models.fleet.kept import KeptFleet
from models.questions import Overview
from models.reports.rollout_summary import RolloutSummary
from models.rollout.stages import command_line
from models.wire import rollout_workflow_id

ADOPT_ALL = "backstop launch --adopt --all"
ADOPT_FLEET = "backstop launch --fleet --adopt"
_AT_ONCE = 16
_RowT = TypeVar("_RowT")


async def lost_of(client: Client, rows: Sequence[Overview], listed: Collection[str] = ()) -> list[Overview]:
    """Those of the ledger's rows that are open and run nowhere. `listed`: clusters whose rollout is known to run.

    A list of Temporal is a moment late, so each one that is not in it is asked for by its name.
    """
    doubted = [row for row in rows if not row.ended and row.cluster not in listed]
    return await run_nowhere(client, doubted, lambda row: rollout_workflow_id(row.cluster))


async def run_nowhere(client: Client, rows: Sequence[_RowT], workflow_id: Callable[[_RowT], str]) -> list[_RowT]:
    """Those whose workflow Temporal does not run."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def runs(row: _RowT) -> bool:
        async with turn:
            return await runs_there(client, workflow_id(row))

    running = await asyncio.gather(*map(runs, rows))
    return [row for row, alive in zip(rows, running, strict=True) if not alive]


async def is_running(client: Client, cluster: str) -> bool:
    return await runs_there(client, rollout_workflow_id(cluster))


async def runs_there(client: Client, workflow_id: str) -> bool:
    """Temporal runs a workflow of this id."""
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return described.status is WorkflowExecutionStatus.RUNNING


def adopt_line(cluster: str) -> str:
    return f"{command_line('launch', cluster)} --adopt"


def lost_sentence(row: Overview) -> str:
    """What is so, and what to do."""
    return (
        f"rollout {row.rollout} of {row.cluster} is open in the ledger ({row.stage}) and Temporal does not run it: "
        f"nobody guards what stands there; take it over with `{adopt_line(row.cluster)}`"
    )


def lost_fleet_sentence(kept: KeptFleet) -> str:
    """What is so, and what to do."""
    clusters = count_text(len(kept.members) or len(kept.unplaced), "cluster")
    return (
        f"fleet rollout {kept.fleet} of {clusters} is open in the ledger ({kept.stage}) and Temporal does not run it: "
        f"no cluster is started; take it over with `{ADOPT_FLEET}`"
    )


def noted(row: Overview) -> RolloutSummary:
    """An open rollout as the ledger alone has it."""
    known = as_summary(row, None)
    return known.but(needs=row.needs, lost=False)


def as_summary(row: Overview, other: RolloutSummary | None) -> RolloutSummary:
    """In place of what Temporal says of an earlier rollout there. What is not in the ledger is not known."""
    since = datetime.min.replace(tzinfo=UTC) if other is None else other.started  # a worker of an older build said none
    return RolloutSummary(
        cluster=row.cluster,
        stage=row.stage,
        wave="" if other is None else other.wave,
        owner=row.owner,
        unbacked_gpus=None,
        started=row.opened_at or since,
        closed=None,
        open=True,
        needs=f"it is lost: {adopt_line(row.cluster)}",
        health_at=row.health_at,
        shadow=row.shadow,
        lost=True,
    )
