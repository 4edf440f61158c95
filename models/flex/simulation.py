"""A small, pure scheduler of jobs on flex, to try a division out: it decides which jobs run, wait and yield.

Theory of operation. At each moment what teams have is divided first (models.flex.division), of all that is asked for
and could run: each team's share of what there is, and what its quota promises it. Then jobs are looked at, whole:

1. Hardware that is gone is given back: what is above shares and beyond quota, else what is beyond quota, else all of
   that and what then must be of what is in quota.
2. Claims. A waiting job claims its team's quota where that holds it with all its team's jobs that do not target flex;
   else its team's share, where that holds it with all its team's jobs. It takes what is free, and then of other teams
   what is above their shares and beyond their quotas; for a quota, where that is too little, what is beyond quotas.
   Last it claims what weaker classes of its own team have, where its team has no more for it than share or sum allow.
3. GPUs that nobody can claim are used by who is furthest below its share, above shares too; who ran before comes first.

What a team has beyond its quota is its sum, less the most whole jobs that its quota holds: any of its jobs may be what
is beyond. Beyond its share likewise. What is taken is chosen by models.flex.yielding. Classes order jobs inside a team
alone: what each team gives back is settled first, and then given back in its weaker classes.

No circle. Call a team settled that has its share or less; the potential is the sum of what settled teams have. A claim
on a share leaves its team settled and raises the potential by the job; of settled teams nothing is taken, as nothing
of theirs is beyond; so every such claim raises it, and it is at most the capacity. Claims on quota likewise, with what
counts in quota for what a team has. Where both are at play a job that a claim has started is not taken again in the
same round, so that each claim starts one more job for good. After that GPUs in use rise. What 3 starts makes no claim
possible but one of a class: it raises what a claim still needs by as much as what can be taken at most. A claim of a
class starts a job that is stronger than each that it takes, also of those that the same round started; so only a still
stronger one takes it in that round, and there is an end. A protection that ends makes one possible; each ends once.

Rounds follow until the same jobs run as after an earlier round, or as at first: mostly the last one moved nothing. A
claim on a share starts a job, and then its team claims its quota and is above that share: the next round takes it. And
classes can bring claims on quota and on shares round to where they were: that moves nobody. Hence there is an end, and
a moment that changes nothing changes nothing. A moment's answer is the difference between before and after: who was
taken and came back within it was never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from functools import partial

from models.base import duration_text
from models.flex.scene import JobNow, On, Scene, Taken, TeamNow, Waits
from models.flex.simulation_state import Claim, Floor, StoryJob, bound_text, last_to_go, number_text, parts_text
from models.flex.story import GRAIN, FlexStep, FlexStory
from models.flex.yielding import Beyond, Running, by_class, choose_yielding, choose_yielding_in_parts, most_kept
from models.texts import gpus_text


def tell_story(story: FlexStory) -> tuple[Scene, ...]:
    """Return the scene after each step, and after each `min_run` and `window` whose end changes something.

    The result is deterministic. Source: the module's docstring.
    """
    floor = _Play(story)
    scenes: list[Scene] = []
    for n, step in enumerate(story.steps):
        scenes += floor.until(n - 1, floor.now + step.after)
        scenes.append(floor.scene_after(n, step))
    return (*scenes, *floor.until(len(story.steps) - 1, None))


class _Play(Floor):
    """The moves on the floor: jobs start, are preempted and end."""

    # --- moments --------------------------------------------------------------------------------------

    def scene_after(self, number: int, step: FlexStep) -> Scene:
        """Play a step and return the scene after it."""
        before = self.at_work()
        less = step.capacity_gpus is not None and step.capacity_gpus < self.capacity
        what = self._apply(number, step)
        return self._settle(number, what, before, hardware=less)

    def until(self, number: int, end: timedelta | None) -> Iterator[Scene]:
        """Yield the scenes after protections that end before `end`; an end that changes nothing gives no scene."""
        while any(job.on is None for job in self.jobs.values()):
            ends = [at for j in self.at_work().values() for at in self.ends(j) if at > self.now]
            if not ends or (end is not None and min(ends) >= end):
                break
            self.now = min(ends)
            over = [what for j in self.at_work().values() for what in self.ended_protections(j)]
            scene = self._settle(number, "; ".join(over), self.at_work(), hardware=False)
            if scene.started or scene.preempted:
                yield scene.model_copy(update={"woken": True})
        if end is not None:
            self.now = end

    def _apply(self, number: int, step: FlexStep) -> str:
        if step.submit is not None:
            job = step.submit.admit(self.gates[step.submit.team])
            what = f"{step.submit.team} submits {step.submit.job}"
            if job is not None:
                self.jobs[job.job] = StoryJob(job, int(job.gpus * GRAIN), number, self.rank(job))
            if job is not step.submit:
                kept_as = "refused" if job is None else "for flex alone"
                what += f" ({kept_as}: {step.submit.namespace} may not target the quota of {step.submit.team})"
            return what
        if step.delete is not None:
            gone = self.jobs.pop(step.delete, None)
            if gone is not None:
                self.put_job(gone, None)
            return f"{step.delete} ends"
        assert step.capacity_gpus is not None
        what, self.capacity = f"{self.capacity} -> {gpus_text(step.capacity_gpus)}", step.capacity_gpus
        return what

    def _settle(self, number: int, what: str, before: Mapping[str, StoryJob], *, hardware: bool) -> Scene:
        """Let jobs start and yield until nothing moves, and return the scene with its difference to `before`."""
        self.moment += 1
        since = {name: (j.since, j.began) for name, j in before.items()}
        self.ages = {team: sorted(j.had_since for j in mine.values()) for team, mine in self.work.items()}
        self.divide()
        gone = self._shed() if hardware else {}
        seen: list[set[str]] = []
        while (runs := set(self.at_work())) not in seen:
            seen.append(runs)
            while self._claim(before, gone) or self._start_where_free(before) or self._divide_again():
                pass
            for name in before.keys() & self.at_work().keys():
                self.jobs[name].since, self.jobs[name].began = since[name]
            self.hand_down_ages()
            self.pinned.clear()
        self.label()
        taken = [n for n in gone if n in before and self.jobs[n].on is None]
        for name in taken:
            self.jobs[name].taken_at = self.now
        started = sorted((n for n, j in self.at_work().items() if n not in before), key=lambda n: self.jobs[n].number)
        return self._scene(number, what, started, [self._taken_job(n, gone[n]) for n in taken])

    def _divide_again(self) -> bool:
        """Divide again and return whether shares changed: a tie goes to the holder, who may be another by now."""
        shares = self.entitled
        self.divide()
        return self.entitled != shares

    def _taken_job(self, name: str, claim: tuple[str, Claim] | None) -> Taken:
        job = self.jobs[name].spec
        why = "hardware is gone"
        if claim is not None:
            taker, kind = self.jobs[claim[0]], claim[1]
            team = taker.spec.team
            if kind is Claim.CLASS:
                why = f"{claim[0]} of {team} is of a stronger class"
            elif kind is Claim.QUOTA:
                runs = taker.on is not None  # else a stronger job of its team took its place
                why = f"{claim[0]} runs in the quota of {team}" if runs else f"{team} claims its quota"
            elif taker.on is On.SIBLINGS:
                why = f"{claim[0]} runs on quota that siblings of {team} leave unused"
            else:
                why = f"{team} is below its share, and {job.team} was above its own"
        return Taken(job=name, team=job.team, gpus=job.gpus, why=why)

    # --- 1. hardware that is gone ---------------------------------------------------------------------

    def _shed(self) -> dict[str, tuple[str, Claim] | None]:
        self.label()
        here = list(self.at_work().values())
        if self.lacking_gpus(here) <= 0:
            return {}
        back: list[StoryJob] = []
        for shares_too in (True, False):
            back = back or self._choose(here, here, self._most_takeable(here, shares_too=shares_too))
        if not back:
            in_quota = [job for job in here if job.on is On.QUOTA]
            back = self._choose(in_quota, in_quota, {})
            left = [job for job in here if job not in back]
            back += self._choose([job for job in left if job.on is not On.QUOTA], left, {})
        back = self._choose_weaker(back, here, here)  # hardware heeds no protection
        for job in back:
            self.put_job(job, None)
        return {job.spec.job: None for job in back}

    # --- 2. claims ------------------------------------------------------------------------------------

    def _claim(self, before: Mapping[str, StoryJob], gone: dict[str, tuple[str, Claim] | None]) -> bool:
        """Meet the first claim that can be met; return whether there was one."""
        in_vain: dict[tuple[str, Claim, bool], int] = {}
        for kind, job in self._claims(before):
            least = in_vain.get((job.spec.team, kind, job.counts_in_quota))
            back = None if least is not None and job.size >= least else self._room_for(job, kind)
            if back is None:
                in_vain[job.spec.team, kind, job.counts_in_quota] = min(job.size, least or job.size)
                continue
            for other in back:
                self.put_job(other, None)
                gone[other.spec.job] = (job.spec.job, kind)
            self.put_job(job, On.FLEX)
            self.hand_down_ages()
            self.pinned.add(job.spec.job)
            return True
        return False

    def _claims(self, before: Mapping[str, StoryJob]) -> Iterator[tuple[Claim, StoryJob]]:
        waiting = self._waiting_jobs(before)
        for kind in Claim:
            for n, j in enumerate(waiting):
                if self._may_claim(j, kind):
                    # The weaker class waits: whatever a stronger job of its team may claim comes before.
                    stronger = (k for k in waiting[:n] if k.spec.team == j.spec.team and k.rank < j.rank)
                    yield from ((later, k) for k in stronger for later in Claim if self._may_claim(k, later))
                    yield kind, j

    def _may_claim(self, job: StoryJob, kind: Claim) -> bool:
        if self.never(job) is not None:
            return False
        team = job.spec.team
        if kind is Claim.CLASS:
            return any(o.rank > job.rank for o in self.jobs_of(team))
        if kind is Claim.QUOTA:
            return job.counts_in_quota and self.counts(team) + job.size <= self.promised_gpus(team)
        return not job.quota_only and self.has(team) + job.size <= self.share(team)

    def _waiting_jobs(self, before: Mapping[str, StoryJob]) -> list[StoryJob]:
        """Return the waiting jobs: what its team had a moment ago first, then the team furthest below its share.

        Then the earlier job comes first, as if each team's jobs ran in the order they came: neither classes nor
        priorities count between teams.
        """
        above, by_team = self.above_quota(), dict[str, list[StoryJob]]()
        for job in self.jobs.values():
            by_team.setdefault(job.spec.team, []).append(job)
        order = []
        for team, jobs in by_team.items():
            waits = [job for job in jobs if job.on is None]
            waits.sort(
                key=lambda job: (job.rank, job.spec.job not in before, -job.spec.priority, job.number, job.spec.job)
            )
            lost, came = len(self.ages[team]) - len(self.work[team]), [job.number for job in jobs][-len(waits) :]
            order += [((n >= lost, above[team], came[n], team, n), job) for n, job in enumerate(waits)]
        return [job for _, job in sorted(order, key=lambda one: one[0])]

    def _room_for(self, job: StoryJob, kind: Claim, *, heed: bool = True) -> list[StoryJob] | None:
        """Return the jobs that the claim takes; None if it cannot be met. `heed`: protected jobs are not taken."""
        if kind is Claim.CLASS:
            return self._room_by_class(job, heed=heed)
        back: list[StoryJob] = []
        more: list[StoryJob] | None = []
        scopes: list[str | None] = [name for name in self.chain[job.spec.team] if name in self.limit]
        for scope in (*scopes, None):
            more = self._take_for(job, kind, scope, heed=heed)
            if more is None:
                break
            back += more
            for other in more:  # until all scopes have been looked at
                self._hide(other)
        self._show(back)
        return None if more is None else back

    def _room_by_class(self, job: StoryJob, *, heed: bool) -> list[StoryJob] | None:
        """Return jobs of its team's weaker classes that make room, less what is free and within the share."""
        team = job.spec.team
        weaker = [other for other in self._may_give_back(team, Claim.CLASS, heed=heed) if other.rank > job.rank]
        if not job.counts_in_quota:  # flex is junior to every quota: whom it took would claim its quota back at once
            weaker = [other for other in weaker if not other.counts_in_quota]
        needs = [
            self.lacking_gpus([*self.at_work().values(), job]) * GRAIN,
            job.size - max(0, self.share(team) - self.has(team)),
        ]
        needs += [self.count_used_inside(n) + job.size - self.limit[n] for n in self.chain[team] if n in self.limit]
        if job.quota_only:
            needs.append(job.size - self.left_in_quota(team))
        back = self._jobs_of_running(choose_yielding(self._as_running(weaker), max(needs), {}))
        back = self._choose_weaker(back, weaker, [*self.at_work().values(), job])
        for other in back:
            self._hide(other)
        fits = not job.quota_only or job.size <= self.left_in_quota(team)
        self._show(back)
        return back if back and fits else None

    def _may_give_back(self, team: str, kind: Claim, *, heed: bool) -> list[StoryJob]:
        """Return the jobs that a team may give back itself, whatever they target."""
        pinned = set() if kind is Claim.CLASS else self.pinned
        mine = (o for o in self.jobs_of(team) if o.spec.preemptible and o.spec.job not in pinned)
        return [o for o in mine if not (heed and self.is_protected(o, kind))]

    def _choose_weaker(
        self, back: list[StoryJob], may: Sequence[StoryJob], stay: Sequence[StoryJob] | None = None
    ) -> list[StoryJob]:
        """Replace the chosen jobs by weaker ones of their teams, so that the rest of `stay` fits."""
        teams = {j.spec.team for j in back}
        if not any(o.rank for o in may if o.spec.team in teams):
            return back

        chosen, pool = self._as_running(back), self._as_running(may)
        return self._jobs_of_running(
            by_class(chosen, pool, None if stay is None else partial(self._fits_without, stay))
        )

    def _hide(self, job: StoryJob) -> None:
        del self.work[job.spec.team][job.spec.job]
        self.known.clear()

    def _show(self, hidden: Sequence[StoryJob]) -> None:
        for job in hidden:
            self.work[job.spec.team][job.spec.job] = job
            self.known.clear()

    def _take_for(self, job: StoryJob, kind: Claim, scope: str | None, *, heed: bool) -> list[StoryJob] | None:
        """Return the jobs that the claim takes to keep to the scope's limit; without a scope, to get GPUs."""
        among = list(self.at_work().values()) if scope is None else self.inside(scope)
        need = 0 if scope is None else sum(o.size for o in among) + job.size - self.limit[scope]
        if (self.lacking_gpus([*among, job]) if scope is None else need) <= 0:
            return []
        for shares_too in (True,) if kind is Claim.SHARE else (True, False):
            may, beyond = self._takeable(kind, shares_too=shares_too, heed=heed)
            may = [
                o for o in may if o.spec.team != job.spec.team and (scope is None or scope in self.chain[o.spec.team])
            ]
            if scope is None:
                back = self._choose(may, [*among, job], beyond)
            else:
                back = self._jobs_of_running(choose_yielding(self._as_running(may), need, self.above_quota(), beyond))
            if back:
                own = [
                    o
                    for team in {occupant.spec.team for occupant in back}
                    for o in self._may_give_back(team, kind, heed=heed)
                ]
                return self._choose_weaker(back, own, [*among, job] if scope is None else None)
        return None

    def _takeable(self, kind: Claim, *, shares_too: bool, heed: bool) -> tuple[list[StoryJob], dict[str, Beyond]]:
        """Return the jobs that a claim of this kind may take, and the most per team. Cached until something moves."""
        key = (kind, shares_too, heed)
        if key not in self.known:
            may = [
                o
                for o in self.at_work().values()
                if not o.quota_only and o.spec.job not in self.pinned and not (heed and self.is_protected(o, kind))
            ]
            self.known[key] = may, self._most_takeable(may, shares_too=shares_too)
        return self.known[key]

    def _most_takeable(self, may: Sequence[StoryJob], *, shares_too: bool) -> dict[str, Beyond]:
        """Return the most that may be taken of each team's jobs in `may`; the rest fills its quota and share."""

        by_team: dict[str, list[StoryJob]] = {}
        for job in may:
            by_team.setdefault(job.spec.team, []).append(job)
        beyond = {}
        for team, mine in by_team.items():
            sizes = [job.size for job in mine if job.counts_in_quota]
            for_flex = [job.size for job in mine if not job.counts_in_quota]
            fixed = self.counts(team) - sum(sizes)
            least = most_kept(sizes, self.promised_gpus(team) - fixed)
            room = self.share(team) - self.has(team) + sum(job.size for job in mine)
            stay = most_kept(sizes, room, for_flex, least)
            beyond[team] = Beyond(sum(sizes) - least, sum(job.size for job in mine) - stay if shares_too else None)
        return beyond

    def _choose(
        self, may: Sequence[StoryJob], stay: Sequence[StoryJob], beyond: Mapping[str, Beyond]
    ) -> list[StoryJob]:
        """Choose jobs among `may` to take, so that the rest of `stay` has the GPUs it needs."""
        candidates = self._as_running(may)
        need = self.lacking_gpus(stay)
        if need <= 0:
            return []
        if all(j.size % GRAIN == 0 for j in may):
            return self._jobs_of_running(choose_yielding(candidates, need * GRAIN, self.above_quota(), beyond))

        enough = partial(self._fits_without, stay)
        return self._jobs_of_running(choose_yielding_in_parts(candidates, enough, self.above_quota(), beyond))

    def _fits_without(self, jobs: Sequence[StoryJob], taken: Sequence[Running]) -> bool:
        names = {running.job for running in taken}
        return self.lacking_gpus(job for job in jobs if job.spec.job not in names) <= 0

    def _jobs_of_running(self, running: Sequence[Running]) -> list[StoryJob]:
        return [self.jobs[job.job] for job in running]

    def _as_running(self, jobs: Sequence[StoryJob]) -> list[Running]:
        places = {j.spec.job: place for place, j in enumerate(last_to_go(jobs))}
        return [
            Running(
                *(job.spec.job, job.spec.team, job.size, job.had_since, places[job.spec.job]),
                counts_in_quota=job.counts_in_quota,
                rank=job.rank,
            )
            for job in jobs
        ]

    # --- 3. what is free ------------------------------------------------------------------------------

    def _start_where_free(self, before: Mapping[str, StoryJob]) -> bool:
        at_work, too_much = list(self.at_work().values()), None
        for job in self._waiting_jobs(before):
            if self.never(job) is not None or (too_much is not None and job.size >= too_much):
                continue
            if self.lacking_gpus([*at_work, job]) > 0:
                too_much = job.size
                continue
            fits = not job.quota_only or job.size <= self.left_in_quota(job.spec.team)
            if fits and self.limit_in_the_way(job) is None:
                self.put_job(job, On.FLEX)
                return True
        return False

    # --- how things stand -----------------------------------------------------------------------------

    def _why_waiting(self, job: StoryJob) -> tuple[Waits, str]:
        never, team = self.never(job), job.spec.team
        if never is not None:
            return never
        claims = [kind for kind in Claim if self._may_claim(job, kind)]
        if any(self.has_protected(kind) and self._room_for(job, kind, heed=False) is not None for kind in claims):
            return Waits.PROTECTED, self._until_when(job)
        name = self.limit_in_the_way(job)
        if name is not None:
            used = number_text(self.count_used_inside(name))
            limit = f"{name} already uses {used} of its limit of {parts_text(self.limit[name])}"
            return Waits.LIMIT, f"it needs {parts_text(job.size)}, and {limit}"
        if job.quota_only and job.size > self.left_in_quota(team):
            left = max(0, self.left_in_quota(team))
            quota = f"{number_text(left)} of its quota of {parts_text(self.quota[team])} left"
            return Waits.NO_QUOTA, f"{bound_text(job)}; it needs {parts_text(job.size)}, and {team} has {quota}"
        free = max(0, -self.lacking_gpus(self.at_work().values()))
        needs = f"it needs {parts_text(job.size)}, {free or 'none'} {'are' if free > 1 else 'is'} free"
        if job.quota_only or any(kind is not Claim.CLASS for kind in claims):
            return Waits.HARDWARE, f"{needs}, and {self._who_holds(team)}"
        has, share = number_text(self.has(team)), number_text(self.share(team))
        return Waits.SHARE, f"{needs}, and {team} has {has}, with a share of {share}"

    def _who_holds(self, team: str) -> str:
        """Return a phrase that says whose jobs hold the GPUs that a claim cannot have."""
        own, others = self.has(team), sum(o.size for o in self.at_work().values() if o.spec.team != team)
        have = f"others have {number_text(others)}, inside their quotas or shares" if others else ""
        part = "all" if own == self.capacity * GRAIN else f"{number_text(own)} of the"
        less = f", fewer than its quota of {number_text(self.quota[team])}" * (self.quota[team] > self.capacity * GRAIN)
        mine = f"{team}'s own jobs have {part} {parts_text(self.capacity * GRAIN)} of the cluster{less}" if own else ""
        return ", and ".join(part for part in (mine, have) if part) or f"the cluster has {self.capacity}"

    def _until_when(self, job: StoryJob) -> str:
        kinds = [kind for kind in Claim if self._may_claim(job, kind)]
        owners = ((o, o.spec.team == job.spec.team) for o in self.at_work().values())
        ends = [at for o, own in owners for kind in kinds if own is (kind is Claim.CLASS) for at in self.ends(o, kind)]
        first = min((at for at in ends if at > self.now), default=self.now)
        return f"{job.spec.team} may claim GPUs, but the job on them is protected until {duration_text(first)} at least"

    def _scene(self, number: int, what: str, started: Sequence[str], taken: Sequence[Taken]) -> Scene:
        jobs, whys = [], {}
        for job in sorted(self.jobs.values(), key=lambda job: (job.spec.team, job.number)):
            alike = (job.spec.team, job.size, job.spec.target, job.spec.preemptible, job.rank)
            if job.on is None and alike not in whys:
                whys[alike] = self._why_waiting(job)
            waits, why = (None, "") if job.on is not None else whys[alike]
            jobs.append(
                JobNow(job=job.spec.job, team=job.spec.team, gpus=job.spec.gpus, on=job.on, waits=waits, why=why)
            )
        free = self.capacity - sum((job.gpus for job in jobs if job.on is not None), Fraction(0))
        return Scene(
            step=number,
            what=what,
            at=self.now,
            capacity_gpus=self.capacity,
            started=tuple(started),
            preempted=tuple(taken),
            running=tuple(job for job in jobs if job.on is not None),
            queued=tuple(job for job in jobs if job.on is None),
            teams=tuple(self._team_now(team.team, jobs) for team in self.story.teams if team.team in self.chain),
            unused_gpus=free,
        )

    def _team_now(self, team: str, jobs: Sequence[JobNow]) -> TeamNow:
        def sum_gpus(which: Callable[[On | None], bool]) -> Fraction:
            return sum((job.gpus for job in jobs if job.team == team and which(job.on)), Fraction(0))

        return TeamNow(
            team=team,
            quota_gpus=self.quota[team] // GRAIN,
            share_gpus=self.entitled[team].share_gpus,
            allocated_gpus=sum_gpus(lambda on: on is not None),
            in_quota_gpus=sum_gpus(lambda on: on is On.QUOTA),
            siblings_gpus=sum_gpus(lambda on: on is On.SIBLINGS),
            queued_jobs=sum(job.team == team and job.on is None for job in jobs),
            queued_gpus=sum_gpus(lambda on: on is None),
        )
