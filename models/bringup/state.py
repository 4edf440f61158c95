"""The state of one bring-up: the progress of each step, the state of each check, the quotas handed over.

The state is a value, like that of a rollout: events make another one (models/bringup/reducers.py,
models/bringup/commands.py), models/bringup/decide.py decides from it, and continue-as-new carries it. Source:
docs/bringup.md; docs/adr/0054.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, TypeVar

from pydantic import Field

from models.audit_chain import BACKSTOP, AuditKind
from models.base import Count, Duration, GpuCount, Model, Name, PositiveCount, Text, Time, Words
from models.bringup.check_state import CheckState, Terms
from models.bringup.entry import BringupEntry
from models.bringup.recipe import CAPACITY, ClusterRecipe, RecipeStep, RunInstructions
from models.bringup.runs import TAIL_LENGTH, UNDO_SUFFIX, RunKey, Runner
from models.bringup.soak_clock import SoakClock
from models.bringup.stages import BRINGUP_TRANSITIONS, BringupStage
from models.cluster.island import Island
from models.lifecycle.outgoing import ArchivePlace, Lifecycle
from models.notices import NoticeKind
from models.temporal_names import bringup_workflow_id

MOST_ATTEMPTS = 1000
"""The most starts of one step in one bring-up. The attempts of the cluster's next bring-up are numbered from here."""
_ZERO = timedelta(0)
_CAPACITY_EVERY = timedelta(minutes=5)


class StepPhase(StrEnum):
    WAITING = "waiting"
    """The step waits for those before it, for its next try, or for a person."""
    STARTING = "starting"
    """The start is noted; whether the step began is not known yet."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The step failed for good: a person gives retry or skip."""
    UNCLEAR = "unclear"
    """Nobody knows whether the step runs, ran, or never began: a person looks, and gives retry or skip."""
    SKIPPED = "skipped"

    @property
    def under_way(self) -> bool:
        return self in (StepPhase.STARTING, StepPhase.RUNNING)

    @property
    def is_over(self) -> bool:
        """True if later steps may run."""
        return self in (StepPhase.DONE, StepPhase.SKIPPED)

    @property
    def needs_person(self) -> bool:
        return self in (StepPhase.FAILED, StepPhase.UNCLEAR)


class StepRun(Model):
    """A step, or its undo, with the latest of its runs."""

    phase: StepPhase = StepPhase.WAITING
    attempt: Count = 0
    """The number of starts noted in this bring-up."""
    starts: Count = 0
    """The number of starts that may have left something behind; a refused start does not count."""
    tries: Count = 0
    """Failures in a row since a person last gave a command about the step."""
    noted_at: Time | None = None
    """Time at which the latest start was noted."""
    seen: bool = False
    """True: the runner has reported on this attempt."""
    started_at: Time | None = None
    ended_at: Time | None = None
    said: Text = ""
    unheard: Text = ""
    """The runner's latest answer if it says nothing about this attempt; empty otherwise."""
    code: int | None = None
    tail: str = Field(default="", max_length=TAIL_LENGTH)
    link: str = ""
    host: str = ""
    """For a command: the host that started it."""
    next_at: Time | None = None
    """The earliest time of the next try or the next look for the run; None: there is no need to wait."""
    stopping: Text = ""
    """The reason it is being stopped; empty: it is not."""
    by: Text = ""
    """The person who checked the step in or skipped it; empty: nobody."""
    reason: Words = ""

    @property
    def may_stand(self) -> bool:
        """True if it may have left something."""
        return self.starts > 0 or self.phase.is_over


class HeldBy(Model):
    """A person's hold: no step starts."""

    actor: Text
    reason: Words
    at: Time


class Production(Model):
    """The quotas handed over. Units: whole GPUs, by team."""

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
    """Time at which the undo begins even if jobs run; None: only after they are gone."""
    empty: bool = False
    """True: the undo may begin, because no quota and no job is left or the deadline has passed."""
    said: Text = ""
    looked_at: Time | None = None
    since: Time | None = None
    """Time of the first look that found what `said` says; None: there was no look."""


class WaitsFor(StrEnum):
    """The party that a bring-up waits for, as its time is accounted."""

    SUPPLY = "supply"
    RUNNER = "runner"
    PERSON = "person"
    CHECK = "check"
    ROLLOUT = "rollout"


