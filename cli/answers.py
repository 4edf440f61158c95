"""The JSON that read commands answer with, one model for each schema.

Within a version fields may be added; none goes away or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, cast

from pydantic import ConfigDict, Field

from models.base import GpuCount, Model, Name, Share, Time
from models.buffers.backtest import Explained, Record
from models.cluster.derived_buffer import Derived
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import healthy, total
from models.cluster.quota import QuotaTree
from models.cluster.windows import Entry
from models.errors import BackstopError
from models.fleet.messages import Prospect
from models.fleet.state import FleetStage
from models.flex.division import Division
from models.flex.flex_now import FlexNow
from models.flex.scenario import Scene
from models.planning.haircut import Haircut, Part, TeamPart
from models.planning.plan import Plan
from models.planning.window_forecast import Foretold
from models.questions import Arrival
from models.reports.flex_offers import flex_offers
from models.reports.milestones import MilestoneStanding
from models.reports.rollout_summary import RolloutSummary
from models.reports.tallies import Point
from models.reports.weekly import Week
from models.reports.why import TeamWhy, WhyAnswers
from models.requests.state import RequestState
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command, Stage

BY_SCHEMA: dict[str, type[JsonAnswer]] = {}
"""By the names of their schemas."""


class JsonAnswer(Model):
    """An answer that names its schema and the version of it, `schema="plan"` for backstop.plan/1.

    Written with aliases: Python knows neither `schema` nor `hash` as a free name.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: str = Field(default="", alias="schema")

    def __init_subclass__(cls, schema: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        if schema:  # beside the fields that are written here, before pydantic reads them
            version = f"backstop.{schema}/1"
            cls.__annotations__ = {**cls.__annotations__, "schema_": Literal[version]}
            cls.schema_ = Field(default=version, alias="schema")
            BY_SCHEMA[schema] = cls

    @classmethod
    def grown_from(cls, value: Model, **more: Any) -> Self:
        """A value of ours as an answer itself, perhaps with more beside its own fields."""
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return cast("Self", cls.model_construct(**fields, **more))

    def as_json(self) -> Any:
        return self.model_dump(mode="json", by_alias=True)


class PlanAnswer(Plan, JsonAnswer, schema="plan"):
    """A plan with its hash, which is what an approval names."""

    plan_hash: str = Field(alias="hash")
    headroom_gpus: int
    """H - A: below zero where more is promised than is healthy."""
    plan_cut_gpus: GpuCount = Field(alias="cut_gpus")
    """What all quotas together give: phantom_gpus and to_flex_gpus."""
    phantom_before_gpus: GpuCount
    """Promised before the plan, and no healthy GPU behind it."""
    phantom_after_gpus: GpuCount
    """The same after it: what it does not remove."""
    after_all_waves: str
    """Why its cluster comes after all waves: no tier limit would do. Empty where it has its place in its wave."""

    @staticmethod
    def of(plan: Plan) -> PlanAnswer:
        return PlanAnswer.grown_from(
            plan,
            plan_hash=plan.hash,
            headroom_gpus=plan.healthy_gpus - plan.assigned_gpus,
            plan_cut_gpus=plan.cut_gpus,
            phantom_before_gpus=plan.phantom_gpus + plan.unbacked_gpus,
            phantom_after_gpus=plan.unbacked_gpus,
            after_all_waves=plan.why_last,
        )

    def as_json(self) -> Any:
        fields = super().as_json()
        return {"schema": fields["schema"], "hash": fields["hash"], **fields}  # what people look for comes first


class PlansAnswer(JsonAnswer, schema="plans"):
    """The plans of all clusters, in the order a rollout would visit them."""

    plans: tuple[PlanAnswer, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """By cluster: why nobody can plan it now."""


class HaircutAnswer(Haircut, JsonAnswer, schema="haircut"):
    """What buffers would cost: each list has one entry for each of `buffers`, in their order."""


class HaircutPart(Part):
    """One cluster or wave at the buffer that is explained: a row of `backstop haircut --by`."""

    name: str


class HaircutTeam(TeamPart):
    """One team's quotas likewise."""

    name: str


class CalendarAnswer(JsonAnswer, schema="calendar"):
    """Declared windows, and what those ahead will take, by cluster."""

    windows: tuple[Entry, ...]
    taken_back: tuple[Entry, ...] = ()
    """By an import: what its events declared before, and do no more."""
    foretold: dict[str, tuple[Foretold, ...]]
    left_out: tuple[str, ...] = ()
    """By an import: what is wrong with each event that was not taken."""
    undo: str = ""
    """Of a hold, an import, an end: how it is undone, or that it cannot be, a line each."""


class BufferAnswer(JsonAnswer, schema="buffer"):
    """What can be promised of one cluster, and the record to believe it by. Units: as its history counts."""

    cluster: str
    unit: Literal["nodes", "gpus"]
    horizon_weeks: int
    target: Share
    now: Derived
    promise: int | None
    """None: nothing can be promised honestly."""
    looser: Derived | None
    """At a target with ten times as many misses; null where that is the same."""
    records: tuple[Record, ...]
    least: Record | None
    """The smallest fixed buffer, in whole percent, that would have broken no more hours; null: none up to 60."""
    below: Record | None
    """A percent less than that."""

    @staticmethod
    def of(explained: Explained) -> BufferAnswer:
        return BufferAnswer(
            cluster=explained.series.cluster,
            unit=explained.series.unit,
            horizon_weeks=explained.horizon_weeks,
            target=explained.terms.target,
            now=explained.now,
            promise=explained.now.promise,
            looser=explained.looser,
            records=explained.records,
            least=explained.least,
            below=explained.below,
        )


class WhyLine(TeamWhy):
    """One team in one cluster."""

    flex_free_gpus: int | None
    """What flex has free in that cluster; null: nobody asked, because nothing is missing."""


class WhyAnswer(JsonAnswer, schema="why"):
    """Why a team cannot use its quota, cluster by cluster."""

    clusters: tuple[WhyLine, ...]
    unanswered: dict[str, str]
    """Clusters where the team has a quota of which nothing can be said, and why."""
    elsewhere: dict[str, int]
    """What flex has free in other clusters of the same GPU model; of a block, the largest that it has room for."""

    @staticmethod
    def of(whys: WhyAnswers, flexes: Sequence[FlexNow]) -> WhyAnswer:
        free = {f.cluster: f.available_gpus for f in flexes}
        lines = (WhyLine(**one.model_dump(), flex_free_gpus=free.get(one.cluster)) for one in whys.teams)
        others = {offer.cluster: offer.gpus for offer in flex_offers(whys.teams, flexes)}
        return WhyAnswer(clusters=tuple(lines), unanswered=whys.unanswered, elsewhere=others)


class RequestAnswer(JsonAnswer, schema="request"):
    """One request for more quota as it stands."""

    request: RequestState


class RequestsAnswer(JsonAnswer, schema="requests"):
    """Requests for more quota, by the time they were made."""

    requests: tuple[RequestState, ...]


class FlexAnswer(JsonAnswer, schema="flex"):
    """Flex now, of one cluster or of all, and what it has offered since."""

    clusters: tuple[FlexNow, ...]
    since: Time
    record: tuple[FlexOffered, ...]
    """Hour by hour, of all these together; hours that nobody knows are left out."""


class FlexOffered(Model):
    at: Time
    flex_gpus: int
    healthy_gpus: int


class FlexShare(Model):
    team: str
    gpus: int
    """Its quota's part included."""


class FlexShares(Model):
    """A division, as schedulers read it: a plain object, with neither schema nor version."""

    shares: tuple[FlexShare, ...]
    """Of the teams that have no children, in the order given."""
    unused_gpus: int

    @staticmethod
    def of(division: Division) -> FlexShares:
        shares = tuple(FlexShare(team=p.team, gpus=p.gpus) for p in division.portions)
        return FlexShares(shares=shares, unused_gpus=division.unused_gpus)


class FlexScenes(Model):
    """A story of jobs, step by step; like a division it names no version."""

    steps: tuple[Scene, ...]


class BurndownAnswer(JsonAnswer, schema="burndown"):
    """The curve of one cluster, or of all where none is named."""

    cluster: str
    since: Time
    began: Time | None
    """The first tally there is."""
    points: tuple[Point, ...]
    arrived: tuple[Arrival, ...] = ()
    """Clusters that came into the fleet by bring-ups in this time."""


class MilestonesAnswer(JsonAnswer, schema="milestones"):
    """Where the plan's milestones stand, in its order."""

    at: Time
    milestones: tuple[MilestoneStanding, ...]


class WeekAnswer(Week, JsonAnswer, schema="report"):
    """The weekly report. `live` is null for a week that is over."""


class ClusterAnswer(ClusterSpec):
    """A cluster as the ledger has it."""

    stage: str | None = None
    """Of its open rollout; null where none is open."""
    total_gpus: GpuCount = 0
    """Of all its islands."""
    healthy_gpus: GpuCount = 0
    promised_gpus: GpuCount = 0
    """A: what its quotas promise together."""

    @staticmethod
    def of(cluster: ClusterSpec, stage: str | None) -> ClusterAnswer:
        return ClusterAnswer.model_construct(
            **{name: getattr(cluster, name) for name in type(cluster).model_fields},
            stage=stage,
            total_gpus=total(cluster.islands),
            healthy_gpus=healthy(cluster.islands),
            promised_gpus=QuotaTree(cluster.quotas).assigned(),
        )


class ClustersAnswer(JsonAnswer, schema="clusters"):
    clusters: tuple[ClusterAnswer, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """By cluster: why what stands in the ledger of it makes no sense."""


class LimitBack(Model):
    """A limit of a scheduler; null: none."""

    name: str
    before_gpus: int | None
    after_gpus: int | None


class DetachedAnswer(JsonAnswer, schema="detach"):
    """A cluster whose scheduler is left alone again, and the limits that were taken back there."""

    cluster: Name
    limits: tuple[LimitBack, ...]
    undo: str = ""
    """How it is undone."""


class ConfirmedAnswer(JsonAnswer, schema="confirm"):
    """A health source that a person has confirmed, and the clusters whose health counts from now on."""

    source: Name
    clusters: tuple[Name, ...]
    undo: str = ""
    """That it cannot be undone, and what to do instead."""


class LaunchedAnswer(JsonAnswer, schema="launch"):
    cluster: Name
    rollout: str
    stage: Stage
    shadow: bool
    plan: PlanAnswer | None
    approve: str
    """The command that approves this plan."""
    undo: str = ""
    """How the launch is undone."""


class RefusedAdoption(Model):
    cluster: Name
    reason: str


class AdoptedAnswer(JsonAnswer, schema="adopted"):
    adopted: tuple[LaunchedAnswer, ...]
    refused: tuple[RefusedAdoption, ...]


class CommandTaken(JsonAnswer, schema="command"):
    cluster: Name
    command: Command
    stage: Stage
    said: str
    undo: str = ""
    """How it is undone, or that it cannot be; empty where the rollout's build does not say."""


class CommandOutcome(Model):
    """What became of a command in one of several clusters."""

    cluster: Name
    stage: Stage | None
    """After it; null: it was refused."""
    said: str
    """What follows; of one that was refused, why."""
    undo: str = ""
    refused: bool = False

    @staticmethod
    def of(cluster: str, answer: CommandAnswer | BackstopError) -> CommandOutcome:
        if isinstance(answer, BackstopError):
            return CommandOutcome(cluster=cluster, stage=None, said=answer.message, refused=True)
        return CommandOutcome(cluster=cluster, stage=answer.stage, said=answer.said, undo=answer.undo)


class CommandsTaken(JsonAnswer, schema="commands"):
    """What became of one command in several clusters, in the order in which they were named."""

    answers: tuple[CommandOutcome, ...]


class FleetPlanAnswer(JsonAnswer, schema="fleet-plan"):
    """A fleet rollout that is open, its plan, and how to approve it."""

    fleet: str
    hash: str
    clusters: tuple[Prospect, ...]
    missing: tuple[str, ...] = ()
    approve: str
    undo: str = ""
    """How the launch is undone."""


class FleetCommandTaken(JsonAnswer, schema="fleet-command"):
    """What a command to the fleet rollout led to."""

    command: str
    stage: FleetStage
    said: str
    undo: str = ""
    """How it is undone, or that it cannot be; empty where the rollout's build does not say."""


class RolloutsAnswer(JsonAnswer, schema="rollouts"):
    rollouts: tuple[RolloutSummary, ...]
    ledger_word_at: Time | None = Field(default=None, exclude_if=lambda at: at is None)
    """Where no worker answered: these are the open ones as the ledger had them then. Left out otherwise."""


class AuditLine(JsonAnswer, schema="audit"):
    """One thing that happened, from workflow history."""

    cluster: Name
    at: Time
    kind: str
    actor: str
    text: str
    reason: str
    refused: bool
    run: str
    event: int
    data: dict[str, Any]


class ArchiveLine(JsonAnswer, schema="archive"):
    """One thing that happened, from the ledger's archive, with its place in the hash chain."""

    seq: int
    previous_hash: str
    hash: str
    key: str
    cluster: Name
    rollout: str
    at: Time
    kind: str
    actor: str
    text: str
    reason: str
    refused: bool
    data: dict[str, Any]


class ChainAnswer(JsonAnswer, schema="chain"):
    """Whether an archive is whole. `broken`: one sentence for each place where it is not."""

    cluster: Name
    rows: int
    head: str | None
    whole: bool
    broken: tuple[str, ...]


class CheckLine(Model):
    name: str
    ok: bool
    text: str
    remedy: str


class BuildLine(Model):
    """One build of the worker. `rollouts`: open ones that it holds; `workers`: of it that poll."""

    build: str
    status: str
    workers: int
    rollouts: int
    created: Time


class BuildsAnswer(JsonAnswer, schema="builds"):
    """The builds of versioned workers, the newest first."""

    builds: tuple[BuildLine, ...]


class DoctorAnswer(JsonAnswer, schema="doctor"):
    well: bool
    checks: tuple[CheckLine, ...]
