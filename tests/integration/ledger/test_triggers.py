"""The database's own treatment of writes by a tool that knows nothing of Backstop."""

from __future__ import annotations

import pytest

from activities.adapters.ledger.facade import Ledger
from models.errors import Refusal
from models.rollout.effects import EffectKind, Reserve
from tests.integration.ledger.world import (
    CLUSTER,
    LEAF_SUM,
    ForeignTool,
    foreign_write,
    land,
    open_rollout,
    reserve,
    set_soft,
)

UPSERT = """
INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', 'a', 5)
ON CONFLICT (cluster, team) DO UPDATE SET gpus = excluded.gpus
"""

FOREIGN_CHANGES: dict[str, tuple[str, int]] = {
    "gpus": ("UPDATE quotas SET gpus = 99 WHERE cluster = 'alpha' AND team = 'a'", 1),
    "islands": ("UPDATE quotas SET islands = 'X,Y' WHERE cluster = 'alpha' AND team = 'a'", 1),
    "islands lifted": ("UPDATE quotas SET islands = NULL WHERE cluster = 'alpha' AND team = 'a'", 1),
    "blocks": ("UPDATE quotas SET blocks = '' WHERE cluster = 'alpha' AND team = 'b'", 1),
    "minimum": ("UPDATE quotas SET minimum = 0 WHERE cluster = 'alpha' AND team = 'b'", 1),
    "parent": ("UPDATE quotas SET parent = NULL WHERE cluster = 'alpha' AND team = 'org-1'", 1),
    "two columns at once": ("UPDATE quotas SET gpus = 1, parent = 'org' WHERE cluster = 'alpha' AND team = 'c'", 1),
    "a quota comes": ("INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', 'new', 1)", 1),
    "two quotas come": ("INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', 'n', 1), ('alpha', 'm', 1)", 2),
    "a quota goes": ("DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'c'", 1),
    "a quota gets another name": ("UPDATE quotas SET team = 'cc' WHERE cluster = 'alpha' AND team = 'c'", 2),
    "a quota goes to another cluster": ("UPDATE quotas SET cluster = 'beta' WHERE team = 'c'", 1),
    "several quotas": ("UPDATE quotas SET gpus = gpus - 1 WHERE cluster = 'alpha'", 6),
    "some of several": ("UPDATE quotas SET gpus = 30 WHERE cluster = 'alpha'", 4),
    "an island grows": ("UPDATE islands SET total_gpus = 208 WHERE name = 'X'", 1),
    "an island comes": ("INSERT INTO islands (cluster, name, total_gpus) VALUES ('alpha', 'W', 8)", 1),
    "an island goes": ("DELETE FROM islands WHERE name = 'Y'", 1),
    "an upsert": (UPSERT, 1),
    "nothing new": ("UPDATE quotas SET gpus = gpus, islands = islands WHERE cluster = 'alpha'", 0),
    "a mode": ("UPDATE quotas SET mode = 'soft' WHERE cluster = 'alpha' AND team = 'a'", 1),
    "the same mode": ("UPDATE quotas SET mode = mode WHERE cluster = 'alpha'", 0),
    "health": ("UPDATE health_samples SET healthy_gpus = 0, block_gpus = NULL", 0),
    "usage": ("DELETE FROM usage_samples", 0),
    "an island's same total": ("UPDATE islands SET total_gpus = total_gpus", 0),
    "somewhere else": ("UPDATE quotas SET gpus = 1 WHERE cluster = 'beta'", 0),
}


@pytest.mark.parametrize("what", FOREIGN_CHANGES)
def test_the_generation_counts_what_others_change_and_nothing_else(
    what: str, ledger: Ledger, tool: ForeignTool
) -> None:
    before = tool.generation()
    statement, changes = FOREIGN_CHANGES[what]
    tool.run(statement)
    assert tool.generation() == before + changes


@pytest.mark.parametrize("what", ["several quotas", "a quota comes", "a quota gets another name", "an upsert"])
def test_it_counts_them_also_beside_a_reservation_that_has_room(what: str, ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 1000, X=1000)
    before = tool.generation()
    statement, changes = FOREIGN_CHANGES[what]
    tool.run(statement)
    assert tool.generation() == before + changes


