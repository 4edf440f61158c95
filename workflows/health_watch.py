"""HealthWatch: the workflow that keeps the shared watch running for ever."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.watch.health_watch import WatchActivities
    from models.temporal_names import GUARD_QUEUE, WATCH_WORKFLOW, WatchInput

_ROUNDS_A_RUN = 100


@workflow.defn(name=WATCH_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class HealthWatch:
    @workflow.run
    async def run(self, start: WatchInput | None = None) -> None:
        """Call the watch again each time it returns. If its worker dies, it moves on once heartbeats stop."""
        start = start or WatchInput()
        beat = max(timedelta(seconds=10), timedelta(seconds=4 * start.interval_seconds))
        cursor = start.cursor
        for _ in range(_ROUNDS_A_RUN):
            answer = await workflow.execute_activity_method(
                WatchActivities.watch,
                start.model_copy(update={"cursor": cursor}),
                task_queue=GUARD_QUEUE,
                start_to_close_timeout=timedelta(hours=2),
                heartbeat_timeout=beat,
                retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
                summary=f"watch every {start.interval_seconds:g} s",
            )
            cursor = answer or ""
            if workflow.info().is_continue_as_new_suggested():  # cursors of many clusters
                break
        workflow.continue_as_new(start.model_copy(update={"runs": start.runs + 1, "cursor": cursor}))
