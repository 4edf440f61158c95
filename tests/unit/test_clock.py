"""The product reads the time from the clock that it is given (activities/clock.py), so that a test can turn it."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bringup.calls import RunActivities
from activities.requests.overdue_grants import Sweeper
from models.bringup.messages import FollowRun
from models.bringup.runs import RunKey, Runner, RunOrder, RunReport
from tests.unit.loop_clock import LoopClock
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
FOLDERS = ("models", "activities", "workflows", "client", "workers", "web")
READS = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"),
    *("utils.localtime", "localtime", "utc_now"),
}
LOOPLESS = {"time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.sleep"}
"""What a coroutine asks the event loop for."""
EXCEPTIONS = {
    "activities/clock.py": 1,  # the real clock itself
    "activities/adapters/http.py": 1,  # an event loop of its own, begun by a thread that has a deadline
    "activities/adapters/runners/command.py": 1,  # the age of what the supervisor noted, by the same host's clock
    "activities/adapters/runners/wrapper.py": 2,  # the supervisor, a program of its own
    "client/inputs/csv_table.py": 1,
    "client/login.py": 2,
    "client/new_rollout_id.py": 1,
    "client/watch_check.py": 1,  # the age of what the Temporal server noted
    "client/worker_builds.py": 1,  # as the check of the watch
    "workers/demo.py": 2,
    "workers/demo_harness.py": 6,
    "workers/offline_status.py": 1,
    "workers/up.py": 1,
}
"""How often a file may do so. Processes that a person starts and waits for, and comparisons with other programs."""


def name_of(call: ast.Call) -> str:
    """The last two words of what is called: `datetime.now` of `datetime.datetime.now(UTC)`."""
    return ".".join(ast.unparse(call.func).split(".")[-2:])


def readings(tree: ast.AST, in_coroutine: bool = False) -> Iterator[int]:
    """Lines that read a clock which nobody can turn."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and name_of(node) in (READS | LOOPLESS if in_coroutine else READS):
            yield node.lineno
        plain = isinstance(node, ast.FunctionDef)
        yield from readings(node, isinstance(node, ast.AsyncFunctionDef) or (in_coroutine and not plain))


def test_nothing_reads_a_clock_that_nobody_can_turn() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    lines = {path.relative_to(ROOT).as_posix(): list(readings(ast.parse(path.read_text()))) for path in files}
    more = {path: at for path, at in lines.items() if len(at) > EXCEPTIONS.get(path, 0)}
    assert more == {}, "take `now: Clock` (activities/clock.py); in a coroutine, the event loop's time"
    fewer = Counter(EXCEPTIONS) - Counter({path: len(at) for path, at in lines.items()})
    assert fewer == {}, "take these out of EXCEPTIONS: they only become fewer"


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("at = datetime.now(UTC)", True),
        ("at = datetime.datetime.now()", True),
        ("since = time.time()", True),
        ("header = format_datetime(localtime())", True),
        ("at = utc_now()", True),
        ("at = self._now()", False),
        ("at = datetime.fromtimestamp(seconds, UTC)", False),
        ("ends = time.monotonic() + 5", False),
    ],
)
def test_what_reads_a_clock_is_found(line: str, reads: bool) -> None:
    assert list(readings(ast.parse(f"def f(now=lambda: 0):\n    {line}\n"))) == [2] * reads


def test_a_coroutine_that_measures_past_its_loop_is_found() -> None:
    code = "async def f():\n    time.sleep(1)\n    def thread():\n        time.monotonic()\n    loop.time()\n"
    assert list(readings(ast.parse(code))) == [2]


# --- what waits goes by the event loop's time ----------------------------------------------------


class Nobody:
    """A runner that knows nothing of the run; each look takes half an hour of the loop's time."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.looks = 0

    def start(self, order: RunOrder) -> RunReport:
        raise NotImplementedError

    stop = start

    def look(self, order: RunOrder) -> None:
        self.looks += 1
        self.clock.forward(1800)


async def test_a_run_that_leaves_no_trace_is_given_up_once_it_had_time_to_settle(loop_clock: LoopClock) -> None:
    order = RunOrder.model_validate(
        {
            "key": RunKey(cluster="h100-new", attempt=1, step="burn-in"),
            "runner": Runner.COMMAND,
            "run": ("true",),
            "limit": timedelta(hours=3),
        }
    )
    nobody: Any = Nobody(loop_clock)
    with ThreadPoolExecutor(1) as threads:
        hour = timedelta(hours=1)
        request = FollowRun(order=order, seen=True, settle=hour, every=timedelta(milliseconds=1), news=9 * hour)
        followed = asyncio.create_task(ActivityEnvironment().run(RunActivities(nobody, threads).follow, request))
        try:
            await eventually(followed.done, "it is given up")
        finally:
            followed.cancel()
    assert (followed.result().report, nobody.looks) == (None, 3)


async def test_overdue_grants_are_looked_for_once_a_minute(loop_clock: LoopClock) -> None:
    class Requests:
        looks = 0

        def requests(self) -> tuple[()]:
            self.looks += 1
            return ()

    book: Any = Requests()
    nobody: Any = None
    sweeper, now = Sweeper(nobody, book), datetime(2026, 3, 2, tzinfo=UTC)
    for seconds, looks in ((0, 1), (30, 1), (31, 2), (1, 2)):
        loop_clock.forward(seconds)
        await sweeper.go_on(now)
        assert book.looks == looks
