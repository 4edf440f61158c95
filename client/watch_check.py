"""Checks whether the shared watch is alive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from client.answer_models import Check
from models.temporal_names import WATCH_ID, WATCH_WORKFLOW, watch_parts
from models.texts import count_text

_SILENCE = timedelta(seconds=60)
"""The longest silence of a healthy watch, with a margin for clocks that differ."""


async def watches(client: Client) -> set[str]:
    """Return the ids of the running watches: one, or as many as there are shards."""
    query = f"WorkflowType = '{WATCH_WORKFLOW}' AND ExecutionStatus = 'Running'"
    ids = {run.id async for run in client.list_workflows(query)}
    if await _find_running(client, WATCH_ID) is not None:  # a list is a moment late
        ids.add(WATCH_ID)
    return ids


async def _find_running(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return described if described.status is WorkflowExecutionStatus.RUNNING else None


async def watch_check(client: Client) -> Check:
    """Check whether every shard of the shared watch is alive; the text names the first one that is not."""
    ids = await watches(client)
    parts = sorted({part for one in ids for part in watch_parts(one)}) or [WATCH_ID]
    checks = [(part, await _watch_check(client, part)) for part in parts]
    wrong = [(part, check) for part, check in checks if not check.ok]
    part, check = (wrong or checks)[0]
    if len(parts) == 1:
        return check
    if not wrong:
        return check.model_copy(update={"text": f"watching, in {count_text(len(parts), 'shard')}"})
    return check.model_copy(
        update={"text": f"down in {len(wrong)} of {count_text(len(parts), 'shard')}; {part}: {check.text}"}
    )


async def _watch_check(client: Client, workflow_id: str) -> Check:
    """Check one shard. A last heartbeat alone proves nothing: it outlives its worker."""
    described = await _find_running(client, workflow_id)
    if described is None:
        return Check.bad("watch", "not running", "backstop worker starts it")
    beats = [
        (a.last_heartbeat_time.ToDatetime(UTC), a.activity_options.heartbeat_timeout.ToTimedelta())
        for a in described.raw_description.pending_activities
        if a.HasField("last_heartbeat_time")
    ]
    if not beats:
        return Check.bad("watch", "running, not watching yet")
    last, timeout = max(beats)
    if datetime.now(UTC) - last < max(_SILENCE, 2 * timeout):
        return Check.good("watch", f"watching, last heartbeat at {last:%Y-%m-%d %H:%M:%SZ}")
    return Check.bad(
        "watch",
        f"silent since {last:%Y-%m-%d %H:%M:%SZ}; each rollout still looks at its cluster, but seldom (`safety_poll`)",
        "backstop worker",
    )
