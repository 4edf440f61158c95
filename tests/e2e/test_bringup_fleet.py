"""A bring-up's cluster in the fleet, with real rollouts: what is owed is granted through one, another takes it out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.bringup.handover import FleetBringups
from activities.rollout.cluster_calls import ClusterActivities
from activities.rollout.rollout_client import TemporalRollouts
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart, HandOverRequest, WindDownRequest, WoundDown
from models.cluster.island import Island
from models.errors import Unavailable
from models.rollout.stages import Stage
from tests.e2e.bringup_site import Site
from tests.e2e.world import CLOCKS, World, fresh, on_postgresql
from tests.unit.bringup_world import recipe
from tests.waiting import async_attempts
from workers.bringups import BringupParts

nightly = on_postgresql
_T = TypeVar("_T")


@contextlib.contextmanager
def book_of(world: World, url: str) -> Iterator[FleetBringups]:
    with Ledger(url) as ledger:
        rollouts = TemporalRollouts(world.client, asyncio.get_running_loop())
        nobody: Any = None
        yield FleetBringups(ledger.bringups, ledger.ports, nobody, ClusterActivities(ledger.ports), rollouts)


async def insisting(call: Callable[[], _T], until: Callable[[_T], bool] = lambda _: True) -> _T:
    """Call again while the answer is Unavailable, as an activity does; return the answer."""
    last: object = None
    try:
        async for _ in async_attempts("it is answered"):
            try:
                last = found = await asyncio.to_thread(call)
                if until(found):
                    return found
            except Unavailable as error:
                last = error.message
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {last!r}") from error
    raise AssertionError("attempts end by themselves")


@pytest.mark.nightly
async def test_what_is_owed_goes_through_the_rollout_and_a_retired_cluster_is_taken_out_by_one(
    world: World, sqlite_ledger_url: str
) -> None:
    """Seven of eight nodes came: C = min(floor(47.6), 48) = 47 of 54, so a and b have 26 and 21; with all 30 and 24."""
    name = fresh("brought-up")
    entry = BringupEntry.model_validate(
        {
            "cluster": name,
            "recipe": "bare-metal",
            "owner": "tpm",
            "nodes": 8,
            "policy": CLOCKS,
            "quotas": [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}],
            "owed_until": datetime.now(UTC) + timedelta(days=30),
        }
    )

    def request(nodes: int, granted: dict[str, int] | None = None) -> HandOverRequest:
        island = Island(name="main", total_gpus=8 * nodes, healthy_gpus=8 * nodes)
        now = datetime.now(UTC)
        return HandOverRequest(entry=entry, number=1, islands=(island,), granted=granted, actor="ada", at=now)

    with book_of(world, sqlite_ledger_url) as book:
        assert not book.open(BringupStart(entry=entry, recipe=recipe(), actor="ada"), datetime.now(UTC)).refused
        first = await asyncio.to_thread(book.hand_over, request(7))
        assert world.sql.gpus(name) == {"a": 26, "b": 21}
        await world.start(name)
        with pytest.raises(Unavailable, match="the rest of the quotas is written once the rollout is"):
            await asyncio.to_thread(book.grant_owed, request(8, first.granted))
        await world.until(name, Stage.MONITORED)
        await world.archived(name)
        done = await insisting(lambda: book.grant_owed(request(8, first.granted)))
        assert (world.sql.gpus(name), done.owed) == ({"a": 30, "b": 24}, {})
        assert [kind for kind in world.sql.effects(f"{name}/1") if kind == "grant"] == ["grant", "grant"]

        def wind() -> WoundDown:
            return book.wind_down(
                WindDownRequest(cluster=name, owner="tpm", actor="eve", reason="over", at=datetime.now(UTC))
            )

        told = await insisting(wind)
        assert told.quota_gpus == 54
        await insisting(wind, lambda wound: wound.quota_gpus == 0)
    assert world.sql.rows("SELECT name FROM clusters WHERE name = ?", name) == []
    said = [e["text"] for e in world.sql.archive(name)]
    assert said[-1] == "left the fleet, because it is retired"
    assert world.sql.broken_links(name) == []
    assert ("enforced", "a") in world.notices(name)


class InLedger(Site):
    """Runners and checks in memory; the book and the fleet are the ledger's."""

    def parts(self, host: str = "") -> BringupParts:
        return BringupParts(self, self, host=host)
