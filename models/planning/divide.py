"""Dividing whole GPUs: Webster's divisor method with caps, and the same inside a system of limits.

Theory of operation. The next GPU goes to the largest weight / (2 * given + 1) among those below their
cap, ties to the first name. `divide` jumps near the end by a common divisor and hands out the last few
one by one, so that its cost does not grow with the GPUs. `divide_within` also asks an oracle whether a
division can stand (do healthy GPUs in the right islands allow it?). The oracle must be monotone: what
it refuses stays refused when more is given. Then the unit that is refused first closes its receiver for
good, and the method goes on among the others exactly as if it had been run unit by unit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

_EXACT_AS_FLOAT = 2**25
"""Below this, two different quotients never round to the same float, so floats compare exactly."""


def divide(
    amount: int,
    weights: Mapping[str, int],
    caps: Mapping[str, int],
    given: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Who gets how many of `amount` more GPUs; less than `amount` only where all caps are reached.

    Shapes: mappings by name; caps count `given` in. Units: whole GPUs. Answers every name of `caps`,
    zeros included. Errors: ValueError for a negative amount or weight.
    Source: DESIGN.md, "Dividing whole GPUs".
    """
    if amount < 0 or any(w < 0 for w in weights.values()):
        raise ValueError("amounts and weights cannot be negative")
    start = {name: (given or {}).get(name, 0) for name in sorted(caps)}
    top = {name: max(caps[name], start[name]) for name in start}
    left = min(amount, sum(top[name] - start[name] for name in start))
    now, left = _jump(left, weights, top, start)
    _one_by_one(left, weights, top, now)
    return {name: now[name] - start[name] for name in start}


def _jump(
    left: int, weights: Mapping[str, int], top: Mapping[str, int], start: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Everything above the largest common divisor that does not overshoot, and what is then left."""
    heaviest = max((weights[name] for name in start), default=0)
    if heaviest == 0 or left <= len(start):
        return dict(start), left

    def above(scale: int) -> dict[str, int]:
        # Units k with weight / (2k + 1) > heaviest / scale.
        return {
            name: min(top[name], max(begun, -((heaviest - weights[name] * scale) // (2 * heaviest))))
            for name, begun in start.items()
        }

    def spent(scale: int) -> int:
        return sum(above(scale).values()) - base

    base = sum(start.values())
    low, high = 0, 1
    limit = 2 * max(top.values()) + 2
    while high < limit and spent(high) <= left:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle) <= left else (low, middle)
    if low == 0:
        return dict(start), left
    reached = above(low)
    return reached, left - (sum(reached.values()) - base)


def _one_by_one(left: int, weights: Mapping[str, int], top: Mapping[str, int], now: dict[str, int]) -> None:
    if left == 0:
        return
    small = max((weights[n] for n in now), default=0) < _EXACT_AS_FLOAT and max(top.values()) < _EXACT_AS_FLOAT // 2

    def claim(name: str) -> tuple[float | Fraction, str]:
        odd = 2 * now[name] + 1
        return (-(weights[name] / odd) if small else -Fraction(weights[name], odd), name)

    heap = [claim(name) for name in now if now[name] < top[name]]
    heapq.heapify(heap)
    for _ in range(left):
        name = heap[0][1]
        now[name] += 1
        if now[name] < top[name]:
            heapq.heapreplace(heap, claim(name))
        else:
            heapq.heappop(heap)


def divide_within(
    amount: int,
    weights: Mapping[str, int],
    caps: Mapping[str, int],
    may: Callable[[Mapping[str, int]], bool],
    given: Mapping[str, int] | None = None,
    closed: Callable[[Mapping[str, int]], Iterable[str]] | None = None,
) -> dict[str, int]:
    """`divide` where only divisions that `may` accepts can stand.

    `may` gets what is newly given by name, zeros included; it must accept all zeros and be monotone.
    `closed`, where there is one, names all that can take no further unit after a division, to save asking
    for each. Answers less than `amount` where nobody can take more.
    """
    taken = dict.fromkeys(sorted(caps), 0)
    before = {name: (given or {}).get(name, 0) for name in taken}
    top = {name: max(caps[name], before[name]) for name in taken}
    left = amount

    def extended(units: int) -> dict[str, int]:
        more = divide(units, weights, top, {n: before[n] + taken[n] for n in taken})
        return {n: taken[n] + more[n] for n in taken}

    while left > 0:
        whole = extended(left)
        if may(whole):
            return whole
        fits, too_many = 0, sum(whole.values()) - sum(taken.values())
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if may(extended(middle)) else (fits, middle)
        reached, refused = extended(fits), extended(too_many)
        culprit = next(n for n in taken if refused[n] > reached[n])
        taken, left = reached, left - fits
        for name in {culprit, *(closed(taken) if closed else ())}:
            top[name] = before[name] + taken[name]
    return taken
