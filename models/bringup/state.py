"""The state of one bring-up: how far each step has come, how each check stands, what was handed over.

It is a value, as a rollout's is: what happens makes another one (models/bringup/reducers.py,
models/bringup/commands.py), what is next is decided from it (models/bringup/decide.py), and continue-as-new carries
it. Source: docs/bringup.md; docs/adr/0054.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, TypeVar

from pydantic import Field

from models.audit_chain import BACKSTOP, AuditKind
from models.base import Count, Duration, GpuCount, Model, Name, PositiveCount, Text, Time, Words
from models.bringup.entry import BringupEntry
from models.bringup.recipe import CAPACITY, ClusterRecipe, RecipeStep
from models.bringup.runs import TAIL_LENGTH, UNDO_SUFFIX, RunKey
from models.bringup.soak import CheckState, SoakClock, Terms
from models.bringup.stages import BRINGUP_TRANSITIONS, BringupStage
from models.cluster.island import Island
from models.lifecycle.outgoing import ArchivePlace, Lifecycle
from models.notices import NoticeKind

MOST_ATTEMPTS = 1000
"""Starts of one step in one bring-up; the next bring-up of the cluster counts on from here."""
_ZERO = timedelta(0)
_CAPACITY_EVERY = timedelta(minutes=5)


class StepPhase(StrEnum):
    WAITING = "waiting"
    """For what comes before it, for its next try, or for a person's touch."""
    STARTING = "starting"
    """Its start is noted; whether it began is not known yet."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """For good: a person says retry or skip."""
    UNCLEAR = "unclear"
    """Nobody knows whether it runs, ran, or never began: a person looks, and says retry or skip."""
    SKIPPED = "skipped"

    @property
    def under_way(self) -> bool:
        return self in (StepPhase.STARTING, StepPhase.RUNNING)

    @property
    def is_over(self) -> bool:
        """What comes after it may run."""
        return self in (StepPhase.DONE, StepPhase.SKIPPED)

    @property
    def needs_person(self) -> bool:
        return self in (StepPhase.FAILED, StepPhase.UNCLEAR)


class StepRun(Model):
    """A step, or its undo, and the latest of its runs."""

    phase: StepPhase = StepPhase.WAITING
    attempt: Count = 0
    """Starts that were noted, in this bring-up."""
    starts: Count = 0
    """Those of which something may be left: a start that the runner refused is none."""
    tries: Count = 0
    """Failures in a row since a person last spoke of it."""
    noted_at: Time | None = None
    """When the latest start was noted."""
    seen: bool = False
    """Its runner has said something of this attempt."""
    started_at: Time | None = None
    ended_at: Time | None = None
    said: Text = ""
    unheard: Text = ""
    """The latest answer of its runner, where that says nothing of this attempt; empty: it does, or was not asked."""
    code: int | None = None
    tail: str = Field(default="", max_length=TAIL_LENGTH)
    link: str = ""
    host: str = ""
    """Of a command: where it was started."""
    next_at: Time | None = None
    """Not before then: its next try, or the next look for it."""
    stopping: Text = ""
    """Why it is being stopped; empty: it is not."""
    by: Text = ""
    """Who touched or skipped it."""
    reason: Words = ""

    @property
    def may_stand(self) -> bool:
        """Something of it may stand."""
        return self.starts > 0 or self.phase.is_over


class HeldBy(Model):
    """A person's hold: nothing new is started."""

    actor: Text
    reason: Words
    at: Time


class Production(Model):
    """What was handed over. Units: whole GPUs, by team."""

    at: Time
    plan_hash: str = ""
    granted: dict[Name, GpuCount] = Field(default_factory=dict)
    owed: dict[Name, GpuCount] = Field(default_factory=dict)
    probation_until: Time


class Leaving(Model):
    """A cluster on its way out of production."""

    actor: Text
    reason: Words
    deadline: Time | None = None
    """When the undo begins even where jobs run; None: never before they are gone."""
    empty: bool = False
    """No quota stands, and no job runs, or the deadline has passed: the undo may begin."""
    said: Text = ""
    looked_at: Time | None = None
    since: Time | None = None
    """The first look that said this."""


