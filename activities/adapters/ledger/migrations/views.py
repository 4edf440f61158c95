"""Views: why a quota that has just risen may not, and what schedulers read of classes."""

from __future__ import annotations

_LEAF_QUOTAS = """
CREATE VIEW leaf_quotas AS
SELECT q.cluster, q.team, q.gpus, q.islands
FROM quotas q
WHERE NOT EXISTS (SELECT 1 FROM quotas child WHERE child.cluster = q.cluster AND child.parent = q.team)
"""

# Read after the change and inside its transaction, so the sums hold the new value. A text joined to NULL
# is NULL: where no case applies the reason is NULL and the raise may stand.
_REFUSED_RAISES = """
CREATE VIEW refused_raises AS
SELECT q.cluster, q.team,
    'reserved: team ' || q.team || ' of cluster ' || q.cluster || ' cannot rise to ' || q.gpus || ' GPUs: '
    || CASE
        WHEN EXISTS (SELECT 1 FROM quotas child WHERE child.cluster = q.cluster AND child.parent = q.team)
            THEN 'it has child quotas, and none of those may rise beside the limit of '
                || c.reserve_limit || ' GPUs'
        WHEN (SELECT sum(l.gpus) FROM leaf_quotas l WHERE l.cluster = q.cluster) > c.reserve_limit
            THEN 'the quotas would sum to '
                || (SELECT sum(l.gpus) FROM leaf_quotas l WHERE l.cluster = q.cluster)
                || ', above the limit of ' || c.reserve_limit || ' GPUs'
        WHEN (SELECT sum(l.gpus) FROM leaf_quotas l WHERE l.cluster = q.cluster AND l.islands = q.islands)
                > (SELECT r.limit_gpus FROM reserve_limits r
                   WHERE r.cluster = q.cluster AND r.islands = q.islands)
            THEN 'the quotas limited to islands ' || q.islands || ' would be above their limit of '
                || (SELECT r.limit_gpus FROM reserve_limits r
                    WHERE r.cluster = q.cluster AND r.islands = q.islands)
                || ' GPUs'
    END
    || ', which rollout ' || coalesce(c.open_rollout, c.reserved_by, 'unknown') || ' reserves' AS reason
FROM quotas q
JOIN clusters c ON c.name = q.cluster
WHERE c.reserve_limit IS NOT NULL
"""

# Classes are those of the quota, else of the cluster's policy, else of the fleet's. A quota that jobs do not run in has
# none. Of a name that another tool left there twice, the stronger place counts. A policy that is no JSON names none.
_POLICY = {
    "postgresql": """
        CASE WHEN jsonb_typeof(settings_or_null({policy}) -> 'classes') = 'array'
            THEN (settings_or_null({policy}) -> 'classes')::text END
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
_SETTINGS = """
CREATE FUNCTION settings_or_null(policy text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN policy::jsonb;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN NULL;
END $$
"""


def statements(dialect: str) -> tuple[str, ...]:
    """The DDL of this dialect."""
    quota_classes = _QUOTA_CLASSES.format(
        rank=_RANK[dialect],
        of_cluster=_POLICY[dialect].format(policy="c.policy"),
        of_fleet=_POLICY[dialect].format(policy="f.policy"),
        of_quota=_OF_QUOTA[dialect],
        each=_EACH[dialect],
    )
    functions = (_SETTINGS,) if dialect == "postgresql" else ()
    return (_LEAF_QUOTAS, _REFUSED_RAISES, *functions, quota_classes, _JOBS_BY_CLASS)
