"""The questions to the ledger's desk: one class each, with its arguments as fields and the type of its answer.

The client sends one (`await backstop.ask(EndWindow(...))`), the desk (activities/desk/desk.py) dispatches on its class.
`kind` is its name on the wire; builds of different age understand each other by it and the fields of question and
answer.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer

import models.access_questions
import models.countersign_questions
import models.fleet_cut_questions
import models.health_pushes
import models.import_questions
import models.status_questions  # noqa: F401 - their questions are among all of them
from models.access.access_versions import AccessCheck
from models.audit_chain import AuditEntry, ChainedEntry, ChainHead
from models.base import Count, GpuCount, Model, Name, NameGiven, PositiveCount, Text, Time, Words
from models.bringup.messages import BringupRow
from models.buffers.health_hours import HealthHours
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterInSlurm, ClusterSpec, Team
from models.cluster.implausible_falls import DoubtedSource
from models.cluster.import_outcome import Departure
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import CLOCK_SKEW, HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declaration, Declared, Entry
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow
from models.flex.flex_sum import FlexSum
from models.notice_digests import Untold
from models.question_base import QUESTIONS, DeskRequest, Question
from models.reports.milestones import MilestoneFile, PlanNow
from models.reports.tallies import Point
from models.reports.weekly import Past
from models.reports.why import WhyAnswers
from models.requests.state import RequestState
from models.seals import SealedTo, Sealing

__all__ = ["QUESTIONS", "DeskRequest"]
"""Both are defined in models/question_base.py. Importing them from here also defines every question."""

CLOCK_SKEW_SECONDS = CLOCK_SKEW.total_seconds()
"""Clocks that are kept right differ by fewer seconds."""


class _Page(Model):
    after: Words = ""
    limit: Annotated[PositiveCount, Field(le=1000)] = 20


_Times = Annotated[tuple[Time, ...], Field(max_length=500)]
_Brief = PlainSerializer(lambda spec: spec.model_dump(mode="json", exclude_defaults=True))
_OwnSettings = Annotated[Policy, PlainSerializer(lambda policy: policy.model_dump(mode="json", exclude_unset=True))]


class LedgerCluster(Model):
    """A cluster with present values and latest health, and its open rollout, if there is one.

    `cluster` None: the ledger's rows of the cluster `name` are invalid, for the reason `wrong`.
    """

    cluster: Annotated[ClusterSpec, _Brief] | None
    rollout: str | None = None
    stage: str | None = None
    name: str = ""
    wrong: str = ""


class ClusterFacts(Model):
    """The registry's facts about one cluster beside its quotas."""

    name: Name
    gpu_model: str | None
    gpus_per_node: int
    policy: Policy
    completed_rollouts: int
    contacts: dict[str, tuple[str, ...]]
    """Channel addresses by team."""


class Plannable(Model):
    """The snapshot and policy that a launch would plan with now."""

    snapshot: Snapshot
    policy: _OwnSettings


class Unplannable(Model):
    """A cluster that cannot be planned now, and the reason."""

    cluster: Name
    why_not: str


class ArchivePage(Model):
    """Rows of a cluster's archive; `head`: where its whole chain should end."""

    rows: tuple[ChainedEntry, ...]
    head: ChainHead | None
    seals: tuple[SealedTo, ...] = ()
    """The last seals that name this chain, the newest first; only with the newest rows."""

    def seal_of(self, seq: int) -> int | None:
        """Return the first of these seals that covers the row; None: no seal yet."""
        return next((seal.number for seal in reversed(self.seals) if seal.length >= seq), None)


class Arrival(Model):
    """A cluster that came into the fleet by its bring-up. Units: whole GPUs, as ordered."""

    cluster: Name
    at: Time
    gpus: GpuCount


class Curve(Model):
    """Tallies over time; `began`: the first tally of all."""

    points: tuple[Point, ...]
    began: Time | None
    arrived: tuple[Arrival, ...] = Field(default=(), exclude_if=lambda rows: not rows)
    """Clusters that bring-ups brought into the fleet in this time. Left out if there are none."""


class SchedulerCheck(Model):
    """The obstacles between Backstop and a scheduler; empty: none."""

    system: str = "slurm"
    wrong: str = ""
    """A fault in reading the scheduler, or in its contents; empty: none."""
    barred: str = ""
    """Why Backstop may not write to the scheduler; empty: it may. Plans and rehearsals need no such right."""
    note: str = ""
    """A remark for the scheduler's administrator that is no obstacle; empty: none."""


