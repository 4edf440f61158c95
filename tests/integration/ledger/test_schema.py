"""The schema by its migrations, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import SQLModel

import models.ledger_tables
from activities.adapters.ledger.database import NOT_MIGRATED, database_url, make_engine, upgrade
from activities.adapters.ledger.facade import Ledger
from models.errors import BadInput, Refusal, Unavailable
from tests.compiled_once import plain_create_engine
from tests.integration.ledger.world import ForeignTool, fleet, import_fleet, open_rollout


def test_what_sqlite_has_committed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sa, "create_engine", plain_create_engine)  # other tests do not wait for the disk
    engine = make_engine(f"sqlite:///{tmp_path / 'ledger.db'}", timedelta(seconds=1))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"
    engine.dispose()


def test_a_beginning_is_compared_with_its_case(ledger_url: str) -> None:
    """Keys of archive entries begin with a rollout's name, and F/1 is none of f's."""
    engine = make_engine(ledger_url, timedelta(seconds=1))
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT CASE WHEN 'F/1' LIKE 'f/%' THEN 1 ELSE 0 END")) == 0
        assert connection.scalar(sa.text("SELECT CASE WHEN 'f/1' LIKE 'f/%' THEN 1 ELSE 0 END")) == 1
    engine.dispose()


def test_the_migrations_make_exactly_the_tables_of_the_models(ledger_url: str) -> None:
    def differs(context: MigrationContext, _i: Any, _m: Any, found: Any, wanted: Any) -> bool:
        dialect = context.dialect
        return bool(found.compile(dialect) != wanted.compile(dialect))

    engine = sa.create_engine(database_url(ledger_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": differs})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()
    assert models.ledger_tables.QuotaRow.metadata is SQLModel.metadata


def test_upgrading_again_changes_nothing(ledger_url: str, ledger: Ledger, tool: ForeignTool) -> None:
    before = tool.quotas()
    upgrade(ledger_url)
    assert tool.quotas() == before
    assert tool.one("SELECT version_num FROM alembic_version") == "0100"


def test_a_ledger_of_a_build_before_the_release_gets_the_column_that_it_lacks(
    ledger_url: str, ledger: Ledger, tool: ForeignTool
) -> None:
    open_rollout(ledger)
    tool.run("ALTER TABLE rollouts DROP COLUMN held")
    tool.run("ALTER TABLE rollouts DROP COLUMN note")
    with pytest.raises(Unavailable, match=r"run `backstop migrate`"):
        ledger.check_schema()
    upgrade(ledger_url)
    ledger.check_schema()
    assert tool.rows("SELECT id, held, note FROM rollouts") == [("r-1", None, None)]


def test_the_migrations_travel_with_the_package() -> None:
    import activities.adapters.ledger.migrations as migrations

    versions = Path(migrations.__path__[0]) / "versions"
    assert [file.name for file in versions.glob("v0*.py")] == ["v0100_first_release.py"]
    assert not list(Path(migrations.__path__[0]).glob("*.ini"))


def test_a_ledger_without_tables_says_what_to_run(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path / 'new.db'}") as ledger, pytest.raises(Unavailable) as away:
        ledger.quotas.read("alpha")
    assert away.value.message == NOT_MIGRATED


def test_a_ledger_of_a_newer_backstop_is_left_alone(ledger_url: str, tool: ForeignTool) -> None:
    ours = tool.one("SELECT version_num FROM alembic_version")
    tool.run("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Refusal, match="newer"):
        upgrade(ledger_url)
    tool.run("UPDATE alembic_version SET version_num = ?", ours)  # the next test has the same database


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg"),
        ("postgres://u:p@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg"),
        ("sqlite:///some.db", "sqlite"),
    ],
)
def test_plain_addresses_get_the_driver_that_we_bring(given: str, driver: str) -> None:
    assert database_url(given).drivername == driver


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "sqlite://", "sqlite:///:memory:", "hunter2"])
def test_other_addresses_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Ledger(url)
    assert "hunter2" not in refusal.value.message


BAD_ROWS: dict[str, Callable[[ForeignTool], str]] = {
    "negative quota": lambda t: t.set_refused("a", -1),
    "unknown mode": lambda t: t.refused("UPDATE quotas SET mode = 'firm'"),
    "own parent": lambda t: t.refused("UPDATE quotas SET parent = team"),
    "healthy above total": lambda t: t.refused("UPDATE health_samples SET healthy_gpus = total_gpus + 1"),
    "blocks above healthy": lambda t: t.refused("UPDATE health_samples SET block_gpus = healthy_gpus + 1"),
    "idle above scheduled": lambda t: t.refused("UPDATE usage_samples SET idle_gpus = scheduled_gpus + 1"),
    "text as a count": lambda t: t.refused("UPDATE quotas SET gpus = ?", "many"),
    "a team told in no known way": lambda t: t.refused("UPDATE teams SET notify = 'daily'"),
    "window that ends before it starts": lambda t: t.refused("UPDATE windows SET ends = starts"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
@pytest.mark.usefixtures("ledger")
def test_the_database_itself_refuses_what_makes_no_sense(what: str, tool: ForeignTool) -> None:
    before = tool.quotas()
    assert BAD_ROWS[what](tool)
    assert tool.quotas() == before


def test_fractions_do_not_enter_a_count_of_gpus(ledger: Ledger, tool: ForeignTool) -> None:
    if tool.postgresql:
        tool.run("UPDATE quotas SET gpus = 10.4 WHERE team = 'a'")  # an integer column rounds
    else:
        tool.refused("UPDATE quotas SET gpus = 10.4 WHERE team = 'a'")
    assert all(isinstance(gpus, int) for gpus in tool.gpus().values())


def test_names_are_ordered_by_code_point(empty_ledger: Ledger) -> None:
    document = fleet()
    document["clusters"] = [
        {"name": name, "islands": [{"name": "i", "total_gpus": 1, "healthy_gpus": 1}]} for name in ("b", "Z", "a", "é")
    ]
    import_fleet(empty_ledger, document)
    assert [spec.name for spec, _ in empty_ledger.fleet.clusters("", 10)] == ["Z", "a", "b", "é"]
    assert [spec.name for spec, _ in empty_ledger.fleet.clusters("Z", 2)] == ["a", "b"]
