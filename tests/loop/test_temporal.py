"""The contract of Temporal, as far as we rely on it: the server in memory and the real one give the same facts.

Each scene is a function of a client and a task queue. What comes of it is compared with a literal, on both servers.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import RetryState, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateStage,
)
from temporalio.common import (
    QueryRejectCondition,
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from models.temporal_names import SearchName
from tests.e2e.world import connected
from tests.loop.temporal import InMemoryTemporal
from tests.waiting import eventually
from workers.embedded_temporal import EmbeddedTemporal

OWNER = SearchAttributeKey.for_keyword(SearchName.OWNER)
STAGE = SearchAttributeKey.for_keyword(SearchName.STAGE)
UNBACKED = SearchAttributeKey.for_int(SearchName.UNBACKED)
TENTH = timedelta(seconds=0.1)
MINUTE = timedelta(minutes=1)

UNANSWERED = "Workflow Update failed because the Workflow completed before the Update completed."

_numbers = itertools.count(1)


class Gates:
    """A place where a workflow's task stops until the test lets it go on; meanwhile the worker is busy."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()


GATES: dict[str, Gates] = {}
"""By workflow id."""


def stand(workflow_id: str) -> None:
    """Once; a task that is done again goes on."""
    gates = GATES.get(workflow_id)
    if gates is not None and not gates.reached.is_set():
        gates.reached.set()
        gates.free.wait(60)


# --- workflows ------------------------------------------------------------------------------------


@workflow.defn
class Listener:
    """Hears what it is told, and ends or continues as new when it is told so."""

    @workflow.init
    def __init__(self, heard: list[str]) -> None:
        self.heard = list(heard)
        self.then = ""

    @workflow.run
    async def run(self, heard: list[str]) -> list[str]:
        await workflow.wait_condition(lambda: bool(self.then))
        if self.then != "leave":
            stand(workflow.info().workflow_id)
        if self.then == "again":
            workflow.continue_as_new(self.heard)
        if self.then == "fail":
            raise ApplicationError("it went wrong", type="Wrong")
        return self.heard

    @workflow.signal
    def say(self, word: str) -> None:
        self.heard.append(word)

    @workflow.signal
    def go(self, how: str) -> None:
        self.then = how

    @workflow.query
    def words(self) -> list[str]:
        return self.heard

    @workflow.query
    def wrong(self) -> str:
        raise ApplicationError("nobody knows")

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def ask(self, word: str) -> str:
        if word == "fail":
            raise ApplicationError("it cannot be done", type="CannotBeDone")
        if word == "wait":
            await workflow.wait_condition(lambda: False)
        self.heard.append(word)
        return f"{word} is heard"

    @ask.validator
    def no(self, word: str) -> None:
        if word == "no":
            raise ApplicationError("it is refused", type="Refused")


@workflow.defn
class Noted:
    """Says of itself what a list can find."""

    def __init__(self) -> None:
        self.left = False

    @workflow.run
    async def run(self) -> list[Any]:
        before = [workflow.patched("one"), workflow.patched("one"), workflow.patched("two")]
        workflow.upsert_search_attributes([STAGE.value_set("late"), UNBACKED.value_set(8)])
        workflow.upsert_memo({"note": "new", "gone": None})
        await workflow.wait_condition(lambda: self.left)
        attributes = workflow.info().typed_search_attributes
        return [before, workflow.memo(), attributes.get(OWNER), attributes.get(STAGE), attributes.get(UNBACKED)]

    @workflow.signal
    def leave(self) -> None:
        self.left = True


@workflow.defn
class Timers:
    @workflow.run
    async def run(self) -> list[str]:
        order = list[str]()

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        dropped = asyncio.create_task(after(0.2, "dropped"))
        tasks = [asyncio.create_task(after(s, f"after {s}")) for s in (0.5, 0.1, 0.3)]
        await asyncio.sleep(0)
        dropped.cancel()
        try:
            await workflow.wait_condition(lambda: False, timeout=0.4)
        except TimeoutError:
            order.append("patience is over")
        await asyncio.gather(*tasks)
        return order


@workflow.defn
class Stubborn:
    """Cancelled, it says so and ends as if nothing were; or, as it was told, does not go on."""

    @workflow.run
    async def run(self, stubborn: bool) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not stubborn:
                raise
            return "cancelled, and done"
        return "nobody cancelled it"

    @workflow.query
    def there(self) -> bool:
        return True


