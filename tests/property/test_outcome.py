"""In-quota pending GPUs for lack of healthy hardware, against cuts counted by hand."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from models.cluster.island import Island
from models.cluster.quota import Quota
from models.cluster.readings import TeamUsage
from models.cluster.snapshot import Snapshot
from models.planning.placement import PlacementSolver
from models.reports.queued_in_quota import in_quota

ISLANDS = ("X", "Y", "Z")
Leaf = tuple[int, tuple[str, ...] | None, int, int]
gpus = st.integers(0, 12)
healths = st.tuples(gpus, gpus, gpus)
leaf = st.tuples(
    gpus, st.none() | st.sets(st.sampled_from(ISLANDS), min_size=1).map(lambda s: tuple(sorted(s))), gpus, gpus
)
leaves = st.lists(leaf, min_size=1, max_size=4)


def found(health: tuple[int, ...], given_leaves: list[Leaf]) -> tuple[int, int]:
    islands = tuple(Island(name=n, total_gpus=50, healthy_gpus=h) for n, h in zip(ISLANDS, health, strict=True))
    quotas = tuple(Quota(team=f"t{n}", gpus=g, islands=i) for n, (g, i, _, _) in enumerate(given_leaves))
    usage = {
        f"t{n}": TeamUsage(team=f"t{n}", scheduled_gpus=s, pending_gpus=p)
        for n, (_, _, s, p) in enumerate(given_leaves)
    }
    made = in_quota(PlacementSolver(Snapshot(cluster="c", islands=islands, quotas=quotas)), usage)
    assert made.pending_gpus is not None
    assert made.lacking_gpus is not None
    return made.pending_gpus, made.lacking_gpus


def placed(health: tuple[int, ...], wanted: list[tuple[int, tuple[str, ...] | None]]) -> int:
    """The most that fits, by the smallest of all cuts: no flow is asked."""
    of = dict(zip(ISLANDS, health, strict=True))
    return min(
        sum(of[i] for i in cut) + sum(n for n, reach in wanted if not set(reach or ISLANDS) <= set(cut))
        for size in range(len(ISLANDS) + 1)
        for cut in combinations(ISLANDS, size)
    )


@given(healths, leaves)
def test_it_is_what_the_smallest_cut_says(health: tuple[int, ...], given_leaves: list[Leaf]) -> None:
    runs = [(min(g, s), i) for g, i, s, _ in given_leaves]
    asks = [(min(g, s + p), i) for g, i, s, p in given_leaves]
    pending = sum(n for n, _ in asks) - sum(n for n, _ in runs)
    lacking = pending - (placed(health, asks) - placed(health, runs))
    assert found(health, given_leaves) == (pending, lacking)
    assert 0 <= lacking <= pending


@given(healths, leaves, st.integers(0, 2))
def test_one_more_healthy_gpu_never_makes_more_wait(
    health: tuple[int, ...], given_leaves: list[Leaf], where: int
) -> None:
    better = tuple(h + (n == where) for n, h in enumerate(health))
    before, after = found(health, given_leaves), found(better, given_leaves)
    assert before[0] == after[0]
    assert before[1] - 1 <= after[1] <= before[1]


@given(healths, leaves)
def test_what_is_asked_beyond_the_quota_changes_nothing(health: tuple[int, ...], given_leaves: list[Leaf]) -> None:
    more = [(g, i, s, p + (5 if s + p >= g else 0)) for g, i, s, p in given_leaves]
    assert found(health, more) == found(health, given_leaves)
