"""What PostgreSQL's types are to Tidegate. What is not named here travels as the text PostgreSQL writes."""

from __future__ import annotations

from tidegate.core.types import DataType, Kind
from tidegate.sources.types import decimal_type

_PLAIN = {
    "bool": Kind.BOOL,
    "int2": Kind.INT16,
    "int4": Kind.INT32,
    "int8": Kind.INT64,
    "float4": Kind.FLOAT32,
    "float8": Kind.FLOAT64,
    "bytea": Kind.BYTES,
    "date": Kind.DATE,
    "uuid": Kind.UUID,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
}
_CLOCKS = {"time": Kind.TIME, "timestamp": Kind.TIMESTAMP, "timestamptz": Kind.INSTANT}
_LIMITED_TEXTS = frozenset({"varchar", "bpchar"})
_HEADER = 4
"""Sizes are stored with the length of a value's header added."""
_MOST_SECOND_DIGITS = 6
_SCALE_BITS = 0x7FF
_SCALE_SIGN = 0x400


def data_type(name: str, modifier: int) -> DataType:
    """A type by its internal name and modifier, as `pg_attribute` holds them."""
    if name in _PLAIN:
        return DataType(_PLAIN[name])
    if name in _CLOCKS:
        return DataType(_CLOCKS[name], precision=_MOST_SECOND_DIGITS if modifier < 0 else modifier)
    if name == "numeric" and modifier >= _HEADER:
        packed = modifier - _HEADER
        scale = ((packed & _SCALE_BITS) ^ _SCALE_SIGN) - _SCALE_SIGN
        return decimal_type((packed >> 16) & 0xFFFF, scale)
    limited = name in _LIMITED_TEXTS and modifier >= _HEADER
    return DataType(Kind.TEXT, length=modifier - _HEADER if limited else None)
