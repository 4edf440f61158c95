"""Several threads on one cluster: nobody's write is lost, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import psycopg
import pytest

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.errors import BackstopError, BlastRadius, Conflict, Drift, Refusal
from models.rollout.effects import EffectKind, Fence, Receipt
from tests.integration.ledger.world import (
    CLUSTER,
    LEAF_SUM,
    NOW,
    ForeignTool,
    effect,
    fleet,
    foreign_write,
    import_fleet,
    note_stage,
    open_rollout,
    opening,
    reserve,
    stage,
    values,
)

T = TypeVar("T")


def at_once(*calls: Callable[[], T]) -> list[T | BackstopError]:
    """All calls start together; answers and our own errors in their order. Any other error fails the test."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | BackstopError:
        barrier.wait()
        try:
            return call()
        except BackstopError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_one_effect_delivered_to_two_workers_lands_once(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    for counter in range(1, 11):
        before, after = (100, 90) if counter % 2 else (90, 100)
        change = effect(EffectKind.SET_SOFT, counter, writes=values(("a", before, after), mode=LimitMode.SOFT))
        first, second = at_once(*[lambda c=change: ledger.quotas.apply(c)] * 2)
        assert first == second
        assert not isinstance(first, BackstopError)
        assert (first.before, first.after, first.conflicts) == ({"a": before}, {"a": after}, ())
    assert tool.one("SELECT count(*) FROM receipts") == 10


def test_a_zombie_and_its_successor_do_not_both_write(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    older = effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90)))
    newer = effect(EffectKind.RESTORE, 2, writes=values(("a", 90, 100)))
    first, second = at_once(lambda: ledger.quotas.apply(older), lambda: ledger.quotas.apply(newer))
    assert isinstance(second, Receipt)
    assert tool.gpus()["a"] == 100
    assert isinstance(first, Conflict | Receipt)


