"""The floor on which a story of jobs is played: its jobs, what runs, and what each team may count on.

`models.flex.simulation` moves the jobs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from models.base import duration_text
from models.cluster.classes import in_places, rank_of
from models.flex.division import Claims, Entitlement, FlexDemand, entitlements, promises_of
from models.flex.scene import On, Waits
from models.flex.story import GRAIN, FlexJob, FlexStory, JobTarget
from models.flex.yielding import Beyond, gpus_for, most_kept


class Claim(Enum):
    """The grounds on which a waiting job may claim GPUs that others hold, the strongest first."""

    QUOTA = auto()
    SHARE = auto()
    CLASS = auto()
    """The job's class is stronger than that of other jobs of its team."""


@dataclass(slots=True)
class StoryJob:
    """A job of the story in its present state. Units: parts of a GPU."""

    spec: FlexJob
    size: int
    number: int
    """The number of the step that submitted it."""
    rank: int = 0
    """The rank of its class in its team: the larger, the weaker."""
    on: On | None = None
    since: timedelta = timedelta(0)
    began: int = 0
    """`Floor.moment` when it started."""
    had_since: int = 0
    """`Floor.moment` since which its team has held these GPUs, whichever of the team's jobs ran on them."""
    taken_at: timedelta | None = None

    @property
    def counts_in_quota(self) -> bool:
        return self.spec.target is not JobTarget.FLEX

    @property
    def quota_only(self) -> bool:
        return self.spec.target is JobTarget.QUOTA or not self.spec.preemptible


