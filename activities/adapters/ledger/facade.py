"""The ledger: the built-in quota system, and Backstop's own book, in one SQL database.

SQLite by default, PostgreSQL if several machines share it. Each part implements one port of
activities/ports. The database itself, by triggers, counts the changes of others and refuses those that
would take capacity which an open rollout freed; so a tool that writes plain SQL is held to it too.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from activities.adapters.ledger.access import LedgerAccess
from activities.adapters.ledger.attribution import LedgerAttribution
from activities.adapters.ledger.awaited_merges import LedgerMerges
from activities.adapters.ledger.bringups import LedgerBringups
from activities.adapters.ledger.calendar import LedgerCalendar
from activities.adapters.ledger.change_mark import LedgerPulse
from activities.adapters.ledger.database import PATIENCE, Database
from activities.adapters.ledger.fleet_reader import LedgerFleet
from activities.adapters.ledger.health_and_usage import LedgerHealth, LedgerSamples, LedgerUsage
from activities.adapters.ledger.jobs import LedgerJobs
from activities.adapters.ledger.milestones import LedgerMilestones
from activities.adapters.ledger.outbox import LedgerOutbox
from activities.adapters.ledger.pushed_clusters import LedgerPushes
from activities.adapters.ledger.quotas import LedgerQuotas
from activities.adapters.ledger.rollouts import LedgerRegistry
from activities.adapters.ledger.scheduler_mirror import SchedulerBook
from activities.adapters.ledger.seals import LedgerSeals
from activities.adapters.ledger.second_persons import LedgerSecondPersons
from activities.adapters.ledger.source_doubts import LedgerDoubts
from activities.adapters.ledger.tallies import LedgerTallies
from activities.adapters.ledger.warrants import LedgerWarrants
from activities.adapters.ledger.weekly_report import LedgerReport
from activities.clock import Clock, utc_now
from activities.ports.clusters import ClusterPorts


class Ledger:
    """All ports of one ledger database. Thread-safe; connects when first used.

    `upgrade(url)` makes or renews the schema; without it every call is Unavailable and says so. `now` dates
    records that no caller dates (receipts, ends of rollouts). `patience`: how long a call waits for another
    writer before it is Unavailable.
    """

    def __init__(self, url: str, now: Clock = utc_now, patience: timedelta = PATIENCE) -> None:
        self._database = Database(url, now, patience)
        self.quotas = LedgerQuotas(self._database)
        self.health = LedgerHealth(self._database)
        self.pushes = LedgerPushes(self._database)
        self.doubts = LedgerDoubts(self._database)
        self.samples = LedgerSamples(self._database)
        self.usage = LedgerUsage(self._database)
        self.jobs = LedgerJobs(self._database)
        self.schedulers = SchedulerBook(self._database)
        self.merges = LedgerMerges(self._database)
        self.calendar = LedgerCalendar(self._database)
        self.registry = LedgerRegistry(self._database)
        self.fleet = LedgerFleet(self._database)
        self.tallies = LedgerTallies(self._database)
        self.report = LedgerReport(self._database)
        self.milestones = LedgerMilestones(self._database)
        self.outbox = LedgerOutbox(self._database)
        self.bringups = LedgerBringups(self._database)
        self.seals = LedgerSeals(self._database)
        self.access = LedgerAccess(self._database)
        self.second_persons = LedgerSecondPersons(self._database)
        self.attribution = LedgerAttribution(self._database)
        self.warrants = LedgerWarrants(self._database)
        self.pulse = LedgerPulse(self._database)

    @property
    def ports(self) -> ClusterPorts:
        """Its ports of clusters, whose quotas it keeps itself."""
        return ClusterPorts(
            quotas=self.quotas,
            health=self.health,
            usage=self.usage,
            calendar=self.calendar,
            registry=self.registry,
            jobs=self.jobs,
            doubts=self.doubts,
            one_moment=self.schedulers.one_moment,
        )

    def check_schema(self) -> None:
        """Check that the schema is complete and readable. Errors: Unavailable, saying what to run; Barred."""
        self._database.check_schema()

    def now(self) -> datetime:
        return self._database.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The ledger connects again if it is used again."""
        self._database.close()
