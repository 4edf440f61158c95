"""The naive way to follow a cluster's health: a workflow for each that looks at the ledger every minute."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

QUEUE = "polling"
LOOK = "look"
_LOOKS_A_RUN = 60


class Followed(BaseModel):
    """`first_seconds`: until the first look, so that not all look at once."""

    cluster: str
    every_seconds: float
    first_seconds: float
    short: dict[str, int] = {}


@workflow.defn(name="Polling")
class Polling:
    @workflow.init
    def __init__(self, start: Followed) -> None:
        self._short = start.short

    @workflow.run
    async def run(self, start: Followed) -> None:
        await workflow.sleep(start.first_seconds)
        for _ in range(_LOOKS_A_RUN):
            self._short = await workflow.execute_activity(
                LOOK,
                start.cluster,
                result_type=dict[str, int],
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(),
            )
            await workflow.sleep(start.every_seconds)
        workflow.continue_as_new(start.model_copy(update={"first_seconds": 0.0, "short": self._short}))

    @workflow.query
    def short(self) -> dict[str, int]:
        """Return the GPUs that each quota lacks."""
        return self._short
