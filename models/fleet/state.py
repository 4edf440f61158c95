"""The state of one fleet rollout: its clusters, the wave of each, and how far each has come.

The state is a value, like that of a cluster's rollout (models/rollout/state.py): events make another one
(models/fleet/reducers.py, models/fleet/commands.py), models/fleet/decide.py decides from it, and continue-as-new
carries it. Source: docs/design.md, "The cut ladder" (waves, headroom); docs/adr/0014.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

from pydantic import Field

from models.audit_chain import BACKSTOP, AuditKind
from models.base import Count, Duration, GpuCount, Model, Name, PositiveCount, Share, Time
from models.cluster.policy import TIERS, Tier
from models.lifecycle.holds import Hold, HoldKind
from models.lifecycle.outgoing import ArchivePlace, Lifecycle
from models.notices import NoticeKind

FLEET = "(fleet)"
"""The name in place of a cluster in entries and notices about the fleet rollout itself."""
BREAKER, PILOTS, PAUSED, TROUBLE = "breaker", "pilots", "paused", "trouble"
"""Ids of a fleet rollout's holds."""

_NAMED = 5
"""The most clusters that a notice names."""


class Pace(Model):
    """The speed of a fleet rollout, and the limits at which it stops by itself."""

    parallel: PositiveCount = 10
    """The most clusters on their way to `monitored` at once."""
    pilot_soak: Duration = timedelta(days=3)
    """The time for which all pilots must have been monitored before the first wave."""
    bake: Duration = timedelta(hours=24)
    """The time between the end of a wave and the start of the next one."""
    budget_per_hour: GpuCount = 512
    budget_per_day: GpuCount = 4096
    """Blast radius: the most GPUs by which quotas may change in a day, |change| summed over the fleet."""
    max_failed: Share = Fraction(10, 100)
    """The circuit breaker: if a larger share of clusters rolls back, no new one is started."""
    breaker_clusters: PositiveCount = 10
    """The failure share is of at least this many clusters, so that one early failure does not trip the breaker."""
    recheck: Duration = timedelta(minutes=10)
    """The interval at which clusters that cannot start now are tried again."""


class Wave(StrEnum):
    """The order of a fleet rollout.

    A cluster's own wave is the deepest tier that its unlimited plan cuts; one whose unlimited plan does not suffice
    comes after all waves.
    """

    PILOT = "pilot"
    UNALLOCATED = Tier.UNALLOCATED.value
    UNSCHEDULED = Tier.UNSCHEDULED.value
    IDLE = Tier.IDLE.value
    BUSY = Tier.BUSY.value
    AFTER = "after"

    @property
    def number(self) -> int:
        """0 for pilots, then 1 to 4, and 5 for clusters after all waves."""
        return WAVES.index(self)

    @property
    def full_name(self) -> str:
        if self is Wave.AFTER:
            return "what comes after all waves"
        return "the pilot wave" if self is Wave.PILOT else f"wave {self.number} ({self})"

    @property
    def place_text(self) -> str:
        """The place of its clusters in a sentence."""
        if self is Wave.AFTER:
            return "after all waves"
        return "among the pilots" if self is Wave.PILOT else f"in {self.full_name}"

    @staticmethod
    def of(tier: Tier) -> Wave:
        return Wave(tier.value)


WAVES: tuple[Wave, ...] = (Wave.PILOT, *(Wave(tier.value) for tier in TIERS), Wave.AFTER)


class MemberState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    """Picked and counted in the budget; its rollout is being opened."""
    RUNNING = "running"
    """Its rollout is open and on its way."""
    DONE = "done"
    """Its rollout is monitored."""
    FAILED = "failed"
    """Its rollout rolled back or is stuck; it may still reach `monitored` by itself."""
    ENDED = "ended"
    """Somebody aborted or closed its rollout."""
    SKIPPED = "skipped"

    @property
    def is_settled(self) -> bool:
        """True if the next wave does not wait for it."""
        return self in (MemberState.DONE, MemberState.FAILED, MemberState.ENDED, MemberState.SKIPPED)


class Member(Model):
    """A cluster of a fleet rollout."""

    cluster: Name
    wave: Wave
    moved: bool = False
    """A person chose its wave; fresh snapshots do not change it."""
    cut_gpus: GpuCount = 0
    """GPUs that its plan cuts: at first by the approved fleet plan, then by the latest plan."""
    state: MemberState = MemberState.WAITING
    rollout: str = ""
    stage: str = ""
    """The last noted stage of its rollout; empty before it is open."""
    rollbacks: Count = 0
    """The number of its rollout's rollbacks, as last noted."""
    needs: str = ""
    """The task for a person in its rollout; empty: none."""
    joined: bool = False
    """Its rollout was open before the fleet rollout, which only watches that rollout and never undoes it."""
    started_at: Time | None = None
    done_at: Time | None = None
    """Time at which this fleet rollout saw it become monitored; None: it did not see that."""
    failed_at: Time | None = None
    forgiven: bool = False
    """A person let the fleet rollout go on after this cluster's failure, which no longer counts."""
    held: str = ""
    """Why it did not start at the last try, or the reason of its skip; empty: none."""
    held_until: Time | None = None
    retry_at: Time | None = None
    """The earliest time of the next launch after a refused one."""
    waits: str = ""
    """Why it was not picked though it could start; in a status, also what its rollout waits for."""