def test_a_quota_that_moves_to_another_cluster_counts_in_both(ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.generation("beta")
    tool.run("UPDATE quotas SET cluster = 'beta' WHERE team = 'c'")
    assert tool.generation("beta") == before + 1


def test_an_effect_in_between_does_not_hide_a_foreign_change(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    before = tool.generation()
    set_soft(ledger, 1, ("a", 100, 90))
    tool.set("a", 80)
    set_soft(ledger, 2, ("a", 80, 70))
    tool.set("a", 60)
    assert tool.generation() == before + 2


def test_freed_capacity_cannot_be_taken_and_the_reason_names_all_of_it(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger, "r-7")
    set_soft(ledger, 1, ("b", 120, 100), rollout="r-7")
    land(ledger, EffectKind.RESERVE, 2, "r-7", reserve=Reserve(freed_gpus=20, limit_gpus=LEAF_SUM - 20))
    before = (tool.quotas(), tool.generation())
    for reason in (tool.set_refused("c", 81), foreign_refusal(ledger, "c", 81)):
        assert (
            "team c of cluster alpha cannot rise to 81 GPUs: the quotas would sum to 341, "
            "above the limit of 340 GPUs, which rollout r-7 reserves" in reason
        )
    assert (tool.quotas(), tool.generation()) == before


def foreign_refusal(ledger: Ledger, team: str, gpus: int) -> str:
    with pytest.raises(Refusal) as refusal:
        foreign_write(ledger, CLUSTER, team, gpus, "somebody")
    assert refusal.value.message.startswith("team ")
    return refusal.value.message


def test_a_foreign_write_through_the_ledger_is_a_foreign_write(ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.generation()
    foreign_write(ledger, CLUSTER, "a", 70, "somebody")
    assert tool.gpus()["a"] == 70
    assert tool.generation() == before + 1
    with pytest.raises(Refusal, match="no quota of team nobody"):
        foreign_write(ledger, CLUSTER, "nobody", 70, "somebody")


def test_moves_inside_the_limit_go_through(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    assert "above the limit" in tool.set_refused("c", 90)
    tool.set("b", 110)
    tool.set("c", 90)
    assert "above the limit" in tool.set_refused("c", 91)
    assert tool.gpus()["c"] == 90


def test_lowering_goes_through_where_the_sum_is_above_the_limit_already(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 10)
    tool.set("b", 119)
    assert "above the limit" in tool.set_refused("b", 120)


def test_a_new_quota_cannot_take_freed_capacity(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    insert = "INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', ?, ?)"
    assert "team new of cluster alpha" in tool.refused(insert, "new", 1)
    assert tool.run(insert, "empty", 0) == 1
    assert "team c2" in tool.refused("UPDATE quotas SET team = 'c2', gpus = 81 WHERE team = 'c'")
    tool.set("b", 100)
    assert tool.run(insert, "new", 20) == 1


def test_a_quota_from_another_cluster_cannot_take_freed_capacity(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    tool.run("UPDATE quotas SET team = 'immigrant' WHERE cluster = 'beta'")
    assert "immigrant" in tool.refused("UPDATE quotas SET cluster = 'alpha' WHERE cluster = 'beta'")


def test_freed_capacity_of_one_island_cannot_be_taken_by_giving_up_others(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM, X=180)
    tool.set("b", 0)
    reason = tool.set_refused("c", 81)
    assert "team c of cluster alpha cannot rise to 81 GPUs" in reason
    assert "limited to islands X would be above their limit of 180 GPUs, which rollout r-1 reserves" in reason
    assert "islands X" in foreign_refusal(ledger, "c", 81)
    tool.set("org-1", 100)
    tool.set("a", 90)
    tool.set("c", 90)


def test_only_quotas_with_exactly_these_islands_share_a_limit(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 1000, X=180)
    tool.run("UPDATE quotas SET islands = 'X,Y' WHERE cluster = 'alpha' AND team = 'b'")
    tool.set("b", 300)
    assert "islands X" in tool.set_refused("a", 101)


def test_a_quota_with_children_cannot_rise_while_capacity_is_reserved(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 1000)
    reason = tool.set_refused("org", 61)
    assert "team org of cluster alpha cannot rise to 61 GPUs: it has child quotas" in reason
    assert "limit of 1000 GPUs, which rollout r-1 reserves" in reason
    tool.set("org", 50)


def test_a_refused_statement_writes_none_of_its_rows(ledger: Ledger, tool: ForeignTool) -> None:
    """This holds also if the tool continues its transaction as if nothing had happened."""
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM + 3)
    before = (tool.quotas(), tool.generation())
    tool.run("BEGIN")
    tool.refused("UPDATE quotas SET gpus = gpus + 2 WHERE cluster = 'alpha' AND team <> 'org'")
    tool.run("COMMIT")
    assert (tool.quotas(), tool.generation()) == before


def test_backstop_itself_may_raise_while_capacity_is_reserved(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, 10, X=10)
    set_soft(ledger, 2, ("a", 100, 110), ("org", 60, 70))
    assert tool.gpus()["a"] == 110


def test_released_capacity_is_free_again(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    tool.set_refused("c", 81)
    land(ledger, EffectKind.RELEASE, 2)
    tool.set("c", 81)
    tool.set("org", 61)


def test_names_with_quotes_and_percents_come_through_whole(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    name = 'o\'brien "100%" :x'
    tool.run("UPDATE quotas SET team = ? WHERE cluster = 'alpha' AND team = 'c'", name)
    reserve(ledger, 1, LEAF_SUM)
    assert f"team {name} of cluster alpha" in foreign_refusal(ledger, name, 81)


def test_freed_capacity_is_not_taken_by_way_of_the_tree(ledger: Ledger, tool: ForeignTool) -> None:
    """Put under another quota, raised by as much as that no longer counts, and taken out again: 100 more than freed."""
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    tool.run("UPDATE quotas SET parent = 'a' WHERE cluster = 'alpha' AND team = 'c'")
    tool.set("c", 180)  # a holds no jobs while c is under it
    for way_out in (
        "UPDATE quotas SET parent = NULL WHERE cluster = 'alpha' AND team = 'c'",
        "UPDATE quotas SET parent = 'org' WHERE cluster = 'alpha' AND team = 'c'",
        "UPDATE quotas SET parent = NULL, written_by = 'r-1#2' WHERE cluster = 'alpha' AND team = 'c'",
    ):
        before = (tool.quotas(), tool.generation())
        reason = tool.refused(way_out)
        assert "team a of cluster alpha cannot rise to 100 GPUs: the quotas would sum to 460" in reason
        assert f"above the limit of {LEAF_SUM} GPUs, which rollout r-1 reserves" in reason
        assert (tool.quotas(), tool.generation()) == before
    tool.set("c", 80)
    tool.run("UPDATE quotas SET parent = NULL WHERE cluster = 'alpha' AND team = 'c'")
    assert sum(tool.gpus().values()) - tool.gpus()["org"] == LEAF_SUM


def test_nor_by_deleting_or_moving_away_the_last_child(ledger: Ledger, tool: ForeignTool) -> None:
    """The quota above it holds jobs again, with all of its own value."""
    open_rollout(ledger)
    tool.run("UPDATE quotas SET gpus = 500 WHERE cluster = 'alpha' AND team = 'org'")
    reserve(ledger, 1, LEAF_SUM)
    tool.run("DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'org-1'")
    for way_out in (
        "DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'org-2'",
        "UPDATE quotas SET cluster = 'beta', parent = NULL WHERE cluster = 'alpha' AND team = 'org-2'",
    ):
        reason = tool.refused(way_out)
        assert "team org of cluster alpha cannot rise to 500 GPUs: the quotas would sum to 800" in reason
    tool.run("UPDATE quotas SET gpus = 60 WHERE cluster = 'alpha' AND team = 'org'")
    tool.run("DELETE FROM quotas WHERE cluster = 'alpha' AND team = 'org-2'")


def test_nor_by_moving_between_islands(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM, X=180)
    tool.run("UPDATE quotas SET islands = 'Y' WHERE cluster = 'alpha' AND team = 'c'")
    tool.set("org-1", 10)
    tool.set("a", 120)
    reason = tool.refused("UPDATE quotas SET islands = 'X' WHERE cluster = 'alpha' AND team = 'c'")
    assert "limited to islands X would be above their limit of 180 GPUs, which rollout r-1 reserves" in reason
    tool.set("a", 100)
    tool.run("UPDATE quotas SET islands = 'X' WHERE cluster = 'alpha' AND team = 'c'")


@pytest.mark.parametrize("column", ["parent = NULL", "minimum = 7", "blocks = '8'", "islands = 'Y'"])
def test_a_forged_mark_hides_no_change_of_what_backstop_never_writes(
    column: str, ledger: Ledger, tool: ForeignTool
) -> None:
    before = tool.generation()
    tool.run(f"UPDATE quotas SET {column}, written_by = 'r-1#9' WHERE cluster = 'alpha' AND team = 'org-1'")
    assert tool.generation() == before + 1
