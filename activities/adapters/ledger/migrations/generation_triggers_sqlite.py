"""SQLite's triggers (revision 0002).

Before 3.47 RAISE takes only a fixed text, and a database may travel to an older SQLite than the one that
made it. The reason must name the team and the limit, so it is put where json_extract expects a path: the
error quotes it. RAISE is still there, and makes SQLite keep the journal that undoes the whole statement.
"""

from __future__ import annotations

QUOTAS_UPDATED = """
CREATE TRIGGER quotas_updated AFTER UPDATE OF gpus, parent, islands, blocks, minimum ON quotas
WHEN NEW.written_by IS OLD.written_by AND NEW.cluster = OLD.cluster AND NEW.team = OLD.team
    AND (NEW.gpus, NEW.parent, NEW.islands, NEW.blocks, NEW.minimum)
        IS NOT (OLD.gpus, OLD.parent, OLD.islands, OLD.blocks, OLD.minimum)
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
    SELECT CASE WHEN json_extract('{}', reason) IS NULL THEN RAISE(ABORT, 'reserved: freed capacity') END
    FROM refused_raises
    WHERE NEW.gpus > OLD.gpus AND cluster = NEW.cluster AND team = NEW.team AND reason IS NOT NULL;
END
"""

# Another key is one quota gone and one come: two changes, whoever made them (Backstop never does).
QUOTAS_RENAMED = """
CREATE TRIGGER quotas_renamed AFTER UPDATE OF cluster, team ON quotas
WHEN NEW.cluster <> OLD.cluster OR NEW.team <> OLD.team
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = OLD.cluster;
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
    SELECT CASE WHEN json_extract('{}', reason) IS NULL THEN RAISE(ABORT, 'reserved: freed capacity') END
    FROM refused_raises
    WHERE NEW.gpus > 0 AND cluster = NEW.cluster AND team = NEW.team AND reason IS NOT NULL;
END
"""

QUOTAS_INSERTED = """
CREATE TRIGGER quotas_inserted AFTER INSERT ON quotas
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
    SELECT CASE WHEN json_extract('{}', reason) IS NULL THEN RAISE(ABORT, 'reserved: freed capacity') END
    FROM refused_raises
    WHERE NEW.gpus > 0 AND cluster = NEW.cluster AND team = NEW.team AND reason IS NOT NULL;
END
"""

QUOTAS_DELETED = """
CREATE TRIGGER quotas_deleted AFTER DELETE ON quotas
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = OLD.cluster;
END
"""

ISLANDS_UPDATED = """
CREATE TRIGGER islands_updated AFTER UPDATE OF total_gpus ON islands
WHEN NEW.cluster = OLD.cluster AND NEW.name = OLD.name AND NEW.total_gpus <> OLD.total_gpus
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
END
"""

ISLANDS_RENAMED = """
CREATE TRIGGER islands_renamed AFTER UPDATE OF cluster, name ON islands
WHEN NEW.cluster <> OLD.cluster OR NEW.name <> OLD.name
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = OLD.cluster;
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
END
"""

ISLANDS_INSERTED = """
CREATE TRIGGER islands_inserted AFTER INSERT ON islands
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = NEW.cluster;
END
"""

ISLANDS_DELETED = """
CREATE TRIGGER islands_deleted AFTER DELETE ON islands
BEGIN
    UPDATE clusters SET generation = generation + 1 WHERE name = OLD.cluster;
END
"""

STATEMENTS = (
    QUOTAS_UPDATED,
    QUOTAS_RENAMED,
    QUOTAS_INSERTED,
    QUOTAS_DELETED,
    ISLANDS_UPDATED,
    ISLANDS_RENAMED,
    ISLANDS_INSERTED,
    ISLANDS_DELETED,
)
