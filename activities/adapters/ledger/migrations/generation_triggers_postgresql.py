"""PostgreSQL's triggers (revision 0002).

They fire once per statement, so a bulk insert costs one count per cluster. The clusters' rows are locked
first, in the order of their names: two writers of one cluster queue there, and the second one's sums see
what the first has committed.
"""

from __future__ import annotations

REFUSE_RAISE = """
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

QUOTAS_UPDATED = """
CREATE FUNCTION quotas_updated() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    raised record;
BEGIN
    PERFORM 1 FROM clusters
    WHERE name IN (SELECT cluster FROM old_rows UNION SELECT cluster FROM new_rows)
    ORDER BY name FOR NO KEY UPDATE;

    -- A row whose key has no partner is a quota gone or come: two changes for a new name.
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (
        SELECT cluster, count(*) AS rows
        FROM (
            SELECT n.cluster FROM new_rows n JOIN old_rows o ON o.cluster = n.cluster AND o.team = n.team
            WHERE n.written_by IS NOT DISTINCT FROM o.written_by
                AND (n.gpus, n.parent, n.islands, n.blocks, n.minimum)
                    IS DISTINCT FROM (o.gpus, o.parent, o.islands, o.blocks, o.minimum)
            UNION ALL
            SELECT o.cluster FROM old_rows o
            WHERE NOT EXISTS (SELECT 1 FROM new_rows n WHERE n.cluster = o.cluster AND n.team = o.team)
            UNION ALL
            SELECT n.cluster FROM new_rows n
            WHERE NOT EXISTS (SELECT 1 FROM old_rows o WHERE o.cluster = n.cluster AND o.team = n.team)
        ) AS foreign_changes
        GROUP BY cluster
    ) AS changed
    WHERE c.name = changed.cluster;

    FOR raised IN
        SELECT n.cluster, n.team
        FROM new_rows n
        JOIN clusters c ON c.name = n.cluster
        LEFT JOIN old_rows o ON o.cluster = n.cluster AND o.team = n.team
        WHERE c.reserve_limit IS NOT NULL
            AND n.gpus > coalesce(o.gpus, 0)
            AND (o.team IS NULL OR n.written_by IS NOT DISTINCT FROM o.written_by)
        ORDER BY n.cluster, n.team
    LOOP
        PERFORM refuse_raise(raised.cluster, raised.team);
    END LOOP;
    RETURN NULL;
END $$
"""

QUOTAS_INSERTED = """
CREATE FUNCTION quotas_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    raised record;
BEGIN
    PERFORM 1 FROM clusters WHERE name IN (SELECT cluster FROM new_rows) ORDER BY name FOR NO KEY UPDATE;
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (SELECT cluster, count(*) AS rows FROM new_rows GROUP BY cluster) AS changed
    WHERE c.name = changed.cluster;

    FOR raised IN
        SELECT n.cluster, n.team
        FROM new_rows n
        JOIN clusters c ON c.name = n.cluster
        WHERE c.reserve_limit IS NOT NULL AND n.gpus > 0
        ORDER BY n.cluster, n.team
    LOOP
        PERFORM refuse_raise(raised.cluster, raised.team);
    END LOOP;
    RETURN NULL;
END $$
"""

ISLANDS_UPDATED = """
CREATE FUNCTION islands_updated() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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

ROWS_COUNTED = """
CREATE FUNCTION rows_counted() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM clusters WHERE name IN (SELECT cluster FROM changed_rows) ORDER BY name FOR NO KEY UPDATE;
    UPDATE clusters c SET generation = c.generation + changed.rows
    FROM (SELECT cluster, count(*) AS rows FROM changed_rows GROUP BY cluster) AS changed
    WHERE c.name = changed.cluster;
    RETURN NULL;
END $$
"""

STATEMENTS = (
    REFUSE_RAISE,
    QUOTAS_UPDATED,
    """
    CREATE TRIGGER quotas_updated AFTER UPDATE ON quotas
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_updated()
    """,
    QUOTAS_INSERTED,
    """
    CREATE TRIGGER quotas_inserted AFTER INSERT ON quotas
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_inserted()
    """,
    ROWS_COUNTED,
    """
    CREATE TRIGGER quotas_deleted AFTER DELETE ON quotas
    REFERENCING OLD TABLE AS changed_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rows_counted()
    """,
    ISLANDS_UPDATED,
    """
    CREATE TRIGGER islands_updated AFTER UPDATE ON islands
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION islands_updated()
    """,
    """
    CREATE TRIGGER islands_inserted AFTER INSERT ON islands
    REFERENCING NEW TABLE AS changed_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rows_counted()
    """,
    """
    CREATE TRIGGER islands_deleted AFTER DELETE ON islands
    REFERENCING OLD TABLE AS changed_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rows_counted()
    """,
)
