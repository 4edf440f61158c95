"""Every question to the ledger's desk: one class each, with its arguments as fields and the type of its answer.

The client sends one (`await backstop.ask(EndWindow(...))`), the desk (activities/desk.py) dispatches on its class.
`kind` is its name on the wire; with its fields and its answer's it is what builds of another age understand.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field, PlainSerializer, TypeAdapter, ValidationError, field_validator

from models.audit import AuditEntry, ChainedEntry, ChainHead
from models.base import (
    ActorGiven,
    Count,
    GpuCount,
    Model,
    Name,
    NameGiven,
    PositiveCount,
    Time,
    Words,
    brief,
    in_one_sentence,
)
from models.bringup.messages import BringupRow
from models.buffers.hourly_health import HealthHours
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.import_lines import Departure, FleetOutcome, ImportTerms
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import CLOCK_SKEW, HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.source_doubts import DoubtedSource
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declaration, Declared, Entry
from models.digests import Untold
from models.errors import BadInput
from models.fleet.kept import KeptFleet
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow
from models.reports.milestones import MilestoneFile, PlanNow
from models.reports.tallies import Point
from models.reports.weekly import Past
from models.reports.why import WhyAnswers
from models.requests.state import RequestState

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
CLOCK_SKEW_SECONDS = CLOCK_SKEW.total_seconds()
"""Clocks that somebody keeps differ by less."""

QUESTIONS: dict[str, type[Question[Any]]] = {}
"""By their names on the wire."""


class Question(Model, Generic[AnswerT_co]):
    """One thing that is asked of the ledger. Errors: BadInput for arguments that no desk would take."""

    kind: ClassVar[str]

    def __init__(self, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise BadInput(in_one_sentence(error)) from None  # as the desk would have answered

    def __init_subclass__(cls, kind: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        if kind:  # none: only the type of the answer was filled in
            cls.kind = kind
            QUESTIONS[kind] = cls

    @classmethod
    @cache
    def answers(cls) -> TypeAdapter[AnswerT_co]:
        """Of the answer: how it is written to the wire, and read."""
        filled = (base.__pydantic_generic_metadata__ for base in cls.__mro__ if issubclass(base, Question))
        return TypeAdapter(next(each["args"][0] for each in filled if each["args"]))


class DeskRequest(Model):
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
            raise ValueError("must have finite numbers alone: JSON has no NaN") from None
        return arguments


class DeskAnswer(Model):
    result: Any = None


class _Page(Model):
    after: Words = ""
    limit: Annotated[PositiveCount, Field(le=1000)] = 20


_Number = Annotated[Count, Field(le=10**6)]
_Times = Annotated[tuple[Time, ...], Field(max_length=500)]
_BriefSpec = Annotated[ClusterSpec, PlainSerializer(lambda spec: spec.model_dump(mode="json", exclude_defaults=True))]
_OwnSettings = Annotated[Policy, PlainSerializer(lambda policy: policy.model_dump(mode="json", exclude_unset=True))]


class LedgerCluster(Model):
    """A cluster with present values and latest health, and its open rollout, if there is one.

    `cluster` None: what stands in the ledger of the one of this `name` makes no sense, for the reason `wrong`.
    """

    cluster: _BriefSpec | None
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
    worker_ahead_seconds: float = Field(default=0.0, exclude_if=lambda seconds: abs(seconds) <= CLOCK_SKEW_SECONDS)
    """By how much the worker's clock is ahead of Temporal's; below zero: behind. Left out where they agree."""
    prometheus: dict[str, str] = Field(default_factory=dict)
    """What is wrong with the health of each cluster that a Prometheus has; empty: nothing."""
    windows: dict[str, str] = Field(default_factory=dict)
    """Of a cluster with windows that are none: which, and why."""
    notices: tuple[Untold, ...] = ()
    """What waits to be told, by audience."""


class StageImport(Question[None], kind="stage_import"):
    """One part of a large document is kept, to be committed with the others. It is the request's payload."""

    import_id: Name
    part: _Number


class CommitImport(Question[dict[str, int]], kind="commit_import"):
    """As earlier builds ask: the fleet stands whole in the ledger, or nothing of it does; answers counts.

    Errors: BadInput, Refusal.
    """

    import_id: Name
    parts: _Number


class TakeFleet(Question[FleetOutcome], kind="take_fleet"):
    """Of the staged fleet each cluster stands in the ledger whole, or, refused, as it was; on a dry run none does.

    Errors: BadInput; Refusal where all was to go in and something is refused, or what would go is not what was shown.
    """

    import_id: Name
    parts: _Number
    terms: ImportTerms


class FleetFile(_Page, Question[FleetPage], kind="fleet_file"):
    """Clusters by name as the fleet file that would bring them here; contacts without their secrets."""


class RemoveCluster(Question[Departure], kind="remove_cluster"):
    """The cluster is gone, and its archive says what it was. Errors: Refusal, unknown, or something is under way."""

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


class DescribeSlurm(Question[_BriefSpec], kind="describe_slurm"):
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


class AllTeams(Question[tuple[Team, ...]], kind="teams"):
    """Every team of the ledger."""


class FactsOf(Question[ClusterFacts], kind="facts"):
    """Errors: Refusal for an unknown cluster."""

    cluster: Name


class SnapshotNow(Question[Plannable], kind="snapshot"):
    """One cluster as a plan would see it, and its policy. Errors: Refusal, unknown cluster; BadInput, bad setting."""

    cluster: Name
    policy: dict[str, Any] = Field(default_factory=dict)
    """What lies over the cluster's own."""


class SnapshotsNow(_Page, Question[tuple[Plannable | Unplannable, ...]], kind="snapshots"):
    """The same of clusters by name, with a health buffer of the last hour; none: there are no more."""

    policy: dict[str, Any] = Field(default_factory=dict)


class YearOfHealth(Question[HealthHours], kind="health_hours"):
    """A year of its health by the hour, and what its buffer is asked for. Errors: Refusal, unknown cluster."""

    cluster: Name


class FlexOf(_Page, Question[tuple[FlexNow, ...]], kind="flex"):
    """The flex of one cluster, or of all by name; of these, one that makes no sense is left out (`Senseless` names it).

    Errors: Refusal for an unknown cluster, and for one that is named and makes no sense.
    """

    cluster: Words = ""
    mode: FlexMode = FlexMode.EQUAL


class WhyNot(Question[WhyAnswers], kind="why"):
    """Why the team cannot have so many GPUs, in one cluster or wherever it has a quota.

    `namespace`: on whose behalf, where it is not the team itself. Errors: Refusal for an unknown cluster, and where
    nothing can be said of the one that is named.
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
    """The rows of a cluster's archive after this number; none: there are no more."""

    cluster: Name
    after: Count = 0
    limit: Annotated[PositiveCount, Field(le=1000)] = 200


class Calendar(Question[tuple[Entry, ...]], kind="calendar"):
    """Windows that end after `since`, of one cluster or all. Errors: BadInput for an unknown cluster."""

    cluster: Words = ""
    since: Time


class Declare(Question[Declaration], kind="declare"):
    """The windows stand in the ledger, all or none, in place of what their sources declared before.

    Errors: BadInput for a cluster, an island or GPUs that the ledger does not have.
    """

    declared: tuple[Declared, ...] = Field(min_length=1, max_length=10_000)


class EndWindow(Question[Entry], kind="end_window"):
    """The window is over. Errors: Refusal where there is none of this number."""

    cluster: Name
    number: PositiveCount
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
