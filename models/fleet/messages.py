"""Messages about a fleet rollout: launch, commands, status, and the requests to its activities."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from models.access.tickets import Ticketed
from models.access.warrants import Spent
from models.audit_chain import AuditEntry
from models.base import (
    ActorGiven,
    Count,
    Duration,
    GpuCount,
    Model,
    Name,
    NameGiven,
    PositiveCount,
    Share,
    Time,
    Words,
    of_ordinary_size,
)
from models.cluster.windows import WindowKind
from models.fleet.archived_state import KeptFleet
from models.fleet.state import BudgetLeft, FleetRollout, FleetStage, Member, Pace, Wave
from models.lifecycle.holds import Hold
from models.texts import count_text


class FleetLaunch(Ticketed):
    """A request to start a fleet rollout. No wave named: all of them; pilots go first in any case."""

    fleet: NameGiven
    owner: NameGiven
    actor: ActorGiven = ""
    reason: Words = ""
    pilots: tuple[Name, ...] = ()
    waves: tuple[Wave, ...] = ()
    pilots_only: bool = False
    shadow: bool = False
    pace: Pace = Pace()
    policy: dict[str, Any] = Field(default_factory=dict)
    """Settings that override each cluster's own policy."""
    kept: KeptFleet | None = None
    """The lost fleet rollout that this one takes over, with exactly its members; None: none is taken over."""

    _sized = field_validator("policy")(of_ordinary_size)


class FleetInput(Model):
    """The workflow's one argument: a launch, or the state it continues from."""

    launch: FleetLaunch
    state: FleetRollout | None = None
    runs: Count = 1
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that recent commands used; none is accepted twice."""


# --- activities --------------------------------------------------------------------------------


class FleetPlanRequest(Model):
    launch: FleetLaunch
    at: Time


class Prospect(Model):
    """The outcome of one cluster's rollout if it started today. `headroom`: (H - A) / T."""

    cluster: Name
    wave: Wave
    headroom: float
    cut_gpus: GpuCount = 0
    phantom_gpus: GpuCount = 0
    to_flex_gpus: GpuCount = 0
    assigned_gpus: GpuCount = 0
    total_gpus: GpuCount = 0
    healthy_gpus: GpuCount = 0
    plan_hash: str = ""
    stage: str = ""
    """The stage of the cluster's open rollout; empty: it has none."""
    rollout: str = ""
    rollbacks: Count = 0
    needs: str = ""
    why_not: str = ""
    """Why the cluster's rollout could not be launched now; empty: it could."""
    why_last: str = ""
    """Why the cluster comes after all waves; empty: it does not."""
    health_at: Time | None = Field(default=None, exclude_if=lambda at: at is None)
    """Time of the cluster's health sample; None: unknown."""
    stale_after: Duration | None = Field(default=None, exclude_if=lambda age: age is None)
    """The age from which the policy calls that sample stale; a stale sample opens no gate."""
    own: bool = False
    """The open rollout belongs to the lost fleet rollout that is taken over."""
    started_at: Time | None = None
    """Time at which the open rollout was opened."""


class FleetPlan(Model):
    """The plan that a person approves: every cluster's plan of today, by one hash, in the order of starting."""

    fleet: Name
    hash: str = ""
    clusters: tuple[Prospect, ...] = ()
    missing: tuple[str, ...] = ()
    """Pilots that the ledger does not have."""

    @property
    def size_text(self) -> str:
        """The number of clusters, and of those that have a rollout already."""
        many, others = len(self.clusters), sum(bool(p.rollout) for p in self.clusters)
        followed = f" ({many - others} to start, {others} with a rollout that is open already)" if others else ""
        return f"{count_text(many, 'cluster')}{followed}"


class Candidate(Model):
    """A waiting cluster in a request for a pick."""

    cluster: Name
    wave: Wave
    moved: bool = False


class PickRequest(Model):
    fleet: Name
    wave: Wave
    """The latest wave to pick from; clusters of later waves are looked at but not picked."""
    candidates: tuple[Candidate, ...]
    most: PositiveCount
    hour_gpus: GpuCount
    day_gpus: GpuCount
    """GPUs left of the day's budget after this fleet rollout's starts; moves booked in the ledger may leave less."""
    pace: Pace
    policy: dict[str, Any] = Field(default_factory=dict)
    shadow: bool = False
    """The fleet rollout writes no quotas; only then can open shadow rollouts be its members."""
    at: Time


class Noted(Model):
    """A rollout as the registry shows it."""

    rollout: str
    stage: str
    needs: str = ""
    rollbacks: Count = 0
    """Rollbacks that no person asked for."""


class Picked(Model):
    cluster: Name
    wave: Wave
    cut_gpus: GpuCount


class Passed(Model):
    """The reason a cluster whose turn it is cannot start, and the earliest time at which that may change."""

    reason: str
    until: Time | None = None


class PickAnswer(Model):
    picked: tuple[Picked, ...] = ()
    passed: dict[str, Passed] = Field(default_factory=dict)
    waves: dict[str, Wave] = Field(default_factory=dict)
    """Clusters that fresh snapshots put into another wave."""
    joined: dict[str, Noted] = Field(default_factory=dict)
    """Clusters whose rollout somebody else has opened meanwhile."""
    waiting: dict[str, str] = Field(default_factory=dict)
    """Why clusters that could start were not picked, by cluster: no slot, no budget, or a cluster ahead of them."""
    left: BudgetLeft | None = None
    """The budget left after these picks; None: an earlier build did not report it."""


