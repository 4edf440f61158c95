"""The status of a rollout as people see it.

In a module of its own: `backstop status` is read every few seconds, and imports this alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from models.base import Count, Duration, GpuCount, Model, Name, Time
from models.cluster.derived_buffer import Derived
from models.cluster.windows import Foretold
from models.lifecycle.holds import Hold
from models.rollout.stages import Stage
from models.texts import gpus_text

CEILING_SETTINGS = frozenset({"buffer", "basis", "spare_gpus"})
"""The settings of a policy that a ceiling comes from."""
UNGUARDED = "nobody guards the present quotas until the rollout is buffered"


class Condition(Model):
    """A condition of a gate. `until`: the time at which it comes true by itself, if it does."""

    name: str
    met: bool
    text: str
    until: Time | None = None


class RolloutNote(Model):
    """The part of a status that the ledger keeps for reports, beside the stage, the need and the holds."""

    entered_at: Time
    wave: str = ""
    waits: tuple[Condition, ...] = ()
    """The conditions of its gate that are not met or that only time meets, without the one on holds."""
    lacking_gpus: Count = 0
    """GPUs that its quotas lack; in a stage that guards no quotas, GPUs that they would lack."""
    lacking_teams: tuple[Name, ...] = ()
    """The first of the teams that lack GPUs."""
    lacking_team_count: Count = 0
    breach_at: Time | None = None
    ceiling: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda settings: not settings)
    """The settings of its policy that its ceiling comes from; empty: the build did not say."""


class Risk(Model):
    """A quota that lacks hardware now, with both numbers."""

    team: Name
    quota_gpus: GpuCount
    backing_gpus: GpuCount
    breach_at: Time | None = None
    yields: str = Field(default="", exclude_if=lambda text: not text)
    """A sentence on the team's workloads that yield first, by class; empty: unknown."""


class Choice(Model):
    """A command that leads on, as people type it, and its effect."""

    command: str
    line: str
    does: str


class ValueLeft(Model):
    """A quota that does not have the value that a rollback brings back."""

    team: Name
    gpus: GpuCount
    target_gpus: GpuCount
    by_others: bool = False
    """Somebody else changed the quota, and Backstop leaves it alone."""
    unsure: bool = False
    """The quota may have the target already: a write got no answer, or a newer rollout owns the cluster."""


class UndoStatus(Model):
    """The progress of a rollback: effects undone and left, and the commands that help if it is stuck."""

    why: str
    reason: str
    actor: str
    left: tuple[str, ...]
    stuck_on: tuple[str, ...]
    commands: tuple[str, ...] = ()
    """The commands that can be given while stuck."""
    undone: tuple[str, ...] = ()
    """Effects that are undone, each with its meaning."""
    not_undone: tuple[str, ...] = ()
    """Effects that cannot be undone, each with its meaning and the reason."""
    values: tuple[ValueLeft, ...] = ()
    choices: tuple[Choice, ...] = ()
    """Commands while stuck, in the order to consider them."""


class TeamStatus(Model):
    """The present state of one quota."""

    team: Name
    parent: Name | None = None
    leaf: bool = True
    baseline_gpus: GpuCount
    quota_gpus: GpuCount
    """The value that the quota system holds."""
    planned_gpus: GpuCount | None = None
    backing_gpus: GpuCount | None = None
    would_gpus: GpuCount | None = None
    """The value that the quota would have if the shadow were real; null outside a shadow."""
    would_backing_gpus: GpuCount | None = None
    promise: bool = False
    """False: the value is advisory and no promise."""
    acknowledged: bool = False


class WouldStand(Model):
    """The figures if a shadow rollout had written its values. Units: whole GPUs."""

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
    """The healthy GPUs that the proposal is planned on."""
    planned_gpus: GpuCount
    """The healthy GPUs that the plan in force was made on."""
    inside: bool
    """Whether no cut is deeper than the approved one."""
    buffer: Derived | None = None
    """The evidence for the proposal's buffer; null: the buffer is not from health history."""
    values: tuple[ProposedValue, ...]
    """The leaf quotas that the proposal changes."""


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
    doubted_gpus: GpuCount | None = Field(default=None, exclude_if=lambda gpus: gpus is None)
    """Healthy GPUs by a newer sample that is in doubt; the backed, phantom and flex figures use it."""
    health_at: Time | None
    health_known: bool
    health_fault: str = ""
    """The fault of the health sources at the last look; empty: none."""
    assigned_gpus: GpuCount
    backed_gpus: GpuCount
    phantom_gpus: GpuCount
    flex_gpus: GpuCount
    flex_published_gpus: GpuCount | None = None
    """The surplus that a scheduler reads; None: none is published."""
    flex_grows_at: Time | None = None
    """Time at which more surplus will be published, if present health lasts."""
    buffer: Derived | None = None
    """The evidence for the plan's buffer; null: the buffer is not from health history."""
    buffer_at: Time | None = None
    """Time at which the buffer was last derived in `monitored`."""
    proposal: ProposalStatus | None = None
    would: WouldStand | None = None
    """The figures of a shadow's values, which `at_risk` and `breach_of` then describe. None: no shadow."""
    cut_gpus: GpuCount
    gate: str | None
    waiting_for: tuple[Condition, ...]
    next_at: Time | None
    """Time at which the rollout next does something by itself, if nothing happens before; null: never."""
    holds: tuple[Hold, ...]
    recorded_objections: tuple[Hold, ...] = ()
    lifts: dict[str, str] = Field(default_factory=dict)
    """By hold, the command with which the owner lifts it; holds that end by themselves are left out."""
    may_lift: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=lambda names: not names)
    """By hold, the people who may `resolve` it if no access file assigns rights."""
    at_risk: tuple[Risk, ...]
    foretold: tuple[Foretold, ...] = ()
    """Quotas that declared windows will leave without backing, the next window first."""
    breach_of: tuple[str, ...]
    undoing: UndoStatus | None
    teams: tuple[TeamStatus, ...]
    needs: str = ""
    """The task for a person; empty: none."""
    lost: str = Field(default="", exclude_if=lambda text: not text)
    """Set if Temporal stopped the rollout before its end: what to do. The other fields are the last known."""
    lifters: tuple[str, ...] = ()
    """People who may give the `resolve` in `needs`, if no access file assigns rights."""
    unguarded: bool = False
    """It took over quotas that an earlier rollout had cut, and is not buffered: nobody answers their breaches."""
    stale_after: Duration | None = None
    """The age from which its health sample is stale."""
    ended_because: str = ""
    look_failed: str = ""
    """The reason the last look at the cluster failed; empty: it did not. Earlier facts still count."""
    fence: Count = 0
    history_events: Count = 0
    runs: Count = 1


def value_text(left: ValueLeft) -> str:
    others = " (changed by others, left alone)" if left.by_others else ""
    return (
        f"{left.team} {'may have' if left.unsure else 'has'} {gpus_text(left.gpus)}, not {left.target_gpus:,}{others}"
    )
