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
    """After an import: windows that its events declared earlier and no longer declare."""
    foretold: dict[str, tuple[Foretold, ...]]
    left_out: tuple[str, ...] = ()
    """After an import: a sentence for each event that was left out, with the reason."""
    undo: str = ""
    """How to undo a hold, an import or an end, or that this is impossible; one line for each change."""


class BufferAnswer(JsonAnswer, schema="buffer"):
    """The GPUs that one cluster can promise, and the record that supports it. Units: as its history counts."""

    cluster: str
    unit: Literal["nodes", "gpus"]
    horizon_weeks: int
    target: Share
    now: Derived
    promise: int | None
    """The smaller of what history supports and what is healthy now without the spare; null: nothing can be promised."""
    healthy: int
    """What is healthy now, or was in the last known hour of a file."""
    spare: int
    looser: Derived | None
    """The buffer for a target with ten times as many misses; null: it is the same buffer."""
    records: tuple[Record, ...]
    least: Record | None
    """The smallest fixed buffer, in whole percent, that would have broken no more hours; null: none up to 60 %."""
    below: Record | None
    """The fixed buffer that is one percent smaller than `least`."""

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
    """The free flex of that cluster; null: not looked up, because nothing is missing."""
    own_jobs_gpus: GpuCount
    """The part of the gap that the team's own jobs use."""
    lacking_gpus: GpuCount
    """The rest of the gap: the GPUs that are missing."""


class WhyAnswer(JsonAnswer, schema="why"):
    """The reasons why a team cannot use its quota, cluster by cluster."""

    clusters: tuple[WhyLine, ...]
    unanswered: dict[str, str]
    """Clusters where the team has a quota but there is no answer, with the reason."""
    elsewhere: dict[str, int]
    """The free flex of other clusters with the same GPU model; for a block, the largest block that fits there."""

    @staticmethod
    def of(whys: WhyAnswers, flexes: Sequence[FlexNow]) -> WhyAnswer:
        free = {flex.cluster: flex.available_gpus for flex in flexes}
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
    """The sums of these clusters, hour by hour; hours without known numbers are left out."""


class FlexShare(Model):
    team: str
    gpus: int
    """All GPUs of the team: those inside its quota, and those beyond."""


class FlexShares(Model):
    """A division, in the form that schedulers read: a plain object, with neither schema nor version."""

    shares: tuple[FlexShare, ...]
    """The shares of the teams without child teams, in the order given."""
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
    """The time of the first tally."""
    points: tuple[Point, ...]
    arrived: tuple[Arrival, ...] = ()
    """Clusters that bring-ups added to the fleet in this time."""


class MilestonesAnswer(JsonAnswer, schema="milestones"):
    """The progress of the plan's milestones, in its order."""

    at: Time
    milestones: tuple[MilestoneStanding, ...]


class WeekAnswer(Week, JsonAnswer, schema="report"):
    """The weekly report. `live` is null for a week that is over."""


class ClustersAnswer(JsonAnswer, schema="clusters"):
    clusters: tuple[ClusterAnswer, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """By cluster: why its data in the ledger makes no sense."""


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
    """How to attach Backstop again."""


class ConfirmedAnswer(JsonAnswer, schema="confirm"):
    """A health source that a person has confirmed, and the clusters whose health counts from now on."""

    source: Name
    clusters: tuple[Name, ...]
    undo: str = ""
    """That a confirmation cannot be undone, and what to do instead."""


class LaunchedAnswer(JsonAnswer, schema="launch"):
    cluster: Name
    rollout: str
    stage: Stage
    shadow: bool
    plan: PlanAnswer | None
    approve: str
    """The command that approves this plan."""
    undo: str = ""
    """How to undo the launch."""
    resolves: str = ""
    """Who may resolve the rollout's holds if the launcher may not; empty: the launcher, or see the access file."""
    gave_way: str = ""
    """The rehearsal of the cluster that Backstop aborted for this launch; empty: there was none."""

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
    """The stage after the command; null: the command was refused."""
    said: str
    """What follows; for a refused command, the reason."""
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
    """How to undo the launch."""


class FleetPlanFile(JsonAnswer, schema="fleet-plan-file"):
    """A fleet's plan as `fleet plan --out` keeps it, for `fleet approve FILE`."""

    at: Time
    """When the file was written."""
    plan: FleetPlan
    pilots: tuple[Name, ...] = ()
    cuts: dict[Name, dict[Name, GpuCount]] = Field(default_factory=dict)
    """The GPUs that the plan cuts, by cluster and team; those without a cut are left out."""

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
