"""Messages about a bring-up: its start, commands, and the requests to its activities with their answers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from pydantic import Field

from models.access.warrants import Spent
from models.audit_chain import AuditEntry
from models.base import Count, Duration, GpuCount, Model, Name, PositiveCount, Text, Time, Words
from models.bringup.checks import CheckAnswer, CheckOrder, Colour
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunOrder, RunReport
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, put_down
from models.cluster.island import Island
from models.cluster.sources import SlurmSource
from models.lifecycle.command_base import Order
from models.texts import count_text, gpus_text

BRINGUP_QUEUE = "backstop-bringups"
"""The task queue of looks, checks and follows. They mostly wait, and take no slots from other work here."""
_RUNS_QUEUE = "backstop-runs-"


def runs_queue(host: str) -> str:
    """Return the task queue of one host's commands."""
    return _RUNS_QUEUE + host


class BringupStart(Order):
    """A request to start a bring-up. It carries the recipe: a bring-up keeps the one that it began with."""

    entry: BringupEntry
    recipe: ClusterRecipe


class BringupInput(Model):
    """The workflow's one argument: the start, or the state it continues from."""

    start: BringupStart
    state: Bringup | None = None
    runs: PositiveCount = 1
    spent: tuple[Spent, ...] = Field(default=(), exclude_if=lambda spent: not spent)
    """Tickets that the bring-up's commands have used recently."""


class BringupAnswer(Model):
    """The answer to a start. `reason`: why it was not begun."""

    begun: bool
    cluster: Name
    stage: BringupStage | None = None
    reason: Text = ""


class BringupCommandAnswer(Model):
    """The consequence of a command."""

    command: str
    stage: BringupStage
    said: str
    undo: str
    """How to undo the command, or why it cannot be undone."""


class OpenBringup(Model):
    start: BringupStart
    at: Time


class OpenedBringup(Model):
    """The permission to begin. `number`: the number of bring-ups of the cluster so far, this one included."""

    number: PositiveCount = 1
    refused: Text = ""
    """Why the bring-up may not begin, in one sentence; empty: it may begin."""


class ChosenHost(Model):
    """A host that runs commands."""

    host: Name


class FollowRun(Model):
    """A request to follow a run until it has ended. `settle`: how long to look for a run without a trace."""

    order: RunOrder
    seen: bool
    """True: the runner has reported on the run before. False: its first report is news."""
    settle: Duration
    every: Duration
    news: Duration
    """The longest time between two reports of the run's log tail."""
    unheard: Text | None = None
    """The runner's last answer that said nothing about the run; empty: none. None: an earlier build did not say."""


class FollowedRun(Model):
    """The state of the run. None: it has left no trace for as long as it was looked for."""

    report: RunReport | None = None
    unheard: Text = ""
    """A new answer that says nothing about the run; empty: `report` has the run's state."""


class StoppedRun(Model):
    """The state of the run after the order to stop. None: it has left no trace."""

    report: RunReport | None = None


class SupplyRequest(Model):
    """A request repeated every `every`, until the answer is green, says something else, or `most` has passed."""

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
    """A request to put a cluster into the fleet or, with `granted`, to grant GPUs that are owed there."""

    entry: BringupEntry
    number: PositiveCount
    islands: tuple[Island, ...]
    granted: dict[Name, GpuCount] | None = None
    """GPUs granted so far; None: nothing yet, as the request puts the cluster into the fleet."""
    actor: Text
    """The person who made the entry, and with it approved the first quotas."""
    at: Time


class HandedOver(Model):
    """The quotas in the fleet now. Units: whole GPUs, by team."""

    plan_hash: str = ""
    granted: dict[Name, GpuCount] = Field(default_factory=dict)
    owed: dict[Name, GpuCount] = Field(default_factory=dict)
    islands: tuple[Island, ...] = ()
    said: Text


class WindDownRequest(Model):
    """A request to take a cluster out of the fleet by a rollout to zero, with notice. Sent repeatedly."""

    cluster: Name
    owner: Text
    actor: Text
    reason: Words
    at: Time
    slurm: SlurmSource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The Slurm to ask for running jobs. None: the usage in the ledger counts."""
    number: Count = Field(default=0, exclude_if=lambda number: not number)
    """The number of the bring-up that is retired; 0: an earlier build did not say."""


class WoundDown(Model):
    """The quotas and jobs that are left in the cluster."""

    quota_gpus: GpuCount
    """The GPUs of present quotas, and those that an open rollout could still restore."""
    back_gpus: GpuCount = 0
    """The part of `quota_gpus` that is set to zero, but that the rollout could restore."""
    jobs: Count
    teams: Count = 0
    """The number of teams that use GPUs, if no source names their jobs; otherwise 0."""
    said: Text

    @property
    def is_empty(self) -> bool:
        return self.quota_gpus == self.jobs == self.teams == 0

    @property
    def text(self) -> str:
        """The quotas and jobs in words."""
        left = self.quota_gpus - self.back_gpus
        parts = [f"{gpus_text(left)} of quota {'remains' if left == 1 else 'remain'}"]
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
    could: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """People who could do what `needs` says, by the access file in force."""
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
    """The party that the bring-up waits for, a key of `waited`; empty: none."""
    accounted_at: Time | None = None
    """Time at which `lasted` and `waited` were last counted; None: a row from an earlier build."""

    def as_of(self, now: datetime) -> Self:
        """Return the row with the time since then added: the book has it as of the last event."""
        passed = timedelta(0) if self.accounted_at is None else now - self.accounted_at
        if passed <= timedelta(0) or self.stage.has_ended:
            return self
        return self.but(
            accounted_at=now,
            lasted=put_down(self.lasted, self.stage, passed),
            waited=put_down(self.waited, self.whom, passed) if self.whom else self.waited,
        )


class BringupRecord(Model):
    """Entries for the archive, and the row for the board."""

    row: BringupRow
    entries: tuple[AuditEntry, ...]