@workflow.defn
class Caller:
    """Has an activity done."""

    @workflow.init
    def __init__(self, order: list[Any]) -> None:
        self.running = False

    @workflow.signal
    def runs(self) -> None:
        self.running = True

    @workflow.run
    async def run(self, order: list[Any]) -> Any:
        """`order`: the activity's name, its options, and what is done to it while it is under way."""
        name, options, then = order
        times: dict[str, Any] = {
            n: timedelta(seconds=v) for n, v in options.items() if n.endswith(("timeout", "interval", "delay"))
        }
        policy = RetryPolicy(
            initial_interval=times.pop("initial_interval", TENTH),
            backoff_coefficient=options.get("coefficient", 2.0),
            maximum_interval=times.pop("maximum_interval", None),
            maximum_attempts=options.get("attempts", 0),
            non_retryable_error_types=options.get("never", []),
        )
        if "schedule_to_close_timeout" not in times:
            times.setdefault("start_to_close_timeout", MINUTE)
        queue = workflow.info().task_queue + options.get("hands", "")
        waits = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        tries = workflow.ActivityCancellationType.TRY_CANCEL
        call: asyncio.Task[Any] = workflow.start_activity(
            name,
            options.get("number", 0),
            task_queue=queue,
            retry_policy=policy,
            cancellation_type=waits if then == "cancel and wait" else tries,
            **times,
        )
        try:
            if then:
                await workflow.wait_condition(lambda: self.running)
                call.cancel()
            return await call
        except ActivityError as error:
            cause = error.cause
            assert cause is not None
            kind = getattr(cause, "type", None)
            details = list(cause.last_heartbeat_details) if isinstance(cause, TemporalTimeout) else []
            state = error.retry_state and RetryState.Name(error.retry_state.value)  # type: ignore[arg-type]
            return [type(cause).__name__, kind if isinstance(kind, str) else kind and kind.name, state, *details]


# --- activities -----------------------------------------------------------------------------------

SEEN: dict[str, list[Any]] = {}
"""What activities saw, by workflow id."""


def note(fact: Any) -> None:
    SEEN.setdefault(activity.info().workflow_id or "", []).append(fact)


async def tell_workflow() -> None:
    handle = activity.client().get_workflow_handle(activity.info().workflow_id or "")
    await handle.signal(Caller.runs)


@activity.defn
async def at_try(number: int) -> int:
    """Succeeds at this attempt, and fails before."""
    info = activity.info()
    note(info.current_attempt_scheduled_time)
    if info.attempt < number:
        raise ApplicationError("not yet", type="NotYet")
    return info.attempt


@activity.defn
async def never(number: int) -> NoReturn:
    note(activity.info().attempt)
    raise ApplicationError("never", type="Never", non_retryable=True)


@activity.defn
async def soon(number: int) -> int:
    """Its next attempt is due at once, whatever the policy says."""
    if activity.info().attempt < number:
        raise ApplicationError("soon again", type="Soon", next_retry_delay=TENTH)
    return activity.info().attempt


@activity.defn
async def hang(number: int) -> None:
    """Beats once and does nothing more. At its attempt `number` it is done at once, at `-number` it fails."""
    info = activity.info()
    note([info.attempt, list(info.heartbeat_details)])
    if info.attempt == number:
        return
    if info.attempt == -number:
        raise ApplicationError("not yet", type="NotYet")
    activity.heartbeat(f"attempt {info.attempt}")
    await asyncio.Event().wait()


@activity.defn
async def beat(number: int) -> str:
    """Beats until it is cancelled. 1: and says then that it is done."""
    await tell_workflow()
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        why = activity.cancellation_details()
        assert why is not None
        note("cancelled" if why.cancel_requested else "there is no such activity" if why.not_found else str(why))
        if not number:
            raise
    return "done all the same"


@activity.defn
async def silent(number: int) -> str:
    """Beats never, so that nobody can tell it; ends when the test lets it."""
    await tell_workflow()
    gates = GATES[activity.info().workflow_id or ""]
    await asyncio.to_thread(gates.free.wait, 60)
    return "done"


@activity.defn
async def failing(number: int) -> NoReturn:
    raise ApplicationError("not yet", type="NotYet")


@activity.defn
async def until_shutdown(number: int) -> int:
    info = activity.info()
    note(info.attempt)
    if info.attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            why = activity.cancellation_details()
            note("worker shutdown" if why is not None and why.worker_shutdown else str(why))
            raise
    return info.attempt


WORKFLOWS: list[type] = [Listener, Noted, Timers, Stubborn, Caller]
ACTIVITIES: list[Callable[..., Any]] = [at_try, never, soon, hang, beat, silent, failing, until_shutdown]


# --- scenes ---------------------------------------------------------------------------------------

Scene = Callable[[Client, str], Coroutine[Any, Any, Any]]
SCENES: list[Any] = []
"""Each with what comes of it."""


def gives(facts: Any) -> Callable[[Scene], Scene]:
    def add(scene: Scene) -> Scene:
        SCENES.append(pytest.param(scene, facts, id=scene.__name__))
        return scene

    return add


