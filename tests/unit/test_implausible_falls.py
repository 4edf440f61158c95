"""Falls judged across a source: which are too many to be believed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from models.cluster.implausible_falls import Level, doubt_reason, still_fallen
from models.cluster.island import Island

DROP = Fraction(20, 100)


def levels(*lost: int, total: int = 100, node: int = 8) -> list[Level]:
    """Clusters that lost so many of all their GPUs."""

    def island(healthy: int) -> tuple[Island]:
        return (Island(name="main", total_gpus=total, healthy_gpus=healthy),)

    return [
        Level(cluster=f"c{n}", gpus_per_node=node, before=island(total), now=island(total - gpus))
        for n, gpus in enumerate(lost)
    ]


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ((9, 9, 9, 9, 0, 0), "source s lost 36 of 600 GPUs in 4 clusters within an hour"),
        ((9, 9, 9, 0, 0, 0), ""),
        ((60, 61, 0, 0, 0, 0), "source s lost 121 of 600 GPUs in 2 clusters within an hour"),
        ((60, 60, 0, 0, 0, 0), ""),
        ((100,), ""),
        ((100, 0), ""),
        ((8, 8, 8, 8, 8, 8), ""),
        ((), ""),
    ],
    ids=["more than three", "three", "a fifth", "not a fifth", "alone", "one of two", "a node each", "nobody"],
)
def test_falls_are_too_many_by_clusters_or_by_gpus(lost: tuple[int, ...], why: str) -> None:
    assert doubt_reason("s", levels(*lost), DROP, 3) == why


def test_in_a_small_cluster_less_than_a_node_is_a_fall() -> None:
    assert doubt_reason("s", levels(4, 4, 4, 4, total=16), DROP, 3) != ""
    assert still_fallen(levels(4, 3, 8, total=16), DROP) == ("c0", "c2")
