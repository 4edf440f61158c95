"""Jobs on flex: who runs, who waits, who gives back. A small scheduler, pure, to try a division out on jobs.

Theory of operation. Jobs are whole. A job runs in quota where its team's quota holds it; else on quota that its
siblings leave unused, inside their namespace's; else on flex. After each change of jobs or hardware the fair division
(models.flex.division) of all that is asked for says what each team ought to have. Then, until nothing more happens:

1. Hardware that is gone is given back, by flex first, then by who runs on siblings' quota, then by quota jobs of who is
   most above its share.
2. A waiting job that fits starts: in quota before siblings' quota before flex, and of flex who is furthest below its
   share first. GPUs that nobody else can use may be used above one's share.
3. A waiting quota job takes GPUs back from flex jobs, then from siblings that run on unused quota; one for siblings'
   quota takes them from flex jobs. A waiting flex job whose team stays within its share takes them back from flex jobs
   of teams that stay at theirs or above. A job on siblings' quota that these need themselves runs on as flex.

No cycle: of (GPUs that run in quota, those and the ones on siblings' quota, the sum over teams of min(what it has, its
share), GPUs in use) each of 2 and 3 raises one and lowers none before it, and all are bounded.

Who gives back: whole jobs, the least overshoot that whole jobs allow; of equal overshoot the jobs of who is furthest
above its share, the lowest priority, the youngest. A job runs for `min_run` before it can be taken, and is not taken
twice within `window`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from models.flex.division import FlexDemand, FlexTeam, division, promises_of
from models.flex.scenario import GRAIN, FlexJob, FlexStep, FlexStory, JobNow, JobTarget, On, Scene, Taken, TeamNow


def told(story: FlexStory) -> tuple[Scene, ...]:
    """What comes of each step. The same for the same story. Source: the module's docstring."""
    floor = _Floor(story)
    return tuple(floor.after(n, step) for n, step in enumerate(story.steps))


# --- who gives back ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A job that could be taken back. Units: parts of a GPU; time since the beginning."""

    job: str
    team: str
    size: int
    priority: int
    since: timedelta
    number: int
    """Its place among all that were submitted."""


