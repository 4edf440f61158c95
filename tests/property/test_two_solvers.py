"""A small cluster is solved without scipy and a large one with it: to the GPU the same, whichever is asked.

What both must say is in tests/property/test_planner_agrees.py, which compares the small way with the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.cluster.policy import Policy
from models.cluster.snapshot import Snapshot
from models.planning import max_flow, placement
from models.planning.backing import back, touched_leaves
from models.planning.max_flow import FlowNetwork
from models.planning.placement import PlacementSolver
from models.planning.plan import make_plan
from tests.strategies import large_snapshots, policies, small_snapshots
from tests.tried import examples

pytestmark = pytest.mark.fuzzed
EACH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
NODES = 7


@contextmanager
def up_to(edges: int, ways: int) -> Iterator[None]:
    with mock.patch.object(max_flow, "SMALL", edges), mock.patch.object(placement, "FEW", ways):
        yield


@pytest.mark.nightly
@settings(EACH, max_examples=examples(200))
@given(small_snapshots() | large_snapshots(), policies())
def test_backing_and_plans_are_the_same_by_both(snapshot: Snapshot, policy: Policy) -> None:
    with up_to(0, 0):
        by_scipy = back(snapshot), make_plan(snapshot, policy), touched_leaves(PlacementSolver(snapshot))
    with up_to(10**6, 10**4):
        assert (back(snapshot), make_plan(snapshot, policy), touched_leaves(PlacementSolver(snapshot))) == by_scipy


edges = st.dictionaries(
    st.tuples(st.integers(0, NODES), st.integers(0, NODES)).filter(lambda edge: edge[0] != edge[1]), st.integers(0, 12)
)


@settings(EACH, max_examples=examples(400))
@given(edges)
def test_flows_and_what_they_leave_in_reach_are_the_same_by_both(capacities: dict[tuple[int, int], int]) -> None:
    network = FlowNetwork()
    for tail, head in capacities:
        network.edge(*({0: "source", 1: "sink"}.get(node, node) for node in (tail, head)))
    rooms = list(capacities.values())
    with up_to(0, 0):
        by_scipy = network.maximum(rooms), network.reached_nodes(rooms)
    with up_to(10**6, 0):
        assert (network.maximum(rooms), network.reached_nodes(rooms)) == by_scipy
