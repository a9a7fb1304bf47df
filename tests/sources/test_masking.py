"""What is masked is masked whatever it holds."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from tidegate.arrow import arrow_schema
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
