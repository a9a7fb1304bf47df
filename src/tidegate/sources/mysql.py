"""MySQL and MariaDB as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC
from decimal import Decimal
from functools import cached_property
from typing import Any

import pymysql
from pymysql.constants import ER, FIELD_TYPE, FLAG

from tidegate.core.errors import LossyValue
from tidegate.core.mappings import Declared
from tidegate.core.positions import Value
from tidegate.core.predicates import nested
from tidegate.core.strategies import CeilingSettings
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.core.windows import Window
from tidegate.reach.login import Login
from tidegate.reach.tunnel import for_tasks
from tidegate.sources import mysql_session
from tidegate.sources.ceiling import Blind, CannotSee, Observer
from tidegate.sources.contract import Reader, Relation
from tidegate.sources.discovery import TableName
from tidegate.sources.mysql_guard import fragile, guard
from tidegate.sources.mysql_replica import Replicated, why_not_all_writes_are_here
from tidegate.sources.mysql_session import Session, connect, errors, literal, lost, quote, run
from tidegate.sources.mysql_types import data_type, partial_charset
from tidegate.sources.mysql_unfinished import Rows, Unfinished, whole_moment
from tidegate.sources.mysql_watch import MySQLWatch
from tidegate.sources.sql import both
from tidegate.sources.strain import MySQLPulse, Pulse
from tidegate.sources.values import date_of, timestamp_of

_SYSTEM_SCHEMAS = "('information_schema', 'mysql', 'performance_schema', 'sys')"
_SEEN_ENGINES = frozenset({"innodb", "myisam", "aria", "memory", "archive", "csv", "blackhole", "merge"})
"""Engines whose transactions InnoDB lists, or which have none."""
_BINARY_CHARSET = 63
_FIRST_OF_UNICODE = 2048
"""From here on MariaDB's collations are those that all character sets of Unicode share; it lists them without
a number."""
_BY_NUMBER = ("enum", "set")
"""They are sorted by number, and compared by number only if one asks for it."""

_COLUMNS = """
SELECT column_name, data_type, column_type, is_nullable, numeric_precision, numeric_scale, datetime_precision,
       character_maximum_length, character_set_name, table_name
FROM information_schema.columns
WHERE table_schema = {schema} AND table_name IN ({names})
ORDER BY table_name, ordinal_position
"""
_KEY = """
SELECT table_name, column_name FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name IN ({names}) AND index_name = 'PRIMARY'
ORDER BY table_name, seq_in_index
"""
_JSON_CHECKS = """
SELECT table_name, check_clause FROM information_schema.check_constraints
WHERE constraint_schema = {schema} AND table_name IN ({names})
"""
_SETTINGS = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'innodb_read_only', 'wsrep_on',
    'group_replication_single_primary_mode')
"""


