"""Why a quota that has just risen may not: one text for both databases (revision 0002)."""

from __future__ import annotations

LEAF_QUOTAS = """
CREATE VIEW leaf_quotas AS
SELECT q.cluster, q.team, q.gpus, q.islands
FROM quotas q
WHERE NOT EXISTS (SELECT 1 FROM quotas child WHERE child.cluster = q.cluster AND child.parent = q.team)
"""

# Read after the change and inside its transaction, so the sums hold the new value. A text joined to NULL
# is NULL: where no case applies the reason is NULL and the raise may stand.
REFUSED_RAISES = """
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

VIEWS = (LEAF_QUOTAS, REFUSED_RAISES)
