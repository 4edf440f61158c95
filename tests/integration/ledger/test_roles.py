"""The two roles of deploy/roles.sql on a real PostgreSQL: what each may do, and what a missing right brings about."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from activities.adapters.ledger.facade import Ledger
from models.audit_chain import AuditEntry, AuditKind
from models.errors import Barred, Refusal, Unavailable
from models.rollout.effects import EffectKind
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage
from tests.integration.ledger.world import (
    LEAF_SUM,
    LEDGER_NOW,
    NOW,
    ForeignTool,
    effect,
    fleet,
    import_fleet,
    open_rollout,
    reserve,
    set_soft,
    values,
)
from workers.main import refuse_without_schema

ROLES = Path(__file__).parents[3] / "deploy" / "roles.sql"
USERS = {"worker": "backstop_worker", "exporter": "backstop_tools"}


@pytest.fixture
def owner(postgres_ledger_url: str) -> Iterator[ForeignTool]:
    tool = ForeignTool(postgres_ledger_url)
    for _ in range(2):  # it is run again after each upgrade
        tool._connection.execute(ROLES.read_text())
    for user, role in USERS.items():
        tool._connection.execute(f"DROP USER IF EXISTS {user}")
        tool._connection.execute(f"CREATE USER {user} LOGIN IN ROLE {role}")
    yield tool
    for user in USERS:
        tool._connection.execute(f"DROP USER {user}")
    tool._connection.execute("; ".join(f"DROP OWNED BY {r}; DROP ROLE {r}" for r in USERS.values()))
    tool.close()


def url_of(user: str, url: str) -> str:
    return sa.make_url(url).set(username=user).render_as_string(hide_password=False)


@pytest.fixture
def ledger(owner: ForeignTool, postgres_ledger_url: str) -> Iterator[Ledger]:
    """Yield the ledger as Backstop's own role reaches it."""
    with Ledger(url_of("worker", postgres_ledger_url), now=lambda: LEDGER_NOW) as ledger:
        import_fleet(ledger, fleet())
        yield ledger


@pytest.fixture
def exporter(owner: ForeignTool, postgres_ledger_url: str) -> Iterator[ForeignTool]:
    tool = ForeignTool(url_of("exporter", postgres_ledger_url))
    yield tool
    tool.close()


def recorded(text: str) -> RecordRequest:
    entry = AuditEntry(
        key=f"r-1/{text}", cluster="alpha", rollout="r-1", at=NOW, kind=AuditKind.EFFECT, actor="backstop", text=text
    )
    return RecordRequest(rollout="r-1", entries=(entry,), stage=Stage.BUFFERED, ended=False, completed=False)


def test_the_worker_s_role_is_enough_for_a_rollout(ledger: Ledger, owner: ForeignTool) -> None:
    refuse_without_schema(ledger)
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    set_soft(ledger, 2, ("a", 100, 90))
    ledger.registry.record(recorded("one"))
    assert (owner.gpus()["a"], owner.one("SELECT count(*) FROM audit WHERE key = 'r-1/one'")) == (90, 1)
    assert ledger.fleet.senseless() == {}


