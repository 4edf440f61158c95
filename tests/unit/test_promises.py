"""The size of a promise: what a history says, what it cannot say, and how a promise follows it."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.buffers import estimator
from models.buffers.backtest import health, promises
from models.buffers.estimator import SHAPE, WEEK_HOURS
from models.buffers.health_generator import Recipe, simulate_health
from models.buffers.hourly_health import Series
from models.cluster.derived_buffer import TERMS, BufferBasis, Derived, HealthTerms, Steps, follow_promise, step_promise
from models.cluster.fleet_file import merged_policy
from models.cluster.policy import Policy

NODES = 100
PRIOR = SHAPE.prior_share * NODES + SHAPE.prior_root * math.sqrt(NODES) + 1
"""What a surprise of one hour in a thousand is, before anything is known: 5 of 100 nodes."""


TWO_WEEKS = TERMS.model_copy(update={"history": timedelta(weeks=2)})
"""What is derived from little: by default the floor holds for 13 weeks."""


def derived(down: np.ndarray, total: int, terms: HealthTerms = TWO_WEEKS, node: int = 1) -> Derived:
    return estimator.derive_buffer(down, total, terms, node)


def flat(level: float, weeks: int) -> np.ndarray:
    return np.full(weeks * WEEK_HOURS, float(level))


def test_without_history_the_floor_holds() -> None:
    found = derived(np.empty(0), NODES)
    assert (found.ground, found.promise, found.buffer) == (BufferBasis.SHORT, 85, Fraction(15, 100))
    assert "no health history" in found.text


def test_a_short_history_counts_where_it_asks_for_more_than_the_floor() -> None:
    calm, bad = derived(flat(1, 1), NODES), derived(flat(20, 1), NODES)
    assert (calm.ground, calm.promise) == (BufferBasis.SHORT, 85)
    assert bad.ground is BufferBasis.SHORT
    assert bad.needed == 20 + bad.reserve > 20


def test_two_quiet_weeks_leave_the_level_and_the_prior() -> None:
    """n = 3 weeks of 0 surprises beside 13 of the prior: 13/16 * exp(-s ln(1000) / 5) <= 0.001, so s = 5."""
    found = derived(flat(3, 3), NODES)
    assert found.ground is BufferBasis.HISTORY
    assert (found.level, found.reserve, found.promise) == (3, 5, 92)
    assert math.ceil(PRIOR * math.log(1000 * 13 / 16) / math.log(1000)) == 5


def test_years_of_calm_shrink_the_reserve_but_never_to_nothing() -> None:
    reserves = [derived(flat(0, weeks), NODES).reserve for weeks in (3, 13, 26, 53)]
    assert reserves == sorted(reserves, reverse=True)
    assert reserves[0] > reserves[-1] > 0


def test_a_burst_that_was_seen_is_held_in_reserve() -> None:
    down = flat(2, 20)
    down[10 * WEEK_HOURS : 10 * WEEK_HOURS + 40] = 6
    assert derived(down, NODES).reserve == 5  # four above the level of 2 are within the prior's own size
    down[10 * WEEK_HOURS : 10 * WEEK_HOURS + 40] = 12
    found = derived(down, NODES)
    assert found.worst == 12
    assert found.reserve == math.ceil(10 * SHAPE.enlarged)  # past it, what was seen is taken larger


def test_an_outage_of_all_for_an_hour_a_year_is_within_the_target_and_one_a_week_is_not() -> None:
    rare, often = flat(0, 52), flat(0, 52)
    rare[30 * WEEK_HOURS] = NODES
    often[::WEEK_HOURS] = NODES
    assert derived(rare, NODES).promise is not None
    wild = derived(often, NODES)
    assert (wild.ground, wild.promise, wild.buffer) == (BufferBasis.WILD, None, None)
    assert "the largest allowed share is 0.5: " in wild.text


def test_what_has_been_down_for_most_of_a_day_counts_at_once() -> None:
    down = flat(2, 20)
    down[-13:] = 9
    assert derived(down, NODES).level == 9
    down[-13:-5] = 2  # over again
    assert derived(down, NODES).level == 2


def test_unknown_hours_are_neither_good_nor_bad() -> None:
    down = flat(3, 20)
    down[::2] = np.nan
    assert derived(down, NODES).promise == derived(flat(3, 20), NODES).promise


def test_a_stale_history_falls_back_to_the_floor() -> None:
    down = flat(3, 20)
    down[-10 * 24 :] = np.nan
    found = derived(down, NODES)
    assert (found.ground, found.promise) == (BufferBasis.STALE, 85)
    assert "mostly unknown" in found.text


def test_a_looser_target_and_a_shorter_memory_promise_more() -> None:
    down = flat(0, 30)
    down[::50] = 4
    strict = derived(down, NODES, TERMS)
    loose = derived(down, NODES, HealthTerms(target=Fraction(97, 100)))
    assert loose.needed < strict.needed


def test_gpus_come_in_nodes() -> None:
    by_node, by_gpu = derived(flat(3, 9), NODES), derived(8 * flat(3, 9), 8 * NODES, node=8)
    assert by_gpu.level == 8 * by_node.level
    assert 8 * (by_node.reserve - 1) < by_gpu.reserve <= 8 * by_node.reserve


histories = st.lists(st.integers(0, 30), min_size=1, max_size=40)


@given(histories, st.integers(31, 400))
def test_the_parts_add_up_and_stay_in_bounds(weeks: list[int], total: int) -> None:
    down = np.repeat(np.array(weeks, dtype=float), WEEK_HOURS)
    found = derived(down, total)
    assert 0 <= found.needed <= total
    if found.ground is BufferBasis.HISTORY:
        assert found.needed == found.level + found.reserve
    if found.promise is not None:
        assert found.needed <= total * TERMS.most


@given(histories, st.integers(1, 40), st.sampled_from([1, 8]))
def test_no_part_is_more_than_there_is_though_the_cluster_was_larger(weeks: list[int], nodes: int, node: int) -> None:
    down = np.repeat(np.array(weeks, dtype=float) * node, WEEK_HOURS)
    found, total = derived(down, nodes * node, node=node), nodes * node
    assert 0 <= found.level <= total
    assert 0 <= found.reserve <= total - found.level
    assert found.level + found.reserve <= found.needed <= total


@given(histories, st.integers(1, 20))
def test_one_more_node_down_in_every_hour_never_promises_more(weeks: list[int], more: int) -> None:
    down = np.repeat(np.array(weeks, dtype=float), WEEK_HOURS)
    better, worse = derived(down, 400), derived(down + more, 400)
    assert worse.promise is None or (better.promise is not None and worse.promise <= better.promise)


def test_a_promise_falls_at_once_and_rises_by_steps_past_the_band() -> None:
    steps = Steps(band=Fraction(2, 100), rise=Fraction(5, 100))
    calm = derived(flat(3, 3), NODES)
    assert calm.promise == 92
    assert follow_promise(None, calm, steps) == 92
    assert follow_promise(95, calm, steps) == 92
    assert follow_promise(90, calm, steps) == 90  # two nodes are inside the band
    assert follow_promise(89, calm, steps) == 92
    assert follow_promise(60, calm, steps) == 65


@pytest.mark.parametrize(
    ("standing", "of", "total", "wanted"),
    [
        (16, 20, 200, 170),  # 160 as it grows, then a twentieth of 200
        (16, 20, 20, 17),
        (16, 20, 25, 21),  # 20 of 25
        (85, 100, 90, 85),  # what shrinks may have lost what was down
        (85, 100, 80, 75),  # 5 in reserve
        (16, None, 200, 26),  # nobody said of what: as of today's
    ],
)
def test_a_standing_promise_grows_with_the_cluster(standing: int, of: int | None, total: int, wanted: int) -> None:
    asked = derived(flat(0, 8), total)
    assert follow_promise(standing, asked, of=of) == wanted
    held = step_promise(asked, standing, of=of)
    assert held.promise == wanted
    assert total - held.needed == wanted


def test_week_by_week_a_cluster_that_grows_tenfold_is_promised_so_at_once() -> None:
    size = np.repeat([20.0, 200.0], 8 * WEEK_HOURS)
    one = Series("grown", size, size, size, np.zeros(len(size)))
    weekly = promises(one, health(TWO_WEEKS), 4)
    before = weekly[8]
    assert before is not None
    # The week that sees the new size: ten times what stood, and a step of a twentieth at most.
    assert weekly[9] in range(10 * before, 10 * before + 11)
    assert weekly[9] == min(10 * before + 10, 200 - derived(np.zeros(9 * WEEK_HOURS), 200).needed)


GROWN = "the cluster has grown from 20 to 200, and the promise with it"


@pytest.mark.parametrize(
    ("standing", "of", "total", "said"),
    [
        (300, 400, 400, "the promise rises from 300 only to 320 for now"),
        (386, 400, 400, "the promise stays at 386, as health now allows about as much"),
        (
            *(16, 20, 200),
            f"{GROWN} from 16 to 160; for now it rises only to 170",
        ),
        (
            *(19, 20, 200),
            f"{GROWN} from 19 to 190; health now allows about as much",
        ),
    ],
)
def test_what_holds_a_promise_back_is_said(standing: int, of: int, total: int, said: str) -> None:
    asked = derived(flat(0, 8), total)
    assert step_promise(asked, standing, of=of).text == f"{asked.text}; {said}"


def test_terms_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match=r"floor must be at most 0.5 .most., not 0.6"):
        HealthTerms(floor=Fraction(6, 10))
    with pytest.raises(ValueError, match="total and node must both be at least 1"):
        derived(flat(0, 1), 0)
    assert HealthTerms(horizon=timedelta(weeks=1)).horizon == timedelta(weeks=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_history_in_gpus_promises_what_the_same_one_in_nodes_does(seed: int) -> None:
    """Hardware fails by the node: a reserve of six nodes and a quarter would not hold seven."""
    made = simulate_health(Recipe(nodes=64, weeks=20), seed)
    in_nodes, in_gpus = derived(made.down, 64), derived(8 * made.down, 512, node=8)
    assert (in_gpus.level, in_gpus.reserve) == (8 * in_nodes.level, 8 * in_nodes.reserve)


def test_what_still_lasts_is_level_and_no_surprise_as_well() -> None:
    down = np.zeros(8 * WEEK_HOURS)
    down[-30:] = 200
    lasting = derived(down, 1024, node=8)
    calm = derived(np.zeros(8 * WEEK_HOURS), 1024, node=8)
    assert (lasting.level, lasting.reserve) == (200, calm.reserve)
    over = derived(np.append(down, np.zeros(3 * WEEK_HOURS)), 1024, node=8)
    assert (over.level, over.reserve >= 200) == (0, True), "once it is over it is a surprise that may come again"
    down[-10:] = 264
    assert derived(down, 1024, node=8).level == 200
    assert derived(down, 1024, node=8).reserve >= 64


@pytest.mark.parametrize("weeks", [2, 3, 10, 40, 52])
@pytest.mark.parametrize(("gone", "kept"), [(12, math.ceil(10 * SHAPE.enlarged)), (4, None), (80, NODES - 2)])
def test_a_bad_first_week_is_kept_in_reserve_like_any_other(weeks: int, gone: int, kept: int | None) -> None:
    """60 hours of the first week, 2 nodes down else: ten above the level of its first two weeks, a quarter more as
    they pass the prior; four are within it; of 80 nothing can be promised."""
    down = flat(2, weeks)
    calm = derived(down, NODES)
    down[40:100] = gone
    found = derived(down, NODES)
    assert found.reserve == (calm.reserve if kept is None else kept)
    assert (found.promise is None) is (gone == 80)


def test_what_was_down_before_the_first_hours_level_weighs_as_much_as_what_came_later() -> None:
    """Five hours of twelve weeks: 2.5 in a thousand, 1.2 beside the prior's thirteen weeks."""
    reserves = []
    for first in (10, 5 * WEEK_HOURS + 10):
        down = flat(0, 12)
        down[first : first + 5] = 30
        reserves.append(derived(down, NODES).reserve)
    assert reserves[0] == reserves[1] > 30


