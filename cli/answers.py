"""The JSON that read commands answer with, one model for each schema.

Within a version fields may be added; none goes away or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from models.base import Model, Name, Share, Time
from models.buffers.backtest import Explained, Record
from models.cluster.fleet_file import ClusterSpec
from models.cluster.health_buffer import Derived
from models.cluster.windows import Entry
from models.fleet.messages import Prospect
from models.fleet.state import FleetStage
from models.flex.division import Division
from models.flex.now import FlexNow
from models.flex.scenario import Scene
from models.planning.haircut import Haircut
from models.planning.plan import Plan
from models.planning.window_forecast import Foretold
from models.reports.milestones import MilestoneStanding
from models.reports.rollouts import RolloutSummary
from models.reports.tallies import Point
from models.reports.weekly import Week
from models.reports.why import TeamWhy
from models.requests.state import RequestState
from models.rollout.stages import Command, Stage


class JsonAnswer(Model):
    """Written with aliases: Python knows neither `schema` nor `hash` as a free name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    def as_json(self) -> Any:
        return self.model_dump(mode="json", by_alias=True)


class PlanAnswer(Plan):
    """A plan with its hash, which is what an approval names."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["backstop.plan/1"] = Field(default="backstop.plan/1", alias="schema")
    plan_hash: str = Field(alias="hash")
    headroom_gpus: int
    """H - A: below zero where more is promised than is healthy."""

    @staticmethod
    def of(plan: Plan) -> PlanAnswer:
        return PlanAnswer.model_construct(
            schema_="backstop.plan/1",
            plan_hash=plan.hash,
            headroom_gpus=plan.healthy_gpus - plan.assigned_gpus,
            **{name: getattr(plan, name) for name in Plan.model_fields},
        )

    def as_json(self) -> Any:
        made = self.model_dump(mode="json", by_alias=True)
        return {"schema": made["schema"], "hash": made["hash"], **made}  # what people look for comes first


class PlansAnswer(JsonAnswer):
    """The plans of all clusters, in the order a rollout would visit them."""

    schema_: Literal["backstop.plans/1"] = Field(default="backstop.plans/1", alias="schema")
    plans: tuple[PlanAnswer, ...]


class HaircutAnswer(Haircut):
    """What buffers would cost: each list has one entry for each of `buffers`, in their order."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["backstop.haircut/1"] = Field(default="backstop.haircut/1", alias="schema")

    @staticmethod
    def of(made: Haircut) -> HaircutAnswer:
        return HaircutAnswer.model_construct(
            schema_="backstop.haircut/1", **{name: getattr(made, name) for name in Haircut.model_fields}
        )

    def as_json(self) -> Any:
        made = self.model_dump(mode="json", by_alias=True)
        return {"schema": made["schema"], **made}


class CalendarAnswer(JsonAnswer):
    """Declared windows, and what those ahead will take, by cluster."""

    schema_: Literal["backstop.calendar/1"] = Field(default="backstop.calendar/1", alias="schema")
    windows: tuple[Entry, ...]
    taken_back: tuple[Entry, ...] = ()
    """By an import: what its events declared before, and do no more."""
    foretold: dict[str, tuple[Foretold, ...]]


class BufferAnswer(JsonAnswer):
    """What can be promised of one cluster, and the record to believe it by. Units: as its history counts."""

    schema_: Literal["backstop.buffer/1"] = Field(default="backstop.buffer/1", alias="schema")
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
    def of(found: Explained) -> BufferAnswer:
        return BufferAnswer(
            cluster=found.series.cluster,
            unit=found.series.unit,
            horizon_weeks=found.horizon_weeks,
            target=found.terms.target,
            now=found.now,
            promise=found.now.promise,
            looser=found.looser,
            records=found.records,
            least=found.least,
            below=found.below,
        )


class WhyLine(TeamWhy):
    """One team in one cluster."""

    flex_free_gpus: int | None
    """What flex has free in that cluster; null: nobody asked, because nothing is missing."""


class WhyAnswer(JsonAnswer):
    """Why a team cannot use its quota, cluster by cluster."""

    schema_: Literal["backstop.why/1"] = Field(default="backstop.why/1", alias="schema")
    clusters: tuple[WhyLine, ...]
    elsewhere: dict[str, int]
    """What flex has free in other clusters."""

    @staticmethod
    def of(found: Sequence[TeamWhy], flexes: Sequence[FlexNow]) -> WhyAnswer:
        free = {f.cluster: f.available_gpus for f in flexes}
        here = {one.cluster for one in found}
        lines = (WhyLine(**one.model_dump(), flex_free_gpus=free.get(one.cluster)) for one in found)
        others = {name: gpus for name, gpus in sorted(free.items()) if gpus and name not in here}
        return WhyAnswer(clusters=tuple(lines), elsewhere=others)


class RequestAnswer(JsonAnswer):
    """One request for more quota as it stands."""

    schema_: Literal["backstop.request/1"] = Field(default="backstop.request/1", alias="schema")
    request: RequestState


class RequestsAnswer(JsonAnswer):
    """Requests for more quota, by the time they were made."""

    schema_: Literal["backstop.requests/1"] = Field(default="backstop.requests/1", alias="schema")
    requests: tuple[RequestState, ...]


