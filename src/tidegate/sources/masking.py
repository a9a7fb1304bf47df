"""Masking: a column's values replaced before they leave the executor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.strategies import Mask
from tidegate.core.types import Column, DataType, Kind

REDACTED = "***"
SHOWN = 4


def masked_columns(columns: tuple[Column, ...], masks: Mapping[str, Mask]) -> tuple[Column, ...]:
    """The columns as they are staged: what is masked is text."""
    return tuple(
        Column(c.name, DataType(Kind.TEXT), c.nullable, c.native) if c.name in masks else c for c in columns
    )


def mask(batch: pa.RecordBatch, masks: Mapping[str, Mask], staged: pa.Schema) -> pa.RecordBatch:
    if not masks:
        return batch
    arrays = [
        _MASKS[masks[name]](column) if name in masks else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=staged)


def _hash(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else hashlib.sha256(_bytes(value)).hexdigest() for value in _values(column)],
        pa.string(),
    )


def _values(column: pa.Array) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # one of them is beyond Python's calendar
        return [_value(scalar) for scalar in column]
    return found


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar.cast(pa.string()))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _redact(column: pa.Array) -> pa.Array:
    """NULL stays NULL: that a value is missing is not a secret worth a wrong count."""
    return pc.if_else(pc.is_valid(column), pa.scalar(REDACTED), pa.scalar(None, pa.string()))


def _last4(column: pa.Array) -> pa.Array:
    tails = [None if value is None else _tail(_shown(value)) for value in _values(column)]
    return pa.array(tails, pa.string())


def _shown(value: object) -> str:
    """As people write it: Python has an exponent for small decimals, and a notation of its own for bytes."""
    match value:
        case Decimal():
            return format(value, "f")
        case bytes():
            return value.hex()
        case _:
            return str(value)


def _tail(text: str) -> str:
    """Values of up to four characters would be shown whole, so they are not shown at all."""
    # Not every target takes NUL, and what is masked is not looked at again.
    return REDACTED + text[-SHOWN:].replace("\0", "") if len(text) > SHOWN else REDACTED


_MASKS: dict[Mask, Callable[[pa.Array], pa.Array]] = {
    Mask.HASH: _hash,
    Mask.REDACT: _redact,
    Mask.LAST4: _last4,
}
