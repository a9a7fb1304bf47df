"""Shards in memory."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate.archive.entries import Origin
from tidegate.archive.naming import fingerprint
from tidegate.archive.writing import Packed, ShardWriter

MOMENT = datetime(2024, 11, 25, 8, 30, tzinfo=UTC)


@dataclass
class Memory:
    """A shard's bytes, and the reads it was asked for."""

    data: bytes
    where: str = "memory"
    piece: int = 4 << 20
    reads: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return self.data[offset : offset + length]

    def flipped(self, place: int, bit: int = 0) -> Memory:
        changed = bytearray(self.data)
        changed[place] ^= 1 << bit
        return Memory(bytes(changed))


def checksum_of(data: bytes) -> str:
    """Of a shard, as docs/reference/shard-format.md tells it: what the guide sums itself up to."""
    guide = base64.b64decode(data[data.rindex(b"tidegate-shard-1 ") + 17 :])
    assert guide[-32:] == hashlib.sha256(guide[:-32]).digest()
    return guide[-32:].hex()


def origin(uid: str) -> Origin:
    return Origin(fingerprint(uid), uid, MOMENT, b"/files/" + uid.encode())


def shard(files: Mapping[str, bytes], *, streamed: Iterable[str] = (), max_bytes: int = 1 << 30) -> Memory:
    file = io.BytesIO()
    writer = ShardWriter(file, max_bytes=max_bytes, level=3)
    for uid in sorted(files, key=fingerprint):
        if uid in streamed:
            content = files[uid]
            writer.add_stream(origin(uid), [content[at : at + 1000] for at in range(0, len(content), 1000)])
        else:
            writer.add(origin(uid), Packed.of(files[uid], 3))
    written = writer.finish()
    data = file.getvalue()
    assert written.bytes == len(data)
    return Memory(data)
