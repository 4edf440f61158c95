"""Backstop's own effects on quotas, seen by plain SQL from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode, QuotaReading
from models.errors import Conflict, Drift, Refusal
from models.rollout.effects import EffectKind, Receipt, Reserve, ValueConflict
from tests.integration.ledger.world import (
    CLUSTER,
    LEDGER_NOW,
    ForeignTool,
    effect,
    land,
    note_stage,
    open_rollout,
    reserve,
    restore,
    set_soft,
    twice,
    values,
)


def receipts(tool: ForeignTool) -> list[tuple[str, int, str]]:
    return [(r, c, k) for r, c, k in tool.rows("SELECT rollout, counter, kind FROM receipts ORDER BY counter")]


def test_a_reading_shows_the_quotas_and_their_generation(ledger: Ledger, tool: ForeignTool) -> None:
    reading: QuotaReading = twice(lambda: ledger.quotas.read(CLUSTER))
    assert reading.generation == tool.generation()
    assert reading.values == tool.gpus()
    by_team = {quota.team: quota for quota in reading.quotas}
    assert list(by_team) == sorted(by_team)
    assert by_team["a"].islands == ("X",)
    assert by_team["b"].protected_blocks == (64,)
    assert by_team["b"].minimum_gpus == 10
    assert by_team["org-1"].parent == "org"
    assert {quota.mode for quota in reading.quotas} == {LimitMode.HARD}


def test_an_unknown_cluster_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="no cluster 'gamma'"):
        ledger.quotas.read("gamma")


def test_quotas_are_set_soft_once_however_often_the_call_comes(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    generation = tool.generation()
    receipt = set_soft(ledger, 1, ("a", 100, 90), ("b", 120, 110))
    assert tool.gpus() | {"a": 90, "b": 110} == tool.gpus()
    assert tool.modes() == {"a": "soft", "b": "soft", "c": "hard", "org": "hard", "org-1": "hard", "org-2": "hard"}
    assert receipt.before == {"a": 100, "b": 120}
    assert receipt.after == {"a": 90, "b": 110}
    assert receipt.conflicts == ()
    assert receipt.at == LEDGER_NOW
    assert receipt.generation == generation == tool.generation()
    assert receipts(tool) == [("r-1", 1, "set_soft")]
    assert tool.rows("SELECT DISTINCT written_by FROM quotas WHERE team IN ('a', 'b') AND cluster = 'alpha'") == [
        ("r-1#1",)
    ]


def test_the_stored_receipt_is_the_one_that_was_answered(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    receipt = set_soft(ledger, 1, ("a", 100, 90))
    stored = tool.one("SELECT receipt FROM receipts WHERE rollout = 'r-1'")
    assert Receipt.model_validate(json.loads(stored)) == receipt


def test_a_repeated_fence_writes_nothing_even_where_somebody_wrote_meanwhile(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    receipt = set_soft(ledger, 1, ("a", 100, 90))
    tool.set("a", 95)
    again = ledger.quotas.apply(effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90))))
    assert again == receipt
    assert tool.gpus()["a"] == 95


def test_a_zombie_with_a_smaller_fence_is_refused(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    set_soft(ledger, 2, ("a", 100, 90))
    with pytest.raises(
        Conflict,
        match="effect 1 of rollout r-1 came too late and was not written: the ledger already has a later one, effect 2",
    ):
        ledger.quotas.apply(effect(EffectKind.SET_SOFT, 1, writes=values(("a", 90, 80))))
    assert tool.gpus()["a"] == 90
    assert receipts(tool) == [("r-1", 2, "set_soft")]


def test_another_rollout_is_refused_while_one_is_open(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    open_rollout(ledger, "r-beta", cluster="beta")
    for stranger in ("r-beta", "never-opened"):
        with pytest.raises(Conflict, match="rollout r-1 is open there"):
            ledger.quotas.apply(effect(EffectKind.SET_SOFT, 1, stranger, writes=values(("a", 100, 90))))
    assert tool.gpus()["a"] == 100


def test_without_an_open_rollout_nothing_is_written(ledger: Ledger, tool: ForeignTool) -> None:
    with pytest.raises(Conflict, match="no rollout is open there"):
        ledger.quotas.apply(effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90))))
    assert tool.gpus()["a"] == 100


def test_an_ended_rollout_still_gets_its_last_answer_and_nothing_else(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    set_soft(ledger, 1, ("a", 100, 90))
    closed = land(ledger, EffectKind.CLOSE, 2)
    note_stage(ledger, "r-1", "closed", ended=True, completed=True)
    assert ledger.quotas.apply(effect(EffectKind.CLOSE, 2)) == closed
    for counter in (1, 3):
        with pytest.raises(Conflict):
            ledger.quotas.apply(effect(EffectKind.SET_SOFT, counter, writes=values(("b", 120, 90))))
    assert tool.gpus()["b"] == 120
    open_rollout(ledger, "r-2")
    with pytest.raises(Conflict, match="rollout r-2 is open there"):
        ledger.quotas.apply(effect(EffectKind.CLOSE, 2))


def test_values_that_others_changed_are_left_alone_and_reported(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    tool.set("b", 115)
    tool.run("DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'c'")
    receipt = set_soft(ledger, 1, ("a", 100, 90), ("b", 120, 110), ("c", 80, 70))
    assert tool.gpus()["a"] == 90
    assert tool.gpus()["b"] == 115
    assert "c" not in tool.gpus()
    assert tool.modes()["b"] == "hard"
    assert receipt.before == {"a": 100, "b": 115}
    assert receipt.after == {"a": 90, "b": 115}
    assert receipt.conflicts == (
        ValueConflict(team="b", expected_gpus=120, found_gpus=115),
        ValueConflict(team="c", expected_gpus=80, found_gpus=None),
    )


def test_a_value_that_is_there_already_is_no_conflict(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    tool.set("a", 90)
    assert set_soft(ledger, 1, ("a", 100, 90)).conflicts == ()
    assert tool.modes()["a"] == "soft"


FORWARD: dict[EffectKind, dict[str, Any]] = {
    EffectKind.SET_SOFT: {"writes": values(("a", 100, 90), mode=LimitMode.SOFT)},
    EffectKind.RESERVE: {"reserve": Reserve(freed_gpus=10, limit_gpus=350)},
    EffectKind.HARDEN: {"mode": LimitMode.HARD},
    EffectKind.FOLLOW: {},
}


@pytest.mark.parametrize("kind", FORWARD)
def test_a_forward_effect_under_a_moved_generation_is_drift_and_writes_nothing(
    kind: EffectKind, ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    planned = tool.generation()
    tool.set("c", 70)
    before = (tool.quotas(), tool.rows("SELECT * FROM clusters ORDER BY name"))
    change = effect(kind, 1, expected_generation=planned, **FORWARD[kind])
    for _ in range(2):
        with pytest.raises(Drift, match=f"at generation {planned + 1} .* from {planned}"):
            ledger.quotas.apply(change)
    assert (tool.quotas(), tool.rows("SELECT * FROM clusters ORDER BY name")) == before
    assert receipts(tool) == []
    # The fence was not used up: planned again, the same effect lands.
    land(ledger, kind, 1, expected_generation=planned + 1, **FORWARD[kind])


@pytest.mark.parametrize("kind", [EffectKind.RESTORE, EffectKind.RELEASE, EffectKind.SOFTEN, EffectKind.UNFOLLOW])
def test_an_inverse_does_not_mind_a_moved_generation(kind: EffectKind, ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    planned = tool.generation()
    tool.set("c", 70)
    land(ledger, kind, 1, expected_generation=planned)
    assert receipts(tool) == [("r-1", 1, str(kind))]


def test_limits_become_hard_and_soft_for_the_whole_cluster(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    land(ledger, EffectKind.SOFTEN, 1, mode=LimitMode.SOFT)
    assert set(tool.modes().values()) == {"soft"}
    land(ledger, EffectKind.HARDEN, 2, mode=LimitMode.HARD)
    assert set(tool.modes().values()) == {"hard"}
    assert tool.modes("beta") == {"a": "hard"}


def test_flex_follows_health_until_it_stops(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    land(ledger, EffectKind.FOLLOW, 1)
    assert ledger.quotas.read(CLUSTER).follows_health is True
    assert tool.one("SELECT count(*) FROM clusters WHERE follows_health") == 1
    land(ledger, EffectKind.UNFOLLOW, 2)
    assert tool.one("SELECT count(*) FROM clusters WHERE follows_health") == 0


def test_a_reservation_stands_until_it_is_released(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    assert reserve(ledger, 1, 310, X=150).reserved_gpus == 50
    standing = "SELECT reserved_gpus, reserve_limit FROM clusters WHERE name = 'alpha'"
    assert tool.rows(standing) == [(50, 310)]
    assert tool.rows("SELECT cluster, islands, limit_gpus FROM reserve_limits") == [("alpha", "X", 150)]
    assert ledger.quotas.read(CLUSTER).reserved_gpus == 50
    land(ledger, EffectKind.RELEASE, 2, reserve=Reserve(freed_gpus=5, limit_gpus=355))
    assert tool.rows(standing) == [(5, 355)]
    assert tool.rows("SELECT * FROM reserve_limits") == []
    assert land(ledger, EffectKind.RELEASE, 3).reserved_gpus == 0
    assert tool.rows(standing) == [(0, None)]


def test_closing_clears_the_reservation_and_leaves_the_values(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 310, X=150)
    set_soft(ledger, 2, ("a", 100, 90))
    land(ledger, EffectKind.FOLLOW, 3)
    quotas = tool.quotas()
    land(ledger, EffectKind.CLOSE, 4, reserve=Reserve(freed_gpus=1, limit_gpus=1))
    assert tool.rows("SELECT reserved_gpus, reserve_limit, follows_health FROM clusters WHERE name = 'alpha'") == [
        (0, None, False)
    ]
    assert tool.rows("SELECT * FROM reserve_limits") == []
    assert tool.quotas() == quotas


INVERSES: dict[str, Callable[[Ledger], Receipt]] = {
    "release": lambda ledger: land(ledger, EffectKind.RELEASE, 1),
    "restore": lambda ledger: restore(ledger, 1, ("a", 90, 100), ("b", 110, 120)),
    "unfollow": lambda ledger: land(ledger, EffectKind.UNFOLLOW, 1),
}


@pytest.mark.parametrize("inverse", INVERSES)
def test_an_inverse_leaves_the_world_as_it_was_where_the_forward_call_never_ran(
    inverse: str, ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    before = tool.quotas()
    assert INVERSES[inverse](ledger).conflicts == ()
    assert tool.quotas() == before
    assert tool.one("SELECT reserve_limit FROM clusters WHERE name = 'alpha'") is None


def test_backstops_own_writes_do_not_move_the_generation(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    generation = tool.generation()
    set_soft(ledger, 1, ("a", 100, 90), ("org", 60, 50), ("org-1", 30, 20))
    land(ledger, EffectKind.HARDEN, 2)
    restore(ledger, 3, ("a", 90, 100), ("org", 50, 60), ("org-1", 20, 30))
    assert tool.generation() == generation


def test_a_failed_transaction_leaves_nothing_behind(
    ledger: Ledger, tool: ForeignTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import activities.adapters.ledger.quotas as module

    open_rollout(ledger)
    reserved = effect(EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=1, limit_gpus=2))
    written = effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90)))
    before = (tool.quotas(), tool.rows("SELECT * FROM clusters ORDER BY name"))

    def dies(_receipt: Receipt) -> dict[str, object]:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_receipt_row", dies)
        for change in (reserved, written):
            with pytest.raises(RuntimeError):
                ledger.quotas.apply(change)
    assert (tool.quotas(), tool.rows("SELECT * FROM clusters ORDER BY name")) == before
    assert receipts(tool) == []
    assert ledger.quotas.apply(written).after == {"a": 90}


def test_the_version_moves_with_every_write_and_with_nothing_else(ledger: Ledger, tool: ForeignTool) -> None:
    def version() -> str:
        found = twice(lambda: ledger.quotas.versions([CLUSTER, "beta", "gamma"]))
        assert set(found) == {CLUSTER, "beta"}
        return found[CLUSTER]

    seen = [version()]
    open_rollout(ledger)
    seen.append(version())
    for land_it in (
        lambda: set_soft(ledger, 1, ("a", 100, 90)),
        lambda: tool.set("b", 111),
        lambda: reserve(ledger, 2, 600),
        lambda: land(ledger, EffectKind.HARDEN, 3),
        lambda: land(ledger, EffectKind.FOLLOW, 4),
    ):
        land_it()
        seen.append(version())
    assert len(set(seen)) == len(seen)
    ledger.quotas.read(CLUSTER)
    tool.set("a", 1, cluster="beta")
    assert version() == seen[-1]


def test_a_rehearsed_effect_shows_how_the_cluster_would_stand_and_leaves_nothing(
    ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    before = (tool.quotas(), tool.generation(), tool.rows("SELECT * FROM clusters ORDER BY name"))
    change = effect(EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90)))
    after = ledger.schedulers.rehearse(change)
    assert (after.quotas["a"].gpus, after.counter) == (90, 1)
    assert (tool.quotas(), tool.generation(), tool.rows("SELECT * FROM clusters ORDER BY name")) == before
    assert receipts(tool) == []
    tool.set("b", 110)
    with pytest.raises(Drift):
        ledger.schedulers.rehearse(change.model_copy(update={"expected_generation": before[1]}))
    assert ledger.quotas.apply(change).after == {"a": 90}