def test_a_tool_brings_samples_and_changes_quotas_and_is_counted(ledger: Ledger, exporter: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    before = exporter.generation()
    exporter.set("c", 70)
    exporter.run("INSERT INTO quotas (cluster, team, gpus) VALUES ('alpha', 'new', 5)")
    exporter.run("DELETE FROM quotas WHERE team = 'new'")
    exporter.run("UPDATE quotas SET classes = 'training,engines' WHERE team = 'b'")
    assert [exporter.one(f"SELECT count(*) FROM {view}") for view in ("quota_classes", "jobs_by_class")] == [2, 0]
    assert exporter.generation() == before + 3
    exporter.run(
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus)"
        " VALUES ('alpha', 'X', '2026-03-01T12:05:00Z', 200, 9)"
    )
    assert "which rollout r-1 reserves" in exporter.set_refused("c", 91)
    assert {change.by for change in ledger.quotas.changes("alpha", before)} == {"user exporter"}


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE quotas SET gpus = 200, written_by = 'r-1#2' WHERE team = 'c'",
        "UPDATE quotas SET written_gpus = 200 WHERE team = 'c'",
        "INSERT INTO quotas (cluster, team, gpus, written_by) VALUES ('alpha', 'new', 5, 'r-1#2')",
        "UPDATE clusters SET reserve_limit = NULL",
        "UPDATE clusters SET generation = generation - 1",
        "UPDATE clusters SET open_rollout = NULL",
        "UPDATE rollouts SET superseded_by = 'mine'",
        "DELETE FROM reserve_limits",
        "DELETE FROM receipts",
        "INSERT INTO audit VALUES ('alpha', 1, 'r-1/000001', '', '', '{}')",
        "SELECT address FROM contacts",
        "UPDATE islands SET total_gpus = 0",
    ],
)
def test_a_tool_has_no_right_on_what_only_backstop_writes(forgery: str, ledger: Ledger, exporter: ForeignTool) -> None:
    open_rollout(ledger)
    reserve(ledger, 1, LEAF_SUM)
    assert "permission denied for" in exporter.refused(forgery)


def test_the_worker_itself_cannot_alter_the_archive(ledger: Ledger, postgres_ledger_url: str) -> None:
    open_rollout(ledger)
    ledger.registry.record(recorded("one"))
    worker = ForeignTool(url_of("worker", postgres_ledger_url))
    assert "permission denied" in worker.refused("UPDATE audit SET entry = '{}'")
    assert "permission denied" in worker.refused("DELETE FROM audit")
    worker.close()


def test_a_missing_right_is_a_refusal_and_nothing_is_dropped_from_the_archive(
    ledger: Ledger, owner: ForeignTool
) -> None:
    """An inverse that meets one is stuck at once, and says whom to ask; what is archived is tried again."""
    open_rollout(ledger)
    owner.run("REVOKE UPDATE ON quotas FROM backstop_worker")
    with pytest.raises(
        Barred, match=r"permission denied for table quotas.*grant the worker's role its rights"
    ) as barred:
        ledger.quotas.apply(effect(EffectKind.RESTORE, 1, writes=values(("a", 100, 90))))
    assert isinstance(barred.value, Refusal)
    assert not barred.value.retryable
    owner.run("REVOKE INSERT ON audit FROM backstop_worker")
    with pytest.raises(Unavailable, match="permission denied for table audit"):
        ledger.registry.record(recorded("one"))
    owner.run("GRANT INSERT ON audit TO backstop_worker")
    ledger.registry.record(recorded("one"))
    assert owner.one("SELECT count(*) FROM audit WHERE key = 'r-1/one'") == 1


AWAY = {
    "a table": ("ALTER TABLE quotas RENAME TO gone", "ALTER TABLE gone RENAME TO quotas"),
    "a column": ("ALTER TABLE quotas RENAME COLUMN mode TO gone", "ALTER TABLE quotas RENAME COLUMN gone TO mode"),
    "a schema": ("ALTER SCHEMA public RENAME TO gone", "ALTER SCHEMA gone RENAME TO public"),
}


@pytest.mark.parametrize("what", AWAY)
def test_what_is_away_for_seconds_is_waited_for_and_no_worker_starts(
    what: str, ledger: Ledger, owner: ForeignTool
) -> None:
    open_rollout(ledger)
    change = effect(EffectKind.RESTORE, 1, writes=values(("a", 100, 90)))
    leaves, returns = AWAY[what]
    owner.run(leaves)
    try:
        with pytest.raises(Unavailable, match="run `backstop migrate`"):
            ledger.quotas.apply(change)
        with pytest.raises(Refusal, match="run `backstop migrate`"):
            refuse_without_schema(ledger)
    finally:
        owner.run(returns)
    ledger.quotas.apply(change)
    assert owner.gpus()["a"] == 90


def test_a_worker_waits_for_a_database_that_does_not_answer() -> None:
    with Ledger("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1", patience=timedelta(seconds=1)) as ledger:
        refuse_without_schema(ledger)
