"""What MySQL's and MariaDB's types are to Tidegate."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.types import DataType, Kind
from tidegate.sources.types import decimal_type

_INTEGERS = {
    "tinyint": (Kind.INT8, Kind.UINT8),
    "smallint": (Kind.INT16, Kind.UINT16),
    "mediumint": (Kind.INT32, Kind.UINT32),
    "int": (Kind.INT32, Kind.UINT32),
    "integer": (Kind.INT32, Kind.UINT32),
    "bigint": (Kind.INT64, Kind.UINT64),
}
_PLAIN = {
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "date": Kind.DATE,
    "year": Kind.INT16,
    "json": Kind.JSON,
    "uuid": Kind.UUID,
}
_CLOCKS = {"datetime": Kind.TIMESTAMP, "timestamp": Kind.INSTANT}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
SPATIAL = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)


@dataclass(frozen=True)
class Declared:
    """A column as information_schema, or the metadata of a result, describes it."""

    name: str
    """The type's own name, as `bigint`."""
    unsigned: bool = False
    precision: int | None = None
    scale: int | None = None
    digits: int | None = None
    """Digits of a second."""
    length: int | None = None


def data_type(declared: Declared) -> DataType:
    """TIME is text, since it reaches beyond a day; enums and sets are their labels; shapes are WKB."""
    name = declared.name
    if name in _INTEGERS:
        signed, unsigned = _INTEGERS[name]
        return DataType(unsigned if declared.unsigned else signed)
    if name == "decimal":
        return decimal_type(declared.precision or 10, declared.scale or 0)
    if name in _CLOCKS:
        return DataType(_CLOCKS[name], precision=declared.digits or 0)
    if name == "bit":
        return DataType(Kind.BOOL if declared.precision == 1 else Kind.UINT64)
    if name in _PLAIN:
        return DataType(_PLAIN[name])
    if name in _BYTES or name in SPATIAL:
        return DataType(Kind.BYTES, length=declared.length if name in _BYTES else None)
    return DataType(Kind.TEXT, length=declared.length if name in _TEXTS else None)
