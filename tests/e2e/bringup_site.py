"""A site for bring-ups in memory, behind the ports: runners that remember what they were told, checks, and a fleet.

It outlives workers, as a real one does. A run ends when a test says so, or at once.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.clock import utc_now
from activities.tickets.warrants import KeysOf
from models.audit_chain import AuditEntry
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder, Colour
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.first_quotas import first_plan, next_values, too_much
from models.bringup.messages import (
    BringupAnswer,
    BringupCommandAnswer,
    BringupInput,
    BringupRecord,
    BringupRow,
    BringupStart,
    HandedOver,
    HandOverRequest,
    OpenedBringup,
    WindDownRequest,
    WoundDown,
)
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.bringup.status import BringupStatus
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.errors import BadInput, Unavailable
from models.temporal_names import BRINGUP_WORKFLOW, LAUNCHED_UPDATE, STATUS_QUERY, TASK_QUEUE, bringup_workflow_id
from tests.e2e.world import PATIENCE, seen
from tests.loop.temporal import InMemoryTemporal
from tests.unit.bringup_world import owed
from tests.waiting import async_attempts
from workers.bringups import BringupParts
from workers.main import make_worker

POLICY = Policy()
PROVISION: list[dict[str, Any]] = [
    {"name": "bootstrap", "with": "buildkite", "pipeline": "up", "undo": {"pipeline": "down"}},
    {"name": "check-in", "touch": "tell others of {cluster}"},
    {
        "name": "nodes",
        "with": "command",
        "run": ["/opt/scale", "{cluster}"],
        "repeatable": True,
        "after": ["bootstrap"],
        "undo": {"run": ["/opt/unscale"]},
    },
    {"name": "services", "with": "http", "url": "https://h/{cluster}", "after": ["nodes", "check-in"]},
]
"""Steps of each kind: a build, a touch, a command that may run again, a service."""
BARE: dict[str, Any] = {
    "name": "bare",
    "accept_at_least": 0.75,
    "soak": "0.3s",
    "watch_every": "0.3s",
    "probation": "1s",
    "provision": [{"name": "nodes", "with": "command", "run": ["/opt/scale"]}],
    "validate": [{"name": "health", "healthy": 0.9, "every": "0.2s"}],
    "capacity": {"with": "http", "url": "https://h/nodes", "every": "0.2s"},
}
"""A recipe of one step and one check."""


class Site:
    """The outside of one bring-up. Thread-safe: workers ask from threads of their own."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self.now = now
        self._lock = threading.Lock()
        self.runs: dict[str, RunReport] = {}
        """By key: how each run stands that really began."""
        self.begun: Counter[str] = Counter()
        """How often each key really began."""
        self.hosts: Counter[str] = Counter()
        self.ends: dict[str, RunPhase] = {}
        """By step: what becomes of it at once; without a word it runs until `end`."""
        self.not_allowed: set[str] = set()
        self.forgets: set[str] = set()
        """Keys that nobody has a trace of."""
        self.lost_answers: Counter[str] = Counter()
        """By step: starts of which the answer is lost, though they begin."""
        self.says: dict[str, Colour] = {}
        self.asked: Counter[str] = Counter()
        self.hangs: set[str] = set()
        self.islands: tuple[Island, ...] = ()
        self.fleet: list[HandedOver] = []
        self.left = WoundDown(quota_gpus=0, jobs=0, said="nothing is left")
        self.rows: dict[str, BringupRow] = {}
        self.archive: list[AuditEntry] = []
        self.opened: Counter[str] = Counter()

    # --- runners, as one host sees them --------------------------------------------------------

    def start(self, order: RunOrder) -> RunReport:
        key, step = order.key.text, order.key.step
        if step in self.not_allowed:
            raise BadInput(f"{order.run[0] if order.run else order.pipeline} is not among what this worker may run")
        with self._lock:
            if key not in self.runs:
                self.begun[key] += 1
                self.runs[key] = RunReport(phase=RunPhase.RUNNING, said="it runs", started_at=self.now())
                if step in self.ends:
                    self._end(key, self.ends[step])
            if self.lost_answers[step] > 0:
                self.lost_answers[step] -= 1
                raise Unavailable("connection reset")
            return self.runs[key]

    def look(self, order: RunOrder) -> RunReport | None:
        with self._lock:
            return None if order.key.text in self.forgets else self.runs.get(order.key.text)

    def stop(self, order: RunOrder) -> RunReport | None:
        with self._lock:
            if order.key.text in self.runs and self.runs[order.key.text].phase is RunPhase.RUNNING:
                self._end(order.key.text, RunPhase.STOPPED)
            return self.runs.get(order.key.text)

    def end(self, key: str, phase: RunPhase = RunPhase.SUCCEEDED) -> None:
        with self._lock:
            self._end(key, phase)

    def _end(self, key: str, phase: RunPhase) -> None:
        said, code = ("exit status 0", 0) if phase is RunPhase.SUCCEEDED else ("exit status 1", 1)
        self.runs[key] = self.runs[key].but(phase=phase, said=said, code=code, tail="the end", ended_at=self.now())

    # --- checks ----------------------------------------------------------------------------------

    def check(self, order: CheckOrder) -> CheckAnswer:
        self.asked[order.name] += 1
        if order.name in self.hangs:
            threading.Event().wait(30)
        colour = self.says.get(order.name, Colour.GREEN)
        islands = (self.islands or order.islands) if order.kind is CheckKind.CAPACITY else ()
        return CheckAnswer(colour=colour, said=f"{order.name} is {colour}", at=self.now(), islands=islands)

    # --- the ledger and the fleet ---------------------------------------------------------------

    def open(self, start: BringupStart, at: datetime) -> OpenedBringup:
        refused = too_much(start.entry, POLICY)
        self.opened[start.entry.cluster] += not refused
        return OpenedBringup(number=max(1, self.opened[start.entry.cluster]), refused=refused)

    def record(self, record: BringupRecord) -> None:
        self.rows[record.row.cluster] = record.row
        known = {entry.key for entry in self.archive}
        self.archive += [entry for entry in record.entries if entry.key not in known]

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        plan = first_plan(request.entry, request.islands, POLICY)
        return self._stands(request, plan.values, plan.hash)

    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        assert request.granted is not None
        return self._stands(request, next_values(request.entry, request.islands, request.granted, POLICY), "")

    def _stands(self, request: HandOverRequest, values: dict[str, int], plan: str) -> HandedOver:
        lack = owed(request.entry, values)
        answer = HandedOver(
            plan_hash=plan, granted=values, owed=lack, islands=request.islands, said="it is in the fleet"
        )
        self.fleet.append(answer)
        return answer

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        return self.left

    def parts(self, host: str = "") -> BringupParts:
        return BringupParts(self, self, self, self, host)