def new_id() -> str:
    return f"scene-{next(_numbers)}"


async def listener(client: Client, queue: str, **more: Any) -> WorkflowHandle[Listener, list[str]]:
    arguments = {"id": new_id(), "task_queue": queue, **more}
    return await client.start_workflow(Listener.run, [], **arguments)


async def outcome(awaited: Awaitable[Any]) -> Any:
    """Return the result, or the error with its cause and type."""
    try:
        return await awaited
    except RPCError as error:
        return ["RPCError", error.status.name]
    except Exception as error:
        names = [type(error).__name__]
        cause: BaseException | None = getattr(error, "cause", None)
        while cause is not None:
            names.append(type(cause).__name__)
            if isinstance(cause, ApplicationError):
                names.append(f"{cause.type}: {cause.message}")
            cause = getattr(cause, "cause", None)
        return names


async def status_of(handle: WorkflowHandle[Any, Any]) -> str:
    status = (await handle.describe()).status
    assert status is not None
    return status.name


async def called(client: Client, queue: str, name: Any, then: str = "", **options: Any) -> Any:
    return (await called_and_seen(client, queue, name, then, **options))[0]


async def called_and_seen(client: Client, queue: str, name: Any, then: str = "", **options: Any) -> Any:
    workflow_id = new_id()
    answer = await client.execute_workflow(Caller.run, [name.__name__, options, then], id=workflow_id, task_queue=queue)
    return answer, SEEN.setdefault(workflow_id, [])


@gives(
    {
        "heard": ["one", "two"],
        "running": "RUNNING",
        "result": ["one", "two"],
        "status": "COMPLETED",
        "after its end": ["one", "two"],
        "signal after its end": ["RPCError", "NOT_FOUND"],
        "nobody": ["RPCError", "NOT_FOUND"],
        "failed query": ["WorkflowQueryFailedError"],
        "no such query": ["WorkflowQueryFailedError"],
        "only of open ones": ["WorkflowQueryRejectedError"],
        "only of those that were not stopped": ["one", "two"],
        "cancel after its end": None,
        "terminate after its end": ["RPCError", "NOT_FOUND"],
    }
)
async def signals_and_queries(client: Client, queue: str) -> Any:
    run = await listener(client, queue)
    await run.signal(Listener.say, "one")
    await run.signal(Listener.say, "two")
    facts: dict[str, Any] = {"heard": await run.query(Listener.words), "running": await status_of(run)}
    await run.signal(Listener.go, "leave")
    facts |= {"result": await run.result(), "status": await status_of(run)}
    facts["after its end"] = await run.query(Listener.words)
    facts["signal after its end"] = await outcome(run.signal(Listener.say, "late"))
    facts["nobody"] = await outcome(client.get_workflow_handle("nobody").signal("say", "word"))
    facts["failed query"] = await outcome(run.query(Listener.wrong))
    facts["no such query"] = await outcome(run.query("other"))
    facts["only of open ones"] = await outcome(
        run.query(Listener.words, reject_condition=QueryRejectCondition.NOT_OPEN)
    )
    facts["only of those that were not stopped"] = await run.query(
        Listener.words, reject_condition=QueryRejectCondition.NOT_COMPLETED_CLEANLY
    )
    facts["cancel after its end"] = await outcome(run.cancel())
    facts["terminate after its end"] = await outcome(run.terminate())
    return facts


