"""Reading staged segments: exactly the declared columns and rows, a bounded part at a time.

A segment that is no local file is downloaded first. Wherever it lay, it must be what its receipt says to the
last bit: between extraction and load there can be days.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.arrow import arrow_schema
from tidegate.core.errors import StagingError
from tidegate.targets.contract import StagedSegment

_BATCH_BYTES = 8 * 2**20
_MOST_ROWS = 8_192

DOWNLOADED_BYTES = 256 * 2**20
"""What is on the local disk at a time; a larger segment is there alone."""
_DOWNLOADS_AT_ONCE = 8
_PIECE = 8 * 2**20


def at_hand(staged: Sequence[StagedSegment]) -> Iterator[list[StagedSegment]]:
    """The segments in their order, as local files: as many at a time as may be on the local disk."""
    for portion in _portions(staged):
        if all(item.path is not None for item in portion):
            for item in portion:
                _demand_as_written(item)
            yield portion
            continue
        with TemporaryDirectory(prefix="tidegate-segments-") as folder:
            paths = [Path(folder) / f"{number}.parquet" for number in range(len(portion))]
            with ThreadPoolExecutor(min(_DOWNLOADS_AT_ONCE, len(portion)), "download") as pool:
                yield list(pool.map(_downloaded, portion, paths))


def _portions(staged: Sequence[StagedSegment]) -> Iterator[list[StagedSegment]]:
    portion: list[StagedSegment] = []
    size = 0
    for item in staged:
        wanted = item.segment.bytes if item.path is None else 0
        if portion and size + wanted > DOWNLOADED_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += wanted
    if portion:
        yield portion


def _downloaded(staged: StagedSegment, path: Path) -> StagedSegment:
    """The segment as a local file: its own, or a copy."""
    if staged.path is not None:
        _demand_as_written(staged)
        return staged
    digest = hashlib.sha256()
    with reading(staged), staged.open() as file, path.open("wb") as copy:
        while piece := file.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
    _demand_digest(staged, digest.hexdigest())
    return replace(staged, path=path, open=partial(pa.OSFile, str(path)))


def _demand_as_written(staged: StagedSegment) -> None:
    with reading(staged), staged.open() as file:
        _demand_digest(staged, hashlib.file_digest(file, "sha256").hexdigest())


def _demand_digest(staged: StagedSegment, digest: str) -> None:
    if digest != staged.segment.checksum:
        raise StagingError(
            "a segment is not what was written: its digest differs from its receipt's",
            where=staged.segment.key,
            hint="restore the file, or read its rows again with `tidegate watermark rollback`",
        )


def batches(staged: StagedSegment) -> Iterator[pa.RecordBatch]:
    """The segment's rows in the Arrow schema that its columns declare, under the target's names."""
    schema = arrow_schema(staged.schema.columns)
    with reading(staged), staged.open() as file, pq.ParquetFile(file) as parquet:
        _check(staged, parquet.metadata, parquet.schema_arrow)
        size = _batch_rows(parquet.metadata)
        stored = list(staged.stored)
        for batch in parquet.iter_batches(batch_size=size, columns=stored):
            yield batch.select(stored).rename_columns(schema.names).cast(schema)


def check(staged: StagedSegment) -> pq.FileMetaData:
    """Refuse a file that does not hold the columns and the number of rows its segment says.

    Returns what it says of itself.
    """
    with reading(staged), staged.open() as file, pq.ParquetFile(file) as parquet:
        _check(staged, parquet.metadata, parquet.schema_arrow)
        return parquet.metadata


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