@pytest.mark.parametrize("round_", range(5))
def test_a_foreign_change_is_seen_or_comes_later_but_is_never_overwritten(
    round_: int, ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    planned = tool.generation()
    writes = values(("a", 100, 90), ("b", 120, 110), ("c", 80, 70))
    change = effect(EffectKind.SET_SOFT, 1, expected_generation=planned, writes=writes)
    landed, foreign = at_once(lambda: ledger.quotas.apply(change), lambda: tool.set("c", 75))
    assert foreign == 1
    assert tool.generation() == planned + 1
    if isinstance(landed, Drift):
        assert tool.gpus() | {"a": 100, "b": 120, "c": 75} == tool.gpus()
    else:
        assert isinstance(landed, Receipt)
        assert landed.after == {"a": 90, "b": 110, "c": 70}
        assert tool.gpus() | {"a": 90, "b": 110, "c": 75} == tool.gpus()


def test_two_tools_cannot_take_the_same_gpu(ledger: Ledger, ledger_url: str, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM + 10)
    tools = [ForeignTool(ledger_url) for _ in range(4)]

    def grab(index: int) -> int:
        team = ("a", "b", "c", "org-1")[index]
        taken = 0
        for _ in range(5):
            with contextlib.suppress(sqlite3.OperationalError, psycopg.errors.CheckViolation):
                taken += tools[index].run(
                    "UPDATE quotas SET gpus = gpus + 1 WHERE cluster = ? AND team = ?", CLUSTER, team
                )
        return taken

    taken = at_once(*[lambda i=i: grab(i) for i in range(4)])
    assert sum(t for t in taken if not isinstance(t, BackstopError)) == 10
    assert tool.one("SELECT sum(gpus) FROM leaf_quotas WHERE cluster = ?", CLUSTER) == LEAF_SUM + 10
    for other in tools:
        other.close()


def test_effects_and_foreign_tools_do_not_wait_for_each_other_in_a_circle(
    ledger: Ledger, ledger_url: str, tool: ForeignTool
) -> None:
    """A deadlock would end as an error of the tool, which knows nothing of retries."""
    open_rollout(ledger)
    before = tool.generation()
    tools = [ForeignTool(ledger_url) for _ in range(3)]

    def foreign(index: int, team: str) -> int:
        return sum(tools[index].set(team, 50 + k) for k in range(20))

    def backstop() -> int:
        for counter in range(1, 21):
            present = tool.gpus()
            writes = values(*[(team, gpus, gpus) for team, gpus in present.items()], mode=LimitMode.SOFT)
            ledger.quotas.apply(effect(EffectKind.SET_SOFT, counter, writes=writes))
            note_stage(ledger, "r-1", "planned", ended=False, completed=False)
        return 20

    answers = at_once(backstop, lambda: foreign(0, "a"), lambda: foreign(1, "b"), lambda: foreign(2, "org-2"))
    assert answers == [20, 20, 20, 20]
    assert tool.generation() == before + 60
    for other in tools:
        other.close()


def test_of_two_launches_one_owns_the_cluster(ledger: Ledger, tool: ForeignTool) -> None:
    first, second = opening(ledger, "r-1"), opening(ledger, "r-2")
    at_once(
        lambda: ledger.registry.open_rollout(first, adopt=False),
        lambda: ledger.registry.open_rollout(second, adopt=False),
    )
    owner = tool.one("SELECT open_rollout FROM clusters WHERE name = ?", CLUSTER)
    assert tool.rows("SELECT id FROM rollouts WHERE ended_at IS NULL") == [(owner,)]
    loser = {"r-1": "r-2", "r-2": "r-1"}[owner]
    with pytest.raises(Conflict):
        ledger.quotas.apply(effect(EffectKind.FOLLOW, 1, loser))


def test_moves_booked_at_once_stay_inside_the_limit(ledger: Ledger, tool: ForeignTool) -> None:
    def book(index: int) -> int:
        cluster = (CLUSTER, "beta")[index % 2]
        ledger.registry.reserve_moves(Fence(rollout=f"r-{index}", counter=1), cluster, 30, 100, NOW)
        return 30

    answers = at_once(*[lambda i=i: book(i) for i in range(6)])
    assert sorted(type(a).__name__ for a in answers) == ["BlastRadius"] * 3 + ["int"] * 3
    assert all(isinstance(a, BlastRadius | int) for a in answers)
    assert tool.one("SELECT sum(gpus) FROM moves") == 90


def test_one_import_committed_by_two_workers_happens_once(empty_ledger: Ledger, tool: ForeignTool) -> None:
    stage(empty_ledger, fleet(), "first")
    first, second = at_once(*[lambda: empty_ledger.fleet.commit_import("first", 2, "tpm", NOW)] * 2)
    assert first == second == {"clusters": 2, "quotas": 7, "added": 7, "changed": 0, "removed": 0}
    assert tool.generation() == 8  # six quotas and two islands, once


def test_two_imports_at_once_leave_one_of_them_whole(ledger: Ledger, tool: ForeignTool) -> None:
    answers = at_once(
        lambda: import_fleet(ledger, fleet(a=1, b=65), "second"),
        lambda: import_fleet(ledger, fleet(a=2, b=66), "third"),
    )
    assert all(isinstance(answer, dict) for answer in answers)
    assert (tool.gpus()["a"], tool.gpus()["b"]) in [(1, 65), (2, 66)]


def test_a_refusal_of_one_thread_does_not_touch_the_others(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    answers = at_once(
        lambda: foreign_write(ledger, CLUSTER, "c", 81, "greedy"),
        lambda: foreign_write(ledger, CLUSTER, "org-1", 29, "generous"),
        lambda: ledger.health.read([CLUSTER]),
    )
    assert isinstance(answers[0], Refusal) or tool.gpus()["c"] == 81
    assert answers[1] is None
    assert tool.gpus()["org-1"] == 29
    assert tool.one("SELECT sum(gpus) FROM leaf_quotas WHERE cluster = ?", CLUSTER) <= LEAF_SUM
