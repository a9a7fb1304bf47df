"""What is masked is masked whatever it holds."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.arrow import arrow_schema, arrow_type
from tidegate.core.strategies import Mask
from tidegate.core.types import Column, DataType, Kind
from tidegate.sources.masking import mask, masked_columns

DAY = (Column("day", DataType(Kind.DATE)),)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (
            Mask.HASH,
            [hashlib.sha256(b"1970-01-01").hexdigest(), hashlib.sha256(b"-0768-02-04").hexdigest(), None],
        ),
        (Mask.LAST4, ["***1-01", "***2-04", None]),
        (Mask.REDACT, ["***", "***", None]),
    ],
)
def test_a_day_that_no_calendar_of_python_has_is_masked_like_others(
    how: Mask, wanted: list[str | None]
) -> None:
    batch = pa.record_batch([pa.array([0, -1_000_000, None], pa.int32()).cast(pa.date32())], names=["day"])

    hidden = mask(batch, {"day": how}, arrow_schema(masked_columns(DAY, {"day": how})))

    assert hidden.column("day").to_pylist() == wanted


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (DataType(Kind.DECIMAL, 20, 10), Decimal("0.0000001234"), "***1234"),
        (DataType(Kind.BYTES), b"\x00\xab\xcd", "***abcd"),
        (DataType(Kind.INT64), -12345, "***2345"),
        (DataType(Kind.TEXT), "abc\0def", "***def"),
    ],
)
def test_the_last_four_are_those_that_people_write(kind: DataType, value: Any, wanted: str) -> None:
    columns = (Column("v", kind),)
    batch = pa.record_batch([pa.array([value], arrow_type(kind))], schema=arrow_schema(columns))

    hidden = mask(batch, {"v": Mask.LAST4}, arrow_schema(masked_columns(columns, {"v": Mask.LAST4})))

    assert hidden.column("v").to_pylist() == [wanted]
