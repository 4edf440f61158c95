"""NoticeRound: sends the due notices of one audience. The shared watch starts one if some are due."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.notices.telling import NoticeActivities
    from models.temporal_names import ROUND_WORKFLOW, RoundInput
    from workflows.durable import missing_input
    from workflows.options import ROUND_CALL


@workflow.defn(name=ROUND_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class NoticeRound:
    @workflow.run
    async def run(self, request: RoundInput | None = None) -> None:
        """Try once: notices that did not get through are due again later, in another round."""
        if request is None:
            raise missing_input("a round needs an audience")
        await workflow.execute_activity_method(
            NoticeActivities.send_due, request, **ROUND_CALL, summary=f"tell {request.audience} what is due"
        )
