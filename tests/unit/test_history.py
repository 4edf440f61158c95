"""Hours from looks at islands, checked against a plain walk through every minute."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.buffers.hourly_health import Series, Stretch, hourly, stretches
from models.cluster.windows import Window, WindowKind

T0 = datetime(2026, 1, 1, tzinfo=UTC)
START = T0.timestamp()
MINUTES = 60 * 12

looks = st.dictionaries(st.integers(0, MINUTES - 1), st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12)


def looked(found: dict[int, tuple[int, int]]) -> Stretch:
    """An island of 40 GPUs. By minute: healthy, and how many of the others were declared."""
    at = np.array(sorted(found), dtype=float)
    healthy = np.array([found[int(m)][0] for m in at], dtype=float)
    planned = np.array([found[int(m)][1] for m in at], dtype=float)
    return stretches(START + 60 * at, np.full(len(at), 40.0), healthy, planned)


def walked(islands: dict[str, dict[int, tuple[int, int]]]) -> dict[int, tuple[int, int, float, int]]:
    """Return total, worst, mean and planned by hour, computed minute by minute."""
    islands = {name: found for name, found in islands.items() if found}
    last = max(max(found) for found in islands.values())
    end = {name: max(found) + 60 for name, found in islands.items()}
    hours: dict[int, list[tuple[int, int, int]]] = {}
    for minute in range(min(min(found) for found in islands.values()), (last // 60 + 1) * 60):
        total = healthy = planned = 0
        known = False
        for name, found in islands.items():
            seen = max((m for m in found if m <= minute), default=None)
            if seen is None or minute >= end[name]:
                continue
            if minute - seen >= 60:
                break
            known = True
            total, healthy, planned = total + 40, healthy + found[seen][0], planned + found[seen][1]
        else:
            if known:
                hours.setdefault(minute // 60, []).append((total, healthy, min(planned, total - healthy)))
    answer = {}
    for hour, seen_minutes in hours.items():
        if len(seen_minutes) >= 30:
            most = max(t for t, _, _ in seen_minutes)
            missing = max(t - h for t, h, _ in seen_minutes)
            lacking = max(t - h - p for t, h, p in seen_minutes)
            mean = most - sum(t - h for t, h, _ in seen_minutes) / len(seen_minutes)
            answer[hour] = (most, most - missing, mean, missing - lacking)
    return answer


def by_hour(found: Series | None) -> dict[int, tuple[int, int, float, int]]:
    if found is None:
        return {}
    first = found.first - int(START // 3600)
    rows = zip(found.total, found.worst, found.mean, found.planned, strict=True)
    return {first + n: (int(t), int(w), m, int(p)) for n, (t, w, m, p) in enumerate(rows) if not np.isnan(t)}


@given(one=looks, other=looks)
def test_hours_are_what_a_walk_through_every_minute_finds(
    one: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]
) -> None:
    islands = {"x": one, "y": other}
    found = by_hour(hourly({name: looked(seen) for name, seen in islands.items()}))
    wanted = walked(islands) if one or other else {}
    assert found.keys() == wanted.keys()
    for hour, row in wanted.items():
        assert (*found[hour][:2], found[hour][3]) == (*row[:2], row[3])
        assert abs(found[hour][2] - row[2]) < 1e-6


def every_half_hour(healthy: list[int]) -> Stretch:
    at = np.array([START + 1800 * n for n in range(len(healthy))])
    return stretches(at, np.full(len(healthy), 40.0), np.array(healthy, dtype=float))


def window(kind: WindowKind, first: int, last: int, islands: tuple[str, ...] | None, gpus: int | None) -> Window:
    starts, ends = (datetime.fromtimestamp(START + 3600 * hour, UTC) for hour in (first, last))
    return Window(kind=kind, starts=starts, ends=ends, reason="new switches", islands=islands, gpus=gpus)


def test_a_declared_window_explains_what_its_islands_lack_and_no_more() -> None:
    islands = {"x": every_half_hour([40, 40, 8, 8, 8, 8]), "y": every_half_hour([40, 40, 36, 36, 36, 36])}
    found = hourly(islands, [window(WindowKind.MAINTENANCE, 1, 2, ("x",), 24)])
    assert found is not None
    assert found.worst.tolist() == [80, 44, 44]
    assert found.planned.tolist() == [0, 24, 0]
    everything = hourly(islands, [window(WindowKind.SEV, 0, 9, None, None)])
    assert everything is not None
    assert everything.planned.tolist() == [0, 36, 36]
    freeze = hourly(islands, [window(WindowKind.FREEZE, 0, 9, None, None)])
    assert freeze is not None
    assert freeze.planned.tolist() == [0, 0, 0]


def test_two_windows_explain_no_gpu_twice() -> None:
    both = [window(WindowKind.MAINTENANCE, 0, 3, ("x",), 24), window(WindowKind.SEV, 1, 3, ("x",), 24)]
    found = hourly({"x": every_half_hour([8] * 6)}, both)
    assert found is not None
    assert found.planned.tolist() == [24, 32, 32]


def test_an_island_that_is_there_and_silent_is_unknown_and_not_gone() -> None:
    islands = {"x": every_half_hour([40] * 10), "y": every_half_hour([8] * 4)}
    gone, silent = hourly(islands), hourly(islands, there=["x", "y"])
    assert gone is not None
    assert gone.worst.tolist() == [48, 48, 48, 40, 40]  # a look stands for an hour
    assert silent is not None
    assert silent.worst.tolist() == [48, 48, 48]


def test_nothing_is_said_of_what_comes_after_the_end() -> None:
    found = hourly({"x": every_half_hour([40] * 6)}, end=START + 2 * 3600)
    assert found is not None
    assert len(found.total) == 2
    assert hourly({"x": every_half_hour([40] * 6)}, end=START) is None
    assert hourly({}) is None
