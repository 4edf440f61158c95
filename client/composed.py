"""Calls that take several questions to the ledger's desk: whole lists, large documents, many samples.

Both doors use them, the one to Temporal (client/questions.py) and the one to the front (client/http_door.py), so this
file imports neither.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from activities.clock import Clock, utc_now
from models import import_questions as taking
from models import questions as desk
from models.audit_chain import ChainedEntry, ChainHead
from models.cluster.contact_secrets import is_masked, is_secret
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterSpec, Fleet
from models.cluster.import_outcome import NOTHING_STAGED, FleetOutcome, ImportTerms
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Entry
from models.errors import BadInput, Refusal
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow
from models.question_base import Question
from models.reports.weekly import Past

_PART = 700_000
"""Bytes of one part of a large document: below Temporal's payload limit, even in base64."""
_AT_ONCE = 2000
"""The most samples or jobs in one question."""
_CLUSTERS = 1000
"""Clusters in one question about flex."""

StagePart = Callable[[str, int, bytes], None]
"""Stores one part of an import, given the import's id, the part's number and the part."""
_ANOTHER_LEDGER = (
    "the workers use another ledger than this machine, so nothing is imported: set BACKSTOP_LEDGER_URL to theirs"
)

_T = TypeVar("_T")
_AnswerT = TypeVar("_AnswerT")


