"""Health history out of the ledger: the same hours as from the samples themselves, on every database."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import numpy as np
import pytest

from activities.adapters.ledger.facade import Ledger
from models.buffers.hourly_health import Stretch, hourly, stretches
from tests.integration.ledger.world import CLUSTER, ForeignTool


def sampled(tool: ForeignTool, island: str, samples: dict[datetime, tuple[int, int]]) -> None:
    """Write samples by time: total and healthy GPUs."""
    tool.run("DELETE FROM health_samples WHERE cluster = 'alpha' AND island = ?", island)
    for at, (total, healthy) in samples.items():
        given = at if tool.postgresql else f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"
        tool.run(
            "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            " VALUES ('alpha', ?, ?, ?, ?, '')",
            *(island, given, total, healthy),
        )


def plain(samples: dict[datetime, tuple[int, int]]) -> Stretch:
    at = np.array([time.timestamp() for time in samples])
    total, healthy = (np.array([float(s[n]) for s in samples.values()]) for n in (0, 1))
    return stretches(at, total, healthy)


@pytest.mark.parametrize("seed", range(4))
def test_the_hours_are_those_of_all_samples(ledger: Ledger, tool: ForeignTool, seed: int) -> None:
    dice = random.Random(seed)
    now = ledger.health._database.now()
    islands: dict[str, dict[datetime, tuple[int, int]]] = {"X": {}, "Y": {}}
    for samples in islands.values():
        at, healthy = now - timedelta(hours=90), 200
        while at < now:
            samples[at] = (200, healthy)
            at += timedelta(minutes=dice.choice((5, 20, 59, 60, 61, 130)), microseconds=dice.randrange(10**6))
            healthy = dice.choice((healthy, healthy, healthy, 180, 192, 200))
    for island, samples in islands.items():
        sampled(tool, island, samples)

    found = ledger.health.history(CLUSTER, now - timedelta(days=9), now)
    assert found.keys() == islands.keys()
    assert all(len(found[island].since) < len(samples) for island, samples in islands.items()), "changes alone"
    ours, wanted = hourly(found), hourly({island: plain(samples) for island, samples in islands.items()})
    assert ours is not None
    assert wanted is not None
    assert ours.first == wanted.first
    for name in ("total", "worst", "planned"):
        assert np.array_equal(getattr(ours, name), getattr(wanted, name), equal_nan=True), name
    assert np.allclose(ours.mean, wanted.mean, equal_nan=True)


def test_a_long_time_without_a_change_is_one_stretch_of_many_hours(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    for island in ("X", "Y"):
        sampled(tool, island, {now - timedelta(hours=50 - n): (200, 184) for n in range(40)})
    found = ledger.health.history(CLUSTER, now - timedelta(days=9), now)
    assert {len(one.since) for one in found.values()} == {1}
    ours = hourly(found)
    assert ours is not None
    assert ours.worst.tolist() == [368] * 40


def test_what_lies_before_or_ahead_of_now_is_left_out(ledger: Ledger, tool: ForeignTool) -> None:
    now = ledger.health._database.now()
    times = (now - timedelta(hours=9), now - timedelta(hours=2), now - timedelta(minutes=30), now + timedelta(hours=2))
    sampled(tool, "X", {at: (200, 100 + n) for n, at in enumerate(times)})
    sampled(tool, "Y", {})
    found = ledger.health.history(CLUSTER, now - timedelta(hours=3), now)
    assert found.keys() == {"X"}
    assert found["X"].healthy.tolist() == [101, 102]
    assert (found["X"].until - found["X"].since).tolist() == [3600, 3600]
    assert ledger.health.history("nobody", now - timedelta(hours=3), now) == {}
