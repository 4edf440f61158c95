"""The ledger's tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    _clusters()
    _quotas()
    _observations()
    _people()
    _rollouts()
    _archive()
    _imports()


def _name(column: str, **options: Any) -> sa.Column[str]:
    return sa.Column(column, NAME, **options)


def _text(column: str, **options: Any) -> sa.Column[str]:
    return sa.Column(column, sa.Text(), **{"nullable": False, **options})


def _count(column: str, **options: Any) -> sa.Column[int]:
    return sa.Column(column, sa.Integer(), **{"nullable": False, **options})


def _long(column: str, **options: Any) -> sa.Column[int]:
    return sa.Column(column, sa.BigInteger(), **{"nullable": False, **options})


def _flag(column: str) -> sa.Column[bool]:
    return sa.Column(column, sa.Boolean(), nullable=False, server_default=sa.false())


def _time(column: str, **options: Any) -> sa.Column[Any]:
    return sa.Column(column, TIME, **{"nullable": False, **options})


def _of_cluster(cascade: bool = True) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE" if cascade else None)


def _whole(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """SQLite stores 10.5 and 'many' in an integer column; PostgreSQL does not."""
    if op.get_bind().dialect.name != "sqlite":
        return []
    texts = [f"typeof({column}) IN ('integer', 'null')" for column in columns]
    return [sa.CheckConstraint(" AND ".join(texts), name=f"{table}_whole")]


def _clusters() -> None:
    fleet = op.create_table(
        "fleet",
        sa.Column("id", sa.Integer(), primary_key=True),
        _text("policy"),
    )
    op.bulk_insert(fleet, [{"id": 1, "policy": "{}"}])
    op.create_table(
        "clusters",
        _name("name", primary_key=True),
        _text("gpu_model", nullable=True),
        _count("gpus_per_node", server_default="8"),
        _text("policy", server_default="{}"),
        _long("generation", server_default="0"),
        _count("completed_rollouts", server_default="0"),
        _name("open_rollout"),
        _long("last_counter", server_default="0"),
        _count("reserved_gpus", server_default="0"),
        _count("reserve_limit", nullable=True),
        _name("reserved_by"),
        _flag("follows_health"),
    )
    op.create_table(
        "islands",
        _name("cluster", primary_key=True),
        _name("name", primary_key=True),
        _count("total_gpus"),
        _of_cluster(),
        sa.CheckConstraint("total_gpus >= 0", name="islands_counts"),
        *_whole("islands", "total_gpus"),
    )


def _quotas() -> None:
    op.create_table(
        "quotas",
        _name("cluster", primary_key=True),
        _name("team", primary_key=True),
        _count("gpus"),
        _text("mode", server_default="hard"),
        _name("islands"),
        _text("blocks", server_default=""),
        _count("minimum", server_default="0"),
        _name("parent"),
        _name("written_by"),
        _of_cluster(),
        sa.ForeignKeyConstraint(
            ["cluster", "parent"], ["quotas.cluster", "quotas.team"], deferrable=True, initially="DEFERRED"
        ),
        sa.CheckConstraint("gpus >= 0 AND minimum >= 0", name="quotas_counts"),
        sa.CheckConstraint("mode IN ('soft', 'hard')", name="quotas_mode"),
        sa.CheckConstraint("parent <> team", name="quotas_parent"),
        *_whole("quotas", "gpus", "minimum"),
    )
    op.create_index("quotas_children", "quotas", ["cluster", "parent"])
    op.create_table(
        "reserve_limits",
        _name("cluster", primary_key=True),
        _name("islands", primary_key=True),
        _count("limit_gpus"),
        _of_cluster(),
    )


def _observations() -> None:
    op.create_table(
        "health_samples",
        _name("cluster", primary_key=True),
        _name("island", primary_key=True),
        _time("at", primary_key=True),
        _count("total_gpus"),
        _count("healthy_gpus"),
        _count("block_gpus", nullable=True),
        _text("source", server_default=""),
        sa.ForeignKeyConstraint(["cluster", "island"], ["islands.cluster", "islands.name"], ondelete="CASCADE"),
        sa.CheckConstraint("healthy_gpus BETWEEN 0 AND total_gpus", name="health_samples_healthy"),
        sa.CheckConstraint("block_gpus BETWEEN 0 AND healthy_gpus", name="health_samples_block"),
        *_whole("health_samples", "total_gpus", "healthy_gpus", "block_gpus"),
    )
    op.create_table(
        "usage_samples",
        _name("cluster", primary_key=True),
        _name("team", primary_key=True),
        _time("at", primary_key=True),
        _count("scheduled_gpus"),
        _count("idle_gpus", server_default="0"),
        _of_cluster(),
        sa.CheckConstraint("idle_gpus BETWEEN 0 AND scheduled_gpus", name="usage_samples_idle"),
        *_whole("usage_samples", "scheduled_gpus", "idle_gpus"),
    )
    op.create_table(
        "windows",
        sa.Column("id", sa.Integer(), primary_key=True),
        _name("cluster", nullable=False),
        _text("kind"),
        _time("starts"),
        _time("ends"),
        _text("reason"),
        _name("islands"),
        _count("gpus", nullable=True),
        _of_cluster(),
        sa.CheckConstraint("kind IN ('maintenance', 'sev', 'freeze')", name="windows_kind"),
        sa.CheckConstraint("ends > starts", name="windows_forward"),
        *_whole("windows", "gpus"),
    )
    op.create_index("windows_of_cluster", "windows", ["cluster"])


def _people() -> None:
    op.create_table("teams", _name("name", primary_key=True))
    op.create_table(
        "contacts",
        _name("team", primary_key=True),
        _count("position", primary_key=True),
        _text("address"),
        sa.ForeignKeyConstraint(["team"], ["teams.name"], ondelete="CASCADE"),
    )


def _rollouts() -> None:
    op.create_table(
        "rollouts",
        _name("id", primary_key=True),
        _name("cluster", nullable=False),
        _text("owner"),
        _time("opened_at"),
        _time("ended_at", nullable=True),
        _text("stage"),
        _flag("shadow"),
        _flag("completed"),
        _text("baseline"),
        _text("modes"),
        _name("adopted_from"),
        _name("superseded_by"),
        _of_cluster(cascade=False),
    )
    op.create_index("rollouts_of_cluster", "rollouts", ["cluster"])
    op.create_table(
        "receipts",
        _name("rollout", primary_key=True),
        _long("counter", primary_key=True),
        _name("cluster", nullable=False),
        _text("kind"),
        _time("at"),
        _text("receipt"),
        sa.ForeignKeyConstraint(["rollout"], ["rollouts.id"]),
    )
    op.create_table(
        "moves",
        _name("rollout", primary_key=True),
        _long("counter", primary_key=True),
        _name("cluster", nullable=False),
        _time("at"),
        _long("gpus"),
    )
    op.create_index("moves_by_time", "moves", ["at"])


def _archive() -> None:
    op.create_table(
        "audit",
        _name("cluster", primary_key=True),
        _long("seq", primary_key=True),
        _name("key", nullable=False, unique=True),
        _text("previous_hash"),
        _text("hash"),
        _text("entry"),
    )
    op.create_table(
        "audit_heads",
        _name("cluster", primary_key=True),
        _long("length"),
        _text("hash"),
    )


def _imports() -> None:
    op.create_table(
        "imports",
        _name("import_id", primary_key=True),
        _text("actor"),
        _time("at"),
        _text("result"),
    )
    op.create_table(
        "import_parts",
        _name("import_id", primary_key=True),
        _count("part", primary_key=True),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        _time("staged_at"),
    )
