"""What people ask of the ledger outside a rollout: import, show, archive."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field
from temporalio import activity

from activities.clusters import ClusterActivities
from activities.failures import translated
from activities.ports import FleetPort, RegistryPort
from models.audit import AuditEntry, AuditKind, ChainedEntry
from models.base import Count, Model, Name, PositiveCount, Time, Words
from models.calendar import Declared, Entry, span_text
from models.effects import HealthSample
from models.errors import BadInput
from models.messages import DeskAnswer, DeskRequest

_T = TypeVar("_T")
_QUOTAS_A_PAGE = 10_000
_BYTES_A_PAGE = 8_000_000
"""Of JSON, which crosses Temporal at a tenth of its size (client/payloads.py); 2 MiB is the most there."""

_Limit = Annotated[PositiveCount, Field(le=1000)]
_Number = Annotated[Count, Field(le=10**6)]


class _Nothing(Model):
    pass


class _Cluster(Model):
    cluster: Name


class _Page(Model):
    after: Words = ""
    limit: _Limit = 20


class _Rows(Model):
    cluster: Name
    after: Count = 0
    limit: _Limit = 200


class _Part(Model):
    import_id: Name
    part: _Number


class _Parts(Model):
    import_id: Name
    parts: _Number


class _Samples(Model):
    samples: tuple[HealthSample, ...]


class _Since(Model):
    cluster: Words = ""
    since: Time


class _Declared(Model):
    declared: tuple[Declared, ...] = Field(min_length=1, max_length=10_000)


class _Window(Model):
    cluster: Name
    number: PositiveCount
    reason: Words = ""


class _Entries(Model):
    entries: tuple[AuditEntry, ...]


_Arguments = TypeVar("_Arguments", bound=Model)


def _of(q: DeskRequest, model: type[_Arguments]) -> _Arguments:
    """The request's arguments, checked. Errors: pydantic.ValidationError, which leaves as BadInput."""
    return model.model_validate(q.arguments)