@gives(
    {
        "accepted": "word is heard",
        "refused": ["WorkflowUpdateFailedError", "ApplicationError", "Refused: it is refused"],
        "failed": ["WorkflowUpdateFailedError", "ApplicationError", "CannotBeDone: it cannot be done"],
        "the same again": "word is heard",
        "by its handle": "word is heard",
        "refused, the same id with another word": "other is heard",
        "no such update": ["WorkflowUpdateFailedError", "ApplicationError"],
        "unknown id": ["RPCError", "NOT_FOUND"],
        "heard": ["word", "other"],
        "nobody": ["RPCError", "NOT_FOUND"],
        "the end came first": [
            "WorkflowUpdateFailedError",
            "ApplicationError",
            f"AcceptedUpdateCompletedWorkflow: {UNANSWERED}",
        ],
        "after its end": ["RPCError", "NOT_FOUND"],
        "after its end, the same again": "word is heard",
        "by its handle, after its end": "word is heard",
    }
)
async def updates(client: Client, queue: str) -> Any:
    run = await listener(client, queue)
    facts: dict[str, Any] = {
        "accepted": await run.execute_update(Listener.ask, "word", id="first"),
        "refused": await outcome(run.execute_update(Listener.ask, "no", id="second")),
        "failed": await outcome(run.execute_update(Listener.ask, "fail")),
        "the same again": await run.execute_update(Listener.ask, "word", id="first"),
    }
    first = run.get_update_handle_for(Listener.ask, "first")
    facts["by its handle"] = await first.result()
    facts["refused, the same id with another word"] = await run.execute_update(Listener.ask, "other", id="second")
    facts["no such update"] = (await outcome(run.execute_update("other", "word")))[:2]
    facts["unknown id"] = await outcome(run.get_update_handle("third").result(rpc_timeout=timedelta(seconds=10)))
    facts["heard"] = await run.query(Listener.words)
    facts["nobody"] = await outcome(client.get_workflow_handle("nobody").execute_update("ask", "word"))
    waiting = await run.start_update(Listener.ask, "wait", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    await run.signal(Listener.go, "leave")
    await run.result()
    facts["the end came first"] = await outcome(waiting.result())
    facts["after its end"] = await outcome(run.execute_update(Listener.ask, "late"))
    facts["after its end, the same again"] = await outcome(run.execute_update(Listener.ask, "word", id="first"))
    facts["by its handle, after its end"] = await first.result()
    return facts


def starting(
    queue: str, workflow_id: str, conflict: WorkflowIDConflictPolicy
) -> WithStartWorkflowOperation[Listener, list[str]]:
    return WithStartWorkflowOperation(Listener.run, [], id=workflow_id, task_queue=queue, id_conflict_policy=conflict)


@gives(
    {
        "starts": "one is heard",
        "the same update again": "one is heard",
        "uses what runs": "two is heard",
        "fails": ["WorkflowAlreadyStartedError"],
        "its start fails too": ["WorkflowAlreadyStartedError"],
        "heard": ["one", "two"],
        "one run": True,
        "refused": ["WorkflowUpdateFailedError", "ApplicationError", "Refused: it is refused"],
        "runs though it was refused": "RUNNING",
        "after its end": "five is heard",
        "another run": True,
    }
)
async def updates_with_start(client: Client, queue: str) -> Any:
    fail, use = WorkflowIDConflictPolicy.FAIL, WorkflowIDConflictPolicy.USE_EXISTING
    workflow_id = new_id()

    async def ask(word: str, start: WithStartWorkflowOperation[Any, Any], update_id: str | None = None) -> Any:
        update = client.execute_update_with_start_workflow(
            Listener.ask, word, start_workflow_operation=start, id=update_id
        )
        return await outcome(update)

    starts, uses, refused = starting(queue, workflow_id, fail), starting(queue, workflow_id, use), new_id()
    facts: dict[str, Any] = {"starts": await ask("one", starts, "first")}
    facts["the same update again"] = await ask("one", starting(queue, workflow_id, fail), "first")
    facts["uses what runs"] = await ask("two", uses)
    fails = starting(queue, workflow_id, fail)
    facts["fails"] = await ask("three", fails)
    facts["its start fails too"] = await outcome(fails.workflow_handle())
    run = await starts.workflow_handle()
    facts["heard"] = await run.query(Listener.words)
    facts["one run"] = run.result_run_id == (await uses.workflow_handle()).result_run_id
    facts["refused"] = await ask("no", starting(queue, refused, fail))
    facts["runs though it was refused"] = await status_of(client.get_workflow_handle(refused))
    await run.signal(Listener.go, "leave")
    await run.result()
    again = starting(queue, workflow_id, fail)
    facts["after its end"] = await ask("five", again)
    facts["another run"] = run.result_run_id != (await again.workflow_handle()).result_run_id
    return facts


@gives(
    {
        "running": ["WorkflowAlreadyStartedError"],
        "running, its own id": True,
        "terminated for another": ["RUNNING", "TERMINATED"],
        "reject": ["WorkflowAlreadyStartedError"],
        "failed only": ["WorkflowAlreadyStartedError"],
        "allowed": "RUNNING",
        "failed only, of a failed one": "RUNNING",
        "failed only, of a cancelled one": "RUNNING",
        "failed only, of a terminated one": "RUNNING",
    }
)
async def workflow_ids(client: Client, queue: str) -> Any:
    conflicts, reuses = WorkflowIDConflictPolicy, WorkflowIDReusePolicy
    first = await listener(client, queue)
    own = {"id": first.id}
    facts: dict[str, Any] = {"running": await outcome(listener(client, queue, **own))}
    uses = await listener(client, queue, **own, id_conflict_policy=conflicts.USE_EXISTING)
    facts["running, its own id"] = uses.result_run_id == first.result_run_id
    second = await listener(client, queue, **own, id_conflict_policy=conflicts.TERMINATE_EXISTING)
    ended = client.get_workflow_handle(first.id, run_id=first.result_run_id)
    facts["terminated for another"] = [await status_of(second), await status_of(ended)]
    await second.signal(Listener.go, "leave")
    await second.result()
    facts["reject"] = await outcome(listener(client, queue, **own, id_reuse_policy=reuses.REJECT_DUPLICATE))
    failed_only = {**own, "id_reuse_policy": reuses.ALLOW_DUPLICATE_FAILED_ONLY}
    facts["failed only"] = await outcome(listener(client, queue, **failed_only))
    third = await listener(client, queue, **own, id_reuse_policy=reuses.ALLOW_DUPLICATE)
    facts["allowed"] = await status_of(third)
    await third.signal(Listener.go, "fail")
    await outcome(third.result())
    fourth = await listener(client, queue, **failed_only)
    facts["failed only, of a failed one"] = await status_of(fourth)
    await fourth.cancel()
    await outcome(fourth.result())
    fifth = await listener(client, queue, **failed_only)
    facts["failed only, of a cancelled one"] = await status_of(fifth)
    await fifth.terminate()
    facts["failed only, of a terminated one"] = await status_of(await listener(client, queue, **failed_only))
    return facts


@gives(
    {
        "cancelled": [["WorkflowFailureError", "CancelledError"], "CANCELED"],
        "stubborn": ["cancelled, and done", "COMPLETED"],
        "twice": None,
        "terminated": [["WorkflowFailureError", "TerminatedError"], "TERMINATED"],
        "why": "it is in the way",
        "failed": [["WorkflowFailureError", "ApplicationError", "Wrong: it went wrong"], "FAILED"],
        "too long": [["WorkflowFailureError", "TimeoutError"], "TIMED_OUT"],
        "too long, in its second run": [["WorkflowFailureError", "TimeoutError"], "TIMED_OUT"],
    }
)
async def ends(client: Client, queue: str) -> Any:
    async def stubborn(so: bool) -> WorkflowHandle[Stubborn, str]:
        run = await client.start_workflow(Stubborn.run, so, id=new_id(), task_queue=queue)
        await run.query(Stubborn.there)  # it has begun
        return run

    meek, firm, third = await stubborn(so=False), await stubborn(so=True), await stubborn(so=False)
    facts: dict[str, Any] = {}
    await meek.cancel()
    facts["cancelled"] = [await outcome(meek.result()), await status_of(meek)]
    await firm.cancel()
    facts["stubborn"] = [await outcome(firm.result()), await status_of(firm)]
    busy = await listener(client, queue)
    GATES[busy.id] = Gates()
    await busy.signal(Listener.go, "stand")
    await asyncio.to_thread(GATES[busy.id].reached.wait, 60)
    await busy.cancel()
    facts["twice"] = await outcome(busy.cancel())
    GATES[busy.id].free.set()
    await third.terminate(reason="it is in the way")
    facts["terminated"] = [await outcome(third.result()), await status_of(third)]
    try:
        await third.result()
    except Exception as error:
        facts["why"] = str(getattr(error, "cause", error))
    failed = await listener(client, queue)
    await failed.signal(Listener.go, "fail")
    facts["failed"] = [await outcome(failed.result()), await status_of(failed)]
    limited = [await listener(client, queue, execution_timeout=timedelta(seconds=1)) for _ in range(2)]
    await limited[1].signal(Listener.go, "again")
    late = [[await outcome(run.result()), await status_of(client.get_workflow_handle(run.id))] for run in limited]
    facts["too long"], facts["too long, in its second run"] = late
    return facts


@gives(
    {
        "update": "one is heard",
        "two runs": True,
        "result": ["one", "while it was busy", "two"],
        "of its first run": ["WorkflowContinuedAsNewError"],
        "first run": "CONTINUED_AS_NEW",
        "update while it was busy": "three is heard",
        "update of the first run": "one is heard",
    }
)
async def continues_as_new(client: Client, queue: str) -> Any:
    run = await listener(client, queue)
    gates = GATES[run.id] = Gates()
    facts: dict[str, Any] = {"update": await run.execute_update(Listener.ask, "one", id="first")}
    await run.signal(Listener.go, "again")
    await asyncio.to_thread(gates.reached.wait, 60)
    await run.signal(Listener.say, "while it was busy")
    gates.free.set()
    current = client.get_workflow_handle_for(Listener.run, run.id)

    async def newer() -> bool:
        return (await current.describe()).run_id != run.result_run_id

    await eventually(newer, "its second run")
    facts["two runs"] = True
    await current.signal(Listener.say, "two")
    await current.signal(Listener.go, "leave")
    facts["result"] = await run.result()
    facts["of its first run"] = await outcome(run.result(follow_runs=False))
    first = client.get_workflow_handle(run.id, run_id=run.result_run_id)
    facts["first run"] = await status_of(first)
    facts["update of the first run"] = await outcome(
        first.get_update_handle("first", workflow_run_id=run.result_run_id).result()
    )

    run = await listener(client, queue)
    gates = GATES[run.id] = Gates()
    await run.signal(Listener.go, "again")
    await asyncio.to_thread(gates.reached.wait, 60)
    current = client.get_workflow_handle_for(Listener.run, run.id)
    asking = asyncio.create_task(current.execute_update(Listener.ask, "three"))
    for _ in range(20):
        await asyncio.sleep(0)
    gates.free.set()
    facts["update while it was busy"] = await outcome(asking)
    return facts


@gives(
    {
        "a signal": ["while it was busy"],
        "a query": [],
    }
)
async def ends_while_something_comes(client: Client, queue: str) -> Any:
    facts: dict[str, Any] = {}

    async def busy(how: str) -> tuple[WorkflowHandle[Listener, list[str]], Gates]:
        run = await listener(client, queue)
        gates = GATES[run.id] = Gates()
        await run.signal(Listener.go, how)
        await asyncio.to_thread(gates.reached.wait, 60)
        return run, gates

    run, gates = await busy("end")
    await run.signal(Listener.say, "while it was busy")
    gates.free.set()
    facts["a signal"] = await run.result()
    run, gates = await busy("end")
    asking = asyncio.create_task(run.query(Listener.words))
    for _ in range(20):
        await asyncio.sleep(0)
    gates.free.set()
    facts["a query"] = await outcome(asking)
    return facts


@gives(["after 0.1", "after 0.3", "patience is over", "after 0.5"])
async def timers(client: Client, queue: str) -> Any:
    return await client.execute_workflow(Timers.run, id=new_id(), task_queue=queue)


@gives(
    {
        "described": [{"kept": 1, "note": "new"}, "tpm", "late", 8],
        "itself": [[True, True, True], {"kept": 1, "note": "new"}, "tpm", "late", 8],
        "by owner": True,
        "by stage": True,
        "by another stage": 0,
        "counted": 1,
        "by status": True,
        "in its next run": ["tpm", {"kept": 1}],
    }
)
async def attributes_and_memo(client: Client, queue: str) -> Any:
    name = new_id()
    run = await client.start_workflow(
        Noted.run,
        id=name,
        task_queue=queue,
        memo={"kept": 1, "note": "old", "gone": "soon"},
        search_attributes=TypedSearchAttributes([SearchAttributePair(OWNER, "tpm"), SearchAttributePair(STAGE, "s")]),
    )

    async def upserted() -> bool:
        return (await run.describe()).typed_search_attributes.get(STAGE) in ["late"]

    await eventually(upserted, "its stage is late")
    described = await run.describe()
    typed = described.typed_search_attributes
    facts: dict[str, Any] = {
        "described": [await described.memo(), typed.get(OWNER), typed.get(STAGE), typed.get(UNBACKED)]
    }

    async def listed(*conditions: str) -> list[str]:
        query = " AND ".join([*conditions, f"WorkflowId = '{name}'"])
        return [row.id async for row in client.list_workflows(query)]

    async def comes(*conditions: str) -> bool:
        async def is_listed() -> bool:
            return await listed(*conditions) == [name]

        await eventually(is_listed, f"listed by {conditions}")
        return True

    facts["by stage"] = await comes(f"{SearchName.STAGE} = 'late'", "WorkflowType = 'Noted'")
    facts["by owner"] = await comes(f"{SearchName.OWNER} = 'tpm'", "ExecutionStatus = 'Running'")
    facts["by another stage"] = len(await listed(f"{SearchName.STAGE} = 'soon'"))
    facts["counted"] = (await client.count_workflows(f"WorkflowId = '{name}'")).count
    await run.signal(Noted.leave)
    facts["itself"] = await run.result()
    facts["by status"] = await comes("ExecutionStatus = 'Completed'", "ExecutionStatus != 'Running'")
    again = await listener(
        client, queue, memo={"kept": 1}, search_attributes=TypedSearchAttributes([SearchAttributePair(OWNER, "tpm")])
    )
    await again.signal(Listener.go, "again")
    current = client.get_workflow_handle(again.id)

    async def newer() -> bool:
        return (await current.describe()).run_id != again.result_run_id

    await eventually(newer, "its second run")
    described = await current.describe()
    facts["in its next run"] = [described.typed_search_attributes.get(OWNER), await described.memo()]
    return facts


@gives(
    {
        "third attempt": 3,
        "backoff": [True, True],
        "no more than": [True, True],
        "as many attempts as there may be": ["ApplicationError", "NotYet", "RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED"],
        "non-retryable": (["ApplicationError", "Never", "RETRY_STATE_NON_RETRYABLE_FAILURE"], [1]),
        "non-retryable type": ["ApplicationError", "NotYet", "RETRY_STATE_NON_RETRYABLE_FAILURE"],
        "its own delay": 2,
        "too late for another": ["ApplicationError", "NotYet", "RETRY_STATE_TIMEOUT"],
    }
)
async def activity_retries(client: Client, queue: str) -> Any:
    third, times = await called_and_seen(client, queue, at_try, number=3, initial_interval=0.1, coefficient=3.0)
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    facts: dict[str, Any] = {"third attempt": third, "backoff": [gaps[0] >= 0.1, gaps[1] >= 0.3]}
    options: dict[str, Any] = {"initial_interval": 0.1, "coefficient": 1000.0, "maximum_interval": 0.2}
    _, times = await called_and_seen(client, queue, at_try, number=3, **options)
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    facts["no more than"] = [0.1 <= gaps[0] < 60, 0.2 <= gaps[1] < 60]
    facts["as many attempts as there may be"] = await called(client, queue, at_try, number=5, attempts=2)
    facts["non-retryable"] = await called_and_seen(client, queue, never)
    facts["non-retryable type"] = await called(client, queue, at_try, number=5, never=["NotYet"])
    facts["its own delay"] = await called(client, queue, soon, number=2, initial_interval=3600.0)
    facts["too late for another"] = await called(
        client, queue, at_try, number=5, initial_interval=60.0, schedule_to_close_timeout=30.0
    )
    return facts


@gives(
    {
        "start to close": ["TimeoutError", "START_TO_CLOSE", "RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED", "attempt 1"],
        "schedule to close": ["TimeoutError", "SCHEDULE_TO_CLOSE", "RETRY_STATE_TIMEOUT", "attempt 1"],
        "schedule to close, after a failure": ["TimeoutError", "SCHEDULE_TO_CLOSE", "RETRY_STATE_TIMEOUT", "attempt 2"],
        "schedule to start": ["TimeoutError", "SCHEDULE_TO_START", "RETRY_STATE_TIMEOUT"],
        "heartbeat": ["TimeoutError", "HEARTBEAT", "RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED", "attempt 1"],
        "heartbeat, then well": (None, [[1, []], [2, ["attempt 1"]]]),
        "start to close, then well": (None, [[1, []], [2, ["attempt 1"]]]),
    }
)
async def activity_timeouts(client: Client, queue: str) -> Any:
    beats: dict[str, Any] = {"heartbeat_timeout": 0.4}
    return {
        "start to close": await called(client, queue, hang, start_to_close_timeout=0.4, attempts=1),
        "schedule to close": await called(client, queue, hang, schedule_to_close_timeout=0.4),
        "schedule to close, after a failure": await called(
            client, queue, hang, number=-1, initial_interval=0.1, schedule_to_close_timeout=0.8
        ),
        "schedule to start": await called(client, queue, hang, hands="-of-nobody", schedule_to_start_timeout=0.4),
        "heartbeat": await called(client, queue, hang, **beats, attempts=1),
        "heartbeat, then well": await called_and_seen(client, queue, hang, number=2, **beats),
        "start to close, then well": await called_and_seen(client, queue, hang, number=2, start_to_close_timeout=0.4),
    }


@gives(
    {
        "try": ["CancelledError", None, "RETRY_STATE_CANCEL_REQUESTED"],
        "the activity is told": ["there is no such activity"],
        "wait": (["CancelledError", None, "RETRY_STATE_CANCEL_REQUESTED"], ["cancelled"]),
        "wait, and it is done": ("done all the same", ["cancelled"]),
        "one that nobody can tell": ["CancelledError", None, "RETRY_STATE_CANCEL_REQUESTED"],
        "between attempts": ["CancelledError", None, "RETRY_STATE_CANCEL_REQUESTED"],
        "between attempts, waiting": ["CancelledError", None, "RETRY_STATE_CANCEL_REQUESTED"],
    }
)
async def activity_cancellation(client: Client, queue: str) -> Any:
    beats: dict[str, Any] = {"heartbeat_timeout": 60.0}
    tried, seen = await called_and_seen(client, queue, beat, "cancel", **beats)
    facts: dict[str, Any] = {"try": tried}
    await eventually(lambda: bool(seen), "the activity is told")
    facts["the activity is told"] = list(seen)
    facts["wait"] = await called_and_seen(client, queue, beat, "cancel and wait", **beats)
    facts["wait, and it is done"] = await called_and_seen(client, queue, beat, "cancel and wait", number=1, **beats)
    workflow_id = new_id()
    GATES[workflow_id] = Gates()
    arguments: list[Any] = ["silent", {}, "cancel"]
    facts["one that nobody can tell"] = await client.execute_workflow(
        Caller.run, arguments, id=workflow_id, task_queue=queue
    )
    GATES[workflow_id].free.set()
    facts["between attempts"] = await cancelled_between_attempts(client, queue, "cancel")
    facts["between attempts, waiting"] = await cancelled_between_attempts(client, queue, "cancel and wait")
    return facts


async def cancelled_between_attempts(client: Client, queue: str, then: str) -> Any:
    """The server knows of the first failure before the cancel: cancelled in an attempt, that would be the answer."""
    order: list[Any] = ["failing", {"initial_interval": 60.0}, then]
    run = await client.start_workflow(Caller.run, order, id=new_id(), task_queue=queue)

    async def waits() -> bool:
        return [call.attempt for call in (await run.describe()).raw_description.pending_activities] == [2]

    await eventually(waits, "its first attempt has failed")
    await run.signal(Caller.runs)
    return await run.result()


@gives((2, [1, "worker shutdown", 2]))
async def worker_shutdown(client: Client, queue: str) -> Any:
    """The next worker has it done at its next attempt."""
    workflow_id = new_id()
    arguments: list[Any] = ["until_shutdown", {"hands": "-hands"}, ""]
    async with working(client, f"{queue}-hands", only_activities=True):
        run = await client.start_workflow(Caller.run, arguments, id=workflow_id, task_queue=queue)
        await eventually(lambda: SEEN.get(workflow_id) == [1], "its first attempt")
    async with working(client, f"{queue}-hands", only_activities=True):
        return await run.result(), SEEN[workflow_id]


@gives([0, 1])
async def pollers(client: Client, queue: str) -> Any:
    """Of a queue that nobody has ever polled, and of one with a worker."""

    async def polling(name: str) -> int:
        kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=name), task_queue_type=kind
        )
        return len((await client.workflow_service.describe_task_queue(request)).pollers)

    async def served() -> bool:
        return await polling(queue) == 1

    await eventually(served, "the worker is listed, a moment after its first poll")
    return [await polling(f"{queue}-nobody"), await polling(queue)]


