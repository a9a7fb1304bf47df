"""Columns of Arrow from Python's values, by their buffers.

`pa.array` and `pa.scalar` would import pandas first, if only to see that no value is one of its own: a
quarter of a second of CPU in every process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
MOMENT = pa.timestamp("us", tz="UTC")


def unsigned(values: Iterable[int]) -> pa.Array:
    return _fixed(pa.uint64(), array("Q", values))


def signed(values: Iterable[int]) -> pa.Array:
    return _fixed(pa.int64(), array("q", values))


def moments(values: Iterable[datetime]) -> pa.Array:
    return _fixed(MOMENT, array("q", [(moment - _EPOCH) // _MICROSECOND for moment in values]))


def texts(values: Iterable[str]) -> pa.Array:
    return _varying(pa.string(), [text.encode() for text in values])


def blobs(values: Sequence[bytes]) -> pa.Array:
    return _varying(pa.binary(), values)


def sums(values: Sequence[bytes]) -> pa.Array:
    """Checksums, all of one length."""
    return pa.Array.from_buffers(pa.binary(32), len(values), [None, pa.py_buffer(b"".join(values))])


def datetimes(column: pa.Array) -> list[datetime]:
    """What `to_pylist` would give of moments, in an eighth of the time."""
    return [_EPOCH + timedelta(microseconds=number) for number in column.view(pa.int64()).to_pylist()]


def _fixed(kind: pa.DataType, data: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _varying(kind: pa.DataType, values: Sequence[bytes]) -> pa.Array:
    ends = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)
