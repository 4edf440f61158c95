"""Builds of the worker: which one serves, which still hold rollouts, and which one is to serve.

Used only where workers are versioned (BACKSTOP_BUILD_ID, docs/adr/0012). Source of the words: Temporal's worker
deployments.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType, VersionDrainageStatus, WorkerDeploymentVersionStatus
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from client.answer_models import Build
from client.visibility_query import quote
from models.errors import BadInput, Refusal
from models.temporal_names import DEPLOYMENT, ROLLOUT_WORKFLOW, TASK_QUEUE

_HEARD_BY_THEN = 10
"""Seconds until a server knows of a new worker on all its queues."""
_POLL_SECONDS = 130
"""Seconds of two polls, with a margin for clocks that differ."""
_NEXT_POLL_SECONDS = 70
"""Seconds from one poll until a worker that serves has begun the next one, by the server's clock."""
_VERSION = "TemporalWorkerDeploymentVersion"


async def builds(client: Client) -> list[Build]:
    """Return the builds, the newest first; none if no worker was ever versioned."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=DEPLOYMENT)
    try:
        deployment = (await client.workflow_service.describe_worker_deployment(request)).worker_deployment_info
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise
    polling = by_build(by_last_poll(await pollers(client))[0])
    every: list[Build] = []
    for summary in deployment.version_summaries:
        build = summary.deployment_version.build_id
        held = await client.count_workflows(
            f"{_VERSION} = {quote(f'{DEPLOYMENT}:{build}')} AND WorkflowType = '{ROLLOUT_WORKFLOW}' "
            "AND ExecutionStatus = 'Running'"
        )
        every.append(
            Build(
                build=build,
                status=_status(summary.status, summary.drainage_status),
                workers=polling[build],
                rollouts=held.count,
                created=summary.create_time.ToDatetime(tzinfo=UTC),
            )
        )
    return sorted(every, key=lambda build: build.created, reverse=True)


def current_of(every: Sequence[Build]) -> str:
    """Return the build that serves; empty if unversioned workers serve."""
    return next((build.build for build in every if build.status == "current"), "")


async def pollers(client: Client) -> Sequence[PollerInfo]:
    """Return the workers that have lately polled for workflow tasks."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    return (await client.workflow_service.describe_task_queue(request)).pollers


def by_last_poll(listed: Sequence[PollerInfo]) -> tuple[list[PollerInfo], list[PollerInfo]]:
    """Return the workers that poll, and those that have ended: a server lists one for minutes after its last poll.

    One that ended within the last minute still counts as polling.
    """
    newest = max((poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in listed), default=None)
    serving, gone = list[PollerInfo](), list[PollerInfo]()
    for poller in listed:
        age = newest - poller.last_access_time.ToDatetime(tzinfo=UTC) if newest else timedelta(0)
        (gone if age.total_seconds() > _NEXT_POLL_SECONDS else serving).append(poller)
    return serving, gone


async def none_polls(client: Client) -> bool:
    """Return whether no worker serves, as far as the server knows: it lists one for minutes after its last poll.

    A poll lasts a minute and is followed by the next one.
    """
    return all(_seconds_since(poller) > _POLL_SECONDS for poller in await pollers(client))


def _seconds_since(poller: PollerInfo) -> float:
    return (datetime.now(UTC) - poller.last_access_time.ToDatetime(tzinfo=UTC)).total_seconds()


def by_build(polling: Iterable[PollerInfo]) -> Counter[str]:
    """Count the workers of each build; the empty build: not versioned."""
    return Counter(poller.deployment_options.build_id for poller in polling)


async def use(client: Client, build: str, actor: str) -> str:
    """Make the build serve from now on; return the one that did before, empty for none.

    Errors: BadInput for a build that no worker has, Refusal if none of its workers polls.
    """
    every = await builds(client)
    wanted = next((one for one in every if one.build == build), None)
    if wanted is None:
        names = ", ".join(build.build for build in every) or "none; workers name theirs by BACKSTOP_BUILD_ID"
        raise BadInput(f"build {build!r} has never had a worker; known builds: {names}")
    if not wanted.workers:
        raise Refusal(f"no worker of build {build} is running, so new rollouts would wait: start one first")
    await _serve(
        client,
        SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace, deployment_name=DEPLOYMENT, build_id=build, identity=f"{actor} (backstop)"
        ),
    )
    return current_of(every)


async def _serve(client: Client, request: SetWorkerDeploymentCurrentVersionRequest) -> None:
    """Ask until the server knows the build on every task queue: it registers a new worker's queues one by one."""
    for patience in range(_HEARD_BY_THEN, -1, -1):
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
            return
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            if not patience:
                raise Refusal(f"Temporal does not accept build {request.build_id} yet: {error.message}") from error
            await asyncio.sleep(1)


def _status(status: WorkerDeploymentVersionStatus.ValueType, drainage: VersionDrainageStatus.ValueType) -> str:
    words = {
        WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_CURRENT: "current",
        WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_RAMPING: "ramping",
        WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINING: "draining",
        WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED: "drained",
    }
    if status in words:
        return words[status]
    return "drained" if drainage == VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINED else "inactive"
