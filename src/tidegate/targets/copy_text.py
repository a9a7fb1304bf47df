"""Record batches as the CSV that PostgreSQL's COPY reads, exactly.

A NULL is an unquoted nothing, a text is always quoted, so that NULL and the empty text stay apart. Arrow
writes the text; what it would write in a form that PostgreSQL does not read back to the same value is
put into words first.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_DAY = 86_400_000_000
_FIRST_DAY = -719_162  # 0001-01-01
_LAST_DAY = 2_932_896  # 9999-12-31
_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


def copy_text(batch: pa.RecordBatch) -> memoryview:
    arrays = [_readable(column) for column in batch.columns]
    out = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(arrays, names=batch.schema.names), out, _OPTIONS)
    return memoryview(out.getvalue())


def _readable(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind):
        return _in_words(column, lambda value: "\\x" + value.hex())
    if pa.types.is_float32(kind):
        return column.cast(pa.float64())  # its shortest text would be another number in a wider column
    if pa.types.is_timestamp(kind):
        suffix = "+00" if kind.tz else ""
        return _unless_within(
            column,
            pa.int64(),
            _FIRST_DAY * _DAY,
            (_LAST_DAY + 1) * _DAY - 1,
            lambda n: moment_text(n, suffix),
        )
    if pa.types.is_date(kind):
        return _unless_within(column, pa.int32(), _FIRST_DAY, _LAST_DAY, lambda n: _dated(n, ""))
    if pa.types.is_time(kind):
        return _unless_within(column, pa.int64(), 0, _DAY - 1, clock_text)
    return column


def _unless_within(
    column: pa.Array, storage: pa.DataType, low: int, high: int, word: Callable[[int], str]
) -> pa.Array:
    """Arrow's text is right for values from low to high; if there are others, write them all in words."""
    numbers = column.cast(storage)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["min"] >= low and ends["max"] <= high):
        return column
    return _in_words(numbers, word)


def _in_words(column: pa.Array, word: Callable[[pa.Scalar], str]) -> pa.Array:
    return pa.array([None if value is None else word(value) for value in column.to_pylist()], pa.string())


def moment_text(microseconds: int, suffix: str = "") -> str:
    """A timestamp of any year: those before the year 1 are counted backwards, as `BC`."""
    days, rest = divmod(microseconds, _DAY)
    return _dated(days, f" {clock_text(rest)}{suffix}")


def clock_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def _dated(days: int, rest: str) -> str:
    """The date that many days after 1970-01-01, in the Gregorian calendar extended both ways."""
    # Count in eras of 400 years that begin on a 1 March, so that a leap day is the last day of its year.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9  # noqa: PLR2004 - January and February end the year
    year = era * 400 + year_of_era + (month <= 2)  # noqa: PLR2004
    shown, mark = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown:04}-{month:02}-{day:02}{rest}{mark}"
