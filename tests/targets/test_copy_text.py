"""The CSV that PostgreSQL's COPY reads. That it reads it exactly, the contract suite shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.targets.copy_text import clock_text, copy_text, moment_text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def written(values: list[object], kind: pa.DataType) -> bytes:
    return bytes(copy_text(pa.record_batch([pa.array(values, kind)], names=["v"])))


@given(st.datetimes(timezones=st.just(UTC)))
def test_moments_are_written_as_python_writes_them(moment: datetime) -> None:
    microseconds = (moment - EPOCH) // timedelta(microseconds=1)
    assert moment_text(microseconds, "+00") == moment.isoformat(sep=" ", timespec="microseconds")[:-6] + "+00"


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (-62_135_596_800_000_001, "0001-12-31 23:59:59.999999 BC"),
        (-62_167_219_200_000_000, "0001-01-01 00:00:00.000000 BC"),
        (-210_866_803_200_000_000, "4714-11-24 00:00:00.000000 BC"),
        (9_224_318_015_999_999_999, "294276-12-31 23:59:59.999999"),
    ],
)
def test_years_that_python_does_not_know_are_written_too(microseconds: int, text: str) -> None:
    assert moment_text(microseconds) == text


def test_a_day_may_end_at_midnight() -> None:
    assert clock_text(86_400_000_000) == "24:00:00.000000"


def test_null_and_empty_text_stay_apart() -> None:
    assert written(["", None, "x"], pa.string()) == b'""\n\n"x"\n'


def test_bytes_are_hexadecimal() -> None:
    assert written([b"\x00\xff", b"", None], pa.binary()) == b'"\\x00ff"\n"\\x"\n\n'


def test_a_short_float_keeps_its_exact_value() -> None:
    assert written([0.1], pa.float32()) == b"0.10000000149011612\n"
