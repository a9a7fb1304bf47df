"""What a target cannot hold is found while rows pass by."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from tidegate.core.errors import LossyValue
from tidegate.core.mappings import Documents, Limits
from tidegate.core.types import Column, DataType, Kind
from tidegate.sources.contract import Read
from tidegate.spark.limits import Limited

COLUMNS = (Column("id", DataType(Kind.INT64)), Column("c", DataType(Kind.TEXT)))
NO_NUL = Limits(nul=False)
VALID, PAIRED = Limits(documents=Documents.VALID), Limits(documents=Documents.PAIRED)


def batch(*values: object, kind: pa.DataType | None = None) -> pa.RecordBatch:
    ids = pa.array(range(len(values)), pa.int64())
    return pa.record_batch([ids, pa.array(values, kind or pa.string())], names=["id", "c"])


def limited(limits: Limits, *nulled: str, lost: Counter[str] | None = None) -> Limited:
    read = Read("t", COLUMNS, "1 = 1", ("id",), nulled=nulled)
    return Limited(read, {"c": limits}, Counter() if lost is None else lost)


@pytest.mark.parametrize(
    ("limits", "kind", "fine", "wrong"),
    [
        (NO_NUL, pa.string(), ["", "é😀", None], "a\0b"),
        (Limits(most_bytes=4), pa.string(), ["", "😀", None], "é😀"),
        (Limits(most_bytes=4), pa.binary(), [b"\0\0\0\0", None], b"12345"),
        (Limits(nul=False, most_bytes=3), pa.string(), ["abc", None], "\0"),
        (VALID, pa.string(), ['{"a": [-1, 1.5, 2e9]}', r'"\\d \ud800"', None], r'"\d"'),
        (VALID, pa.string(), ['"1. - 0e!"', r'"\ud83d"', None], "[1.]"),
        (VALID, pa.string(), ['"-"'], " - "),
        (VALID, pa.string(), ['"é"'], "[0e]"),
        (VALID, pa.string(), ['{"a": "b",\n "c\\n\\"":\t[]}', None], '{"a": 1, "b\n": 2}'),
        (PAIRED, pa.string(), [r'"\ud83d\ude00"', '"1. "', None], r'"\uD83D \ude00"'),
        (Limits(days=(-1, 1)), pa.date32(), [pa.scalar(1, pa.date32()).as_py(), None], None),
    ],
)
def test_what_fits_passes_untouched(
    limits: Limits, kind: pa.DataType, fine: list[object], wrong: object
) -> None:
    rows = batch(*fine, kind=kind)

    assert limited(limits).taken(rows) is rows
    if wrong is not None:
        lost: Counter[str] = Counter()
        taken = limited(limits, "c", lost=lost).taken(batch(*fine, wrong, wrong, kind=kind))
        assert taken.column("c").to_pylist() == [*fine, None, None]
        assert taken.schema.equals(rows.schema)
        assert lost == {"c": 2}


def test_days_beyond_the_last_do_not_fit() -> None:
    days = pa.array([0, 2, None, -2], pa.int32()).cast(pa.date32())
    rows = pa.record_batch([pa.array(range(4)), days], names=["id", "c"])
    lost: Counter[str] = Counter()

    taken = limited(Limits(days=(-1, 1)), "c", lost=lost).taken(rows)

    assert taken.column("c").null_count == 3
    assert lost == {"c": 2}


@pytest.mark.parametrize(
    ("limits", "value", "as_text"),
    [
        (Limits(days=(-1, 1)), pa.scalar(5_000_000, pa.int32()).cast(pa.date32()), True),
        (VALID, pa.scalar("[1.]"), True),
        (NO_NUL, pa.scalar("\0"), False),
        (Limits(most_bytes=1), pa.scalar(b"12"), False),
    ],
)
def test_text_is_offered_only_where_it_helps(limits: Limits, value: pa.Scalar, as_text: bool) -> None:  # noqa: FBT001
    rows = pa.record_batch([pa.array([7]), pa.repeat(value, 1)], names=["id", "c"])
    with pytest.raises(LossyValue, match="where id = 7") as error:
        limited(limits).taken(rows)
    assert ("`text` to carry" in str(error.value.hint)) is as_text


def test_where_null_is_not_allowed_the_row_is_named() -> None:
    with pytest.raises(LossyValue, match="column `c` holds 'x\\\\x00' where id = 1") as error:
        limited(NO_NUL).taken(batch("fine", "x\0"))

    assert "on_lossy: {c: null}" in str(error.value.hint)


def test_a_part_of_a_batch_is_judged_by_its_own_values() -> None:
    rows = batch("\0", "fine", None).slice(1)

    assert limited(NO_NUL).taken(rows).equals(rows)
