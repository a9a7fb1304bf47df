"""The plain reader: rows through the database's Python driver, each value converted strictly.

It is slower than an Arrow-native reader, and exact for everything a database can hold. SQLite has no other,
and faster readers fall back on it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tidegate.arrow import arrow_schema, arrow_type
from tidegate.core.errors import LossyValue
from tidegate.core.types import Column, Kind
from tidegate.reach.login import Login
from tidegate.sources.contract import Read, Reader
from tidegate.sources.values import date_of, instant_of, time_of, timestamp_of

if TYPE_CHECKING:
    from tidegate.sources.mysql_session import Session

Row = tuple[Any, ...]
Convert = Callable[[Any], Any]


class Wire(Protocol):
    """How one database hands out rows. Can be pickled."""

    def expression(self, column: Column) -> str:
        """How a column is selected so that nothing is lost on the way."""
        ...

    def convert(self, column: Column) -> Convert | None:
        """What turns an arriving value into one that Arrow takes; None if it already is."""
        ...

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]: ...


@dataclass(frozen=True)
class RowReader:
    wire: Wire

    def read(self, read: Read, *, batch_rows: int) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(read.columns)
        converters = [self.wire.convert(column) for column in read.columns]
        selected = ", ".join(self.wire.expression(column) for column in read.columns)
        sql = f"SELECT {selected} FROM {read.relation} WHERE {read.condition}"
        for rows in self.wire.batches(read, sql, batch_rows):
            arrays = [
                _array(read, column, convert, values)
                for column, convert, values in zip(
                    read.columns, converters, zip(*rows, strict=True), strict=True
                )
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def kept(self) -> AbstractContextManager[Reader]:
        """Each read connects by itself: next to turning rows into columns that takes no time."""
        return nullcontext(self)


def _array(read: Read, column: Column, convert: Convert | None, values: Sequence[Any]) -> pa.Array:
    """One column of a batch. Only if it fails is the guilty value looked for."""
    try:
        return _converted(column, convert, values)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        for value in values:
            try:
                _converted(column, convert, [value])
            except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
                raise _lossy(read, column, value) from error
        raise


def _converted(column: Column, convert: Convert | None, values: Sequence[Any]) -> pa.Array:
    if not column.nullable and None in values:
        raise ValueError("a column that is declared NOT NULL holds NULL")
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, arrow_type(column.type))


def _lossy(read: Read, column: Column, value: Any) -> LossyValue:
    shown = repr(value)
    if len(shown) > 100:  # noqa: PLR2004 - enough to recognise it by
        shown = shown[:100] + "…"
    return LossyValue(
        f"column `{column.name}` holds {shown}, which {column.native or 'its type'} as {column.type} cannot",
        where=read.relation.strip("(\n")[:80],
        hint="correct the value, or leave the column or the row out",
    )


# --- MySQL and MariaDB ------------------------------------------------------


@dataclass(frozen=True)
class MySQLWire:
    """Values arrive as the text the server writes, or as bytes."""

    login: Login

    def expression(self, column: Column) -> str:
        from tidegate.sources.mysql_session import quote
        from tidegate.sources.mysql_types import SPATIAL

        name = quote(column.name)
        if column.type.kind is Kind.FLOAT32:
            return f"{name} + 0e0"  # as a float it would be written with six digits
        if column.native.split("(")[0] in SPATIAL:
            return f"ST_AsBinary({name})"
        return name

    def convert(self, column: Column) -> Convert | None:
        match column.type.kind:
            case Kind.TEXT | Kind.JSON | Kind.UUID | Kind.BYTES:
                return None
            case Kind.FLOAT32 | Kind.FLOAT64:
                return float
            case Kind.DECIMAL:
                return Decimal
            case Kind.DATE:
                return date_of
            case Kind.TIMESTAMP:
                return timestamp_of
            case Kind.INSTANT:
                return lambda text: timestamp_of(text).replace(tzinfo=UTC)
            case Kind.BOOL:
                return lambda raw: _bit(int.from_bytes(raw))
            case _:
                return lambda raw: int.from_bytes(raw) if isinstance(raw, bytes) else int(raw)

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]:
        from pymysql.cursors import SSCursor

        from tidegate.sources.mysql_guard import alterations
        from tidegate.sources.mysql_session import connect, errors, run

        with errors(self.login, read.relation), alterations(self.login, read):
            session = connect(self.login)
            cursor = session.cursor(SSCursor)
            try:
                run(session, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                cursor.execute(sql)
                while rows := cursor.fetchmany(batch_rows):
                    yield rows
            finally:
                _abandon(session, cursor)


def _abandon(session: Session, cursor: Any) -> None:
    """Close without fetching what is left: a task that is stopped need not read its chunk to the end."""
    result = cursor._result  # noqa: SLF001 - the driver offers no way to give a result up
    if result is not None:
        result.unbuffered_active = False
    session.close()


# --- PostgreSQL -------------------------------------------------------------

_AS_TEXT = frozenset(
    {Kind.TEXT, Kind.JSON, Kind.UUID, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.INSTANT, Kind.DECIMAL}
)
_TEXT_ALREADY = ("text", "character", "varchar", "bpchar", "char")


@dataclass(frozen=True)
class PostgreSQLWire:
    """Numbers and bytes as the driver reads them, everything else as text."""

    login: Login

    def expression(self, column: Column) -> str:
        from tidegate.sources.postgresql_session import quote

        name = quote(column.name)
        plain = column.native.startswith(_TEXT_ALREADY) and not column.native.endswith("]")
        return f"{name}::text" if column.type.kind in _AS_TEXT and not plain else name

    def convert(self, column: Column) -> Convert | None:
        converters: dict[Kind, Convert] = {
            Kind.DECIMAL: Decimal,
            Kind.DATE: date_of,
            Kind.TIME: time_of,
            Kind.TIMESTAMP: timestamp_of,
            Kind.INSTANT: instant_of,
        }
        return converters.get(column.type.kind)

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]:
        from tidegate.sources.postgresql_session import connect, errors, literal

        with errors(self.login, read.relation), closing(connect(self.login)) as session:
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if read.snapshot is not None:
                session.execute(f"SET TRANSACTION SNAPSHOT {literal(read.snapshot)}".encode())
            with session.cursor() as cursor:
                rows = cursor.stream(sql.encode())
                while batch := list(islice(rows, batch_rows)):
                    yield batch


# --- SQLite -----------------------------------------------------------------

_EXACT_INTEGERS = 2**53
"""Up to here every integer is a floating-point number."""


@dataclass(frozen=True)
class SQLiteWire:
    """Values arrive in whatever type each of them was stored with, so each is looked at."""

    path: str

    def expression(self, column: Column) -> str:
        from tidegate.sources.sqlite_session import quote

        return quote(column.name)

    def convert(self, column: Column) -> Convert | None:
        return {
            Kind.BOOL: _bit,
            Kind.INT64: _whole,
            Kind.FLOAT64: _real,
            Kind.DECIMAL: _decimal,
            Kind.BYTES: _blob,
            Kind.DATE: lambda value: date_of(_text(value)),
            Kind.TIMESTAMP: lambda value: timestamp_of(_text(value)),
            Kind.TEXT: _written if column.native and _is_numeric(column.native) else _text,
            Kind.JSON: _text,
        }[column.type.kind]

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]:
        from tidegate.sources.sqlite_session import connect, errors

        with errors(self.path, read.relation), closing(connect(self.path)) as session:
            cursor: sqlite3.Cursor = session.execute(sql)
            while rows := cursor.fetchmany(batch_rows):
                yield rows


def _is_numeric(native: str) -> bool:
    from tidegate.sources.sqlite_types import has_numeric_affinity

    return has_numeric_affinity(native)


def _bit(value: Any) -> bool:
    if type(value) is not int or value not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return bool(value)


def _whole(value: Any) -> int:
    _demand(int, value)
    return int(value)


def _real(value: Any) -> float:
    if type(value) is int and abs(value) <= _EXACT_INTEGERS:
        return float(value)
    _demand(float, value)
    return float(value)


def _decimal(value: Any) -> Decimal:
    """A number that was stored as floating point is taken for the shortest decimal that means it."""
    if type(value) not in (int, float, str):
        raise TypeError(f"{type(value).__name__} is not a number")
    return Decimal(repr(value) if isinstance(value, float) else value)


def _blob(value: Any) -> bytes:
    _demand(bytes, value)
    return bytes(value)


def _text(value: Any) -> str:
    _demand(str, value)
    return str(value)


def _written(value: Any) -> str:
    return _text(value) if isinstance(value, str | bytes) else repr(value)


def _demand(kind: type[Any], value: Any) -> None:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} was declared")