class FlexAnswer(JsonAnswer):
    """Flex now, of one cluster or of all, and what it has offered since."""

    schema_: Literal["backstop.flex/1"] = Field(default="backstop.flex/1", alias="schema")
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
    def of(found: Division) -> FlexShares:
        shares = tuple(FlexShare(team=p.team, gpus=p.gpus) for p in found.portions)
        return FlexShares(shares=shares, unused_gpus=found.unused_gpus)


class FlexScenes(Model):
    """A story of jobs, step by step; like a division it names no version."""

    steps: tuple[Scene, ...]


class BurndownAnswer(JsonAnswer):
    """The curve of one cluster, or of all where none is named."""

    schema_: Literal["backstop.burndown/1"] = Field(default="backstop.burndown/1", alias="schema")
    cluster: str
    since: Time
    began: Time | None
    """The first tally there is."""
    points: tuple[Point, ...]


class MilestonesAnswer(JsonAnswer):
    """Where the plan's milestones stand, in its order."""

    schema_: Literal["backstop.milestones/1"] = Field(default="backstop.milestones/1", alias="schema")
    at: Time
    milestones: tuple[MilestoneStanding, ...]


class WeekAnswer(Week):
    """The weekly report. `live` is null for a week that is over."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["backstop.report/1"] = Field(default="backstop.report/1", alias="schema")

    @staticmethod
    def of(made: Week) -> WeekAnswer:
        return WeekAnswer.model_construct(
            schema_="backstop.report/1", **{name: getattr(made, name) for name in Week.model_fields}
        )

    def as_json(self) -> Any:
        made = self.model_dump(mode="json", by_alias=True)
        return {"schema": made["schema"], **made}


class ClusterAnswer(ClusterSpec):
    """A cluster as the ledger has it."""

    stage: str | None = None
    """Of its open rollout; null where none is open."""


class ClustersAnswer(JsonAnswer):
    schema_: Literal["backstop.clusters/1"] = Field(default="backstop.clusters/1", alias="schema")
    clusters: tuple[ClusterAnswer, ...]


class ImportAnswer(JsonAnswer):
    """Counts of what the import found and changed."""

    schema_: Literal["backstop.import/1"] = Field(default="backstop.import/1", alias="schema")
    file: str
    counts: dict[str, int]
    health_rows: int
    jobs: int = 0


class LimitBack(Model):
    """A limit of a scheduler; null: none."""

    name: str
    before_gpus: int | None
    after_gpus: int | None


class DetachedAnswer(JsonAnswer):
    """A cluster whose scheduler is left alone again, and the limits that were taken back there."""

    schema_: Literal["backstop.detach/1"] = Field(default="backstop.detach/1", alias="schema")
    cluster: Name
    limits: tuple[LimitBack, ...]


class LaunchedAnswer(JsonAnswer):
    schema_: Literal["backstop.launch/1"] = Field(default="backstop.launch/1", alias="schema")
    cluster: Name
    rollout: str
    stage: Stage
    shadow: bool
    plan: PlanAnswer | None
    approve: str
    """The command that approves this plan."""


class CommandTaken(JsonAnswer):
    schema_: Literal["backstop.command/1"] = Field(default="backstop.command/1", alias="schema")
    cluster: Name
    command: Command
    stage: Stage
    said: str


class FleetPlanAnswer(JsonAnswer):
    """A fleet rollout that is open, its plan, and how to approve it."""

    schema_: Literal["backstop.fleet-plan/1"] = Field(default="backstop.fleet-plan/1", alias="schema")
    fleet: str
    hash: str
    clusters: tuple[Prospect, ...]
    missing: tuple[str, ...] = ()
    approve: str


class FleetCommandTaken(JsonAnswer):
    """What a command to the fleet rollout led to."""

    schema_: Literal["backstop.fleet-command/1"] = Field(default="backstop.fleet-command/1", alias="schema")
    command: str
    stage: FleetStage
    said: str


class RolloutsAnswer(JsonAnswer):
    schema_: Literal["backstop.rollouts/1"] = Field(default="backstop.rollouts/1", alias="schema")
    rollouts: tuple[RolloutSummary, ...]


class AuditLine(JsonAnswer):
    """One thing that happened, from workflow history."""

    schema_: Literal["backstop.audit/1"] = Field(default="backstop.audit/1", alias="schema")
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


class ArchiveLine(JsonAnswer):
    """One thing that happened, from the ledger's archive, with its place in the hash chain."""

    schema_: Literal["backstop.archive/1"] = Field(default="backstop.archive/1", alias="schema")
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


class ChainAnswer(JsonAnswer):
    """Whether an archive is whole. `broken`: one sentence for each place where it is not."""

    schema_: Literal["backstop.chain/1"] = Field(default="backstop.chain/1", alias="schema")
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


class BuildsAnswer(JsonAnswer):
    """The builds of versioned workers, the newest first."""

    schema_: Literal["backstop.builds/1"] = Field(default="backstop.builds/1", alias="schema")
    builds: tuple[BuildLine, ...]


class DoctorAnswer(JsonAnswer):
    schema_: Literal["backstop.doctor/1"] = Field(default="backstop.doctor/1", alias="schema")
    well: bool
    checks: tuple[CheckLine, ...]
