"""What schedulers read of classes (revision 0015): each team's, and what its running jobs hold by class.

Classes are those of the quota, else of the cluster's policy, else of the fleet's. A quota that jobs do not run in has
none. Of a name that another tool left there twice, the stronger place counts.
"""

from __future__ import annotations

_POLICY = {
    "postgresql": """
        CASE WHEN jsonb_typeof({policy}::jsonb -> 'classes') = 'array' THEN ({policy}::jsonb -> 'classes')::text END
    """,
    "sqlite": """
        CASE WHEN NOT json_valid({policy}) THEN NULL
            WHEN json_type({policy}, '$.classes') = 'array' THEN json_extract({policy}, '$.classes') END
    """,
}
_OF_QUOTA = {
    "postgresql": "CASE q.classes WHEN '' THEN '[]' ELSE to_jsonb(string_to_array(q.classes, ','))::text END",
    # A comma in a quoted text stands for itself, and for nothing else.
    "sqlite": "CASE q.classes WHEN '' THEN '[]' ELSE '[' || replace(json_quote(q.classes), ',', '\",\"') || ']' END",
}
_EACH = {
    "postgresql": "jsonb_array_elements_text(named.classes::jsonb) WITH ORDINALITY AS one (value, place)",
    "sqlite": "json_each(named.classes) AS one",
}
_RANK = {"postgresql": "one.place - 1", "sqlite": "one.key"}

_QUOTA_CLASSES = """
CREATE VIEW quota_classes AS
SELECT named.cluster, named.team, one.value AS class, min({rank}) AS rank
FROM (
    SELECT q.cluster, q.team,
        CASE WHEN q.classes IS NULL THEN coalesce({of_cluster}, {of_fleet}) ELSE {of_quota} END AS classes
    FROM quotas q
    JOIN clusters c ON c.name = q.cluster
    LEFT JOIN fleet f ON f.id = 1
    WHERE NOT EXISTS (SELECT 1 FROM quotas child WHERE child.cluster = q.cluster AND child.parent = q.team)
) AS named, {each}
GROUP BY named.cluster, named.team, one.value
"""
# One that names no class, or none that its quota has, counts as the strongest.
_JOBS_BY_CLASS = """
CREATE VIEW jobs_by_class AS
SELECT cluster, team, runs_on, class, rank, sum(gpus) AS gpus, count(*) AS jobs
FROM (
    SELECT j.cluster, j.team, j.runs_on, j.gpus,
        coalesce(own.class, strongest.class) AS class, coalesce(own.rank, 0) AS rank
    FROM jobs j
    LEFT JOIN quota_classes own ON own.cluster = j.cluster AND own.team = j.team AND own.class = j.job_class
    LEFT JOIN quota_classes strongest
        ON strongest.cluster = j.cluster AND strongest.team = j.team AND strongest.rank = 0
    WHERE j.ended IS NULL
) AS running
GROUP BY cluster, team, runs_on, class, rank
"""


# A policy that is no JSON, from before the ledger refused one, is one cluster's trouble (revision 0016).
_SETTINGS = """
CREATE FUNCTION settings_or_null(policy text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN policy::jsonb;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN NULL;
END $$
"""
_POLICY_0016 = """
        CASE WHEN jsonb_typeof(settings_or_null({policy}) -> 'classes') = 'array'
            THEN (settings_or_null({policy}) -> 'classes')::text END
"""


def views(dialect: str) -> tuple[str, ...]:
    """The DDL of this dialect."""
    return _quota_classes(dialect, _POLICY[dialect]), _JOBS_BY_CLASS


def views_0016(dialect: str) -> tuple[str, ...]:
    """The DDL that makes PostgreSQL as patient with a policy that is no JSON as SQLite is."""
    if dialect != "postgresql":
        return ()
    return _SETTINGS, _quota_classes(dialect, _POLICY_0016).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")


def _quota_classes(dialect: str, policy: str) -> str:
    return _QUOTA_CLASSES.format(
        rank=_RANK[dialect],
        of_cluster=policy.format(policy="c.policy"),
        of_fleet=policy.format(policy="f.policy"),
        of_quota=_OF_QUOTA[dialect],
        each=_EACH[dialect],
    )
