"""What crosses the wire between client, workflow and activities, and every name on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, field_validator, model_validator

from models.access.tickets import Ticketed
from models.access.warrants import AdmitAnswer, Spent
from models.audit_chain import AuditEntry
from models.base import (
    ActorGiven,
    Count,
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
from models.cluster.derived_buffer import HealthTerms
from models.cluster.fleet_file import merged_policy
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample, LimitMode, QuotaReading
from models.cluster.snapshot import Snapshot
from models.planning.grants import GrantOrder
from models.planning.plan import Envelope, Plan
from models.rollout.effects import Change
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout

# --- the rollout workflow --------------------------------------------------------------------


_REHEARSAL = {"notice": "0s", "acks": "none"}


class LaunchRequest(Ticketed):
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

    def policy_on(self, own: Policy) -> Policy:
        """The rollout's policy. A rehearsal does not wait for notices that nobody gets, unless that is asked for."""
        return merged_policy(own, {**_REHEARSAL, **self.policy} if self.shadow else self.policy)


class RolloutInput(Model):
    """The workflow's one argument: a launch, or the state it continues from."""

    launch: LaunchRequest
    state: Rollout | None = None
    runs: Count = 1
    """How many runs of this rollout there have been, this one included."""
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that its commands have used of late."""
    compares: bool = Field(default=False, exclude_if=lambda compares: not compares)
    """The run begins by comparing its state with the ledger: it may have been reset to its first task."""

    def next_run(self, state: Rollout, spent: tuple[Spent, ...]) -> RolloutInput:
        """What its next run begins with."""
        return RolloutInput(launch=self.launch, state=state, runs=self.runs + 1, spent=spent, compares=True)


class LaunchAnswer(Model):
    """What `launch` tells its caller: the plan, or why there is none."""

    launched: bool
    rollout: str
    cluster: Name
    stage: Stage
    reason: str = ""
    plan: Plan | None = None
    lifters: tuple[str, ...] = ()
    """Who may resolve an objection where no access file says who may do what; none: the build did not say."""
    deciders: tuple[str, ...] = ()
    """And who may resolve other holds there."""
    gave_way: str = ""
    """The rehearsal of the cluster that was aborted for it."""


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


# --- activities ------------------------------------------------------------------------------


def _drop_fields(*names: str) -> Any:
    """Fields that earlier versions sent and nobody read: for one release their calls may still be under way."""

    def without(data: Any) -> Any:
        return {k: v for k, v in data.items() if k not in names} if isinstance(data, dict) else data

    return model_validator(mode="before")(without)


class OpenRequest(Model):
    launch: LaunchRequest
    at: Time
    rollout: str = Field(default="", exclude_if=lambda rollout: not rollout)
    """The rollout as an open history has it, to be opened again; empty: it opens for the first time."""
    fence: Count = Field(default=0, exclude_if=lambda fence: not fence)
    """The last effect that the history has."""


class LedgerMark(Model):
    """Which rollout the ledger has open in a cluster, and its last effect."""

    rollout: str = ""
    counter: Count = 0


class Opening(Model):
    """An open rollout: its baseline, policy, and what an adopted one left."""

    baseline: Snapshot
    policy: Policy
    reading: QuotaReading
    health: HealthSample | None
    rollout: str = Field(default="", exclude_if=lambda rollout: not rollout)
    """The name under which effects that its own history had lost were adopted; empty: the launch's."""
    adopted_from: str = ""
    written: dict[str, GpuCount] = Field(default_factory=dict, exclude_if=lambda written: not written)
    """Of an adopted rollout: the values that are ours. Where another one stands others have changed it since."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    envelope: Envelope | None = None
    """What was approved of this cluster with the fleet rollout that launches it."""
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """Only tickets command it, roles say who may, and a cancel from Temporal undoes nothing."""
    admitted: AdmitAnswer | None = Field(default=None, exclude_if=lambda answer: answer is None)
    """What its launch stands on; None: nothing, whoever launched it is who they say."""


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
    rollout: str = ""
    """Whose plan it is; empty: an earlier build did not say."""
    at: Time


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

    _earlier = _drop_fields("scheduled", "baseline")


class AimRequest(Model):
    cluster: Name
    baseline: Snapshot
    current: dict[str, int]
    theirs: tuple[Name, ...] = Field(default=(), exclude_if=lambda teams: not teams)
    """Teams whose quotas stand as others set them: they keep that value, and it is taken off the others."""
    islands: tuple[Island, ...]
    policy: Policy
    exempt: bool
    shadow: bool = False
    rollout: str = ""
    """Whose breach it is; empty: an earlier build did not say."""
    at: Time


class EffectRequest(Model):
    """One fenced call. `limit_gpus` None: exempt from the blast radius. `order`: of a grant, what it carries out."""

    change: Change
    shadow: bool
    limit_gpus: int | None
    limit_day_gpus: int | None = None
    baseline: Snapshot | None = None
    """What an undo brings back from then on, also by who adopts the rollout: of its first effect, and of a grant."""
    order: GrantOrder | None = Field(default=None, exclude_if=lambda order: order is None)
    at: Time

    _earlier = _drop_fields("generation")


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
    """Those that no person asked for."""
    fence: Count | None = None
    """The last effect in the history that ends here; None: the build did not say."""

    _earlier = _drop_fields("cluster", "shadow")


class RolloutResult(Model):
    """How a rollout ended."""

    cluster: Name
    rollout: str
    stage: Stage
    reason: str = ""
