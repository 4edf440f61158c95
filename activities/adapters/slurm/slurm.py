"""Slurm as a quota system, and as a source of health and use, beside the ledger that mirrors it (ADR 0021).

Slurm knows no generation, no expected value and no fence. So the ledger keeps them: what is found in Slurm is compared
with what was last seen there, a difference is a change by others; an effect lands in the ledger first, under its fence,
and is then brought to Slurm and read back. Between the two a limit is either as it was or as it should be, and both are
ours; whoever tries again finishes it. One lock for each cluster keeps two writers apart.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.scheduler_mirror import MirroredCluster, SchedulerBook
from activities.adapters.slurm.command_line import LOCAL, Connection, Talk
from activities.adapters.slurm.parsing import (
    ASSOC_FORMAT,
    TRANSACTIONS_FORMAT,
    Account,
    Held,
    Node,
    SlurmJob,
    accounts_in,
    actors_in,
    capacity,
    islands_in,
    jobs_in,
    named_jobs,
    nodes_in,
    quotas_of,
    tres_of,
    use_of,
)
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.jobs import ClusterJob
from models.cluster.quota import Quota
from models.cluster.readings import ForeignChange, HealthSample, QuotaReading
from models.cluster.sources import SlurmSource, Sources
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.questions import SchedulerCheck
from models.rollout.effects import Change, Receipt

log = logging.getLogger(__name__)

POOL, QOS = "pool:", "qos:"
_NOWHERE = "backstop-asks-whether-it-may"
"""An account and a QOS that nobody has: its change changes nothing, and is refused to whoever may not change any."""
_TRIES = 5
_NAMES, _LINES = 200, 20
"""Accounts of one command, and commands of one call: it must end well inside a call's time."""
_PLAIN = re.compile(r"[\w.@+-]{1,100}", re.ASCII)
_QOS_EVERY = timedelta(minutes=1)
"""How often the limit of the flex QOS is looked at: it takes a call of its own."""
_USE_EVERY = timedelta(seconds=60)
"""Samples of use are counted, for percentiles: they come at an even pace."""


