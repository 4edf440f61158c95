"""The comparison of a rollout's history with the ledger, and the restart if the history lacks effects.

A reset cuts a history short, and so does a database of Temporal restored from a backup. docs/adr/0090.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.rollout.cluster_calls import ClusterActivities
    from models.audit_chain import AuditEntry
    from models.errors import Conflict, Refusal
    from models.rollout.look_reducers import has_lapsed
    from models.rollout.messages import OpenRequest, RolloutInput
    from models.rollout.plan_reducers import reopen_rollout
    from models.rollout.state import Rollout
    from workflows.failures import reason_of
    from workflows.options import FORWARD_CALL, READ_CALL

WAS_RESET = "the rollout's history was reset and is being compared with the ledger: try again in a moment"


class Lapses:
    """The comparison of one run."""

    def __init__(self, start: RolloutInput) -> None:
        self._launch = start.launch
        self.runs = False
        """Whether the workflow has begun its first task."""
        self.reset = False
        """Whether the workflow was reset and has not been compared since."""
        self.suspected = start.compares
        workflow.register_random_seed_callback(self._was_reset)

    def _was_reset(self, _: int) -> None:
        """Note a reset: Temporal gives a workflow another random seed at the task it was reset to, and at no other.

        At its first task only a replay hears of it; there the launch, or `RolloutInput.compares`, has it compared
        anyway.
        """
        if self.runs:
            self.suspected = self.reset = True

    def may_be(self, rollout: Rollout) -> bool:
        """Return whether to compare the history with the ledger before anything else."""
        return (self.suspected or has_lapsed(rollout)) and not rollout.superseded

    async def compare_histories(
        self, state: Callable[[], Rollout], unsent: Callable[[], tuple[AuditEntry, ...]]
    ) -> Rollout | str | None:
        """Return the restarted rollout if effects were missing, None to go on, or the ledger's refusal as a text.

        After a refusal the run ends: its effects in force are lost, as `status` and `doctor` say, and a launch adopts
        them. `unsent`: entries that no call takes to the archive; a call under way archives its own.
        """
        rollout, again = state(), None
        try:
            mark = await workflow.execute_activity_method(
                ClusterActivities.ledger_mark,
                rollout.cluster,
                **READ_CALL,
                summary="compare the history with the ledger",
            )
            if mark.rollout != rollout.id or mark.counter > rollout.fence:
                opening = await workflow.execute_activity_method(
                    ClusterActivities.open_rollout,
                    OpenRequest(launch=self._launch, at=workflow.now(), rollout=rollout.id, fence=rollout.fence),
                    **FORWARD_CALL,
                    summary=f"open {rollout.cluster} again: its history lacks effects",
                )
                # A reset history has entries that were archived before the reset.
                unarchived = () if self.reset else unsent()
                again = reopen_rollout(state(), self._launch, opening, workflow.now(), unarchived)
        except ActivityError as error:
            kind, why = reason_of(error)
            return why if kind in (Refusal.__name__, Conflict.__name__) else None  # else try again with the ledger back
        self.suspected = self.reset = False
        return again
