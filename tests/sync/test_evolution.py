"""What counts as a change of a table's columns, and which of them stop it."""

from __future__ import annotations

import pytest

from tidegate.core.strategies import WriteMode
from tidegate.core.types import DataType, Kind, Schema
from tidegate.sync.evolution import compare
from tidegate.testing.targets import schema_of

RENAMED = (
    "if c is a renamed: `tidegate columns map c a` before the sync that brings it lets it go on where the "
    "old one ended"
)
DECIMAL = DataType(Kind.DECIMAL, 9, 2)


def typed(kind: DataType | Kind, *key: str) -> Schema:
    return schema_of(*key, v=kind)


def test_columns_come_and_go() -> None:
    found = compare(schema_of(a=Kind.TEXT, b=Kind.INT32), schema_of(b=Kind.INT32, c=Kind.TEXT))
    assert found.words == (
        "column c (text) is new",
        "column a is gone: it stays at the target and gets no more values",
        RENAMED,
    )
    assert found.stops(WriteMode.MERGE) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DataType(Kind.INT32), DataType(Kind.INT64)),
        (DataType(Kind.INT32), DataType(Kind.DECIMAL, 12, 2)),
        (DECIMAL, DataType(Kind.DECIMAL, 12, 4)),
        (DataType(Kind.TEXT, length=10), DataType(Kind.TEXT, length=20)),
        (DataType(Kind.FLOAT32), DataType(Kind.FLOAT64)),
        (DataType(Kind.TIMESTAMP, 0), DataType(Kind.TIMESTAMP, 6)),
    ],
)
def test_wider_is_fine_and_narrower_stops(before: DataType, after: DataType) -> None:
    wider, narrower = compare(typed(before), typed(after)), compare(typed(after), typed(before))
    assert (len(wider.wider), wider.stops(WriteMode.APPEND)) == (1, ())
    assert "is narrower" in narrower.words[0]
    assert len(narrower.stops(WriteMode.APPEND)) == 1


@pytest.mark.parametrize("after", [Kind.TEXT, Kind.DATE, Kind.FLOAT64])
def test_another_kind_stops(after: Kind) -> None:
    [reason] = compare(typed(Kind.INT32), typed(after)).stops(WriteMode.APPEND)
    assert reason == f"column v (int32 before, {after} now) holds another kind of value"


def test_another_key_stops_a_merge_alone() -> None:
    found = compare(typed(Kind.INT32, "v"), typed(Kind.INT32))
    assert found.words == ("the key is none now, it was v",)
    assert found.stops(WriteMode.APPEND) == ()
    assert found.stops(WriteMode.MERGE) == ("rows were merged by v and would be by none",)
