"""A worker process: builds the adapters, serves workflows and activities, keeps the watch running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import pydantic
import scipy.sparse.csgraph  # noqa: F401 - as models.planning.block_program: a workflow task must not wait for imports
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.adapters.git.quotas import GitQuotas
from activities.adapters.http import Reach
from activities.adapters.kubernetes.api import KubernetesConnection
from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.kubernetes.kueue_quotas import KueueQuotas
from activities.adapters.ledger.database import NOT_MIGRATED
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.adapters.prometheus.prometheus import NO_SECRETS, PrometheusConnection, Prometheuses
from activities.adapters.seals.keepers import keepers_of
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.bringup.calls import BringupActivities, CheckActivities, RunActivities
from activities.bringup.handover import FleetBringups, next_order
from activities.clock import Clock, utc_now
from activities.desk.desk import DeskActivities
from activities.desk.second_persons import SecondPersonsDesk, changes_of, refusals_of
from activities.fleet.calls import FleetActivities
from activities.notices.sending import Sender
from activities.notices.sending_rounds import Rounds
from activities.notices.telling import NoticeActivities
from activities.ports.bringup import RolloutDoor
from activities.ports.notices import NotifyPort
from activities.ports.quota_systems import QuotaPort, SchedulerPort
from activities.requests.calls import RequestActivities
from activities.requests.overdue_grants import Sweeper
from activities.rollout.archive import ArchiveActivities
from activities.rollout.cluster_calls import ClusterActivities
from activities.rollout.effects import QuotaActivities
from activities.rollout.evidence import EvidenceRoom
from activities.rollout.rollout_client import TemporalRollouts
from activities.secret_files import SecretFiles
from activities.tickets.ticket_rights import Admission, short_by
from activities.tickets.warrants import KeysOf, Warrants
from activities.watch.health_watch import WatchActivities
from activities.watch.tallies import Tallier
from activities.workflow_starts import start_unless_running
from client import telemetry
from client.connection import connect, find_target
from client.front_key_files import key_book_file
from client.stop_signal import until_told
from client.watch_check import watches
from models.bringup.messages import BRINGUP_QUEUE, runs_queue
from models.errors import BackstopError, Refusal, Unavailable
from models.notice_digests import MailPace
from models.temporal_names import DEPLOYMENT, GUARD_QUEUE, NOTICE_QUEUE, TASK_QUEUE, WATCH_WORKFLOW, WatchInput
from workers.bringups import BringupParts, bringup_parts
from workers.first_looks import looking_first
from workers.front_public_keys import KeysKept, TicketsWanted, renew_keys
from workers.garbage_collection import tend_garbage
from workers.interceptors import Heartbeats, TicketsChecked, nothing_in_clear
from workers.private_files import keep_private
from workers.quiet_log import quiet_log
from workers.sealer import sealing
from workers.settings import Settings, load_settings
from workers.workflow_sandbox import OnTimeRunner
from workflows.bringup import BringupWorkflow
from workflows.cluster_rollout import ClusterRollout
from workflows.fleet_rollout import FleetRolloutWorkflow
from workflows.health_watch import HealthWatch
from workflows.ledger_desk import LedgerDesk
from workflows.notice_round import NoticeRound
from workflows.quota_request import QuotaRequest

logger = logging.getLogger("backstop.worker")
_THREADS = 16
"""The number of threads, and of slots, of each queue."""
_POLLS = 4
"""Open polls of a queue with few kinds of calls. With two, 150 breaches at once waited 5 s until a look began."""
_FOLLOWED = 2_000
"""Runs and waits for supply that one worker follows at once; each is a call that mostly waits."""
_CACHED = 5_000
"""Rollouts whose state is kept in memory; any further one is replayed whenever something happens to it."""
_KEEP_SECONDS = 10.0
"""Seconds between a worker's checks that the watch runs."""
_PASSED = ("models", "pydantic", "pydantic_core", "annotated_types", "numpy", "scipy", "opentelemetry", "activities")


FAILURES = (pydantic.ValidationError,)
"""Errors that fail a workflow: a start input that does not parse. With any other error it waits for a fixed worker."""


