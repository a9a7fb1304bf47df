"""Declared types in Delta tables, and rows on their way into them.

Delta has no unsigned integers, no times of day and no UUIDs: `core.mappings` says what holds them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.arrow import arrow_type
from tidegate.core.mappings import CARRIED, native_type
from tidegate.core.names import RULES
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.targets.ddl import Dialect, TargetColumn

if TYPE_CHECKING:
    from deltalake import DeltaTable

_DECLARED = {row.delta.native: DataType(kind) for kind, row in reversed(list(CARRIED.items()))}
"""What a native type is in declared terms: of several kinds that share one, the first."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def declared_type(native: str) -> DataType | None:
    """A column's type in declared terms; None for one that no declared kind is like."""
    sizes = _DECIMAL.fullmatch(native)
    if sizes:
        return DataType(Kind.DECIMAL, precision=int(sizes[1]), scale=int(sizes[2]))
    return _DECLARED.get(native)


def stored_schema(schema: Schema) -> Schema:
    """What the columns become: of types that Delta has."""
    return Schema(tuple(replace(column, type=_stored(column.type)) for column in schema.columns), schema.key)


def _stored(declared: DataType) -> DataType:
    found = declared_type(native_type("delta", declared))
    assert found is not None, declared
    return found


# No constraints: an older segment may lack any column, and the load itself looks at the keys it merges by.
DIALECT = Dialect(native=partial(native_type, "delta"), names=RULES["delta"], unique_keys=False)


def columns_of(table: DeltaTable | None) -> tuple[TargetColumn, ...]:
    if table is None:
        return ()
    return tuple(
        TargetColumn(item.name, _native(item.type), declared_type(_native(item.type)), item.nullable)
        for item in table.schema().fields
    )


def _native(kind: Any) -> str:
    return str(getattr(kind, "type", kind))


def field(column: Column) -> pa.Field:
    """A new column of a table. Every one may be empty: an older segment may not bring it."""
    return pa.field(column.name, arrow_type(column.type, "delta"), nullable=True)


def fitted(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values as the table's column has them, to the last digit."""
    if column.type == wanted:
        return column
    if pa.types.is_time(column.type):
        return _clock_text(column)
    if pa.types.is_decimal(wanted) and pa.types.is_integer(column.type):
        return column.cast(pa.decimal128(20, 0)).cast(wanted)
    return column.cast(wanted)


def _clock_text(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Times of day as PostgreSQL writes them: `23:59:59.9`, `24:00:00`."""
    micros = column.cast(pa.int64())
    seconds = pc.divide(micros, 1_000_000)
    parts = [pc.divide(seconds, 3600), _rest(pc.divide(seconds, 60), 60), _rest(seconds, 60)]
    texts = [pc.utf8_lpad(part.cast(pa.string()), 2, "0") for part in parts]
    whole = pc.binary_join_element_wise(*texts, ":")
    below = pc.utf8_lpad(_rest(micros, 1_000_000).cast(pa.string()), 6, "0")
    fraction = pc.utf8_rtrim(pc.binary_join_element_wise("", below, "."), "0")
    return pc.binary_join_element_wise(whole, pc.replace_substring_regex(fraction, r"^\.$", ""), "")


def _rest(number: pa.Array | pa.ChunkedArray, by: int) -> pa.Array | pa.ChunkedArray:
    return pc.subtract(number, pc.multiply(pc.divide(number, by), by))
