"""What people see of a rollout: its status, and all that stands in it.

Apart from what else crosses the wire: `backstop status` is read every few seconds, and imports this alone.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.base import Count, Duration, GpuCount, Model, Name, Time, gpus_text
from models.cluster.derived_buffer import Derived
from models.cluster.windows import Foretold
from models.rollout.holds import Hold
from models.rollout.stages import Stage

UNGUARDED = "nobody guards the present quotas until the rollout is buffered"


class Condition(Model):
    """One thing a gate asks for. `until`: when it comes true by itself, if it does."""

    name: str
    met: bool
    text: str
    until: Time | None = None


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
    doubted_gpus: GpuCount | None = Field(default=None, exclude_if=lambda gpus: gpus is None)
    """Healthy GPUs by a newer sample that is in doubt. What is backed, phantom and flex is by that one."""
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
    lifters: tuple[str, ...] = ()
    """Who may give the `resolve` that it needs, where no access file says who may do what."""
    unguarded: bool = False
    """It took over quotas that an earlier run had cut, and is not buffered: nobody answers a breach of them."""
    stale_after: Duration | None = None
    """How old its health may be."""
    ended_because: str = ""
    look_failed: str = ""
    """Why the last look at the cluster failed; empty: it did not. What was known before stands."""
    fence: Count = 0
    history_events: Count = 0
    runs: Count = 1


def value_text(left: ValueLeft) -> str:
    others = " (changed by others, left alone)" if left.by_others else ""
    return (
        f"{left.team} {'may have' if left.unsure else 'has'} {gpus_text(left.gpus)}, not {left.target_gpus:,}{others}"
    )
