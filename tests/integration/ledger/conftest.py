from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.adapters.ledger import Ledger
from tests.integration.ledger.world import NOW, ForeignTool, fleet, import_fleet


@pytest.fixture
def empty_ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger(ledger_url, now=lambda: NOW) as ledger:
        yield ledger


@pytest.fixture
def ledger(empty_ledger: Ledger) -> Ledger:
    """With the small fleet in it."""
    import_fleet(empty_ledger, fleet())
    return empty_ledger


@pytest.fixture
def tool(ledger_url: str) -> Iterator[ForeignTool]:
    """Somebody else on the same database."""
    foreign = ForeignTool(ledger_url)
    yield foreign
    foreign.close()
