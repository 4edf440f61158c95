"""A cluster's policy, as its owner decides it: buffers, waits, what happens on a breach."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from models.base import DAY, HOUR, Count, Documented, Duration, GpuCount, Model, NameGiven, PositiveCount, Share
from models.cluster.classes import Classes
from models.cluster.derived_buffer import Derived, HealthTerms
from models.notices import Notify
from models.texts import brief


class Tier(StrEnum):
    """The rungs of the cut ladder, the cheapest first."""

    UNALLOCATED = "unallocated"
    UNSCHEDULED = "unscheduled"
    IDLE = "idle"
    BUSY = "busy"

    @property
    def depth(self) -> int:
        return TIERS.index(self)


TIERS: tuple[Tier, ...] = (Tier.UNALLOCATED, Tier.UNSCHEDULED, Tier.IDLE, Tier.BUSY)
AFTER_ALL = "after all"
"""The wave of clusters that come after all tiers, because no tier limit gives them a sufficient plan."""


class Basis(StrEnum):
    TOTAL = "total"
    HEALTHY = "healthy"


class Scope(StrEnum):
    CLUSTER = "cluster"
    QUOTA = "quota"


class ShareBy(StrEnum):
    TIER = "tier"
    QUOTA = "quota"
    EQUAL = "equal"


class Acks(StrEnum):
    NONE = "none"
    MAJORITY = "majority"
    ALL = "all"


class OnBreach(StrEnum):
    ROLLBACK = "rollback"
    HOLD = "hold"
    REALIGN = "realign"


class RollbackTo(StrEnum):
    BACKED = "backed"
    BASELINE = "baseline"


class OnDrift(StrEnum):
    HOLD = "hold"
    RESTORE = "restore"
    ACCEPT = "accept"


class Requests(StrEnum):
    """The answer to requests for more quota while a rollout of the cluster is on its way to `monitored`."""

    WAIT = "wait"
    REFUSE = "refuse"


class OnLongRun(StrEnum):
    """The reaction when long-run health has left what a monitored plan was made on."""

    APPLY = "apply"
    """Propose a new plan. Backstop applies a plan inside the envelope by itself."""
    PROPOSE = "propose"
    IGNORE = "ignore"


class Ramp(Model):
    """Growing buffers: each completed rollout of the cluster moves one step on, retries do not."""

    ramp: Annotated[tuple[Share, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_growing(self) -> Self:
        for earlier, later in zip(self.ramp, self.ramp[1:], strict=False):
            if later <= earlier:
                raise ValueError(f"a ramp must grow at each step: {float(later):g} follows {float(earlier):g}")
        return self


class HealthBuffer(Model):
    """A buffer derived from the cluster's health history, so large that the target share of hours holds."""

    health: HealthTerms


def _buffer(value: Any) -> Any:
    """Pick the form by its key, so that an error speaks of one form and not of all three."""
    if isinstance(value, dict) and not {"ramp", "health"} <= value.keys():
        if "ramp" in value:
            return Ramp.model_validate(value)
        if "health" in value:
            return HealthBuffer.model_validate(value)
    if value == "health" or isinstance(value, dict):
        raise ValueError(f"must be a number, {{ramp: [...]}} or {{health: {{...}}}}, not {brief(value)}")
    return value


MOST_NAMES = 100
"""The most names in one list of a policy."""
OF_THE_CLUSTER = ("owners", "requests", "notify", "classes")
"""Settings of a cluster that do not depend on an open rollout: no launch sets them."""


