"""What Backstop needs from outside. Adapters translate foreign errors into models.errors.

Every call may raise Unavailable (retry with the same arguments). All calls block: activities run
them in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Protocol, TypeVar

from pydantic import Field

from activities.ports.fleet_file import FleetFilePort
from models.audit_chain import AuditEntry, ChainedEntry, ChainHead, Deed
from models.base import Model, Name, Time
from models.buffers.hourly_health import Stretch
from models.cluster.fleet_file import ClusterInSlurm, ClusterSpec, Team
from models.cluster.jobs import ClusterJob, Job
from models.cluster.readings import Doubt, ForeignChange, HealthSample, LimitMode, QuotaReading, TeamUsage, UsageReading
from models.cluster.snapshot import Snapshot
from models.cluster.source_doubts import DoubtedSource
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declaration, Declared, Entry, Window
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import Noted
from models.planning.plan import Envelope
from models.questions import ClusterFacts, Overview, SchedulerCheck, TeamSum
from models.reports.milestones import Milestone, MilestoneNote, Milestones
from models.reports.tallies import Point, Tally
from models.reports.weekly import ClusterCut, Mean, Passage, Span
from models.requests.state import RequestState
from models.rollout.effects import Change, Fence, Receipt
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage

_T = TypeVar("_T")


class ByCluster(dict[str, _T]):
    """An answer for each cluster that has one. One row that makes no sense must not keep it from all others.

    `senseless`: why a cluster that has something to say is left out, in a sentence that names it.
    """

    def __init__(self, answers: Mapping[str, _T] | None = None) -> None:
        super().__init__(answers or {})
        self.senseless: dict[str, str] = {}


class QuotaPort(Protocol):
    """A quota system: reads with a generation, fenced writes with expected values."""

    def read(self, cluster: str) -> QuotaReading:
        """The cluster's quotas now. Errors: Refusal for an unknown cluster."""

    def look(self, cluster: str) -> QuotaReading:
        """As `read`; where the system does not answer soon, what was last known and why (`unread`)."""

    def last_known(self, cluster: str) -> QuotaReading:
        """What was read last, by whomever: nobody outside is asked, and so nobody waited for."""

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        """What `read` says of each, at once; one that is unknown is left out."""

    def barred_reason(self, cluster: str) -> str:
        """Why it would not let us write what a rollout writes; empty where it would. Errors: as `read`."""

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        """A text for each known cluster, in one call: while it stays the same, so does what `read` answers."""

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        """By team: who changed quotas past Backstop since this generation, as far as the system knows."""

    def apply(self, change: Change) -> Receipt:
        """The effect has landed, once, however often this is called with its fence.

        The rollout's last fence again: its stored receipt. A smaller one, or another rollout's while one
        is open: Conflict. A moved generation where one is expected: Drift, and nothing is written.

        A GRANT where no rollout is open and none left anything reserved is fenced by its request, and counts as a
        change by others: a rollout that is just being opened has not seen it.
        """