class Bringup(Lifecycle):
    """A bring-up. Times are the workflow's clock, in UTC."""

    entry: BringupEntry
    recipe: ClusterRecipe
    number: PositiveCount = 1
    """The number of this bring-up among the cluster's bring-ups, from 1 on."""
    entered_by: Text
    entered_at: Time
    stage: BringupStage = BringupStage.PLANNED
    stage_at: Time
    blocked_from: BringupStage | None = None
    """The stage in which it goes on once nothing blocks it; None: it is not blocked."""
    because: Text = ""
    """The reason why it is blocked or has ended; empty: neither."""
    fault: Text = ""
    """Why the hand-over or the wind-down failed; empty: neither did. `retry` repeats it."""
    hold: HeldBy | None = None
    runs: dict[str, StepRun] = Field(default_factory=dict)
    """Runs by step; those of undos by STEP/undo."""
    supply: CheckState | None = None
    """The state of the supply check; None: the recipe has none."""
    checks: dict[str, CheckState] = Field(default_factory=dict)
    clock: SoakClock = SoakClock()
    made_at: Time | None = None
    """Time at which the last step was done; None: some step is not done."""
    validating_since: Time | None = None
    """Time from which `validate_within` counts; None: some step is not done."""
    islands: tuple[Island, ...] = ()
    """The islands that the capacity check last saw."""
    production: Production | None = None
    short_of: GpuCount = 0
    """Installed GPUs at the last try to grant owed GPUs. Once there are more, Backstop tries again."""
    short_of_healthy: GpuCount = 0
    """Healthy GPUs at that try. They count too: an installed node may become healthy later."""
    leaving: Leaving | None = None

    touches: Count = 0
    """The number of people's commands, except the entry and check-ins."""
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
        """The stage it works towards: the earlier one while it is blocked."""
        return self.blocked_from or self.stage

    @property
    def gpus_there(self) -> tuple[int, int]:
        """Installed and healthy GPUs that the capacity check last saw."""
        return sum(i.total_gpus for i in self.islands), sum(i.healthy_gpus for i in self.islands)

    def key(self, run: str) -> RunKey:
        """Return the key of the latest start of a step or its undo."""
        return RunKey(
            cluster=self.cluster, attempt=(self.number - 1) * MOST_ATTEMPTS + self.runs[run].attempt, step=run
        )

    def instructions(self, run: str) -> RunInstructions:
        """Return the recipe's instructions for a step or its undo."""
        return self.recipe.steps[run.removesuffix(UNDO_SUFFIX)].runs(undo=run.endswith(UNDO_SUFFIX))

    def runner(self, run: str) -> Runner:
        """Return the runner of a step or its undo."""
        return self.recipe.steps[run.removesuffix(UNDO_SUFFIX)].runner(undo=run.endswith(UNDO_SUFFIX))

    def steps(self) -> Iterator[tuple[RecipeStep, StepRun]]:
        """Iterate over the steps of the recipe, in its order, each with its run."""
        return ((step, self.runs[step.name]) for step in self.recipe.provision)

    def undo(self, step: str) -> StepRun | None:
        """Return the run of the step's undo; None if it has none, or has not come to it."""
        return self.runs.get(step + UNDO_SUFFIX)

    @property
    def all_made(self) -> bool:
        return all(run.phase.is_over for _, run in self.steps())

    def rules(self) -> dict[str, Terms]:
        """Return the terms of each check."""
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
        """Queue a notice to the owner. `commands`: the effect of each, and the line to type."""
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
        """Add the time since the last accounting to its stage, and to the party it waits for."""
        passed = now - self.accounted_at
        if passed <= _ZERO or self.stage.has_ended:
            return self
        whom = waits_for(self)
        waited = self.waited if whom is None else put_down(self.waited, whom, passed)
        return self.but(accounted_at=now, lasted=put_down(self.lasted, self.stage, passed), waited=waited)


_Account = TypeVar("_Account")


def put_down(times: Mapping[_Account, timedelta], account: _Account, passed: timedelta) -> dict[_Account, timedelta]:
    """Return the times with this much more in one account."""
    return {**times, account: times.get(account, _ZERO) + passed}


def bringup_key(cluster: str, number: int) -> str:
    """Return the name of one of the cluster's bring-ups in fences, receipts and archived entries."""
    return f"{bringup_workflow_id(cluster)}/{number}"


def waits_for(bringup: Bringup) -> WaitsFor | None:
    """Return the party that the bring-up waits for; None if there is none."""
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
    """Return the touches that wait for a person now."""
    over = {step.name for step, run in bringup.steps() if run.phase.is_over}
    return [
        step
        for step, run in bringup.steps()
        if step.touch and run.phase is StepPhase.WAITING and all(name in over for name in step.after)
    ]