class DeskActivities:
    def __init__(self, fleet: FleetPort, registry: RegistryPort, clusters: ClusterActivities) -> None:
        self._fleet = fleet
        self._registry = registry
        self._rollouts = clusters
        self._answers: dict[str, Callable[[DeskRequest], Any]] = {
            "stage_import": self._stage_import,
            "commit_import": self._commit_import,
            "add_health": self._add_health,
            "clusters": self._clusters,
            "teams": self._teams,
            "facts": lambda q: self._registry.facts(_of(q, _Cluster).cluster).model_dump(mode="json"),
            "snapshot": lambda q: self._snapshot(_of(q, _Cluster).cluster),
            "snapshots": self._snapshots,
            "archive": self._archive,
            "archived": self._archived,
            "calendar": self._calendar,
            "declare": self._declare,
            "end_window": self._end_window,
            "overview": self._overview,
            "doctor": self._doctor,
        }

    @activity.defn(name="ledger_desk", no_thread_cancel_exception=True)
    def answer(self, request: DeskRequest) -> DeskAnswer:
        """The request is carried out. Errors: BadInput for wrong arguments, those of the ports."""
        with translated():
            return DeskAnswer(result=self._answers[request.kind](request))

    def _stage_import(self, q: DeskRequest) -> None:
        asked = _of(q, _Part)
        try:
            payload = base64.b64decode(q.payload, validate=True)
        except ValueError:
            raise BadInput("the payload of an import's part must be Base64") from None
        self._fleet.stage_import(asked.import_id, asked.part, payload)

    def _commit_import(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Parts)
        return self._fleet.commit_import(asked.import_id, asked.parts, q.actor, datetime.now(UTC))

    def _add_health(self, q: DeskRequest) -> int:
        return self._fleet.add_health(_of(q, _Samples).samples, q.actor)

    def _clusters(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Page)
        found = self._fleet.clusters(asked.after, asked.limit)
        found = tuple(_light(found, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE))
        return [
            {
                "cluster": spec.model_dump(mode="json", exclude_defaults=True),
                "rollout": None if rollout is None else rollout.rollout,
                "stage": None if rollout is None else rollout.stage,
            }
            for spec, rollout in found
        ]

    def _teams(self, q: DeskRequest) -> list[dict[str, Any]]:
        _of(q, _Nothing)
        return [t.model_dump(mode="json") for t in self._fleet.teams()]

    def _snapshot(self, cluster: str) -> dict[str, Any]:
        """What a launch would plan from now: the same values, health and usage."""
        snapshot, policy = self._rollouts.present(cluster, datetime.now(UTC))
        return {
            "snapshot": snapshot.model_dump(mode="json"),
            "policy": policy.model_dump(mode="json", exclude_unset=True),
        }

    def _snapshots(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Page)
        page = self._fleet.clusters(asked.after, asked.limit)
        light = _light(page, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE)
        return [self._snapshot(spec.name) for spec, _ in light]

    def _archive(self, q: DeskRequest) -> int:
        entries = _of(q, _Entries).entries
        self._registry.archive(entries)
        return len(entries)

    def _archived(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Rows)
        rows = self._registry.archived(asked.cluster, asked.after, asked.limit)
        head = self._registry.chain_head(asked.cluster)
        return {
            "rows": [row.model_dump(mode="json") for row in _light(rows, _json_bytes, _BYTES_A_PAGE)],
            "head": None if head is None else head.model_dump(mode="json"),
        }

    def _calendar(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Since)
        return [entry.model_dump(mode="json") for entry in self._fleet.calendar(asked.cluster, asked.since)]

    def _declare(self, q: DeskRequest) -> dict[str, Any]:
        now = datetime.now(UTC)
        found = self._fleet.declare(_of(q, _Declared).declared, q.actor, now)
        # Tried again, it may find new what the first try declared, and had no time to archive.
        new = found.new if activity.info().attempt == 1 else found.stand
        said = [*(("declared", e) for e in new), *(("took back", e) for e in found.gone)]
        self._registry.archive(
            [_told(q, f"/{n}", what, entry, entry.window.reason, now) for n, (what, entry) in enumerate(said)]
        )
        return found.model_dump(mode="json")

    def _end_window(self, q: DeskRequest) -> dict[str, Any]:
        asked, now = _of(q, _Window), datetime.now(UTC)
        entry = self._fleet.end_window(asked.cluster, asked.number, now)
        self._registry.archive([_told(q, "", "ended", entry, asked.reason, now)])
        return entry.model_dump(mode="json")

    def _overview(self, q: DeskRequest) -> list[dict[str, Any]]:
        _of(q, _Nothing)
        return [row.model_dump(mode="json") for row in self._registry.overview()]

    def _doctor(self, q: DeskRequest) -> dict[str, Any]:
        """Proof that a worker reaches its ledger."""
        _of(q, _Nothing)
        return {"open_rollouts": len(self._registry.open_clusters())}


def _told(q: DeskRequest, part: str, what: str, entry: Entry, reason: str, now: datetime) -> AuditEntry:
    """What became of a window. Under the request's own name: whoever carries it out again archives nothing twice."""
    return AuditEntry(
        key=f"{activity.info().workflow_id}{part}",
        cluster=entry.cluster,
        at=now,
        kind=AuditKind.COMMAND,
        actor=q.actor,
        text=f"{what} {span_text(entry.window)} ({entry.source or 'fleet file'})",
        reason=reason,
        data={"command": q.kind, "id": entry.id, "window": entry.window.model_dump(mode="json")},
    )


def _json_bytes(row: ChainedEntry) -> int:
    return len(row.model_dump_json())


def _light(rows: Iterable[_T], weight: Callable[[_T], int], most: int) -> Iterator[_T]:
    """The first rows that weigh no more than this together; at least one, so that the next page goes on."""
    total = 0
    for number, row in enumerate(rows):
        total += weight(row)
        if number and total > most:
            return
        yield row
