"""Any difference between the quota system and the last receipt: each promise is approved and fits the quota above it.

What must hold is counted here from the quota system's own values and a tree of this file; no arithmetic of the product.
Every kind of change, under every policy, in every stage that has written, with what a person or a failure brings next.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from client.doctor import promises_checks
from models.cluster.policy import Policy
from models.cluster.readings import QuotaReading
from models.notices import NoticeKind
from models.rollout import request_builders
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.status_questions import Overview
from tests.unit.pure_world import Refused, World, parent, quota

HEALTHY = 48
FLAT = (quota("evals", 16), quota("infra", 16), quota("training", 16))
TREE = (
    parent("org", 48),
    parent("lab", 32, parent="org"),
    quota("evals", 16, parent="lab"),
    quota("infra", 16, parent="lab"),
    quota("training", 16, parent="org"),
)
SLOW = {"notice": "0s", "soak_buffered": "9d", "soak_enforced": "9d", "plausible_drop": 0.9, "recover_after": "1h"}


class Scheduler(World):
    """A quota system that lets through whatever others set, as Slurm does; and who has agreed to what."""

    def __init__(self, quotas: Any, **policy: Any) -> None:
        self.agreed: dict[str, int] = {}
        self.set_by_others: dict[str, int | None] = {}
        self.unnoticed = False
        super().__init__(quotas, {"main": (HEALTHY, HEALTHY)}, every_state=False, **policy)

    def noticed(self) -> None:
        if not self.unnoticed:
            super().noticed()

    def foreign(self, team: str, gpus: int | None, by: str = "", **more: Any) -> None:
        kept, self.limit = self.limit, None
        self.set_by_others[team] = gpus
        unnoticed, self.unnoticed = self.unnoticed, True
        super().foreign(team, gpus, by, **more)
        self.limit, self.unnoticed = kept, unnoticed
        self.noticed()

    def agrees(self) -> None:
        """A person has said yes to what stands now."""
        self.agreed = self.values


def begun(quotas: Any, stage: Stage, **policy: Any) -> Scheduler:
    """Return a world in this stage, under this policy."""
    world = copy.copy(first_in(quotas, stage))
    for name, value in vars(world).items():
        if isinstance(value, dict | list | set):
            setattr(world, name, copy.copy(value))
    world.policy = Policy.model_validate({**world.policy.model_dump(mode="json"), **policy})
    world.r = world.r.but(policy=world.policy)
    return world


@functools.cache
def first_in(quotas: Any, stage: Stage) -> Scheduler:
    soaks = {Stage.BUFFERED: {}, Stage.ENFORCED: {"soak_buffered": "0s"}}.get(
        stage, {"soak_buffered": "0s", "soak_enforced": "0s"}
    )
    world = Scheduler(quotas, **{**SLOW, **soaks})
    world.start()
    world.until(stage)
    world.agrees()
    assert world.values["evals"] + world.values["infra"] + world.values["training"] == 40
    return world


def raises(world: Scheduler) -> None:
    world.foreign("evals", 30)


def lowers(world: Scheduler) -> None:
    world.foreign("evals", 3)


def removes(world: Scheduler) -> None:
    world.foreign("evals", None)


def adds(world: Scheduler) -> None:
    world.foreign("newteam", 20, parent="lab" if "lab" in world.quotas else None)


def adds_and_removes(world: Scheduler) -> None:
    removes(world)
    adds(world)


def gives_back_otherwise(world: Scheduler) -> None:
    adds_and_removes(world)
    world.foreign("evals", 16, parent="lab" if "lab" in world.quotas else None)


def lowers_the_parent(world: Scheduler) -> None:
    world.foreign("lab", 9)


def raises_the_parent(world: Scheduler) -> None:
    world.foreign("lab", 60)


def raises_all(world: Scheduler) -> None:
    for team in ("evals", "infra", "training"):
        world.foreign(team, 40)


CHANGES = (raises, lowers, removes, adds, adds_and_removes, gives_back_otherwise, raises_all)
OF_TREES = (lowers_the_parent, raises_the_parent)


def sum_of(values: Mapping[str, int], tree: Mapping[str, str | None]) -> int:
    """Return what the leaves hold, as far as the quotas above allow."""

    def of(team: str) -> int:
        below = [child for child, above in tree.items() if above == team and child in values]
        return min(values[team], sum(map(of, below))) if below else values[team]

    return sum(of(team) for team in values if tree[team] is None)


def tree_of(world: World) -> dict[str, str | None]:
    return {team: q.parent for team, q in world.quotas.items()}


def check(world: Scheduler) -> None:
    """Check each promise in the status: it was agreed, is in the quota system, and fits under all quotas above."""
    values, tree, promises = world.values, tree_of(world), world.promises
    for team, gpus in promises.items():
        assert gpus == values[team]
        assert gpus <= world.agreed.get(team, -1), f"nobody approved {team} at {gpus}"
    for above in {one for one in tree.values() if one is not None}:
        below = {t: g for t, g in promises.items() if above in chain(tree, t)}
        assert sum(below.values()) <= values[above], f"{above} allows {values[above]} of {below}"


def chain(tree: Mapping[str, str | None], team: str) -> list[str]:
    above = tree[team]
    return [] if above is None else [above, *chain(tree, above)]


def promises_fit(world: Scheduler) -> None:
    """Once `breach_after` has passed."""
    assert sum(world.promises.values()) <= sum(i.healthy_gpus for i in world.islands.values())


def baseline(world: World) -> dict[str, int]:
    return {q.team: q.gpus for q in world.r.baseline.quotas}


def nothing(world: Scheduler) -> None:
    pass


def nodes_fail(world: Scheduler) -> None:
    world.healthy(32)


def a_person_accepts(world: Scheduler) -> None:
    if "drift" in world.holds:
        world.say(Command.RESOLVE, hold="drift", how="accept", run=False)
        world.agrees()
        world.run()


def a_person_restores(world: Scheduler) -> None:
    if "drift" in world.holds:
        world.say(Command.RESOLVE, hold="drift", how="restore")


def a_person_undoes(world: Scheduler) -> None:
    world.say(Command.ROLLBACK)


NEXT: tuple[Callable[[Scheduler], None], ...] = (
    nothing,
    nodes_fail,
    a_person_accepts,
    a_person_restores,
    a_person_undoes,
)


@pytest.mark.parametrize("then", NEXT, ids=lambda do: do.__name__)
@pytest.mark.parametrize("policy", ["hold", "restore", "accept"])
@pytest.mark.parametrize("stage", [Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED])
@pytest.mark.parametrize("quotas", [FLAT, TREE], ids=["flat", "tree"])
def test_nothing_unapproved_is_a_promise_and_none_is_above_what_hardware_and_the_tree_allow(
    quotas: Any, stage: Stage, policy: str, then: Callable[[Scheduler], None]
) -> None:
    for change in CHANGES + (OF_TREES if quotas is TREE else ()):
        for on_breach in ("rollback", "realign", "hold") if then is nodes_fail else ("rollback",):
            world = begun(quotas, stage, on_drift=policy, on_breach=on_breach)
            ours, first = world.values, baseline(world)
            change(world)
            check(world)
            answered = policy == "accept" or then is a_person_accepts
            then(world)
            check(world)
            for length in ("9m", "2m", "2h"):
                world.wait(length)
                check(world)
            promises_fit(world)
            if policy != "accept" and not answered and then is not a_person_undoes:
                held_or_ours(world, ours, first)


def held_or_ours(world: Scheduler, ours: Mapping[str, int], first: Mapping[str, int]) -> None:
    """Check that, unanswered, others' values are no baseline, and either wait for a person or are ours again."""
    assert baseline(world) == first
    theirs = {t for t, gpus in world.set_by_others.items() if world.values.get(t) == gpus != ours.get(t)}
    if theirs:
        assert "drift" in world.holds, (world.values, world.stage, world.holds)
        reason = next(h.reason for h in world.status.holds if h.id == "drift")
        assert set(re.findall(r"(?:: |, )(\w+) \w+ -> \w+", reason)) == theirs
    assert "the values are ours again" not in lifted(world) or not theirs


