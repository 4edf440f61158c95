"""Messages between client, workflow and activities."""

from __future__ import annotations

from collections.abc import Iterable
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
from models.lifecycle.holds import Hold
from models.planning.grants import GrantOrder
from models.planning.plan import Envelope, Plan
from models.rollout.effects import Change
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from models.rollout.status_models import RolloutNote

# --- the rollout workflow --------------------------------------------------------------------


_REHEARSAL = {"notice": "0s", "acks": "none"}


class LaunchRequest(Ticketed):
    """A request to start a rollout. `policy` overrides the cluster's own."""

    cluster: NameGiven
    rollout: NameGiven
    owner: NameGiven
    actor: ActorGiven = ""
    """The person who launches; empty: the owner."""
    reason: Words = ""
    shadow: bool = False
    adopt: bool = False
    policy: dict[str, Any] = Field(default_factory=dict)

    fleet: ActorGiven = ""
    """The fleet rollout that launches it, whose approved plan counts as an approval here; empty: none."""
    approved_by: ActorGiven = ""

    _sized = field_validator("policy")(of_ordinary_size)

    def policy_on(self, own: Policy) -> Policy:
        """Return the rollout's policy. A rehearsal does not wait for notices that nobody gets, unless asked to."""
        return merged_policy(own, {**_REHEARSAL, **self.policy} if self.shadow else self.policy)


class RolloutInput(Model):
    """The workflow's one argument: a launch, or the state it continues from."""

    launch: LaunchRequest
    state: Rollout | None = None
    runs: Count = 1
    """The number of runs of this rollout so far, including this one."""
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that recent commands used; none is accepted twice."""
    compares: bool = Field(default=False, exclude_if=lambda compares: not compares)
    """Whether the run first compares its state with the ledger: it may have been reset to its first task."""

    def next_run(self, state: Rollout, spent: tuple[Spent, ...]) -> RolloutInput:
        """Return the argument of the next run."""
        return RolloutInput(launch=self.launch, state=state, runs=self.runs + 1, spent=spent, compares=True)


class LaunchAnswer(Model):
    """The answer to a launch: the plan, or the reason there is none."""

    launched: bool
    rollout: str
    cluster: Name
    stage: Stage
    reason: str = ""
    plan: Plan | None = None
    lifters: tuple[str, ...] = ()
    """People who may resolve an objection if no access file assigns rights; empty: an earlier build did not say."""
    deciders: tuple[str, ...] = ()
    """People who may resolve other holds if no access file assigns rights."""
    gave_way: str = ""
    """The open shadow rollout that was aborted for this one; empty: none."""


class CommandAnswer(Model):
    """The consequence of a command, in one sentence."""

    cluster: Name
    command: Command
    stage: Stage
    said: str
    undo: str = ""
    """How to undo the command, or why nothing can; empty: an earlier build did not say."""


class HealthChanged(Model):
    """A signal of the watch that health crossed an edge: look now."""

    cluster: Name
    at: Time
    why: Words


def plain_sight(generation: int, islands: Iterable[Island], *, guarded: bool) -> str:
    """Return `why` of a cluster with fresh health and no windows, where all is well. `guarded`: and it is backed."""
    return "; ".join([f"generation {generation}", "fresh", *["backed"] * guarded, *health_texts(islands)])


def health_texts(islands: Iterable[Island]) -> list[str]:
    return [f"{island.name} {island.healthy_gpus}/{island.total_gpus}" for island in islands]


# --- activities ------------------------------------------------------------------------------


def _drop_fields(*names: str) -> Any:
    """Drop fields that earlier versions sent and nobody read: their calls may still be under way for one release."""

    def without(data: Any) -> Any:
        return {k: v for k, v in data.items() if k not in names} if isinstance(data, dict) else data

    return model_validator(mode="before")(without)


class OpenRequest(Model):
    launch: LaunchRequest
    at: Time
    rollout: str = Field(default="", exclude_if=lambda rollout: not rollout)
    """The rollout of an open history that is opened again; empty: this is the first opening."""
    fence: Count = Field(default=0, exclude_if=lambda fence: not fence)
    """The counter of the last effect in that history."""


class LedgerMark(Model):
    """The rollout that the ledger has open in a cluster, and its last effect."""

    rollout: str = ""
    counter: Count = 0


class Opening(Model):
    """An open rollout: its baseline, its policy, and the state that an adopted one left."""

    baseline: Snapshot
    policy: Policy
    reading: QuotaReading
    health: HealthSample | None
    rollout: str = Field(default="", exclude_if=lambda rollout: not rollout)
    """The name under which it adopted effects that its own history had lost; empty: the launch's."""
    adopted_from: str = ""
    written: dict[str, GpuCount] = Field(default_factory=dict, exclude_if=lambda written: not written)
    """For an adopted rollout: the values that Backstop wrote. Others have changed quotas that differ now."""
    modes: dict[str, LimitMode] = Field(default_factory=dict)
    envelope: Envelope | None = None
    """The envelope approved for this cluster with the fleet rollout that launches it; None: none."""
    ticketed: bool = Field(default=False, exclude_if=lambda so: not so)
    """The rollout obeys only tickets, roles assign rights, and a cancel from Temporal undoes nothing."""
    admitted: AdmitAnswer | None = Field(default=None, exclude_if=lambda answer: answer is None)
    """The evidence for the launch; None: there is none, and the launcher's word is taken."""


