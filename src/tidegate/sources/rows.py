"""The plain reader: rows through the database's Python driver, each value converted strictly.

It is slower than an Arrow-native reader, and exact for everything a database can hold. SQLite has no other,
and faster readers fall back on it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from tidegate.arrow import arrow_schema, arrow_type
from tidegate.core.errors import LossyValue
from tidegate.core.types import Column, Kind
from tidegate.reach.login import Login
from tidegate.sources.contract import Read, Reader
from tidegate.sources.readers import exact
from tidegate.sources.values import (
    days_of,
    decimal_of,
    era_days_of,
    era_microseconds_of,
    microseconds_of,
    time_of,
)

if TYPE_CHECKING:
    from tidegate.sources.mysql_session import Session

Row = tuple[Any, ...]
Convert = Callable[[Any], Any]


class Wire(Protocol):
    """How one database hands out rows. Can be pickled."""

    writes_anything: ClassVar[bool]
    """Whether a column of texts can hold something else, which can be written as text."""

    def expression(self, read: Read, column: Column) -> str:
        """How a column is selected so that nothing is lost on the way."""
        ...

    def convert(self, read: Read, column: Column) -> Convert | None:
        """What turns an arriving value into one that Arrow takes; None if it already is."""
        ...

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]: ...


@dataclass(frozen=True)
class RowReader:
    wire: Wire

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        rows = self.wire.batches(read, selection(self.wire, read), batch_rows)
        yield from arranged(self.wire, read, rows, Counter() if lost is None else lost)

    def kept(self) -> AbstractContextManager[Reader]:
        """Each read connects by itself: next to turning rows into columns that takes no time."""
        return nullcontext(self)


def selection(wire: Wire, read: Read) -> str:
    """The statement that selects what is to be read, so that nothing is lost on the way."""
    selected = ", ".join(wire.expression(read, column) for column in read.columns)
    return f"SELECT {selected} FROM {read.relation} WHERE {read.condition}"


def arranged(
    wire: Wire, read: Read, arriving: Iterable[Sequence[Row]], lost: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """What has been selected, as columns of the declared types."""
    schema = arrow_schema(read.columns)
    converters = [wire.convert(read, column) for column in read.columns]
    for rows in arriving:
        columns = zip(read.columns, converters, zip(*rows, strict=True), strict=True)
        arrays = [
            _array(_Batch(read, rows, lost, wire.writes_anything), column, convert, values)
            for column, convert, values in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


_UNFIT = (ValueError, TypeError, ArithmeticError, pa.ArrowException)


@dataclass(frozen=True)
class _Batch:
    """The rows a column belongs to."""

    read: Read
    rows: Sequence[Row]
    lost: Counter[str]
    writes_anything: bool

    def refused(self, column: Column, row: int) -> LossyValue:
        value = self.rows[row][[each.name for each in self.read.columns].index(column.name)]
        shown = exact.shortened(repr(value))
        as_text = self.writes_anything or column.type.kind is not Kind.TEXT
        return exact.lossy(self.read, column, shown, self.place(row), as_text=as_text)

    def place(self, row: int) -> str:
        """Which row it is, by the columns that order the table."""
        names = [column.name for column in self.read.columns]
        known = [(name, names.index(name)) for name in self.read.positions if name in names]
        return exact.named_row((name, str(self.rows[row][at])) for name, at in known)


def _array(batch: _Batch, column: Column, convert: Convert | None, values: Sequence[Any]) -> pa.Array:
    """One column of a batch. Only if it fails is the guilty value looked for."""
    try:
        return _converted(column, convert, values)
    except _UNFIT as error:
        wrong = [row for row, value in enumerate(values) if not _fits(column, convert, value)]
        if not wrong:
            raise
        if column.name not in batch.read.nulled:
            raise batch.refused(column, wrong[0]) from error
    batch.lost[column.name] += len(wrong)
    without = set(wrong)
    kept = [None if row in without else value for row, value in enumerate(values)]
    return _converted(column, convert, kept)


def _fits(column: Column, convert: Convert | None, value: Any) -> bool:
    try:
        _converted(column, convert, [value])
    except _UNFIT:
        return False
    return True


def _converted(column: Column, convert: Convert | None, values: Sequence[Any]) -> pa.Array:
    if not column.nullable and None in values:
        raise ValueError("a column that is declared NOT NULL holds NULL")
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, arrow_type(column.type))


# --- MySQL and MariaDB ------------------------------------------------------


@dataclass(frozen=True)
class MySQLWire:
    """Values arrive as the text the server writes, or as bytes."""

    login: Login
    writes_anything: ClassVar[bool] = False

    def expression(self, read: Read, column: Column) -> str:
        from tidegate.sources.mysql_session import quote
        from tidegate.sources.mysql_types import SPATIAL, with_sign, with_sign_of_halves

        name = quote(column.name)
        if column.charset:
            return with_sign(name)
        if self._is_signed(read, column):
            return with_sign_of_halves(name)
        if column.type.kind in (Kind.FLOAT32, Kind.FLOAT64):
            return f"{name} * 1e0"  # a FLOAT would be written with six digits, a DOUBLE(10,2) with two
        if column.native.split("(")[0] in SPATIAL:
            return f"ST_AsBinary({name})"
        if column.native.startswith("vector"):
            return f"CAST({name} AS BINARY)"  # the driver does not know the type
        return name

    def convert(self, read: Read, column: Column) -> Convert | None:
        match column.type.kind:
            case Kind.TEXT | Kind.JSON if column.charset or self._is_signed(read, column):
                return _signed
            case Kind.TEXT | Kind.JSON | Kind.UUID | Kind.BYTES:
                return None
            case Kind.FLOAT32 | Kind.FLOAT64:
                return float
            case Kind.DECIMAL:
                return Decimal
            case Kind.DATE:
                return days_of
            case Kind.TIMESTAMP | Kind.INSTANT:
                return microseconds_of
            case Kind.BOOL:
                return lambda raw: _bit(int.from_bytes(raw))
            case _:
                return lambda raw: int.from_bytes(raw) if isinstance(raw, bytes) else int(raw)

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]:
        from pymysql.cursors import SSCursor

        from tidegate.sources.mysql_guard import alterations
        from tidegate.sources.mysql_session import connect, errors, run
        from tidegate.sources.mysql_unfit import unreadable

        with errors(self.login, read.relation), alterations(self.login, read):
            session = connect(self.login)
            cursor = session.cursor(SSCursor)
            try:
                run(session, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                cursor.execute(sql)
                while rows := cursor.fetchmany(batch_rows):
                    yield rows
            except UnicodeDecodeError as error:
                raise unreadable(self.login, read) or error from error
            finally:
                _abandon(session, cursor)

    def _is_signed(self, read: Read, column: Column) -> bool:
        """Whether halves of characters, which nobody can decode, become NULL."""
        from tidegate.sources.mysql_types import may_be_halved

        return column.name in read.nulled and may_be_halved(column)


def _signed(text: str) -> str:
    if not text.startswith("="):
        raise ValueError("the server could not send what is stored")
    return text[1:]


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
_TEXT_ALREADY = ("text", "character varying")
"""The blanks that fill up a `character(n)` are not part of its text."""


@dataclass(frozen=True)
class PostgreSQLWire:
    """Numbers and bytes as the driver reads them, everything else as text."""

    login: Login
    writes_anything: ClassVar[bool] = False

    def expression(self, read: Read, column: Column) -> str:
        del read
        from tidegate.sources.postgresql_session import quote

        name = quote(column.name)
        plain = column.native.startswith(_TEXT_ALREADY) and not column.native.endswith("]")
        return f"{name}::text" if column.type.kind in _AS_TEXT and not plain else name

    def convert(self, read: Read, column: Column) -> Convert | None:
        del read
        converters: dict[Kind, Convert] = {
            Kind.DECIMAL: Decimal,
            Kind.DATE: era_days_of,
            Kind.TIME: time_of,
            Kind.TIMESTAMP: era_microseconds_of,
            Kind.INSTANT: era_microseconds_of,
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

LENIENT = partial(str, encoding="utf-8", errors="surrogateescape")
"""Bytes that are no UTF-8 arrive as what no text can have, so that the value is refused, and not the read."""
_EXACT_INTEGERS = 2**53
"""Up to here every integer is a floating-point number."""


@dataclass(frozen=True)
class SQLiteWire:
    """Values arrive in whatever type each of them was stored with, so each is looked at."""

    path: str
    writes_anything: ClassVar[bool] = True

    def expression(self, read: Read, column: Column) -> str:
        del read
        from tidegate.sources.sqlite_session import quote

        return quote(column.name)

    def convert(self, read: Read, column: Column) -> Convert | None:
        return {
            Kind.BOOL: _bit,
            Kind.INT64: _whole,
            Kind.FLOAT64: _real,
            Kind.DECIMAL: _decimal,
            Kind.BYTES: _blob,
            Kind.DATE: lambda value: days_of(_text(value)),
            Kind.TIMESTAMP: lambda value: microseconds_of(_text(value)),
            Kind.TEXT: _any_text if column.name in read.as_written else _text_of(column.native),
            Kind.JSON: _json,
        }[column.type.kind]

    def batches(self, read: Read, sql: str, batch_rows: int) -> Iterator[Sequence[Row]]:
        from tidegate.sources.sqlite_session import connect, errors

        with errors(self.path, read.relation), closing(connect(self.path)) as session:
            session.text_factory = LENIENT
            cursor: sqlite3.Cursor = session.execute(sql)
            while rows := cursor.fetchmany(batch_rows):
                yield rows


def _text_of(native: str) -> Convert:
    """How the values of a column become text, by what it declares."""
    from tidegate.sources.sqlite_types import has_numeric_affinity

    return _written if native and has_numeric_affinity(native) else _text


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
    return decimal_of(repr(value) if isinstance(value, float) else str(value))


def _blob(value: Any) -> bytes:
    _demand(bytes, value)
    return bytes(value)


def _text(value: Any) -> str:
    _demand(str, value)
    return str(value)


def _any_text(value: Any) -> str:
    """As SQLite writes a literal, but for texts, and for numbers with all their digits.

    What is stored as text and is none is written as what it is: bytes.
    """
    if isinstance(value, str) and not _is_unicode(value):
        value = value.encode("utf-8", "surrogateescape")
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else _written(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(value: Any) -> str:
    """A document as it stands: what is not JSON, no target would take for it."""
    try:
        json.loads(_text(value), parse_constant=_no_constant, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise ValueError("too deep") from error
    return str(value)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _written(value: Any) -> str:
    return _text(value) if isinstance(value, str | bytes) else repr(value)


def _demand(kind: type[Any], value: Any) -> None:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} was declared")
