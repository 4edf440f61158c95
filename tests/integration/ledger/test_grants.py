"""Grants as the ledger writes them: under a rollout's fence, or under the request's own where none is open."""

from __future__ import annotations

import pytest

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.errors import Conflict, Drift
from models.rollout.effects import Change, EffectKind, Fence, Reserve
from tests.integration.ledger.world import CLUSTER, ForeignTool, land, note_stage, open_rollout, set_soft, twice, values


def grant(counter: int, *writes: tuple[str, int, int], request: str = "request/q-1", **more: object) -> Change:
    fence = Fence(rollout=request, counter=counter)
    return Change.model_validate(
        {"cluster": CLUSTER, "kind": EffectKind.GRANT, "fence": fence, "writes": values(*writes), **more}
    )


def test_without_a_rollout_it_is_written_once_and_counts_as_a_change(ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.generation()
    receipt = twice(lambda: ledger.quotas.apply(grant(1, ("a", 100, 116), expected_generation=before)))
    assert (receipt.before, receipt.after, receipt.generation) == ({"a": 100}, {"a": 116}, before + 1)
    assert (tool.gpus()["a"], tool.generation()) == (116, before + 1)
    back = twice(lambda: ledger.quotas.apply(grant(2, ("a", 116, 100), only_ours=True)))
    assert (back.after, tool.gpus()["a"], tool.generation()) == ({"a": 100}, 100, before + 2)
    with pytest.raises(
        Conflict, match="came too late and was not written: the ledger already has a later one, effect 2"
    ):
        ledger.quotas.apply(grant(1, ("a", 100, 116)))


def test_a_launch_that_read_just_before_finds_a_moved_generation(ledger: Ledger) -> None:
    read = ledger.quotas.read(CLUSTER).generation
    ledger.quotas.apply(grant(1, ("a", 100, 116)))
    open_rollout(ledger)
    with pytest.raises(Drift):
        land(ledger, EffectKind.SET_SOFT, 1, writes=values(("a", 100, 90)), expected_generation=read)


def test_a_moved_generation_refuses_it_whole(ledger: Ledger, tool: ForeignTool) -> None:
    read = tool.generation()
    tool.set("b", 119)
    with pytest.raises(Drift):
        ledger.quotas.apply(grant(1, ("a", 100, 116), expected_generation=read))
    assert tool.gpus()["a"] == 100


def test_beside_an_open_rollout_only_that_one_writes_it(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    with pytest.raises(Conflict, match="rollout r-1 is open in cluster alpha: a grant has to go through that rollout"):
        ledger.quotas.apply(grant(1, ("a", 100, 116)))
    before = tool.generation()
    reserve = Reserve(freed_gpus=0, limit_gpus=1000)
    done = twice(
        lambda: land(ledger, EffectKind.GRANT, 1, writes=values(("a", 100, 116), mode=LimitMode.HARD), reserve=reserve)
    )
    assert (done.after, tool.gpus()["a"], tool.generation()) == ({"a": 116}, 116, before), "ours: no change by others"
    assert tool.one("SELECT reserve_limit FROM clusters WHERE name = ?", CLUSTER) == 1000


def test_what_a_lost_rollout_left_reserved_is_nobody_s_to_grant(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    land(ledger, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=10, limit_gpus=200))
    tool.run("UPDATE clusters SET open_rollout = NULL WHERE name = ?", CLUSTER)
    with pytest.raises(Conflict, match="still has capacity reserved by a lost rollout"):
        ledger.quotas.apply(grant(1, ("a", 100, 116)))


def test_what_others_set_since_is_a_conflict_and_then_nothing_is_written(ledger: Ledger, tool: ForeignTool) -> None:
    ledger.quotas.apply(grant(1, ("a", 100, 116), ("b", 120, 136)))
    tool.set("a", 120)
    back = ledger.quotas.apply(grant(2, ("a", 120, 104), ("b", 136, 120), only_ours=True))
    assert [(c.team, c.found_gpus) for c in back.conflicts] == [("a", 120)]
    assert (tool.gpus()["a"], tool.gpus()["b"]) == (120, 136), "whole or not at all"


def test_what_a_rollout_wrote_since_is_ours(ledger: Ledger, tool: ForeignTool) -> None:
    ledger.quotas.apply(grant(1, ("a", 100, 116)))
    open_rollout(ledger)
    set_soft(ledger, 1, ("a", 116, 110))
    land(ledger, EffectKind.CLOSE, 2)
    note_stage(ledger, "r-1", "closed", ended=True, completed=True)
    assert not ledger.quotas.apply(grant(2, ("a", 110, 94), only_ours=True)).conflicts
    assert tool.gpus()["a"] == 94


def test_a_rollout_s_grant_is_dead_once_it_has_closed(ledger: Ledger, tool: ForeignTool) -> None:
    """A zombie: asked for while the rollout was open, it comes when another worker has closed it."""
    open_rollout(ledger)
    zombie = grant(1, ("a", 100, 120), request="r-1")
    land(ledger, EffectKind.CLOSE, 2)
    note_stage(ledger, "r-1", "closed", ended=True, completed=False)
    before = (tool.quotas(), tool.generation())
    with pytest.raises(Conflict, match="rollout r-1 may not write to cluster alpha: no rollout is open there"):
        ledger.quotas.apply(zombie)
    assert (tool.quotas(), tool.generation()) == before