class Entrant(Model):
    """A cluster and the id of its rollout."""

    cluster: Name
    rollout: Name


class StartRequest(Model):
    launch: FleetLaunch
    approved_by: str
    entrants: tuple[Entrant, ...]


class StartAnswer(Model):
    """The reasons clusters were not launched; the others were."""

    refused: dict[str, str] = Field(default_factory=dict)


class FollowRequest(Model):
    """A request that is answered when a rollout differs from `known`, its last seen state by rollout.

    Rollouts that the fleet rollout has opened since are news as well. `unseen`: members' rollouts not seen yet. Other
    rollouts of the fleet that ended before the call are launches that were refused.
    """

    fleet: Name
    known: dict[str, Noted]
    unseen: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Clusters that have not started; a rollout that somebody else opens in one of them is reported."""
    shadow: bool = False
    """As in `PickRequest`: unless set, open shadow rollouts are not reported."""
    every_seconds: float


class FollowAnswer(Model):
    changed: dict[str, Noted] = Field(default_factory=dict)
    """Rollouts that differ from `known`, by id."""
    joined: dict[str, Noted] = Field(default_factory=dict)
    """Rollouts that somebody else opened, by cluster."""


class AbortRequest(Model):
    clusters: tuple[Entrant, ...]
    actor: str
    reason: str


class AbortAnswer(Model):
    """The reasons rollouts did not take the abort; the others did."""

    refused: dict[str, str] = Field(default_factory=dict)


class FleetRecord(Model):
    entries: tuple[AuditEntry, ...]


# --- people ------------------------------------------------------------------------------------


class FleetCommandAnswer(Model):
    command: str
    stage: FleetStage
    said: str
    undo: str = ""
    """How to undo the command, or why nothing can; empty: an earlier build did not say."""


class FleetLaunchAnswer(Model):
    launched: bool
    fleet: str
    stage: FleetStage
    reason: str = ""
    plan: FleetPlan | None = None


class WaveStatus(Model):
    """Clusters of one wave, by state."""

    wave: Wave
    clusters: Count
    waiting: Count
    running: Count
    done: Count
    failed: Count
    ended: Count
    skipped: Count
    cut_gpus: GpuCount


class DeclaredOver(Model):
    """A declared window, and the members that it keeps from starting or going on."""

    kind: WindowKind
    starts: Time
    ends: Time
    reason: str
    clusters: tuple[Name, ...]


class FleetProgress(Model):
    """The progress so far, and the end if it goes on as in the last day."""

    step: PositiveCount
    steps: PositiveCount
    """The number of waves, including the pilot wave."""
    monitored: Count
    clusters: Count
    of_late: Count
    """Clusters that became monitored in the last `span`."""
    span: Duration
    """One day, or the time since the approval if that is shorter."""
    left: Count
    """Clusters that are under way or waiting."""
    not_before: Time
    """The earliest possible end, by the soaks and bakes alone."""
    expected_end: Time | None = None
    """The end at the present rate; None: the rollout is held, or no cluster became monitored lately."""


class FleetStatus(Model):
    """Everything a person may want to know about a fleet rollout, as of `at`."""

    schema_: Literal["backstop.fleet-status/1"] = Field(default="backstop.fleet-status/1", alias="schema")
    fleet: str
    owner: str
    shadow: bool
    stage: FleetStage
    entered_at: Time
    at: Time
    plan_hash: str
    approved_by: str
    wave: Wave
    waits_for: str
    next_at: Time | None
    rests_until: Time | None
    pace: Pace
    hour_gpus: GpuCount
    day_gpus: GpuCount
    budget_at: Time | None = None
    """Time at which the ledger was last asked what others moved; None: not lately, so their moves are not counted."""
    failed: Count
    """Clusters that rolled back since a person last let the fleet go on."""
    failed_of: Count
    """The number of clusters of which `failed` is a share: those that started, but at least `breaker_clusters`."""
    trips_above: Share
    holds: tuple[Hold, ...]
    progress: FleetProgress | None = None
    """Set from the approval until the end; None otherwise."""
    windows: tuple[DeclaredOver, ...] = ()
    """Declared windows in the ledger's calendar that are not over and affect clusters under way."""
    waves: tuple[WaveStatus, ...]
    members: tuple[Member, ...]
    would_end: tuple[Name, ...] = ()
    """Clusters whose rollouts an abort ends, because they have changed nothing yet."""
    would_undo: tuple[Name, ...] = ()
    """Clusters whose rollouts an abort with undo ends or undoes, the newest first; includes those of `would_end`."""
    needs: str = ""
    ended_because: str = ""
    lost: str = Field(default="", exclude_if=lambda text: not text)
    """Set if Temporal stopped the rollout before its end: what to do. The other fields are the last known."""
    history_events: Count = 0
    runs: Count = 1


class FleetResult(Model):
    fleet: str
    stage: FleetStage
    reason: str = ""
    clusters: Count = 0
    done: Count = 0
