"""What a shard says of its files: one row of its index for each."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

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
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("location", pa.binary(), nullable=False),
    ]
)
INDEX_GROUP = 4_096
CODECS = {Codec.STORED: "stored", Codec.ZSTD: "zstd"}


class Origin(NamedTuple):
    """What the table says of a file: where it lies as bytes, since a path need not be text."""

    uid: str
    created_at: datetime
    location: bytes
