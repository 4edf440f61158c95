"""Kubernetes as a source of health and use: each cluster's API server is followed, and its picture kept in the ledger.

One thread has a loop on which all API servers are followed, each by tasks of its own: one that is slow or silent
delays no other. Readers take what was kept. A change of a cluster's healthy GPUs is written to the ledger at once, and
pushed, so that the watch looks at the cluster without waiting for its next round (docs/adr/0066).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from activities.adapters.kubernetes.api import (
    NODES,
    PODS,
    QUEUES,
    RESOURCE_CLAIMS,
    WATCH_SECONDS,
    ApiServer,
    KubernetesConnection,
)
from activities.adapters.kubernetes.devices import DeviceCount, Devices, claim_in, list_held_gpus, nodes_with
from activities.adapters.kubernetes.followed import Followed, Pause, pause_longer
from activities.adapters.kubernetes.in_force import Branches, InForce
from activities.adapters.kubernetes.objects import (
    HeldGpus,
    NodeGpus,
    islands_of,
    node_gpus,
    pod_gpus,
    queue_gpus,
    use_of,
)
from activities.adapters.ledger.facade import Ledger
from activities.adapters.source_threads import WAITED, Faults, SourceThreads, sentence
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.cluster.sources import GitSource, KubernetesSource, KubernetesUse, Sources
from models.errors import Unavailable
from models.texts import some_of

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_USE_EVERY = timedelta(seconds=60)
"""How often usage is sampled: percentiles count samples, so the samples need an even pace."""
_USE_FRESH = timedelta(minutes=2)
"""The greatest age of the objects from which a usage sample is made."""
_QUIET = timedelta(seconds=2 * WATCH_SECONDS)
"""By how much one kind of objects may be older than the others before it dates a sample; a watch ends sooner."""
_UNASKED_SECONDS = 600.0
"""Seconds without a reader after which a cluster is dropped: it left the fleet, or another worker follows it."""
_CHECK = timedelta(seconds=15)
_CLOSING_SECONDS = 2.0
"""Seconds that connections get to close."""


class Follower:
    """One cluster, as it is followed."""

    def __init__(
        self,
        cluster: str,
        source: KubernetesSource,
        git: GitSource | None,
        now: Callable[[], datetime],
        pause: Pause = pause_longer,
    ) -> None:
        self.cluster = cluster
        self.source = source
        self.git = git
        self.asked_at = time.monotonic()
        self.first = threading.Event()
        """Set once the objects are listed, or the reason is known why they are not."""
        self.waited = False
        self.kept_at: datetime | None = None
        self.kept_islands: tuple[Island, ...] = ()
        self.strange: tuple[str, ...] = ()
        """Islands on nodes that the fleet file does not name; their GPUs do not count."""
        self.lock = threading.Lock()
        self.changed = asyncio.Event()
        self._changes = 0
        self._counted: tuple[int, dict[str, NodeGpus], DeviceCount] | None = None
        """The number of changes seen, with the nodes and their devices counted then."""
        self.nodes: Followed[NodeGpus] = Followed(
            NODES, source.nodes, partial(node_gpus, source=source), now, self._note_change, pause
        )
        self.devices = None if source.driver is None else Devices(source, now, self._note_change, pause)
        self.held: Followed[Any] | None = None
        if source.use is not KubernetesUse.OFF:
            of_pods = (PODS, pod_gpus) if source.driver is None else (RESOURCE_CLAIMS, claim_in)
            kind, read = of_pods if source.counts_pods else (QUEUES, queue_gpus)
            self.held = Followed(kind, None, partial(read, source=source), now, lambda: None, pause)
        self.in_force = None if git is None or not InForce.is_readable(git) else InForce(git, now, pause)
        self.task: asyncio.Task[None] | None = None

    def _note_change(self) -> None:
        self._changes += 1
        if self.devices is None or all(one.seen_at or one.fault for one in self.health_parts):
            self.first.set()
        self.changed.set()

    @property
    def health_parts(self) -> list[Followed[Any]]:
        """The followed objects that its health is counted from."""
        return [self.nodes, *(() if self.devices is None else (self.devices.slices, self.devices.rules))]

    @property
    def parts(self) -> list[Followed[Any]]:
        """All that is followed of it."""
        more = self.held, None if self.in_force is None else self.in_force.queues
        return [*self.health_parts, *(one for one in more if one is not None)]

    def count_nodes(self) -> tuple[dict[str, NodeGpus], DeviceCount | None]:
        """Return its nodes with their GPUs, and the devices that these are, if a driver publishes them."""
        changes, nodes = self._changes, dict(self.nodes.kept)
        if self.devices is None:
            return nodes, None
        if self._counted is None or self._counted[0] != changes:
            count = self.devices.count(nodes)
            self._counted = changes, nodes_with(count.gpus, nodes), count
        return self._counted[1:]

    def sample(self) -> HealthSample | None:
        """Return the cluster's health; None while it is unknown: not all is listed, no GPU, or a bad object."""
        parts = self.health_parts
        times = [one.seen_at for one in parts if one.seen_at is not None]
        if len(times) < len(parts) or any(one.bad for one in parts):
            return None
        nodes, count = self.count_nodes()
        if not nodes or (count is not None and count.fault):
            return None
        at = min(max(times), min(times) + _QUIET)
        return HealthSample(cluster=self.cluster, at=at, islands=islands_of(nodes.values()))

    @property
    def fault(self) -> str:
        """The reason why its health is unknown or may grow old; empty: there is none."""
        parts = self.health_parts
        for text in (*(one.fault for one in parts), *(one.bad_text for one in parts)):
            if text:
                return text
        if any(one.seen_at is None for one in parts):
            return ""
        nodes, count = self.count_nodes()
        if count is not None and count.fault:
            return count.fault
        return "" if nodes else f"no node has {self.source.gpu_text}"

    def held_gpus(self) -> list[HeldGpus] | None:
        """Return the GPUs that teams hold; None while that is unknown."""
        if self.held is None or self.held.bad or any(one.seen_at is None for one in (self.held, *self.health_parts)):
            return None
        if self.held.kind is not RESOURCE_CLAIMS:
            return list(self.held.kept.values())
        _, count = self.count_nodes()
        return None if count is None or count.fault else list_held_gpus(dict(self.held.kept), count)

    @property
    def uncounted(self) -> str:
        """The nodes whose GPUs do not count, in a sentence: a device plugin offers them; empty: there is none."""
        nodes, count = self.count_nodes()
        others = sorted(name for name, node in self.nodes.kept.items() if node.installed and name not in nodes)
        if count is None or not others:
            return ""
        return (
            f"{some_of(others, 3)} {'has' if len(others) == 1 else 'have'} {self.source.resource} from a device plugin "
            f"and none from {self.source.driver}: Backstop does not count these GPUs"
        )


