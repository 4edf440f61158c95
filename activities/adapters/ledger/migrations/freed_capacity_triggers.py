"""Revision 0013: freed capacity cannot be taken by moving quotas in the tree or between islands, either.

A quota whose last child goes (un-parented, deleted, moved to another cluster) holds jobs again, with all of its value:
it rises from nothing. One that is limited to other islands rises there. Both are judged as raises are, and what
Backstop never writes (parent, islands, floors, namespaces) is a change of others whatever mark stands beside it.

PostgreSQL's functions run as the owner of the tables, so that a tool needs no right on what only Backstop may write.
"""

from __future__ import annotations

from activities.adapters.ledger.migrations.foreign_change_triggers_postgresql import UPDATED
from activities.adapters.ledger.migrations.foreign_change_triggers_sqlite import _note
from activities.adapters.ledger.migrations.generation_triggers_postgresql import ISLANDS_UPDATED, ROWS_COUNTED

_OF_OTHERS = """
    o.cluster = n.cluster AND o.team = n.team AND (
        (n.written_by IS NOT DISTINCT FROM o.written_by AND (n.gpus, n.mode) IS DISTINCT FROM (o.gpus, o.mode))
        OR (n.parent, n.islands, n.blocks, n.minimum, n.namespaces)
            IS DISTINCT FROM (o.parent, o.islands, o.blocks, o.minimum, o.namespaces))
"""
_CHANGED = f"""
    SELECT n.cluster, n.team FROM new_rows n JOIN old_rows o ON {_OF_OTHERS}
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

_FUNCTION = """
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger
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
_UPDATED = _FUNCTION.format(
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
_INSERTED = _FUNCTION.format(
    name="quotas_inserted",
    clusters="SELECT cluster FROM new_rows",
    changed="SELECT cluster FROM new_rows",
    raised="""
    SELECT n.cluster, n.team FROM new_rows n JOIN clusters c ON c.name = n.cluster
    WHERE c.reserve_limit IS NOT NULL AND n.gpus > 0
    """,
)
_DELETED = _FUNCTION.format(
    name="quotas_deleted",
    clusters="SELECT cluster FROM old_rows",
    changed="SELECT cluster FROM old_rows",
    raised=_ORPHANED,
)


def _as_owner(function: str) -> str:
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace(
        "LANGUAGE plpgsql SET", "LANGUAGE plpgsql SECURITY DEFINER SET"
    )


_WHO_UPDATED = (
    _as_owner(UPDATED).partition("FROM (")[0] + f"FROM ({_CHANGED}) AS changed" + UPDATED.rpartition(") AS changed")[2]
)

POSTGRESQL = (
    _UPDATED,
    _INSERTED,
    "DROP TRIGGER quotas_deleted ON quotas",
    _DELETED,
    """
    CREATE TRIGGER quotas_deleted AFTER DELETE ON quotas
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION quotas_deleted()
    """,
    _WHO_UPDATED,
    _as_owner(ISLANDS_UPDATED),
    _as_owner(ROWS_COUNTED),
)

_REFUSE = """
    SELECT CASE WHEN json_extract('{{}}', reason) IS NULL THEN RAISE(ABORT, 'reserved: freed capacity') END
    FROM refused_raises r
    WHERE {when} AND r.cluster = {cluster} AND r.team = {team} AND r.reason IS NOT NULL;
"""
_HOLDS_JOBS = "EXISTS (SELECT 1 FROM leaf_quotas l WHERE l.cluster = r.cluster AND l.team = r.team AND l.gpus > 0)"


def _refuse(when: str, cluster: str, team: str) -> str:
    return _REFUSE.format(when=when, cluster=cluster, team=team)


def _counted(*clusters: str) -> str:
    return "".join(f"    UPDATE clusters SET generation = generation + 1 WHERE name = {each};\n" for each in clusters)


_ORPHAN = _refuse(_HOLDS_JOBS, "OLD.cluster", "OLD.parent")

SQLITE = (
    "DROP TRIGGER quotas_updated",
    "DROP TRIGGER quotas_renamed",
    "DROP TRIGGER quotas_deleted",
    f"""
CREATE TRIGGER quotas_updated AFTER UPDATE OF gpus, mode, parent, islands, blocks, minimum, namespaces ON quotas
WHEN NEW.cluster = OLD.cluster AND NEW.team = OLD.team AND (
    (NEW.written_by IS OLD.written_by AND (NEW.gpus, NEW.mode) IS NOT (OLD.gpus, OLD.mode))
    OR (NEW.parent, NEW.islands, NEW.blocks, NEW.minimum, NEW.namespaces)
        IS NOT (OLD.parent, OLD.islands, OLD.blocks, OLD.minimum, OLD.namespaces))
BEGIN
{_counted("NEW.cluster")}
{_refuse("NEW.gpus > OLD.gpus AND NEW.written_by IS OLD.written_by", "NEW.cluster", "NEW.team")}
{_refuse(f"NEW.islands IS NOT OLD.islands AND {_HOLDS_JOBS}", "NEW.cluster", "NEW.team")}
{_refuse(f"NEW.parent IS NOT OLD.parent AND {_HOLDS_JOBS}", "OLD.cluster", "OLD.parent")}
{_note("NEW.cluster", "NEW.team")}
END
""",
    # Another key is one quota gone and one come: two changes, whoever made them (Backstop never does).
    f"""
CREATE TRIGGER quotas_renamed AFTER UPDATE OF cluster, team ON quotas
WHEN NEW.cluster <> OLD.cluster OR NEW.team <> OLD.team
BEGIN
{_counted("OLD.cluster", "NEW.cluster")}
{_refuse("NEW.gpus > 0", "NEW.cluster", "NEW.team")}
{_ORPHAN}
{_note("OLD.cluster", "OLD.team")}
{_note("NEW.cluster", "NEW.team")}
END
""",
    f"""
CREATE TRIGGER quotas_deleted AFTER DELETE ON quotas
BEGIN
{_counted("OLD.cluster")}
{_ORPHAN}
{_note("OLD.cluster", "OLD.team")}
END
""",
)

STATEMENTS = {"postgresql": POSTGRESQL, "sqlite": SQLITE}
