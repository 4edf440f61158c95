"""Readings of a cluster: quotas, health, usage; and an observation, which is all three at once."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from models.base import Count, GpuCount, Model, Name, PositiveCount, Time
from models.cluster.classes import Classes
from models.cluster.derived_buffer import Derived
from models.cluster.flex_size import FlexSight
from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.team_work import TeamWork
from models.cluster.windows import Window


class LimitMode(StrEnum):
    """soft: jobs between a lowered quota and its earlier value are still admitted, as flex."""

    SOFT = "soft"
    HARD = "hard"

    def admits(self, gpus: int, earlier: int | None) -> int:
        """Return the limit to enforce. `earlier`: the value before it was lowered (docs/design.md, "Words")."""
        return gpus if self is LimitMode.HARD or earlier is None else max(gpus, earlier)


class Present(Model):
    """A quota as the quota system has it now. Unlike Quota it may be below its floors."""

    team: Name
    gpus: GpuCount
    mode: LimitMode = LimitMode.HARD
    islands: tuple[Name, ...] | None = None
    protected_blocks: tuple[PositiveCount, ...] = ()
    minimum_gpus: GpuCount = 0
    parent: Name | None = None
    namespaces: tuple[Name, ...] | None = Field(default=None, exclude_if=lambda gate: gate is None)
    classes: Classes | None = Field(default=None, exclude_if=lambda classes: classes is None)
    hand: Count = Field(default=0, exclude=True)
    """A count that stays the same as long as only Backstop changes the value. It means nothing outside the reading."""

    def as_quota(
        self, scheduled_gpus: int | None = None, idle_gpus: int | None = None, pending_gpus: int | None = None
    ) -> Quota:
        """Return a quota to plan from; floors that the present value breaks are clipped to it."""
        blocks: list[int] = []
        for block in self.protected_blocks:
            if sum(blocks) + block <= self.gpus:
                blocks.append(block)
        return Quota(
            team=self.team,
            gpus=self.gpus,
            scheduled_gpus=scheduled_gpus,
            idle_gpus=idle_gpus,
            pending_gpus=pending_gpus,
            islands=self.islands,
            protected_blocks=tuple(blocks),
            minimum_gpus=min(self.minimum_gpus, self.gpus),
            parent=self.parent,
            namespaces=self.namespaces,
            classes=self.classes,
        )


class ForeignChange(Model):
    """The last change of a quota past Backstop, where its author is known. `generation`: the cluster's after it."""

    team: Name
    by: str
    at: Time
    generation: Count


class QuotaReading(Model):
    """One cluster's quotas, read at once, with the generation they were read under."""

    cluster: Name
    generation: Count
    quotas: tuple[Present, ...]
    reserved_gpus: GpuCount = 0
    follows_health: bool = False
    """True while the flex pool grows and shrinks with healthy GPUs."""
    flex_gpus: GpuCount | None = None
    """The surplus that a scheduler may give to flex jobs, as last published; None: never published."""
    flex_band_gpus: GpuCount = 0
    """A surplus counts as a change only if it is above `flex_gpus` by more than this."""
    counts_modes: bool = False
    """True: a foreign change of a mode raises the generation, as a foreign change of a value does."""
    rollout: str = Field(default="", exclude_if=lambda rollout: not rollout)
    """The rollout that the quota system has as open; empty: none, or the system does not say."""
    counter: Count = Field(default=0, exclude_if=lambda counter: not counter)
    """The number of that rollout's last effect."""
    unread: str = Field(default="", exclude_if=lambda why: not why)
    """The reason why this is an older reading, which may no longer hold; empty: it is current."""

    unmerged: str = Field(default="", exclude_if=lambda branch: not branch)
    """The branch of an effect that people have not merged yet; empty: there is none."""
    merged: bool = Field(default=False, exclude_if=lambda merged: not merged)
    """True: people have merged an effect, and the rollout has not delivered it again yet."""
    awaits_nobody: bool = Field(default=False, exclude_if=lambda awaits: not awaits)
    """True: an effect on a branch waits for nobody any more, since the branch is gone or Backstop may push. The rollout
    has not delivered it again yet.
    """
    bound_gpus: GpuCount | None = Field(default=None, exclude_if=lambda bound: bound is None)
    """The most that the quota system lets all of these quotas hold together; None: no such limit."""

    @property
    def values(self) -> dict[str, int]:
        return {quota.team: quota.gpus for quota in self.quotas}


class Excess(Model):
    """More healthy GPUs than an island has by the last import: only an import changes T."""

    at: Time
    island: Name
    total_gpus: GpuCount
    """The installed GPUs as imported."""

    @property
    def text(self) -> str:
        return (
            f"the health source reports more healthy GPUs in island {self.island} than the {self.total_gpus} installed"
        )


