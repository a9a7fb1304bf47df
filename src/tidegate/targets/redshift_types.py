"""Redshift's types: what a declared type is in a table, and what a file has to hold for COPY to take it."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from tidegate.arrow import arrow_type
from tidegate.core.mappings import limits, native_type
from tidegate.core.types import DataType, Kind

_MOST_BYTES = limits("redshift", Kind.TEXT).most_bytes or 0
_UTF8_BYTES = 4
_UUID_LETTERS = 36

native = partial(native_type, "redshift")
"""A column's type in Redshift's words. Lengths count bytes, and TEXT would mean 256 of them."""

_DECLARED: dict[str, Kind] = {
    "boolean": Kind.BOOL,
    "smallint": Kind.INT16,
    "integer": Kind.INT32,
    "bigint": Kind.INT64,
    "real": Kind.FLOAT32,
    "double precision": Kind.FLOAT64,
    "numeric": Kind.DECIMAL,
    "character varying": Kind.TEXT,
    "binary varying": Kind.BYTES,
    "date": Kind.DATE,
    "time without time zone": Kind.TIME,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.INSTANT,
}


def declared_type(name: str, length: int | None, precision: int | None, scale: int | None) -> DataType | None:
    """A column of Redshift's catalog in declared terms; None for one that no declared kind is like.

    A CHAR is filled up with blanks, so it holds exactly only what always has its length.
    """
    if name == "character" and length == _UUID_LETTERS:
        return DataType(Kind.UUID)
    kind = _DECLARED.get(name)
    if kind is None:
        return None
    if kind is Kind.DECIMAL:
        return DataType(kind, precision=precision, scale=scale)
    if kind is Kind.TEXT and length is not None and length < _MOST_BYTES:
        return DataType(kind, length=length // _UTF8_BYTES)
    return DataType(kind)


def spelled(name: str, length: int | None, precision: int | None, scale: int | None) -> str:
    """The same for people."""
    if length is not None:
        return f"{name}({length})"
    return f"{name}({precision},{scale})" if name == "numeric" else name


# --- What COPY takes from Parquet ------------------------------------------------
#
# COPY coerces nothing: a column of the file has to be exactly what the table's column is. It knows no
# unsigned integers, no integers of a byte, no times of day, and no moments in time.

copied = partial(arrow_type, target="redshift")
"""What a file holds that COPY takes as it is."""


def fits(declared: DataType, found: pa.DataType) -> bool:
    """Whether COPY takes a file's column as it is. A zone is no part of what it reads."""
    if pa.types.is_timestamp(found) and found.unit == "us":
        return declared.kind in (Kind.TIMESTAMP, Kind.INSTANT)
    return bool(found == copied(declared))


def landing(declared: DataType) -> str:
    """The type of the column that COPY fills, on the way to the table's own."""
    match declared.kind:
        case Kind.TIME:
            return "VARCHAR(15)"
        case Kind.INSTANT:
            return "TIMESTAMP"
        case _:
            return native(declared)


def landed(declared: DataType, column: str) -> str:
    """The value of such a column as the table's."""
    match declared.kind:
        case Kind.TIME:
            return f"CAST({column} AS TIME)"
        case Kind.INSTANT:
            return f"{column} AT TIME ZONE 'UTC'"
        case _:
            return column
