"""PostgreSQL's triggers: they count changes by others, note who made one, and refuse grabs of freed capacity.

They fire once per statement, so a bulk insert costs one count per cluster. The clusters' rows are locked
first, in the order of their names: two writers of one cluster queue there, and the second one's sums see
what the first has committed. Who changed a quota is noted after the count: triggers fire in the order of their names.

A quota whose last child goes (un-parented, deleted, moved to another cluster) holds jobs again, with all of its value:
it rises from nothing. One that is limited to other islands rises there. Both are judged as raises are, and what
Backstop never writes (parent, islands, floors, namespaces) is a change of others whatever mark stands beside it.

The functions run as the owner of the tables, so that a tool needs no right on what only Backstop may write;
session_user is still the tool's.
"""

from __future__ import annotations

_REFUSE_RAISE = """
CREATE FUNCTION refuse_raise(of_cluster text, of_team text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    refused text;
BEGIN
    SELECT reason INTO refused FROM refused_raises WHERE cluster = of_cluster AND team = of_team;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', CONSTRAINT = 'reservation';
    END IF;
END $$
"""

# A row whose key has no partner is a quota gone or come: two changes for a new name.
_CHANGED = """
    SELECT n.cluster, n.team FROM new_rows n JOIN old_rows o ON
    o.cluster = n.cluster AND o.team = n.team AND (
        (n.written_by IS NOT DISTINCT FROM o.written_by AND (n.gpus, n.mode) IS DISTINCT FROM (o.gpus, o.mode))
        OR (n.parent, n.islands, n.blocks, n.minimum, n.namespaces)
            IS DISTINCT FROM (o.parent, o.islands, o.blocks, o.minimum, o.namespaces))
    UNION ALL
    SELECT o.cluster, o.team FROM old_rows o
    WHERE NOT EXISTS (SELECT 1 FROM new_rows n WHERE n.cluster = o.cluster AND n.team = o.team)
    UNION ALL
    SELECT n.cluster, n.team FROM new_rows n
    WHERE NOT EXISTS (SELECT 1 FROM old_rows o WHERE o.cluster = n.cluster AND o.team = n.team)
"""
_IS_LEAF_NOW = "NOT EXISTS (SELECT 1 FROM quotas child WHERE child.cluster = {0} AND child.parent = {1})"
_ORPHANED = f"""
    SELECT o.cluster, o.parent FROM old_rows o JOIN clusters c ON c.name = o.cluster
    WHERE c.reserve_limit IS NOT NULL AND {_IS_LEAF_NOW.format("o.cluster", "o.parent")}
        AND EXISTS (SELECT 1 FROM quotas p WHERE p.cluster = o.cluster AND p.team = o.parent AND p.gpus > 0)
"""
_COUNTS = """
CREATE FUNCTION {name}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    raised record;
BEGIN
    PERFORM 1 FROM clusters WHERE name IN ({clusters}) ORDER BY name FOR NO KEY UPDATE;
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (SELECT cluster, count(*) AS rows FROM ({changed}) AS each_one GROUP BY cluster) AS changed
    WHERE c.name = changed.cluster;
    FOR raised IN SELECT cluster, team FROM ({raised}) AS risen (cluster, team) ORDER BY cluster, team
    LOOP
        PERFORM refuse_raise(raised.cluster, raised.team);
    END LOOP;
    RETURN NULL;
END $$
"""
_QUOTAS_UPDATED = _COUNTS.format(
    name="quotas_updated",
    clusters="SELECT cluster FROM old_rows UNION SELECT cluster FROM new_rows",
    changed=_CHANGED,
    raised=f"""
    SELECT n.cluster, n.team
    FROM new_rows n
    JOIN clusters c ON c.name = n.cluster
    LEFT JOIN old_rows o ON o.cluster = n.cluster AND o.team = n.team
    WHERE c.reserve_limit IS NOT NULL AND (
        (n.gpus > coalesce(o.gpus, 0) AND (o.team IS NULL OR n.written_by IS NOT DISTINCT FROM o.written_by))
        OR (o.team IS NOT NULL AND n.islands IS DISTINCT FROM o.islands AND n.gpus > 0
            AND {_IS_LEAF_NOW.format("n.cluster", "n.team")}))
    UNION
    {_ORPHANED}
    """,
)
_QUOTAS_INSERTED = _COUNTS.format(
    name="quotas_inserted",
    clusters="SELECT cluster FROM new_rows",
    changed="SELECT cluster FROM new_rows",
    raised="""
    SELECT n.cluster, n.team FROM new_rows n JOIN clusters c ON c.name = n.cluster
    WHERE c.reserve_limit IS NOT NULL AND n.gpus > 0
    """,
)
_QUOTAS_DELETED = _COUNTS.format(
    name="quotas_deleted",
    clusters="SELECT cluster FROM old_rows",
    changed="SELECT cluster FROM old_rows",
    raised=_ORPHANED,
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
_QUOTAS_WHO_UPDATED = _NOTES.format(name="quotas_who_updated", changed=_CHANGED)
_QUOTAS_WHO_CHANGED = _NOTES.format(name="quotas_who_changed", changed="SELECT r.cluster, r.team FROM changed_rows r")

_ISLANDS_UPDATED = """
CREATE FUNCTION islands_updated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM clusters
    WHERE name IN (SELECT cluster FROM old_rows UNION SELECT cluster FROM new_rows)
    ORDER BY name FOR NO KEY UPDATE;
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (
        SELECT cluster, count(*) AS rows
        FROM (
            SELECT n.cluster FROM new_rows n JOIN old_rows o ON o.cluster = n.cluster AND o.name = n.name
            WHERE n.total_gpus <> o.total_gpus
            UNION ALL
            SELECT o.cluster FROM old_rows o
            WHERE NOT EXISTS (SELECT 1 FROM new_rows n WHERE n.cluster = o.cluster AND n.name = o.name)
            UNION ALL
            SELECT n.cluster FROM new_rows n
            WHERE NOT EXISTS (SELECT 1 FROM old_rows o WHERE o.cluster = n.cluster AND o.name = n.name)
        ) AS foreign_changes
        GROUP BY cluster
    ) AS changed
    WHERE c.name = changed.cluster;
    RETURN NULL;
END $$
"""
_ROWS_COUNTED = """
CREATE FUNCTION rows_counted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM clusters WHERE name IN (SELECT cluster FROM changed_rows) ORDER BY name FOR NO KEY UPDATE;
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (SELECT cluster, count(*) AS rows FROM changed_rows GROUP BY cluster) AS changed
    WHERE c.name = changed.cluster;
    RETURN NULL;
END $$
"""

_BOTH = "OLD TABLE AS old_rows NEW TABLE AS new_rows"
_TRIGGERS = (
    # trigger, event and table, the rows that its function reads, function
    ("quotas_updated", "UPDATE ON quotas", _BOTH, "quotas_updated"),
    ("quotas_inserted", "INSERT ON quotas", "NEW TABLE AS new_rows", "quotas_inserted"),
    ("quotas_deleted", "DELETE ON quotas", "OLD TABLE AS old_rows", "quotas_deleted"),
    ("quotas_who_updated", "UPDATE ON quotas", _BOTH, "quotas_who_updated"),
    ("quotas_who_inserted", "INSERT ON quotas", "NEW TABLE AS changed_rows", "quotas_who_changed"),
    ("quotas_who_deleted", "DELETE ON quotas", "OLD TABLE AS changed_rows", "quotas_who_changed"),
    ("islands_updated", "UPDATE ON islands", _BOTH, "islands_updated"),
    ("islands_inserted", "INSERT ON islands", "NEW TABLE AS changed_rows", "rows_counted"),
    ("islands_deleted", "DELETE ON islands", "OLD TABLE AS changed_rows", "rows_counted"),
)

STATEMENTS = (
    _REFUSE_RAISE,
    _QUOTAS_UPDATED,
    _QUOTAS_INSERTED,
    _QUOTAS_DELETED,
    _QUOTAS_WHO_UPDATED,
    _QUOTAS_WHO_CHANGED,
    _ISLANDS_UPDATED,
    _ROWS_COUNTED,
    *(
        f"CREATE TRIGGER {name} AFTER {event} REFERENCING {rows} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        for name, event, rows, function in _TRIGGERS
    ),
)
