"""SQLite as a source. One writer at a time: holding its lock for an instant shows that none is under way."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidegate.core.ceiling import OpenTransaction
from tidegate.core.errors import LossyValue, SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.predicates import fixed, steps
from tidegate.core.strategies import CeilingSettings
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.core.windows import Window
from tidegate.sources.ceiling import POLL, CannotSee, Observer
from tidegate.sources.contract import Reader, Relation
from tidegate.sources.discovery import TableName
from tidegate.sources.sqlite_session import (
    Session,
    cannot_write,
    connect,
    errors,
    is_busy,
    literal,
    quote,
    run,
    writable,
)
from tidegate.sources.sqlite_types import data_type
from tidegate.sources.values import date_of, decimal_of, timestamp_of

_SCHEMA = "main"
_SAMPLE = 1000
_CLOCKS = (Kind.DATE, Kind.TIMESTAMP)
_WHOLE_SECONDS = len("2026-01-31 23:59:59")
_SEPARATOR = len("2026-01-31")
_MOST_DIGITS = 6


def machine_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class WrittenForm:
    """How a column writes its timestamps: they compare as text, so what is compared has to look the same."""

    separator: str = " "
    digits: frozenset[int] = frozenset({0, 6})
    """Of a second. None and six together are what Python writes: a fraction only where there is one."""

    @classmethod
    def of(cls, text: str) -> WrittenForm:
        timestamp_of(text)
        fraction = text[_WHOLE_SECONDS + 1 :]
        return cls(text[_SEPARATOR], frozenset({len(fraction)}))

    def joined(self, other: WrittenForm) -> WrittenForm | None:
        """Both forms as one, if text of both still sorts by time."""
        digits = self.digits | other.digits
        if self.separator != other.separator or (len(digits) > 1 and digits != {0, 6}):
            return None
        return WrittenForm(self.separator, digits)

    def patterns(self) -> list[str]:
        stem = f"____-__-__{self.separator}__:__:__"
        return [stem + ("." + "_" * count if count else "") for count in self.digits]

    def write(self, moment: datetime) -> str:
        """A moment between two that the column can write has more digits, and sorts between them as text."""
        whole = moment.replace(microsecond=0).isoformat(sep=self.separator)
        fraction = f"{moment.microsecond:06d}"
        exact = [size for size in sorted(self.digits) if not fraction[size:].strip("0")]
        size = exact[0] if exact else _MOST_DIGITS
        return f"{whole}.{fraction[:size]}" if size else whole


class SQLite:
    """The port to one file."""

    dialect = "sqlite"
    own_schema = _SCHEMA

    def __init__(self, path: str, clock: Callable[[], datetime] = machine_clock) -> None:
        self.path = path
        self._clock = clock
        self._session: Session | None = None
        self._forms: dict[tuple[str, str | None, str], WrittenForm] = {}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with errors(self.path):
            return run(self._open(), sql)

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, value: Value) -> str:
        return literal(value)

    # --- what there is

    def tables(self) -> list[TableName]:
        return self._relations("table")

    def views(self) -> list[TableName]:
        return self._relations("view")

    def _relations(self, kind: str) -> list[TableName]:
        rows = self.rows(
            f"SELECT name FROM sqlite_master WHERE type = '{kind}' "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        return [TableName(_SCHEMA, name) for (name,) in rows]

    def table_schemas(self, tables: Sequence[TableName]) -> dict[TableName, Schema]:
        """One by one: there is no server to go to and back from."""
        found = ((table, self._table_schema(table)) for table in tables)
        return {table: schema for table, schema in found if schema is not None}

    def _table_schema(self, table: TableName) -> Schema | None:
        if table.schema != _SCHEMA:
            return None
        rows = self.rows(f"PRAGMA table_xinfo({quote(table.name)})")
        columns = [self._column(quote(table.name), row) for row in rows if row[6] != 1]
        if not columns:
            return None
        numbered = sorted((place, name) for _, name, _, _, _, place, _ in rows if place)
        key = tuple(name for _, name in numbered)
        return Schema(*self._with_key(table, tuple(columns), key))

    def _with_key(
        self, table: TableName, columns: tuple[Column, ...], key: tuple[str, ...]
    ) -> tuple[tuple[Column, ...], tuple[str, ...]]:
        """SQLite lets primary keys hold NULL, and such a row would be in no chunk."""
        suspects = [quote(column.name) for column in columns if column.name in key and column.nullable]
        missing = " OR ".join(f"{name} IS NULL" for name in suspects)
        if suspects and self.rows(f"SELECT 1 FROM {quote(table.name)} WHERE {missing} LIMIT 1"):
            return columns, ()
        return columns, key

    def _column(self, relation: str, row: tuple[Any, ...]) -> Column:
        _, name, declared, not_null, _, place, _ = row
        is_rowid = place == 1 and declared.upper() == "INTEGER"
        kind = data_type(declared) if declared else self._sampled(relation, name)
        return Column(name, kind, nullable=not (not_null or is_rowid), native=declared.lower())

    def _sampled(self, relation: str, name: str) -> DataType:
        """What a column without a declared type holds, judged by its first rows."""
        rows = self.rows(
            f"SELECT DISTINCT typeof(value) FROM "
            f"(SELECT {quote(name)} AS value FROM {relation} LIMIT {_SAMPLE})"
        )
        found = {kind for (kind,) in rows} - {"null"}
        if found == {"integer"}:
            return DataType(Kind.INT64)
        if found and found <= {"integer", "real"}:
            return DataType(Kind.FLOAT64)
        return DataType(Kind.BYTES if found == {"blob"} else Kind.TEXT)

    def select_schema(self, select: str) -> Schema:
        """A temporary view tells the declared types of its columns; it exists in this session only."""
        with errors(self.path):
            session = connect(self.path, read_only=False)
            try:
                run(session, f"CREATE TEMP VIEW tidegate_view AS SELECT * FROM {select}")
                rows = run(session, "PRAGMA temp.table_xinfo(tidegate_view)")
            finally:
                session.close()
        return Schema(tuple(self._column(select, row) for row in rows))

    def unaltered(self, tables: Mapping[TableName, Schema | None]) -> str | None:
        """Not needed here: every value brings its own type."""
        del tables
        return None

    # --- positions

    def expression(self, column: Column) -> str:
        return quote(column.name)

    def value(self, column: Column, raw: Any) -> Value:
        try:
            return _value(column, raw)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise LossyValue(
                f"column `{column.name}` holds {raw!r}, which is not what {column.native or 'it'} promises",
                where=self.path,
                hint="correct the value, or leave such rows out with a filter",
            ) from error

    def within(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> str:
        return self._condition(relation, columns, window)

    def in_order(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> tuple[str, ...]:
        """SQLite ranges over one column of an index: the steps behind the low end are ranges one by one."""
        end = self._condition(relation, columns, Window(None, window.high))
        return tuple(f"{self._condition(relation, columns, step)} AND {end}" for step in steps(window))

    def _condition(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> str:
        stored = Window(
            self._stored(relation, columns, window.low), self._stored(relation, columns, window.high)
        )
        return fixed(stored, [quote(column.name) for column in columns], literal)

    def _stored(
        self, relation: Relation, columns: tuple[Column, ...], position: Position | None
    ) -> Position | None:
        """A position as the file writes it."""
        if position is None:
            return None
        pairs = zip(columns, position.values, strict=False)
        return Position(tuple(self._as_written(relation, column, value) for column, value in pairs))

    def _as_written(self, relation: Relation, column: Column, value: Value) -> Value:
        if column.type.kind is Kind.TIMESTAMP and isinstance(value, date):
            moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001
            return self._form(relation, column).write(moment.replace(tzinfo=None))
        return value

    def second_digits(self, relation: Relation, column: Column) -> int:
        """Asked once for every ceiling: whatever was written since has to have the same form."""
        if column.type.kind is Kind.TIMESTAMP:
            self._forms.pop(_form_key(relation, column), None)
            return max(self._form(relation, column).digits)
        return 0

    def _form(self, relation: Relation, column: Column) -> WrittenForm:
        key = _form_key(relation, column)
        if key not in self._forms:
            self._forms[key] = self._look_for_form(relation, column)
        return self._forms[key]

    def _look_for_form(self, relation: Relation, column: Column) -> WrittenForm:
        """Every value is looked at: one in another form could sort behind a mark that has passed it."""
        name = quote(column.name)
        filtered = f" AND (\n{relation.filter}\n)" if relation.filter else ""
        query = f"SELECT {name} FROM {relation.sql} WHERE {name} IS NOT NULL{filtered}"
        form: WrittenForm | None = None
        example: Any = None
        while True:
            patterns = form.patterns() if form else []
            others = "".join(f" AND {name} NOT LIKE '{pattern}'" for pattern in patterns)
            rows = self.rows(f"{query}{others} LIMIT 1")
            if not rows:
                return form or WrittenForm()
            found = self._example(column, rows[0][0])
            joined = form.joined(found) if form else found
            if joined is None or joined == form:
                raise self._two_forms(relation, column, example, rows[0][0])
            form, example = joined, rows[0][0]

    def _example(self, column: Column, raw: Any) -> WrittenForm:
        self.value(column, raw)
        return WrittenForm.of(raw)

    def _two_forms(self, relation: Relation, column: Column, one: Any, other: Any) -> SourceError:
        return SourceError(
            f"column `{column.name}` writes its timestamps in two forms, {one!r} and {other!r}, "
            "which do not sort by time",
            where=relation.name,
            hint="rewrite the column in one form, or use another cursor",
        )

    # --- transactions

    def earliest_unfinished(
        self, relation: Relation, columns: tuple[Column, ...], window: Window
    ) -> Value | None:
        """Not needed here: nothing is read as long as somebody writes."""
        del relation, columns, window
        return None

    def observer(self, tables: Sequence[TableName]) -> Observer:
        del tables
        return SQLiteWatch(self.path, self._clock)

    def id_warnings(self, table: TableName, column: Column, settings: CeilingSettings) -> tuple[str, ...]:
        del table, column, settings
        return ()

    # --- reading

    def snapshot(self) -> AbstractContextManager[str | None]:
        return nullcontext(None)

    def reader(self) -> Reader:
        from tidegate.sources.rows import RowReader, SQLiteWire

        return RowReader(SQLiteWire(self.path))

    def pulse(self) -> None:
        return None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> Session:
        if self._session is None:
            self._session = connect(self.path)
        return self._session


@dataclass(frozen=True)
class SQLiteWatch:
    """An observer of one file. Its clock is the machine's, as it is for those who write the file."""

    path: str
    now: Callable[[], datetime] = machine_clock

    def clock(self) -> datetime:
        return self.now()

    def blindness(self) -> CannotSee | None:
        if writable(self.path):
            return None
        return CannotSee(
            "the file may not be written, so nobody can ask for its write lock",
            f"give this user the right to write {self.path} and its folder",
        )

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        del ignore
        with errors(self.path):
            session = connect(self.path, busy=POLL.total_seconds(), read_only=False)
            try:
                run(session, "BEGIN IMMEDIATE")
                run(session, "ROLLBACK")
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    return (OpenTransaction("writer", None, "a connection that holds the write lock"),)
                if cannot_write(error):
                    raise CannotSee(f"the write lock cannot be had: {error}", "check permissions") from error
                raise
            finally:
                session.close()
        return ()

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        del gone, listed
        return False

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        del patience
        return None


def _form_key(relation: Relation, column: Column) -> tuple[str, str | None, str]:
    return relation.sql, relation.filter, column.name


def _value(column: Column, raw: Any) -> Value:
    match column.type.kind:
        case Kind.DATE:
            return date_of(_text(raw))
        case Kind.TIMESTAMP:
            return timestamp_of(_text(raw))
        case Kind.DECIMAL if isinstance(raw, int | float | str):
            return decimal_of(repr(raw) if isinstance(raw, float) else str(raw))
        case _ if type(raw) in (int, str, bytes):
            return raw  # type: ignore[no-any-return]
        case _:
            raise TypeError(f"{type(raw).__name__} has no place in an order")


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{type(raw).__name__} where text was expected")
    return raw
