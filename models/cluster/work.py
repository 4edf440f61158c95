"""What running jobs of each team hold by class, where they are known by name: who of a team would yield next.

Flex yields before quota, and inside a team the weakest class first. Between teams classes say nothing: what each team
gives back is settled before. Source: DESIGN.md, "Jobs and flex"; docs/adr/0050-classes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from models.base import Model, Name, PositiveCount, Words, count_text, gpus_text
from models.cluster.classes import rank_of
from models.cluster.jobs import Job, RunsOn


class ClassWork(Model):
    """What running jobs of one class hold. Units: whole GPUs."""

    job_class: Words = ""
    """Empty: their team has no two classes."""
    gpus: PositiveCount
    jobs: PositiveCount

    @property
    def text(self) -> str:
        return f"{self.job_class}, {gpus_text(self.gpus)} of {count_text(self.jobs, 'job')}"


class TeamWork(Model):
    """The running jobs of one team, in quota or on flex. `classes`: those that hold anything, the weakest first."""

    team: Name
    on: RunsOn = RunsOn.QUOTA
    classes: tuple[ClassWork, ...]

    @property
    def classed(self) -> bool:
        return any(held.job_class for held in self.classes)

    @property
    def gpus(self) -> int:
        return sum(held.gpus for held in self.classes)

    @property
    def jobs(self) -> int:
        return sum(held.jobs for held in self.classes)

    @property
    def order(self) -> str:
        """Who yields first, and who after them."""
        return f"first to yield: {'; then '.join(held.text for held in self.classes)}"

    def under(self, gpus: int) -> str:
        """Who holds what could yield, where so many GPUs are to be given back. Empty where they do not have so many."""
        if gpus > self.gpus:
            return ""
        weakest, *stronger = self.classes
        hold = "holds" if weakest.jobs == 1 else "hold"
        whose = f"{count_text(weakest.jobs, 'job')} of class {weakest.job_class} {hold}"
        said = f"{whose} {weakest.gpus} of the {self.gpus} that could yield"
        return f"{said}; beyond them class {stronger[0].job_class} yields" if gpus > weakest.gpus else said


def team_work(
    jobs: Iterable[Job], classes: Mapping[str, Sequence[str]], scheduled: Mapping[str, int]
) -> tuple[TeamWork, ...]:
    """By team, quota before flex; of those alone whose jobs by name account for all that they hold.

    `classes`: of each team, the strongest first. `scheduled`: GPUs that samples of use say; a team of which they say
    nothing has its jobs alone. Samples may leave out what runs on flex.
    """
    held: dict[tuple[str, RunsOn], list[Job]] = {}
    for job in jobs:
        if job.ended is None and job.team in classes:
            held.setdefault((job.team, job.on), []).append(job)
    named: dict[str, int] = {}
    for (team, _), own in held.items():
        named[team] = named.get(team, 0) + sum(j.gpus for j in own)
    return tuple(
        TeamWork(team=team, on=on, classes=_by_class(own, classes[team]))
        for (team, on), own in sorted(held.items(), key=lambda one: (one[0][0], one[0][1] is RunsOn.FLEX))
        if named[team] >= scheduled.get(team, 0)
    )


def _by_class(jobs: Sequence[Job], classes: Sequence[str]) -> tuple[ClassWork, ...]:
    """The weakest first."""
    by_rank: dict[int, list[Job]] = {}
    for job in jobs:
        by_rank.setdefault(rank_of(job.job_class, classes), []).append(job)
    return tuple(
        ClassWork(job_class=classes[rank] if len(classes) > 1 else "", gpus=sum(j.gpus for j in own), jobs=len(own))
        for rank, own in sorted(by_rank.items(), reverse=True)
    )