class BudgetLeft(Model):
    """GPUs that may still be moved, whoever moves them, by the ledger's book."""

    hour_gpus: GpuCount
    day_gpus: GpuCount
    short_for: str = ""
    """The first cluster whose cut did not fit the budget at the last pick; empty: all fitted."""


class FleetStage(StrEnum):
    PLANNED = "planned"
    """Its plan waits for approval."""
    RUNNING = "running"
    ABORTING = "aborting"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def has_ended(self) -> bool:
        return self in (FleetStage.DONE, FleetStage.ABORTED)


class FleetRollout(Lifecycle):
    """A fleet rollout. Times are the workflow's clock, in UTC; members are keyed by cluster."""

    id: str
    owner: str
    shadow: bool = False
    launched_at: Time
    pace: Pace
    policy: dict[str, Any] = Field(default_factory=dict)
    """Settings that override each cluster's own policy."""
    stage: FleetStage = FleetStage.PLANNED
    entered_at: Time
    ended_because: str = ""
    aborted_by: str = ""
    """The person whose abort is being carried out; empty: nobody, or an earlier build took the abort."""
    plan_hash: str = ""
    approved_by: str = ""
    members: dict[str, Member] = Field(default_factory=dict)
    wave: Wave = Wave.PILOT
    """The wave in which clusters start now; those of earlier waves may still start."""
    settled_at: Time | None = None
    """Time at which the last cluster of `wave` was through; the soak or bake starts then. None: some are not."""
    waived: bool = False
    """`promote` waived the rest of this wave's soak or bake."""
    holds: tuple[Hold, ...] = ()
    picked_at: Time | None = None
    """Time of the last pick."""
    found_none: bool = False
    """The last pick could start no cluster."""
    left: BudgetLeft | None = None
    """The budget left after the last pick; None: unknown."""
    undo: bool = False
    """While aborting: also undo what the fleet rollout has done."""
    asked: tuple[str, ...] = ()
    """While aborting: clusters whose rollouts took the abort."""

    def in_state(self, *states: MemberState) -> Iterator[Member]:
        return (m for m in self.members.values() if m.state in states)

    @property
    def begun_members(self) -> list[Member]:
        """Members whose rollout this one started, or joined while it was on its way."""
        return [m for m in self.members.values() if m.state is not MemberState.WAITING and m.rollout]

    @property
    def waiting_members(self) -> list[Member]:
        """Members whose wave has come, and which have not started."""
        return [m for m in self.in_state(MemberState.WAITING) if m.wave.number <= self.wave.number]

    @property
    def members_in_flight(self) -> list[Member]:
        """Members on their way by themselves, in whatever wave."""
        return [m for m in self.in_state(MemberState.STARTING, MemberState.RUNNING) if not m.needs]

    @property
    def in_flight(self) -> int:
        """The number of clusters that count against `parallel`, without those that wait for a person."""
        return len(self.members_in_flight)

    @property
    def failed_members(self) -> list[Member]:
        """Members that rolled back since a person last let the fleet go on."""
        return [m for m in self.members.values() if m.failed_at is not None and not m.forgiven]

    @property
    def to_abort(self) -> list[Member]:
        """Members whose rollouts end with this one, the newest first.

        Without undo: those that have changed nothing yet. With undo: all that it started. Rollouts that others opened
        stay.
        """
        open_ = [m for m in self.begun_members if not m.joined and m.stage not in ("aborted", "closed")]
        return sorted(
            (m for m in open_ if self.undo or m.stage in ("planned", "")),
            key=lambda member: (member.started_at is not None, member.started_at, member.cluster),
            reverse=True,
        )

    def hold(self, hold_id: str) -> Hold | None:
        return next((h for h in self.holds if h.id == hold_id), None)

    @property
    def place(self) -> ArchivePlace:
        return ArchivePlace(self.id, FLEET, self.id)

    def enter_stage(self, stage: FleetStage, at: datetime, why: str, actor: str = BACKSTOP) -> Self:
        moved = self.but(stage=stage, entered_at=at)
        return moved.record(
            AuditKind.TRANSITION,
            f"fleet rollout: {self.stage} -> {stage}: {why}",
            at,
            actor=actor,
            before=self.stage.value,
            after=stage.value,
        )

    def add_hold(self, hold_id: str, kind: HoldKind, reason: str, at: datetime, actor: str = BACKSTOP) -> Self:
        """Add a hold, and notify the owner unless a person set it."""
        hold = Hold(id=hold_id, kind=kind, reason=reason, actor=actor, at=at)
        held = self.but(holds=(*(h for h in self.holds if h.id != hold_id), hold)).record(
            AuditKind.HOLD, f"hold {hold_id}: {reason}", at, actor=actor, hold=hold_id
        )
        return held if actor != BACKSTOP else held.notify_owner(reason)

    def notify_owner(self, detail: str) -> Self:
        """Queue a notice to the owner."""
        return self.with_notices(
            self.id,
            "fleet",
            (self.owner,),
            kind=NoticeKind.FLEET_HELD,
            cluster=FLEET,
            owner=self.owner,
            stage=self.stage.value,
            detail=detail,
            shadow=self.shadow,
            facts={"left": sorted(m.cluster for m in self.failed_members)[:_NAMED]},
        )
