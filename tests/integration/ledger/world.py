"""A small fleet, its rollout and its effects; and a foreign tool that knows nothing but SQL."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa
from sqlmodel import col

from activities.adapters.ledger.facade import Ledger
from activities.adapters.ledger.quotas import attribute_changes
from activities.ports.registry import OpenRollout
from models.cluster.import_outcome import FleetOutcome, ImportTerms
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot, snapshot_of
from models.errors import Refusal
from models.ledger_tables import QuotaRow
from models.rollout.effects import Change, EffectKind, Fence, Receipt, Reserve, ValueWrite
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEDGER_NOW = NOW + timedelta(minutes=10)
"""What the ledger's clock says: the small fleet was imported a little earlier."""
CLUSTER = "alpha"
T = TypeVar("T")


def fleet(**quotas: int) -> dict[str, Any]:
    """Clusters alpha (islands X and Y, a tree, a block) and beta. `quotas` change values of alpha."""
    values = {"a": 100, "b": 120, "c": 80, "org": 60, "org-1": 30, "org-2": 30} | quotas
    extras: dict[str, dict[str, Any]] = {
        "a": {"islands": ["X"], "scheduled_gpus": 90, "idle_gpus": 10},
        "b": {"protected_blocks": [64], "minimum_gpus": 10, "scheduled_gpus": 120, "idle_gpus": 0},
        "c": {"islands": ["X"]},
        "org-1": {"parent": "org"},
        "org-2": {"parent": "org"},
    }
    return {
        "policy": {"buffer": 0.15, "notice": "1d"},
        "clusters": [
            {
                "name": CLUSTER,
                "gpu_model": "H100",
                "islands": [
                    {"name": "X", "total_gpus": 200, "healthy_gpus": 180, "block_gpus": 160},
                    {"name": "Y", "total_gpus": 200, "healthy_gpus": 190},
                ],
                "policy": {"buffer": {"ramp": [0.05, 0.1]}},
                "quotas": [{"team": t, "gpus": g, **extras.get(t, {})} for t, g in values.items()],
                "windows": [
                    {
                        "kind": "maintenance",
                        "starts": "2026-03-02T00:00:00Z",
                        "ends": "2026-03-02T04:00:00Z",
                        "reason": "switches",
                        "islands": ["Y"],
                        "gpus": 64,
                    }
                ],
            },
            {
                "name": "beta",
                "islands": [{"name": "Z", "total_gpus": 64, "healthy_gpus": 64}],
                "quotas": [{"team": "a", "gpus": 32}],
            },
        ],
        "teams": [{"name": "a", "contacts": ["log:", "mailto:a@example.org"]}, {"name": "b"}],
    }


LEAF_SUM = 100 + 120 + 80 + 30 + 30


def import_fleet(
    ledger: Ledger, document: dict[str, Any], import_id: str = "first", now: datetime = NOW
) -> dict[str, Any]:
    stage(ledger, document, import_id)
    return ledger.fleet.commit_import(import_id, 2, "tpm", now)


def take(
    ledger: Ledger, document: dict[str, Any], import_id: str = "second", now: datetime = NOW, **terms: Any
) -> FleetOutcome:
    """Take the document on these terms; return the outcome."""
    stage(ledger, document, import_id)
    return ledger.fleet.take_import(import_id, 2, ImportTerms(file="fleet.yaml", **terms), "tpm", now)


def stage(ledger: Ledger, document: dict[str, Any], import_id: str) -> None:
    packed = zlib.compress(json.dumps(document).encode())
    middle = len(packed) // 2
    for part, payload in enumerate((packed[:middle], packed[middle:])):
        ledger.fleet.stage_import(import_id, part, payload)


def twice(call: Callable[[], T]) -> T:
    """Deliver the call twice, and check that the second gets the first one's answer."""
    first = call()
    assert call() == first
    return first


def baseline(ledger: Ledger, cluster: str = CLUSTER) -> Snapshot:
    found = next(spec for spec, _ in ledger.fleet.clusters("", 100) if spec.name == cluster)
    return snapshot_of(found)


def opening(ledger: Ledger, rollout: str = "r-1", cluster: str = CLUSTER, **more: Any) -> OpenRollout:
    return OpenRollout(
        rollout=rollout,
        cluster=cluster,
        owner="tpm",
        opened_at=NOW,
        baseline=baseline(ledger, cluster),
        **more,
    )


def open_rollout(ledger: Ledger, rollout: str = "r-1", cluster: str = CLUSTER, **more: Any) -> OpenRollout:
    planned = opening(ledger, rollout, cluster, **more)
    return twice(lambda: ledger.registry.open_rollout(planned, adopt=False))


