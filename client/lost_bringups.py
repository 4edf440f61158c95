"""Bring-ups that the ledger has open and Temporal does not run: nobody drives or unmakes what they made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio.client import Client

from client.lost_rollouts import runs_there
from models.bringup.messages import BringupRow
from models.bringup.state import bringup_workflow_id

_AT_ONCE = 16


async def lost_bringups(client: Client, rows: Sequence[BringupRow]) -> list[BringupRow]:
    """Those of the book's open rows that run nowhere."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def runs(cluster: str) -> bool:
        async with turn:
            return await runs_there(client, bringup_workflow_id(cluster))

    running = await asyncio.gather(*(runs(row.cluster) for row in rows))
    return [row for row, alive in zip(rows, running, strict=True) if not alive]