def lifted(world: World) -> list[str]:
    return [e.reason for e in world.r.post.outbox if e.text == "hold drift lifted"]


@pytest.mark.parametrize("policy", ["hold", "restore"])
@pytest.mark.parametrize("stage", [Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED])
@pytest.mark.parametrize("quotas", [FLAT, TREE], ids=["flat", "tree"])
@pytest.mark.parametrize("healthy", [48, 32, 19])
def test_a_breach_rollback_restores_no_more_than_others_leave(
    quotas: Any, stage: Stage, policy: str, healthy: int
) -> None:
    for change in CHANGES + (OF_TREES if quotas is TREE else ()):
        world = begun(quotas, stage, on_drift=policy)
        world.say(Command.PAUSE)  # so that nothing is restored before the breach
        ours = world.values
        change(world)
        theirs = {t: world.values.get(t) for t in {*world.values, *ours} if world.values.get(t) != ours.get(t)}
        needed = sum_of(world.values, tree_of(world)) > healthy
        world.healthy(healthy)
        world.wait("11m")
        assert (world.stage is Stage.ROLLED_BACK) is needed, (change, world.stage)
        assert {t: world.values.get(t) for t in theirs} == theirs, "theirs are left alone"
        if needed:
            leaves = [t for t in world.values if t not in tree_of(world).values()]
            mine = {t: g for t, g in world.values.items() if t in leaves and t not in theirs}
            total = sum_of(world.values, tree_of(world))
            assert total <= healthy or not any(mine.values()), (change, world.values)
            if quotas is FLAT and total < healthy:
                assert mine == dict.fromkeys(mine, 16), "no GPU is kept from whom it could be given back to"
            assert "drift" in world.holds


