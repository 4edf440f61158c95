#!/bin/sh
# Runs once, when the database files are made: the ledger's own role and database, apart from Temporal's.
set -eu

psql --set ON_ERROR_STOP=1 --set password="$LEDGER_PASSWORD" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE backstop LOGIN PASSWORD :'password';
CREATE DATABASE backstop OWNER backstop;
REVOKE CONNECT ON DATABASE backstop FROM PUBLIC;
SQL
