"""The ports: everything that Backstop needs from outside. Adapters translate foreign errors into models.errors.

Every call may raise Unavailable (retry with the same arguments). All calls block: activities run them in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from pydantic import Field

from models.audit_chain import AuditEntry, ChainedEntry, ChainHead, Deed, Signature
from models.base import Model, Name, Time
from models.buffers.hourly_health import Stretch
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterInSlurm, ClusterSpec, Team
from models.cluster.implausible_falls import DoubtedSource
from models.cluster.import_outcome import Departure, FleetOutcome, ImportTerms
from models.cluster.jobs import ClusterJob, Job
from models.cluster.readings import Doubt, ForeignChange, HealthSample, LimitMode, QuotaReading, TeamUsage, UsageReading
from models.cluster.snapshot import Snapshot
from models.cluster.sources import QuotaSource, SlurmSource
from models.cluster.windows import Declaration, Declared, Entry, Window
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import Noted
from models.planning.plan import Envelope
from models.questions import ClusterFacts, SchedulerCheck, TeamSum
from models.reports.milestones import Milestone, MilestoneNote, Milestones
from models.reports.tallies import Point, Tally
from models.reports.weekly import ClusterCut, Mean, Passage, Span
from models.requests.state import RequestState
from models.rollout.effects import Change, Fence, Receipt
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage
from models.seals import SealedTo, Sealing
from models.status_questions import Overview


class FleetFilePort(Protocol):
    """Takes a fleet file into the ledger and writes one out of it; removes and renames clusters."""

    def stage_import(self, import_id: str, part: int, payload: bytes) -> None:
        """Keep one part of a large document until it is committed. Idempotent."""

    def commit_import(self, import_id: str, parts: int, actor: str, now: datetime) -> dict[str, int]:
        """Take in the staged fleet, all of it or nothing: earlier builds ask for this.

        Returns counts: {"clusters": n, "quotas": n, "added": n, "changed": n, "removed": 0}. Errors: BadInput; Refusal
        if a line of it is refused.
        """

    def would_change(self, import_id: str, parts: int, terms: ImportTerms) -> tuple[str, ...]:
        """Return the changes that the staged fleet would make now, policies first, a sentence each; it stays staged.

        Errors: BadInput if it is not there any more.
        """

    def take_import(
        self, import_id: str, parts: int, terms: ImportTerms, actor: str, now: datetime, given_by: str = ""
    ) -> FleetOutcome:
        """Take in the staged fleet: each cluster whole or, if refused, not at all; on a dry run none.

        `given_by`: whose command `actor` countersigns. Idempotent: committed again it returns the first answer. Errors:
        BadInput; Refusal by its terms.
        """

    def fleet_page(self, after: str, limit: int) -> FleetPage:
        """Return clusters by name after `after` as the fleet file that would bring them here."""

    def remove_cluster(self, cluster: str, by: Signature, *, dry_run: bool) -> Departure:
        """Remove the cluster and its history, and archive a description of it. Idempotent by the signature's key.

        Errors: Refusal for an unknown cluster, and while a rollout or a request is open there.
        """

    def rename_cluster(self, cluster: str, name: str, by: Signature, *, dry_run: bool) -> Departure:
        """Give all of the cluster but its archive the other name. As `remove_cluster`; BadInput: it is taken."""


_T = TypeVar("_T")


class ByCluster(dict[str, _T]):
    """An answer for each cluster that has one. One senseless row must not cost the others their answer.

    `senseless`: why a cluster that should have an answer is left out, in a sentence that names it.
    """

    def __init__(self, answers: Mapping[str, _T] | None = None) -> None:
        super().__init__(answers or {})
        self.senseless: dict[str, str] = {}


class QuotaPort(Protocol):
    """A quota system: reads with a generation, fenced writes with expected values."""

    def read(self, cluster: str) -> QuotaReading:
        """Return the cluster's quotas now. Errors: Refusal for an unknown cluster."""

    def look(self, cluster: str) -> QuotaReading:
        """Read; if the system does not answer soon, return the last reading and the reason (`unread`)."""

    def last_known(self, cluster: str) -> QuotaReading:
        """Return the last reading of any caller, without asking the outside or waiting for it."""

    def readings(self, clusters: Sequence[str]) -> ByCluster[QuotaReading]:
        """Return the reading of each, at once; unknown clusters are left out."""

    def barred_reason(self, cluster: str) -> str:
        """Return why the system would refuse a rollout's writes; empty if it would not. Errors: as `read`."""

    def versions(self, clusters: Sequence[str]) -> dict[str, str]:
        """Return a text for each known cluster, in one call: while it stays the same, so does the answer of `read`."""

    def changes(self, cluster: str, after: int) -> tuple[ForeignChange, ...]:
        """Return who changed quotas past Backstop since this generation, by team, as far as the system knows."""

    def apply(self, change: Change) -> Receipt:
        """Apply the effect once, however often this is called with its fence.

        The rollout's last fence again: its stored receipt. A smaller one, or another rollout's while one is open:
        Conflict. A moved generation if one is expected: Drift, and nothing is written.

        A GRANT while no rollout is open and none left anything reserved is fenced by its request, and counts as a
        change by others: a rollout that is just being opened has not seen it.
        """


