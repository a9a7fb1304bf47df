"""Reading staged segments: exactly the declared columns and rows, a bounded part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.arrow import arrow_schema
from tidegate.core.errors import StagingError
from tidegate.targets.contract import StagedSegment

_BATCH_BYTES = 8 * 2**20
_MOST_ROWS = 8_192


def batches(staged: StagedSegment) -> Iterator[pa.RecordBatch]:
    """The segment's rows in the Arrow schema that its columns declare, under the target's names."""
    schema = arrow_schema(staged.schema.columns)
    with reading(staged), staged.open() as file, pq.ParquetFile(file) as parquet:
        _check(staged, parquet.metadata, parquet.schema_arrow)
        size = _batch_rows(parquet.metadata)
        stored = list(staged.stored)
        for batch in parquet.iter_batches(batch_size=size, columns=stored):
            yield batch.select(stored).rename_columns(schema.names).cast(schema)


def check(staged: StagedSegment) -> None:
    """Refuse a file that does not hold the columns and the number of rows its segment says."""
    with reading(staged), staged.open() as file, pq.ParquetFile(file) as parquet:
        _check(staged, parquet.metadata, parquet.schema_arrow)


@contextmanager
def reading(staged: StagedSegment) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise StagingError(
            f"a segment cannot be read: {error}",
            where=staged.segment.key,
            hint="restore the file, or read its rows again with `tidegate watermark rollback`",
        ) from error


def _check(staged: StagedSegment, metadata: pq.FileMetaData, found: pa.Schema) -> None:
    if metadata.num_rows != staged.segment.rows:
        problem = f"the file has {metadata.num_rows} rows, its receipt says {staged.segment.rows}"
        raise StagingError(problem, where=staged.segment.key)
    absent = set(staged.stored) - set(found.names)
    if absent:
        problem = f"the file lacks {', '.join(sorted(absent))}, which its schema declares"
        raise StagingError(problem, where=staged.segment.key)


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Wide rows come fewer at a time, so that memory stays flat."""
    groups = range(metadata.num_row_groups)
    size = sum(int(metadata.row_group(group).total_byte_size) for group in groups)
    row = max(1, size // max(1, int(metadata.num_rows)))
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // row))
