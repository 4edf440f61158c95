"""What crosses the wire between client, workflow and activities, and every name on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from models.audit import AuditEntry
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
from models.cluster.derived_buffer import Derived, HealthTerms
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample, LimitMode, QuotaReading
from models.cluster.snapshot import Snapshot
from models.planning.plan import Envelope, Plan
from models.planning.window_forecast import Foretold
from models.rollout.effects import Change
from models.rollout.gates import Condition
from models.rollout.holds import Hold
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout

# --- the rollout workflow --------------------------------------------------------------------


class LaunchRequest(Model):
    """What starts a rollout. `policy` lays over the cluster's own."""

    cluster: NameGiven
    rollout: NameGiven
    owner: NameGiven
    actor: ActorGiven = ""
    """Who launches; empty: the owner."""
    reason: Words = ""
    shadow: bool = False
    adopt: bool = False
    policy: dict[str, Any] = Field(default_factory=dict)

    fleet: ActorGiven = ""
    """The fleet rollout that launches it: what was approved of that one's plan is approved here."""
    approved_by: ActorGiven = ""

    _sized = field_validator("policy")(of_ordinary_size)


class RolloutInput(Model):
    """The workflow's one argument: a launch, or the state it continues from."""

    launch: LaunchRequest
    state: Rollout | None = None
    runs: Count = 1
    """How many runs of this rollout there have been, this one included."""


class LaunchAnswer(Model):
    """What `launch` tells its caller: the plan, or why there is none."""

    launched: bool
    rollout: str
    cluster: Name
    stage: Stage
    reason: str = ""
    plan: Plan | None = None


class CommandAnswer(Model):
    """What a command led to, in one sentence."""

    cluster: Name
    command: Command
    stage: Stage
    said: str
    undo: str = ""
    """How it is undone, or that it cannot be; empty: the build that obeyed it did not say."""


class HealthChanged(Model):
    """The watch saw an edge: look now."""

    cluster: Name
    at: Time
    why: Words


class Risk(Model):
    """A quota that lacks hardware now, with both numbers."""

    team: Name
    quota_gpus: GpuCount
    backing_gpus: GpuCount
    breach_at: Time | None = None
    yields: str = Field(default="", exclude_if=lambda text: not text)
    """Who of the team yields first, by class, in a sentence; empty: nobody knows."""


class Choice(Model):
    """A command that leads on, as it is typed, and what it will do."""

    command: str
    line: str
    does: str


class ValueLeft(Model):
    """A quota that does not have the value that a rollback brings back."""

    team: Name
    gpus: GpuCount
    target_gpus: GpuCount
    by_others: bool = False
    """Somebody else changed it, and it is left alone."""
    unsure: bool = False
    """It may have the target already: a write was never answered, or somebody newer owns the cluster."""


class UndoStatus(Model):
    """What a rollback has done, what it has left to do, and what can be done where it is stuck."""

    why: str
    reason: str
    actor: str
    left: tuple[str, ...]
    stuck_on: tuple[str, ...]
    commands: tuple[str, ...] = ()
    """The commands that can be given while stuck."""
    undone: tuple[str, ...] = ()
    """Effects that are undone, each with what that means."""
    not_undone: tuple[str, ...] = ()
    """Effects that cannot be undone, each with what that means, and why."""
    values: tuple[ValueLeft, ...] = ()
    choices: tuple[Choice, ...] = ()
    """While stuck: what can be done, in the order to think of it."""


class TeamStatus(Model):
    """One quota as it stands."""

    team: Name
    parent: Name | None = None
    leaf: bool = True
    baseline_gpus: GpuCount
    quota_gpus: GpuCount
    """What the quota system holds."""
    planned_gpus: GpuCount | None = None
    backing_gpus: GpuCount | None = None
    would_gpus: GpuCount | None = None
    """What it would hold, were the shadow real; null outside of one."""
    would_backing_gpus: GpuCount | None = None
    promise: bool = False
    """False: the value is advisory."""
    acknowledged: bool = False


class WouldStand(Model):
    """What would be, had a shadow rollout written what it says. Units: whole GPUs."""

    assigned_gpus: GpuCount
    backed_gpus: GpuCount
    phantom_gpus: GpuCount
    flex_gpus: GpuCount
    flex_published_gpus: GpuCount | None = None


class ProposedValue(Model):
    team: Name
    quota_gpus: GpuCount
    proposed_gpus: GpuCount


class ProposalStatus(Model):
    """A plan on the long-run health of a monitored cluster, which is not written yet."""

    plan_hash: str
    at: Time
    healthy_gpus: GpuCount
    """The health it was made on."""
    planned_gpus: GpuCount
    """The health that the standing plan was made on."""
    inside: bool
    """No cut is deeper than what was approved."""
    buffer: Derived | None = None
    """What its buffer stands on, where it comes from health history."""
    values: tuple[ProposedValue, ...]
    """Leaf quotas that it changes."""