_RESTRICTIONS = SandboxRestrictions.default.with_passthrough_modules(*_PASSED)
_SERVING = _RESTRICTIONS.with_passthrough_modules("workflows")
"""A worker's workflows share one import of their code, which keeps no state of its own.

An import for each workflow took a fifteenth of a worker's time and most of its memory.
"""


def sandbox() -> SandboxedWorkflowRunner:
    """Return the sandbox in which a history is replayed."""
    return OnTimeRunner(restrictions=_RESTRICTIONS, versioned=False)


_WORKFLOWS = (BringupWorkflow, ClusterRollout, FleetRolloutWorkflow, HealthWatch, LedgerDesk, NoticeRound, QuotaRequest)


class _Calls(NamedTuple):
    """The activities, by their queue."""

    guard: list[Callable[..., Any]]
    notices: list[Callable[..., Any]]
    others: list[Callable[..., Any]]
    book: Callable[[RolloutDoor], FleetBringups]  # makes the book of bring-ups, which reaches rollouts
    first_looks: Callable[[], Iterator[str]]


class Telling(NamedTuple):
    """The pace of notices to people, and the address where they answer in a browser (empty: there is none)."""

    pace: MailPace = MailPace()
    console: str = ""


def make_worker(
    client: Client,
    ledger: Ledger,
    notify: NotifyPort,
    executor: ThreadPoolExecutor,
    quotas: QuotaPort | None = None,
    build_id: str = "",
    slurms: Slurms | None = None,
    git: GitQuotas | None = None,
    prometheus: Mapping[str, PrometheusConnection] | None = None,
    kubernetes: Mapping[str, KubernetesConnection] | None = None,
    telling: Telling | None = None,
    bringups: BringupParts | None = None,
    secrets: SecretFiles = NO_SECRETS,
    keys: KeysOf | None = None,
    wanted: TicketsWanted | None = None,
    now: Clock | None = None,
) -> Workers:
    """Make a worker with the ledger, and for some clusters Slurm, Git or Kueue, behind every port.

    `quotas` replaces these.

    It listens to each task queue with slots of its own, so that no queue waits for another one's calls: `executor` has
    the threads of the general one. `build_id`: of a versioned worker. Rollouts keep to the build that they began a run
    with (docs/adr/0012). `telling`: the pace of notices, and where people answer. Without `bringups` it takes no part
    in them. `keys`: of fronts; with them every command needs a ticket, or does once it is `wanted`. `now`: the clock of
    every call; without one, the ledger's.
    """
    wanted, now = wanted or TicketsWanted(), now or ledger.now
    slurms = slurms or Slurms(ledger, ledger.schedulers)
    prometheuses = Prometheuses(ledger, prometheus or {}, slurms.every, secrets=secrets)
    git = git or GitQuotas(ledger, SlurmQuotas(slurms), slurms)
    kuberneteses = Kuberneteses(ledger, kubernetes or {}, slurms.every, branches=git.last_read)
    kueue = KueueQuotas(ledger, git, git, kuberneteses, slurms.every)
    held = quotas or kueue
    admission = Admission(
        ledger.access, ledger.attribution, ledger.registry, short_by(held, ledger.health, ledger.registry)
    )
    warrants = Warrants(keys, ledger.warrants, ledger.registry, now, wanted=wanted.now, admission=admission)
    ledger.fleet.tokens_in_clear = lambda: not warrants.is_required
    ledger.fleet.policy_takes_two = lambda: warrants.is_required and admission.two_persons
    sources = slurms, kueue, prometheuses, kuberneteses
    calls = _calls(client, ledger, notify, held, *sources, telling or Telling(), warrants, now)
    tickets = [] if keys is None else [TicketsChecked(keys, wanted.is_known, now)]
    shared: dict[str, Any] = {
        "interceptors": [Heartbeats(), *nothing_in_clear(client.data_converter.payload_codec), *tickets],
        "max_concurrent_activities": _THREADS,
        "graceful_shutdown_timeout": timedelta(seconds=5),
        "deployment_config": None if not build_id else _deployment(build_id),
    }
    general = Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=_WORKFLOWS,
        # Runs of a build without the queues below, and grants' writes, call all of these here.
        activities=[*calls.guard, *calls.notices, *calls.others, *_bringup_calls(bringups, calls, client, warrants)],
        activity_executor=executor,
        workflow_runner=OnTimeRunner(restrictions=_SERVING, versioned=bool(build_id), now=now),
        workflow_failure_exception_types=FAILURES,
        max_cached_workflows=_CACHED,
        **shared,
    )
    guards, postmen = ThreadPoolExecutor(_THREADS, "guard"), ThreadPoolExecutor(_THREADS, "notices")
    shared["max_concurrent_activity_task_polls"] = _POLLS
    guard = Worker(client, task_queue=GUARD_QUEUE, activities=calls.guard, activity_executor=guards, **shared)
    notices = Worker(client, task_queue=NOTICE_QUEUE, activities=calls.notices, activity_executor=postmen, **shared)
    shared.pop("max_concurrent_activities")
    followers = [] if bringups is None else [ThreadPoolExecutor(_THREADS, "runs")]
    hands = [] if bringups is None else _run_workers(client, bringups, followers[0], shared, now)
    workers, threads = (general, guard, notices, *hands), (guards, postmen, *followers)
    return Workers(workers, threads, calls.first_looks, kuberneteses.stop)


