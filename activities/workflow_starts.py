"""Starts workflows of which one at a time runs for each id: a second start finds the first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from models.base import Model
from models.rollout.messages import LaunchAnswer, LaunchRequest, RolloutInput
from models.temporal_names import LAUNCHED_UPDATE, ROLLOUT_WORKFLOW, TASK_QUEUE, rollout_workflow_id

_ONE_AT_A_TIME: dict[str, Any] = {
    "task_queue": TASK_QUEUE,
    "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
    "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
}


async def start_unless_running(client: Client, workflow: str, argument: Model, workflow_id: str, summary: str) -> None:
    """Start the workflow, unless one of this id runs. `summary`: shown in Temporal's UI."""
    await client.start_workflow(workflow, argument, id=workflow_id, static_summary=summary, **_ONE_AT_A_TIME)


async def launch_rollout(client: Client, launch: LaunchRequest, summary: str, patience: timedelta) -> LaunchAnswer:
    """Start the cluster's rollout, unless one runs; return its answer to the launch."""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        ROLLOUT_WORKFLOW,
        RolloutInput(launch=launch),
        id=rollout_workflow_id(launch.cluster),
        static_summary=summary,
        **_ONE_AT_A_TIME,
    )
    answer: LaunchAnswer = await client.execute_update_with_start_workflow(
        LAUNCHED_UPDATE, start_workflow_operation=start, result_type=LaunchAnswer, rpc_timeout=patience
    )
    return answer
