"""Whether a column at a target can hold what the rows bring, exactly, and what it would have to become."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.types import DataType, Kind

_RANGES: dict[Kind, tuple[int, int]] = {
    Kind.INT8: (-(2**7), 2**7 - 1),
    Kind.UINT8: (0, 2**8 - 1),
    Kind.INT16: (-(2**15), 2**15 - 1),
    Kind.UINT16: (0, 2**16 - 1),
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.UINT32: (0, 2**32 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
    Kind.UINT64: (0, 2**64 - 1),
}
_ALL_INTEGERS = DataType(Kind.DECIMAL, precision=20, scale=0)
"""The narrowest type that holds every kind of integer."""
_SIZED = frozenset({Kind.TEXT, Kind.BYTES})
_CLOCKS = frozenset({Kind.TIME, Kind.TIMESTAMP, Kind.INSTANT})
_PLAINLY_WRITTEN = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.INSTANT, Kind.DECIMAL})
"""What may be carried as text by decision, so that both forms meet in one column."""
_WRITTEN_AS_TEXT = frozenset({Kind.UUID, Kind.JSON})
_MOST_DIGITS = 38
"""What a decimal in Arrow and in most warehouses can have."""


def holds(column: DataType, value: DataType) -> bool:
    """Whether every value of one type goes into a column of the other and comes out the same."""
    if value.kind in _RANGES:
        return _holds_integer(column, _RANGES[value.kind])
    if value.kind in _WRITTEN_AS_TEXT:
        return column.kind is value.kind or (column.kind is Kind.TEXT and column.length is None)
    if value.kind is Kind.FLOAT32:
        return column.kind in (Kind.FLOAT32, Kind.FLOAT64)
    if column.kind is not value.kind:
        return False
    if value.kind is Kind.DECIMAL:
        return _holds_decimal(column, value)
    if value.kind in _SIZED:
        return column.length is None or (value.length is not None and value.length <= column.length)
    if value.kind in _CLOCKS:
        return _second_digits(column) >= _second_digits(value)
    return True


def widened(column: DataType, value: DataType) -> DataType | None:
    """The type the column would need so that it keeps what it has and takes what comes; None if none is."""
    if column.kind in _RANGES and value.kind in _RANGES:
        candidates = [*(DataType(kind) for kind in _RANGES), _ALL_INTEGERS]
        return next(wide for wide in candidates if holds(wide, column) and holds(wide, value))
    if _is_exact_number(column) and _is_exact_number(value):
        return _common_decimal(column, value)
    if column.kind is Kind.FLOAT32 and value.kind is Kind.FLOAT64:
        return value
    if column.kind is Kind.TEXT and (value.kind is Kind.TEXT or value.kind in _WRITTEN_AS_TEXT):
        return DataType(Kind.TEXT)
    if column.kind is value.kind and column.kind in _CLOCKS:
        return replace(column, precision=max(_second_digits(column), _second_digits(value)))
    return None


def is_text_of(column: DataType, value: DataType) -> bool:
    """Whether a text column takes such values as their text, which says everything about them."""
    written = value.kind in _PLAINLY_WRITTEN or value.kind in _WRITTEN_AS_TEXT
    return column.kind is Kind.TEXT and column.length is None and written


def _is_exact_number(kind: DataType) -> bool:
    return kind.kind is Kind.DECIMAL or kind.kind in _RANGES


def _holds_integer(column: DataType, needed: tuple[int, int]) -> bool:
    if column.kind is Kind.DECIMAL:
        if column.precision is None:
            return True
        largest = int(10 ** (column.precision - (column.scale or 0))) - 1
        return max(-needed[0], needed[1]) <= largest
    if column.kind not in _RANGES:
        return False
    lowest, highest = _RANGES[column.kind]
    return lowest <= needed[0] and needed[1] <= highest


def _holds_decimal(column: DataType, value: DataType) -> bool:
    if column.precision is None:
        return True
    if value.precision is None:
        return False
    scale, needed = column.scale or 0, value.scale or 0
    return scale >= needed and column.precision - scale >= value.precision - needed


def _common_decimal(column: DataType, value: DataType) -> DataType | None:
    parts = [_digits(column), _digits(value)]
    whole, scale = max(part[0] for part in parts), max(part[1] for part in parts)
    if whole + scale > _MOST_DIGITS:
        return None
    return DataType(Kind.DECIMAL, precision=whole + scale, scale=scale)


def _digits(number: DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if number.kind in _RANGES:
        return max(len(str(abs(end))) for end in _RANGES[number.kind]), 0
    scale = number.scale or 0
    return (number.precision or _MOST_DIGITS) - scale, scale


def _second_digits(clock: DataType) -> int:
    return 6 if clock.precision is None else clock.precision
