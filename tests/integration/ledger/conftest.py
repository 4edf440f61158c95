from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.adapters.ledger.facade import Ledger
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool, fleet, import_fleet


@pytest.fixture(scope="session")
def ledgers() -> Iterator[dict[str, Ledger]]:
    """Yield ledgers by URL, for the whole run: each keeps its compiled statements."""
    made: dict[str, Ledger] = {}
    yield made
    for ledger in made.values():
        ledger.close()


@pytest.fixture
def empty_ledger(ledger_url: str, ledgers: dict[str, Ledger]) -> Ledger:
    if ledger_url not in ledgers:
        ledgers[ledger_url] = Ledger(ledger_url, now=lambda: LEDGER_NOW)
    return ledgers[ledger_url]


@pytest.fixture
def ledger(empty_ledger: Ledger) -> Ledger:
    """Return the ledger with the small fleet in it."""
    import_fleet(empty_ledger, fleet())
    return empty_ledger


@pytest.fixture
def tool(ledger_url: str) -> Iterator[ForeignTool]:
    """Somebody else on the same database."""
    foreign = ForeignTool(ledger_url)
    yield foreign
    foreign.close()
