"""Slurm as a quota system, and as a source of health and usage, beside the ledger that mirrors it (ADR 0021).

Slurm has no generation, no expected value and no fence. So the ledger keeps them: Slurm's present limits are compared
with those last seen, and a difference is a change by others; an effect is written to the ledger first, under its
fence, and is then brought to Slurm and read back. Between the two a limit is either as it was or as it should be, and
both are ours; the next attempt finishes it. One lock for each cluster keeps two writers apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.scheduler_mirror import MirroredCluster, SchedulerBook, differences
from activities.adapters.slurm import nodes_and_jobs as sights
from activities.adapters.slurm.classes import EVERY, OFF_EVERY, SlurmClasses
from activities.adapters.slurm.command_line import LOCAL, Connection, Talk
from activities.adapters.slurm.flex_qos import FlexQos, advice, flex_qos_of, qos_limits
from activities.adapters.slurm.names import POOL, QOS, plain_name
from activities.adapters.slurm.parsing import (
    ASSOC_FORMAT,
    NUMBERS_FORMAT,
    TRANSACTIONS_FORMAT,
    Account,
    Node,
    SlurmJob,
    accounts_in,
    actors_in,
    capacity,
    named_jobs,
    quotas_of,
    use_of,
)
from activities.adapters.slurm.unsupported import unread_settings
from activities.adapters.slurm.wanted_limits import commands, wanted_limits
from activities.adapters.source_threads import WAITED, Faults, SourceThreads, sentence
from models.cluster.fleet_file import ClusterInSlurm
from models.cluster.island import Island
from models.cluster.jobs import ClusterJob
from models.cluster.quota import Quota
from models.cluster.readings import HealthSample
from models.cluster.sources import ClassesInSlurm, QuotaSource, SlurmSource, Sources
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.questions import SchedulerCheck
from models.texts import count_text

log = logging.getLogger(__name__)

_NOWHERE = "backstop-asks-whether-it-may"
"""The name of no account and no QOS: a change of it changes nothing, and is refused without the right."""
_TRIES = 5
_LINES = 20
"""Commands in one call, few enough to end well within the call's time."""
SLURMS_AT_ONCE = 8
"""The most clusters that are checked at the same time; a silent one takes its call's whole time."""
_CHECK_SECONDS = 25.0
"""The time for checking all clusters, in seconds: `doctor` waits for a minute and makes other checks too."""
_QOS_EVERY = timedelta(minutes=1)
"""How often the limit of the flex QOS is read; the reading is a call of its own."""
_USE_EVERY = timedelta(seconds=60)
"""How often usage is sampled: percentiles count samples, so the samples need an even pace."""


