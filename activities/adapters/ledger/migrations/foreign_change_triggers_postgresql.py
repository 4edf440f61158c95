"""PostgreSQL's part of revision 0007: who changed a quota beside an open rollout; a mode counts as a change too.

Each function fires after the one that counts the generation: triggers fire in the order of their names. They
run as the owner of the table, so that a tool needs no more rights than before; session_user is still the tool's.
"""

from __future__ import annotations

from activities.adapters.ledger.migrations.generation_triggers_postgresql import QUOTAS_UPDATED

COUNTS_MODES = QUOTAS_UPDATED.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace(
    """                AND (n.gpus, n.parent, n.islands, n.blocks, n.minimum)
                    IS DISTINCT FROM (o.gpus, o.parent, o.islands, o.blocks, o.minimum)""",
    """                AND (n.gpus, n.mode, n.parent, n.islands, n.blocks, n.minimum)
                    IS DISTINCT FROM (o.gpus, o.mode, o.parent, o.islands, o.blocks, o.minimum)""",
)

_NOTES = """
CREATE FUNCTION {name}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO quota_changes (cluster, team, generation, at, changed_by)
    SELECT DISTINCT changed.cluster, changed.team, c.generation, clock_timestamp(),
        'user ' || session_user || coalesce(' (' || nullif(current_setting('application_name', true), '') || ')', '')
    FROM ({changed}) AS changed
    JOIN clusters c ON c.name = changed.cluster
    WHERE c.open_rollout IS NOT NULL
    ON CONFLICT (cluster, team) DO UPDATE
    SET generation = excluded.generation, at = excluded.at, changed_by = excluded.changed_by;
    RETURN NULL;
END $$
"""

UPDATED = _NOTES.format(
    name="quotas_who_updated",
    changed="""
        SELECT n.cluster, n.team FROM new_rows n JOIN old_rows o ON o.cluster = n.cluster AND o.team = n.team
        WHERE n.written_by IS NOT DISTINCT FROM o.written_by
            AND (n.gpus, n.mode, n.parent, n.islands, n.blocks, n.minimum)
                IS DISTINCT FROM (o.gpus, o.mode, o.parent, o.islands, o.blocks, o.minimum)
        UNION ALL
        SELECT o.cluster, o.team FROM old_rows o
        WHERE NOT EXISTS (SELECT 1 FROM new_rows n WHERE n.cluster = o.cluster AND n.team = o.team)
        UNION ALL
        SELECT n.cluster, n.team FROM new_rows n
        WHERE NOT EXISTS (SELECT 1 FROM old_rows o WHERE o.cluster = n.cluster AND o.team = n.team)
    """,
)
CHANGED = _NOTES.format(name="quotas_who_changed", changed="SELECT r.cluster, r.team FROM changed_rows r")

STATEMENTS = (
    COUNTS_MODES,
    UPDATED,
    """
    CREATE TRIGGER quotas_who_updated AFTER UPDATE ON quotas
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_who_updated()
    """,
    CHANGED,
    """
    CREATE TRIGGER quotas_who_inserted AFTER INSERT ON quotas
    REFERENCING NEW TABLE AS changed_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_who_changed()
    """,
    """
    CREATE TRIGGER quotas_who_deleted AFTER DELETE ON quotas
    REFERENCING OLD TABLE AS changed_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_who_changed()
    """,
)