def test_a_raise_by_hand_and_then_a_breach_makes_the_sum_no_larger() -> None:
    """13, 13 and 14 of 48; evals to 30 by hand. It was answered with 16, 30 and 16: 62 of 48."""
    world = begun(FLAT, Stage.BUFFERED)
    assert world.values == {"evals": 13, "infra": 13, "training": 14}
    world.foreign("evals", 30, by="root")
    world.wait("11m")
    assert (world.stage, world.values["evals"]) == (Stage.ROLLED_BACK, 30)
    assert world.values["infra"] + world.values["training"] == 18, world.values
    assert (world.holds, baseline(world)) == ({"drift"}, {"evals": 16, "infra": 16, "training": 16})
    assert "the values are ours again" not in lifted(world)
    told = {n.audience: n.after_gpus for n in world.sent if n.kind is NoticeKind.ROLLED_BACK and n.audience != "tpm"}
    assert told == world.values, "nobody is told of another value than there is"
    world.wait("30d")
    assert (world.stage, baseline(world)["evals"]) == (Stage.ROLLED_BACK, 16)
    world.foreign("evals", 13)
    assert world.holds == set(), "whoever raised it has taken it back"
    world.until(Stage.BUFFERED)
    assert world.values == {"evals": 13, "infra": 13, "training": 14}


def test_the_same_raise_as_the_rollback_is_under_way_is_a_conflict_and_still_asks() -> None:
    world = begun(FLAT, Stage.BUFFERED)
    world.healthy(36)

    def raised() -> None:
        world.unnoticed = True
        world.foreign("evals", 30)
        world.unnoticed = False

    world.meanwhile("restore", raised)
    world.wait("11m")
    assert (world.stage, world.holds) == (Stage.ROLLED_BACK, {"drift"})
    assert world.values == {"evals": 30, "infra": 3, "training": 3}, "36 are healthy: it is aimed again beside theirs"
    told = {n.audience: n.after_gpus for n in world.sent if n.kind is NoticeKind.ROLLED_BACK and n.audience != "tpm"}
    assert told == world.values
    assert baseline(world) == {"evals": 16, "infra": 16, "training": 16}
    with pytest.raises(Refused, match="--how restore is only for hold drift"):
        world.say(Command.RESOLVE, hold="drift", how="restore")
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert baseline(world)["evals"] == 30


RACES: dict[str, tuple[Callable[[Scheduler], None], dict[str, int]]] = {
    "raised past all": (lambda world: world.foreign("evals", 40), {"evals": 40, "infra": 0, "training": 0}),
    "added": (lambda world: world.foreign("newteam", 6), {"evals": 10, "infra": 10, "newteam": 6, "training": 10}),
    "lowered": (lambda world: world.foreign("evals", 4), {"evals": 4, "infra": 12, "training": 12}),
    "removed": (lambda world: world.foreign("evals", None), {"infra": 12, "training": 12}),
}