class HealthPort(Protocol):
    def read(self, clusters: Sequence[str]) -> ByCluster[HealthSample]:
        """Return the latest sample of each cluster, in one call; a cluster without any is left out."""

    def least_healthy(self, cluster: str, since: datetime, now: datetime) -> dict[str, int]:
        """Return the fewest healthy GPUs of each island from `since` up to now, the value at `since` included."""

    def usual_healthy(self, cluster: str, window: timedelta, now: datetime) -> dict[str, int]:
        """Return the median of healthy GPUs by island, rounded down; an island with a shorter history is left out."""

    def history(self, cluster: str, since: datetime, now: datetime) -> dict[str, Stretch]:
        """Return the samples of each island from `since` up to now as stretches; an island without any is left out."""

    def histories(self, clusters: Sequence[str], since: datetime, now: datetime) -> dict[str, dict[str, Stretch]]:
        """Do `history` for many clusters, in one call."""


class DoubtPort(Protocol):
    """Judges falls of health across the clusters of a source: models/cluster/implausible_falls.py."""

    def doubt(self, cluster: str, plausible_drop: Fraction | None, most_clusters: int | None) -> Doubt | None:
        """Return why the cluster's sample is not to be believed, by its source's samples of all clusters; None: it is.

        These limits may put the source in doubt from now on; without limits only doubts that exist already count.
        """

    def doubted_clusters(self) -> dict[str, str]:
        """Return clusters whose sample is not believed, with the source in doubt; in one call."""

    def sources_in_doubt(self) -> tuple[DoubtedSource, ...]:
        """Return the sources in doubt. A source whose clusters are all back is in doubt no more."""

    def confirm(self, source: str, actor: str) -> DoubtedSource:
        """Believe the source's present samples. Errors: Refusal for a source that is not in doubt."""


class UsagePort(Protocol):
    def read(self, cluster: str, window: timedelta, now: datetime) -> UsageReading:
        """Return S and L per quota: the 95th percentile over the window if there is history."""

    def readings(self, windows: Mapping[str, timedelta], now: datetime) -> dict[str, UsageReading]:
        """Do `read` for each of these clusters by its window, in few calls.

        A change of history behind the last sample may show an hour late.
        """

    def latest(self, clusters: Sequence[str], now: datetime) -> dict[str, dict[str, TeamUsage]]:
        """Return the last sample of each leaf quota, by cluster and team, in one call; senseless ones are left out."""


class JobPort(Protocol):
    """Jobs by name, as far as a source names them: sums go by UsagePort."""

    def jobs(self, clusters: Sequence[str], since: datetime) -> dict[str, tuple[Job, ...]]:
        """Return running jobs, and those that have ended since, in the order of their starts; no senseless ones."""

    def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Store the jobs, each in place of the one of its name and start; return how many. Errors: BadInput."""


class SchedulerPort(Protocol):
    """Schedulers that hold quotas themselves, beside the ledger's mirror of them."""

    def describe(self, cluster: str, source: SlurmSource) -> ClusterInSlurm:
        """Return the cluster as it is in the scheduler: islands, quotas and usage. Errors: Refusal if it has none."""

    def quotas_at(self, cluster: str, source: QuotaSource) -> dict[str, int]:
        """Return the quotas that the source has now, of a cluster that need not be in the ledger.

        Errors: Unavailable, Refusal, BadInput.
        """

    def check(self) -> dict[str, SchedulerCheck]:
        """Check each cluster that a scheduler holds."""

    def detach(self, cluster: str, *, restore: bool, look: bool = False) -> dict[str, tuple[int | None, int | None]]:
        """Leave the scheduler alone from now on; return the limits that were taken back: before and after, by name.

        `look`: change nothing; return what would be taken back. Errors: Refusal while a rollout is open, and for a
        cluster whose quotas the ledger holds itself.
        """


