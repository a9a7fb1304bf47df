"""What a shard says of its files: one row of its index for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.archive import columns
from tidegate.archive.layout import Codec

INDEX = pa.schema(
    [
        pa.field("uid", pa.string(), nullable=False),
        pa.field("member", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("stored", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("sha256", pa.binary(32), nullable=False),
        pa.field("created_at", columns.MOMENT, nullable=False),
        pa.field("location", pa.binary(), nullable=False),
    ]
)
_COLUMNS: tuple[Callable[[Any], pa.Array], ...] = (
    columns.texts,
    columns.texts,
    *[columns.signed] * 3,
    columns.texts,
    columns.sums,
    columns.moments,
    columns.blobs,
)
"""What makes each of them from its values."""
INDEX_GROUP = 4_096
CODECS = {Codec.STORED: "stored", Codec.ZSTD: "zstd"}


class Origin(NamedTuple):
    """What the table says of a file: where it lies as bytes, since a path need not be text."""

    fingerprint: int
    uid: str
    created_at: datetime
    location: bytes


def index_rows(rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of the index, with their values in the order of its columns."""
    arrays = [make(values) for make, values in zip(_COLUMNS, zip(*rows, strict=True), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=INDEX)