class LedgerCheck(Model):
    """Proof that a worker reaches its ledger, and the schedulers that hold quotas."""

    open_rollouts: int
    schedulers: dict[str, SchedulerCheck] = Field(default_factory=dict)
    doubts: tuple[DoubtedSource, ...] = ()
    """Health sources in doubt: their clusters fell together, and no person has confirmed them."""
    senseless: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By cluster: a sentence on each of its invalid rows in the ledger."""
    senseless_teams: dict[str, str] = Field(default_factory=dict)
    """By team with an invalid choice of notices: a sentence on that choice."""
    teams_in_clear: tuple[str, ...] = Field(default=(), exclude_if=lambda teams: not teams)
    """Teams with a contact that contains a token in clear text, although access is configured."""
    worker_ahead_seconds: float = Field(default=0.0, exclude_if=lambda seconds: abs(seconds) <= CLOCK_SKEW_SECONDS)
    """How far the worker's clock is ahead of Temporal's; below zero: behind. Left out if they agree."""
    prometheus: dict[str, str] = Field(default_factory=dict)
    """By cluster whose health a Prometheus reports: the fault in that report; empty: none."""
    kubernetes: dict[str, str] = Field(default_factory=dict, exclude_if=lambda faults: not faults)
    """By cluster whose health and use a Kubernetes API server reports: the fault in that report; empty: none."""
    windows: dict[str, str] = Field(default_factory=dict)
    """By cluster with invalid windows: which they are, and why."""
    notices: tuple[Untold, ...] = ()
    """The notices that wait, by audience."""
    seals: Sealing | None = None
    """The state of sealing the archive; None: it is not sealed."""
    access: AccessCheck | None = Field(default=None, exclude_if=lambda check: check is None)
    """The facts about access. Left out if no access is configured."""
    tickets: bool = Field(default=False, exclude_if=lambda needed: not needed)
    """True: every command needs a front's ticket. Left out if false."""
    proven: bool = Field(default=False, exclude_if=lambda believed: not believed)
    """True: the worker has fronts' keys and verifies their tickets. Left out if it has none."""
    unknown_keys: tuple[str, ...] = Field(default=(), exclude_if=lambda keys: not keys)
    """Keys that the ledger's warrants name, but that the worker's key book lacks."""


class FleetFile(_Page, Question[FleetPage], kind="fleet_file"):
    """Clusters by name as the fleet file that would import them; contacts without their secrets."""


class RemoveCluster(Question[Departure], kind="remove_cluster"):
    """Remove the cluster; its archive records what it was. Errors: Refusal, something is under way."""

    cluster: Name
    reason: Words = ""
    dry_run: bool = False


class RenameCluster(Question[Departure], kind="rename_cluster"):
    """Rename all of a cluster but its archive. Errors: as RemoveCluster; BadInput if the name is taken."""

    cluster: Name
    name: NameGiven
    reason: Words = ""
    dry_run: bool = False


class AddHealth(Question[int], kind="add_health"):
    """Store samples in the ledger; the answer is how many rows."""

    samples: tuple[HealthSample, ...]


class AddJobs(Question[int], kind="add_jobs"):
    """Store jobs in the ledger; the answer is how many. Errors: BadInput for an unknown cluster."""

    jobs: tuple[ClusterJob, ...]


class DescribeSlurm(Question[Annotated[ClusterInSlurm, _Brief]], kind="describe_slurm"):
    """The cluster as Slurm has it now, for an import. Errors: Unavailable, Refusal if Slurm has none."""

    cluster: Name
    slurm: SlurmSource


class Detach(Question[dict[str, tuple[int | None, int | None]]], kind="detach"):
    """Leave the scheduler alone from now on; the answer is the limits that were taken back there. Errors: Refusal."""

    cluster: Name
    restore: bool = False
    reason: Words = ""
    look: bool = Field(default=False, exclude_if=lambda look: not look)
    """True: only answer what would be taken back. Left out if false: an earlier build refuses unknown fields."""


class ConfirmSource(Question[DoubtedSource], kind="confirm_source"):
    """Confirm that a doubted health source is right. Errors: Refusal for one that is not in doubt."""

    source: Name
    reason: Words


class LedgerClusters(_Page, Question[tuple[LedgerCluster, ...]], kind="clusters"):
    """Clusters by name; an empty answer: there are no more."""

    free: bool = Field(default=False, exclude_if=lambda free: not free)
    """Only clusters without an open rollout. A build that does not know the field answers with all."""
    names: Annotated[tuple[Words, ...], Field(max_length=1000)] = Field(default=(), exclude_if=lambda names: not names)
    """Only these clusters; empty: all. A build that does not know the field answers with all."""


class AllTeams(Question[tuple[Team, ...]], kind="teams"):
    """All teams of the ledger."""


class TeamSum(Model):
    """The GPUs promised to one team in all clusters, without quotas that are sums of others."""

    team: Name
    clusters: Count
    gpus: Count


class TeamSums(Question[tuple[TeamSum, ...]], kind="team_sums"):
    """The sums, by name, of every team with a quota that holds jobs."""


class FactsOf(Question[ClusterFacts], kind="facts"):
    """The facts about one cluster. Errors: BadInput for an unknown cluster."""

    cluster: Name


class SnapshotNow(Question[Plannable], kind="snapshot"):
    """A cluster as a plan would see it, and its policy. Errors: BadInput, unknown cluster, bad setting."""

    cluster: Name
    policy: dict[str, Any] = Field(default_factory=dict)
    """Settings that override the cluster's own."""