class DraftRequest(Model):
    """A request for a plan. `baseline` None: today's values are the baseline.

    `frozen`: the earlier baseline. Its ramp step is kept, and with `keep_usage` (approved once) its usage too.
    """

    cluster: Name
    policy: Policy
    baseline: Snapshot | None = None
    frozen: Snapshot | None = None
    keep_usage: bool = False
    islands: tuple[Island, ...] | None = None
    """The islands to plan on: the believed ones, while a newer sample is in doubt. None: those of the latest sample."""
    promised: GpuCount | None = None
    """GPUs that a buffer from health history lets the cluster promise now; the new buffer moves from there by steps."""
    promised_of: GpuCount | None = None
    """The cluster's total GPUs at that promise; None: as many as now."""
    rollout: str = ""
    """The rollout that the plan is for; empty: an earlier build did not say."""
    at: Time


class Drafted(Model):
    baseline: Snapshot
    reading: QuotaReading
    plan: Plan


class ObserveRequest(Model):
    """A request for a look. `values` None: test the present values."""

    cluster: Name
    values: dict[str, int] | None = None
    gpus_per_node: PositiveCount = 8
    generation: Count | None = None
    """The generation that the rollout knows; the answer names who changed quotas after it."""
    flex_after: timedelta | None = None
    """Report the surplus, and how much of it has lasted this long; None: do not."""
    long_run: timedelta | None = None
    """Report the usual health over this time; None: do not."""
    derive: HealthTerms | None = None
    """Report the buffer that health history asks for by these terms; None: do not."""
    shadow: bool = False
    """Compute the surplus for the tested values, which a shadow never writes, and not for the present ones."""
    plausible_drop: Share | None = None
    max_breaching_clusters: PositiveCount | None = None
    """The most clusters of one source that may fall; None: falls are not judged, but a present doubt is reported."""
    at: Time

    _earlier = _drop_fields("scheduled", "baseline")


class AimRequest(Model):
    cluster: Name
    baseline: Snapshot
    current: dict[str, int]
    theirs: tuple[Name, ...] = Field(default=(), exclude_if=lambda teams: not teams)
    """Teams whose quotas keep the values that others set; these GPUs are taken from the other teams."""
    islands: tuple[Island, ...]
    policy: Policy
    exempt: bool
    shadow: bool = False
    rollout: str = ""
    """The rollout in breach; empty: an earlier build did not say."""
    at: Time


class EffectRequest(Model):
    """A fenced call. `limit_gpus` None: exempt from the blast radius. `order`: the order that a grant carries out."""

    change: Change
    shadow: bool
    limit_gpus: int | None
    limit_day_gpus: int | None = None
    baseline: Snapshot | None = None
    """The baseline that undos restore from then on, also an adopter's; set with the first effect and with a grant."""
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
    """The task for a person, as the registry shows it; empty: none."""
    held: tuple[Hold, ...] | None = None
    """All holds except the calendar's, as the registry shows them; None: an earlier build did not say."""
    note: RolloutNote | None = None
    """What else the registry shows for reports; None: an earlier build did not say."""
    rollbacks: Count = 0
    """Rollbacks that no person asked for."""
    fence: Count | None = None
    """The counter of the last effect in the history that ends here; None: an earlier build did not say."""

    _earlier = _drop_fields("cluster", "shadow")


class RolloutResult(Model):
    """The end of a rollout."""

    cluster: Name
    rollout: str
    stage: Stage
    reason: str = ""
