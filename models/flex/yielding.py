"""The choice of whole jobs that yield; it knows neither the teams' rights nor the time.

Theory of operation. What a team keeps is a sum of whole jobs: `kept` is the most of what it may keep that its jobs can
fill, and what is beyond that may be taken, whichever jobs it is made of. `choose_yielding` finds, among all sets of
jobs that cover a need and leave each team what it keeps, those with the least overshoot, of these those with the
fewest jobs, and picks one job after the other: of who is then furthest above its share the youngest, the first name.
How old a job is goes by its team (`Running.had_since`). A dynamic programme per team over (sum -> fewest jobs)
makes that exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

_FEW = 8
"""Up to this many jobs, every combination is tried."""
_NEVER = 2**40
"""Marks a sum that no set of jobs makes; larger than any number of jobs."""


@dataclass(frozen=True, slots=True)
class Running:
    """A job that could be taken. Units: parts of a GPU; time since the beginning."""

    job: str
    team: str
    size: int
    had_since: int
    """The moment, as a count, since which its team has held the GPUs that it runs on."""
    place: int = 0
    """Its place among its team's jobs: of equally old jobs, the one with the larger place yields first."""
    counts_in_quota: bool = True
    """False for a job that targets flex."""
    rank: int = 0
    """The rank of its class in its team: the larger, the weaker."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """The most that may be taken of one team. Units: parts of a GPU; None: all."""

    quota: int | None = None
    """The most that may be taken from jobs that do not target flex."""
    all: int | None = None

    def without_job(self, job: Running) -> Beyond:
        quota = self.quota if self.quota is None or not job.counts_in_quota else self.quota - job.size
        return Beyond(quota, None if self.all is None else self.all - job.size)

    def allows(self, job: Running) -> bool:
        left = self.without_job(job)
        return min(left.quota or 0, left.all or 0) >= 0


_ALL = Beyond()


def most_kept(sizes: Iterable[int], room: int, more: Iterable[int] = (), least: int = 0) -> int:
    """Return the largest sum of some of the sizes, and of some of `more`, that fits into the room.

    `least`: the result is at least this, all of it from `sizes`, even if there is no room.
    """
    if room <= least:
        return least
    sums, mask = 1, (1 << (room + 1)) - 1
    for size in sizes:
        sums |= (sums << size) & mask
    sums = sums >> least << least
    for size in more:
        sums |= (sums << size) & mask
    return max(least, sums.bit_length() - 1)


def by_class(
    chosen: Sequence[Running], pool: Sequence[Running], enough: Callable[[Sequence[Running]], bool] | None = None
) -> list[Running]:
    """Replace chosen jobs by ones of weaker classes of their teams that give back as much. Units: parts of a GPU.

    How much each team gives back is settled before its classes are looked at, so classes move nothing between teams;
    they only select which of its jobs yield. The strongest classes give the least that is possible; then come the
    smallest overshoot and the fewest jobs. Jobs that target flex are exchanged only among themselves: they yield before
    quota does. `enough`: whether a set frees what is needed, where sums do not show it (parts of GPUs). Source:
    docs/design.md, "Jobs and flex".
    """
    taken = list(chosen)
    for team, counts in dict.fromkeys((j.team, j.counts_in_quota) for j in chosen):
        mine = [j for j in taken if (j.team, j.counts_in_quota) == (team, counts)]
        own = [j for j in pool if (j.team, j.counts_in_quota) == (team, counts)]
        if len({j.rank for j in own}) > 1:
            others = [j for j in taken if j not in mine]
            least = sum(j.size for j in mine)
            tries = (_weakest(own, need) for need in _makeable(j.size for j in own) if need >= least)
            if enough is not None:
                tries = (weak for weak in tries if enough([*others, *weak]))
            weak = next(tries, mine)
            taken = [*others, *min(mine, weak, key=_strength)]
    return taken


def _strength(jobs: Sequence[Running]) -> list[int]:
    """Return the parts that the jobs hold in each class, the strongest first."""
    weakest = max((job.rank for job in jobs), default=-1)
    return [sum(job.size for job in jobs if job.rank == rank) for rank in range(weakest + 1)]


def _weakest(jobs: Sequence[Running], need: int) -> list[Running]:
    """Return jobs that cover the need with the least of the strongest class, then of the next; [] where none do."""
    if need <= 0 or sum(job.size for job in jobs) < need:
        return []
    strongest = min(job.rank for job in jobs)
    strong, weak = ([job for job in jobs if (job.rank == strongest) is it] for it in (True, False))
    for amount in _makeable(j.size for j in strong):
        rest = _weakest(weak, need - amount)
        if rest or amount >= need:
            return [*rest, *choose_yielding(strong, amount, {})]
    raise AssertionError("all of them cover it")


def _makeable(sizes: Iterable[int]) -> Iterator[int]:
    """Yield the sums of subsets of the sizes, the smallest first, beginning with 0."""
    sums, all_ = 1, list(sizes)
    grain = math.gcd(*all_)
    for size in all_:
        sums |= sums << size // grain
    return (n * grain for n, can in enumerate(reversed(bin(sums)[2:])) if can == "1")


def gpus_for(sizes: Iterable[int], whole: int) -> int:
    """Return the GPUs that the jobs lie on: whole ones, or shared by parts (first fit, the largest first)."""
    gpus = 0
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        if size >= whole:
            gpus += size // whole
            continue
        for n, room in enumerate(rooms):
            if size <= room:
                rooms[n] -= size
                break
        else:
            rooms.append(whole - size)
    return gpus + len(rooms)


def choose_yielding(
    jobs: Sequence[Running], need: int, above: Mapping[str, int], beyond: Mapping[str, Beyond] | None = None
) -> list[Running]:
    """Return whole jobs that give back at least `need`; [] where they cannot, or need not.

    `above`: how far each team is above its share; `beyond`: the most that may be taken of a team, where not all. Units:
    parts of a GPU. Source: the module's docstring; docs/design.md, "Jobs and flex".
    """
    caps = dict(beyond or {})
    pool = [j for j in jobs if caps.get(j.team, _ALL).allows(j)]
    if need <= 0 or sum(j.size for j in pool) < need:
        return []
    grain = math.gcd(*(j.size for j in pool))
    least = -(-need // grain)
    sums = _sums(pool, caps, least - 1 + max(j.size for j in pool) // grain, grain)
    left = next((total for total in range(least, len(sums)) if sums[total] < _NEVER), 0)
    many, standing, chosen = sums[left], dict(above), []
    while left > 0:
        tried: set[tuple[str, int, bool]] = set()
        for job in sorted(pool, key=lambda j: _first_to_go(j, standing)):
            kind = (job.team, job.size, job.counts_in_quota)
            size = job.size // grain
            if kind in tried or size > left or not caps.get(job.team, _ALL).allows(job):
                continue
            tried.add(kind)
            others = [j for j in pool if j is not job]
            after = caps | {job.team: caps.get(job.team, _ALL).without_job(job)}
            if _sums(others, after, left - size, grain)[left - size] == many - 1:
                pool, caps, left, many = others, after, left - size, many - 1
                standing[job.team] = standing.get(job.team, 0) - job.size
                chosen.append(job)
                break
        else:
            raise AssertionError("the jobs that are to yield cannot be picked one by one")
    return chosen


def _first_to_go(j: Running, above: Mapping[str, int]) -> tuple[object, ...]:
    return (-above.get(j.team, 0), -j.had_since, j.team, -j.place, j.job)


def _sums(jobs: Sequence[Running], beyond: Mapping[str, Beyond], most: int, grain: int) -> list[int]:
    """Return for each sum up to `most`, in grains, the fewest jobs that make it; _NEVER where none do."""
    fewest = np.full(most + 1, _NEVER)
    fewest[0] = 0
    by_team: dict[str, list[Running]] = {}
    for job in jobs:
        by_team.setdefault(job.team, []).append(job)
    for team, own in by_team.items():
        mine = _sums_of_one(own, beyond.get(team, _ALL), most, grain)
        merged = np.full(most + 1, _NEVER)
        for have in np.flatnonzero(mine < _NEVER):
            merged[have:] = np.minimum(merged[have:], fewest[: most + 1 - have] + mine[have])
        fewest = merged
    return [int(count) for count in fewest]


def _sums_of_one(jobs: Sequence[Running], beyond: Beyond, most: int, grain: int) -> npt.NDArray[np.int64]:
    """Return `_sums` of one team, from a table by (sum of jobs in quota, if bounded apart; sum of all)."""
    top = most if beyond.all is None else min(most, beyond.all // grain)
    apart = top if beyond.quota is None else min(top, beyond.quota // grain)
    if all(j.counts_in_quota for j in jobs):
        top = apart
    rows = apart if apart < top and any(j.counts_in_quota for j in jobs) else 0
    table = np.full((rows + 1, most + 1), _NEVER)
    table[0, 0] = 0
    for job in jobs:
        size = job.size // grain
        row = size if rows and job.counts_in_quota else 0
        if size <= (apart if job.counts_in_quota else top):
            before = table[: rows + 1 - row, : top + 1 - size] + 1
            table[row:, size : top + 1] = np.minimum(table[row:, size : top + 1], before)
    fewest: npt.NDArray[np.int64] = table.min(axis=0)
    return fewest


def choose_yielding_in_parts(
    jobs: Sequence[Running],
    enough: Callable[[Sequence[Running]], bool],
    above: Mapping[str, int],
    beyond: Mapping[str, Beyond],
) -> list[Running]:
    """Return jobs as `choose_yielding` does, where the GPUs freed depend on which jobs share one.

    Among a few jobs it finds the best set; among many, one that could spare none of its jobs.
    """
    order = sorted(jobs, key=lambda j: _first_to_go(j, above))
    if len(order) <= _FEW:
        sets = (list(c) for many in range(1, len(order) + 1) for c in combinations(order, many))
        fit = (c for c in sets if len(_all_allowed(c, beyond)) == len(c) and enough(c))
        return min(fit, key=lambda c: (sum(j.size for j in c), len(c)), default=[])
    allowed = _all_allowed(order, beyond)
    if not enough(allowed):
        return []
    for job in reversed(allowed):
        without = [j for j in allowed if j is not job]
        if enough(without):
            allowed = without
    return allowed


def _all_allowed(jobs: Sequence[Running], beyond: Mapping[str, Beyond]) -> list[Running]:
    """Return as many of the jobs, in this order, as may be taken together."""
    caps, allowed = dict(beyond), []
    for job in jobs:
        if caps.get(job.team, _ALL).allows(job):
            caps[job.team] = caps.get(job.team, _ALL).without_job(job)
            allowed.append(job)
    return allowed