class Slurms:
    """The Slurm clusters of a ledger. `every`: how old what was read of health and limits may be."""

    def __init__(
        self,
        ledger: Ledger,
        book: SchedulerBook,
        connections: Mapping[str, Connection] = LOCAL,
        every: timedelta = timedelta(seconds=5),
        use_every: timedelta = _USE_EVERY,
    ) -> None:
        self.ledger = ledger
        self.book = book
        self.every = every
        self.use_every = use_every
        self._talks = {name: Talk(connection) for name, connection in {**LOCAL, **connections}.items()}
        self._done: dict[tuple[str, str], float] = {}

    def talk(self, source: SlurmSource) -> Talk:
        talk = self._talks.get(source.connection)
        if talk is None:
            raise Refusal(f"this worker has no Slurm connection {source.connection!r}: BACKSTOP_SLURM names them")
        return talk

    def due(self, what: str, cluster: str, every: timedelta) -> bool:
        """Whether it is to be read again; it counts as read from now on."""
        now = time.monotonic()
        last = self._done.get((what, cluster))
        if last is not None and now - last < every.total_seconds():
            return False
        self._done[what, cluster] = now
        return True

    # --- limits ---------------------------------------------------------------------------------

    def accounts(self, cluster: str, source: SlurmSource) -> dict[str, Account]:
        of = f"cluster={_plain(source.cluster or cluster)}"
        printed = self.talk(source).run("sacctmgr", "-n", "-P", "show", "assoc", of, "user=", ASSOC_FORMAT)
        accounts = accounts_in(printed, source.tres)
        if source.root not in accounts:
            raise Unavailable(f"Slurm has no account {source.root!r} in cluster {source.cluster or cluster}")
        return accounts

    def sync(self, cluster: str, source: SlurmSource) -> MirroredCluster:
        """The ledger has what Slurm has; what others changed there is a change by others. Answers how it stands."""
        for _ in range(_TRIES):
            seen = self.book.standing(cluster)
            accounts = self.accounts(cluster, source)
            held = quotas_of(accounts, source)
            foreign, landed = _differences(seen, held)
            if (
                not foreign
                and not landed
                and all(t in seen.limits and seen.limits[t].gpus == held[t].gpus for t in held)
            ):
                return self._bounded(cluster, source, seen, accounts)
            actors = self._actors(source, accounts) if foreign else {}
            if self.book.take(cluster, seen, held, foreign, landed, actors):
                return self._bounded(cluster, source, self.book.standing(cluster), accounts)
        raise Unavailable(f"the quotas of {cluster} change faster than they can be read")

    def _bounded(
        self, cluster: str, source: SlurmSource, standing: MirroredCluster, accounts: Mapping[str, Account]
    ) -> MirroredCluster:
        """With what else is limited there noted as it was found first."""
        bounds: dict[str, int | None] = {}
        pool = POOL + source.root
        if source.root != "root" or pool in standing.limits:
            bounds[pool] = accounts[source.root].gpus
        if source.size_flex and self.due("qos", cluster, _QOS_EVERY) and self.has_qos(source):
            bounds[QOS + source.flex_qos] = self.qos_limit(source)
        # A write of ours that is under way is no change by others.
        wanted, noted = _wanted(standing, source), standing.limits
        news = {n: gpus for n, gpus in bounds.items() if n not in noted or gpus not in (noted[n].gpus, wanted[n])}
        if not news:
            return standing
        bounding = {POOL: standing.reserved, QOS: standing.flex_gpus is not None}
        ours = {n for n in news.keys() & noted if bounding[POOL if n.startswith(POOL) else QOS]}
        if ours:
            log.warning("somebody has changed what bounds others in %s: %s", cluster, ", ".join(sorted(ours)))
            self.book.saw(cluster, {n: news[n] for n in ours})
        self.book.note(cluster, {n: gpus for n, gpus in news.items() if n not in ours}, ours=False)
        return self.book.standing(cluster)

    def _actors(self, source: SlurmSource, accounts: Mapping[str, Account]) -> dict[str, str]:
        """Who changed which account last, as far as the accounting database tells."""
        asked = ("sacctmgr", "-n", "-P", "list", "transactions", "Start=now-7days", TRANSACTIONS_FORMAT)
        try:
            by_number = actors_in(self.talk(source).run(*asked))
        except BackstopError as error:
            log.warning("nobody says who changed Slurm's limits: %s", error.message)
            return {}
        return {
            name: f"{by_number[account.number]}, by sacctmgr"
            for name, account in accounts.items()
            if account.number in by_number
        }

    def push(self, cluster: str, source: SlurmSource) -> None:
        """Slurm's limits are what the ledger's quotas ask for, read back. Errors: Unavailable where some are not."""
        standing = self.book.standing(cluster)
        wanted = _wanted(standing, source)
        changes = {name: gpus for name, gpus in wanted.items() if standing.limits[name].gpus != gpus}
        if not changes:
            return
        self.book.intend(cluster, changes)
        self._write(cluster, source, changes)
        there = self.limits(cluster, source, wanted)
        self.book.note(cluster, {name: there[name] for name in wanted if there[name] == wanted[name]}, ours=True)
        short = sorted(name for name in wanted if there[name] != wanted[name])
        if short:
            raise Unavailable(f"Slurm did not take {len(short)} of {len(changes)} limits ({', '.join(short[:5])})")

    def _write(self, cluster: str, source: SlurmSource, limits: Mapping[str, int | None]) -> None:
        """One command takes about 0.3 s, for however many accounts: those that get the same limit share one."""
        lines = _lines(limits, source.cluster or cluster, source)
        for at in range(0, len(lines), _LINES):
            self.book.renew(cluster)
            self.talk(source).run("sacctmgr", "-i", "-Q", given="\n".join(lines[at : at + _LINES]) + "\n")

    def limits(
        self, cluster: str, source: SlurmSource, names: Sequence[str] | Mapping[str, object]
    ) -> dict[str, int | None]:
        accounts = self.accounts(cluster, source)
        limits: dict[str, int | None] = {}
        for name in names:
            if name.startswith(QOS):
                limits[name] = self.qos_limit(source)
            else:
                account = accounts.get(name.removeprefix(POOL))
                limits[name] = None if account is None else account.gpus
        return limits

    def qos_limit(self, source: SlurmSource) -> int | None:
        asked = ("sacctmgr", "-n", "-P", "show", "qos", f"name={_plain(source.flex_qos)}", "format=GrpTRES")
        return tres_of(self.talk(source).run(*asked)).get(source.tres)

    def has_qos(self, source: SlurmSource) -> bool:
        asked = ("sacctmgr", "-n", "-P", "show", "qos", f"name={_plain(source.flex_qos)}", "format=Name")
        return bool(self.talk(source).run(*asked))

    def barred(self, cluster: str, source: SlurmSource) -> str:
        """What of a rollout's writes Slurm would not let the worker's user do, and who may; empty: it lets us."""
        may, limit = self.talk(source).may, f"GrpTRES={source.tres}=0"
        of = f"cluster={_plain(source.cluster or cluster)}"
        if not may("sacctmgr", "-i", "modify", "account", _NOWHERE, of, "set", limit):
            return "the worker's user may not set limits of accounts in Slurm: AdminLevel Operator may (docs/slurm.md)"
        sizes_qos = source.size_flex and self.has_qos(source)
        if not sizes_qos or may("sacctmgr", "-i", "modify", "qos", _NOWHERE, "set", limit):
            return ""
        return (
            f"the worker's user may not set the limit of the QOS {source.flex_qos} in Slurm: AdminLevel Admin may, "
            "or import the cluster with --no-size-flex (docs/slurm.md)"
        )

    # --- nodes and jobs -------------------------------------------------------------------------

    def islands(self, source: SlurmSource) -> dict[str, frozenset[str]]:
        with contextlib.suppress(Unavailable):  # without a topology scontrol fails
            return islands_in(self.talk(source).run("scontrol", "-o", "show", "topology"))
        return {}

    def nodes(self, source: SlurmSource) -> tuple[Node, ...]:
        return nodes_in(self.talk(source).run("scontrol", "-o", "show", "nodes"), source.gres)

    def capacity(self, source: SlurmSource) -> tuple[Island, ...]:
        return capacity(self.nodes(source), self.islands(source))

    def jobs(self, source: SlurmSource) -> tuple[SlurmJob, ...]:
        return jobs_in(self.talk(source).run("squeue", "--json"), source.tres)

    def refresh_health(self, sources: Sources) -> None:
        """What nodes are now is in the ledger, but for clusters whose health a Prometheus has."""
        for cluster, source in sources.slurm.items():
            if cluster in sources.prometheus or not self.due("health", cluster, self.every):
                continue
            with _tolerated():
                if islands := self.capacity(source):
                    self.book.note_islands(cluster, islands)
                    sample = HealthSample(cluster=cluster, at=self.ledger.now(), islands=islands)
                    self.ledger.samples.keep(sample, "slurm")

    def refresh_use(self, sources: Sources) -> None:
        """What jobs hold now is in the ledger, where the last sample is old enough."""
        for cluster, source in sources.slurm.items():
            if self.due("use", cluster, self.use_every):
                with _tolerated():
                    self._look_at_jobs(cluster, source)

    def _look_at_jobs(self, cluster: str, source: SlurmSource) -> None:
        jobs, now = self.jobs(source), self.ledger.now()
        quotas = self.book.standing(cluster).quotas
        leaves = set(quotas) - {q.parent for q in quotas.values()}
        self.ledger.usage.keep(cluster, use_of(jobs, leaves, source, now))
        named = named_jobs(jobs, leaves, source, self.islands(source))
        waiting = {f"{j.name} ({j.number})" for j in jobs if not j.runs}
        self.ledger.jobs.keep(cluster, [ClusterJob(cluster=cluster, **j.model_dump()) for j in named], waiting, now)

    def check(self) -> dict[str, SchedulerCheck]:
        return {cluster: self._checked(cluster, source) for cluster, source in self.book.sources().items()}

    def _checked(self, cluster: str, source: SlurmSource) -> SchedulerCheck:
        try:
            standing, barred = self.sync(cluster, source), self.barred(cluster, source)
        except BackstopError as error:
            return SchedulerCheck(wrong=error.message)
        wrong = [n for n, gpus in sorted(_wanted(standing, source).items()) if standing.limits[n].gpus != gpus]
        text = f"limits that are not what they should be: {', '.join(wrong)}" if wrong else ""
        return SchedulerCheck(wrong=text, barred=barred)

    # --- in and out -----------------------------------------------------------------------------

    def describe(self, cluster: str, source: SlurmSource) -> ClusterSpec:
        """The cluster as Slurm has it now: islands, quotas and use. Errors: Unavailable, BadInput where it has none."""
        if source.connection not in self._talks:
            named = ", ".join(sorted(self._talks))
            raise BadInput(f"--connection {source.connection}: this worker has {named} (BACKSTOP_SLURM names them)")
        there = self.talk(source).run("sacctmgr", "-n", "-P", "show", "cluster", "format=Cluster").split()
        if (source.cluster or cluster) not in there:
            raise BadInput(f"Slurm has no cluster {source.cluster or cluster!r}; it has: {', '.join(there) or 'none'}")
        asked = ("sacctmgr", "-n", "-P", "show", "account", "format=Account")
        if source.root not in self.talk(source).run(*asked).split("\n"):
            raise BadInput(f"Slurm has no account {source.root!r}")
        held = quotas_of(self.accounts(cluster, source), source)
        nodes = self.nodes(source)
        if not nodes:
            raise BadInput(f"Slurm has no node with {source.tres} in cluster {source.cluster or cluster}")
        parents = {row.parent for row in held.values()}
        use = {u.team: u for u in use_of(self.jobs(source), held, source, self.ledger.now())}
        quotas = tuple(
            Quota(team=t, gpus=row.gpus, parent=row.parent)
            if t in parents
            else Quota(
                team=t,
                gpus=row.gpus,
                parent=row.parent,
                scheduled_gpus=use[t].scheduled_gpus,
                idle_gpus=0,
                pending_gpus=use[t].pending_gpus,
            )
            for t, row in sorted(held.items())
        )
        return ClusterSpec(
            name=cluster,
            gpus_per_node=max(node.gpus for node in nodes),
            islands=capacity(nodes, self.islands(source)),
            quotas=quotas,
            slurm=source,
        )

    def detach(self, cluster: str, *, restore: bool) -> dict[str, tuple[int | None, int | None]]:
        """Backstop writes to this Slurm no more. Answers the limits it took back: before and after, by name.

        What bounds others (the pool, the flex QOS) is always taken back; quotas where `restore` asks for it, to what
        they were before Backstop first wrote them. What others have changed since is left alone.
        """
        self.book.standing(cluster)  # refuses one that is not there
        source = self.book.sources([cluster]).get(cluster)
        if source is None:
            raise Refusal(f"the quotas of {cluster} are the ledger's own: there is nothing to detach")
        with self.book.alone(cluster):
            standing = self.sync(cluster, source)
            if standing.rollout is not None:
                raise Refusal(f"rollout {standing.rollout} is open in {cluster}: close or abort it first")
            back = {
                name: (limit.gpus, limit.first)
                for name, limit in standing.limits.items()
                if limit.ours and limit.gpus != limit.first and (restore or name.startswith((POOL, QOS)))
            }
            if back:
                self._write(cluster, source, {name: first for name, (_, first) in back.items()})
                there = self.limits(cluster, source, back)
                wrong = sorted(n for n, (_, first) in back.items() if there[n] != first)
                if wrong:
                    raise Unavailable(f"Slurm did not take back {', '.join(wrong)}: try again")
            self.book.detach(cluster)
        return back


