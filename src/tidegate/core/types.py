"""Schemas: what a column holds, in terms that no database owns.

A source maps its native types to these kinds, a target maps these kinds to its own types, and Arrow
carries them between the two.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    """A wall-clock reading without a zone."""
    INSTANT = "instant"
    """A moment in time, in UTC."""
    JSON = "json"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class DataType:
    """A kind and, where it has them, its sizes: digits before and after the point, digits of a second."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return self.kind.value

    def to_json(self) -> list[Any]:
        return [self.kind.value, self.precision, self.scale, self.length]

    @classmethod
    def from_json(cls, data: list[Any]) -> DataType:
        kind, precision, scale, length = data
        return cls(Kind(kind), precision, scale, length)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: DataType
    nullable: bool = True
    native: str = ""
    """The type in the source's own words, for messages and for the projection."""
    charset: str = field(default="", compare=False)
    """The character set of a text that may hold bytes which are no character; known while it is read."""


@dataclass(frozen=True, slots=True)
class Schema:
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": [[c.name, c.type.to_json(), c.nullable, c.native] for c in self.columns],
            "key": list(self.key),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Schema:
        return cls(
            tuple(
                Column(name, DataType.from_json(kind), nullable, native)
                for name, kind, nullable, native in data["columns"]
            ),
            tuple(data["key"]),
        )
