"""What crosses the wire for a bring-up: its start, commands, and what its activities are asked and answer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from pydantic import Field

from models.access.warrants import Spent
from models.audit_chain import AuditEntry
from models.base import (
    Count,
    Duration,
    GpuCount,
    Model,
    Name,
    PositiveCount,
    Text,
    Time,
    Words,
    count_text,
    gpus_text,
)
from models.bringup.checks import CheckAnswer, CheckOrder, Colour
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunOrder, RunReport
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, put_down
from models.cluster.island import Island
from models.cluster.sources import SlurmSource
from models.lifecycle.orders import Order

BRINGUP_WORKFLOW = "Bringup"
BRINGUP_QUEUE = "backstop-bringups"
"""Of looks, checks and what is followed: most of it waits, and takes nobody's slot meanwhile."""
_RUNS_QUEUE = "backstop-runs-"


def runs_queue(host: str) -> str:
    """Of the commands of one host."""
    return _RUNS_QUEUE + host


class BringupStart(Order):
    """What starts a bring-up. The recipe comes along: a bring-up keeps the one that it began with."""

    entry: BringupEntry
    recipe: ClusterRecipe


class BringupInput(Model):
    """The workflow's one argument: how it starts, or the state it continues from."""

    start: BringupStart
    state: Bringup | None = None
    runs: PositiveCount = 1
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that its commands have used of late."""


class BringupAnswer(Model):
    """Whether it was begun. `reason`: why not."""

    begun: bool
    cluster: Name
    stage: BringupStage | None = None
    reason: Text = ""


class BringupCommandAnswer(Model):
    """What became of a command."""

    command: str
    stage: BringupStage
    said: str
    undo: str
    """How it is undone, or that it cannot be."""


class OpenBringup(Model):
    start: BringupStart
    at: Time


class OpenedBringup(Model):
    """Whether it may begin. `number`: how many bring-ups of the cluster there have been, this one included."""

    number: PositiveCount = 1
    refused: Text = ""
    """Why not, in one sentence; empty: it may."""


class ChosenHost(Model):
    """A host that runs commands."""

    host: Name


class FollowRun(Model):
    """A run to be looked at until it has ended. `settle`: how long one of which there is no trace is looked for."""

    order: RunOrder
    seen: bool
    """It is known to run; else it is news when it does."""
    settle: Duration
    every: Duration
    news: Duration
    """How long at most until its log's tail is told again."""
    unheard: Text | None = None
    """The latest answer that said nothing of it, so that another one is news. None: none is."""


class FollowedRun(Model):
    """How it stands. None: there is no trace of it, and has not been for as long as it was looked for."""

    report: RunReport | None = None
    unheard: Text = ""
    """An answer that says nothing of it, and is news; empty: `report` says how it stands."""


class StoppedRun(Model):
    """How it stands after it was told to end. None: there is no trace of it."""

    report: RunReport | None = None


class SupplyRequest(Model):
    """Asked every `every`, until it is green, says something else, or `most` has passed."""

    order: CheckOrder
    every: Duration
    most: Duration
    colour: Colour
    said: Text


class AskRequest(Model):
    orders: tuple[CheckOrder, ...]


class AskAnswer(Model):
    answers: dict[str, CheckAnswer]


class HandOverRequest(Model):
    """A cluster that goes into the fleet, or (`granted`) is owed something there."""

    entry: BringupEntry
    number: PositiveCount
    islands: tuple[Island, ...]
    granted: dict[Name, GpuCount] | None = None
    """What was granted so far; None: it is handed over."""
    actor: Text
    """Whose entry it was: it is the approval of its first quotas."""
    at: Time


class HandedOver(Model):
    """What stands in the fleet now. Units: whole GPUs, by team."""

    plan_hash: str = ""
    granted: dict[Name, GpuCount] = Field(default_factory=dict)
    owed: dict[Name, GpuCount] = Field(default_factory=dict)
    islands: tuple[Island, ...] = ()
    said: Text


class WindDownRequest(Model):
    """A cluster that goes out of the fleet: a rollout takes its quotas to nothing, with notice. Asked repeatedly."""

    cluster: Name
    owner: Text
    actor: Text
    reason: Words
    at: Time
    slurm: SlurmSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """Where it can be asked what runs now. None: what the ledger was told counts."""
    number: Count = Field(default=0, exclude_if=lambda number: not number)
    """Of the bring-up that is retired; 0: an earlier build did not say."""


class WoundDown(Model):
    """What still stands and runs there."""

    quota_gpus: GpuCount
    """What stands, and what a rollout that is on its way could still bring back."""
    back_gpus: GpuCount = 0
    """Of these, what stands no more."""
    jobs: Count
    teams: Count = 0
    """Teams that use GPUs where nobody names their jobs."""
    said: Text

    @property
    def is_empty(self) -> bool:
        return self.quota_gpus == self.jobs == self.teams == 0

    @property
    def text(self) -> str:
        """What stands, and what runs."""
        stands = self.quota_gpus - self.back_gpus
        parts = [f"{gpus_text(stands)} of quota {'stands' if stands == 1 else 'stand'}"]
        if self.back_gpus:
            parts.append(f"{gpus_text(self.back_gpus)} could still come back")
        if self.teams:
            parts.append(f"jobs of {count_text(self.teams, 'team')} run")
        else:
            parts.append(f"{count_text(self.jobs, 'job')} {'runs' if self.jobs == 1 else 'run'}")
        return ", ".join(parts)


class BringupRow(Model):
    """A bring-up as the board and the weekly report show it."""

    cluster: Name
    number: PositiveCount
    recipe: str
    recipe_hash: str
    owner: str
    entered_by: str
    entered_at: Time
    stage: BringupStage
    stage_at: Time
    blocked_from: BringupStage | None = None
    waits_for: Text = ""
    needs: Text = ""
    nodes: PositiveCount
    gpus: PositiveCount
    touches: Count = 0
    check_ins: Count = 0
    lasted: dict[BringupStage, Duration] = Field(default_factory=dict)
    waited: dict[str, Duration] = Field(default_factory=dict)
    granted: dict[Name, GpuCount] = Field(default_factory=dict)
    owed: dict[Name, GpuCount] = Field(default_factory=dict)
    owed_until: Time | None = None
    probation_until: Time | None = None
    red: tuple[str, ...] = ()
    """Checks that are red now."""
    whom: Text = ""
    """Whom it waits for, among those of `waited`; empty: nobody."""
    accounted_at: Time | None = None
    """When `lasted` and `waited` were last counted; None: a row from before they are counted as it is read."""

    def as_of(self, now: datetime) -> Self:
        """With the time since then put down: the book has a row as it was when something last happened."""
        passed = timedelta(0) if self.accounted_at is None else now - self.accounted_at
        if passed <= timedelta(0) or self.stage.has_ended:
            return self
        return self.but(
            accounted_at=now,
            lasted=put_down(self.lasted, self.stage, passed),
            waited=put_down(self.waited, self.whom, passed) if self.whom else self.waited,
        )


class BringupRecord(Model):
    """What happened, for the archive, and how it stands, for the board."""

    row: BringupRow
    entries: tuple[AuditEntry, ...]
