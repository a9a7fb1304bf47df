"""A condition that fails the statement it stands in, unless the tables it reads are what they were.

Two changes to a table would bend values in silence: digits behind the point of a decimal that travels without
it, and a wall clock that became an instant. To ask before a read leaves a gap, to ask before and after it
costs two more statements for each chunk, and to hold the definition in between makes whoever waits to alter
the table wait for us, and our next statement for him. But a statement keeps its own tables from being altered
while it runs: so the one that reads also asks, and there is no moment in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pymysql
from pymysql.constants import FIELD_TYPE

from tidegate.core.errors import SourceError, TidegateError
from tidegate.core.types import Column, Kind, Schema
from tidegate.reach.login import Login
from tidegate.sources.contract import Read
from tidegate.sources.discovery import TableName
from tidegate.sources.mysql_session import Session, connect, errors, literal, quote
from tidegate.sources.readers import exact

_CLOCKS = {Kind.TIMESTAMP: "datetime", Kind.INSTANT: "timestamp"}
_FAILING = "(SELECT POW(10, 1973) UNION SELECT 1)"
"""An error as soon as it is evaluated, which as part of a UNION it is not before it has to be."""
_FAILED = re.compile(r"pow\(10, ?1973\)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Definition:
    """As much of a column's definition as must not change."""

    type: str
    scale: int | None
    column: str


def fragile(schema: Schema) -> list[Definition]:
    """The columns of a table that could be bent."""
    decimals = [column for column in schema.columns if column.type.kind is Kind.DECIMAL]
    clocks = [column for column in schema.columns if column.type.kind in _CLOCKS]
    return [
        *(Definition("decimal", column.type.scale, column.name) for column in decimals),
        *(Definition(_CLOCKS[column.type.kind], None, column.name) for column in clocks),
    ]


def guard(tables: Mapping[TableName, Iterable[Definition]]) -> str | None:
    """The condition for a statement that reads these tables; None if nothing in them could be bent."""
    counts = [_count(table, sorted(columns)) for table, columns in tables.items() if columns]
    return f"IF({' AND '.join(counts)}, 1, {_FAILING}) = 1" if counts else None


def _count(table: TableName, columns: list[Definition]) -> str:
    groups = groupby(columns, key=lambda column: (column.type, column.scale))
    as_they_were = " OR ".join(_alike(type, scale, list(group)) for (type, scale), group in groups)
    return (
        "(SELECT COUNT(*) FROM information_schema.columns "
        f"WHERE table_schema = {literal(table.schema)} AND table_name = {literal(table.name)} "
        f"AND ({as_they_were})) = {len(columns)}"
    )


def _alike(type: str, scale: int | None, columns: list[Definition]) -> str:
    names = ", ".join(literal(column.column) for column in columns)
    scaled = "" if scale is None else f" AND numeric_scale = {scale}"
    return f"(data_type = '{type}'{scaled} AND column_name IN ({names}))"


# --- What to say when it has failed ------------------------------------------


def has_failed(said: str) -> bool:
    """Whether it is the guard that a server's message is about."""
    return bool(_FAILED.search(said))


def altered(login: Login, read: Read) -> TidegateError:
    """What the guard has found: the column, unless it is by now what it was."""
    with closing(connect(login)) as session, errors(login, exact.place(read)):
        named = _changed_column(session, read)
    return named or SourceError(
        "a table was altered after the read was planned", where=exact.place(read), hint="run it again"
    )


@contextmanager
def alterations(login: Login, read: Read) -> Iterator[None]:
    """Say what was altered, where the driver only says that a statement failed."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if not has_failed(str(error)):
            raise
        raise altered(login, read) from error


def _changed_column(session: Session, read: Read) -> TidegateError | None:
    names = ", ".join(f"{quote(column.name)} AS c{number}" for number, column in enumerate(read.columns))
    with session.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {read.relation} LIMIT 0")
        described: Any = cursor.description  # typed as text throughout, which it is not
    for column, (_, type_code, *_, scale, _) in zip(read.columns, described, strict=True):
        now = _now(column, type_code, scale)
        if now:
            return exact.changed(read, column, now)
    return None


def _now(column: Column, type_code: int, scale: int) -> str | None:
    """What the column has become, if it is no longer what it was declared to be."""
    match column.type.kind:
        case Kind.DECIMAL:
            if type_code not in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
                return "not a decimal"
            return f"a decimal with {scale} digits behind the point" if scale != column.type.scale else None
        case Kind.TIMESTAMP:
            return "not a datetime" if type_code != FIELD_TYPE.DATETIME else None
        case Kind.INSTANT:
            return "not a timestamp" if type_code != FIELD_TYPE.TIMESTAMP else None
        case _:
            return None
