"""The GPUs that running jobs of each team hold by class, where they are known by name, in the order of yielding.

Flex yields before quota, and inside a team the weakest class first. Between teams classes mean nothing: how much each
team gives back is settled before. Source: docs/design.md, "Jobs and flex"; docs/adr/0050-classes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from models.base import Count, GpuCount, Model, Name, PositiveCount, Words
from models.cluster.classes import rank_of
from models.cluster.jobs import Job, RunsOn
from models.texts import count_text, gpus_text


class ClassWork(Model):
    """The GPUs that running jobs of one class hold. Units: whole GPUs."""

    job_class: Words = ""
    """The class; empty: the team has fewer than two classes."""
    gpus: PositiveCount
    jobs: PositiveCount
    unnamed: Count = Field(default=0, exclude_if=lambda jobs: not jobs)
    """The number of its jobs that name no class of their team, and so count as the strongest."""

    @property
    def text(self) -> str:
        return f"{self.job_class}, {gpus_text(self.gpus)} of {count_text(self.jobs, 'job')}{self._named}"

    @property
    def owner_text(self) -> str:
        return f"{count_text(self.jobs, 'job')} of class {self.job_class}{self._named}"

    @property
    def _named(self) -> str:
        """An aside on how many name no class, where any do."""
        if not self.unnamed:
            return ""
        name = "names" if self.unnamed == 1 else "name"
        of = "it" if self.jobs == 1 else f"{self.unnamed} of {self.jobs}"
        return f" ({of} {name} none of its classes)"


class TeamWork(Model):
    """The running jobs of one team, in quota or on flex. `classes`: those that hold anything, the weakest first."""

    team: Name
    on: RunsOn = RunsOn.QUOTA
    classes: tuple[ClassWork, ...]
    protected_gpus: GpuCount = Field(default=0, exclude_if=lambda gpus: not gpus)
    """GPUs of the strongest class that the quota's protected blocks keep: they could not yield."""

    @property
    def has_classes(self) -> bool:
        return any(held.job_class for held in self.classes)

    @property
    def has_named_jobs(self) -> bool:
        """True if any of the jobs names its class."""
        return any(held.unnamed < held.jobs for held in self.classes)

    @property
    def gpus(self) -> int:
        return sum(held.gpus for held in self.classes)

    @property
    def jobs(self) -> int:
        return sum(held.jobs for held in self.classes)

    @property
    def order(self) -> str:
        """A text with the order of yielding."""
        kept = f", {self.protected_gpus:,} of them protected" if self.protected_gpus else ""
        return f"the first to yield is {'; then '.join(held.text for held in self.classes)}{kept}"

    def yielding_text(self, gpus: int) -> str:
        """Return which jobs could yield so many GPUs. Empty if they do not have so many."""
        if gpus > self.gpus:
            return ""
        weakest, *stronger = self.classes
        could = self.gpus - self.protected_gpus
        protected = f"its {count_text(self.protected_gpus, 'protected GPU')}"
        if self.protected_gpus and not stronger:
            return f"beyond {protected}, {could:,} could yield" if could else "all that it runs is protected"
        hold = "holds" if weakest.jobs == 1 else "hold"
        sentence = f"{weakest.owner_text} {hold} {weakest.gpus:,} of the {gpus_text(could)} that could yield"
        beyond = [f"class {stronger[0].job_class} yields"] if weakest.gpus < min(gpus, could) else []
        if gpus > could:
            beyond.append(f"only {protected} {'is' if self.protected_gpus == 1 else 'are'} left")
        return f"{sentence}; beyond them {', and then '.join(beyond)}" if beyond else sentence


def team_work(
    jobs: Iterable[Job],
    classes: Mapping[str, Sequence[str]],
    scheduled: Mapping[str, int],
    blocks: Mapping[str, int] | None = None,
) -> tuple[TeamWork, ...]:
    """Return the work by team, quota before flex, only for teams whose named jobs account for all that they hold.

    `classes`: each team's, the strongest first. `scheduled`: GPUs by samples of use; a team without a sample has only
    its jobs. Samples may omit what runs on flex, and so jobs on flex account for nothing in quota. `blocks`: GPUs of
    each team's protected blocks.
    """
    held: dict[tuple[str, RunsOn], list[Job]] = {}
    for job in jobs:
        if job.ended is None and job.team in classes:
            held.setdefault((job.team, job.on), []).append(job)

    def count_named(team: str, on: RunsOn) -> int:
        parts = RunsOn if on is RunsOn.FLEX else (on,)
        return sum(j.gpus for part in parts for j in held.get((team, part), ()))

    return tuple(
        _of_team(team, on, own, classes[team], (blocks or {}).get(team, 0) if on is RunsOn.QUOTA else 0)
        for (team, on), own in sorted(held.items(), key=lambda one: (one[0][0], one[0][1] is RunsOn.FLEX))
        if count_named(team, on) >= scheduled.get(team, 0)
    )


def _of_team(team: str, on: RunsOn, jobs: Sequence[Job], classes: Sequence[str], block_gpus: int) -> TeamWork:
    strongest = sum(job.gpus for job in jobs if rank_of(job.job_class, classes) == 0)
    return TeamWork(team=team, on=on, classes=_by_class(jobs, classes), protected_gpus=min(block_gpus, strongest))


def _by_class(jobs: Sequence[Job], classes: Sequence[str]) -> tuple[ClassWork, ...]:
    """Return the work by class, the weakest first."""
    by_rank: dict[int, list[Job]] = {}
    for job in jobs:
        by_rank.setdefault(rank_of(job.job_class, classes), []).append(job)
    return tuple(
        ClassWork(
            job_class=classes[rank] if len(classes) > 1 else "",
            gpus=sum(j.gpus for j in own),
            jobs=len(own),
            unnamed=sum(len(classes) > 1 and j.job_class not in classes for j in own),
        )
        for rank, own in sorted(by_rank.items(), reverse=True)
    )