class Composed:
    """All composed calls, for a class that has `ask`."""

    _now: Clock = staticmethod(utc_now)

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        """Return the desk's answer to one question."""
        raise NotImplementedError

    async def _pages(self, after: Callable[[Sequence[_T]], Question[tuple[_T, ...]]]) -> list[_T]:
        """Return all pages: each next one is asked for `after` the items before it, until a page is empty."""
        rows: list[_T] = []
        while page := await self.ask(after(rows)):
            rows += page
        return rows

    async def clusters(self) -> list[ClusterSpec]:
        """Return every cluster of the ledger with present values and latest health."""
        return [spec for spec, _ in await self.clusters_with_stage()]

    async def clusters_named(self, names: Collection[str]) -> list[ClusterSpec]:
        """Return those of these clusters that the ledger has and can read."""
        wanted, rows = sorted(names), list[desk.LedgerCluster]()
        for start in range(0, len(wanted), _CLUSTERS):
            rows += await self._describe_clusters(tuple(wanted[start : start + _CLUSTERS]))
        return [row.cluster for row in rows if row.cluster is not None and row.cluster.name in names]

    async def clusters_with_stage(self) -> list[tuple[ClusterSpec, str | None]]:
        """Return every cluster, with the stage of its open rollout where it has one."""
        return [(row.cluster, row.stage) for row in await self.describe_clusters() if row.cluster is not None]

    async def describe_clusters(self) -> list[desk.LedgerCluster]:
        """Return every cluster with its stage, those with invalid rows included."""
        return await self._describe_clusters()

    async def _describe_clusters(self, names: tuple[str, ...] = ()) -> list[desk.LedgerCluster]:
        def after(rows: Sequence[desk.LedgerCluster]) -> desk.LedgerClusters:
            return desk.LedgerClusters(after=_name_of(rows[-1]) if rows else "", limit=50, names=names)

        return await self._pages(after)

    async def senseless(self) -> dict[str, tuple[str, ...]]:
        """Return what is invalid in the ledger, by cluster."""
        return await self.ask(desk.Senseless())

    async def plannable(
        self, over: Mapping[str, Any] | None = None
    ) -> tuple[list[tuple[Snapshot, Policy]], dict[str, str]]:
        """Return every cluster that can be planned, with its policy and a health buffer of the last hour.

        The second part says, by cluster, why one cannot be planned now.
        """

        def after(rows: Sequence[desk.Plannable | desk.Unplannable]) -> desk.SnapshotsNow:
            return desk.SnapshotsNow(after=_cluster_of(rows[-1]) if rows else "", limit=20, policy=dict(over or {}))

        rows = await self._pages(after)
        can = [(row.snapshot, row.policy) for row in rows if isinstance(row, desk.Plannable)]
        return can, {row.cluster: row.why_not for row in rows if isinstance(row, desk.Unplannable)}

    async def snapshot(self, cluster: str, over: Mapping[str, Any] | None = None) -> tuple[Snapshot, Policy]:
        """Return one cluster as a plan would see it, and its policy, with these settings laid over it.

        Errors: Refusal for an unknown cluster, BadInput for a bad setting.
        """
        answer = await self.ask(desk.SnapshotNow(cluster=cluster, policy=dict(over or {})))
        return answer.snapshot, answer.policy

    async def flex(self, cluster: str = "", mode: FlexMode = FlexMode.EQUAL) -> list[FlexNow]:
        """Return the flex of one cluster, or of all by name. Errors: Refusal for an unknown cluster."""
        if cluster:
            return list(await self.ask(desk.FlexOf(cluster=cluster, mode=mode)))

        def after(rows: Sequence[FlexNow]) -> desk.FlexOf:
            return desk.FlexOf(mode=mode, after=rows[-1].cluster if rows else "", limit=_CLUSTERS)

        return await self._pages(after)

    async def calendar(self, cluster: str = "") -> tuple[Entry, ...]:
        """Return the declared windows that are not over. Errors: BadInput for an unknown cluster."""
        return await self.ask(desk.Calendar(cluster=cluster, since=self._now()))

    async def tallies(self, cluster: str, times: Sequence[datetime], within: timedelta) -> desk.Curve:
        """Return the curve of a cluster or all, and when its tallies begin. Errors: BadInput for an unknown cluster."""
        return await self.ask(desk.Tallies(cluster=cluster, times=tuple(times), within_seconds=_seconds(within)))

    async def past(
        self, since: datetime, until: datetime, times: Sequence[datetime], within: timedelta, most: int | None = None
    ) -> Past:
        """Return the ledger's record of this time. `most`: as in `PastWeek`."""
        week = desk.PastWeek(since=since, until=until, times=tuple(times), within_seconds=_seconds(within), most=most)
        return await self.ask(week)

    async def read_archive(self, cluster: str) -> tuple[list[ChainedEntry], ChainHead | None]:
        """Return the cluster's whole archive, and where its chain should end."""
        rows: list[ChainedEntry] = []
        while True:
            page = await self.ask(desk.Archived(cluster=cluster, after=rows[-1].seq if rows else 0, limit=200))
            rows += page.rows
            if not page.rows:  # a short page may only be a heavy one
                return rows, page.head

    async def import_fleet(self, fleet: Fleet, stage: StagePart | None = None) -> dict[str, int]:
        """Import the whole fleet or none of it. Errors: as `take_fleet`."""
        return (await self.take_fleet(fleet, ImportTerms(whole=True), stage)).counts

    async def take_fleet(self, fleet: Fleet, terms: ImportTerms, stage: StagePart | None = None) -> FleetOutcome:
        """Import each cluster of the fleet whole; one that is refused stays as it was. Errors: BadInput, Refusal.

        A change of policy that takes two admins waits for the second one (AwaitsSecond).

        `stage`: writes a part straight into the workers' ledger. A fleet with contacts that hold secrets goes that
        way, because whatever travels through Temporal stays in its histories. Its errors: Refusal if there is no
        such way.
        """
        document = zlib.compress(fleet.model_dump_json(exclude_unset=True, by_alias=True).encode())
        parts = [document[at : at + _PART] for at in range(0, len(document), _PART)]
        import_id = uuid.uuid4().hex
        secret = sorted(
            team.name for team in fleet.teams if any(is_secret(c) and not is_masked(c) for c in team.contacts)
        )
        if secret and stage is None:
            raise Refusal(
                f"contacts of {', '.join(secret[:3])} contain secrets, which may not pass through Temporal: write "
                "secret:NAME in their place (docs/secrets.md)"
            )
        for number, part in enumerate(parts):
            if secret and stage is not None:
                await asyncio.to_thread(stage, import_id, number, part)
            else:
                await self.ask(taking.StageImport(import_id=import_id, part=number), base64.b64encode(part).decode())
        whole = taking.TakeFleet(import_id=import_id, parts=len(parts), terms=terms)
        try:
            outcome = await self.ask(whole)
            if outcome.awaits_second:  # said again as what it is: the front keeps it for another admin
                outcome = await self.ask(whole.but(terms=terms.model_copy(update={"policy": outcome.policy})))
            return outcome
        except BadInput as error:
            if secret and error.message == NOTHING_STAGED:
                raise Refusal(_ANOTHER_LEDGER) from None
            raise

    async def fleet_pages(self) -> list[FleetPage]:
        """Return the ledger as a fleet file, in pages; the first one has the settings of the whole fleet."""
        pages = [await self.ask(desk.FleetFile())]
        while pages[-1].last:
            pages.append(await self.ask(desk.FleetFile(after=pages[-1].last)))
        return pages

    async def add_health(self, samples: Sequence[HealthSample]) -> int:
        """Add health samples to the ledger; return how many rows."""
        batches = [tuple(samples[at : at + _AT_ONCE]) for at in range(0, len(samples), _AT_ONCE)]
        return sum([await self.ask(desk.AddHealth(samples=batch)) for batch in batches])

    async def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        """Add jobs to the ledger; return how many. Errors: BadInput for an unknown cluster."""
        batches = [tuple(jobs[at : at + _AT_ONCE]) for at in range(0, len(jobs), _AT_ONCE)]
        return sum([await self.ask(desk.AddJobs(jobs=batch)) for batch in batches])


def _name_of(row: desk.LedgerCluster) -> str:
    return row.name if row.cluster is None else row.cluster.name


def _cluster_of(row: desk.Plannable | desk.Unplannable) -> str:
    return row.cluster if isinstance(row, desk.Unplannable) else row.snapshot.cluster


def _seconds(span: timedelta) -> int:
    return max(1, round(span.total_seconds()))
