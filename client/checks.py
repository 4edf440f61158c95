"""What `doctor` asks Temporal."""

from __future__ import annotations

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from client.connection import Target
from client.versions import builds, by_build, current_of, pollers
from models.base import Model
from models.messages import SEARCH_ATTRIBUTES, WATCH_ID


class Check(Model):
    """One thing that should be so, and what to do when it is not."""

    name: str
    ok: bool
    text: str
    remedy: str = ""


async def temporal_checks(client: Client, target: Target) -> list[Check]:
    """Namespace, search attributes, workers and the watch."""
    where = "embedded (backstop up)" if target.embedded else "configured"
    checks = [Check(name="temporal", ok=True, text=f"{target.address}, {where}")]
    for ask in (_namespace, _attributes, _workers, _builds, _watch):
        try:
            checks.append(await ask(client))
        except RPCError as error:
            checks.append(Check(name=ask.__name__.strip("_"), ok=False, text=error.message))
    return checks


async def _namespace(client: Client) -> Check:
    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = found.config.workflow_execution_retention_ttl.ToTimedelta().days
    return Check(
        name="namespace",
        ok=days >= 30,
        text=f"{client.namespace}, keeps ended rollouts for {days} days",
        remedy=""
        if days >= 30
        else f"temporal operator namespace update -n {client.namespace} --retention 3650d (the archive keeps all)",
    )


async def _attributes(client: Client) -> Check:
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in found.custom_attributes]
    commands = "; ".join(
        f"temporal operator search-attribute create --name {name} --type {SEARCH_ATTRIBUTES[name]}" for name in missing
    )
    text = f"missing: {', '.join(missing)}" if missing else f"all {len(SEARCH_ATTRIBUTES)} there"
    return Check(name="search attributes", ok=not missing, text=text, remedy=commands)


async def _workers(client: Client) -> Check:
    names = sorted({p.identity for p in await pollers(client)})
    return Check(
        name="workers",
        ok=bool(names),
        text=f"{len(names)} polling: {', '.join(names)}" if names else "none is polling",
        remedy="" if names else "backstop up, or backstop worker",
    )


async def _builds(client: Client) -> Check:
    known, polling = await builds(client), by_build(await pollers(client))
    current = current_of(known)
    stranded = [b for b in known if b.stranded]
    if stranded:
        text = ", ".join(f"build {b.build} holds {b.rollouts} rollouts and has no worker" for b in stranded)
        return Check(
            name="builds", ok=False, text=text, remedy=f"BACKSTOP_BUILD_ID={stranded[0].build} backstop worker"
        )
    if polling and not polling[current]:
        newest = next((b.build for b in known if b.workers), "BUILD")
        text = f"no worker serves: what begins goes to {f'build {current}' if current else 'workers without a build'}"
        return Check(name="builds", ok=False, text=text, remedy=f"backstop builds use {newest}")
    return Check(name="builds", ok=True, text=f"build {current} serves" if current else "workers are not versioned")


async def _watch(client: Client) -> Check:
    described = await client.get_workflow_handle(WATCH_ID).describe()
    running = described.status is WorkflowExecutionStatus.RUNNING
    pending = described.raw_description.pending_activities
    beating = any(a.HasField("last_heartbeat_time") for a in pending)
    text = "watching" if running and beating else "running, not watching yet" if running else "not running"
    return Check(name="watch", ok=running and beating, text=text, remedy="" if running else "backstop worker starts it")
