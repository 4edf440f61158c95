"""The reads of one look see one moment, in one transaction, where the ledger alone speaks for the cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import sqlalchemy as sa

from activities.adapters.git.quotas import GitQuotas
from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.rollout.cluster_calls import ClusterActivities
from activities.rollout.effects import QuotaActivities
from models.errors import Refusal, Unavailable
from models.rollout.effects import EffectKind
from models.rollout.messages import EffectRequest, ObserveRequest
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import CLUSTER, NOW, ForeignTool, effect, open_rollout, values

EARLIER, LATER = 120, 119
"""Quota b of the small fleet, and what a foreign tool makes of it."""


def quota_of(ledger: Ledger) -> int:
    return ledger.quotas.read(CLUSTER).values["b"]


def change(tool: ForeignTool) -> None:
    tool.run("UPDATE quotas SET gpus = ? WHERE cluster = ? AND team = 'b'", LATER, CLUSTER)


@contextmanager
def counted_transactions() -> Iterator[list[None]]:
    seen: list[None] = []

    def count(_: Any) -> None:
        seen.append(None)

    sa.event.listen(sa.Engine, "begin", count)
    yield seen
    sa.event.remove(sa.Engine, "begin", count)


def test_what_others_write_meanwhile_is_seen_after_the_moment(ledger: Ledger, tool: ForeignTool) -> None:
    with ledger.schedulers.one_moment(CLUSTER):
        assert quota_of(ledger) == EARLIER
        change(tool)
        assert quota_of(ledger) == EARLIER
    assert quota_of(ledger) == LATER


def test_a_read_after_a_write_of_ours_is_later_than_it(ledger: Ledger, tool: ForeignTool) -> None:
    with ledger.schedulers.one_moment(CLUSTER):
        assert quota_of(ledger) == EARLIER
        change(tool)
        ledger.registry.release_breach("beta")
        assert quota_of(ledger) == LATER


def test_a_read_that_fails_ends_the_moment(ledger: Ledger, tool: ForeignTool) -> None:
    with ledger.schedulers.one_moment(CLUSTER):
        change(tool)
        with pytest.raises(Refusal):
            ledger.quotas.read("nowhere")
        assert quota_of(ledger) == LATER


def test_a_statement_that_fails_fails_no_later_read(ledger: Ledger, tool: ForeignTool) -> None:
    if not tool.postgresql:
        pytest.skip("SQLite goes on in a transaction of which one statement failed")
    with ledger.schedulers.one_moment(CLUSTER):
        tool.run("ALTER TABLE windows RENAME TO windows_elsewhere")
        try:
            with pytest.raises(Unavailable, match="tables, or older ones"):
                ledger.calendar.windows([CLUSTER])
        finally:
            tool.run("ALTER TABLE windows_elsewhere RENAME TO windows")
        assert quota_of(ledger) == EARLIER


@pytest.mark.parametrize("column", ["source", "health_source"])
@pytest.mark.parametrize("text", ['{"connection": "east"}', '{"senseless": 1}'])
def test_where_another_source_speaks_for_the_cluster_each_read_sees_its_own_moment(
    ledger: Ledger, tool: ForeignTool, column: str, text: str
) -> None:
    tool.run(f"UPDATE clusters SET {column} = ? WHERE name = ?", text, CLUSTER)
    with ledger.schedulers.one_moment(CLUSTER):
        assert quota_of(ledger) == EARLIER
        change(tool)
        assert quota_of(ledger) == LATER


def test_a_moment_is_one_threads_alone(ledger: Ledger, tool: ForeignTool) -> None:
    seen: list[int] = []
    with ledger.schedulers.one_moment(CLUSTER):
        assert quota_of(ledger) == EARLIER
        change(tool)
        other = threading.Thread(target=lambda: seen.append(quota_of(ledger)))
        other.start()
        other.join()
        assert (seen, quota_of(ledger)) == ([LATER], EARLIER)


@pytest.mark.usefixtures("tool")
def test_a_look_is_one_transaction_and_asks_once_who_speaks_for_the_cluster(ledger: Ledger) -> None:
    clusters = ClusterActivities(ledger.ports, now=lambda: NOW)
    apart = ClusterActivities(replace(ledger.ports, one_moment=nullcontext), now=lambda: NOW)
    request = ObserveRequest(cluster=CLUSTER, at=NOW, plausible_drop=Fraction(1, 2), max_breaching_clusters=3)
    with counted_transactions() as transactions, counted_queries() as queries:
        seen = clusters.observe(request)
    assert len(transactions) == 1
    assert sum("clusters.health_source" in query for query in queries) == 1
    assert len(set(queries)) == len(queries), "it asks nothing twice"
    assert seen == apart.observe(request)


def test_what_is_read_again_in_a_moment_is_read_anew_after_a_write(ledger: Ledger, tool: ForeignTool) -> None:
    def healthy() -> int:
        return ledger.health.read([CLUSTER])[CLUSTER].healthy_gpus

    with ledger.schedulers.one_moment(CLUSTER):
        before = healthy()
        tool.run("UPDATE health_samples SET healthy_gpus = healthy_gpus - 1 WHERE cluster = ?", CLUSTER)
        assert healthy() == before
        ledger.registry.release_breach("beta")
        samples = tool.one("SELECT sum(healthy_gpus) FROM health_samples WHERE cluster = ?", CLUSTER)
        assert healthy() == samples < before


@pytest.mark.usefixtures("tool")
def test_a_cluster_without_a_rollout_is_asked_for_none_of_its_parts(ledger: Ledger) -> None:
    with counted_queries() as queries:
        assert ledger.registry.open_rollout_of(CLUSTER) is None
    assert len(queries) == 1


@pytest.mark.usefixtures("tool")
def test_an_effect_reads_in_one_transaction_and_writes_in_another(ledger: Ledger) -> None:
    open_rollout(ledger)
    slurms = Slurms(ledger, ledger.schedulers)
    quotas = GitQuotas(ledger, SlurmQuotas(slurms), slurms)
    effects = QuotaActivities(replace(ledger.ports, quotas=quotas), now=lambda: NOW)
    change = effect(EffectKind.SET_SOFT, 1, writes=values(("c", 80, 70)))
    with counted_transactions() as transactions, counted_queries() as queries:
        receipt = effects.apply_effect(EffectRequest(change=change, shadow=False, limit_gpus=None, at=NOW))
    assert receipt.after == {"c": 70}
    assert len(transactions) == 2
    assert sum("clusters.health_source" in query for query in queries) == 1
