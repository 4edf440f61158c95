"""Revision 0008's part of the triggers: who may target a quota is a part of it, whose change by others counts."""

from __future__ import annotations

from activities.adapters.ledger.migrations import foreign_change_triggers_postgresql, foreign_change_triggers_sqlite


def _gated(statement: str) -> str:
    for row in ("n", "o", "NEW", "OLD"):
        statement = statement.replace(
            f"{row}.blocks, {row}.minimum)", f"{row}.blocks, {row}.minimum, {row}.namespaces)"
        )
    return statement.replace("blocks, minimum ON quotas", "blocks, minimum, namespaces ON quotas")


_SQLITE = next(s for s in foreign_change_triggers_sqlite.STATEMENTS if "CREATE TRIGGER quotas_updated" in s)

STATEMENTS = {
    "postgresql": (
        _gated(foreign_change_triggers_postgresql.COUNTS_MODES),
        _gated(foreign_change_triggers_postgresql.UPDATED).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"),
    ),
    "sqlite": ("DROP TRIGGER quotas_updated", _gated(_SQLITE)),
}
