"""The worker of benchmarks/bare.py: the SDK's own runner and converter, with the settings of workers/main.py."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities.adapters.ledger.database import Database
from benchmarks.bare import QUEUE, WORK, Bare, Call
from client.connection import NAMESPACE
from client.stop_signal import until_told
from workers.interceptors import Heartbeats
from workers.main import _CACHED, _THREADS, run_and_exit, sandbox


class Work:
    """Activities that do nothing; with a ledger they read one row and commit as many trivial transactions as ours."""

    def __init__(self, ledger: Database | None, ends: Path) -> None:
        self._ledger = ledger
        self._ends = os.open(ends, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if ledger is not None:
            with ledger.begin() as session:
                session.connection().execute(sa.text("CREATE TABLE IF NOT EXISTS ticks (id INTEGER, n INTEGER)"))
                session.connection().execute(sa.text("INSERT INTO ticks VALUES (1, 0)"))

    @activity.defn(name=WORK, no_thread_cancel_exception=True)
    def work(self, call: Call) -> str:
        if self._ledger is not None and call.commits is not None:
            with self._ledger.reading() as session:
                session.connection().execute(sa.text("SELECT n FROM ticks WHERE id = 1")).one()
            for _ in range(call.commits):
                with self._ledger.begin() as session:
                    session.connection().execute(sa.text("UPDATE ticks SET n = n + 1 WHERE id = 1"))
        if call.done:
            os.write(self._ends, f"{call.done}\n".encode())
        return "x" * call.answers


async def _serve(address: str, ends: str, ledger_url: str) -> None:
    client = await Client.connect(address, namespace=NAMESPACE, data_converter=pydantic_data_converter)
    ledger = Database(ledger_url) if ledger_url else None
    with ThreadPoolExecutor(_THREADS) as executor:
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[Bare],
            activities=[Work(ledger, Path(ends)).work],
            activity_executor=executor,
            workflow_runner=sandbox(),
            interceptors=[Heartbeats()],
            max_concurrent_activities=_THREADS,
            max_cached_workflows=_CACHED,
            graceful_shutdown_timeout=timedelta(seconds=5),
        ):
            print(f"worker: serving {client.namespace}", flush=True)
            await until_told()
    if ledger is not None:
        ledger.close()


if __name__ == "__main__":
    run_and_exit(lambda: _serve(*sys.argv[1:]))
