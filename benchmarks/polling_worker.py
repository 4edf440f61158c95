"""The worker of benchmarks/polling.py: one look reads a cluster's quotas and health, and finds what is short."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities.adapters.ledger.facade import Ledger
from activities.rollout.observation import islands_for
from benchmarks.polling import LOOK, QUEUE, Polling
from client.connection import NAMESPACE
from client.stop_signal import until_told
from models.cluster.snapshot import Snapshot
from models.planning.backing import back
from workers.main import _CACHED, _THREADS, run_and_exit, sandbox


class Looks:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @activity.defn(name=LOOK, no_thread_cancel_exception=True)
    def look(self, cluster: str) -> dict[str, int]:
        """Return the GPUs that each quota lacks."""
        reading = self._ledger.quotas.read(cluster)
        sample = self._ledger.health.read([cluster])[cluster]
        quotas = tuple(p.as_quota() for p in reading.quotas)
        found = back(Snapshot(cluster=cluster, islands=islands_for(quotas, sample), quotas=quotas))
        return {} if found.is_backed else dict(found.shortage)


async def _serve(address: str, ledger_url: str) -> None:
    client = await Client.connect(address, namespace=NAMESPACE, data_converter=pydantic_data_converter)
    with Ledger(ledger_url) as ledger, ThreadPoolExecutor(_THREADS) as executor:
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[Polling],
            activities=[Looks(ledger).look],
            activity_executor=executor,
            workflow_runner=sandbox(),
            max_concurrent_activities=_THREADS,
            max_cached_workflows=_CACHED,
            graceful_shutdown_timeout=timedelta(seconds=5),
        ):
            print(f"worker: serving {client.namespace}", flush=True)
            await until_told()


if __name__ == "__main__":
    run_and_exit(lambda: _serve(*sys.argv[1:]))
