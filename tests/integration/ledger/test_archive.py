"""The audit archive: whole, idempotent, and found out when somebody edits it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from models.audit_chain import GENESIS, AuditEntry, AuditKind, broken_links
from tests.integration.ledger.world import NOW, ForeignTool, twice


def entry(key: str, cluster: str = "alpha", **data: Any) -> AuditEntry:
    return AuditEntry(
        key=key,
        cluster=cluster,
        rollout="r-1",
        at=NOW + timedelta(seconds=1, microseconds=7),
        kind=AuditKind.EFFECT,
        actor="Zoë",
        text="it's “done” \x00",
        data=data,
    )


def broken(ledger: Ledger, cluster: str = "alpha") -> list[str]:
    return broken_links(ledger.registry.entries_after(cluster, 0, 10_000), ledger.registry.chain_head(cluster))


@pytest.mark.parametrize("count", [1, 5, 50])
def test_entries_come_back_in_their_order_with_their_hashes(
    count: int, empty_ledger: Ledger, tool: ForeignTool
) -> None:
    entries = [entry(f"k{n}", before={"a": n}, shares=(1, 2.5), none=None) for n in range(count)]
    head = twice(lambda: empty_ledger.registry.archive(entries))
    rows = empty_ledger.registry.entries_after("alpha", 0, 100)
    assert [row.seq for row in rows] == list(range(1, count + 1))
    assert [row.entry.model_dump(mode="json") for row in rows] == [e.model_dump(mode="json") for e in entries]
    assert rows[0].previous_hash == GENESIS
    assert head == empty_ledger.registry.chain_head("alpha")
    assert head is not None
    assert (head.length, head.hash) == (count, rows[-1].hash)
    assert broken(empty_ledger) == []
    assert tool.one("SELECT count(*) FROM audit") == count


def test_each_key_is_stored_once_also_within_one_call(empty_ledger: Ledger, tool: ForeignTool) -> None:
    empty_ledger.registry.archive([entry("a"), entry("a"), entry("b")])
    empty_ledger.registry.archive([entry("b"), entry("c"), entry("a")])
    assert tool.rows("SELECT seq, key FROM audit ORDER BY seq") == [(1, "a"), (2, "b"), (3, "c")]
    assert broken(empty_ledger) == []


def test_a_foreseen_key_keeps_nothing_out_of_the_archive(empty_ledger: Ledger, tool: ForeignTool) -> None:
    """Somebody knew the key of what was to come: it is archived all the same, once, and the check names both."""
    empty_ledger.registry.archive([entry("r-1/000001", happened="nothing")])
    for _ in range(2):
        empty_ledger.registry.archive([entry("r-1/000001", happened=1), entry("r-1/000002", happened=2)])
    stored = [json.loads(text)["data"]["happened"] for (text,) in tool.rows("SELECT entry FROM audit ORDER BY seq")]
    assert stored == ["nothing", 1, 2]
    (fault,) = broken(empty_ledger)
    assert fault.startswith("row 2 has the same key r-1/000001 as another row: one of the two is forged")


def test_each_cluster_has_its_own_chain(empty_ledger: Ledger) -> None:
    head = empty_ledger.registry.archive([entry("1", "beta"), entry("2", "alpha"), entry("3", "beta")])
    assert head is not None
    assert (head.cluster, head.length) == ("beta", 2)
    for cluster in ("alpha", "beta"):
        assert broken(empty_ledger, cluster) == []
    assert empty_ledger.registry.chain_head("gamma") is None
    assert empty_ledger.registry.archive([]) is None


def test_the_archive_is_read_in_pages(empty_ledger: Ledger) -> None:
    empty_ledger.registry.archive([entry(str(n)) for n in range(5)])
    assert [row.seq for row in empty_ledger.registry.entries_after("alpha", 2, 2)] == [3, 4]


def test_data_that_json_changes_is_hashed_as_it_is_read(empty_ledger: Ledger) -> None:
    empty_ledger.registry.archive([entry("a", counts={10: "x", 9: "y"}, at=NOW, pair=(1, (2,)))])
    assert broken(empty_ledger) == []


TAMPERING = {
    "altered": (
        'UPDATE audit SET entry = replace(entry, \'"actor":"Zoë"\', \'"actor":"Zoe"\') WHERE seq = 3',
        ["row 3 was altered: its hash does not match"],
    ),
    "altered beyond reading": (
        "UPDATE audit SET entry = '{' WHERE seq = 3",
        ["row 3 was altered: its hash does not match"],
    ),
    "altered with its hash": (
        "UPDATE audit SET hash = '00' WHERE seq = 3",
        ["row 3 was altered: its hash does not match", "row 4 does not carry the hash of the row before it"],
    ),
    "a middle row cut out": (
        "DELETE FROM audit WHERE seq = 3",
        [
            "row 3 is missing: row 4 follows",
            "row 4 does not carry the hash of the row before it",
            "the chain must end at row 5 with the stored hash, but ends at row 5 with another hash",
        ],
    ),
    "the tail cut off": (
        "DELETE FROM audit WHERE seq > 3",
        ["the chain must end at row 5 with the stored hash, but ends at row 3 with another hash"],
    ),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_by_plain_sql_is_found(how: str, empty_ledger: Ledger, tool: ForeignTool) -> None:
    empty_ledger.registry.archive([entry(str(n)) for n in range(5)])
    statement, found = TAMPERING[how]
    assert tool.run(statement) >= 1
    assert broken(empty_ledger) == found


def test_archivists_in_several_threads_make_one_whole_chain(empty_ledger: Ledger, tool: ForeignTool) -> None:
    def archive(worker: int) -> None:
        for n in range(6):
            clusters = ("alpha", "beta") if worker % 2 else ("beta", "alpha")
            # Two workers archive each key: one of them finds it done.
            empty_ledger.registry.archive([entry(f"{c}-{worker // 2}-{n}", c) for c in clusters])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(archive, range(8)))
    for cluster in ("alpha", "beta"):
        assert broken(empty_ledger, cluster) == []
        assert tool.one("SELECT length FROM audit_heads WHERE cluster = ?", cluster) == 24