class SnapshotsNow(_Page, Question[tuple[Plannable | Unplannable, ...]], kind="snapshots"):
    """Clusters by name as a plan would see them, with a health buffer of the last hour; empty: no more."""

    policy: dict[str, Any] = Field(default_factory=dict)


class YearOfHealth(Question[HealthHours], kind="health_hours"):
    """A year of a cluster's hourly health, and the terms of its buffer. Errors: BadInput, unknown cluster."""

    cluster: Name


class FlexOf(_Page, Question[tuple[FlexNow, ...]], kind="flex"):
    """The flex of one cluster, or of all by name; among all, an invalid one is left out (`Senseless` names it).

    Errors: BadInput for an unknown cluster; Refusal for a named cluster that is invalid.
    """

    cluster: Words = ""
    mode: FlexMode = FlexMode.EQUAL


class FlexSums(Question[tuple[FlexSum, ...]], kind="flex_sums"):
    """The flex of all clusters by name as plain numbers, in one answer: a page with all of them needs no more."""

    mode: FlexMode = FlexMode.EQUAL


class WhyNot(Question[WhyAnswers], kind="why"):
    """The reasons why the team cannot have so many GPUs, in one cluster or wherever it has a quota.

    `namespace`: the one that asks, where it is not the team itself. Errors: BadInput for an unknown cluster; Refusal
    where the named cluster allows no answer.
    """

    team: Name
    cluster: Words = ""
    gpus: PositiveCount | None = None
    block: bool = False
    namespace: Words = ""


class Archive(Question[int], kind="archive"):
    """Archive the entries, once per key; the answer is how many."""

    entries: tuple[AuditEntry, ...]


class Archived(Question[ArchivePage], kind="archived"):
    """Rows of a cluster's archive after a number; an empty answer: no more. `newest`: the last ones instead."""

    cluster: Name
    after: Count = 0
    limit: Annotated[PositiveCount, Field(le=1000)] = 200
    newest: bool = False


class Pulse(Question[str], kind="pulse"):
    """A mark of the ledger's content. The answer comes once it differs from `since`, or after `seconds`."""

    since: Words = ""
    seconds: Annotated[float, Field(ge=0, le=60)] = 0


class Calendar(Question[tuple[Entry, ...]], kind="calendar"):
    """Windows that end after `since`, of one cluster or all. Errors: BadInput for an unknown cluster."""

    cluster: Words = ""
    since: Time


class Declare(Question[Declaration], kind="declare"):
    """Declare the windows, all or none, in place of what their sources declared before. Errors: BadInput."""

    declared: tuple[Declared, ...] = Field(min_length=1, max_length=10_000)


class EndWindow(Question[Entry], kind="end_window"):
    """End the window. Errors: Refusal if there is none of this number."""

    cluster: Name
    number: PositiveCount
    reason: Words = ""


class EndHold(Question[tuple[Entry, ...]], kind="end_hold"):
    """End all windows of a declaration in these clusters, or none. The answer is the windows as they were left."""

    source: Text = Field(min_length=1, max_length=300)
    clusters: tuple[Name, ...] = Field(min_length=1, max_length=10_000)
    reason: Words = ""


class Tallies(Question[Curve], kind="tallies"):
    """The curve of a cluster or of all, and when its tallies begin. Errors: BadInput for an unknown cluster."""

    cluster: Words = ""
    times: _Times
    within_seconds: PositiveCount


class PastWeek(Question[Past], kind="week"):
    """The ledger's facts about a period."""

    since: Time
    until: Time
    times: _Times
    within_seconds: PositiveCount
    most: PositiveCount | None = None
    """The most rows in each list; the answer has sums of the other rows, and no `steps`. None: all rows."""


class BringupsOf(Question[tuple[BringupRow, ...]], kind="bringups"):
    """Bring-ups as last noted, by cluster: open ones, and with `ended` all that ever were."""

    ended: bool = False


class GiveUpBringup(Question[BringupRow], kind="give_up_bringup"):
    """End the cluster's bring-up in the book only: its workflow is lost, and what it made remains.

    Errors: Refusal if there never was one.
    """

    cluster: Name
    reason: Words = ""


class OneRequest(Question[RequestState], kind="request"):
    """The request with this id. Errors: Refusal if there is none."""

    request: Name


class MilestonesNow(Question[PlanNow], kind="milestones"):
    """The plan's milestones, with today's numbers of those that Backstop counts itself, except waves."""


class PlanMilestones(MilestoneFile, Question[PlanNow], kind="plan_milestones"):
    """Replace the plan by these milestones."""


class NoteMilestone(Question[PlanNow], kind="note_milestone"):
    """Note the number of a milestone. Errors: Refusal for a milestone that is not planned, or is measured."""

    milestone: Name
    number: GpuCount
    reason: Words


class Senseless(Question[dict[str, tuple[str, ...]]], kind="senseless"):
    """The invalid rows of each cluster in the ledger. Answers about all clusters leave them out."""


class CheckLedger(Question[LedgerCheck], kind="doctor"):
    """Check that a worker answers, and the systems that it reaches."""
