"""LedgerDesk: one person's request to the ledger, as one activity. Its history records who asked what."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.desk.desk import DeskActivities
    from models.question_base import DeskAnswer
    from models.questions import DeskRequest
    from models.temporal_names import DESK_WORKFLOW
    from workflows.durable import missing_input


@workflow.defn(name=DESK_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class LedgerDesk:
    @workflow.run
    async def run(self, request: DeskRequest | None = None) -> DeskAnswer:
        """Return the answer; a failure keeps the activity's error type, so that the client can explain it."""
        if request is None:
            raise missing_input("the desk needs a request")
        try:
            return await workflow.execute_activity_method(
                DeskActivities.answer,
                request,
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=15),
                retry_policy=RetryPolicy(maximum_attempts=5, maximum_interval=timedelta(seconds=5)),
                summary=f"{request.kind} for {request.actor or 'nobody'}",
            )
        except ActivityError as error:
            cause = error.cause
            kind = cause.type if isinstance(cause, ApplicationError) else "Unavailable"
            message = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise ApplicationError(message, type=kind, non_retryable=True) from error