class Story:
    """One bring-up on a server, as people see it."""

    def __init__(self, client: Client, site: Site, entry: BringupEntry, recipe: ClusterRecipe) -> None:
        self.client, self.site = client, site
        self.start = BringupStart(entry=entry, recipe=recipe, actor="ann")
        self.id = bringup_workflow_id(entry.cluster)
        self.answer: BringupAnswer | None = None

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(self.id, result_type=BringupAnswer)

    async def begin(self) -> BringupAnswer:
        """Begin the bring-up; return the answer: it runs, or why it does not."""
        await self.client.start_workflow(
            BRINGUP_WORKFLOW,
            BringupInput(start=self.start),
            id=self.id,
            task_queue=TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        answer: BringupAnswer = await self.handle.execute_update(LAUNCHED_UPDATE, result_type=BringupAnswer)
        return answer

    async def status(self) -> BringupStatus:
        async for _ in async_attempts(f"{self.id} tells its status"):
            with contextlib.suppress(WorkflowQueryFailedError, RPCError):  # it moves on, or its worker has just died
                status: BringupStatus = await self.handle.query(STATUS_QUERY, result_type=BringupStatus)
                return status
        raise AssertionError("attempts end by themselves")

    async def say(self, command: str, **fields: Any) -> BringupCommandAnswer:
        order = BringupOrder(actor="ann", **{"reason": "because", **fields})
        update = uuid.uuid4().hex
        async for _ in async_attempts(f"{self.id} takes {command}"):
            try:
                answer: BringupCommandAnswer = await self.handle.execute_update(
                    command, order, id=update, result_type=BringupCommandAnswer
                )
                return answer
            except RPCError as error:  # a history begins again at this moment: client/workflow_calls.py asks again too
                if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                    raise
        raise AssertionError("attempts end by themselves")

    async def until(self, true: Callable[[BringupStatus], bool], seconds: float = PATIENCE) -> BringupStatus:
        return await seen(self.status, true, f"{self.id} is so", seconds)


@asynccontextmanager
async def worker_of(
    client: Client, ledger_url: str, home: Path, site: Site, host: str = "", keys: KeysOf | None = None
) -> AsyncIterator[None]:
    """A worker that takes part in bring-ups, until the context ends. `keys`: of fronts."""
    in_memory = client.service_client if isinstance(client.service_client, InMemoryTemporal) else None
    site.now = utc_now if in_memory is None else in_memory.now
    notify = Notifier(home / "notices.jsonl", site.now, None)
    with Ledger(ledger_url, now=site.now) as ledger, ThreadPoolExecutor(16) as executor:
        async with make_worker(client, ledger, notify, executor, bringups=site.parts(host), keys=keys):
            yield
            if in_memory is not None:
                await in_memory.workflows.replay()
