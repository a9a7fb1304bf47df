"""What a PostgreSQL database needs to look like Redshift: views, functions, and lengths that count bytes."""

from __future__ import annotations

import psycopg

from tidegate.testing.redshift.sql import PLACING, SCHEMA

_INSTALL = f"""
CREATE SCHEMA {SCHEMA};

CREATE TABLE {SCHEMA}.long_names (kept name PRIMARY KEY, whole varchar NOT NULL);

CREATE FUNCTION {SCHEMA}.getdate() RETURNS timestamp LANGUAGE sql STABLE AS
$$ SELECT date_trunc('second', statement_timestamp() AT TIME ZONE current_setting('TimeZone')) $$;

CREATE FUNCTION {SCHEMA}.pg_last_copy_count() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT COALESCE(NULLIF(current_setting('redshift.last_copy_count', true), ''), '0')::bigint $$;

CREATE FUNCTION {SCHEMA}.to_varbyte(digits varchar, form varchar) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT decode(digits, form) $$;

CREATE FUNCTION {SCHEMA}.byte_length(relation oid, number smallint) RETURNS integer LANGUAGE sql STABLE AS
$$ SELECT max(substring(pg_get_constraintdef(oid) FROM '<= (\\d+)')::integer) FROM pg_constraint
   WHERE conrelid = relation AND conkey = ARRAY[number] AND conname LIKE '\\_rs\\_%' $$;

CREATE VIEW {SCHEMA}.relations AS
SELECT c.oid AS relation, COALESCE(ns.whole, n.nspname::varchar) AS schema_name,
  COALESCE(ts.whole, c.relname::varchar) AS table_name,
  c.relkind, c.relpersistence, c.relowner, c.relrowsecurity,
  COALESCE(c.relacl, acldefault('r', c.relowner)) AS grants
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN {SCHEMA}.long_names ns ON ns.kept = n.nspname
LEFT JOIN {SCHEMA}.long_names ts ON ts.kept = c.relname
WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p');

CREATE VIEW {SCHEMA}.columns AS
SELECT r.*, a.attnum, COALESCE(cs.whole, a.attname::varchar) AS column_name, a.attnotnull, a.attidentity,
  a.atttypid, a.atttypmod, a.attacl
FROM {SCHEMA}.relations r JOIN pg_attribute a ON a.attrelid = r.relation
LEFT JOIN {SCHEMA}.long_names cs ON cs.kept = a.attname WHERE a.attnum > 0 AND NOT a.attisdropped;

CREATE VIEW {SCHEMA}.svv_columns AS
SELECT current_database()::varchar AS table_catalog, a.schema_name AS table_schema, a.table_name,
  a.column_name, a.attnum::integer AS ordinal_position,
  CASE WHEN a.attidentity <> '' THEN '"identity"' ELSE pg_get_expr(d.adbin, d.adrelid) END::varchar
    AS column_default,
  CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END::varchar AS is_nullable,
  CASE WHEN a.atttypid = 'bytea'::regtype THEN 'binary varying' ELSE format_type(a.atttypid, NULL)
  END::varchar AS data_type,
  CASE WHEN a.atttypid = 'bytea'::regtype THEN COALESCE({SCHEMA}.byte_length(a.relation, a.attnum), 64000)
       WHEN a.atttypid IN ('varchar'::regtype, 'bpchar'::regtype) AND a.atttypmod > 4 THEN a.atttypmod - 4
  END AS character_maximum_length,
  information_schema._pg_numeric_precision(a.atttypid, a.atttypmod)::integer AS numeric_precision,
  information_schema._pg_numeric_scale(a.atttypid, a.atttypmod)::integer AS numeric_scale,
  NULL::varchar AS remarks
FROM {SCHEMA}.columns a LEFT JOIN pg_attrdef d ON d.adrelid = a.relation AND d.adnum = a.attnum;

CREATE VIEW {SCHEMA}.svv_tables AS
SELECT current_database()::varchar AS table_catalog, schema_name AS table_schema, table_name,
  CASE WHEN relkind IN ('v', 'm') THEN 'VIEW' WHEN relpersistence = 't' THEN 'LOCAL TEMPORARY'
       ELSE 'BASE TABLE' END::varchar AS table_type, NULL::varchar AS remarks
FROM {SCHEMA}.relations WHERE relkind <> 'f';

CREATE VIEW {SCHEMA}.svv_relation_privileges AS
SELECT r.schema_name AS namespace_name, r.table_name AS relation_name,
  g.privilege_type::varchar AS privilege_type, g.grantee::integer AS identity_id,
  CASE WHEN g.grantee = 0 THEN 'public' ELSE pg_get_userbyid(g.grantee) END::varchar AS identity_name,
  CASE WHEN g.grantee = 0 THEN 'public' ELSE 'user' END::varchar AS identity_type,
  g.is_grantable AS admin_option
FROM {SCHEMA}.relations r, LATERAL aclexplode(r.grants) g WHERE r.relkind IN ('r', 'v', 'p')
AND (current_setting('is_superuser') = 'on' OR g.grantee IN (0, current_user::regrole::oid));

CREATE VIEW {SCHEMA}.svv_column_privileges AS
SELECT a.schema_name::text AS namespace_name, a.table_name::text AS relation_name,
  a.column_name::text AS column_name, g.privilege_type::text AS privilege_type,
  g.grantee::integer AS identity_id,
  CASE WHEN g.grantee = 0 THEN 'public' ELSE pg_get_userbyid(g.grantee) END::text AS identity_name,
  CASE WHEN g.grantee = 0 THEN 'public' ELSE 'user' END::text AS identity_type
FROM {SCHEMA}.columns a, LATERAL aclexplode(a.attacl) g
WHERE current_setting('is_superuser') = 'on' OR g.grantee IN (0, current_user::regrole::oid);

CREATE VIEW {SCHEMA}.svv_rls_attached_policy AS
SELECT r.schema_name::text AS relschema, r.table_name::text AS relname, 'table'::text AS relkind,
  p.polname::text AS polname, pg_get_userbyid(r.relowner)::text AS grantor, 'public'::text AS grantee,
  'role'::text AS granteekind, true AS is_pol_on, r.relrowsecurity AS is_rls_on,
  'and'::char(3) AS rls_conjunction_type
FROM pg_policy p JOIN {SCHEMA}.relations r ON r.relation = p.polrelid
WHERE current_setting('is_superuser') = 'on';

CREATE VIEW {SCHEMA}.svv_attached_masking_policy AS
SELECT ''::text AS policy_name, ''::text AS schema_name, ''::text AS table_name, ''::text AS table_type,
  ''::text AS grantor, ''::text AS grantee, ''::text AS grantee_type, 0 AS priority,
  ''::text AS input_columns, ''::text AS output_columns, false AS is_masking_datashare_on WHERE false;

CREATE VIEW {SCHEMA}.svv_user_info AS
SELECT usename::text AS user_name, usesysid::integer AS user_id, usecreatedb AS createdb,
  usesuper AS superuser, false AS catalog_update, 'UNLIMITED'::text AS connection_limit,
  'RESTRICTED'::text AS syslog_access
FROM pg_user WHERE current_setting('is_superuser') = 'on' OR usename = current_user;

CREATE TABLE {SCHEMA}.load_errors (
  query_id bigint GENERATED ALWAYS AS IDENTITY, session_id integer, table_name varchar,
  start_time timestamp DEFAULT (statement_timestamp() AT TIME ZONE 'UTC'),
  file_name varchar, line_number bigint, column_name varchar,
  column_type varchar, column_length varchar, error_code integer, error_message varchar);

CREATE VIEW {SCHEMA}.sys_load_error_detail AS
SELECT 100 AS user_id, query_id, query_id AS transaction_id, session_id,
  current_database()::varchar AS database_name, 0 AS table_id,
  start_time, file_name, line_number, column_name, column_type, column_length, 0 AS position,
  error_code, error_message FROM {SCHEMA}.load_errors;

CREATE VIEW {SCHEMA}.stl_load_errors AS
SELECT 100 AS userid, 0 AS slice, 0 AS tbl, start_time AS starttime, session_id AS session, query_id AS query,
  file_name AS filename, line_number, column_name AS colname, column_type AS type,
  column_length AS col_length,
  0 AS position, ''::varchar AS raw_line, ''::varchar AS raw_field_value, error_code AS err_code,
  error_message AS err_reason FROM {SCHEMA}.load_errors;

GRANT USAGE ON SCHEMA {SCHEMA} TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO PUBLIC;

CREATE FUNCTION {SCHEMA}.count_bytes() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE relation oid; wanted text; name text; old text;
BEGIN
  FOR relation IN SELECT DISTINCT objid FROM pg_event_trigger_ddl_commands()
    WHERE classid = 'pg_class'::regclass AND object_type = 'table'
  LOOP
    SELECT string_agg(format('octet_length(%I) <= %s', attname, atttypmod - 4), ' AND ' ORDER BY attnum)
      INTO wanted FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
        AND atttypmod > 4 AND atttypid IN ('varchar'::regtype, 'bpchar'::regtype);
    name := '_rs_bytes_' || md5(wanted);
    SELECT conname INTO old FROM pg_constraint WHERE conrelid = relation AND conname LIKE '\\_rs\\_bytes\\_%';
    IF name IS DISTINCT FROM old THEN
      EXECUTE format('ALTER TABLE %s %s', relation::regclass, concat_ws(', ',
        CASE WHEN old IS NOT NULL THEN format('DROP CONSTRAINT %I', old) END,
        CASE WHEN name IS NOT NULL THEN format('ADD CONSTRAINT %I CHECK (%s)', name, wanted) END));
    END IF;
  END LOOP;
END $$;

CREATE EVENT TRIGGER {SCHEMA}_count_bytes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
  EXECUTE FUNCTION {SCHEMA}.count_bytes();

CREATE FUNCTION {SCHEMA}.keep_keys() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_event_trigger_dropped_objects()
    WHERE object_type = 'table constraint' AND starts_with(object_identity, '{PLACING}'))
  THEN
    RAISE EXCEPTION 'cannot drop a column that is a distkey or sortkey' USING ERRCODE = '0A000';
  END IF;
END $$;

CREATE EVENT TRIGGER {SCHEMA}_keep_keys ON sql_drop
  WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION {SCHEMA}.keep_keys();
"""

_KNOWN = f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}'"
_LOCK = 7_335_000


def ensure(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Make the database look like Redshift, unless it does. Needs a superuser, for the event trigger."""
    if connection.execute(_KNOWN).fetchone():
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        if not connection.execute(_KNOWN).fetchone():
            connection.execute(_INSTALL)
