"""The time since which GPUs have had no healthy hardware: from the history, and no longer than it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from models.base import Since
from models.buffers.hourly_health import Stretch, stretches
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot
from models.planning.lacking_since import find_lacking_since
from models.planning.plan import make_plan

START = datetime(2026, 11, 1, tzinfo=UTC)


def series(*healthy: int, total: int = 361) -> Stretch:
    """One look a day from START on."""
    at = np.array([(START + timedelta(days=n)).timestamp() for n in range(len(healthy))])
    return stretches(at, np.full(len(healthy), float(total)), np.array(healthy, dtype=float))


def cluster(quota: int, *healthy: int, total: int = 361) -> Snapshot:
    return Snapshot(
        cluster="a",
        generation=1,
        islands=tuple(Island(name=f"i{n}", total_gpus=total, healthy_gpus=h) for n, h in enumerate(healthy)),
        quotas=(Quota(team="research", gpus=quota),),
    )


def day(number: int, *, or_earlier: bool = False) -> Since:
    return Since(at=START + timedelta(days=number), or_earlier=or_earlier)


@pytest.mark.parametrize(
    ("healthy", "since"),
    [
        ([361] * 10 + [319], day(10)),  # ten days of full health, and one look at a shortage
        ([300, 319, 319], day(0, or_earlier=True)),  # the whole known history
        ([319, 320, 318, 319], day(2)),  # on one day a GPU more was backed
        ([361, 345, 300, 319], day(2)),  # as many as are promised were healthy: none was phantom
        ([319], day(0, or_earlier=True)),
        ([], None),
    ],
)
def test_it_has_been_so_since_as_many_were_first_missing_for_good(healthy: list[int], since: Since | None) -> None:
    assert find_lacking_since(cluster(345, 319), {"i0": series(*healthy)}) == since


def test_what_moves_from_one_island_to_another_is_still_missing() -> None:
    """345 promised, 319 healthy in both islands together all the time, but on the first day."""
    past = {"i0": series(345, 319, 0, 160), "i1": series(0, 0, 319, 159)}
    assert find_lacking_since(cluster(345, 160, 159), past) == day(1)


def test_nothing_is_claimed_before_every_island_was_looked_at_nor_of_what_is_backed() -> None:
    late = stretches(np.array([(START + timedelta(days=1)).timestamp()]), np.array([361.0]), np.array([159.0]))
    assert find_lacking_since(cluster(345, 160, 159), {"i0": series(0, 160), "i1": late}) == day(1, or_earlier=True)
    assert find_lacking_since(cluster(345, 160, 159), {"i0": series(160)}) is None
    assert find_lacking_since(cluster(300, 319), {"i0": series(319)}) is None


def test_a_plan_keeps_its_hash_whenever_its_shortage_began() -> None:
    plan = make_plan(cluster(345, 319), Policy())
    known = plan.model_copy(update={"phantom_since": day(3)})
    assert known.hash == plan.hash
    assert known.composition == "(26 with no healthy GPU behind since 2026-11-04 00:00Z, 13 to flex)"
    assert plan.composition == "(26 with no healthy GPU behind, 13 to flex)"
