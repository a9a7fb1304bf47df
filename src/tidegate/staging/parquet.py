"""Segments as Parquet: written straight from Arrow, with nothing in them a warehouse could choke on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.config.settings import Compression


def write_segment(
    file: BinaryIO, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *, compression: Compression
) -> int:
    """Write the batches and return how many rows there were."""
    plain = schema.remove_metadata()
    rows = 0
    with pq.ParquetWriter(
        file, plain, compression=compression.value, store_schema=False, use_deprecated_int96_timestamps=False
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
