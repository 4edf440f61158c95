"""Pushes in the ledger: one row for each cluster, taken once, by whoever watches it."""

from __future__ import annotations

from activities.adapters.ledger.facade import Ledger
from tests.e2e.world import Sql, worked_case
from tests.integration.ledger.world import import_fleet

NAMES = ("alpha", "beta", "gamma")


def test_a_thousand_pushes_are_a_row_for_each_cluster_and_are_taken_once(ledger_url: str) -> None:
    sql = Sql(ledger_url)
    with Ledger(ledger_url) as ledger:
        import_fleet(ledger, {"clusters": [worked_case(n) for n in NAMES]})
        for _ in range(1000 // len(NAMES)):
            assert ledger.pushes.push([*NAMES, "no-such", "alpha"]) == NAMES
        assert sorted(c for (c,) in sql.rows("SELECT cluster FROM health_pushes")) == [*NAMES]
        assert set(ledger.pushes.take(lambda cluster: cluster != "beta")) == {"alpha", "gamma"}
        assert sql.rows("SELECT cluster FROM health_pushes") == [("beta",)]
        assert set(ledger.pushes.take(lambda cluster: True)) == {"beta"}
        assert ledger.pushes.take(lambda cluster: True) == {}
    sql.close()