class MySQL:
    """The port to one server, and to its primary if this one is a replica."""

    dialect = "mysql"

    def __init__(self, login: Login, primary: Login | None = None) -> None:
        self.login = login
        self.own_schema = login.database
        self._primary = MySQL(primary) if primary else None
        self._session: Session | None = None
        self._watch: MySQLWatch | None = None
        self._engines: dict[TableName, str | None] = {}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Every query only reads, so one whose session was lost is asked again in a new one."""
        with errors(self.login):
            try:
                return run(self._open(), sql)
            except pymysql.err.MySQLError as error:
                if not lost(error):
                    raise
            self._disconnect()
            return run(self._open(), sql)

    def named_rows(self, sql: str) -> list[dict[str, object]] | None:
        """Rows by the names of their columns; None if this user may not ask."""
        with errors(self.login), self._open().cursor() as cursor:
            try:
                cursor.execute(sql)
            except pymysql.err.OperationalError as error:
                if mysql_session.code(error) == ER.SPECIFIC_ACCESS_DENIED_ERROR:
                    return None
                raise
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, value: Value) -> str:
        return literal(value)

    # --- what there is

    def tables(self) -> list[TableName]:
        return self._relations("'BASE TABLE', 'SYSTEM VERSIONED'")

    def views(self) -> list[TableName]:
        return self._relations("'VIEW'")

    def _relations(self, types: str) -> list[TableName]:
        rows = self.rows(
            "SELECT table_schema, table_name FROM information_schema.tables "
            f"WHERE table_type IN ({types}) AND table_schema NOT IN {_SYSTEM_SCHEMAS} "
            "ORDER BY table_schema, table_name"
        )
        return [TableName(str(schema), str(name)) for schema, name in rows]

    def table_schemas(self, tables: Sequence[TableName]) -> dict[TableName, Schema]:
        """A few queries for each schema: given its name, the server looks at the tables of that one alone."""
        found: dict[TableName, Schema] = {}
        for schema in dict.fromkeys(table.schema for table in tables):
            found |= self._schemas_in(schema, [table for table in tables if table.schema == schema])
        return found

    def _schemas_in(self, schema: str, tables: Sequence[TableName]) -> dict[TableName, Schema]:
        wanted = ", ".join(literal(table.name) for table in tables)
        names = {"schema": literal(schema), "names": wanted}
        columns = _grouped((row[-1], row) for row in self.rows(_COLUMNS.format(**names)))
        if not columns:
            return {}
        keys = _grouped(self.rows(_KEY.format(**names)))
        checks = _grouped(self.rows(_JSON_CHECKS.format(**names)) if self.mariadb else [])
        found = {}
        for table in tables:
            name = _spelled(table.name, columns)
            if name is not None:
                # MariaDB's JSON is a text column with a check.
                json = frozenset(map(str, checks.get(name, ())))
                key = tuple(map(str, keys.get(name, ())))
                found[table] = Schema(tuple(_column(row, json) for row in columns[name]), key)
        return found

    def select_schema(self, select: str) -> Schema:
        """In a session that wants nothing converted: any other would be told of its own character set."""
        with errors(self.login), closing(connect(self.login)) as session, session.cursor() as cursor:
            cursor.execute("SET SESSION character_set_results = NULL")
            cursor.execute(f"SELECT * FROM {select} LIMIT 0")
            fields = cursor._result.fields  # type: ignore[attr-defined]  # noqa: SLF001 - tells sign and charset
            return Schema(tuple(_described(field, self._charset(field.charsetnr)) for field in fields))

    def _charset(self, collation: int) -> str:
        """The character set of a result, if bytes in it may be no character."""
        return "" if collation >= _FIRST_OF_UNICODE else partial_charset(self._charsets.get(collation, "?"))

    @cached_property
    def _charsets(self) -> dict[int, str]:
        """By the numbers of their collations."""
        rows = self.rows(
            "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
        )
        return {int(number): str(charset) for number, charset in rows}

    def unaltered(self, tables: Mapping[TableName, Schema | None]) -> str | None:
        looked_up = self.table_schemas([table for table, schema in tables.items() if schema is None])
        known = {table: schema or looked_up.get(table) for table, schema in tables.items()}
        return guard({table: fragile(schema) for table, schema in known.items() if schema})

    # --- positions

    def expression(self, column: Column) -> str:
        name = quote(column.name)
        return f"CAST({name} AS UNSIGNED)" if column.native.startswith(_BY_NUMBER) else name

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
        return nested(window, [quote(column.name) for column in columns], literal)

    def in_order(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> tuple[str, ...]:
        return (self.within(relation, columns, window),)

    def second_digits(self, relation: Relation, column: Column) -> int:
        del relation
        return column.type.precision or 0

    # --- transactions

    def earliest_unfinished(
        self, relation: Relation, columns: tuple[Column, ...], window: Window
    ) -> Value | None:
        """Looked for where rows are written, which may be this server's primary."""
        writer = self._primary if isinstance(self.server_observer, Replicated) and self._primary else self
        names = dict.fromkeys((*relation.schema.key, *(column.name for column in columns[1:])))
        rows = Rows(
            relation=relation.sql,
            condition=both(self.within(relation, columns, window), relation.filter),
            timestamp=quote(columns[0].name),
            identity=", ".join(map(quote, names)) or "''",
        )
        found = Unfinished(writer.dirty_rows, writer.rows).earliest(rows)
        return None if found is None else self.value(columns[0], whole_moment(found))

    def dirty_rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows as they would be if every open transaction committed now."""
        with errors(self.login):
            session = connect(self.login)
            try:
                run(session, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
                return run(session, sql)
            finally:
                mysql_session.close(session)

    def observer(self, tables: Sequence[TableName]) -> Observer:
        for engine in map(self._engine, tables):
            if engine is not None and engine.lower() not in _SEEN_ENGINES:
                reason = f"the transactions of engine {engine} cannot be seen"
                return Blind(self.server_observer, CannotSee(reason, "keep the table in InnoDB if you can"))
        return self.server_observer

    @cached_property
    def server_observer(self) -> Observer:
        self._watch = MySQLWatch(self.login, mariadb=self.mariadb)
        reason = why_not_all_writes_are_here(self)
        if reason is None:
            return self._watch
        if self._primary is None:
            remedy = "name the server that is written to with `ceiling.primary`"
            return Blind(self._watch, CannotSee(reason, remedy))
        return Replicated(self, self._primary)

    @cached_property
    def mariadb(self) -> bool:
        return "mariadb" in self.settings["version"].lower()

    @cached_property
    def settings(self) -> dict[str, str]:
        return {str(name).lower(): str(value) for name, value in self.rows(_SETTINGS)}

    def _engine(self, table: TableName) -> str | None:
        """None for a view."""
        if table not in self._engines:
            rows = self.rows(
                "SELECT engine FROM information_schema.tables "
                f"WHERE table_schema = {literal(table.schema)} AND table_name = {literal(table.name)}"
            )
            self._engines[table] = str(rows[0][0]) if rows and rows[0][0] else None
        return self._engines[table]

    def id_warnings(self, table: TableName, column: Column, settings: CeilingSettings) -> tuple[str, ...]:
        """Ids are handed out one by one, in order."""
        del table, column, settings
        return ()

    # --- reading

    def snapshot(self) -> AbstractContextManager[str | None]:
        """No two sessions can share a picture of the data here."""
        return nullcontext(None)

    def reader(self) -> Reader:
        """The fast reader's driver knows no client certificates, and at the near end of a tunnel it would
        compare the certificate with the wrong name; the plain one does it right."""
        from tidegate.sources.readers.mysql import MySQLReader
        from tidegate.sources.rows import MySQLWire, RowReader

        login = for_tasks(self.login)
        named = login.tls.mode == "verify-full" and login.tunnel is not None
        return RowReader(MySQLWire(login)) if login.tls.cert or named else MySQLReader(login)

    def pulse(self) -> Pulse:
        return MySQLPulse(for_tasks(self.login))

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
        mysql_session.close(self._session)
        self._session = None


def _grouped(rows: Iterable[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """What belongs to each table, in its order."""
    groups: dict[str, list[Any]] = {}
    for table, item in rows:
        groups.setdefault(str(table), []).append(item)
    return groups


def _spelled(name: str, found: Iterable[str]) -> str | None:
    """Servers that fold the case of names find a table under any of its spellings."""
    alike = [other for other in found if other.casefold() == name.casefold()]
    return name if name in alike else alike[0] if len(alike) == 1 else None


def _column(row: tuple[Any, ...], json_checks: frozenset[str]) -> Column:
    name, type_name, native, nullable, precision, scale, digits, length, charset, _ = row
    if f"json_valid({quote(str(name))})" in json_checks:
        kind = DataType(Kind.JSON)
        return Column(str(name), kind, nullable == "YES", "json", charset=partial_charset(charset))
    declared = Declared(
        name=str(type_name).lower(),
        unsigned="unsigned" in str(native).lower() or "zerofill" in str(native).lower(),
        precision=_number(precision),
        scale=_number(scale),
        digits=_number(digits),
        length=_number(length),
    )
    kind, partial = data_type(declared), partial_charset(charset)
    return Column(str(name), kind, nullable == "YES", str(native), charset=partial)


def _number(text: Any) -> int | None:
    return int(text) if text is not None else None


_RESULT_TYPES = {
    FIELD_TYPE.TINY: "tinyint",
    FIELD_TYPE.SHORT: "smallint",
    FIELD_TYPE.INT24: "mediumint",
    FIELD_TYPE.LONG: "int",
    FIELD_TYPE.LONGLONG: "bigint",
    FIELD_TYPE.FLOAT: "float",
    FIELD_TYPE.DOUBLE: "double",
    FIELD_TYPE.DECIMAL: "decimal",
    FIELD_TYPE.NEWDECIMAL: "decimal",
    FIELD_TYPE.DATE: "date",
    FIELD_TYPE.NEWDATE: "date",
    FIELD_TYPE.DATETIME: "datetime",
    FIELD_TYPE.TIMESTAMP: "timestamp",
    FIELD_TYPE.TIME: "time",
    FIELD_TYPE.YEAR: "year",
    FIELD_TYPE.BIT: "bit",
    FIELD_TYPE.JSON: "json",
    FIELD_TYPE.GEOMETRY: "geometry",
}
_MOST_SECOND_DIGITS = 6


def _described(field: Any, charset: str) -> Column:
    """A column of a result, from what the server says about it."""
    unsigned = bool(field.flags & FLAG.UNSIGNED)
    declared = Declared(
        name=_type_name(field),
        unsigned=unsigned,
        precision=_precision(field, signed=not unsigned),
        scale=field.scale,
        digits=min(field.scale, _MOST_SECOND_DIGITS),
    )
    sized = f"({declared.precision},{declared.scale})" if declared.name == "decimal" else ""
    native = f"{declared.name}{sized}{' unsigned' if unsigned else ''}"
    nullable = not field.flags & FLAG.NOT_NULL
    return Column(field.name, data_type(declared), nullable=nullable, native=native, charset=charset)


def _type_name(field: Any) -> str:
    if field.flags & (FLAG.ENUM | FLAG.SET):
        return "enum" if field.flags & FLAG.ENUM else "set"
    fallback = "varbinary" if field.charsetnr == _BINARY_CHARSET else "varchar"
    return _RESULT_TYPES.get(field.type_code, fallback)


def _precision(field: Any, *, signed: bool) -> int:
    """A result tells a decimal's width in characters: with its point and its sign."""
    if field.type_code not in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        return int(field.length)
    return int(field.length) - (1 if field.scale else 0) - (1 if signed else 0)


def _value(column: Column, raw: Any) -> Value:
    if column.native.startswith(_BY_NUMBER):
        return int(raw)
    if column.native.startswith("decimal"):
        return Decimal(raw)
    match column.type.kind:
        case Kind.TEXT | Kind.UUID:
            return str(raw)
        case Kind.BYTES:
            return bytes(raw)
        case Kind.DATE:
            return date_of(raw)
        case Kind.TIMESTAMP:
            return timestamp_of(raw)
        case Kind.INSTANT:
            return timestamp_of(raw).replace(tzinfo=UTC)
        case _:
            return int.from_bytes(raw) if isinstance(raw, bytes) else int(raw)