def _bringup_calls(
    parts: BringupParts | None, calls: _Calls, client: Client, warrants: Warrants
) -> list[Callable[..., Any]]:
    """Return the calls of bring-ups to the ledger and the fleet."""
    if parts is None:
        return []
    book = calls.book(TemporalRollouts(client, asyncio.get_running_loop()))
    around = BringupActivities(parts.bringups or book, parts.production or book, warrants)
    return [around.open, around.record, around.hand_over, around.grant_owed, around.wind_down]


def _run_workers(
    client: Client, parts: BringupParts, threads: ThreadPoolExecutor, shared: dict[str, Any], now: Clock
) -> list[Worker]:
    """Make the workers that wait for runs and checks: for any host, and for the commands of this one."""
    runs, checks = RunActivities(parts.runners, threads, parts.host, now), CheckActivities(parts.checks, threads, now)
    of_runs: list[Callable[..., Any]] = [runs.start, runs.follow, runs.stop]
    queues: list[tuple[str, list[Callable[..., Any]]]] = [
        (BRINGUP_QUEUE, [*of_runs, runs.choose_host, checks.ask, checks.supply])
    ]
    if parts.host:
        queues.append((runs_queue(parts.host), of_runs))
    many = {**shared, "max_concurrent_activities": _FOLLOWED}
    return [Worker(client, task_queue=queue, activities=calls, **many) for queue, calls in queues]


def _calls(
    client: Client,
    ledger: Ledger,
    notify: NotifyPort,
    quotas: QuotaPort,
    slurms: Slurms,
    schedulers: SchedulerPort,
    prometheuses: Prometheuses,
    kuberneteses: Kuberneteses,
    telling: Telling,
    warrants: Warrants,
    now: Clock,
) -> _Calls:
    registry = ledger.registry
    usage = ledger.usage.feed_from(slurms.refresh_use, kuberneteses.refresh_use)
    # Usage is sampled beside health, at its own pace: the watch reads health all the time, and nobody reads usage.
    health = ledger.health.feed_from(
        *(prometheuses.refresh_health, kuberneteses.refresh_health, kuberneteses.refresh_use),
        *(slurms.refresh_health, slurms.refresh_use),
    )
    ports = replace(ledger.ports, quotas=quotas, health=health, usage=usage)
    rollouts = ClusterActivities(ports, warrants, now)
    fleets = FleetActivities(client, ports, rollouts, warrants)
    owed = ledger.bringups.owed_gpus
    asked = RequestActivities(client, ports, rollouts, owed, warrants)
    evidence = None
    if warrants.can_verify:
        evidence = EvidenceRoom(
            warrants, ports, rollouts.surplus, rollouts.snapshot_now, owed, partial(next_order, ledger.bringups)
        )
    tallier, sweeper = Tallier(ports, ledger.tallies), Sweeper(client, registry)
    sender = Sender(notify, ledger.outbox, registry, telling.pace, telling.console)
    notices = NoticeActivities(notify, registry, ledger.outbox, sender)
    rounds = Rounds(client, ledger.outbox, telling.pace)
    watch = WatchActivities(client, ports, tallier, sweeper, rounds, ledger.pushes, now)
    waits = partial(ledger.outbox.waits, telling.pace)
    changes, refusals = changes_of(ledger.fleet), refusals_of(ledger.bringups, now)
    second_persons = SecondPersonsDesk(
        ledger.second_persons, ledger.access, notices.tell, changes, refusals, tickets_checked=warrants.can_verify
    )
    warrants.tell_alone = second_persons.notify_admitted
    desk = DeskActivities(
        ledger, rollouts, warrants, second_persons, schedulers, prometheuses, kuberneteses, waits, now
    )
    return _Calls(
        guard=[
            rollouts.observe,
            rollouts.ledger_mark,
            rollouts.aim_rollback,
            QuotaActivities(ports, evidence, now).apply_effect,
            watch.watch,
        ],
        notices=[notices.tell, notices.send_due],
        others=[
            rollouts.open_rollout,
            rollouts.draft_plan,
            ArchiveActivities(registry, now).record,
            asked.assess,
            asked.owners,
            asked.prepare,
            asked.through,
            asked.keep,
            fleets.plan_fleet,
            fleets.pick,
            fleets.start,
            fleets.follow,
            fleets.abort,
            fleets.record,
            desk.answer,
            warrants.admit,
        ],
        book=partial(FleetBringups, ledger.bringups, ports, slurms, rollouts, warrants=warrants, now=now),
        first_looks=desk.first_looks,
    )


