"""What a column can hold, and what it would have to become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.types import DataType, Kind
from tidegate.targets.fitting import holds, widened

_decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: DataType(Kind.DECIMAL, precision, scale))
)
_types = st.one_of(
    st.sampled_from([DataType(kind) for kind in Kind if kind is not Kind.DECIMAL]),
    _decimals,
    st.integers(1, 100).map(lambda length: DataType(Kind.TEXT, length=length)),
    st.builds(
        DataType, st.sampled_from([Kind.TIME, Kind.TIMESTAMP, Kind.INSTANT]), precision=st.integers(0, 6)
    ),
)


@given(_types)
def test_a_column_holds_its_own_type(kind: DataType) -> None:
    assert holds(kind, kind)


@given(_types, _types)
def test_a_widened_column_holds_what_it_had_and_what_comes(column: DataType, value: DataType) -> None:
    wide = widened(column, value)
    if wide is not None:
        assert holds(wide, column)
        assert holds(wide, value)


@given(_types, _types, _types)
def test_holding_goes_through(first: DataType, second: DataType, third: DataType) -> None:
    if holds(first, second) and holds(second, third):
        assert holds(first, third)


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        (DataType(Kind.INT64), DataType(Kind.UINT32), True),
        (DataType(Kind.INT32), DataType(Kind.UINT32), False),
        (DataType(Kind.DECIMAL, 20, 0), DataType(Kind.UINT64), True),
        (DataType(Kind.DECIMAL, 19, 0), DataType(Kind.UINT64), False),
        (DataType(Kind.DECIMAL), DataType(Kind.DECIMAL, 38, 38), True),
        (DataType(Kind.DECIMAL, 10, 4), DataType(Kind.DECIMAL, 9, 2), False),
        (DataType(Kind.FLOAT64), DataType(Kind.INT32), False),
        (DataType(Kind.TEXT), DataType(Kind.JSON), True),
        (DataType(Kind.TEXT, length=100), DataType(Kind.UUID), False),
        (DataType(Kind.JSON), DataType(Kind.TEXT), False),
        (DataType(Kind.TIMESTAMP), DataType(Kind.DATE), False),
    ],
)
def test_what_fits_where(column: DataType, value: DataType, fits: bool) -> None:  # noqa: FBT001
    assert holds(column, value) is fits


@pytest.mark.parametrize(
    ("column", "value", "wide"),
    [
        (DataType(Kind.INT8), DataType(Kind.UINT8), DataType(Kind.INT16)),
        (DataType(Kind.INT64), DataType(Kind.UINT64), DataType(Kind.DECIMAL, 20, 0)),
        (DataType(Kind.DECIMAL, 38, 10), DataType(Kind.DECIMAL, 38, 0), None),
        (DataType(Kind.DECIMAL, 10, 4), DataType(Kind.DECIMAL, 12, 2), DataType(Kind.DECIMAL, 14, 4)),
        (DataType(Kind.FLOAT64), DataType(Kind.FLOAT32), None),
        (DataType(Kind.TEXT), DataType(Kind.INT32), None),
        (DataType(Kind.INT32), DataType(Kind.DECIMAL, 5, 2), DataType(Kind.DECIMAL, 12, 2)),
    ],
)
def test_what_a_column_would_become(column: DataType, value: DataType, wide: DataType | None) -> None:
    assert widened(column, value) == wide
