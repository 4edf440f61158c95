"""The JSON answers of read commands, one model for each schema.

Within a version fields may be added; none goes away or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from cli.json_answer_base import JsonAnswer
from cli.json_answers_plan import PlanAnswer
from client.answer_models import Build, Check
from models.base import GpuCount, Model, Name, Share, Time
from models.buffers.backtest import Explained, Record
from models.cluster.derived_buffer import Derived
from models.cluster.windows import Entry, Foretold
from models.errors import BackstopError
from models.fleet.messages import FleetCommandAnswer, FleetPlan, Prospect
from models.flex.division import Division
from models.flex.flex_now import FlexNow
from models.flex.scene import Scene
from models.questions import Arrival
from models.reports.flex_offers import flex_offers
from models.reports.milestones import MilestoneStanding
from models.reports.tallies import Point
from models.reports.weekly import Week
from models.reports.why import TeamWhy, WhyAnswers
from models.requests.state import RequestState
from models.rollout.messages import CommandAnswer, LaunchAnswer
from models.rollout.stages import Command, Stage, command_line
from models.rollout.undo_lines import undo_of_launch
from views.cluster_answer import ClusterAnswer
from views.row_models import FlexOffered


class CalendarAnswer(JsonAnswer, schema="calendar"):
    """Declared windows, and what future ones will take, by cluster."""

    windows: tuple[Entry, ...]
    taken_back: tuple[Entry, ...] = ()
    """By an import: what its events declared before, and do no more."""
    foretold: dict[str, tuple[Foretold, ...]]
    left_out: tuple[str, ...] = ()
    """By an import: what is wrong with each event that was not taken."""
    undo: str = ""
    """Of a hold, an import, an end: how it is undone, or that it cannot be, a line each."""


class BufferAnswer(JsonAnswer, schema="buffer"):
    """The GPUs that one cluster can promise, and the record that supports it. Units: as its history counts."""

    cluster: str
    unit: Literal["nodes", "gpus"]
    horizon_weeks: int
    target: Share
    now: Derived
    promise: int | None
    """The least of what history leaves and what is healthy now and not spare; null: nothing, honestly."""
    healthy: int
    """Now, or in the last known hour of a file."""
    spare: int
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
            promise=explained.promise(explained.now),
            healthy=explained.today.healthy,
            spare=explained.today.spare,
            looser=explained.looser,
            records=explained.records,
            least=explained.least,
            below=explained.below,
        )


class WhyLine(TeamWhy):
    """A team in one cluster."""

    flex_free_gpus: int | None
    """What flex has free in that cluster; null: nobody asked, because nothing is missing."""
    own_jobs_gpus: GpuCount
    """The part of the gap that is in use by the team's own jobs."""
    lacking_gpus: GpuCount
    """The rest of it: what is missing."""


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
        lines = (
            WhyLine(
                **one.model_dump(),
                flex_free_gpus=free.get(one.cluster),
                own_jobs_gpus=one.held_gpus,
                lacking_gpus=one.short_gpus,
            )
            for one in whys.teams
        )
        others = {offer.cluster: offer.gpus for offer in flex_offers(whys.teams, flexes)}
        return WhyAnswer(clusters=tuple(lines), unanswered=whys.unanswered, elsewhere=others)


class RequestAnswer(JsonAnswer, schema="request"):
    """A request for more quota."""

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


class FlexShare(Model):
    team: str
    gpus: int
    """Its quota's part included."""


class FlexShares(Model):
    """A division, in the form that schedulers read: a plain object, with neither schema nor version."""

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
    """The curve of the named cluster, or of all."""

    cluster: str
    since: Time
    began: Time | None
    """The first tally there is."""
    points: tuple[Point, ...]
    arrived: tuple[Arrival, ...] = ()
    """Clusters that came into the fleet by bring-ups in this time."""


class MilestonesAnswer(JsonAnswer, schema="milestones"):
    """The progress of the plan's milestones, in its order."""

    at: Time
    milestones: tuple[MilestoneStanding, ...]


class WeekAnswer(Week, JsonAnswer, schema="report"):
    """The weekly report. `live` is null for a week that is over."""


class ClustersAnswer(JsonAnswer, schema="clusters"):
    clusters: tuple[ClusterAnswer, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """By cluster: why what stands in the ledger of it makes no sense."""


class LimitBack(Model):
    """A limit that was taken back in a scheduler; null: none."""

    name: str
    before_gpus: int | None
    after_gpus: int | None


class DetachedAnswer(JsonAnswer, schema="detach"):
    """A cluster that Backstop has left, and the limits that it took back there."""

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
    resolves: str = ""
    """That who launched it may not resolve what holds it, and who may; empty: they may, or the access file says who."""
    gave_way: str = ""
    """The rehearsal of the cluster that was aborted for it; empty: there was none."""

    @staticmethod
    def of(answer: LaunchAnswer, resolves: str = "", *, shadow: bool) -> LaunchedAnswer:
        approve = command_line(Command.APPROVE, answer.cluster)
        return LaunchedAnswer(
            cluster=answer.cluster,
            rollout=answer.rollout,
            stage=answer.stage,
            shadow=shadow,
            plan=None if answer.plan is None else PlanAnswer.of(answer.plan),
            approve="" if answer.plan is None else f"{approve} --plan {answer.plan.hash}",
            undo=undo_of_launch(answer.cluster),
            resolves=resolves,
            gave_way=answer.gave_way,
        )


class RefusedLaunch(Model):
    cluster: Name
    reason: str


class AdoptedAnswer(JsonAnswer, schema="adopted"):
    adopted: tuple[LaunchedAnswer, ...]
    refused: tuple[RefusedLaunch, ...]


class LaunchedMany(JsonAnswer, schema="launches"):
    """The results of a launch of several clusters."""

    launched: tuple[LaunchedAnswer, ...]
    refused: tuple[RefusedLaunch, ...]


class CommandTaken(CommandAnswer, JsonAnswer, schema="command"):
    """The result of a command to a rollout."""


class CommandOutcome(Model):
    """The result of a command in one of several clusters."""

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
    """The results of one command in several clusters, in the order in which they were named."""

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


class FleetPlanFile(JsonAnswer, schema="fleet-plan-file"):
    """A fleet's plan as `fleet plan --out` keeps it, for `fleet approve FILE`."""

    at: Time
    """When it was kept."""
    plan: FleetPlan
    pilots: tuple[Name, ...] = ()
    cuts: dict[Name, dict[Name, GpuCount]] = Field(default_factory=dict)
    """By cluster and team, of those that it cuts."""

    @staticmethod
    def of(plan: FleetPlan, pilots: Sequence[str], cuts: Mapping[str, Mapping[str, int]]) -> FleetPlanFile:
        own = {cluster: dict(of_teams) for cluster, of_teams in cuts.items()}
        return FleetPlanFile(at=datetime.now(UTC), plan=plan, pilots=tuple(pilots), cuts=own)


class FleetCommandTaken(FleetCommandAnswer, JsonAnswer, schema="fleet-command"):
    """The result of a command to the fleet rollout."""


class BuildsAnswer(JsonAnswer, schema="builds"):
    """The builds of versioned workers, the newest first."""

    builds: tuple[Build, ...]


class DoctorAnswer(JsonAnswer, schema="doctor"):
    well: bool
    checks: tuple[Check, ...]
