"""How declared types travel in Arrow and Parquet."""

from __future__ import annotations

import re
from functools import cache

import pyarrow as pa

from tidegate.core.mappings import arrow_name
from tidegate.core.types import Column, DataType

_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


def arrow_type(declared: DataType, target: str | None = None) -> pa.DataType:
    """What a column is in Arrow; for a target, in a file that it can load as it is."""
    return _named(arrow_name(declared, target))


@cache
def _named(name: str) -> pa.DataType:
    sizes = _DECIMAL.fullmatch(name)
    if sizes:
        return pa.decimal128(int(sizes[1]), int(sizes[2]))
    if name == "timestamp[us, tz=UTC]":  # the one that has no alias
        return pa.timestamp("us", tz="UTC")
    return pa.type_for_alias(name)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in columns])