# --- the two servers ------------------------------------------------------------------------------


@asynccontextmanager
async def working(client: Client, queue: str, only_activities: bool = False) -> AsyncIterator[None]:
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[] if only_activities else WORKFLOWS,
        activities=ACTIVITIES,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_heartbeat_throttle_interval=timedelta(seconds=0.05),
        default_heartbeat_throttle_interval=timedelta(seconds=0.05),
    )
    if worker._workflow_worker is not None:
        worker._workflow_worker._deadlock_timeout_seconds = None  # a task may stand still, and a machine be busy
    async with worker:
        yield


async def played(client: Client, scene: Scene) -> Any:
    queue = f"queue-{next(_numbers)}"
    async with working(client, queue):
        return await scene(client, queue)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Scene], Any]]:
    """Plays a scene on a real server: one for all, on a loop of theirs."""
    server = EmbeddedTemporal(tmp_path_factory.mktemp("contract"), None, None)
    with asyncio.Runner() as runner:
        runner.run(server.__aenter__())
        try:
            client = runner.run(connected(server.address))
            yield lambda scene: runner.run(played(client, scene))
        finally:
            runner.run(server.__aexit__(None, None, None))


@pytest.mark.filterwarnings("ignore:.*is not an async function")  # as all others of this folder are
@pytest.mark.parametrize(("scene", "facts"), SCENES)
def test_the_real_server(real: Callable[[Scene], Any], scene: Scene, facts: Any) -> None:
    assert real(scene) == facts


@pytest.mark.parametrize(("scene", "facts"), SCENES)
async def test_the_server_in_memory(temporal: Client, scene: Scene, facts: Any) -> None:
    assert await played(temporal, scene) == facts


async def test_a_run_that_goes_on_while_it_is_played_again_is_played_as_far_as_it_was(temporal: Client) -> None:
    server = temporal.service_client
    assert isinstance(server, InMemoryTemporal)
    async with working(temporal, "moves on"):
        run = await listener(temporal, "moves on")
        for word in ("one", "two", "three"):
            answer: Any = await run.execute_update(Listener.ask, word)
            assert answer == f"{word} is heard"
        GATES[run.id] = gates = Gates()
        playing = asyncio.create_task(server.workflows.replay())
        await run.signal(Listener.go, "end")
        await asyncio.to_thread(gates.reached.wait, 60)
        await playing  # a task stands still meanwhile, and nobody knows yet what comes of it
        gates.free.set()
        assert await run.result() == ["one", "two", "three"]
