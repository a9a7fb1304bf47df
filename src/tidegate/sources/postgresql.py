"""PostgreSQL as a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import psycopg

from tidegate.core.errors import LossyValue
from tidegate.core.positions import Value
from tidegate.core.predicates import row_values
from tidegate.core.strategies import CeilingSettings
from tidegate.core.types import Column, Kind, Schema
from tidegate.core.windows import Window
from tidegate.reach.login import Login
from tidegate.reach.tunnel import for_tasks
from tidegate.sources import postgresql_session
from tidegate.sources.ceiling import Blind, CannotSee, Observer
from tidegate.sources.contract import Reader, Relation
from tidegate.sources.discovery import TableName
from tidegate.sources.postgresql_replica import Replicated
from tidegate.sources.postgresql_session import Session, connect, errors, literal, quote, run
from tidegate.sources.postgresql_types import data_type
from tidegate.sources.postgresql_watch import PostgreSQLWatch
from tidegate.sources.strain import PostgreSQLPulse, Pulse
from tidegate.sources.values import date_of, instant_of, timestamp_of

_RELATIONS = """
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind::text IN ({kinds}) AND NOT c.relispartition
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""
_COLUMNS = """
SELECT n.nspname::text, c.relname::text, a.attname::text, a.atttypid::bigint, a.atttypmod, NOT a.attnotnull
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname::text, c.relname::text) IN ({names}) AND c.relkind::text IN ('r', 'p', 'v', 'm', 'f')
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
_KEY = """
SELECT n.nspname::text, c.relname::text, a.attname::text
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
WHERE (n.nspname::text, c.relname::text) IN ({names}) AND i.indisprimary
ORDER BY i.indrelid, k.place
"""
_TYPES = """
WITH RECURSIVE base(declared, declared_modifier, oid, modifier) AS (
    SELECT v.oid::bigint, v.modifier::int, v.oid::oid, v.modifier::int
    FROM (VALUES {types}) AS v(oid, modifier)
    UNION ALL
    SELECT b.declared, b.declared_modifier, t.typbasetype,
           CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END
    FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT b.declared, b.declared_modifier, t.typname::text, b.modifier,
       COALESCE('enum(' || labels.listed || CASE t.typtype WHEN 'e' THEN ')' ELSE ')[]' END,
                format_type(b.oid, b.modifier)),
       n.nspname::text = 'pg_catalog'
FROM base b JOIN pg_type t ON t.oid = b.oid JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN LATERAL (
    SELECT string_agg('''' || replace(e.enumlabel::text, '''', '''''') || '''', ',' ORDER BY e.enumsortorder)
    FROM pg_enum e WHERE e.enumtypid IN (t.oid, t.typelem)
) AS labels(listed) ON true
WHERE t.typtype <> 'd'
"""
_ANYTHING_ELSEWHERE = """
SELECT EXISTS (SELECT 1 FROM pg_foreign_table) OR EXISTS (SELECT 1 FROM pg_subscription_rel)
    OR EXISTS (SELECT 1 FROM pg_class WHERE relkind = 'm')
"""
_WRITTEN_ELSEWHERE = """
WITH RECURSIVE behind(oid) AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE (n.nspname::text, c.relname::text) IN ({names})
    UNION
    SELECT further.oid FROM behind, LATERAL (
        SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = behind.oid
        UNION ALL
        SELECT d.refobjid FROM pg_rewrite r
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        WHERE r.ev_class = behind.oid AND r.ev_type = '1' AND d.refclassid = 'pg_class'::regclass
    ) AS further(oid)
)
SELECT c.relname::text, c.relkind::text FROM behind JOIN pg_class c USING (oid)
WHERE c.relkind IN ('f', 'm') OR EXISTS (SELECT 1 FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
ORDER BY 2, 1 LIMIT 1
"""
"""Looks behind views, and into the parts of a table."""
_SEQUENCE_CACHE = """
SELECT max(s.seqcache) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
JOIN pg_depend p ON (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid)
    OR (p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid AND p.refobjsubid = a.attnum)
JOIN pg_sequence s ON s.seqrelid IN (p.refobjid, p.objid)
WHERE n.nspname = {schema} AND c.relname = {name} AND a.attname = {column}
"""


_ANY_BYTES = "SQL_ASCII"
_TEXTS = frozenset({Kind.TEXT, Kind.JSON})


class PostgreSQL:
    """The port to one database, and to its primary if this one is a standby."""

    dialect = "postgres"

    def __init__(self, login: Login, schema: str = "public", primary: Login | None = None) -> None:
        self.login = login
        self.own_schema = schema
        self._primary = PostgreSQL(primary, schema) if primary else None
        self._session: Session | None = None
        self._watch: PostgreSQLWatch | None = None
        self._types: dict[tuple[int, int], Column] = {}
        self._elsewhere: dict[tuple[TableName, ...], CannotSee | None] = {}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Every query only reads, so one whose session was lost is asked again in a new one."""
        with errors(self.login):
            try:
                return run(self._open(), sql)
            except psycopg.OperationalError:
                if self._session is None or not self._session.closed:
                    raise
            self._disconnect()
            return run(self._open(), sql)

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, value: Value) -> str:
        return literal(value)

    # --- what there is

    def tables(self) -> list[TableName]:
        return self._relations("'r', 'p'")

    def views(self) -> list[TableName]:
        return self._relations("'v', 'm', 'f'")

    def _relations(self, kinds: str) -> list[TableName]:
        return [TableName(schema, name) for schema, name in self.rows(_RELATIONS.format(kinds=kinds))]

    def table_schemas(self, tables: Sequence[TableName]) -> dict[TableName, Schema]:
        names = ", ".join(f"({literal(table.schema)}, {literal(table.name)})" for table in tables)
        rows = self.rows(_COLUMNS.format(names=names))
        if not rows:
            return {}
        self._learn_types((oid, modifier) for _, _, _, oid, modifier, _ in rows)
        columns: dict[TableName, list[Column]] = {}
        for schema, table, name, oid, modifier, nullable in rows:
            column = self._column(name, oid, modifier, nullable=nullable)
            columns.setdefault(TableName(schema, table), []).append(column)
        keys: dict[TableName, list[str]] = {}
        for schema, table, name in self.rows(_KEY.format(names=names)):
            keys.setdefault(TableName(schema, table), []).append(name)
        return {table: Schema(tuple(found), tuple(keys.get(table, ()))) for table, found in columns.items()}

    def select_schema(self, select: str) -> Schema:
        with errors(self.login):
            cursor = self._open().execute(f"SELECT * FROM {select} LIMIT 0".encode(), binary=True)
        described = cursor.description or []
        result = cursor.pgresult
        modifiers = [result.fmod(index) if result else -1 for index in range(len(described))]
        return Schema(
            tuple(
                self._column(column.name, column.type_code, modifier, nullable=True)
                for column, modifier in zip(described, modifiers, strict=True)
            )
        )

    def _learn_types(self, types: Iterable[tuple[int, int]]) -> None:
        """A domain is the type it is made from; types from elsewhere travel as text."""
        new = sorted(set(types) - self._types.keys())
        if not new:
            return
        wanted = ", ".join(f"({oid}, {modifier})" for oid, modifier in new)
        for oid, modifier, base, base_modifier, native, built_in in self.rows(_TYPES.format(types=wanted)):
            declared = data_type(base if built_in else "text", base_modifier)
            charset = self._any_bytes if declared.kind in _TEXTS else ""
            self._types[oid, modifier] = Column("", declared, native=native, charset=charset)

    def _column(self, name: str, oid: int, modifier: int, *, nullable: bool) -> Column:
        self._learn_types([(oid, modifier)])
        known = self._types[oid, modifier]
        return replace(known, name=name, nullable=nullable)

    @property
    def _any_bytes(self) -> str:
        """The encoding of the database, if it takes any bytes for text."""
        encoding = self._open().info.parameter_status("server_encoding") or ""
        return encoding if encoding == _ANY_BYTES else ""

    def unaltered(self, tables: Mapping[TableName, Schema | None]) -> str | None:
        """Not needed here: every value arrives in a form that tells its type."""
        del tables
        return None

    # --- positions

    def expression(self, column: Column) -> str:
        name = quote(column.name)
        return name if column.type.kind is Kind.BYTES else f"{name}::text"

    def value(self, column: Column, raw: Any) -> Value:
        try:
            return _value(column, raw)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise LossyValue(
                f"column `{column.name}` holds {raw!r}, which has no place in an order",
                where=self.login.where,
                hint="correct the value, or leave such rows out with a filter",
            ) from error

    def within(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> str:
        del relation
        return row_values(window, [quote(column.name) for column in columns], literal)

    def in_order(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> tuple[str, ...]:
        return (self.within(relation, columns, window),)

    def second_digits(self, relation: Relation, column: Column) -> int:
        del relation
        return 6 if column.type.precision is None else column.type.precision

    # --- transactions

    def earliest_unfinished(
        self, relation: Relation, columns: tuple[Column, ...], window: Window
    ) -> Value | None:
        """Not needed here: a transaction's start is told exactly."""
        del relation, columns, window
        return None

    def observer(self, tables: Sequence[TableName]) -> Observer:
        reason = self._written_elsewhere(tuple(tables))
        return self.server_observer if reason is None else Blind(self.server_observer, reason)

    @cached_property
    def server_observer(self) -> Observer:
        self._watch = PostgreSQLWatch(self.login)
        [(standby,)] = self.rows("SELECT pg_is_in_recovery()")
        if not standby:
            return self._watch
        if self._primary is None:
            reason = "this server is a standby, and does not show the transactions of its primary"
            remedy = "name the server that is written to with `ceiling.primary`"
            return Blind(self._watch, CannotSee(reason, remedy))
        return Replicated(self, self._primary)

    @cached_property
    def _anything_elsewhere(self) -> bool:
        """Asked once: in most databases there is no such thing, and many tables."""
        [(found,)] = self.rows(_ANYTHING_ELSEWHERE)
        return bool(found)

    def _written_elsewhere(self, tables: tuple[TableName, ...]) -> CannotSee | None:
        """Why rows can appear in one of these that no transaction open on this server has stamped."""
        if not self._anything_elsewhere:
            return None
        if tables and tables not in self._elsewhere:
            # As they are written in a SELECT: without quotes, PostgreSQL folds a name.
            spelled = {(table.schema, name) for table in tables for name in (table.name, table.name.lower())}
            names = ", ".join(f"({literal(schema)}, {literal(name)})" for schema, name in sorted(spelled))
            rows = self.rows(_WRITTEN_ELSEWHERE.format(names=names))
            self._elsewhere[tables] = _why_elsewhere(*rows[0]) if rows else None
        return self._elsewhere.get(tables)

    def id_warnings(self, table: TableName, column: Column, settings: CeilingSettings) -> tuple[str, ...]:
        names = {"schema": literal(table.schema), "name": literal(table.name), "column": literal(column.name)}
        [(cache,)] = self.rows(_SEQUENCE_CACHE.format(**names))
        if cache is None or cache <= 1 or settings.lookback_ids:
            return ()
        warning = (
            f"the sequence of `{column.name}` hands out {cache} ids at a time to each connection, so that a "
            "smaller id can be committed after a larger one: set `ceiling.lookback_ids` to read ids again"
        )
        return (warning,)

    # --- reading

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        with errors(self.login):
            session = connect(self.login)
            try:
                run(session, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                [(name,)] = run(session, "SELECT pg_export_snapshot()")
            except BaseException:
                postgresql_session.close(session)
                raise
        try:
            yield name
        finally:
            postgresql_session.close(session)

    def reader(self) -> Reader:
        from tidegate.sources.readers.postgresql import PostgreSQLReader

        return PostgreSQLReader(for_tasks(self.login))

    def pulse(self) -> Pulse:
        return PostgreSQLPulse(for_tasks(self.login))

    def close(self) -> None:
        self._disconnect()
        if self._watch is not None:
            self._watch.close()
        if self._primary is not None:
            self._primary.close()

    def _open(self) -> Session:
        if self._session is None:
            self._session = connect(self.login)
        return self._session

    def _disconnect(self) -> None:
        postgresql_session.close(self._session)
        self._session = None


def _why_elsewhere(name: str, kind: str) -> CannotSee:
    if kind == "f":
        return CannotSee(f"`{name}` is a foreign table, written on another server", "read it there")
    if kind == "m":
        reason = f"`{name}` is a materialized view, which shows nobody's changes before it is refreshed"
        return CannotSee(reason, "read what it is made from")
    reason = f"`{name}` is filled by logical replication with the timestamps of another server"
    return CannotSee(reason, "read it where it is written")


def _value(column: Column, raw: Any) -> Value:
    match column.type.kind:
        case Kind.BYTES:
            return bytes(raw)
        case Kind.INT16 | Kind.INT32 | Kind.INT64:
            return int(raw)
        case Kind.DECIMAL:
            return _finite(Decimal(raw))
        case Kind.DATE:
            return date_of(raw)
        case Kind.TIMESTAMP:
            return timestamp_of(raw)
        case Kind.INSTANT:
            return instant_of(raw)
        case _:
            return str(raw)


def _finite(number: Decimal) -> Decimal:
    if not number.is_finite():
        raise ValueError("not a number")
    return number
