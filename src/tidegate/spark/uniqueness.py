"""Whether any key comes twice among the rows of a run, looked up in its segments.

Tasks read the key's columns from staging and give digests of them to Spark, which counts: its memory is
bounded whatever the number of rows. A key that comes twice is always found; that two different keys share a
digest of 128 bits will not happen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.staging.contract import Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 65_536


def repeated_keys(
    session: SparkSession, staging: Staging, files: Sequence[str], key: Sequence[str], parallelism: int
) -> int:
    """How many keys more than one row of these files has."""
    partitions = min(parallelism, len(files))
    if not partitions:
        return 0
    numbers = session.range(0, partitions, 1, partitions)
    digests = numbers.mapInArrow(_task(staging, list(files), list(key), partitions), "a long, b long")
    return int(digests.groupBy("a", "b").count().where("count > 1").count())


def _task(
    staging: Staging, files: list[str], key: list[str], stride: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for first in batch.column(0).to_pylist():
                for name in files[first::stride]:
                    yield from _digests(staging, name, key)

    return run


def _digests(staging: Staging, file: str, key: list[str]) -> Iterator[pa.RecordBatch]:
    with staging.open(file) as opened, pq.ParquetFile(opened) as parquet:
        for batch in parquet.iter_batches(batch_size=_ROWS, columns=key):
            values = zip(*(_told_apart(batch.column(name)) for name in key), strict=True)
            found = [
                hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest()
                for row in values
            ]
            halves = [
                pa.array([int.from_bytes(digest[part], signed=True) for digest in found], pa.int64())
                for part in (slice(0, 8), slice(8, 16))
            ]
            yield pa.RecordBatch.from_arrays(halves, names=["a", "b"])


def _told_apart(values: pa.Array) -> list[Any]:
    """The values as anything that is equal where they are: of moments only Arrow knows all."""
    temporal = pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)
    numbers = pa.int32() if pa.types.is_date(values.type) else pa.int64()
    found: list[Any] = (values.cast(numbers) if temporal else values).to_pylist()
    return found