class HealthSourcesPort(Protocol):
    """Sources of health beside the ledger."""

    def check(self) -> dict[str, str]:
        """Return the fault in each cluster's present answer, for clusters that have a source; empty: none."""


class CalendarPort(Protocol):
    def windows(self, clusters: Sequence[str]) -> ByCluster[tuple[Window, ...]]:
        """Return declared windows that have not been deleted, past ones included; a cluster without any is left out.

        A row that is no window is left out, and costs no other one anything.
        """

    def faults(self) -> dict[str, str]:
        """Return clusters with rows that are no windows: which, and why."""


class PushPort(Protocol):
    """Clusters whose health is to be looked at now. What a push says about it is not kept."""

    def push(self, clusters: Sequence[str]) -> tuple[str, ...]:
        """Let them wait to be looked at; return those that exist. Idempotent until somebody takes them."""

    def take(self, mine: Callable[[str], bool]) -> dict[str, datetime]:
        """Take the waiting clusters among these, and since when they wait. At most 1,000, the oldest first."""


class SealPort(Protocol):
    def sealing_state(self) -> Sealing | None:
        """Return how the archive is sealed; None if nobody has sealed it."""

    def sealed_to(self, cluster: str) -> tuple[SealedTo, ...]:
        """Return the last seals that name this chain, the newest first."""


class PulsePort(Protocol):
    def mark(self) -> str:
        """Return a text that changes with the ledger."""


class TallyPort(Protocol):
    """The tallies: the state of each cluster in each slot of time."""

    def due_clusters(self, slot: datetime, most: int) -> tuple[str, ...]:
        """Return clusters without a tally of this slot, by name; at most so many."""

    def keep(self, tallies: Sequence[Tally]) -> None:
        """Store the tallies; a cluster that has one of its slot already keeps that."""

    def thin_out(self, day: datetime) -> None:
        """Keep only each cluster's first tally of the day that begins then. Idempotent."""

    def sum_up(self, since: datetime, until: datetime) -> bool:
        """Keep the next day in this time with tallies as sums, too, for means; return False if there is none left."""

    def points(self, cluster: str, times: Sequence[datetime], within: timedelta) -> tuple[Point, ...]:
        """Sum up, for each time, the last tally of each cluster up to then that is no older than `within`.

        Only of one cluster, if one is named. A time without any is left out. Errors: BadInput, unknown cluster.
        """

    def begin_at(self, cluster: str) -> datetime | None:
        """Return when the tallies begin, of one cluster or of all; None if there are none."""


class ReportPort(Protocol):
    """The facts for a weekly report from Backstop's own book."""

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """Return every rollout's way through its stages up to then, shadows left out, by cluster and time.

        While nothing has moved it is the same tuple, so that what was made of it can be kept.
        """

    def means(self, spans: Sequence[Span], until: datetime) -> tuple[Mean | None, ...]:
        """Return the mean of each span's tallies, of open ones up to `until`; None if there are none."""

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """Return the GPUs that rollouts, without shadows, took after `since` and up to `until`, by cluster."""

    def clusters(self) -> tuple[str, ...]:
        """Return every cluster of the ledger, by name."""

    def waves(self) -> Mapping[str, str]:
        """Return the wave of each cluster whose open rollout has noted one."""


class MilestonePort(Protocol):
    """The plan's milestones, and people's notes on them."""

    def milestones(self) -> Milestones: ...

    def plan_milestones(
        self, milestones: Sequence[Milestone], measured: Mapping[str, int | None], now: datetime
    ) -> None:
        """Replace the plan by these milestones; notes stay. Idempotent."""

    def note_milestone(self, key: str, note: MilestoneNote) -> None:
        """Store the note, once per key. Errors: Refusal for a milestone that is not planned, or is measured."""


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
    """The baseline's modes by team, which an undo restores."""
    adopted_from: str = ""
    """The lost rollout whose effects this rollout took over; empty: none."""
    written: dict[str, int] = Field(default_factory=dict)
    """For an adopter: the values last written, by team, by the lost rollout and those that it had adopted."""
    fleet: str = ""
    """The fleet rollout that launched it; empty: none."""
    ceiling: dict[str, Any] = Field(default_factory=dict)
    """The settings of its own policy that its ceiling comes from, once it has noted them."""


