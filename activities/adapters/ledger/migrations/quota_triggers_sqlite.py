"""SQLite's triggers: they count changes by others, note when one was made, and refuse grabs of freed capacity.

A quota whose last child goes (un-parented, deleted, moved to another cluster) holds jobs again, with all of its value:
it rises from nothing. One that is limited to other islands rises there. Both are judged as raises are, and what
Backstop never writes (parent, islands, floors, namespaces) is a change of others whatever mark stands beside it.

Before 3.47 RAISE takes only a fixed text, and a database may travel to an older SQLite than the one that
made it. The reason must name the team and the limit, so it is put where json_extract expects a path: the
error quotes it. RAISE is still there, and makes SQLite keep the journal that undoes the whole statement.
SQLite promises no order of triggers, so the note is inside those that count; it knows no users, and the note says so.
"""

from __future__ import annotations

_REFUSE = """
    SELECT CASE WHEN json_extract('{{}}', reason) IS NULL THEN RAISE(ABORT, 'reserved: freed capacity') END
    FROM refused_raises r
    WHERE {when} AND r.cluster = {cluster} AND r.team = {team} AND r.reason IS NOT NULL;
"""
_NOTE = """
    INSERT INTO quota_changes (cluster, team, generation, at, changed_by)
    SELECT name, {team}, generation, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'somebody (SQLite knows no users)'
    FROM clusters WHERE name = {cluster} AND open_rollout IS NOT NULL
    ON CONFLICT (cluster, team) DO UPDATE
    SET generation = excluded.generation, at = excluded.at, changed_by = excluded.changed_by;
"""
_HOLDS_JOBS = "EXISTS (SELECT 1 FROM leaf_quotas l WHERE l.cluster = r.cluster AND l.team = r.team AND l.gpus > 0)"


def _count(*clusters: str) -> str:
    return "".join(f"    UPDATE clusters SET generation = generation + 1 WHERE name = {each};\n" for each in clusters)


def _refuse(when: str, cluster: str, team: str) -> str:
    return _REFUSE.format(when=when, cluster=cluster, team=team)


def _note(cluster: str, team: str) -> str:
    return _NOTE.format(cluster=cluster, team=team)


_REFUSE_ORPHAN = _refuse(_HOLDS_JOBS, "OLD.cluster", "OLD.parent")

STATEMENTS = (
    f"""
CREATE TRIGGER quotas_updated AFTER UPDATE OF gpus, mode, parent, islands, blocks, minimum, namespaces ON quotas
WHEN NEW.cluster = OLD.cluster AND NEW.team = OLD.team AND (
    (NEW.written_by IS OLD.written_by AND (NEW.gpus, NEW.mode) IS NOT (OLD.gpus, OLD.mode))
    OR (NEW.parent, NEW.islands, NEW.blocks, NEW.minimum, NEW.namespaces)
        IS NOT (OLD.parent, OLD.islands, OLD.blocks, OLD.minimum, OLD.namespaces))
BEGIN
{_count("NEW.cluster")}
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
{_count("OLD.cluster", "NEW.cluster")}
{_refuse("NEW.gpus > 0", "NEW.cluster", "NEW.team")}
{_REFUSE_ORPHAN}
{_note("OLD.cluster", "OLD.team")}
{_note("NEW.cluster", "NEW.team")}
END
""",
    f"""
CREATE TRIGGER quotas_inserted AFTER INSERT ON quotas
BEGIN
{_count("NEW.cluster")}
{_refuse("NEW.gpus > 0", "NEW.cluster", "NEW.team")}
{_note("NEW.cluster", "NEW.team")}
END
""",
    f"""
CREATE TRIGGER quotas_deleted AFTER DELETE ON quotas
BEGIN
{_count("OLD.cluster")}
{_REFUSE_ORPHAN}
{_note("OLD.cluster", "OLD.team")}
END
""",
    f"""
CREATE TRIGGER islands_updated AFTER UPDATE OF total_gpus ON islands
WHEN NEW.cluster = OLD.cluster AND NEW.name = OLD.name AND NEW.total_gpus <> OLD.total_gpus
BEGIN
{_count("NEW.cluster")}
END
""",
    f"""
CREATE TRIGGER islands_renamed AFTER UPDATE OF cluster, name ON islands
WHEN NEW.cluster <> OLD.cluster OR NEW.name <> OLD.name
BEGIN
{_count("OLD.cluster", "NEW.cluster")}
END
""",
    f"CREATE TRIGGER islands_inserted AFTER INSERT ON islands BEGIN {_count('NEW.cluster')} END",
    f"CREATE TRIGGER islands_deleted AFTER DELETE ON islands BEGIN {_count('OLD.cluster')} END",
)
