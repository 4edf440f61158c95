"""A look solves the backing of each picture of a cluster once: of the values it tests, and of others that are there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from activities.rollout.observation import observe_from
from models.cluster.island import Island
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, Present, QuotaReading
from models.cluster.snapshot import Snapshot
from models.planning.placement import PlacementSolver
from models.rollout.messages import ObserveRequest

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ISLAND = Island(name="X", total_gpus=16, healthy_gpus=12)
READING = QuotaReading(cluster="c", generation=1, quotas=(Present(team="a", gpus=8), Present(team="b", gpus=6)))


@pytest.mark.parametrize(
    ("values", "shadow", "solved", "surplus", "present"),
    [
        (None, False, 1, 0, None),
        ({"a": 8, "b": 6}, False, 1, 0, None),
        ({"a": 4, "b": 6}, False, 2, 0, 12),
        ({"a": 4, "b": 6}, True, 2, 2, 12),
    ],
)
def test_a_look_solves_each_picture_once(
    values: dict[str, int] | None,
    shadow: bool,
    solved: int,
    surplus: int,
    present: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solves: list[Snapshot] = []
    begin = PlacementSolver.__init__

    def counted(solver: PlacementSolver, snapshot: Snapshot) -> None:
        solves.append(snapshot)
        begin(solver, snapshot)

    monkeypatch.setattr(PlacementSolver, "__init__", counted)
    evidence = Evidence(READING, HealthSample(cluster="c", at=NOW, islands=(ISLAND,)), {}, NOW)
    request = ObserveRequest(cluster="c", at=NOW, values=values, shadow=shadow, flex_after=timedelta(hours=1))
    seen = observe_from(evidence, request, {"X": 12})
    assert len(solves) == solved
    assert seen.flex is not None
    assert (seen.flex.surplus_gpus, seen.flex.standing_gpus) == (surplus, surplus)
    assert (None if seen.present is None else seen.present.backed_gpus) == present
    assert seen.backing == {"a": 7, "b": 5} if values is None or values["a"] == 8 else {"a": 4, "b": 6}
