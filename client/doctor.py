"""What `doctor` asks Temporal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from client.connection import TemporalTarget
from client.lost_rollouts import ADOPT_ALL, ADOPT_FLEET, adopt_line, lost_fleet_sentence
from client.rollouts import STALE
from client.versions import builds, by_build, current_of, pollers
from models.base import Model, count_text, duration_text, some_of
from models.bringup.messages import BringupRow
from models.cluster.source_doubts import DoubtedSource
from models.digests import Untold
from models.fleet.kept import KeptFleet
from models.questions import CLOCK_SKEW_SECONDS, LedgerCheck, Overview
from models.requests.state import RequestState
from models.wire import SEARCH_ATTRIBUTES, WATCH_ID, WATCH_WORKFLOW, watch_parts

_SILENCE = timedelta(seconds=60)
"""Heartbeats come at least this often, and a client's clock may differ from the server's."""


_LATE_NOTICE = timedelta(minutes=5)
"""From then on a notice that is due should have gone: the watch looks every few seconds."""

_TOLD = 5
"""Sentences on rows that make no sense."""


class Check(Model):
    """One thing that should be so, and what to do when it is not."""

    name: str
    ok: bool
    text: str
    remedy: str = ""


async def temporal_checks(client: Client, target: TemporalTarget) -> list[Check]:
    """Namespace, search attributes, workers and the watch."""
    where = "embedded (backstop up)" if target.embedded else "configured"
    checks = [Check(name="temporal", ok=True, text=f"{target.address}, {where}")]
    for ask in (_namespace, _attributes, _workers, _builds, watch_check):
        try:
            checks.append(await ask(client))
        except RPCError as error:
            checks.append(Check(name=ask.__name__.strip("_").removesuffix("_check"), ok=False, text=error.message))
    return checks


async def _namespace(client: Client) -> Check:
    namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = namespace.config.workflow_execution_retention_ttl.ToTimedelta().days
    return Check(
        name="namespace",
        ok=days >= 30,
        text=f"{client.namespace}, keeps ended rollouts for {days} days",
        remedy=""
        if days >= 30
        else f"temporal operator namespace update -n {client.namespace} --retention 3650d (the archive keeps all)",
    )


async def _attributes(client: Client) -> Check:
    attributes = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in attributes.custom_attributes]
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
    every, polling = await builds(client), by_build(await pollers(client))
    current = current_of(every)
    stranded = [b for b in every if b.stranded]
    if stranded:
        text = ", ".join(f"build {b.build} holds {b.rollouts} rollouts and has no worker" for b in stranded)
        return Check(
            name="builds", ok=False, text=text, remedy=f"BACKSTOP_BUILD_ID={stranded[0].build} backstop worker"
        )
    if polling and not polling[current]:
        newest = next((b.build for b in every if b.workers), "BUILD")
        text = f"no worker serves: what begins goes to {f'build {current}' if current else 'workers without a build'}"
        return Check(name="builds", ok=False, text=text, remedy=f"backstop builds use {newest}")
    return Check(name="builds", ok=True, text=f"build {current} serves" if current else "workers are not versioned")


def unheard(check: Check) -> Check:
    """Where nobody answered a question: Temporal lists a worker for minutes after its death, and its last heartbeat."""
    if not check.ok or check.name not in ("workers", "watch"):
        return check
    return check.model_copy(
        update={
            "ok": False,
            "text": f"{check.text}; but no worker answers",
            "remedy": "backstop up, or backstop worker",
        }
    )


def health_source_checks(ledger: LedgerCheck) -> list[Check]:
    """Clusters whose Prometheus does not say what it should, and rows of the calendar that are no windows, by name."""
    wrong = {cluster: text for cluster, text in sorted(ledger.prometheus.items()) if text}
    checks = [
        Check(name="prometheus", ok=False, text=f"{cluster}: {text}", remedy="mend its series (docs/prometheus.md)")
        for cluster, text in wrong.items()
    ]
    if ledger.prometheus and not wrong:
        told = f"tells the health of {count_text(len(ledger.prometheus), 'cluster')}"
        checks.append(Check(name="prometheus", ok=True, text=told))
    remedy = "declare it anew with `backstop hold`, and delete its row"
    return checks + [
        Check(name="calendar", ok=False, text=f"{cluster}: {text}", remedy=remedy)
        for cluster, text in sorted(ledger.windows.items())
    ]


def health_check(rollouts: Sequence[Overview], now: datetime) -> Check:
    """Whether health comes in for every open rollout, as the ledger has it."""
    opened = [r for r in rollouts if not r.ended]
    silent = [r for r in opened if r.health_at is None or now - r.health_at >= STALE]
    if not silent:
        return Check(
            name="health",
            ok=True,
            text=f"of {count_text(len(opened), 'open rollout')}, none older than {duration_text(STALE)}",
        )
    names = some_of([r.cluster for r in silent], 3)
    oldest = min((r.health_at for r in silent if r.health_at is not None), default=None)
    since = "" if oldest is None else f", the oldest of {oldest:%Y-%m-%d %H:%M:%SZ}"
    text = (
        f"{len(silent)} of {len(opened)} clusters in rollout have had none for {duration_text(STALE)}: {names}{since}"
    )
    return Check(name="health", ok=False, text=text, remedy="mend their health source")


def doubt_check(doubt: DoubtedSource) -> Check:
    """A health source that is not believed."""
    text = f"{doubt.why}, at {doubt.since:%Y-%m-%d %H:%M:%SZ}; not believed of: {some_of(doubt.clusters, 3)}"
    return Check(name="source", ok=False, text=text, remedy=f"mend it; only if it is so: {doubt.confirming}")


def notice_checks(ledger: LedgerCheck, now: datetime) -> list[Check]:
    """What waits to be told: for a digest as it should, or longer than it should, and why."""
    late = [w for w in ledger.notices if w.trouble or now - w.due >= _LATE_NOTICE]
    checks = [
        Check(
            name="notices",
            ok=False,
            text=f"{_notices(w)} for {w.audience} since {w.since:%Y-%m-%d %H:%MZ}: {w.trouble or 'due, and not sent'}",
            remedy=(w.remedy or "mend the contact in the fleet file; it is tried again by itself")
            if w.trouble
            else "the watch sends what is due: see its line here",
        )
        for w in late
    ]
    waiting = [f"{_notices(w)} for {w.audience} until {w.due:%Y-%m-%d %H:%MZ}" for w in ledger.notices if w not in late]
    text = some_of(waiting, _TOLD, by="; ") if waiting else "none waits"
    return [*checks, Check(name="notices", ok=True, text=text)] if waiting or not late else checks


def _notices(waits: Untold) -> str:
    return f"{count_text(waits.notices, 'notice')} {'waits' if waits.notices == 1 else 'wait'}"


def grants_check(requests: Sequence[RequestState], now: datetime) -> Check:
    """Whether what was granted for a time is given back in time, as the ledger has it."""
    late = [r for r in requests if r.overdue(now)]
    if not late:
        return Check(name="grants", ok=True, text="none is overdue")
    named = some_of([f"{r.ask.request}: {r.wants}, {r.waits_for or r.stage.value}" for r in late], 3, by="; ")
    text = f"{len(late)} {'is' if len(late) == 1 else 'are'} overdue: {named}"
    return Check(
        name="grants",
        ok=False,
        text=text,
        remedy="the watch takes each up within a minute; one that waits says for what",
    )


def senseless_check(found: Mapping[str, Sequence[str]], teams: Mapping[str, str]) -> Check:
    """Whether what stands in the ledger makes sense, cluster by cluster and team by team."""
    told = [sentence for _, sentences in sorted(found.items()) for sentence in sentences]
    told += [sentence for _, sentence in sorted(teams.items())]
    if not told:
        return Check(name="rows", ok=True, text="what stands in the ledger makes sense")
    return Check(
        name="rows",
        ok=False,
        text=some_of(told, _TOLD, by="; "),
        remedy="put these rows right, by SQL or `backstop fleet import`; all others go on meanwhile",
    )


def rollouts_check(rollouts: Sequence[Overview], lost: Sequence[Overview]) -> Check:
    """Whether Temporal runs what the ledger has open."""
    opened = sum(not r.ended for r in rollouts)
    if not lost:
        return Check(name="rollouts", ok=True, text=f"of {opened} open in the ledger, Temporal runs all")
    names = some_of([r.cluster for r in lost], 3)
    text = f"of {opened} open in the ledger, Temporal does not run {len(lost)}, which nobody guards: {names}"
    remedy = adopt_line(lost[0].cluster) if len(lost) == 1 else f"{ADOPT_ALL}; or one by one: {adopt_line('CLUSTER')}"
    return Check(name="rollouts", ok=False, text=text, remedy=remedy)


def bringups_checks(rows: Sequence[BringupRow], lost: Sequence[BringupRow]) -> list[Check]:
    """Whether Temporal runs the bring-ups that the ledger has open; nothing where it has none."""
    if not rows:
        return []
    if not lost:
        return [Check(name="bring-ups", ok=True, text=f"of {len(rows)} open in the ledger, Temporal runs all")]
    names = some_of([f"{row.cluster} ({row.stage.words})" for row in lost], 3)
    text = f"of {len(rows)} open in the ledger, Temporal does not run {len(lost)}, which nobody drives: {names}"
    first = lost[0].cluster
    remedy = (
        f"add {first} again with the same entry, which takes it up; or unmake by hand what it made, then: "
        f"backstop bringup give-up {first}"
    )
    return [Check(name="bring-ups", ok=False, text=text, remedy=remedy)]


def fleet_checks(lost: KeptFleet | None) -> list[Check]:
    """That the fleet rollout which the ledger has open runs nowhere; nothing where it does, or none is open."""
    if lost is None:
        return []
    return [Check(name="fleet", ok=False, text=lost_fleet_sentence(lost).partition(";")[0], remedy=ADOPT_FLEET)]


def clock_check(ahead_seconds: float) -> Check:
    """Whether the worker and Temporal's server agree on the time; by how much the worker's is ahead where not."""
    if abs(ahead_seconds) <= CLOCK_SKEW_SECONDS:
        return Check(name="clocks", ok=True, text="the worker's and Temporal's agree within a minute")
    by, way = duration_text(timedelta(seconds=round(abs(ahead_seconds)))), "ahead of" if ahead_seconds > 0 else "behind"
    text = f"the worker's clock is {by} {way} Temporal's, by which notices, soaks and breach timers run"
    return Check(name="clocks", ok=False, text=text, remedy="set both clocks right (NTP)")


async def watches(client: Client) -> set[str]:
    """Ids of the watches that run: one, or as many as there are shards."""
    query = f"WorkflowType = '{WATCH_WORKFLOW}' AND ExecutionStatus = 'Running'"
    ids = {run.id async for run in client.list_workflows(query)}
    if await _running(client, WATCH_ID) is not None:  # a list is a moment late
        ids.add(WATCH_ID)
    return ids


async def _running(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return described if described.status is WorkflowExecutionStatus.RUNNING else None


async def watch_check(client: Client) -> Check:
    """Whether the shared watch is alive, every shard of it; what is wrong with the first one that is not."""
    ids = await watches(client)
    parts = sorted({part for one in ids for part in watch_parts(one)}) or [WATCH_ID]
    checks = [(part, await _watch_check(client, part)) for part in parts]
    wrong = [(part, check) for part, check in checks if not check.ok]
    part, check = (wrong or checks)[0]
    if len(parts) == 1:
        return check
    if not wrong:
        return check.model_copy(update={"text": f"watching, in {len(parts)} shards"})
    return check.model_copy(update={"text": f"{len(wrong)} of {len(parts)} shards; {part}: {check.text}"})


async def _watch_check(client: Client, workflow_id: str) -> Check:
    """A worker that has died leaves its last heartbeat behind."""
    described = await _running(client, workflow_id)
    if described is None:
        return Check(name="watch", ok=False, text="not running", remedy="backstop worker starts it")
    beats = [
        (a.last_heartbeat_time.ToDatetime(UTC), a.activity_options.heartbeat_timeout.ToTimedelta())
        for a in described.raw_description.pending_activities
        if a.HasField("last_heartbeat_time")
    ]
    if not beats:
        return Check(name="watch", ok=False, text="running, not watching yet")
    last, timeout = max(beats)
    if datetime.now(UTC) - last < max(_SILENCE, 2 * timeout):
        return Check(name="watch", ok=True, text=f"watching, last heard of at {last:%Y-%m-%d %H:%M:%SZ}")
    return Check(
        name="watch",
        ok=False,
        text=f"silent since {last:%Y-%m-%d %H:%M:%SZ}; rollouts still look by themselves once an hour",
        remedy="backstop worker",
    )
