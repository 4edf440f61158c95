-- Two roles on a PostgreSQL ledger, run by the owner of its tables after `backstop migrate`, and again after each upgrade.
--
-- backstop_worker: Backstop itself. backstop_tools: whatever else reads the ledger, brings samples in, or changes quotas.
-- What only Backstop may write (its marks, generations, reservations, receipts, the archive) no tool has a right on, and
-- a change that forges Backstop's mark on a quota is refused. Give people and tools users of their own in these roles:
--     CREATE USER exporter LOGIN PASSWORD '...' IN ROLE backstop_tools;

DO $$ BEGIN
    CREATE ROLE backstop_worker NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
DO $$ BEGIN
    CREATE ROLE backstop_tools NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, backstop_worker, backstop_tools;
GRANT USAGE ON SCHEMA public TO backstop_worker, backstop_tools;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO backstop_worker, backstop_tools;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO backstop_worker;
-- The archive only grows.
REVOKE UPDATE, DELETE ON audit, seals FROM backstop_worker;

-- Not access_files, which say who is who, nor access_tokens, nor ended_sessions. Not contacts, whose addresses may hold a webhook's token, nor import_parts, which have them too.
GRANT SELECT ON
    clusters, islands, quotas, quota_changes, leaf_quotas, health_samples, usage_samples, jobs, windows, tallies,
    rollouts, reserve_limits, audit, audit_heads, teams, quota_classes, jobs_by_class, bringups, owed,
    seals, sealing
TO backstop_tools;
GRANT INSERT (cluster, team, gpus, mode, islands, blocks, minimum, parent, namespaces, classes) ON quotas TO backstop_tools;
GRANT UPDATE (cluster, team, gpus, mode, islands, blocks, minimum, parent, namespaces, classes) ON quotas TO backstop_tools;
GRANT DELETE ON quotas TO backstop_tools;
GRANT INSERT, UPDATE, DELETE ON health_samples, usage_samples, jobs, windows TO backstop_tools;
