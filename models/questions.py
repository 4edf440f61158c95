"""Every question to the ledger's desk: one class each, with its arguments as fields and the type of its answer.

The client sends one (`await backstop.ask(EndWindow(...))`), the desk (activities/desk/desk.py) dispatches on its class.
`kind` is its name on the wire; with its fields and its answer's it is what builds of another age understand.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, field_validator

import models.countersign_questions
import models.cut_questions
import models.health_pushes
import models.import_questions  # noqa: F401 - their questions are among all of them
from models.access.access_versions import AccessCheck
from models.access.tickets import Ticketed
from models.access_questions import AccessNow, AimOf, ImportAccess, MakeToken, RevokeToken, TokenOf, Tokens
from models.audit_chain import AuditEntry, ChainedEntry, ChainHead
from models.base import ActorGiven, Count, GpuCount, Model, Name, NameGiven, PositiveCount, Text, Time, Words, brief
from models.bringup.messages import BringupRow
from models.buffers.hourly_health import HealthHours
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterInSlurm, ClusterSpec, Team
from models.cluster.import_lines import Departure
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import CLOCK_SKEW, HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.source_doubts import DoubtedSource
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declaration, Declared, Entry
from models.fleet.archived_state import KeptFleet
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow
from models.flex.flex_sum import FlexSum
from models.notice_digests import Untold
from models.question_base import QUESTIONS, Question
from models.reports.milestones import MilestoneFile, PlanNow
from models.reports.tallies import Point
from models.reports.weekly import Past
from models.reports.why import WhyAnswers
from models.requests.state import RequestState
from models.seals import SealedTo, Sealing

__all__ = [
    "QUESTIONS",
    "AccessNow",
    "AimOf",
    "ImportAccess",
    "MakeToken",
    "Question",
    "RevokeToken",
    "TokenOf",
    "Tokens",
]
"""What of other modules is a part of this one: the questions about access stand in models/access_questions.py."""

CLOCK_SKEW_SECONDS = CLOCK_SKEW.total_seconds()
"""Clocks that somebody keeps differ by less."""


class DeskRequest(Ticketed):
    """One question from a person, as it crosses the wire. The workflow's history keeps who asked."""

    kind: str
    actor: ActorGiven = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    payload: str = Field(default="", max_length=1_500_000)
    """Base64 of zlib-compressed JSON, for parts of a large document."""

    @field_validator("kind")
    @classmethod
    def _is_a_question(cls, kind: str) -> str:
        if kind not in QUESTIONS:
            raise ValueError(f"must be one of {', '.join(QUESTIONS)}, not {brief(kind)}")
        return kind

    @field_validator("arguments")
    @classmethod
    def _has_numbers_alone(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(arguments, allow_nan=False)
        except ValueError:
            raise ValueError("must contain only finite numbers: JSON has no NaN") from None
        return arguments


class DeskAnswer(Model):
    result: Any = None


class _Page(Model):
    after: Words = ""
    limit: Annotated[PositiveCount, Field(le=1000)] = 20


_Times = Annotated[tuple[Time, ...], Field(max_length=500)]
_Brief = PlainSerializer(lambda spec: spec.model_dump(mode="json", exclude_defaults=True))
_OwnSettings = Annotated[Policy, PlainSerializer(lambda policy: policy.model_dump(mode="json", exclude_unset=True))]


class LedgerCluster(Model):
    """A cluster with present values and latest health, and its open rollout, if there is one.

    `cluster` None: what stands in the ledger of the one of this `name` makes no sense, for the reason `wrong`.
    """

    cluster: Annotated[ClusterSpec, _Brief] | None
    rollout: str | None = None
    stage: str | None = None
    name: str = ""
    wrong: str = ""


class ClusterFacts(Model):
    """What the registry holds of one cluster beside its quotas."""

    name: Name
    gpu_model: str | None
    gpus_per_node: int
    policy: Policy
    completed_rollouts: int
    contacts: dict[str, tuple[str, ...]]
    """Channel addresses by team."""


class Plannable(Model):
    """What a launch would plan from now."""

    snapshot: Snapshot
    policy: _OwnSettings


class Unplannable(Model):
    """A cluster that nobody can plan now, and why."""

    cluster: Name
    why_not: str


class ArchivePage(Model):
    """Some rows of a cluster's archive; `head`: where its whole chain should end."""

    rows: tuple[ChainedEntry, ...]
    head: ChainHead | None
    seals: tuple[SealedTo, ...] = ()
    """Of the newest rows: the last seals that name this chain, the newest first."""


class Overview(Model):
    """An open rollout in one line of the registry."""

    cluster: Name
    rollout: str
    stage: str
    needs: str
    """What a person has to do, as of the last thing that happened; empty: nothing."""
    health_at: Time | None
    """Of the oldest island's latest health sample; None without any."""
    shadow: bool = False
    ended: bool = False
    """It is told only to say that the last rollout there was a shadow."""
    owner: str = ""
    opened_at: Time | None = None
    fleet: str = ""
    """The fleet rollout that launched it; empty: none did."""
    counter: Count = 0
    """Its last effect in the ledger."""


class Arrival(Model):
    """A cluster that came into the fleet by its bring-up. Units: whole GPUs, as ordered."""

    cluster: Name
    at: Time
    gpus: GpuCount


class Curve(Model):
    """Tallies over time; `began`: the first there is."""

    points: tuple[Point, ...]
    began: Time | None
    arrived: tuple[Arrival, ...] = Field(default=(), exclude_if=lambda rows: not rows)
    """Clusters that bring-ups brought into the fleet in this time. Left out where none did."""


class SchedulerCheck(Model):
    """What stands between us and a scheduler; empty: nothing does."""

    system: str = "slurm"
    wrong: str = ""
    """With reading it, or with what stands there."""
    barred: str = ""
    """From writing to it: plans and rehearsals need no right to."""
    note: str = ""
    """Nothing does: what its administrator may want to know."""


class LedgerCheck(Model):
    """Proof that a worker reaches its ledger, and the schedulers that hold quotas."""

    open_rollouts: int
    schedulers: dict[str, SchedulerCheck] = Field(default_factory=dict)
    doubts: tuple[DoubtedSource, ...] = ()
    """Health sources whose clusters fell together, and that a person has not confirmed."""
    senseless: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By cluster: what stands in the ledger of it and makes no sense, in a sentence each."""
    senseless_teams: dict[str, str] = Field(default_factory=dict)
    """By team: how it wants to be told where that makes no sense, in a sentence."""
    teams_in_clear: tuple[str, ...] = Field(default=(), exclude_if=lambda teams: not teams)
    """Those with a contact that holds a token itself, although access is configured."""
    worker_ahead_seconds: float = Field(default=0.0, exclude_if=lambda seconds: abs(seconds) <= CLOCK_SKEW_SECONDS)
    """By how much the worker's clock is ahead of Temporal's; below zero: behind. Left out where they agree."""
    prometheus: dict[str, str] = Field(default_factory=dict)
    """What is wrong with the health of each cluster that a Prometheus has; empty: nothing."""
    windows: dict[str, str] = Field(default_factory=dict)
    """Of a cluster with windows that are none: which, and why."""
    notices: tuple[Untold, ...] = ()
    """What waits to be told, by audience."""
    seals: Sealing | None = None
    """How the archive is sealed; None: it is not."""
    access: AccessCheck | None = Field(default=None, exclude_if=lambda check: check is None)
    """Left out where no access is configured."""
    tickets: bool = Field(default=False, exclude_if=lambda needed: not needed)
    """Every command needs a front's ticket. Left out where none does."""
    proven: bool = Field(default=False, exclude_if=lambda believed: not believed)
    """A front's tickets are believed: there are keys. Left out where there are none."""
    unknown_keys: tuple[str, ...] = Field(default=(), exclude_if=lambda keys: not keys)
    """Keys that the ledger's warrants name and the worker's book does not have."""


class FleetFile(_Page, Question[FleetPage], kind="fleet_file"):
    """Clusters by name as the fleet file that would bring them here; contacts without their secrets."""


class RemoveCluster(Question[Departure], kind="remove_cluster"):
    """The cluster is gone, and its archive says what it was. Errors: Refusal, something is under way."""

    cluster: Name
    reason: Words = ""
    dry_run: bool = False


class RenameCluster(Question[Departure], kind="rename_cluster"):
    """All of it but its archive goes by the other name. Errors: as RemoveCluster; BadInput where the name is taken."""

    cluster: Name
    name: NameGiven
    reason: Words = ""
    dry_run: bool = False


class AddHealth(Question[int], kind="add_health"):
    """Samples stand in the ledger; answers how many rows."""

    samples: tuple[HealthSample, ...]


class AddJobs(Question[int], kind="add_jobs"):
    """Jobs stand in the ledger; answers how many. Errors: BadInput for an unknown cluster."""

    jobs: tuple[ClusterJob, ...]


class DescribeSlurm(Question[Annotated[ClusterInSlurm, _Brief]], kind="describe_slurm"):
    """The cluster as Slurm has it now, for an import. Errors: Unavailable, Refusal where Slurm has none."""

    cluster: Name
    slurm: SlurmSource


class Detach(Question[dict[str, tuple[int | None, int | None]]], kind="detach"):
    """The scheduler is left alone from now on; answers what was taken back there. Errors: Refusal."""

    cluster: Name
    restore: bool = False
    reason: Words = ""
    look: bool = Field(default=False, exclude_if=lambda look: not look)
    """Only say what would be taken back. Left out where it is not so: an earlier build refuses unknown fields."""


class ConfirmSource(Question[DoubtedSource], kind="confirm_source"):
    """What a health source in doubt says of its clusters is so. Errors: Refusal for one that is not in doubt."""

    source: Name
    reason: Words


class LedgerClusters(_Page, Question[tuple[LedgerCluster, ...]], kind="clusters"):
    """Clusters by name; none: there are no more."""

    free: bool = Field(default=False, exclude_if=lambda free: not free)
    """Only those in which no rollout is open. A build that does not know it answers with all."""


class AllTeams(Question[tuple[Team, ...]], kind="teams"):
    """Every team of the ledger."""


class TeamSum(Model):
    """What one team is promised in all clusters together, quotas that are sums of others left out."""

    team: Name
    clusters: Count
    gpus: Count


class TeamSums(Question[tuple[TeamSum, ...]], kind="team_sums"):
    """By name: every team that has a quota that jobs run in."""


class FactsOf(Question[ClusterFacts], kind="facts"):
    """Errors: BadInput for an unknown cluster."""

    cluster: Name


class SnapshotNow(Question[Plannable], kind="snapshot"):
    """One cluster as a plan would see it, and its policy. Errors: BadInput, unknown cluster, bad setting."""

    cluster: Name
    policy: dict[str, Any] = Field(default_factory=dict)
    """What lies over the cluster's own."""


class SnapshotsNow(_Page, Question[tuple[Plannable | Unplannable, ...]], kind="snapshots"):
    """The same of clusters by name, with a health buffer of the last hour; none: there are no more."""

    policy: dict[str, Any] = Field(default_factory=dict)


class YearOfHealth(Question[HealthHours], kind="health_hours"):
    """A year of its health by the hour, and what its buffer is asked for. Errors: BadInput, unknown cluster."""

    cluster: Name


class FlexOf(_Page, Question[tuple[FlexNow, ...]], kind="flex"):
    """The flex of one cluster, or of all by name; of these, one that makes no sense is left out (`Senseless` names it).

    Errors: BadInput for an unknown cluster; Refusal for one that is named and makes no sense.
    """

    cluster: Words = ""
    mode: FlexMode = FlexMode.EQUAL


class FlexSums(Question[tuple[FlexSum, ...]], kind="flex_sums"):
    """The same of all clusters by name in numbers alone, at once: a page with all of them needs no more."""

    mode: FlexMode = FlexMode.EQUAL


class WhyNot(Question[WhyAnswers], kind="why"):
    """Why the team cannot have so many GPUs, in one cluster or wherever it has a quota.

    `namespace`: on whose behalf, where it is not the team itself. Errors: BadInput for an unknown cluster; Refusal
    where nothing can be said of the one that is named.
    """

    team: Name
    cluster: Words = ""
    gpus: PositiveCount | None = None
    block: bool = False
    namespace: Words = ""


class Archive(Question[int], kind="archive"):
    """The entries are archived, once per key; answers how many."""

    entries: tuple[AuditEntry, ...]


class Archived(Question[ArchivePage], kind="archived"):
    """The rows of a cluster's archive after this number; none: there are no more. `newest`: the last ones instead."""

    cluster: Name
    after: Count = 0
    limit: Annotated[PositiveCount, Field(le=1000)] = 200
    newest: bool = False


class Pulse(Question[str], kind="pulse"):
    """A mark of what stands in the ledger: once it is another than `since`, or when so many seconds are over."""

    since: Words = ""
    seconds: Annotated[float, Field(ge=0, le=60)] = 0


class Calendar(Question[tuple[Entry, ...]], kind="calendar"):
    """Windows that end after `since`, of one cluster or all. Errors: BadInput for an unknown cluster."""

    cluster: Words = ""
    since: Time


class Declare(Question[Declaration], kind="declare"):
    """The windows stand, all or none, in place of what their sources declared before. Errors: BadInput."""

    declared: tuple[Declared, ...] = Field(min_length=1, max_length=10_000)


class EndWindow(Question[Entry], kind="end_window"):
    """The window is over. Errors: Refusal where there is none of this number."""

    cluster: Name
    number: PositiveCount
    reason: Words = ""


class EndHold(Question[tuple[Entry, ...]], kind="end_hold"):
    """All that one declaration holds in these clusters is over, as one. Answers with the windows as they were left."""

    source: Text = Field(min_length=1, max_length=300)
    clusters: tuple[Name, ...] = Field(min_length=1, max_length=10_000)
    reason: Words = ""


class FleetKept(Question[KeptFleet | None], kind="fleet_kept"):
    """What the ledger knows of the fleet rollout that was launched last; null: there never was one."""


class OpenRollouts(Question[tuple[Overview, ...]], kind="overview"):
    """Every open rollout as last noted, by cluster; then shadows that were the last rollout of theirs, and ended."""


class Tallies(Question[Curve], kind="tallies"):
    """The curve of a cluster or of all, and when its tallies begin. Errors: BadInput for an unknown cluster."""

    cluster: Words = ""
    times: _Times
    within_seconds: PositiveCount


class PastWeek(Question[Past], kind="week"):
    """What the ledger knows of this time."""

    since: Time
    until: Time
    times: _Times
    within_seconds: PositiveCount


class BringupsOf(Question[tuple[BringupRow, ...]], kind="bringups"):
    """Bring-ups as they were noted last, by cluster: those that are open, and with `ended` all that ever were."""

    ended: bool = False


class GiveUpBringup(Question[BringupRow], kind="give_up_bringup"):
    """The cluster's bring-up has ended, in the book alone: its workflow is lost, and what it made stands.

    Errors: Refusal where there never was one.
    """

    cluster: Name
    reason: Words = ""


class OneRequest(Question[RequestState], kind="request"):
    """Errors: Refusal where there is none of this id."""

    request: Name


class RequestsOf(Question[tuple[RequestState, ...]], kind="requests"):
    """Requests by the time they were made; those that are over only where asked for."""

    cluster: Words = ""
    ended: bool = False


class MilestonesNow(Question[PlanNow], kind="milestones"):
    """The plan, and today's numbers of what Backstop knows by itself, but for waves."""


class PlanMilestones(MilestoneFile, Question[PlanNow], kind="plan_milestones"):
    """These milestones are the plan, in place of the one before."""


class NoteMilestone(Question[PlanNow], kind="note_milestone"):
    """The number stands. Errors: Refusal for a milestone that is not planned, or is measured."""

    milestone: Name
    number: GpuCount
    reason: Words


class Senseless(Question[dict[str, tuple[str, ...]]], kind="senseless"):
    """By cluster: what stands in the ledger of it and makes no sense. It is left out of what is told of all."""


class CheckLedger(Question[LedgerCheck], kind="doctor"):
    """Whether a worker answers, and what it reaches."""
