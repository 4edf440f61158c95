"""SQLite's part of revision 0007: when a quota was changed beside an open rollout; a mode counts as a change too.

SQLite has no users, and says so. It promises no order of triggers, so those that count the generation are made
again, with the note inside.
"""

from __future__ import annotations

from activities.adapters.ledger.migrations.generation_triggers_sqlite import (
    QUOTAS_DELETED,
    QUOTAS_INSERTED,
    QUOTAS_RENAMED,
    QUOTAS_UPDATED,
)

_NOTE = """
    INSERT INTO quota_changes (cluster, team, generation, at, changed_by)
    SELECT name, {team}, generation, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'somebody (SQLite knows no users)'
    FROM clusters WHERE name = {cluster} AND open_rollout IS NOT NULL
    ON CONFLICT (cluster, team) DO UPDATE
    SET generation = excluded.generation, at = excluded.at, changed_by = excluded.changed_by;
"""


def _note(cluster: str, team: str) -> str:
    return _NOTE.format(cluster=cluster, team=team)


def _with(trigger: str, *notes: str) -> str:
    body, end = trigger.rstrip().removesuffix("END"), "END\n"
    return body + "".join(notes) + end


_MODES = QUOTAS_UPDATED.replace("OF gpus, parent", "OF gpus, mode, parent")
for _row in ("NEW", "OLD"):
    _MODES = _MODES.replace(f"({_row}.gpus, {_row}.parent", f"({_row}.gpus, {_row}.mode, {_row}.parent")

STATEMENTS = (
    "DROP TRIGGER quotas_updated",
    "DROP TRIGGER quotas_renamed",
    "DROP TRIGGER quotas_inserted",
    "DROP TRIGGER quotas_deleted",
    _with(_MODES, _note("NEW.cluster", "NEW.team")),
    _with(QUOTAS_RENAMED, _note("OLD.cluster", "OLD.team"), _note("NEW.cluster", "NEW.team")),
    _with(QUOTAS_INSERTED, _note("NEW.cluster", "NEW.team")),
    _with(QUOTAS_DELETED, _note("OLD.cluster", "OLD.team")),
)
