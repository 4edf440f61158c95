#!/bin/sh
# Temporal's two databases exist and have the schema of this image's version. Safe to run again.
set -eu

sql_tool() {
    temporal-sql-tool --plugin postgres12 --ep "$POSTGRES_HOST" -p 5432 -u "$POSTGRES_USER" "$@"
}

prepare() { # database, name of its schema
    sql_tool --db "$1" create
    sql_tool --db "$1" setup-schema -v 0.0
    sql_tool --db "$1" update-schema -d "/etc/temporal/schema/postgresql/v12/$2/versioned"
}

prepare temporal temporal
prepare temporal_visibility visibility
