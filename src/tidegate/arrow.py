"""How declared types travel in Arrow and Parquet."""

from __future__ import annotations

import pyarrow as pa

from tidegate.core.types import Column, DataType, Kind

_PLAIN: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.UINT8: pa.uint8(),
    Kind.UINT16: pa.uint16(),
    Kind.UINT32: pa.uint32(),
    Kind.UINT64: pa.uint64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.INSTANT: pa.timestamp("us", tz="UTC"),
    Kind.JSON: pa.string(),
    Kind.UUID: pa.string(),
}


def arrow_type(declared: DataType) -> pa.DataType:
    if declared.kind is not Kind.DECIMAL:
        return _PLAIN[declared.kind]
    if declared.precision is None or declared.scale is None:
        raise ValueError("a decimal is declared with its precision and scale")
    return pa.decimal128(declared.precision, declared.scale)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in columns])