def given_back(jobs: Sequence[Running], need: int, above: Mapping[str, int]) -> list[Running]:
    """Whole jobs that give back at least `need`, as little more as they allow; [] where they cannot.

    `above`: by how much each team is above its share. Units: parts of a GPU.
    """
    if need <= 0 or sum(j.size for j in jobs) < need:
        return []
    order = sorted(jobs, key=lambda j: (-above.get(j.team, 0), j.priority, -j.since, -j.number))
    grain = math.gcd(*(j.size for j in order))
    sizes = [j.size // grain for j in order]
    least = -(-need // grain)
    mask = (1 << (least + max(sizes))) - 1
    sums = [1]  # which sums the jobs from here to the end can make, a bit each
    for size in reversed(sizes):
        sums.append((sums[-1] | sums[-1] << size) & mask)
    sums.reverse()
    enough = sums[0] >> least
    left = least + (enough & -enough).bit_length() - 1
    chosen = []
    for n, job in enumerate(order):
        if sizes[n] <= left and sums[n + 1] >> (left - sizes[n]) & 1:
            chosen.append(job)
            left -= sizes[n]
    return chosen


# --- the floor --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    spec: FlexJob
    size: int
    number: int
    on: On | None = None
    since: timedelta = timedelta(0)
    taken_at: timedelta | None = None


class _Floor:
    """Jobs and GPUs at one time."""

    def __init__(self, story: FlexStory) -> None:
        self._story = story
        parents = {t.parent for t in story.teams}
        self._teams = [t for t in story.teams if t.team not in parents]
        self._quota = {t.team: (t.quota_gpus or 0) * GRAIN for t in self._teams}
        self._limit = {t.team: t.limit_gpus * GRAIN for t in story.teams if t.limit_gpus is not None}
        self._chain = _chains(story.teams)
        self._capacity = story.capacity_gpus
        self._now = timedelta(0)
        self._jobs: dict[str, _Job] = {}
        self._root = {name: chain[-1] for name, chain in self._chain.items()}
        self._namespace = {name: gpus * GRAIN for name, gpus in promises_of(story.teams).items()}
        self._held = {(t.team, on): 0 for t in self._teams for on in On}
        """Parts that run, by team and what they run on."""
        self._share: dict[str, int] = {}
        self._started: dict[str, None] = {}
        self._gates = {t.team: t.namespaces for t in story.teams}
        self._taken: list[Taken] = []

    def after(self, number: int, step: FlexStep) -> Scene:
        self._now += step.after
        self._started, self._taken = {}, []
        if step.submit is not None:
            what = f"{step.submit.team} submits {step.submit.job}"
            size = int(step.submit.gpus * GRAIN)
            job = step.submit.admitted(self._gates[step.submit.team])
            if job is not None:
                self._jobs[job.job] = _Job(job, size, number)
            if job is not step.submit:
                kept = "refused" if job is None else "for flex alone"
                what += f" ({kept}: {step.submit.namespace} may not target its quota)"
        elif step.delete is not None:
            what = f"{step.delete} ends"
            gone = self._jobs.pop(step.delete, None)
            if gone is not None:
                self._put(gone, None)
        else:
            assert step.capacity_gpus is not None
            what = f"{self._capacity} -> {step.capacity_gpus} GPUs"
            self._capacity = step.capacity_gpus
        self._divide()
        self._shed()
        while self._promote() or self._start() or self._take_for_quota() or self._take_for_share():
            pass
        return self._scene(number, what)

    # --- sums -----------------------------------------------------------------------------------------

    def _of(self, team: str, on: On | None = None) -> int:
        """Parts that run of a team's jobs; on quota or on flex alone where that is said."""
        return sum(self._held[team, kind] for kind in On if on in (None, kind))

    @property
    def _free(self) -> int:
        return self._capacity * GRAIN - sum(self._held.values())

    def _put(self, j: _Job, on: On | None) -> None:
        """The only place where a job comes to run on something, or stops."""
        if j.on is not None:
            self._held[j.spec.team, j.on] -= j.size
        if on is not None:
            self._held[j.spec.team, on] += j.size
        j.on = on

    def _above(self) -> dict[str, int]:
        return {t.team: self._of(t.team) - self._share[t.team] for t in self._teams}

    def _divide(self) -> None:
        asked = []
        by_team: dict[str, list[_Job]] = {}
        for j in self._jobs.values():
            by_team.setdefault(j.spec.team, []).append(j)
        for t in self._story.teams:
            mine = by_team.get(t.team, [])
            bound = sum(j.size for j in mine if _quota_only(j))
            rest = sum(j.size for j in mine if not _quota_only(j))
            want = min(bound, self._quota.get(t.team, 0)) + rest
            asked.append(t.model_copy(update={"demand_gpus": -(-want // GRAIN)}))
        demand = FlexDemand(capacity_gpus=self._capacity, mode=self._story.mode, teams=tuple(asked))
        self._share = {p.team: p.gpus * GRAIN for p in division(demand).portions}

    # --- what may happen ------------------------------------------------------------------------------

    def _shed(self) -> None:
        """Hardware that is gone: flex gives back first, and what may not be taken yet before what runs in quota."""
        for kinds in ((), (On.FLEX,), (On.FLEX, On.SIBLINGS), tuple(On)):
            jobs, need = self._running(*kinds) if kinds else self._takeable(), -self._free
            for job in given_back(jobs, need, self._above()) or (jobs if need > 0 else []):
                self._take(job, "hardware is gone")

    def _running(self, *on: On) -> list[Running]:
        return [
            Running(j.spec.job, j.spec.team, j.size, j.spec.priority, j.since, j.number)
            for j in self._jobs.values()
            if j.on in on
        ]

    def _takeable(self, namespace: str = "") -> list[Running]:
        """Flex jobs that ran long enough and were not taken lately; those on siblings' quota of a namespace too."""
        story, now = self._story, self._now
        here = [r for r in self._running(On.SIBLINGS) if namespace and self._root[r.team] == namespace]

        def rested(r: Running) -> bool:
            taken_at = self._jobs[r.job].taken_at
            return now - r.since >= story.min_run and (taken_at is None or now - taken_at >= story.window)

        return [r for r in (*self._running(On.FLEX), *here) if rested(r)]

    def _take(self, running: Running, why: str) -> None:
        job = self._jobs[running.job]
        self._put(job, None)
        job.taken_at = self._now
        self._taken.append(Taken(job=running.job, team=running.team, gpus=job.spec.gpus, why=why))

    def _fits_quota(self, j: _Job) -> bool:
        """Its team's quota holds it, and its namespace's holds all that run in quota."""
        team = j.spec.team
        if j.spec.target is JobTarget.FLEX or self._of(team, On.QUOTA) + j.size > self._quota[team]:
            return False
        return self._in_namespace(self._root[team], On.QUOTA) + j.size <= self._namespace[self._root[team]]

    def _fits_siblings(self, j: _Job) -> bool:
        if j.spec.target is not JobTarget.BOTH or not j.spec.preemptible:
            return False
        root = self._root[j.spec.team]
        return self._in_namespace(root, On.QUOTA, On.SIBLINGS) + j.size <= self._namespace[root]

    def _in_namespace(self, root: str, *kinds: On) -> int:
        return sum(self._held[t.team, kind] for t in self._teams if self._root[t.team] == root for kind in kinds)

    def _within_limit(self, j: _Job) -> bool:
        """Its team's limit, and those of the namespaces that it is in."""
        return all(
            sum(self._of(t.team) for t in self._teams if name in self._chain[t.team]) + j.size <= self._limit[name]
            for name in self._chain[j.spec.team]
            if name in self._limit
        )

    def _promote(self) -> bool:
        """A job beyond its quota that has room in it now runs there: nothing moves. True where one came into quota."""
        beyond = self._in_order([j for j in self._jobs.values() if j.on in (On.FLEX, On.SIBLINGS)])
        for j in beyond:
            if self._fits_quota(j):
                self._put(j, On.QUOTA)
                return True
        for j in beyond:
            self._put(j, On.FLEX)
        for j in beyond:
            if self._fits_siblings(j):
                self._put(j, On.SIBLINGS)
        return False

    def _in_order(self, jobs: Sequence[_Job]) -> list[_Job]:
        return sorted(jobs, key=lambda j: (-j.spec.priority, j.number))

    def _waiting(self) -> list[_Job]:
        """Those for quota first; then of who would be furthest below its share."""
        above = self._above()

        def key(j: _Job) -> tuple[int, int, int, int]:
            rank = 0 if self._fits_quota(j) else 1 if self._fits_siblings(j) else 2
            return (rank, above[j.spec.team] + j.size if rank == 2 else 0, -j.spec.priority, j.number)

        return sorted((j for j in self._jobs.values() if j.on is None and self._within_limit(j)), key=key)

    def _start(self) -> bool:
        for j in self._waiting():
            on = On.QUOTA if self._fits_quota(j) else On.SIBLINGS if self._fits_siblings(j) else On.FLEX
            if j.size <= self._free and not (on is On.FLEX and _quota_only(j)):
                self._run(j, on)
                return True
        return False

    def _run(self, j: _Job, on: On) -> None:
        self._put(j, on)
        j.since = self._now
        self._started[j.spec.job] = None

    def _take_for_quota(self) -> bool:
        for j in self._waiting():
            need, team = j.size - self._free, j.spec.team
            if self._fits_quota(j):
                on, why = On.QUOTA, f"{j.spec.job} runs in the quota of {team}"
                back = given_back(self._takeable(), need, self._above())
                back = back or given_back(self._takeable(self._root[team]), need, self._above())
            elif self._fits_siblings(j):
                on, why = On.SIBLINGS, f"{j.spec.job} runs on quota that siblings of {team} leave unused"
                back = given_back(self._takeable(), need, self._above())
            else:
                continue
            if back:
                self._make_room(j, on, back, why)
                return True
        return False

    def _take_for_share(self) -> bool:
        above = self._above()
        for j in self._waiting():
            team = j.spec.team
            if _quota_only(j) or above[team] + j.size > 0:
                continue
            back = given_back(self._beyond_shares(above, team), j.size - self._free, above)
            if back:
                self._make_room(j, On.FLEX, back, f"{team} is below its share, and this was above one")
                return True
        return False

    def _beyond_shares(self, above: Mapping[str, int], but: str) -> list[Running]:
        """Jobs whose teams stay at their shares or above, whichever of them are taken."""
        beyond = []
        left = dict(above)
        for r in sorted(self._takeable(), key=lambda r: (r.priority, -r.since, -r.number)):
            if r.team != but and r.size <= left[r.team]:
                left[r.team] -= r.size
                beyond.append(r)
        return beyond

    def _make_room(self, j: _Job, on: On, back: Sequence[Running], why: str) -> None:
        for r in back:
            self._take(r, why)
        self._run(j, on)

    # --- how things stand ------------------------------------------------------------------------------

    def _scene(self, number: int, what: str) -> Scene:
        jobs = [
            JobNow(job=j.spec.job, team=j.spec.team, gpus=j.spec.gpus, on=j.on)
            for j in sorted(self._jobs.values(), key=lambda j: (j.spec.team, j.number))
        ]
        queued = [j for j in jobs if j.on is None]
        teams = tuple(
            TeamNow(
                team=t.team,
                quota_gpus=t.quota_gpus or 0,
                share_gpus=self._share[t.team] // GRAIN,
                allocated_gpus=Fraction(self._of(t.team), GRAIN),
                in_quota_gpus=Fraction(self._of(t.team, On.QUOTA), GRAIN),
                siblings_gpus=Fraction(self._of(t.team, On.SIBLINGS), GRAIN),
                queued_jobs=sum(j.team == t.team for j in queued),
                queued_gpus=sum((j.gpus for j in queued if j.team == t.team), Fraction(0)),
            )
            for t in self._teams
        )
        return Scene(
            step=number,
            what=what,
            at=self._now,
            capacity_gpus=self._capacity,
            started=tuple(name for name in self._started if name in self._jobs and self._jobs[name].on is not None),
            preempted=tuple(self._taken),
            running=tuple(j for j in jobs if j.on is not None),
            queued=tuple(queued),
            teams=teams,
            unused_gpus=Fraction(self._free, GRAIN),
        )


def _chains(teams: Sequence[FlexTeam]) -> dict[str, tuple[str, ...]]:
    """By team or namespace: itself, and the namespaces it is in, the topmost last."""
    parent = {t.team: t.parent for t in teams}
    chains: dict[str, tuple[str, ...]] = {}
    for name in (*parent, *(p for p in parent.values() if p is not None)):
        chain = [name]
        while (above := parent.get(chain[-1])) is not None:
            chain.append(above)
        chains[name] = tuple(chain)
    return chains


def _quota_only(j: _Job) -> bool:
    return j.spec.target is JobTarget.QUOTA or not j.spec.preemptible
