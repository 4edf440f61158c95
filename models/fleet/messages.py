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
from models.rollout.holds import Hold
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
    """The lost fleet rollout that it takes over: its members are the only ones."""

    _sized = field_validator("policy")(of_ordinary_size)


class FleetInput(Model):
    """The workflow's one argument: a launch, or the state it continues from."""

    launch: FleetLaunch
    state: FleetRollout | None = None
    runs: Count = 1
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that its commands have used lately."""


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
    """The stage of the rollout that is open there already."""
    rollout: str = ""
    rollbacks: Count = 0
    needs: str = ""
    why_not: str = ""
    """The reason it could not be launched now; empty: it could."""
    why_last: str = ""
    """The reason it comes after all waves; empty: it does not."""
    health_at: Time | None = Field(default=None, exclude_if=lambda at: at is None)
    """Time of its health sample; None: nobody said."""
    stale_after: Duration | None = Field(default=None, exclude_if=lambda age: age is None)
    """The age at which its policy calls such a sample stale, so that it opens no gate."""
    own: bool = False
    """The rollout belongs to the lost fleet rollout that is taken over."""
    started_at: Time | None = None
    """Time at which that rollout was opened."""


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
    """Clusters of later waves are looked at, and not picked."""
    candidates: tuple[Candidate, ...]
    most: PositiveCount
    hour_gpus: GpuCount
    day_gpus: GpuCount
    """Budget left by what the fleet rollout has started; GPUs booked in the ledger may leave less."""
    pace: Pace
    policy: dict[str, Any] = Field(default_factory=dict)
    shadow: bool = False
    """The fleet rollout writes nothing itself, so that a rehearsal is one of its members."""
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
    """The reason others that could start were not picked: the budget, or a cluster before them."""
    left: BudgetLeft | None = None
    """The budget left after these; None: an earlier version did not say."""


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
    """Clusters that have not started: a rollout that somebody else opens there is news."""
    shadow: bool = False
    """The same as in the pick: outside a shadow, an open rehearsal does not count."""
    every_seconds: float


class FollowAnswer(Model):
    changed: dict[str, Noted] = Field(default_factory=dict)
    """Rollouts by id."""
    joined: dict[str, Noted] = Field(default_factory=dict)
    """Rollouts by cluster."""


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
    """The way to undo it, or the reason there is none; empty: the build that obeyed did not say."""


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
    """The number of its waves, that of the pilots included."""
    monitored: Count
    clusters: Count
    of_late: Count
    """Clusters that became monitored in the last `span`."""
    span: Duration
    """One day, or the time since it was approved if shorter."""
    left: Count
    """Clusters that are on their way, or wait."""
    not_before: Time
    """The earliest end by its soaks and bakes alone."""
    expected_end: Time | None = None
    """The end at this rate; None: it is held, or no cluster became monitored lately."""


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
    """Time at which the ledger was asked what had been moved; None: not lately, so moves by others are not counted."""
    failed: Count
    """Clusters that rolled back since a person last let the fleet go on."""
    failed_of: Count
    """The number of clusters that `failed` is a share of."""
    trips_above: Share
    holds: tuple[Hold, ...]
    progress: FleetProgress | None = None
    """Set from its approval until it ends."""
    windows: tuple[DeclaredOver, ...] = ()
    """Declared windows that are not over, of members that are on their way; from the ledger's calendar."""
    waves: tuple[WaveStatus, ...]
    members: tuple[Member, ...]
    would_end: tuple[Name, ...] = ()
    """Clusters whose rollouts an abort ends: they have changed nothing yet."""
    would_undo: tuple[Name, ...] = ()
    """Clusters whose rollouts an abort with undo undoes, the newest first, with those of `would_end`."""
    needs: str = ""
    ended_because: str = ""
    lost: str = Field(default="", exclude_if=lambda text: not text)
    """That Temporal stopped it before it came to its own end, and what to do; the rest is how it last stood."""
    history_events: Count = 0
    runs: Count = 1


class FleetResult(Model):
    fleet: str
    stage: FleetStage
    reason: str = ""
    clusters: Count = 0
    done: Count = 0