class Slurms:
    """The Slurm clusters of a ledger. `every`: how old health and limits may be before they are read again."""

    def __init__(
        self,
        ledger: Ledger,
        book: SchedulerBook,
        connections: Mapping[str, Connection] = LOCAL,
        every: timedelta = timedelta(seconds=5),
        use_every: timedelta = _USE_EVERY,
        patience: timedelta = WAITED,
    ) -> None:
        self.ledger = ledger
        self.book = book
        self.every = every
        self.use_every = use_every
        self._talks = {name: Talk(connection) for name, connection in {**LOCAL, **connections}.items()}
        self._done: dict[tuple[str, str], float] = {}
        self._sized: dict[str, str | None] = {}
        """The QOS that sizes each cluster's flex, as last seen."""
        self._associations: dict[str, tuple[str, str]] = {}
        """By cluster, the last printed associations and the numbers in them."""
        self.faults = Faults(ledger.now)
        self._threads = {
            what: SourceThreads(partial(self.faults.note_fault, f"{what} of Slurm"), patience)
            for what in ("limits", "nodes", "jobs")
        }
        # Nobody waits for these: they have no answer.
        self._threads["classes"] = SourceThreads(partial(self.faults.note_fault, "classes of Slurm"), None)

    def talk(self, source: SlurmSource) -> Talk:
        talk = self._talks.get(source.connection)
        if talk is None:
            raise Refusal(
                f"this worker has no Slurm connection {source.connection!r}: add it to the file that "
                "BACKSTOP_SLURM names"
            )
        return talk

    def claim_reading(self, what: str, cluster: str, every: timedelta) -> bool:
        """Return whether it is to be read again; it counts as read from now on."""
        now = time.monotonic()
        last = self._done.get((what, cluster))
        if last is not None and now - last < every.total_seconds():
            return False
        self._done[what, cluster] = now
        return True

    # --- limits ---------------------------------------------------------------------------------

    def accounts(self, cluster: str, source: SlurmSource) -> dict[str, Account]:
        of = f"cluster={plain_name(source.cluster or cluster)}"
        asked, talk = ("sacctmgr", "-n", "-P", "show", "assoc", of, "user="), self.talk(source)
        printed = talk.run(*asked, ASSOC_FORMAT)
        before = self._associations.get(cluster)
        # Numbers are read again only if the associations have changed.
        numbers = before[1] if before is not None and before[0] == printed else talk.run(*asked, NUMBERS_FORMAT)
        accounts = accounts_in(printed, source.tres, numbers)
        self._associations[cluster] = printed, numbers
        if source.root not in accounts:
            raise Unavailable(f"Slurm has no account {source.root!r} in cluster {source.cluster or cluster}")
        return accounts

    def sync(self, cluster: str, source: SlurmSource) -> MirroredCluster:
        """Bring the ledger to Slurm's limits, others' changes as theirs; return the cluster as it is now."""
        for _ in range(_TRIES):
            seen = self.book.mirrored_cluster(cluster)
            accounts = self.accounts(cluster, source)
            held = quotas_of(accounts, source)
            foreign, landed = differences(seen, held)
            if (
                not foreign
                and not landed
                and all(team in seen.limits and seen.limits[team].gpus == held[team].gpus for team in held)
            ):
                return self._note_bounds(cluster, source, seen, accounts)
            actors = self._actors(source, accounts) if foreign else {}
            if self.book.take(cluster, seen, held, foreign, landed, actors):
                return self._note_bounds(cluster, source, self.book.mirrored_cluster(cluster), accounts)
        raise Unavailable(f"the quotas of {cluster} change faster than Backstop can read them")

    def _note_bounds(
        self, cluster: str, source: SlurmSource, standing: MirroredCluster, accounts: Mapping[str, Account]
    ) -> MirroredCluster:
        """Return the cluster with its other limits noted: those of the root account and of the flex QOS."""
        bounds: dict[str, int | None] = {}
        pool = POOL + source.root
        if source.root != "root" or pool in standing.limits:
            bounds[pool] = accounts[source.root].gpus
        if source.size_flex and self.claim_reading("qos", cluster, _QOS_EVERY):
            bounds |= self._flex_bounds(cluster, source, standing)
            standing = self.book.mirrored_cluster(cluster)
        # Our own write that is under way is no change by others.
        sized, noted = self._sized.get(cluster), standing.limits
        wanted = wanted_limits(standing, source, sized)
        news = {
            n: gpus for n, gpus in bounds.items() if n not in noted or gpus not in (noted[n].gpus, wanted.get(n, gpus))
        }
        if not news:
            return standing
        # A limit that was given back is not corrected any more.
        bounding = {pool: standing.reserved, f"{QOS}{sized}": standing.flex_gpus is not None}
        ours = {name for name in news.keys() & noted if bounding.get(name, False)}
        if ours:
            log.warning(
                "in %s somebody has changed limits that Backstop set above the teams or on a QOS: %s",
                cluster,
                ", ".join(sorted(ours)),
            )
            self.book.record_astray(cluster, {n: news[n] for n in ours})
        self.book.note(cluster, {n: gpus for n, gpus in news.items() if n not in ours}, ours=False)
        return self.book.mirrored_cluster(cluster)

    def _flex_bounds(self, cluster: str, source: SlurmSource, standing: MirroredCluster) -> dict[str, int | None]:
        """Read the limit of the QOS that sizes flex, and of a former one that is to be given back.

        A QOS that another cluster sizes by now is forgotten: we have nothing to take back there.
        """
        flex = self.flex_qos(cluster, source)
        noted = [name.removeprefix(QOS) for name in standing.limits if name.startswith(QOS)]
        old = [name for name in noted if name != flex.sized]
        kept = [name for name in old if flex.can_give_back(name, source.flex_qos)]
        if kept != old:
            self.book.forget(cluster, [QOS + name for name in old if name not in kept])
        sized = [] if flex.sized is None else [flex.sized]
        return {QOS + name: flex.limits[name] for name in [*kept, *sized]}

    def flex_qos(self, cluster: str, source: SlurmSource) -> FlexQos:
        """Return the cluster's flex QOS. Errors: Unavailable."""
        flex = flex_qos_of(self.talk(source), self.book, cluster, source)
        self._sized[cluster] = flex.sized
        return flex

    def _actors(self, source: SlurmSource, accounts: Mapping[str, Account]) -> dict[str, str]:
        """Return who changed which account last, as far as the accounting database says."""
        asked = ("sacctmgr", "-n", "-P", "list", "transactions", "Start=now-7days", TRANSACTIONS_FORMAT)
        try:
            by_number = actors_in(self.talk(source).run(*asked))
        except BackstopError as error:
            log.warning("Slurm does not say who changed its limits: %s", error.message)
            return {}
        return {
            name: f"{by_number[account.number]}, by sacctmgr"
            for name, account in accounts.items()
            if account.number in by_number
        }

    def push(self, cluster: str, source: SlurmSource) -> None:
        """Bring Slurm's limits to the ledger's quotas, and read them back. Errors: Unavailable if some differ."""
        standing = self.book.mirrored_cluster(cluster)
        wanted = wanted_limits(standing, source, self._sized.get(cluster))
        changes = {name: gpus for name, gpus in wanted.items() if standing.limits[name].gpus != gpus}
        if not changes:
            return
        self.book.intend(cluster, changes)
        self._write(cluster, source, changes)
        there = self.limits(cluster, source, wanted)
        self.book.note(cluster, {name: there[name] for name in wanted if there[name] == wanted[name]}, ours=True)
        short = sorted(name for name in wanted if there[name] != wanted[name])
        if short:
            raise Unavailable(
                f"Slurm accepted the command, but did not change {len(short)} of "
                f"{count_text(len(changes), 'limit')} ({', '.join(short[:5])})"
            )

    def _write(self, cluster: str, source: SlurmSource, limits: Mapping[str, int | None]) -> None:
        """Write the limits. Those with one value share a command: it takes 0.3 s for any number of accounts."""
        lines = commands(limits, source.cluster or cluster, source)
        for at in range(0, len(lines), _LINES):
            self.book.renew(cluster)
            self.talk(source).run("sacctmgr", "-i", "-Q", stdin="\n".join(lines[at : at + _LINES]) + "\n")

    def limits(
        self, cluster: str, source: SlurmSource, names: Sequence[str] | Mapping[str, object]
    ) -> dict[str, int | None]:
        accounts = self.accounts(cluster, source)
        limits: dict[str, int | None] = {}
        flex = [name.removeprefix(QOS) for name in names if name.startswith(QOS)]
        there = qos_limits(self.talk(source), source, flex) if flex else {}
        for name in names:
            if name.startswith(QOS):
                limits[name] = there.get(name.removeprefix(QOS))
            else:
                account = accounts.get(name.removeprefix(POOL))
                limits[name] = None if account is None else account.gpus
        return limits

    # --- classes --------------------------------------------------------------------------------

    def classes(self, cluster: str, source: SlurmSource) -> SlurmClasses:
        return SlurmClasses(self.ledger, self.talk(source), cluster, source)

    def keep_classes(self, cluster: str, source: SlurmSource) -> None:
        """Bring the QOS of classes in step with the limits. The caller holds the cluster's lock."""
        limits = wanted_limits(self.book.mirrored_cluster(cluster), source, self._sized.get(cluster))
        if self.classes(cluster, source).keep(limits):
            self._done["classes", cluster] = time.monotonic()

    def classes_after_write(self, cluster: str, source: SlurmSource) -> None:
        """Bring classes in step; during a rollout the watch's next look does it, so that no effect waits."""
        self._done.pop(("classes", cluster), None)
        if self.book.mirrored_cluster(cluster).rollout is None:
            self.keep_classes(cluster, source)

    # --- rights ---------------------------------------------------------------------------------

    def barred_reason(self, cluster: str, source: SlurmSource) -> str:
        """Return which of a rollout's writes the worker's user may not do in Slurm, and who may; empty if it may."""
        may, limit = self.talk(source).may, f"GrpTRES={source.tres}=0"
        of = f"cluster={plain_name(source.cluster or cluster)}"
        if not may("sacctmgr", "-i", "modify", "account", _NOWHERE, of, "set", limit):
            return (
                "the worker's user may not set limits of accounts in Slurm: give that user AdminLevel Operator "
                "(docs/slurm.md)"
            )
        sized = self.flex_qos(cluster, source).sized if source.size_flex else None
        written = source.classes is ClassesInSlurm.WRITE
        if not (sized or written) or may("sacctmgr", "-i", "modify", "qos", _NOWHERE, "set", limit):
            return ""
        what = f"set the limit of the QOS {sized}" if sized else "write the QOS of classes"
        instead = [*(["--no-size-flex"] if sized else []), *(["classes: off"] if written else [])]
        return (
            f"the worker's user may not {what} in Slurm: give that user AdminLevel Admin, "
            f"or import the cluster with {' and '.join(instead)} (docs/slurm.md)"
        )

    # --- nodes and jobs -------------------------------------------------------------------------

    def capacity(self, source: SlurmSource) -> tuple[Island, ...]:
        talk = self.talk(source)
        return capacity(sights.nodes(talk, source), sights.islands(talk))

    def refresh_health(self, sources: Sources) -> dict[str, str]:
        """Read the nodes of clusters without a Prometheus into the ledger; return late faults."""
        due = [c for c in sources.slurm if c not in sources.prometheus and self.claim_reading("health", c, self.every)]
        self._threads["nodes"].read({c: partial(self._look_at_nodes, c, sources.slurm[c]) for c in due})
        return self.faults.recent_faults()

    def refresh_use(self, sources: Sources) -> dict[str, str]:
        """Read the jobs into the ledger, if the last sample is old enough; return late faults."""
        due = [cluster for cluster in sources.slurm if self.claim_reading("use", cluster, self.use_every)]
        self._threads["jobs"].read({c: partial(self._look_at_jobs, c, sources.slurm[c]) for c in due})
        return self.faults.recent_faults()

    def refresh_limits(self, clusters: Sequence[str]) -> None:
        """Read these clusters' limits into the ledger, unless they were read just now."""
        sources = self.book.sources(clusters)
        due = {c: source for c, source in sources.items() if self.claim_reading("limits", c, self.every)}
        self.sync_aside(due)
        self._threads["classes"].read({c: partial(self.look_at_classes, c, source) for c, source in due.items()})

    def sync_aside(self, sources: Mapping[str, SlurmSource]) -> dict[str, str]:
        """Do `sync` for all at once, without waiting long; return by cluster why its limits could not be read."""
        return self._threads["limits"].read({c: partial(self.sync, c, source) for c, source in sources.items()})

    def look_at_classes(self, cluster: str, source: SlurmSource) -> None:
        """Bring classes in step with the limits if their time has come. No look at limits waits for this."""
        standing = self.book.mirrored_cluster(cluster)
        # Neither a rehearsal nor a rollout that has not begun to write may write here.
        begun = standing.rollout is not None and standing.counter > 0
        every = OFF_EVERY if source.classes is ClassesInSlurm.OFF else EVERY
        if not begun or not self.claim_reading("classes", cluster, every):
            return
        limits = wanted_limits(standing, source, self._sized.get(cluster))
        with suppress(Unavailable):
            if self.classes(cluster, source).is_astray(limits):
                self._done.pop(("classes", cluster), None)  # until they are kept
                with self.book.lock_cluster(cluster):
                    self.keep_classes(cluster, source)

    def _look_at_nodes(self, cluster: str, source: SlurmSource) -> None:
        if islands := self.capacity(source):
            self.book.note_islands(cluster, islands)
            self.ledger.samples.keep(HealthSample(cluster=cluster, at=self.ledger.now(), islands=islands), "slurm")

    def _look_at_jobs(self, cluster: str, source: SlurmSource) -> None:
        talk = self.talk(source)
        jobs, accounts, now = sights.jobs(talk, cluster, source), self.accounts(cluster, source), self.ledger.now()
        quotas = self.book.mirrored_cluster(cluster).quotas
        leaves = set(quotas) - {quota.parent for quota in quotas.values()}
        self.ledger.usage.keep(cluster, use_of(jobs, leaves, source, accounts, now))
        classes = self.classes(cluster, source).class_by_qos
        named = named_jobs(jobs, leaves, source, accounts, sights.islands(talk), classes)
        requeued = {job.label: job.requeued for job in jobs if job.requeued is not None or not job.runs}
        self.ledger.jobs.keep(cluster, [ClusterJob(cluster=cluster, **j.model_dump()) for j in named], requeued, now)

    def check(self) -> dict[str, SchedulerCheck]:
        sources = self.book.sources()
        pool = ThreadPoolExecutor(SLURMS_AT_ONCE)
        checks = {name: pool.submit(self._check_one, name, source) for name, source in sources.items()}
        done, _ = wait(checks.values(), _CHECK_SECONDS)
        pool.shutdown(wait=False, cancel_futures=True)
        late = SchedulerCheck(wrong=f"Slurm did not answer all questions within {_CHECK_SECONDS:.0f} s")
        return {name: check.result() if check in done else late for name, check in checks.items()}

    def _check_one(self, cluster: str, source: SlurmSource) -> SchedulerCheck:
        try:
            standing, barred = self.sync(cluster, source), self.barred_reason(cluster, source)
            flex = self.flex_qos(cluster, source) if source.size_flex else None
            talk = self.talk(source)
            sights.islands(talk)
            beside = self._unread(cluster, source, sights.nodes(talk, source), sights.jobs(talk, cluster, source))
            wanted = wanted_limits(standing, source, self._sized.get(cluster))
            begun = standing.rollout is not None and standing.counter > 0
            classes = self.classes(cluster, source).advice_for(wanted, begun=begun)
        except Exception as error:  # one that cannot be checked must not stop the checks of others
            return SchedulerCheck(wrong=sentence(error))
        wrong = [name for name, gpus in sorted(wanted.items()) if standing.limits[name].gpus != gpus]
        text = f"limits that differ from what Backstop wants: {', '.join(wrong)}" if wrong else ""
        if flex is not None and flex.keeper and not text:
            text = advice(cluster, source, flex.keeper)
        note = "; ".join(filter(None, (classes.note, *beside)))
        return SchedulerCheck(wrong=text or classes.wrong, barred=barred, note=note)

    def _unread(
        self, cluster: str, source: SlurmSource, nodes: Sequence[Node], jobs: Sequence[SlurmJob]
    ) -> tuple[str, ...]:
        """List the settings of this Slurm that Backstop does not read, in a sentence each. Errors: Unavailable."""
        flex = {source.own_flex_qos(cluster), *(one.own_flex_qos(name) for name, one in self.book.sources().items())}
        ours = {source.flex_qos, *flex, *self.classes(cluster, source).class_by_qos}
        qos = sights.limiting_qos(self.talk(source), source, ours)
        return unread_settings(source, self.accounts(cluster, source), qos, nodes, jobs)

    # --- in and out -----------------------------------------------------------------------------

    def quotas_at(self, cluster: str, source: QuotaSource) -> dict[str, int]:
        assert isinstance(source, SlurmSource)
        return {quota.team: quota.gpus for quota in self.describe(cluster, source).quotas}

    def describe(self, cluster: str, source: SlurmSource) -> ClusterInSlurm:
        """Return the cluster as it is in Slurm: islands, quotas and usage; sync the ledger if it is connected already.

        Errors: Unavailable, BadInput if Slurm has no such cluster.
        """
        if source.connection not in self._talks:
            named = ", ".join(sorted(self._talks)) or "none"
            raise BadInput(
                f"--connection {source.connection}: this worker has no such Slurm connection; it has: {named}. Add the "
                "connection to the file that BACKSTOP_SLURM names"
            )
        there = self.talk(source).run("sacctmgr", "-n", "-P", "show", "cluster", "format=Cluster").split()
        if (source.cluster or cluster) not in there:
            raise BadInput(f"Slurm has no cluster {source.cluster or cluster!r}; it has: {', '.join(there) or 'none'}")
        asked = ("sacctmgr", "-n", "-P", "show", "account", "format=Account")
        if source.root not in self.talk(source).run(*asked).split("\n"):
            raise BadInput(f"Slurm has no account {source.root!r}: name an account that exists (--root)")
        if self.book.sources([cluster]).get(cluster) == source:
            self.sync(cluster, source)
        accounts = self.accounts(cluster, source)
        held, talk = quotas_of(accounts, source), self.talk(source)
        nodes = sights.nodes(talk, source)
        if not nodes:
            raise BadInput(
                f"Slurm has no node with {source.tres} in cluster {source.cluster or cluster}: check slurm.gres in the "
                "fleet file, or Gres in slurm.conf"
            )
        parents = {row.parent for row in held.values()}
        jobs = sights.jobs(talk, cluster, source)
        use: dict[str, dict[str, Any]] = {
            u.team: {"scheduled_gpus": u.scheduled_gpus, "idle_gpus": 0, "pending_gpus": u.pending_gpus or 0}
            for u in use_of(jobs, held.keys() - parents, source, accounts, self.ledger.now())
        }
        quotas = tuple(
            Quota(team=t, gpus=row.gpus, parent=row.parent, **use.get(t, {})) for t, row in sorted(held.items())
        )
        return ClusterInSlurm(
            name=cluster,
            gpus_per_node=max(node.gpus for node in nodes),
            islands=capacity(nodes, sights.islands(talk)),
            quotas=quotas,
            slurm=source,
            unread=self._unread(cluster, source, nodes, jobs),
        )

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        """Disconnect the cluster from this Slurm; return the limits taken back: before and after, by name.

        `look`: only return which it would take back.

        Limits that bound others (the pool, the flex QOS) are always taken back; quotas only with `restore`, to their
        values before Backstop first wrote them. A limit that others have changed since is left alone.
        """
        self.book.mirrored_cluster(cluster)  # refuses one that is not there
        source = self.book.sources([cluster]).get(cluster)
        if source is None:
            raise Refusal(f"{cluster} is not connected to Slurm: there is nothing to detach")
        with self.book.lock_cluster(cluster):
            standing = self.sync(cluster, source)
            if standing.rollout is not None:
                raise Refusal(f"rollout {standing.rollout} is open in {cluster}: close or abort it first")
            back = {
                name: (limit.gpus, limit.first)
                for name, limit in standing.limits.items()
                if limit.ours and limit.gpus != limit.first and (restore or name.startswith((POOL, QOS)))
            }
            classes = self.classes(cluster, source)
            if look:
                return back | classes.take_out(only_look=True)
            if back:
                self._write(cluster, source, {name: first for name, (_, first) in back.items()})
                there = self.limits(cluster, source, back)
                wrong = sorted(n for n, (_, first) in back.items() if there[n] != first)
                if wrong:
                    raise Unavailable(
                        f"Slurm still has the limits that Backstop set at {', '.join(wrong)}: give the command again"
                    )
            back |= classes.take_out(only_look=False)
            self.book.detach(cluster)
        return back