class Kuberneteses:
    """The API servers of a worker, for clusters whose health and use they report."""

    def __init__(
        self,
        ledger: Ledger,
        connections: Mapping[str, KubernetesConnection],
        every: timedelta = timedelta(seconds=5),
        use_every: timedelta = _USE_EVERY,
        patience: timedelta = WAITED,
        pause: Pause = pause_longer,
        branches: Branches = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._branches = branches
        self._connections = connections
        self._every = every
        self._use_every = use_every
        self._patience = patience.total_seconds()
        self._pause = pause
        self._followers: dict[str, Follower] = {}
        self._use_read: dict[str, float] = {}
        self._faults = Faults(ledger.now)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()

    # --- reading --------------------------------------------------------------------------------

    def refresh_health(self, sources: Sources) -> dict[str, str]:
        """Bring what is known of these clusters' nodes to the ledger; return recent faults, by cluster."""
        followers = self._follow(sources.kubernetes, sources.git)
        for follower in followers.values():
            try:
                self._keep(follower)
            except Exception as error:  # one sample that the ledger refuses must not cost the others
                self._note_fault("health", follower, sentence(error))
            if fault := follower.fault:
                self._note_fault("health", follower, fault)
        return self._recent_faults(followers)

    def refresh_use(self, sources: Sources) -> dict[str, str]:
        """Bring these clusters' use to the ledger, if the last sample is old enough; return recent faults."""
        now, every = time.monotonic(), self._use_every.total_seconds()
        using = {c: source for c, source in sources.kubernetes.items() if source.use is not KubernetesUse.OFF}
        followers = self._follow(using, sources.git)
        for cluster, follower in followers.items():
            if now - self._use_read.get(cluster, -every) < every:
                continue
            try:
                if self._keep_use(follower):
                    self._use_read[cluster] = now
            except Exception as error:
                self._note_fault("use", follower, sentence(error))
        return self._recent_faults(followers)

    def _recent_faults(self, followers: Mapping[str, Follower]) -> dict[str, str]:
        """Return recent faults by cluster, with the quotas of Git that are not in force now."""
        faults = self._faults.recent_faults()
        for cluster, follower in followers.items():
            if follower.in_force is not None and (lag := follower.in_force.lag_text(self._branches(cluster))):
                lag = f"Kubernetes {follower.source.connection}: {lag}"
                faults[cluster] = f"{faults[cluster]}; {lag}" if cluster in faults else lag
        return faults

    def check(self) -> dict[str, str]:
        """Return the fault in each cluster's present answer from its API server; empty: none. Nothing is kept."""
        sources = self._ledger.schedulers.all_sources().kubernetes
        sentences = dict.fromkeys(sources, "its API server does not answer")

        def look(cluster: str, source: KubernetesSource) -> None:
            sentences[cluster] = self.on_loop(self._look_once(cluster, source))

        def wrong(cluster: str, text: str) -> None:
            sentences[cluster] = text

        SourceThreads(wrong, _CHECK).read({c: partial(look, c, source) for c, source in sources.items()})
        return sentences

    def read_islands(self, cluster: str, source: KubernetesSource) -> tuple[Island, ...]:
        """Return the cluster's islands as its API server reports them now. Nothing is kept. Errors: Unavailable."""
        listed = self._list_once(cluster, source.but(use=KubernetesUse.OFF))
        try:
            follower = asyncio.run(asyncio.wait_for(listed, _CHECK.total_seconds()))
        except TimeoutError:
            raise Unavailable(f"Kubernetes {source.connection} did not answer in time") from None
        sample = follower.sample()
        if sample is None:
            raise Unavailable(f"Kubernetes {source.connection}: {follower.fault}")
        return sample.islands

    async def _list_once(self, cluster: str, source: KubernetesSource) -> Follower:
        """List once what is followed of the cluster. Errors: Unavailable."""
        follower, server = Follower(cluster, source, None, self._ledger.now), self.server(source.connection)
        for one in (*follower.health_parts, *(() if follower.held is None else (follower.held,))):
            await one.list_all(server)
        return follower

    async def _look_once(self, cluster: str, source: KubernetesSource) -> str:
        """List once what is followed; return what is wrong. Errors: Unavailable."""
        follower = await self._list_once(cluster, source)
        running = self._followers.get(cluster)
        if running is not None and running.strange:
            return f"some of its nodes are in islands that the fleet file does not name: {some_of(running.strange)}"
        held = "" if follower.held is None else follower.held.bad_text
        if fault := follower.fault or held or follower.uncounted:
            return fault
        in_force = None if running is None else running.in_force
        return "" if in_force is None else in_force.long_lag_text(self._branches(cluster))

    def _note_fault(self, what: str, follower: Follower, text: str) -> None:
        self._faults.note_fault(what, follower.cluster, f"Kubernetes {follower.source.connection}: {text}")

    # --- keeping --------------------------------------------------------------------------------

    def _keep(self, follower: Follower) -> bool:
        """Keep the cluster's sample, unless it was kept just now; return whether its islands have changed."""
        with follower.lock:
            sample = follower.sample()
            if sample is None:
                return False
            changed = sample.islands != follower.kept_islands
            if not changed and follower.kept_at is not None and sample.at - follower.kept_at < self._every:
                return False
            self._ledger.schedulers.note_islands(sample.cluster, sample.islands)
            follower.strange = self._ledger.samples.keep(sample, "kubernetes", whole=True)
            follower.kept_at, follower.kept_islands = sample.at, sample.islands
            return changed

    def _keep_use(self, follower: Follower) -> bool:
        """Keep a sample of use; return whether there was one."""
        held = follower.held
        if held is None:
            return False
        if fault := held.fault or held.bad_text:
            self._note_fault("use", follower, fault)
        at, gpus = held.seen_at, follower.held_gpus()
        if at is None or gpus is None or self._ledger.now() - at > _USE_FRESH:
            return False
        quotas = self._ledger.schedulers.mirrored_cluster(follower.cluster).quotas
        leaves = set(quotas) - {quota.parent for quota in quotas.values()}
        use = use_of(gpus, dict(follower.nodes.kept), leaves, at, follower.source)
        self._ledger.usage.keep(follower.cluster, use)
        return True

    # --- following ------------------------------------------------------------------------------

    def _follow(
        self, sources: Mapping[str, KubernetesSource], git_sources: Mapping[str, GitSource]
    ) -> dict[str, Follower]:
        """Follow these clusters, and return them; those that nobody has asked for in a while are followed no more."""
        now, followers = time.monotonic(), {}
        with self._lock:
            for cluster, source in sources.items():
                follower, git = self._followers.get(cluster), git_sources.get(cluster)
                if follower is None or (follower.source, follower.git) != (source, git):
                    self._stop(self._followers.pop(cluster, None))
                    follower = self._followers[cluster] = self._start(cluster, source, git)
                follower.asked_at = now
                followers[cluster] = follower
            for cluster in [c for c, one in self._followers.items() if now - one.asked_at > _UNASKED_SECONDS]:
                self._stop(self._followers.pop(cluster))
        ends = now + self._patience
        for follower in followers.values():
            if not follower.waited:  # only its first reader waits
                follower.waited = True
                follower.first.wait(max(0.0, ends - time.monotonic()))
        return followers

    def _start(self, cluster: str, source: KubernetesSource, git: GitSource | None) -> Follower:
        follower = Follower(cluster, source, git, self._ledger.now, self._pause)

        async def start() -> None:
            follower.task = asyncio.create_task(self._run(follower))

        self.on_loop(start())
        return follower

    def _stop(self, follower: Follower | None) -> None:
        async def stop(task: asyncio.Task[None]) -> None:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSING_SECONDS)

        if follower is not None and follower.task is not None:
            self.on_loop(stop(follower.task))

    def stop(self) -> None:
        """Follow no cluster any more, and end the connections and their thread."""
        with self._lock:
            for follower in self._followers.values():
                self._stop(follower)
            self._followers.clear()
        with self._loop_lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do the work on the loop of all API servers, and return its result."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="follows Kubernetes").start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _run(self, follower: Follower) -> None:
        try:
            parts = [(one, self.server(follower.source.connection)) for one in follower.parts]
        except Unavailable as error:
            follower.nodes.fault = error.message
            follower.first.set()
            return
        async with asyncio.TaskGroup() as tasks:
            for one, server in parts:
                tasks.create_task(one.follow(server))
            tasks.create_task(self._push_changes(follower))

    async def _push_changes(self, follower: Follower) -> None:
        """Have the watch look at the cluster at once when its healthy GPUs change, after its first picture."""
        while True:
            await follower.changed.wait()
            follower.changed.clear()
            first = follower.kept_at is None
            try:
                if await asyncio.to_thread(self._keep, follower) and not first:
                    await asyncio.to_thread(self._ledger.pushes.push, [follower.cluster])
            except Exception as error:  # its next reader keeps the sample, and the watch's round finds it
                log.warning(
                    "could not notify the watch of changed nodes in %s, so the watch reads them in its next round: %s",
                    follower.cluster,
                    sentence(error),
                )

    def server(self, name: str) -> ApiServer:
        """Return a way to the API server of this name. Errors: Unavailable."""
        connection = self._connections.get(name)
        if connection is None:
            raise Unavailable(
                f"this worker has no Kubernetes {name!r}: add it to the file that BACKSTOP_KUBERNETES names"
            )
        return ApiServer(name, connection)