class HealthSample(Model):
    """The islands of one cluster as one source saw them at one time."""

    cluster: Name
    at: Time
    islands: tuple[Island, ...]
    ahead_to: Time | None = None
    """The latest date of samples that were left out because they are dated in the future; None: there are none."""
    beyond: Excess | None = None
    """A newer sample that was left out because it has more healthy GPUs than are installed; None: there is none."""
    fault: str = Field(default="", exclude_if=lambda fault: not fault)
    """A recent fault of the source, so a newer sample may exist that Backstop did not read; empty: none."""

    @property
    def healthy_gpus(self) -> int:
        return sum(island.healthy_gpus for island in self.islands)

    @property
    def total_gpus(self) -> int:
        return sum(island.total_gpus for island in self.islands)


class Doubt(Model):
    """A cluster whose health is below what its source reported before the source came in doubt."""

    source: str
    why: str
    since: Time
    before: HealthSample
    """The sample that counts while the source is in doubt."""
    counted: dict[str, int] = Field(default_factory=dict)
    """By leaf: GPUs short in `before` that no declared window or SEV explains. They count towards a breach."""

    @property
    def confirm_line(self) -> str:
        return confirm_line_of(self.source)


def confirm_line_of(source: str) -> str:
    """Return the command by which a person confirms a doubted source."""
    return f'backstop confirm --source {shlex.quote(source)} --reason "..."'


CLOCK_SKEW = timedelta(minutes=1)
"""The most by which a sample may be dated in the future. Clocks that are kept right differ by less (ADR 0010)."""


def truthful(sample: HealthSample | None, now: datetime) -> HealthSample | None:
    """Return the sample if its date is possible: one that is dated ahead says nothing about any time."""
    return None if sample is None or sample.at > now + CLOCK_SKEW else sample


class TeamUsage(Model):
    team: Name
    scheduled_gpus: GpuCount
    idle_gpus: GpuCount = 0
    pending_gpus: GpuCount | None = None
    """The GPUs that the team's queued jobs ask for; None: unknown."""
    at: Time | None = None
    """The time of the sample; None: the numbers sum up many samples."""


class UsageReading(Model):
    """S and L per quota. `source`: "p95 over 7d" where there is history, "instant", or "unknown"."""

    cluster: Name
    source: str
    teams: tuple[TeamUsage, ...] = ()


class PresentBacking(Model):
    """The backing of a cluster's present values. Units: whole GPUs; `backing` by leaf."""

    assigned_gpus: GpuCount = 0
    backed_gpus: GpuCount = 0
    flex_gpus: GpuCount = 0
    backing: dict[str, int] = Field(default_factory=dict)
    shortage: dict[str, int] | None = Field(default=None, exclude_if=lambda shortage: shortage is None)
    """The GPUs that each leaf lacks; None: an older build does not report it."""

    @property
    def phantom_gpus(self) -> int:
        return max(0, self.assigned_gpus - self.backed_gpus)


class Observation(Model):
    """A fresh look at a cluster, by which a gate, a drift check and a safety poll decide."""

    cluster: Name
    at: Time
    reading: QuotaReading
    health: HealthSample | None
    """The latest sample; None: there is none, and health counts as unknown."""
    ahead_to: Time | None = None
    """Samples dated in the future, up to this time, are left out, and no gate opens; None: there are none."""
    fault: str = Field(default="", exclude_if=lambda fault: not fault)
    """A recent fault of the cluster's sources; empty: none."""
    windows: tuple[Window, ...] = ()
    tested: dict[str, int] = Field(default_factory=dict)
    """The values whose backing was tested: the present ones, or a plan's."""
    backing: dict[str, int] = Field(default_factory=dict)
    """Healthy GPUs behind each leaf of the tested values."""
    shortage: dict[str, int] = Field(default_factory=dict)
    """The GPUs that each leaf lacks now; a leaf with an unplaced block is listed with 0."""
    counted: dict[str, int] = Field(default_factory=dict)
    """The shortage that no declared window or SEV explains: it counts towards a breach."""
    assigned_gpus: GpuCount = 0
    backed_gpus: GpuCount = 0
    flex_gpus: GpuCount = 0
    changes: tuple[ForeignChange, ...] = ()
    """Foreign changes since the generation that the rollout knows."""
    flex: FlexSight | None = None
    """The surplus beside the quota system's values; None where it was not asked for, or nothing is known."""
    long_run: tuple[Island, ...] = ()
    """Today's islands at their usual health; empty where not asked for, or there is too little history."""
    doubt: Doubt | None = None
    """The doubt about the cluster's source, which makes the sample UNKNOWN; None: there is none."""
    derived: Derived | None = None
    """The buffer that health history asks for; None where not asked for."""
    work: tuple[TeamWork, ...] = Field(default=(), exclude_if=lambda work: not work)
    """By class, the jobs in quota of teams that lack GPUs, the first to yield first; empty: unknown or none."""
    present: PresentBacking | None = None
    """The backing of the quota system's values, if others were tested; None: those values were tested."""

    @property
    def now(self) -> PresentBacking:
        """The backing of the present values, which people are shown, whatever was tested."""
        return self.present or PresentBacking.model_validate(self, from_attributes=True)

    @property
    def is_backed(self) -> bool:
        """False without a sample: no shortage was seen then, because nothing was."""
        return self.health is not None and not self.shortage and self.assigned_gpus == self.backed_gpus