@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("looks_fail", [False, True], ids=["", "looks fail"])
def test_what_others_change_between_the_aim_of_a_breach_and_its_write_counts(race: str, looks_fail: bool) -> None:
    """36 healthy: it was aimed at 12, 12 and 12."""
    change, wanted = RACES[race]
    world = begun(FLAT, Stage.BUFFERED)
    world.healthy(36)

    def changes() -> None:
        world.unnoticed, world.looks_fail = True, looks_fail
        change(world)
        world.unnoticed = False

    world.meanwhile("restore", changes)
    world.wait("11m")
    world.looks_fail = False
    world.wait("2m")
    theirs = world.set_by_others
    assert (world.stage, world.holds) == (Stage.ROLLED_BACK, {"drift"})
    assert {t: world.values.get(t) for t in theirs} == theirs, "nobody's change is overwritten"
    assert looks_fail or world.values == wanted
    assert world.r.rollbacks == 1
    assert world.effects.count(EffectKind.RESTORE) <= 2, "once more, and no oftener"


def test_a_limit_removed_and_an_account_added_are_asked_about_though_the_policy_restores() -> None:
    world = begun(FLAT, Stage.MONITORED, on_drift="restore")
    world.foreign("evals", None, by="root")
    world.foreign("newteam", 20, by="root")
    world.wait("1d")
    (hold,) = world.status.holds
    assert re.findall(r"(\w+ \w+ -> \w+), by root", hold.reason) == ["evals 13 -> absent", "newteam absent -> 20"]
    assert world.promises == {"infra": 13, "training": 14}
    assert world.told_of(NoticeKind.HELD)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert (world.holds, world.promises) == (set(), {"infra": 13, "newteam": 20, "training": 14}), "a person agrees"


def test_a_policy_that_accepts_is_nobodys_approval() -> None:
    world = begun(FLAT, Stage.MONITORED, on_drift="accept")
    world.foreign("newteam", 5)
    world.foreign("evals", 15)
    world.foreign("infra", 9)
    assert (world.holds, world.promises) == (set(), {"infra": 9, "training": 14})
    assert {t.team for t in world.status.teams if t.leaf and not t.promise} == {"evals", "newteam"}
    assert world.needs.startswith("nobody approved evals at 15, newteam at 5: no promise.")


def doctor_says(world: World) -> list[str]:
    overview = Overview(
        cluster="c1",
        rollout="c1/1",
        stage=world.stage,
        needs=request_builders.record(world.r, world.now).needs,
        health_at=world.now,
    )
    return [check.text for check in promises_checks([overview]) if not check.ok]


@pytest.mark.parametrize("policy", ["hold", "restore", "accept"])
def test_the_doctor_tells_of_an_account_that_nobody_approved(policy: str) -> None:
    world = begun(FLAT, Stage.MONITORED, on_drift=policy)
    assert doctor_says(world) == []
    world.foreign("newteam", 5)
    (text,) = doctor_says(world)
    assert re.search(r"newteam (absent -> 5|at 5)", text), text
    world.foreign("newteam", None)
    assert doctor_says(world) == []


def test_the_doctor_tells_of_a_promise_above_its_parent_though_a_person_has_accepted_the_parent() -> None:
    world = begun(TREE, Stage.MONITORED)
    world.foreign("lab", 9)
    assert (world.promises, len(doctor_says(world))) == ({"training": 14}, 1)
    world.say(Command.RESOLVE, hold="drift", how="accept")
    assert world.promises == {"training": 14}
    assert doctor_says(world) == [f"c1: {world.needs}"]
    assert world.needs.startswith("the quotas above do not allow evals at 13, infra at 13: no promise.")


class Bounded(Scheduler):
    """All accounts are under one with this limit."""

    bound: int | None = None

    def reading(self) -> QuotaReading:
        return super().reading().model_copy(update={"bound_gpus": self.bound})


@pytest.mark.parametrize(("bound", "kept"), [(None, 40), (40, 40), (39, 0), (27, 0)])
def test_the_promises_are_within_the_limit_of_the_root(bound: int | None, kept: int) -> None:
    world = Bounded(FLAT, **{**SLOW, "soak_buffered": "0s", "soak_enforced": "0s"})
    world.start()
    world.until(Stage.MONITORED)
    world.bound = bound
    world.wait("1d")
    assert sum(world.promises.values()) == kept
    assert bool(doctor_says(world)) is (kept == 0)