class Floor:
    """The jobs and GPUs at one time. Units: parts of a GPU unless a name says GPUs."""

    def __init__(self, story: FlexStory) -> None:
        self.story = story
        parents = {team.parent for team in story.teams}
        self.teams = sorted((team for team in story.teams if team.team not in parents), key=lambda t: t.team)
        self.quota = {team.team: (team.quota_gpus or 0) * GRAIN for team in self.teams}
        parent = {team.team: team.parent for team in story.teams}
        self.chain = {team.team: tuple(_upwards(team.team, parent)) for team in self.teams}
        self.limit = {team.team: team.limit_gpus * GRAIN for team in story.teams if team.limit_gpus is not None}
        self.namespace = {name: gpus * GRAIN for name, gpus in promises_of(story.teams).items()}
        self.gates = {team.team: team.namespaces for team in story.teams}
        self.classes = {team.team: team.classes for team in story.teams}
        self.capacity = story.capacity_gpus
        self.now = timedelta(0)
        self.moment = 0
        self.jobs: dict[str, StoryJob] = {}
        self.work: dict[str, dict[str, StoryJob]] = {team.team: {} for team in self.teams}
        """The running jobs, by team and name."""
        self.entitled: dict[str, Entitlement] = {}
        self.ages: dict[str, list[int]] = {}
        """By team: the moments since which it has held each job's GPUs, at the start of this moment, oldest first."""
        self.pinned: set[str] = set()
        """Jobs that a claim has started in this round."""
        self.known: dict[tuple[Claim, bool, bool], tuple[list[StoryJob], dict[str, Beyond]]] = {}
        """A cache of what claims may take; cleared when a job moves."""

    # --- sums -----------------------------------------------------------------------------------------

    def put_job(self, job: StoryJob, on: On | None) -> None:
        """Start a job, or stop it with `on` None. No other code does so."""
        job.on = on
        self.known.clear()
        if on is None:
            self.work[job.spec.team].pop(job.spec.job, None)
        else:
            self.work[job.spec.team][job.spec.job] = job
            job.since, job.began, job.had_since = self.now, self.moment, self.moment

    def rank(self, job: FlexJob) -> int:
        return rank_of(job.job_class, self.classes[job.team])

    def at_work(self) -> dict[str, StoryJob]:
        return {name: j for mine in self.work.values() for name, j in mine.items()}

    def jobs_of(self, team: str, *, in_quota: bool = False) -> list[StoryJob]:
        """Return a team's running jobs; with `in_quota` only those that do not target flex."""
        return [j for j in self.work[team].values() if j.counts_in_quota or not in_quota]

    def has(self, team: str) -> int:
        return sum(j.size for j in self.work[team].values())

    def counts(self, team: str) -> int:
        return sum(j.size for j in self.jobs_of(team, in_quota=True))

    def share(self, team: str) -> int:
        return self.entitled[team].share_gpus * GRAIN

    def promised_gpus(self, team: str) -> int:
        return self.entitled[team].in_quota_gpus * GRAIN

    def above_quota(self) -> dict[str, int]:
        return {team.team: self.has(team.team) - self.share(team.team) for team in self.teams}

    def lacking_gpus(self, jobs: Iterable[StoryJob]) -> int:
        """Return how many GPUs the jobs need beyond the capacity; negative where some are free."""
        return gpus_for((job.size for job in jobs), GRAIN) - self.capacity

    def inside(self, scope: str) -> list[StoryJob]:
        return [o for team, mine in self.work.items() if scope in self.chain[team] for o in mine.values()]

    def count_used_inside(self, scope: str) -> int:
        return sum(o.size for o in self.inside(scope))

    def hand_down_ages(self) -> None:
        """Give a job the age of the job of its own team that it replaces: classes move nothing between teams.

        A team gives up the youngest age, and a new job gets the present moment; the job that would yield last has the
        oldest.
        """
        kinds: dict[str, set[tuple[int, int]]] = {}
        for job in self.jobs.values():
            kinds.setdefault(job.spec.team, set()).add((job.rank, job.spec.priority))
        for team, mine in self.work.items():
            if len(kinds.get(team, ())) > 1:
                for n, job in enumerate(last_to_go(mine.values())):
                    job.had_since = self.ages[team][n] if n < len(self.ages[team]) else self.moment

    # --- the division ---------------------------------------------------------------------------------

    def divide(self) -> None:
        asked, for_quota, held = [], {}, {}
        for team in self.story.teams:
            if team.team in self.chain:
                possible = [job for job in self.jobs.values() if job.spec.team == team.team and self.never(job) is None]
                bound = gpus_for((j.size for j in possible if j.quota_only), GRAIN)
                less = max(0, bound - (team.quota_gpus or 0))
                demand = gpus_for((j.size for j in possible), GRAIN) - less
                for_quota[team.team] = gpus_for((j.size for j in possible if j.counts_in_quota), GRAIN) - less
                held[team.team] = gpus_for((j.size for j in self.jobs_of(team.team)), GRAIN)
                asked.append(team.model_copy(update={"demand_gpus": demand}))
            else:
                asked.append(team)
        demands = FlexDemand(capacity_gpus=self.capacity, mode=self.story.mode, teams=tuple(asked))
        self.entitled = entitlements(demands, Claims(for_quota, held))
        self.known.clear()

    def never(self, job: StoryJob) -> tuple[Waits, str] | None:
        """Return why the job could not run even alone; None: it could."""
        if job.size > self.capacity * GRAIN:
            return Waits.TOO_LARGE, f"too large: it needs {parts_text(job.size)}, and the cluster has {self.capacity}"
        for name in self.chain[job.spec.team]:
            if name in self.limit and job.size > self.limit[name]:
                return Waits.LIMIT, f"too large for the limit of {name}, which is {parts_text(self.limit[name])}"
        if job.quota_only and job.size > self.quota[job.spec.team]:
            quota = parts_text(self.quota[job.spec.team])
            return Waits.NO_QUOTA, f"{bound_text(job)}; it needs {parts_text(job.size)}, and the quota is {quota}"
        return None

    # --- what protects a job --------------------------------------------------------------------------

    def ends(self, job: StoryJob, kind: Claim = Claim.SHARE) -> list[timedelta]:
        """Return the times at which its protections from such claims end: `min_run`, then `window`."""
        ends = [job.since + self.story.min_run]
        return ends if kind is Claim.QUOTA or job.taken_at is None else [*ends, job.taken_at + self.story.window]

    def ended_protections(self, job: StoryJob) -> Iterator[str]:
        """Yield a sentence for each protection of the job that ends now."""
        ran, was_taken = duration_text(self.story.min_run), duration_text(self.story.window)
        told_as = (f"{job.spec.job} has run for {ran}", f"{job.spec.job} was taken {was_taken} ago")
        return (text for end, text in zip(self.ends(job), told_as, strict=False) if end == self.now)

    def is_protected(self, job: StoryJob, kind: Claim) -> bool:
        return max(self.ends(job, kind)) > self.now

    def has_protected(self, kind: Claim) -> bool:
        return any(self.is_protected(o, kind) for o in self.at_work().values())

    # --- quotas and limits ----------------------------------------------------------------------------

    def whole_in_quota(self, team: str) -> int:
        """Return the most that whole running jobs fill of the team's quota, after those that may run nowhere else."""
        bound = self.count_bound(team)
        others = (j.size for j in self.jobs_of(team, in_quota=True) if not j.quota_only)
        return bound + most_kept(others, self.promised_gpus(team) - bound)

    def count_bound(self, team: str) -> int:
        """Return what the team's jobs that may run in quota only hold."""
        return sum(j.size for j in self.jobs_of(team) if j.quota_only)

    def left_in_quota(self, team: str) -> int:
        """Return the room in the team's quota, and its namespaces', for a job that may run in quota only.

        Its own jobs that may run on flex make room for that one: in quota is a property of the sum, not of a job.
        """
        bound = self.count_bound(team)
        left = self.quota[team] - bound
        for name in self.chain[team][1:]:
            beside = sum(self.whole_in_quota(t) for t, chain in self.chain.items() if name in chain and t != team)
            left = min(left, self.namespace[name] - beside - bound)
        return left

    def limit_in_the_way(self, job: StoryJob) -> str | None:
        """Return the team or nearest namespace whose limit the job would exceed; None: no limit is in the way."""
        limits = (name for name in self.chain[job.spec.team] if name in self.limit)
        return next((name for name in limits if self.count_used_inside(name) + job.size > self.limit[name]), None)

    def label(self) -> None:
        """Set what each job runs on: the quota holds as many whole jobs as it can, those that would yield last."""
        self.known.clear()
        for job in self.at_work().values():
            job.on = On.QUOTA if job.quota_only else On.FLEX
        for team in self.teams:
            room = min(
                self.whole_in_quota(team.team) - self.count_bound(team.team),
                *(self.unlabelled_gpus(n) for n in self.chain[team.team]),
            )
            mine = last_to_go(job for job in self.jobs_of(team.team, in_quota=True) if not job.quota_only)
            room = most_kept((job.size for job in mine), room)
            for n, job in enumerate(mine):
                if job.size <= room and most_kept((o.size for o in mine[n + 1 :]), room - job.size) == room - job.size:
                    job.on, room = On.QUOTA, room - job.size
        for job in last_to_go(self.at_work().values()):
            root = self.chain[job.spec.team][-1]
            if root != job.spec.team and job.on is On.FLEX and job.counts_in_quota:
                inside = (o for o in self.at_work().values() if self.chain[o.spec.team][-1] == root)
                used = sum(o.size for o in inside if o.on is not On.FLEX)
                job.on = On.SIBLINGS if used + job.size <= self.namespace[root] else On.FLEX

    def unlabelled_gpus(self, name: str) -> int:
        """Return the part of a team's or namespace's quota in which no job is labelled yet."""
        return self.namespace[name] - sum(j.size for j in self.inside(name) if j.on is On.QUOTA)


def _upwards(name: str, parent: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the name and the namespaces that it is in, the topmost last."""
    at: str | None = name
    while at is not None:
        yield at
        at = parent.get(at)


def last_to_go(jobs: Iterable[StoryJob]) -> list[StoryJob]:
    """Order jobs so that the last to yield comes first: the stronger class of a team, then priority, age and name."""
    by_name = sorted(jobs, key=lambda j: j.spec.job, reverse=True)
    by_age = sorted(by_name, key=lambda j: (-j.spec.priority, j.since, j.began))
    return in_places(by_age, lambda j: j.spec.team, lambda j: j.rank)


def bound_text(job: StoryJob) -> str:
    return (
        "it may run only inside its quota"
        if job.spec.preemptible
        else "it is not preemptible, so it may run only inside its quota"
    )


def number_text(parts: int) -> str:
    return f"{parts / GRAIN:g}"


def parts_text(parts: int) -> str:
    return "1 GPU" if parts == GRAIN else f"{number_text(parts)} GPUs"
