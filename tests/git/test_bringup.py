"""A bring-up whose first quotas are in Git or in Kueue: they come in only if healthy GPUs back them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from models.errors import Refusal, Unavailable
from tests.git.world import PATH, Forge, worker
from tests.integration.ledger.test_bringups import NEW, Book, island, opened
from tests.integration.ledger.world import ForeignTool
from tests.kubernetes import kueue_world
from tests.kubernetes.emulator import QUEUES, queue, running

QUOTAS = "teams:\n  a: { gpus: %d }\n  b: { gpus: 24 }\n"


def git_source(forge: Forge) -> dict[str, Any]:
    return {"git": {"repository": forge.url, "path": PATH, "pointer": "/teams/{team}/gpus"}}


@pytest.fixture
def tool(sqlite_ledger_url: str) -> ForeignTool:
    return ForeignTool(sqlite_ledger_url)


def clusters(tool: ForeignTool) -> list[str]:
    return [str(name) for (name,) in tool.rows("SELECT name FROM clusters")]


@pytest.mark.parametrize(("a", "healthy"), [(31, 64), (30, 61)], ids=["above what it may promise", "too few healthy"])
def test_numbers_in_git_that_are_not_backed_bar_the_cluster_until_somebody_lowers_them(
    ledger: Ledger, forge: Forge, tool: ForeignTool, tmp_path: Path, a: int, healthy: int
) -> None:
    forge.write({PATH: QUOTAS % a})
    terms: dict[str, Any] = {"quotas": [], "owed_until": None, **git_source(forge)}
    git = worker(ledger, tmp_path / "worker")
    book = Book(ledger, git)
    opened(ledger, **terms)
    ceiling = min(64 * 85 // 100, healthy - 8)
    with pytest.raises(Refusal) as refusal:
        book.hand_over([island(8, healthy)], **terms)
    assert refusal.value.message == (
        f"the quotas that Git has in {NEW} sum to {a + 24} GPUs, but the cluster may promise at most {ceiling} "
        "GPUs, each with a healthy GPU behind it: lower the quotas there, then retry"
    )
    assert clusters(tool) == []
    forge.write({PATH: QUOTAS % (ceiling - 24)})
    book.hand_over([island(8, healthy)], **terms)
    assert clusters(tool) == [NEW]
    assert {one.team: one.gpus for one in git.read(NEW).quotas} == {"a": ceiling - 24, "b": 24}


def test_a_repository_that_cannot_be_read_is_asked_again(ledger: Ledger, tool: ForeignTool, tmp_path: Path) -> None:
    forge = Forge(tmp_path / "nowhere")
    terms: dict[str, Any] = {"quotas": [], "owed_until": None, **git_source(forge)}
    terms["git"]["repository"] = str(tmp_path / "gone.git")
    opened(ledger, **terms)
    with pytest.raises(Unavailable):
        Book(ledger, worker(ledger, tmp_path / "worker")).hand_over([island(8)], **terms)
    assert clusters(tool) == []


def test_numbers_in_kueue_that_are_not_backed_bar_the_cluster(
    ledger: Ledger, tool: ForeignTool, tmp_path: Path
) -> None:
    terms: dict[str, Any] = {"quotas": [], "owed_until": None, "kueue": {"connection": "east"}}
    opened(ledger, **terms)
    with running() as server:
        server.put(QUEUES, queue("a", 31))
        server.put(QUEUES, queue("b", 24))
        book = Book(ledger, kueue_world.worker(ledger, kueue_world.kubectl_for(server, tmp_path).kubeconfig))
        with pytest.raises(Refusal) as refusal:
            book.hand_over([island(8)], **terms)
        assert refusal.value.message == (
            f"the quotas that Kueue has in {NEW} sum to 55 GPUs, but the cluster may promise at most 54 GPUs, each "
            "with a healthy GPU behind it: lower the quotas there, then retry"
        )
        assert clusters(tool) == []
        server.put(QUEUES, queue("a", 30))
        book.hand_over([island(8)], **terms)
    assert clusters(tool) == [NEW]
