"""What people ask of the ledger outside a rollout: import, show, archive."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio import activity

from activities.clusters import ClusterActivities
from activities.failures import translated
from activities.ports import FleetPort, RegistryPort
from models.audit import AuditEntry, ChainedEntry
from models.effects import HealthSample
from models.messages import DeskAnswer, DeskRequest

_T = TypeVar("_T")
_QUOTAS_A_PAGE = 10_000
_BYTES_A_PAGE = 8_000_000
"""Of JSON, which crosses Temporal at a tenth of its size (client/payloads.py); 2 MiB is the most there."""

_SAMPLES = TypeAdapter(tuple[HealthSample, ...])
_ENTRIES = TypeAdapter(tuple[AuditEntry, ...])


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
            "teams": lambda _: [t.model_dump(mode="json") for t in self._fleet.teams()],
            "facts": lambda q: self._registry.facts(q.arguments["cluster"]).model_dump(mode="json"),
            "snapshot": lambda q: self._snapshot(q.arguments["cluster"]),
            "snapshots": self._snapshots,
            "archive": self._archive,
            "archived": self._archived,
            "doctor": self._doctor,
        }

    @activity.defn(name="ledger_desk", no_thread_cancel_exception=True)
    def answer(self, request: DeskRequest) -> DeskAnswer:
        """The request is carried out. Errors: those of the ports."""
        with translated():
            return DeskAnswer(result=self._answers[request.kind](request))

    def _stage_import(self, q: DeskRequest) -> None:
        self._fleet.stage_import(q.arguments["import_id"], q.arguments["part"], base64.b64decode(q.payload))

    def _commit_import(self, q: DeskRequest) -> dict[str, Any]:
        return self._fleet.commit_import(q.arguments["import_id"], q.arguments["parts"], q.actor, datetime.now(UTC))

    def _add_health(self, q: DeskRequest) -> int:
        return self._fleet.add_health(_SAMPLES.validate_python(q.arguments["samples"]), q.actor)

    def _clusters(self, q: DeskRequest) -> list[dict[str, Any]]:
        found = self._fleet.clusters(q.arguments.get("after", ""), q.arguments.get("limit", 50))
        found = tuple(_light(found, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE))
        return [
            {
                "cluster": spec.model_dump(mode="json", exclude_defaults=True),
                "rollout": None if rollout is None else rollout.rollout,
                "stage": None if rollout is None else rollout.stage,
            }
            for spec, rollout in found
        ]

    def _snapshot(self, cluster: str) -> dict[str, Any]:
        """What a launch would plan from now: the same values, health and usage."""
        snapshot, policy = self._rollouts.present(cluster, datetime.now(UTC))
        return {
            "snapshot": snapshot.model_dump(mode="json"),
            "policy": policy.model_dump(mode="json", exclude_unset=True),
        }

    def _snapshots(self, q: DeskRequest) -> list[dict[str, Any]]:
        page = self._fleet.clusters(q.arguments.get("after", ""), q.arguments.get("limit", 20))
        light = _light(page, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE)
        return [self._snapshot(spec.name) for spec, _ in light]

    def _archive(self, q: DeskRequest) -> int:
        entries = _ENTRIES.validate_python(q.arguments["entries"])
        self._registry.archive(entries)
        return len(entries)

    def _archived(self, q: DeskRequest) -> dict[str, Any]:
        cluster = q.arguments["cluster"]
        rows = self._registry.archived(cluster, q.arguments.get("after", 0), q.arguments.get("limit", 200))
        head = self._registry.chain_head(cluster)
        return {
            "rows": [row.model_dump(mode="json") for row in _light(rows, _json_bytes, _BYTES_A_PAGE)],
            "head": None if head is None else head.model_dump(mode="json"),
        }

    def _doctor(self, q: DeskRequest) -> dict[str, Any]:
        """Proof that a worker reaches its ledger."""
        return {"open_rollouts": len(self._registry.open_clusters())}


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