class RolloutStatus(Model):
    """Everything a person may want to know about one rollout, as of `at`."""

    schema_: Literal["backstop.status/1"] = Field(default="backstop.status/1", alias="schema")
    cluster: Name
    rollout: str
    owner: str
    shadow: bool
    stage: Stage
    entered_at: Time
    at: Time
    attempt: Count
    failures: Count
    attempts: Count
    plan_hash: str | None
    approved_by: str
    envelope_holds: bool
    wave: str
    total_gpus: GpuCount
    healthy_gpus: GpuCount | None
    health_at: Time | None
    health_known: bool
    health_fault: str = ""
    """What was wrong with its sources when they were last looked at; empty: nothing."""
    assigned_gpus: GpuCount
    backed_gpus: GpuCount
    phantom_gpus: GpuCount
    flex_gpus: GpuCount
    flex_published_gpus: GpuCount | None = None
    """The surplus that a scheduler reads; None: it is not told one."""
    flex_grows_at: Time | None = None
    """When more of it will be published, if what is healthy now stays so."""
    buffer: Derived | None = None
    """What the plan's buffer stands on, where it comes from health history."""
    buffer_at: Time | None = None
    """When that was last derived anew, in `monitored`."""
    proposal: ProposalStatus | None = None
    would: WouldStand | None = None
    """What a shadow says would be, beside what is: `at_risk` and `breach_of` are of these values. None: no shadow."""
    cut_gpus: GpuCount
    gate: str | None
    waiting_for: tuple[Condition, ...]
    next_at: Time | None
    """When the rollout next does something by itself, if nothing happens before."""
    holds: tuple[Hold, ...]
    recorded_objections: tuple[Hold, ...] = ()
    lifts: dict[str, str] = Field(default_factory=dict)
    """By hold, the command by which its owner lifts it; one that ends by itself is not there."""
    at_risk: tuple[Risk, ...]
    foretold: tuple[Foretold, ...] = ()
    """Quotas that declared windows will leave without backing, the next window first."""
    breach_of: tuple[str, ...]
    undoing: UndoStatus | None
    teams: tuple[TeamStatus, ...]
    needs: str = ""
    """What a person has to do, if anything."""
    stale_after: Duration | None = None
    """How old its health may be."""
    ended_because: str = ""
    look_failed: str = ""
    """Why the last look at the cluster failed; empty: it did not. What was known before stands."""
    fence: Count = 0
    history_events: Count = 0
    runs: Count = 1


# --- activities ------------------------------------------------------------------------------


def _passing_over(*names: str) -> Any:
    """Fields that earlier versions sent and nobody read: for one release their calls may still be under way."""

    def without(data: Any) -> Any:
        return {k: v for k, v in data.items() if k not in names} if isinstance(data, dict) else data

    return model_validator(mode="before")(without)


class OpenRequest(Model):
    launch: LaunchRequest
    at: Time


class Opening(Model):
    """An open rollout: its baseline, policy, and what an adopted one left."""

    baseline: Snapshot
    policy: Policy
    reading: QuotaReading
    health: HealthSample | None
    adopted_from: str = ""
    written: dict[str, GpuCount] = Field(default_factory=dict, exclude_if=lambda written: not written)
    """Of an adopted rollout: the values that are ours. Where another one stands others have changed it since."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    envelope: Envelope | None = None
    """What was approved of this cluster with the fleet rollout that launches it."""


class DraftRequest(Model):
    """`baseline` None: today's values are the baseline.

    `frozen`: the earlier baseline, whose ramp step is kept, and with `keep_usage` (approved once) its
    usage too.
    """

    cluster: Name
    policy: Policy
    baseline: Snapshot | None = None
    frozen: Snapshot | None = None
    keep_usage: bool = False
    islands: tuple[Island, ...] | None = None
    """The islands to plan on: what is believed, where a newer sample is not."""
    promised: GpuCount | None = None
    """What a buffer from health history lets the cluster promise now: the new one follows it by steps."""
    promised_of: GpuCount | None = None
    """Of so many GPUs; None: as many as there are."""
    at: Time

    _earlier = _passing_over("rollout")


class Drafted(Model):
    baseline: Snapshot
    reading: QuotaReading
    plan: Plan


class ObserveRequest(Model):
    """`values` None: test what the cluster holds."""

    cluster: Name
    values: dict[str, int] | None = None
    gpus_per_node: PositiveCount = 8
    generation: Count | None = None
    """The one that the rollout knows: who changed the quotas since is wanted too."""
    flex_after: timedelta | None = None
    """Say what surplus there is, and what of it has stood for so long; None: flex does not matter yet."""
    long_run: timedelta | None = None
    """Say what health has usually been for so long."""
    derive: HealthTerms | None = None
    """Say what buffer health history asks for."""
    shadow: bool = False
    """The surplus is that beside the tested values: the quota system does not hold them."""
    plausible_drop: Share | None = None
    max_breaching_clusters: PositiveCount | None = None
    """By what the falls of a source are judged; None: they are not, but what is in doubt already is told."""
    at: Time

    _earlier = _passing_over("scheduled", "baseline")


class AimRequest(Model):
    cluster: Name
    baseline: Snapshot
    current: dict[str, int]
    islands: tuple[Island, ...]
    policy: Policy
    exempt: bool
    shadow: bool = False
    at: Time

    _earlier = _passing_over("rollout")


class EffectRequest(Model):
    """One fenced call. `limit_gpus` None: exempt from the blast radius."""

    change: Change
    shadow: bool
    limit_gpus: int | None
    limit_day_gpus: int | None = None
    baseline: Snapshot | None = None
    """What an undo brings back from then on, also by who adopts the rollout: of its first effect, and of a grant."""
    at: Time

    _earlier = _passing_over("generation")


class RecordRequest(Model):
    """Entries for the archive, and the stage for the registry."""

    rollout: str
    entries: tuple[AuditEntry, ...]
    stage: Stage
    ended: bool
    completed: bool
    needs: str = ""
    """What a person has to do, as the registry is to show it."""
    rollbacks: Count = 0

    _earlier = _passing_over("cluster", "shadow")


class RolloutResult(Model):
    """How a rollout ended."""

    cluster: Name
    rollout: str
    stage: Stage
    reason: str = ""