@dataclass(eq=False)
class Workers:
    """The workers of one process, one for each task queue: they begin and end together, with their own threads.

    `first_looks`: works out what pages tell of all clusters. `disconnect`: ends what sources keep open.
    """

    workers: Sequence[Worker]
    threads: Sequence[ThreadPoolExecutor]
    first_looks: Callable[[], Iterator[str]]
    disconnect: Callable[[], None]

    def __post_init__(self) -> None:
        self._stack = AsyncExitStack()
        self._stop_asked = asyncio.Event()

    async def __aenter__(self) -> Self:
        for worker in self.workers:
            await self._stack.enter_async_context(worker)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(worker.shutdown() for worker in self.workers))
        await self._stack.__aexit__(kind, error, trace)
        await asyncio.to_thread(self.disconnect)
        for pool in self.threads:
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Run until they are told to stop; return when all have stopped."""
        async with self:
            await self._stop_asked.wait()

    def stop(self) -> None:
        self._stop_asked.set()


def _deployment(build_id: str) -> WorkerDeploymentConfig:
    version = WorkerDeploymentVersion(DEPLOYMENT, build_id)
    return WorkerDeploymentConfig(version=version, use_worker_versioning=True)


async def ensure_watch(client: Client, interval_seconds: float, shards: int = 1, tally_seconds: float = 3600.0) -> None:
    """Start the shared watch, in as many shards, once, however many workers ask; end other divisions."""
    wanted = _watches(interval_seconds, shards, tally_seconds)
    part = "" if shards == 1 else f", one of {shards} parts"
    summary = f"reads all clusters' health in one call, signals a rollout when something changes{part}"
    for watch in wanted:
        await start_unless_running(client, WATCH_WORKFLOW, watch, watch.watch_id, summary)
    for other in await watches(client) - {watch.watch_id for watch in wanted}:
        with contextlib.suppress(RPCError):  # it has ended meanwhile
            await client.get_workflow_handle(other).terminate(f"the clusters are watched in {shards} shards now")


def _watches(interval_seconds: float, shards: int, tally_seconds: float = 3600.0) -> list[WatchInput]:
    return [
        WatchInput(interval_seconds=interval_seconds, tally_seconds=tally_seconds, shard=shard, shards=shards)
        for shard in range(shards)
    ]


@asynccontextmanager
async def watch_kept(client: Client, interval_seconds: float, shards: int) -> AsyncIterator[None]:
    """Within, restart a watch that Temporal no longer runs: it was terminated, or the database is gone.

    A watch in other shards is left alone, or workers that replace each other would end each other's.
    """
    await ensure_watch(client, interval_seconds, shards)
    wanted = {watch.watch_id for watch in _watches(interval_seconds, shards)}

    async def keep() -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            try:
                if await watches(client) < wanted:
                    await ensure_watch(client, interval_seconds, shards)
            except RPCError as error:
                logger.warning("cannot see whether the watch runs: %s", error.message)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def serving(settings: Settings, identity: str = "") -> AsyncIterator[Client]:
    """Serve until the context ends; then the worker has shut down cleanly. `identity`: its name in Temporal.

    The default is its process's name, which Temporal lists beside the next one for minutes after its end.
    """
    plugins, runtime, flush = telemetry.of_worker("backstop-worker")
    client = await connect(find_target(), plugins, runtime, identity)
    settings.home.mkdir(parents=True, exist_ok=True)
    notify = Notifier(
        settings.home / "notices.jsonl",
        utc_now,
        settings.mail_server,
        reach=Reach(settings.contact_networks),
        named=settings.contacts,
        secrets=SecretFiles(settings.secrets),
        buttons=settings.slack_buttons,
    )
    with Ledger(settings.ledger_url) as ledger, ThreadPoolExecutor(_THREADS) as executor:
        await asyncio.to_thread(refuse_without_schema, ledger)
        keys = None if settings.keys is None else KeysKept(settings.keys)
        wanted = TicketsWanted(None if settings.tickets_required else lambda: ledger.access.newest_version() > 0)
        await asyncio.to_thread(wanted.ask_again)
        if keys is None:
            await asyncio.to_thread(refuse_without_keys, ledger)
        every = timedelta(seconds=min(5.0, settings.watch_interval_seconds))
        slurms = Slurms(ledger, ledger.schedulers, settings.slurm, every)
        worker = make_worker(
            client,
            ledger,
            notify,
            executor,
            build_id=settings.build_id,
            slurms=slurms,
            git=GitQuotas(ledger, SlurmQuotas(slurms), slurms, settings.home / "git", settings.git, every),
            prometheus=settings.prometheus,
            kubernetes=settings.kubernetes,
            secrets=SecretFiles(settings.secrets),
            telling=Telling(MailPace(digest_at=settings.digest_at), settings.console_url),
            bringups=bringup_parts(ledger, slurms, settings),
            keys=keys,
            wanted=wanted,
        )
        seals = sealing(ledger, keepers_of(settings.seals), settings.home / "keys" / "seal.pem", settings.seal_every)
        watched = watch_kept(client, settings.watch_interval_seconds, settings.watch_shards)
        looking = looking_first(worker.first_looks, executor)
        async with seals, tend_garbage(), renew_keys(keys, wanted), worker, watched, looking:
            yield client
    flush()


def refuse_without_keys(ledger: Ledger) -> None:
    """Raise Refusal for a worker without public keys while fronts sign: it would take unsigned commands.

    If an access file is in force and no front signs, `doctor` says so. As `refuse_without_schema`, it does not wait for
    a database.
    """
    try:
        signed = ledger.access.newest_version() > 0 and ledger.warrants.list_signing_keys()
    except Unavailable as error:
        logger.warning(
            "cannot read whether fronts sign commands; this worker has no book of keys and accepts unsigned ones: %s",
            error.message,
        )
        return
    if signed:
        raise Refusal(
            f"fronts sign the commands of this fleet, and this worker has no book of keys to check them with: copy "
            f"{key_book_file()} from another worker or from a front"
        )


def refuse_without_schema(ledger: Ledger) -> None:
    """Raise Refusal, with a remedy, if tables or rights are missing: each call of every rollout would fail.

    A database that does not answer is waited for, as at any other time.
    """
    try:
        ledger.check_schema()
    except Unavailable as error:
        if error.message == NOT_MIGRATED:
            raise Refusal(error.message) from None
        logger.warning("%s: the worker starts, and tries again", error.message)


def run_and_exit(main: Callable[[], object]) -> None:
    """Run an async main; print one sentence and exit with the code of models.errors if it fails."""
    try:
        asyncio.run(main())  # type: ignore[arg-type]
    except BackstopError as error:
        print(f"backstop: {error.message}", file=sys.stderr)
        sys.exit(2 if type(error).__name__ == "BadInput" else 1)
    except RPCError as error:
        print(f"backstop: Temporal: {error.message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def _main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quiet_log()
    settings = load_settings()
    keep_private(settings.home)
    async with serving(settings) as client:
        print(f"worker: serving {client.namespace} on {client.service_client.config.target_host}", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await until_told()
        print("worker: stopping", flush=True)


if __name__ == "__main__":
    run_and_exit(_main)