class Described(Model):
    """A cluster of the ledger; `spec` None: it makes no sense, for the reason `wrong`."""

    name: str
    spec: ClusterSpec | None
    rollout: OpenRollout | None = None
    wrong: str = ""


class RolloutsPort(Protocol):
    """The rollouts that are and were open: their baselines, and the states that they recorded last."""

    def open_rollout(self, opening: OpenRollout, adopt: bool, fence: int | None = None) -> OpenRollout:
        """Open the rollout and keep its baseline. Repeating it with the same id and `opened_at` changes nothing.

        Effects that an earlier, lost rollout left behind are adopted (its baseline is returned and its fences are dead
        from now on) or, without `adopt`, refused. `fence`: the last effect in the history that opens it. If this very
        rollout has later ones, it adopts itself, under another name. Errors: Refusal, also for one that has ended.
        """

    def keep_baseline(self, fence: Fence, baseline: Snapshot) -> None:
        """Replace an open rollout's baseline: a grant is part of what an undo restores. Idempotent.

        `fence`: of the effect that it comes with. After a later effect of the rollout a call changes nothing.
        """

    def open_rollout_of(self, cluster: str) -> OpenRollout | None:
        """Return the open rollout of the cluster, with its baseline."""

    def adopted_from(self, rollout: str) -> str:
        """Return the lost rollout whose effects this one took over; empty for none, and for an unknown one."""

    def record(self, request: RecordRequest) -> None:
        """Show the stage and what a person has to do; archive the entries, as `archive` does.

        `ended` closes the rollout, `completed` moves a ramp on (once). Errors: Refusal for an unknown rollout; its
        entries are archived all the same.
        """

    def overview(self, *, noted: bool = False, quiet: bool = True) -> tuple[Overview, ...]:
        """Return the open rollouts and ended shadows, by cluster; `noted` and `quiet`: as in `OpenRollouts`."""

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        """Return (stage, shadow) of clusters with an open rollout, by cluster, for the watch."""

    def noted_rollouts(self, rollouts: Sequence[str], fleet: str = "") -> dict[str, Noted]:
        """Return these rollouts, and those of a fleet rollout, as recorded last, by id; unknown ones are left out."""

    def newest(self, clusters: Sequence[str]) -> dict[str, Noted]:
        """Return the open rollout of each of these clusters that has one."""


class ClustersPort(Protocol):
    def names(self) -> tuple[str, ...]:
        """Return every cluster of the ledger."""

    def facts(self, cluster: str) -> ClusterFacts:
        """Return the cluster's settings. Errors: Refusal for an unknown cluster."""

    def facts_of(self, clusters: Sequence[str]) -> ByCluster[ClusterFacts]:
        """Return the settings of each known cluster, in one call, without its contacts."""


class RequestsPort(Protocol):
    def keep_request(self, request: RequestState, entries: Sequence[AuditEntry] = ()) -> None:
        """Store the request as it is now, and archive the entries, once per key. Idempotent."""

    def requests(self, cluster: str = "", *, ended: bool = False) -> tuple[RequestState, ...]:
        """Return requests for more quota, by the time they were made; ended ones only if asked for."""

    def request(self, request: str) -> RequestState | None:
        """Return one request by its id."""


class ArchivePort(Protocol):
    def archive(self, entries: Sequence[AuditEntry]) -> ChainHead | None:
        """Archive the entries, once per key, each at the end of its cluster's chain."""

    def entries_after(self, cluster: str, after_seq: int, limit: int) -> tuple[ChainedEntry, ...]: ...

    def archived_of(self, keys: Sequence[str]) -> frozenset[str]:
        """Return those of these entries' keys that are archived."""

    def chain_head(self, cluster: str) -> ChainHead | None: ...