class Policy(Documented):
    """The settings of one cluster, or the default of all. Defaults: docs/fleet-file.md, "A policy"."""

    buffer: Annotated[Share | Ramp | HealthBuffer, BeforeValidator(_buffer)] = Fraction(15, 100)
    """The share that is not promised. Or {ramp: [...]}: growing shares, one step per completed rollout. Or {health:
    {...}}: a share derived from the cluster's health history.
    """
    basis: Basis = Basis.TOTAL
    """The GPUs that the buffer is a share of: total or healthy."""
    scope: Scope = Scope.CLUSTER
    """cluster: the buffer is taken from the cluster as a whole; quota: from each quota."""
    share: ShareBy = ShareBy.TIER
    """The weights that divide a cut inside a tier: tier (each quota's GPUs in that tier), quota (its size) or equal."""
    max_tier: Tier = Tier.BUSY
    """The deepest tier a plan may cut: unallocated, unscheduled, idle or busy."""
    spare_gpus: GpuCount | None = None
    """Healthy GPUs that are never promised. Default: gpus_per_node."""
    usage_window: Duration = timedelta(days=7)
    """Usage is the 95th percentile over this time, if there is history."""
    notice: Duration = timedelta(days=3)
    """The time between the notice to teams and the first change."""
    soak_buffered: Duration = timedelta(hours=24)
    """The time without a breach between buffered and enforced."""
    soak_enforced: Duration = timedelta(days=3)
    """The time without a breach between enforced and monitored."""
    acks: Acks = Acks.NONE
    """The acknowledgements that enforcing waits for: none, majority or all."""
    ack_deadline: Duration = timedelta(days=7)
    """The longest wait for acknowledgements."""
    breach_after: Duration = timedelta(minutes=10)
    """A quota that lacks healthy GPUs for longer than this is in breach."""
    clear_after: Duration = timedelta(minutes=30)
    """Health must be good for this long before the breach timer starts again."""
    recover_after: Duration = timedelta(hours=6)
    """After a breach rollback, health must be good for this long before a retry. Each failure doubles it."""
    stale_after: Duration = timedelta(minutes=30)
    """Health older than this opens no gate, and holds the rollout."""
    plausible_drop: Share = Fraction(20, 100)
    """A larger change between two samples is unknown until it is confirmed; so is a larger loss of one source."""
    confirm_samples: Count = 2
    """The number of further samples that confirm a cluster's change. A person confirms a source's loss."""
    on_breach: OnBreach = OnBreach.ROLLBACK
    """The reaction to a breach: rollback, hold or realign."""
    rollback_to: RollbackTo = RollbackTo.BACKED
    """The values after a breach rollback: backed (by healthy GPUs), or baseline (advisory)."""
    attempts: PositiveCount = 3
    """The number of breach rollbacks before Backstop calls a person."""
    on_drift: OnDrift = OnDrift.HOLD
    """The reaction when others change a quota: hold, restore or accept."""
    max_moved_gpus: GpuCount = 512
    """The most GPUs that Backstop moves by itself, per fleet and hour; past it Backstop holds."""
    max_moved_gpus_day: GpuCount | None = None
    """The most GPUs that Backstop moves by itself, per fleet and day. Default: only the hourly limit."""
    max_breaching_clusters: PositiveCount = 3
    """The most clusters per hour that Backstop rolls back after a breach; max_moved_gpus does not limit these
    rollbacks. Also the most clusters of one source that may fall within an hour before Backstop doubts the source.
    """
    flex_band_gpus: GpuCount | None = None
    """The published flex pool grows only by more than this; it shrinks at once. Default: one node."""
    on_long_run: OnLongRun = OnLongRun.APPLY
    """The reaction when long-run health no longer fits the plan: apply (inside the envelope), propose or ignore."""
    replan_window: Duration = timedelta(days=7)
    """Long-run health is the median over this time. Backstop makes at most one proposal in it."""
    replan_gpus: GpuCount | None = None
    """Backstop proposes a plan if long-run health differs from the plan's by more than this. Default: one node."""
    safety_poll: Duration = timedelta(hours=1)
    """The interval of regular looks at the cluster. At rest it is about a day, or this if it is below 1h."""
    authorities: Annotated[tuple[NameGiven, ...], Field(max_length=MOST_NAMES)] = ()
    """People who may resolve an objection or another hold, besides the owner. Default: the owner alone."""
    owners: Annotated[tuple[NameGiven, ...], Field(max_length=MOST_NAMES)] = ()
    """People who decide on requests for quota, besides the owner of an open rollout. Default: that owner alone."""
    requests: Requests = Requests.WAIT
    """The answer to requests for quota while a rollout is on its way to monitored: wait or refuse."""
    notify: Notify = Notify.EACH
    """The notices of teams that do not choose for themselves: each, digest (once a day) or breach-only."""
    classes: Classes = ()
    """The classes of jobs inside each quota, the strongest first. The weakest yields first. Default: none."""

    @model_validator(mode="after")
    def _check_fitting(self) -> Self:
        for field in ("safety_poll", "stale_after", "replan_window"):
            if getattr(self, field) <= timedelta(0):
                raise ValueError(f"{field} must be longer than zero")
        if self.terms is not None and self.basis is not Basis.TOTAL:
            raise ValueError(f"basis must be total if the buffer comes from health, not {self.basis}")
        return self

    @property
    def resting_poll(self) -> timedelta:
        """The interval of unasked looks at rest: for a lost signal, a dead watch, and long-run health."""
        if self.safety_poll < HOUR:
            return self.safety_poll
        if self.on_long_run is OnLongRun.IGNORE:
            return max(DAY, self.safety_poll)
        return max(self.safety_poll, min(DAY, self.replan_window / 7))

    @property
    def terms(self) -> HealthTerms | None:
        """The terms of a buffer from health history; None if the policy sets the buffer itself."""
        return self.buffer.health if isinstance(self.buffer, HealthBuffer) else None

    def buffer_at(self, completed_rollouts: int, derived: Derived | None = None) -> Fraction:
        """Return b for the next rollout; a ramp stays on its last step. Without a derived buffer its floor holds."""
        if isinstance(self.buffer, HealthBuffer):
            if derived is None:
                return self.buffer.health.floor
            return Fraction(min(derived.needed, derived.total - 1), derived.total)
        if isinstance(self.buffer, Ramp):
            return self.buffer.ramp[min(completed_rollouts, len(self.buffer.ramp) - 1)]
        return self.buffer
