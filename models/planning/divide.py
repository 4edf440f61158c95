"""The division of whole GPUs: Webster's divisor method with caps, and the same inside a system of limits.

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
"""Two different quotients of numbers below this never round to the same float, so floats compare exactly."""


def divide(
    amount: int, weights: Mapping[str, int], caps: Mapping[str, int], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Divide `amount` more GPUs by name; less than `amount` only where all caps are reached.

    Shapes: mappings by name; caps count `given` in. Units: whole GPUs. Answers every name of `caps`,
    zeros included. Errors: ValueError for a negative amount or weight.
    Source: docs/design.md, "Dividing whole GPUs".
    """
    if amount < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError("amounts and weights cannot be negative")
    start = {name: (given or {}).get(name, 0) for name in sorted(caps)}
    top = {name: max(caps[name], start[name]) for name in start}
    room = {name: top[name] - begun for name, begun in start.items()}
    left = min(amount, sum(room.values()))
    if left == 0:
        return dict.fromkeys(start, 0)
    if left == sum(room.values()):
        return room
    now, left = _jump(left, weights, top, start)
    _hand_out(left, weights, top, now)
    return {name: now[name] - start[name] for name in start}


def _jump(
    left: int, weights: Mapping[str, int], top: Mapping[str, int], start: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Hand out everything above a common divisor that does not overshoot; return that and the few that are left.

    Any divisor works that spends no more than there is: what is above it comes before what is below. Units grow with 1
    / divisor along a line that caps bend down. So a step along its slope stays short of the end, except for rounding.
    """
    heaviest = max((weights[name] for name in start), default=0)
    if heaviest == 0 or left <= len(start):
        return dict(start), left
    rows = [(weights[name], top[name], begun) for name, begun in start.items()]
    base, double, few = sum(start.values()), 2 * heaviest, len(rows)

    def above(scale: int) -> list[int]:
        # Units k with weight / (2k + 1) > heaviest / scale.
        units = [-((heaviest - weight * scale) // double) for weight, _, _ in rows]
        return [
            begun if u < begun else most if u > most else u for u, (_, most, begun) in zip(units, rows, strict=True)
        ]

    low, reached, rest = 0, [begun for _, _, begun in rows], left
    high: int | None = None
    while rest > few and (high is None or high - low > 1):
        slope = sum(weight for (weight, most, _), units in zip(rows, reached, strict=True) if units < most)
        if not slope:
            break
        step = max(1, rest * double // slope)
        scale = low + step if high is None or low + step < high else (low + high) // 2
        units = above(scale)
        more = left - (sum(units) - base)
        if more < 0:
            high = scale
        else:
            low, reached, rest = scale, units, more
    return dict(zip(start, reached, strict=True)), rest


def _hand_out(left: int, weights: Mapping[str, int], top: Mapping[str, int], now: dict[str, int]) -> None:
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
    """Divide as `divide` does, within the divisions that `may` accepts.

    `may` gets what is newly given by name, zeros included; it must accept all zeros and be monotone. `closed`, if
    given, names all that can take no further unit after a division, to save asking for each. Returns less than `amount`
    where nobody can take more.
    """
    taken = dict.fromkeys(sorted(caps), 0)
    before = {name: (given or {}).get(name, 0) for name in taken}
    top = {name: max(caps[name], before[name]) for name in taken}
    left = amount

    def extend(units: int) -> dict[str, int]:
        more = divide(units, weights, top, {n: before[n] + taken[n] for n in taken})
        return {n: taken[n] + more[n] for n in taken}

    while left > 0:
        whole = extend(left)
        if may(whole):
            return whole
        fits, too_many = 0, sum(whole.values()) - sum(taken.values())
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if may(extend(middle)) else (fits, middle)
        reached, refused = extend(fits), extend(too_many)
        culprit = next(n for n in taken if refused[n] > reached[n])
        taken, left = reached, left - fits
        for name in {culprit, *(closed(taken) if closed else ())}:
            top[name] = before[name] + taken[name]
    return taken