class RegistryPort(RolloutsPort, ClustersPort, RequestsPort, ArchivePort, Protocol):
    """Backstop's own book, whole. It is the ledger database even if another system holds the quotas."""

    def reserve_moves(
        self, fence: Fence, cluster: str, gpus: int, limit: int, now: datetime, day_limit: int | None = None
    ) -> None:
        """Book this many moved GPUs, once per fence.

        Errors: BlastRadius past `limit` in an hour or `day_limit` in a day, per cluster and over the fleet, with the
        time at which there is room for it.
        """

    def reserve_breach(self, cluster: str, most_clusters: int | None, now: datetime) -> None:
        """Book the cluster's breach rollback, under one lock for the fleet. Within the hour it is booked once.

        Errors: BlastRadius past `most_clusters` clusters in an hour; None: a person has lifted the limit.
        """

    def release_breach(self, cluster: str) -> None:
        """Remove the booking of a rollback that was not made."""

    def give_back_moves(self, fence: Fence) -> None:
        """Remove the booking for this fence, unless its write took effect."""

    def booked_gpus(self, now: datetime) -> tuple[int, int]:
        """Return the GPUs that were moved over the fleet within the last hour, and within the last day."""

    def kept_fleet(self) -> KeptFleet | None:
        """Return the archived state of the fleet rollout that was launched last; None: there never was one."""

    def of_fleet(self, fleet: str) -> dict[str, tuple[Noted, datetime]]:
        """Return the newest rollout of this fleet rollout in each cluster, and when it was opened."""

    def keep_fleet_plan(self, fleet: str, envelopes: Mapping[str, Envelope]) -> None:
        """Keep the envelope of each cluster that an approval of this plan approves. Repeating it replaces all.

        Once the plan is archived a call changes nothing: it is a late attempt.
        """

    def fleet_envelope(self, fleet: str, cluster: str) -> Envelope | None:
        """Return the envelope kept for this cluster; None: there is none."""

    def fleet_envelopes(self, fleet: str, clusters: Sequence[str]) -> dict[str, Envelope]:
        """Return the envelopes kept for these clusters, as far as there are any."""


class FleetPort(FleetFilePort, Protocol):
    """Import and show: the ledger as the source of clusters, quotas, health and usage."""

    def add_health(self, samples: Sequence[HealthSample], actor: str) -> int:
        """Store samples (a repeated cluster, island and time replaces); return the number of rows."""

    def describe(
        self, after: str, limit: int, *, free: bool = False, names: Collection[str] = ()
    ) -> tuple[Described, ...]:
        """Describe clusters by name after `after`: values and latest health.

        `free`: those without a rollout. `names`: only these; empty: all.
        """

    def senseless(self) -> dict[str, tuple[str, ...]]:
        """Return the rows of each cluster that make no sense, in a sentence each."""

    def teams_in_clear(self) -> tuple[str, ...]:
        """Return teams with a contact that holds a token itself, by name, if an import of it would be refused."""

    def senseless_teams(self) -> dict[str, str]:
        """Return a sentence for each team whose choice of notification makes no sense."""

    def teams(self) -> tuple[Team, ...]: ...

    def team_sums(self) -> tuple[TeamSum, ...]: ...

    def calendar(self, cluster: str, since: datetime) -> tuple[Entry, ...]:
        """Return windows that end after `since`; of all clusters if none is named. Errors: BadInput."""

    def declare(self, declared: Sequence[Declared], actor: str, now: datetime) -> Declaration:
        """Store the windows, all or none, in place of their sources' earlier ones. Errors: BadInput."""

    def end_window(self, cluster: str, number: int, now: datetime, deed: Deed[Entry]) -> Entry:
        """End the window: cut it short if it has begun, else remove it; archive it, once. Errors: Refusal, unknown one.

        The same deed again gets the same answer.
        """

    def end_hold(self, source: str, clusters: Sequence[str], now: datetime, deed: Deed[Entry]) -> tuple[Entry, ...]:
        """End every window that the source has in these clusters and that is not over, all or none."""


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports through which a worker knows and changes clusters. Most activities need several of them."""

    quotas: QuotaPort
    health: HealthPort
    usage: UsagePort
    calendar: CalendarPort
    registry: RegistryPort
    jobs: JobPort
    doubts: DoubtPort
    one_moment: Callable[[str], AbstractContextManager[object]] = nullcontext
    """A context in which reads of the cluster see one moment, where they can."""