@pytest.mark.parametrize("climb_weeks", [1, 2, 4, 8, 16])
def test_a_climb_is_kept_once_in_the_level_and_not_in_the_reserve_too(climb_weeks: int) -> None:
    """Down nodes rise from 0 to 35 of 400, and stay for a week: nothing was ever above today's level."""
    ends = np.full(WEEK_HOURS, 35.0)
    climb = np.concatenate([flat(0, 10), np.linspace(0, 35, climb_weeks * WEEK_HOURS), ends])
    found, calm = derived(climb, 400), derived(flat(35, 11 + climb_weeks), 400)
    assert found.worst == 35
    assert (found.level, found.reserve) == (calm.level, calm.reserve)
    assert found.needed <= 47


def test_a_surprise_is_what_exceeds_the_level_then_and_the_level_now() -> None:
    """40 of 400 down in a burst on a level of 2; today's is 20, so 20 may come on top: more than the prior's 13."""
    down = flat(2, 30)
    down[12 * WEEK_HOURS : 12 * WEEK_HOURS + 60] = 40
    down[-2 * WEEK_HOURS :] = 20
    found = derived(down, 400)
    assert found.level == 20
    assert found.reserve == math.ceil(20 * 1.25) == 25


def test_of_two_middle_hours_the_worse_is_the_level() -> None:
    half = np.tile([24.0, 32.0], 3 * WEEK_HOURS)
    assert derived(half, 768, node=8).level == 32


def test_terms_lie_over_the_terms_that_stand() -> None:
    standing = Policy.model_validate({"buffer": {"health": {"target": 0.99, "horizon": "1w"}}})
    assert merged_policy(standing, {"buffer": {"health": {}}}) == standing
    found = merged_policy(standing, {"buffer": {"health": {"horizon": "2w"}}}).terms
    assert found is not None
    assert (found.target, found.horizon) == (Fraction(99, 100), timedelta(weeks=2))
    assert merged_policy(standing, {"buffer": 0.1}).terms is None
    assert merged_policy(Policy(), {"buffer": {"health": {}}}).terms == TERMS


def test_a_cluster_that_needs_all_it_has_is_left_nothing() -> None:
    found = derived(np.full(4 * WEEK_HOURS, 240.0), 256, node=8)
    assert (found.ground, found.needed, found.promise) == (BufferBasis.WILD, 256, None)
    assert found.text.startswith(
        "all 256 GPUs would have to stay unpromised, and the largest allowed share is 0.5: 240 GPUs have been "
        "down most of the time"
    )