class WaitsFor(StrEnum):
    """Whom a bring-up waits for, as it is accounted."""

    SUPPLY = "supply"
    RUNNER = "runner"
    PERSON = "person"
    CHECK = "check"
    ROLLOUT = "rollout"


class Bringup(Lifecycle):
    """One bring-up. Times are the workflow's clock, in UTC."""

    entry: BringupEntry
    recipe: ClusterRecipe
    number: PositiveCount = 1
    """Which bring-up of the cluster this is."""
    entered_by: Text
    entered_at: Time
    stage: BringupStage = BringupStage.PLANNED
    stage_at: Time
    blocked_from: BringupStage | None = None
    """Where it goes on once nothing blocks it; None: it is not blocked."""
    because: Text = ""
    """Why it is blocked, or how it ended."""
    fault: Text = ""
    """Why it could not be handed over, or wound down; a retry tries again."""
    hold: HeldBy | None = None
    runs: dict[str, StepRun] = Field(default_factory=dict)
    """By step; of undos by STEP/undo."""
    supply: CheckState | None = None
    """None: nothing has to be granted."""
    checks: dict[str, CheckState] = Field(default_factory=dict)
    clock: SoakClock = SoakClock()
    made_at: Time | None = None
    """When the last step was done; None: it is not."""
    validating_since: Time | None = None
    """From here `validate_within` counts."""
    islands: tuple[Island, ...] = ()
    """What came, as the capacity check last found it."""
    production: Production | None = None
    short_of: GpuCount = 0
    """GPUs seen when what is owed was last looked at: it is looked at again when there are more."""
    short_of_healthy: GpuCount = 0
    """Likewise, of healthy ones: a node may be installed, and register later."""
    leaving: Leaving | None = None

    touches: Count = 0
    """What people did beside entry and check-in."""
    check_ins: Count = 0
    accounted_at: Time
    lasted: dict[BringupStage, Duration] = Field(default_factory=dict)
    waited: dict[WaitsFor, Duration] = Field(default_factory=dict)

    @property
    def cluster(self) -> str:
        return self.entry.cluster

    @property
    def id(self) -> str:
        return bringup_workflow_id(self.cluster)

    @property
    def direction(self) -> BringupStage:
        """Where it is going: of a blocked one where it came from."""
        return self.blocked_from or self.stage

    @property
    def gpus_there(self) -> tuple[int, int]:
        """GPUs installed, and healthy ones, as the capacity check last found them."""
        return sum(i.total_gpus for i in self.islands), sum(i.healthy_gpus for i in self.islands)

    def key(self, run: str) -> RunKey:
        """Of the latest start of a step or its undo."""
        return RunKey(
            cluster=self.cluster, attempt=(self.number - 1) * MOST_ATTEMPTS + self.runs[run].attempt, step=run
        )

    def steps(self) -> Iterator[tuple[RecipeStep, StepRun]]:
        """The steps of the recipe, in its order."""
        return ((step, self.runs[step.name]) for step in self.recipe.provision)

    def undo(self, step: str) -> StepRun | None:
        """How its undo stands; None: it has none, or has not come to it."""
        return self.runs.get(step + UNDO_SUFFIX)

    @property
    def all_made(self) -> bool:
        return all(run.phase.is_over for _, run in self.steps())

    def rules(self) -> dict[str, Terms]:
        """How often each check is asked."""
        capacity = self.recipe.capacity
        own = {CAPACITY: Terms(_CAPACITY_EVERY if capacity is None else capacity.every)}
        rules = own | {c.name: Terms(c.every, c.once) for c in self.recipe.checks}
        if self.direction is not BringupStage.IN_PRODUCTION:
            return rules
        return {name: Terms(self.recipe.watch_every, terms.once) for name, terms in rules.items()}

    def with_run(self, run: str, **changes: Any) -> Self:
        return self.but(runs={**self.runs, run: self.runs[run].but(**changes)})

    @property
    def place(self) -> ArchivePlace:
        return ArchivePlace(bringup_key(self.cluster, self.number), self.cluster, self.id)

    def record(self, kind: AuditKind, text: str, at: datetime, **more: Any) -> Self:
        return super().record(kind, text, at, **{"stage": self.stage.value, **more})

    def enter_stage(self, stage: BringupStage, at: datetime, why: str, actor: str = BACKSTOP) -> Self:
        assert (self.stage, stage) in BRINGUP_TRANSITIONS, (self.stage, stage)
        moved = self.but(
            stage=stage,
            stage_at=at,
            blocked_from=self.stage if stage is BringupStage.BLOCKED else None,
            because=why if stage is BringupStage.BLOCKED or stage.has_ended else "",
        )
        return moved.record(
            AuditKind.TRANSITION,
            f"bring-up: {self.stage} -> {stage}: {why}",
            at,
            actor=actor,
            before=self.stage.value,
            after=stage.value,
        )

    def notify_owner(self, detail: str, *commands: tuple[str, str]) -> Self:
        """With a notice to the owner in the mail; `commands`: what each does, and the line to type."""
        lines = [{"does": does, "line": line} for does, line in commands]
        return self.with_notices(
            self.place.prefix,
            "told",
            (self.entry.owner,),
            kind=NoticeKind.BRINGUP,
            cluster=self.cluster,
            owner=self.entry.owner,
            stage=self.stage.value,
            detail=detail,
            facts={"commands": lines} if lines else {},
        )

    def account_time(self, now: datetime) -> Self:
        """With the time since it was last accounted put down: to its stage, and to what it waited for."""
        passed = now - self.accounted_at
        if passed <= _ZERO or self.stage.has_ended:
            return self
        whom = waits_for(self)
        waited = self.waited if whom is None else put_down(self.waited, whom, passed)
        return self.but(accounted_at=now, lasted=put_down(self.lasted, self.stage, passed), waited=waited)


