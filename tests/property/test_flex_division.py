"""Properties of every division of flex, on random trees of teams."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from models.flex.division import Claims, FlexDemand, FlexMode, FlexTeam, FlexUse, division, entitlements


@st.composite
def teams(draw: st.DrawFn) -> tuple[FlexTeam, ...]:
    """Up to three levels: namespaces, groups, teams."""
    found: list[FlexTeam] = []
    inner: list[str] = []
    for n in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([None, *inner, *(["implied"] if n else [])]))
        is_inner = draw(st.booleans()) and (parent is None or not parent.startswith("n"))
        name = f"{'n' if parent is None else 'm'}{n}" if is_inner else f"t{n}"
        if is_inner:
            inner.append(name)
        found.append(
            FlexTeam(
                team=name,
                parent=parent,
                quota_gpus=draw(st.one_of(st.none(), st.integers(0, 20))),
                demand_gpus=draw(st.integers(0, 30)),
                weight=Fraction(draw(st.integers(0, 12)), draw(st.integers(1, 3))),
                limit_gpus=draw(st.one_of(st.none(), st.integers(0, 25))),
                priority=draw(st.integers(0, 2)),
            )
        )
    parents = {t.parent for t in found}
    return tuple(t.model_copy(update={"demand_gpus": 0}) if t.team in parents else t for t in found)


modes = st.sampled_from(FlexMode)
capacities = st.integers(0, 150)
uses = st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1000), st.floats(0, 1000)), max_size=4)


def demand(
    capacity: int, mode: FlexMode, given_teams: tuple[FlexTeam, ...], used: list[tuple[int, float, float]]
) -> FlexDemand:
    usage = [
        FlexUse(team=given_teams[n % len(given_teams)].team, gpu_hours=hours, hours_ago=ago) for n, hours, ago in used
    ]
    return FlexDemand(capacity_gpus=capacity, mode=mode, teams=given_teams, usage=tuple(usage))


def shares(asked: FlexDemand) -> dict[str, int]:
    return {p.team: p.gpus for p in division(asked).portions}


def room(asked: FlexDemand, name: str, got: dict[str, int]) -> int:
    """Return how many more GPUs this team could take, by its own demand and every limit above it."""
    by_name = {t.team: t for t in asked.teams}

    def taken(top: str) -> int:
        below = [t.team for t in asked.teams if t.parent == top]
        return sum(taken(b) for b in below) if below else got.get(top, 0)

    team = by_name[name]
    left = team.demand_gpus - got[name]
    at: str | None = name
    while at is not None:
        here = by_name.get(at)
        if here is not None and here.limit_gpus is not None:
            left = min(left, here.limit_gpus - taken(at))
        at = None if here is None else here.parent
    return left


@given(capacity=capacities, mode=modes, among=teams(), used=uses)
def test_gpus_are_conserved_and_nobody_gets_more_than_it_can_use(
    capacity: int, mode: FlexMode, among: tuple[FlexTeam, ...], used: list[tuple[int, float, float]]
) -> None:
    asked = demand(capacity, mode, among, used)
    found = division(asked)
    got = shares(asked)
    assert sum(got.values()) + found.unused_gpus == capacity
    assert min(got.values()) >= 0
    assert all(room(asked, name, got) >= 0 for name in got)
    if found.unused_gpus:
        assert all(room(asked, name, got) == 0 for name in got), "work-conserving"
    assert all(0 <= p.in_quota_gpus <= p.gpus for p in found.portions)


@given(capacity=capacities, mode=modes, among=teams(), used=uses)
def test_one_more_gpu_lowers_nobodys_share(
    capacity: int, mode: FlexMode, among: tuple[FlexTeam, ...], used: list[tuple[int, float, float]]
) -> None:
    before, after = (shares(demand(c, mode, among, used)) for c in (capacity, capacity + 1))
    assert all(after[name] >= before[name] for name in before)


@given(capacity=capacities, mode=modes, among=teams(), used=uses, dice=st.randoms(use_true_random=False))
def test_the_order_of_the_teams_does_not_matter(
    capacity: int, mode: FlexMode, among: tuple[FlexTeam, ...], used: list[tuple[int, float, float]], dice: object
) -> None:
    asked = demand(capacity, mode, among, used)
    shuffled = list(asked.teams)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    uses_reversed = tuple(reversed(asked.usage))
    again = asked.model_copy(update={"teams": tuple(shuffled), "usage": uses_reversed})
    assert shares(asked) == shares(again)
    assert shares(asked) == shares(asked)


@given(capacity=capacities, mode=modes, among=teams())
def test_nobody_envies_a_sibling_of_its_own_weight(capacity: int, mode: FlexMode, among: tuple[FlexTeam, ...]) -> None:
    """Of two siblings with equal weight, quota and priority, the one with less flex has all that it can use."""
    asked = demand(capacity, mode, among, [])
    got = shares(asked)
    by_name = {t.team: t for t in asked.teams}
    leaves = [by_name[name] for name in got]
    found = {p.team: p for p in division(asked).portions}
    for one, other in combinations(leaves, 2):
        alike = (one.parent, one.weight, one.quota_gpus or 0, one.priority) == (
            *(other.parent, other.weight),
            *(other.quota_gpus or 0, other.priority),
        )
        if not alike:
            continue
        less, more = sorted((one, other), key=lambda t: found[t.team].flex_gpus)
        if found[more.team].flex_gpus - found[less.team].flex_gpus > 1:
            top = less.demand_gpus if less.limit_gpus is None else min(less.demand_gpus, less.limit_gpus)
            assert got[less.team] == top


@given(capacity=capacities, among=teams())
def test_a_flat_fleet_gets_its_quotas_before_anybody_gets_flex(capacity: int, among: tuple[FlexTeam, ...]) -> None:
    flat = tuple(t.model_copy(update={"parent": None}) for t in among)
    assume(len({t.team for t in flat}) == len(flat))
    asked = demand(capacity, FlexMode.EQUAL, flat, [])
    owed = {
        t.team: min(t.demand_gpus, t.quota_gpus or 0, *([] if t.limit_gpus is None else [t.limit_gpus])) for t in flat
    }
    got = shares(asked)
    if sum(owed.values()) <= capacity:
        assert all(got[name] >= owed[name] for name in owed)
    else:
        assert all(got[name] <= owed[name] for name in owed)


# --- where jobs are known: who holds what, and what may be in quota ------------------------------------------


@given(
    capacity=capacities,
    mode=modes,
    among=teams(),
    held=st.lists(st.integers(0, 30), min_size=9, max_size=9),
    flex=st.lists(st.integers(0, 30), min_size=9, max_size=9),
)
def test_whoever_holds_what_one_more_gpu_lowers_nobody_and_quota_comes_first(
    capacity: int, mode: FlexMode, among: tuple[FlexTeam, ...], held: list[int], flex: list[int]
) -> None:
    asked = [demand(c, mode, among, []) for c in (capacity, capacity + 1)]
    leaves = list(shares(asked[0]))
    for_quota = {n: max(0, t.demand_gpus - f) for t, f in zip(among, flex, strict=False) if (n := t.team) in leaves}
    claims = Claims(for_quota, dict(zip(leaves, held, strict=False)))
    before, after = (entitlements(a, claims) for a in asked)
    assert sum(e.share_gpus for e in before.values()) <= capacity
    for t in among:
        if t.team not in leaves:
            continue
        assert after[t.team].share_gpus >= before[t.team].share_gpus
        assert before[t.team].in_quota_gpus <= min(t.quota_gpus or 0, for_quota[t.team])
    if sum(e.in_quota_gpus for e in before.values()) <= capacity and all(t.parent is None for t in among):
        assert all(before[n].share_gpus >= before[n].in_quota_gpus for n in before)


@given(
    held=st.lists(st.integers(0, 9), min_size=2, max_size=6),
    more=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    dice=st.permutations("abcdef"),
)
def test_who_holds_a_fair_division_keeps_it_whatever_the_names(
    held: list[int], more: list[int], dice: list[str]
) -> None:
    """Fair among equals: nobody has two more than one who could use another."""
    wants = [h + m for h, m in zip(held, more, strict=False)]
    fair = all(held[i] <= held[j] + 1 for i in range(len(held)) for j in range(len(held)) if wants[j] > held[j])
    assume(fair)
    given_teams = tuple(FlexTeam(team=n, demand_gpus=w) for n, w in zip(dice, wants, strict=False))
    holds = dict(zip(dice, held, strict=False))
    found = entitlements(demand(sum(held), FlexMode.EQUAL, given_teams, []), Claims({}, holds))
    assert {n: e.share_gpus for n, e in found.items()} == holds