def _differences(seen: MirroredCluster, held: Mapping[str, Held]) -> tuple[list[str], list[str]]:
    """What others changed since it was last seen, and what of our own writes was never answered and has landed."""
    foreign, landed = [], []
    for team in sorted({*seen.quotas, *held}):
        there, here = held.get(team), seen.quotas.get(team)
        before = seen.limits[team].gpus if team in seen.limits else None
        now = None if there is None else there.gpus
        wanted = seen.admitted(team)
        if there is not None and here is not None and there.parent != here.parent:
            foreign.append(team)
        elif now == wanted and now != before and team in seen.limits:
            landed.append(team)
        elif now not in (before, wanted) or (here is None) is not (there is None):
            foreign.append(team)
    return foreign, landed


def _wanted(standing: MirroredCluster, source: SlurmSource) -> dict[str, int | None]:
    """What Slurm's limits should be, by name; only of what the ledger knows to be there."""
    wanted: dict[str, int | None] = {
        team: standing.admitted(team) for team in standing.quotas if team in standing.limits
    }
    tops = [team for team, q in standing.quotas.items() if q.parent is None]
    pool = standing.limits.get(POOL + source.root)
    qos = standing.limits.get(QOS + source.flex_qos) if source.size_flex else None
    if pool is not None:
        # While a rollout is open no account can hand on what it freed, whoever raises which limit below.
        wanted[POOL + source.root] = standing.bound if standing.reserved else pool.first if pool.ours else pool.gpus
    if qos is not None:
        # Flex may have what is healthy: what no quota stands on, and what quotas leave unused.
        size = None if standing.flex_gpus is None else standing.flex_gpus + sum(standing.quotas[t].gpus for t in tops)
        wanted[QOS + source.flex_qos] = size if size is not None else qos.first if qos.ours else qos.gpus
    return wanted