_Account = TypeVar("_Account")


def put_down(times: Mapping[_Account, timedelta], account: _Account, passed: timedelta) -> dict[_Account, timedelta]:
    """The times with so much more for one of them."""
    return {**times, account: times.get(account, _ZERO) + passed}


def bringup_workflow_id(cluster: str) -> str:
    """One id per cluster, so that two bring-ups of it cannot run at once."""
    return f"bringup/{cluster}"


def bringup_key(cluster: str, number: int) -> str:
    """One of the cluster's bring-ups, as its fences, receipts and archived entries name it."""
    return f"{bringup_workflow_id(cluster)}/{number}"


def retires_cluster(cluster: str) -> str:
    """How the id begins of a rollout that takes the quotas of a retired cluster to nothing."""
    return f"retire-{cluster}-"


def waits_for(bringup: Bringup) -> WaitsFor | None:
    """Whom it waits for; None: nobody."""
    if bringup.stage.has_ended or bringup.stage is BringupStage.IN_PRODUCTION:
        return None
    if bringup.hold is not None or bringup.stage is BringupStage.BLOCKED:
        return WaitsFor.PERSON
    match bringup.stage:
        case BringupStage.PLANNED:
            return WaitsFor.SUPPLY
        case BringupStage.PROVISIONING:
            if bringup.all_made:
                return WaitsFor.CHECK
            busy = any(run.phase.under_way or run.next_at is not None for run in bringup.runs.values())
            return WaitsFor.RUNNER if busy or not touchable_steps(bringup) else WaitsFor.PERSON
        case BringupStage.PROVISIONED:
            return WaitsFor.CHECK
        case BringupStage.RETIRING if bringup.leaving is not None and not bringup.leaving.empty:
            return WaitsFor.ROLLOUT
    return WaitsFor.RUNNER


def touchable_steps(bringup: Bringup) -> list[RecipeStep]:
    """The touches that wait for a person now."""
    over = {step.name for step, run in bringup.steps() if run.phase.is_over}
    return [
        step
        for step, run in bringup.steps()
        if step.touch and run.phase is StepPhase.WAITING and all(name in over for name in step.after)
    ]
