"""A worker as deployed that also counts: SQL statements and CPU by activity, CPU of workflow tasks and of the loop that
serves them and, if asked, what it keeps in memory.

At SIGUSR1 it writes what it has counted so far into the file that BACKSTOP_PROFILE names. Run by benchmarks/profile.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import signal
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import temporalio.worker._activity
from temporalio import activity

from workers import workflow_sandbox

VARIABLE, ALLOCATIONS = "BACKSTOP_PROFILE", "BACKSTOP_PROFILE_ALLOCATIONS"
_statements: Counter[str] = Counter()
_texts: Counter[str] = Counter()
_cpu: Counter[str] = Counter()
"""Nanoseconds of a thread."""
_LENGTH = 110


def _caller() -> str:
    return activity.info().activity_type if activity.in_activity() else "(no activity)"


def _counts(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
    caller, words = _caller(), " ".join(statement.split())
    _statements[caller] += 1
    _texts[f"{caller}: {words[:_LENGTH]}"] += 1


def _begins(_c: Any) -> None:
    _statements[f"{_caller()}: transactions"] += 1


def _timed(call: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    """Wrap a call, so that its thread's CPU is counted under that name."""

    @wraps(call)
    def timed(*args: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return call(*args)
        finally:
            _cpu[name(*args)] += time.thread_time_ns() - began

    return timed


def _loop() -> int:
    """Return the CPU nanoseconds of this thread, which runs the SDK's loop."""
    assert threading.current_thread() is threading.main_thread()
    return time.thread_time_ns()


def _held() -> dict[str, list[int]]:
    """Return bytes and blocks of memory in use, by file."""
    if not tracemalloc.is_tracing():
        return {}
    found = tracemalloc.take_snapshot().statistics("filename")
    return {s.traceback[0].filename: [s.size, s.count] for s in found}


def _threads() -> dict[str, int]:
    """Return CPU nanoseconds by the name of each Python thread; the rest of the process is Temporal's core."""
    found = Counter[str]()
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
            ticks = sum(int(field) for field in fields[11:13])
            found[f"thread {re.sub(r'[-_ ]*[0-9]+$', '', thread.name)}"] += ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return found


def _write(*_: Any) -> None:
    path = Path(os.environ[VARIABLE])
    part = path.with_suffix(".part")
    cpu = {**_cpu, "the loop: the SDK, payloads, the watch's signals": _loop(), "in all": time.process_time_ns()}
    counted = {"statements": _statements, "texts": _texts, "cpu": cpu, "threads": _threads(), "held": _held()}
    part.write_text(json.dumps(counted))
    part.rename(path)


def main() -> None:
    sa.event.listen(sa.Engine, "before_cursor_execute", _counts)
    sa.event.listen(sa.Engine, "begin", _begins)
    signal.signal(signal.SIGUSR1, _write)
    sdk: Any = temporalio.worker._activity
    sdk._execute_sync_activity = _timed(sdk._execute_sync_activity, lambda info, *_: f"activity {info.activity_type}")
    of_tasks: Any = workflow_sandbox._OnTime
    of_tasks.activate = _timed(of_tasks.activate, lambda *_: "workflow tasks")
    if os.environ.get(ALLOCATIONS):
        tracemalloc.start()
    runpy.run_module("workers.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
