"""Segments as Parquet: written straight from Arrow, with nothing in them a warehouse could choke on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.arrow import arrow_type
from tidegate.config.settings import Compression
from tidegate.core.types import DataType, Kind

ROW_GROUP_ROWS = 200_000
ROW_GROUP_BYTES = 64 << 20
"""What is held in memory until it is written, whatever the width of the rows."""

_SAMPLE_ROWS = 4_096
_FEW = 0.3
"""The share of different values in a sample up to which a dictionary pays: about 1,300 values, or a few that
make up most."""


_UNKNOWN = (Kind.INT8, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)
_PLAIN = {arrow_type(DataType(kind)): arrow_type(DataType(kind), "redshift") for kind in _UNKNOWN}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same without unsigned integers and those of one byte, which not every warehouse reads."""
    return pa.schema([field.with_type(_PLAIN.get(field.type, field.type)) for field in schema])


def write_segment(
    file: BinaryIO, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *, compression: Compression
) -> int:
    """Write the batches and return how many rows there were.

    Every batch written by itself would be a row group of its own, so they are gathered first.
    """
    plain = schema.remove_metadata()
    rows = 0
    with ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        for group in _row_groups(plain, batches):
            writer = writer or opened.enter_context(_writer(file, plain, group, compression))
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
            del group  # or it would be held until the next one is complete
        if writer is None:
            opened.enter_context(_writer(file, plain, plain.empty_table(), compression))
    return rows


def _row_groups(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)  # which refuses a batch of any other schema
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held, schema)


def _writer(file: BinaryIO, schema: pa.Schema, first: pa.Table, compression: Compression) -> pq.ParquetWriter:
    """Pages of version 1, plain values and dictionaries: what every reader of Parquet knows.

    The smallest and largest text are not looked for: nobody skips rows by them, and it takes as long as to
    compress the text.
    """
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression.value,
        use_dictionary=_worth_a_dictionary(first),
        write_statistics=[field.name for field in schema if not _is_text(field)],
        version="2.6",  # keeps microseconds and unsigned integers what they are
        data_page_version="1.0",
        store_schema=False,
    )


def _worth_a_dictionary(table: pa.Table) -> list[str]:
    """Texts that repeat. For all else a dictionary is work for nothing: it grows, and is thrown away."""
    sample = table.slice(0, _SAMPLE_ROWS)
    most = sample.num_rows * _FEW
    texts = [field.name for field in sample.schema if _is_text(field)]
    return [name for name in texts if pc.count_distinct(sample.column(name)).as_py() <= most]


def _is_text(field: pa.Field) -> bool:
    return field.type in (pa.string(), pa.binary())