def note_stage(
    ledger: Ledger, rollout: str, stage: str, ended: bool, completed: bool, needs: str = "", rollbacks: int = 0
) -> None:
    ledger.registry.record(
        RecordRequest(
            rollout=rollout,
            entries=(),
            stage=Stage(stage),
            ended=ended,
            completed=completed,
            needs=needs,
            rollbacks=rollbacks,
        )
    )


def effect(kind: EffectKind, counter: int, rollout: str = "r-1", **more: Any) -> Change:
    return Change(cluster=CLUSTER, kind=kind, fence=Fence(rollout=rollout, counter=counter), **more)


def land(ledger: Ledger, kind: EffectKind, counter: int, rollout: str = "r-1", **more: Any) -> Receipt:
    change = effect(kind, counter, rollout, **more)
    return twice(lambda: ledger.quotas.apply(change))


def set_soft(ledger: Ledger, counter: int, *writes: tuple[str, int, int], **more: Any) -> Receipt:
    """Writes are (team, expected, new)."""
    return land(ledger, EffectKind.SET_SOFT, counter, writes=values(*writes, mode=LimitMode.SOFT), **more)


def restore(ledger: Ledger, counter: int, *writes: tuple[str, int, int], **more: Any) -> Receipt:
    return land(ledger, EffectKind.RESTORE, counter, writes=values(*writes, mode=LimitMode.HARD), **more)


def reserve(ledger: Ledger, counter: int, limit: int, **islands: int) -> Receipt:
    kept = Reserve(freed_gpus=50, limit_gpus=limit, limits_by_islands=islands)
    return land(ledger, EffectKind.RESERVE, counter, reserve=kept)


def values(*writes: tuple[str, int, int], mode: LimitMode | None = None) -> tuple[ValueWrite, ...]:
    return tuple(ValueWrite(team=t, expected_gpus=e, gpus=g, mode=mode) for t, e, g in writes)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def foreign_write(ledger: Ledger, cluster: str, team: str, gpus: int, actor: str) -> None:
    """The quota is set as any other tool would set it: past Backstop, in one signed transaction.

    Errors: Refusal for an unknown quota, and with the ledger's reason where the value would take capacity that an open
    rollout freed.
    """
    of_team = sa.update(QuotaRow).where(col(QuotaRow.cluster) == cluster, col(QuotaRow.team) == team)
    with ledger.quotas._database.begin() as session, attribute_changes(session, [cluster], actor):
        if session.connection().execute(of_team.values(gpus=gpus)).rowcount == 0:
            raise Refusal(f"cluster {cluster} has no quota of team {team}")


class ForeignTool:
    """A connection of its own, by the database's own driver; `?` marks parameters."""

    def __init__(self, url: str) -> None:
        self.postgresql = url.startswith("postgresql")
        self._connection: Any
        if self.postgresql:
            self._connection = psycopg.connect(url, autocommit=True)
        else:
            path = url.removeprefix("sqlite:///")
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)

    def run(self, statement: str, *parameters: Any) -> int:
        """Run the statement; return how many rows it changed."""
        cursor = self._execute(statement, *parameters)
        return int(cursor.rowcount)

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._execute(statement, *parameters).fetchall()]

    def one(self, statement: str, *parameters: Any) -> Any:
        """The only value of the only row."""
        (row,) = self.rows(statement, *parameters)
        (value,) = row
        return value

    def refused(self, statement: str, *parameters: Any) -> str:
        """The reason which the database gives for not running it."""
        with pytest.raises((sqlite3.Error, psycopg.Error)) as refusal:
            self.run(statement, *parameters)
        return str(refusal.value)

    def gpus(self, cluster: str = CLUSTER) -> dict[str, int]:
        return dict(self.rows("SELECT team, gpus FROM quotas WHERE cluster = ?", cluster))

    def modes(self, cluster: str = CLUSTER) -> dict[str, str]:
        return dict(self.rows("SELECT team, mode FROM quotas WHERE cluster = ?", cluster))

    def quotas(self, cluster: str = CLUSTER) -> list[tuple[Any, ...]]:
        """Every column but Backstop's own mark."""
        return self.rows(
            "SELECT team, gpus, mode, islands, blocks, minimum, parent FROM quotas WHERE cluster = ? ORDER BY team",
            cluster,
        )

    def generation(self, cluster: str = CLUSTER) -> int:
        return int(self.one("SELECT generation FROM clusters WHERE name = ?", cluster))

    def set(self, team: str, gpus: int, cluster: str = CLUSTER) -> int:
        return self.run("UPDATE quotas SET gpus = ? WHERE cluster = ? AND team = ?", gpus, cluster, team)

    def set_refused(self, team: str, gpus: int, cluster: str = CLUSTER) -> str:
        return self.refused("UPDATE quotas SET gpus = ? WHERE cluster = ? AND team = ?", gpus, cluster, team)

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, *parameters: Any) -> Any:
        text = statement.replace("?", "%s") if self.postgresql else statement
        return self._connection.execute(text, parameters)