class HealthPort(Protocol):
    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        """The latest sample of each cluster, in one call; a cluster without any is left out."""
        ...

    def least_healthy(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        """The fewest healthy GPUs of each island from `since` up to now, what stood at `since` included."""
        ...

    def usual_healthy(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        """The median of healthy GPUs by island, rounded down; an island whose history is shorter is left out."""
        ...

    def history(self, cluster: str, since: datetime, now: datetime) -> dict[str, Stretch]:
        """By island: what its samples from `since` up to now say of it; one without any is left out."""
        ...

    def histories(self, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, dict[str, Stretch]]:
        """The same of many clusters, in one call."""
        ...


class DoubtPort(Protocol):
    """Falls of health judged across the clusters of a source: models/cluster/source_doubts.py."""

    def doubt(self, cluster: str, plausible_drop: Fraction | None, most_clusters: int | None) -> Doubt | None:
        """Why the cluster's sample is not to be believed, for what its source says of all its clusters; None: it is.

        The source is in doubt from now on where these limits say so; without limits what is in doubt already counts.
        """
        ...

    def doubted_clusters(self) -> dict[str, str]:
        """Clusters whose sample is not believed, with the source in doubt; in one call."""
        ...

    def sources_in_doubt(self) -> tuple[DoubtedSource, ...]:
        """A source whose clusters are all back is in doubt no more."""
        ...

    def confirm(self, source: str, actor: str) -> DoubtedSource:
        """What the source says is so. Errors: Refusal for a source that is not in doubt."""
        ...


class UsagePort(Protocol):
    def read(self, cluster: str, window: timedelta, now: datetime) -> UsageReading:
        """S and L per quota: the 95th percentile over the window where there is history."""
        ...

    def readings(self, windows: Mapping[str, timedelta], now: datetime) -> dict[str, UsageReading]:
        """The same of each of these clusters by its window, in few calls.

        History that somebody changed behind the last sample may be told an hour late.
        """
        ...

    def latest(self, clusters: Sequence[str], now: datetime) -> dict[str, dict[str, TeamUsage]]:
        """The last sample of each leaf quota that has any, by cluster and team, in one call.

        One that makes no sense says nothing: use is unknown there.
        """
        ...


class JobPort(Protocol):
    """Jobs by name, as far as anybody says: sums go by UsagePort."""

    def jobs(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        """Those that run, and those that have ended since, in the order of their starts; no senseless ones."""
        ...

    def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """They stand, each in place of the one of its name and start; answers how many. Errors: BadInput."""
        ...


class SchedulerPort(Protocol):
    """Schedulers that hold quotas themselves, beside the ledger's mirror of them."""

    def describe(self, cluster: str, source: SlurmSource) -> ClusterInSlurm:
        """The cluster as the scheduler has it now: islands, quotas and use. Errors: Refusal where it has none."""
        ...

    def check(self) -> dict[str, SchedulerCheck]:
        """For each cluster that a scheduler holds."""
        ...

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        """The scheduler is left alone from now on. Answers the limits that were taken back: before and after, by name.

        `look`: nothing changes; answers what would be taken back.

        Errors: Refusal while a rollout is open, and for a cluster whose quotas the ledger holds itself.
        """
        ...


class HealthSourcesPort(Protocol):
    """Sources of health beside the ledger."""

    def check(self) -> dict[str, str]:
        """For each cluster that has one: what is wrong with what it says now; empty: nothing."""
        ...


class CalendarPort(Protocol):
    def windows(self, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
        """Declared windows that have not been deleted, past ones included; a cluster without any is left out.

        A row that is none is left out, and costs no other one anything.
        """
        ...

    def faults(self) -> dict[str, str]:
        """Clusters with rows that are no windows: which, and why."""
        ...


class PushPort(Protocol):
    """Clusters whose health somebody asks to be looked at now. Nothing that they say of it is kept."""

    def push(self, clusters: Sequence[str]) -> tuple[str, ...]:
        """They wait to be looked at; answers with those that there are. Idempotent until somebody takes them."""
        ...

    def take(self, mine: Callable[[str], bool]) -> dict[str, datetime]:
        """Of these the ones that wait, and since when; they wait no more. At most 1,000, the oldest first."""
        ...


class TallyPort(Protocol):
    """The tallies: what each cluster was in each slot of time."""

    def due_clusters(self, slot: datetime, most: int) -> tuple[str, ...]:
        """Clusters without a tally of this slot, by name; at most so many."""
        ...

    def keep(self, tallies: Sequence[Tally]) -> None:
        """They stand; a cluster that has one of its slot already keeps that."""
        ...

    def thin_out(self, day: datetime) -> None:
        """Of the day that begins then each cluster keeps its first tally alone. Idempotent."""
        ...

    def sum_up(self, since: datetime, until: datetime) -> bool:
        """The next day in this time with tallies is kept as sums, too, for means; False: there is none left."""
        ...

    def points(self, cluster: str, times: Sequence[datetime], within: timedelta) -> tuple[Point, ...]:
        """For each time the last tally of each cluster up to then, no older than `within`, summed up.

        Of one cluster where one is named. A time without any is left out. Errors: BadInput, unknown cluster.
        """
        ...

    def begin_at(self, cluster: str) -> datetime | None:
        """When the tallies begin, of one cluster or of all; None where there are none."""
        ...


class ReportPort(Protocol):
    """What a weekly report asks of Backstop's own book."""

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """Every rollout's way through its stages up to then, shadows left out, by cluster and time."""
        ...

    def means(self, spans: Sequence[Span]) -> tuple[Mean | None, ...]:
        """The mean of each span's tallies; None where there are none."""
        ...

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """What rollouts took from quotas after `since` and up to `until`, shadows left out, by cluster."""
        ...

    def clusters(self) -> tuple[str, ...]:
        """Every cluster of the ledger, by name."""
        ...


class MilestonePort(Protocol):
    """The plan's milestones, and what people note of them."""

    def milestones(self) -> Milestones: ...

    def plan_milestones(
        self, milestones: Sequence[Milestone], measured: Mapping[str, int | None], now: datetime
    ) -> None:
        """These are the plan, in place of the one before; notes stay. Idempotent."""
        ...

    def note_milestone(self, key: str, note: MilestoneNote) -> None:
        """The note stands, once per key. Errors: Refusal for a milestone that is not planned, or not people's work."""
        ...


class OpenRollout(Model):
    """A rollout as the registry knows it."""

    rollout: str
    cluster: Name
    owner: str
    opened_at: Time
    baseline: Snapshot
    shadow: bool = False
    stage: Stage = Stage.PLANNED
    last_counter: int = 0
    """The highest fence counter that this rollout has used."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    """The baseline's modes by team: what an undo brings back."""
    adopted_from: str = ""
    """The lost rollout whose effects this one took over."""
    written: dict[str, int] = Field(default_factory=dict)
    """Of an adopter: what the lost one, and those that it had adopted, wrote last, by team."""
    fleet: str = ""
    """The fleet rollout that launched it."""


class Described(Model):
    """A cluster of the ledger; `spec` None: it makes no sense, for the reason `wrong`."""

    name: str
    spec: ClusterSpec | None
    rollout: OpenRollout | None = None
    wrong: str = ""


class RolloutsPort(Protocol):
    """The rollouts that are and were open: what they opened with, and how they stand as they noted it last."""

    def open_rollout(self, opening: OpenRollout, adopt: bool, fence: int | None = None) -> OpenRollout:
        """The rollout is open and its baseline kept. Repeating it with the same id and `opened_at` changes nothing.

        Effects that an earlier, lost rollout left behind are adopted (its baseline is returned and its
        fences are dead from now on) or, without `adopt`, refused. `fence`: the last effect in the history that opens
        it. Where this very rollout has later ones, it adopts itself, under another name. Errors: Refusal, also for one
        that has ended.
        """

    def keep_baseline(self, fence: Fence, baseline: Snapshot) -> None:
        """An open rollout's baseline is this from now on: a grant is part of what an undo brings back. Idempotent.

        `fence`: of the effect that it comes with. After a later effect of the rollout a call changes nothing.
        """

    def open_rollout_of(self, cluster: str) -> OpenRollout | None:
        """The open rollout of the cluster, with its baseline."""

    def adopted_from(self, rollout: str) -> str:
        """The lost rollout whose effects this one took over; empty for none, and for an unknown one."""

    def record(self, request: RecordRequest) -> None:
        """The registry shows the stage and what a person has to do; the entries are archived, as by `archive`.

        `ended` closes the rollout, `completed` moves a ramp on (once). Errors: Refusal for an unknown rollout; its
        entries are archived all the same.
        """

    def overview(self) -> tuple[Overview, ...]:
        """Every open rollout, by cluster."""

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        """Clusters with an open rollout, for the watch: (stage, shadow) by cluster."""

    def noted_rollouts(self, rollouts: Sequence[str], fleet: str = "") -> dict[str, Noted]:
        """These rollouts, and those of a fleet rollout, as they were noted last, by id; unknown ones are left out."""

    def newest(self, clusters: Sequence[str]) -> dict[str, Noted]:
        """The open rollout of each of these clusters that has one."""


class ClustersPort(Protocol):
    def names(self) -> tuple[str, ...]:
        """Every cluster of the ledger."""
        ...

    def facts(self, cluster: str) -> ClusterFacts:
        """Errors: Refusal for an unknown cluster."""
        ...

    def facts_of(self, clusters: Sequence[str]) -> ByCluster[ClusterFacts]:
        """Of each that is known, in one call, without its contacts."""
        ...


class RequestsPort(Protocol):
    def keep_request(self, request: RequestState, entries: Sequence[AuditEntry] = ()) -> None:
        """The request stands in the book as it is now, and the entries are archived, once per key. Idempotent."""
        ...

    def requests(self, cluster: str = "", *, ended: bool = False) -> tuple[RequestState, ...]:
        """Requests for more quota, by the time they were made; those that are over only where asked for."""
        ...

    def request(self, request: str) -> RequestState | None:
        """One request by its id."""
        ...


class ArchivePort(Protocol):
    def archive(self, entries: Sequence[AuditEntry]) -> ChainHead | None:
        """The entries are archived, once per key, each at the end of its cluster's chain."""
        ...

    def entries_after(self, cluster: str, after_seq: int, limit: int) -> tuple[ChainedEntry, ...]: ...

    def archived_of(self, keys: Sequence[str]) -> frozenset[str]:
        """Those of these entries' keys that are archived."""
        ...

    def chain_head(self, cluster: str) -> ChainHead | None: ...


class RegistryPort(RolloutsPort, ClustersPort, RequestsPort, ArchivePort, Protocol):
    """Backstop's own book, whole: for those who need more than a part of it.

    It is the ledger database even where another system holds the quotas.
    """

    def reserve_moves(
        self, fence: Fence, cluster: str, gpus: int, limit: int, now: datetime, day_limit: int | None = None
    ) -> None:
        """This many moved GPUs are booked, once per fence.

        Errors: BlastRadius past `limit` in an hour or `day_limit` in a day, per cluster and over the fleet, with
        the time at which there is room for it.
        """
        ...

    def reserve_breach(self, cluster: str, most_clusters: int | None, now: datetime) -> None:
        """The cluster's breach rollback is booked, under one lock for the fleet. Again within the hour it is the same.

        Errors: BlastRadius past `most_clusters` clusters in an hour; None: a person has lifted the limit.
        """
        ...

    def release_breach(self, cluster: str) -> None:
        """Nothing came of what was booked."""
        ...

    def give_back_moves(self, fence: Fence) -> None:
        """What was booked for this fence counts no more, unless its write landed."""
        ...

    def booked_gpus(self, now: datetime) -> tuple[int, int]:
        """GPUs that were moved over the fleet within the last hour, and within the last day."""
        ...

    def kept_fleet(self) -> KeptFleet | None:
        """What the archive tells of the fleet rollout that was launched last; None: there never was one."""
        ...

    def of_fleet(self, fleet: str) -> dict[str, tuple[Noted, datetime]]:
        """By cluster, the newest rollout of this fleet rollout there, and when it was opened."""
        ...

    def keep_fleet_plan(self, fleet: str, envelopes: Mapping[str, Envelope]) -> None:
        """What is approved of each cluster when this fleet rollout's plan is. Repeating it replaces all of it.

        Once the plan is archived a call changes nothing: it is a late attempt.
        """
        ...

    def fleet_envelope(self, fleet: str, cluster: str) -> Envelope | None:
        """What was kept of this cluster; None: nothing."""
        ...

    def fleet_envelopes(self, fleet: str, clusters: Sequence[str]) -> dict[str, Envelope]:
        """What was kept of these clusters, as far as there is something."""
        ...


class FleetPort(FleetFilePort, Protocol):
    """Import and show: the ledger as the source of clusters, quotas, health and usage."""

    def add_health(self, samples: Sequence[HealthSample], actor: str) -> int:
        """Samples are stored (a repeated cluster, island and time replaces); answers how many rows."""
        ...

    def describe(self, after: str, limit: int, *, free: bool = False) -> tuple[Described, ...]:
        """Clusters by name after `after`, with present values and latest health. `free`: those without a rollout."""
        ...

    def senseless(self) -> dict[str, tuple[str, ...]]:
        """By cluster: what stands in the ledger of it and makes no sense, in a sentence each."""
        ...

    def teams_in_clear(self) -> tuple[str, ...]:
        """Teams with a contact that holds a token itself, by name, where an import of it would be refused."""
        ...

    def senseless_teams(self) -> dict[str, str]:
        """By team: what stands in the ledger of how it wants to be told and makes no sense, in a sentence."""
        ...

    def teams(self) -> tuple[Team, ...]: ...

    def team_sums(self) -> tuple[TeamSum, ...]: ...

    def calendar(self, cluster: str, since: datetime) -> tuple[Entry, ...]:
        """Windows that end after `since`; of all clusters where none is named. Errors: BadInput, unknown cluster."""
        ...

    def declare(self, declared: Sequence[Declared], actor: str, now: datetime) -> Declaration:
        """The windows stand, all or none, in place of what their sources declared before. Errors: BadInput."""
        ...

    def end_window(self, cluster: str, number: int, now: datetime, deed: Deed[Entry]) -> Entry:
        """The window is over: cut short where it has begun, else gone; archived, once. Errors: Refusal, unknown one.

        The same deed again gets the same answer.
        """
        ...

    def end_hold(self, source: str, clusters: Sequence[str], now: datetime, deed: Deed[Entry]) -> tuple[Entry, ...]:
        """The same of every window that the source has in these clusters and that is not over, all or none."""
        ...
