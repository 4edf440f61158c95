"""Whatever dates something, or asks how old it is, goes by the clock that it was given. Plain SQL is the witness."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.rollout.clusters import ClusterActivities
from tests.integration.ledger.world import NOW, ForeignTool, fleet, import_fleet, note_stage, open_rollout

HOUR = timedelta(hours=1)


class Site:
    """A ledger with the small fleet of 1 March 2026 in it, and a clock that the test turns."""

    def __init__(self, url: str) -> None:
        self.now = NOW
        self.ledger = Ledger(url, now=self.clock)
        self.sql = ForeignTool(url)
        import_fleet(self.ledger, fleet())

    def clock(self) -> datetime:
        return self.now

    def clusters(self) -> ClusterActivities:
        of = self.ledger
        reads = (of.quotas, of.health, of.usage, of.calendar, of.registry, of.jobs, of.doubts)
        return ClusterActivities(*reads, now=self.clock)


@pytest.fixture
def site(sqlite_ledger_url: str) -> Iterator[Site]:
    made = Site(sqlite_ledger_url)
    yield made
    made.sql.close()
    made.ledger.close()


def test_the_ledger_dates_the_end_of_a_rollout_by_its_clock(site: Site) -> None:
    open_rollout(site.ledger)
    site.now = NOW + 3 * HOUR
    note_stage(site.ledger, "r-1", "rolled_back", ended=True, completed=False)
    assert site.sql.one("SELECT ended_at FROM rollouts") == "2026-03-01T15:00:00.000000Z"


def test_a_look_believes_no_health_that_is_dated_after_its_clock(site: Site) -> None:
    assert site.clusters().surplus("beta") == 64 - 32
    site.now = NOW - HOUR
    assert site.clusters().surplus("beta") is None