def _lines(limits: Mapping[str, int | None], cluster: str, source: SlurmSource) -> list[str]:
    """Commands of sacctmgr; -1 takes a limit away."""
    groups: dict[int | None, list[str]] = {}
    lines = []
    for name, gpus in sorted(limits.items()):
        if name.startswith(QOS):
            lines.append(f"modify qos {_plain(name.removeprefix(QOS))} set GrpTRES={source.tres}={_limit(gpus)}")
        else:
            groups.setdefault(gpus, []).append(_plain(name.removeprefix(POOL)))
    for gpus, names in groups.items():
        for at in range(0, len(names), _NAMES):
            some = ",".join(names[at : at + _NAMES])
            lines.append(f"modify account {some} cluster={_plain(cluster)} set GrpTRES={source.tres}={_limit(gpus)}")
    return lines


def _limit(gpus: int | None) -> int:
    return -1 if gpus is None else gpus


def _plain(name: str) -> str:
    """A name that is one word to sacctmgr. Errors: Refusal."""
    if not _PLAIN.fullmatch(name):
        raise Refusal(f"{name!r} cannot be a name in Slurm: letters, digits and . _ @ + - are taken")
    return name


class SlurmQuotas:
    """QuotaPort: of the ledger, and for clusters that Slurm holds of both."""

    def __init__(self, slurms: Slurms) -> None:
        self._slurms = slurms
        self._ledger = slurms.ledger.quotas

    def read(self, cluster: str) -> QuotaReading:
        source = self._slurms.book.sources([cluster]).get(cluster)
        if source is not None:
            self._slurms.sync(cluster, source)
        return self._ledger.read(cluster)

    def barred(self, cluster: str) -> str:
        source = self._slurms.book.sources([cluster]).get(cluster)
        return self._ledger.barred(cluster) if source is None else self._slurms.barred(cluster, source)

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        for cluster, source in self._slurms.book.sources(clusters).items():
            if self._slurms.due("limits", cluster, self._slurms.every):
                with _tolerated():
                    self._slurms.sync(cluster, source)
        return self._ledger.versions(clusters)

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        return self._ledger.changes(cluster, after)

    def apply(self, change: Change) -> Receipt:
        source = self._slurms.book.sources([change.cluster]).get(change.cluster)
        if source is None:
            return self._ledger.apply(change)
        with self._slurms.book.alone(change.cluster):
            self._slurms.sync(change.cluster, source)
            receipt = self._ledger.apply(change)
            self._slurms.push(change.cluster, source)
            return receipt


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    """What is known stands where the scheduler does not answer: it grows old, and whoever reads it sees that."""
    try:
        yield
    except BackstopError as error:
        log.warning("the scheduler was not read: %s", error.message)


__all__ = ["SlurmQuotas", "Slurms"]
