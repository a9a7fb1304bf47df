"""Writing a shard into an ordinary file, beside the place where it will lie.

What is compressed is decoded again, what is written is read back, and both are compared: nothing refers to a
shard before, and nobody has to go through it once more.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.archive import layout
from tidegate.archive.compressing import Compressor, compressed
from tidegate.archive.entries import CODECS, INDEX, INDEX_GROUP, Origin, index_rows
from tidegate.archive.layout import Codec, Fence, Guide, Member
from tidegate.archive.naming import INDEX_MEMBER, member_name
from tidegate.archive.proving import ProvenFile, prove_frame

SMALLEST_BLOCK = 256 << 10
_BLOCKS = 1_400
_TEXTS = ("uid", "member", "location")
_NUMBERS = ("offset", "stored", "size", "created_at")
"""In the index. Differences of them take less room than zstd would leave, and less time."""


class Packed(NamedTuple):
    """A file that fits in memory, and the form in which it will be stored."""

    codec: Codec
    content: bytes
    sha256: bytes
    data: bytes

    @classmethod
    def of(cls, content: bytes, level: int, sha256: bytes | None = None) -> Packed:
        """Its checksum may be known already."""
        codec, stored = compressed(content, level)
        return cls(codec, content, sha256 or hashlib.sha256(content).digest(), stored)


class Written(NamedTuple):
    """A shard that was written, as it was read back."""

    sha256: str
    bytes: int
    index: pa.Table


class ShardWriter:
    """A shard that is being written. Members come in the order of their fingerprints."""

    def __init__(self, file: BinaryIO, *, max_bytes: int, level: int) -> None:
        self._file = ProvenFile(file)
        self._level = level
        self._block = max(SMALLEST_BLOCK, -(-max_bytes // _BLOCKS))
        self._fences: list[Fence] = []
        self._block_began = 0
        self._last = -1
        self.length = 0
        """Of the members so far."""
        self.entries = 0
        self._rows: list[tuple[Any, ...]] = []
        """Of the index, as long as they are few."""
        self._gathered: list[pa.RecordBatch] = []
        self._listed: list[bytes] = []
        """The members as ZIP's directory lists them."""

    def add(self, origin: Origin, packed: Packed) -> None:
        codec, content, sha256, data = packed
        is_compressed = codec is Codec.ZSTD
        name = member_name(origin.uid, compressed=is_compressed)
        member = Member(name, codec, len(content), len(data), zlib.crc32(data), sha256)
        header = layout.local_header(member)
        self._fence(origin.fingerprint, len(header) + len(data))
        if is_compressed:
            prove_frame(data, content)
        self._file.append(header, data)
        self._entered(origin, member, len(header))

    def add_stream(self, origin: Origin, content: Iterable[bytes]) -> bytes:
        """Store a large file that comes in pieces, and return its SHA-256.

        If reading it fails, the shard is as it was before.
        """
        self._file.settle()
        try:
            return self._add_stream(origin, content)
        except BaseException:
            self._file.cut(self.length)
            raise

    def _add_stream(self, origin: Origin, content: Iterable[bytes]) -> bytes:
        remaining = iter(content)
        first = next(remaining, b"")
        compressor = Compressor(first, self._level)
        codec = compressor.codec
        name = member_name(origin.uid, compressed=codec is Codec.ZSTD)
        self._file.append(layout.local_header(Member(name, codec, 0, 0, 0, bytes(32), wide=True)))
        digest, size, stored, crc32 = hashlib.sha256(), 0, 0, 0
        for piece in _chained(first, remaining):
            data = compressor.stored(piece)
            if codec is Codec.ZSTD:
                prove_frame(data, piece)
            self._file.append(data)
            digest.update(piece)
            size, stored, crc32 = size + len(piece), stored + len(data), zlib.crc32(data, crc32)
        member = Member(name, codec, size, stored, crc32, digest.digest(), wide=True)
        header = layout.local_header(member)
        self._file.replace(self.length, header)
        self._fence(origin.fingerprint, len(header) + stored)
        self._entered(origin, member, len(header))
        return member.sha256

    def _fence(self, mark: int, length: int) -> None:
        """Begin a new block, unless this member still belongs to the last one. A large one has its own."""
        if mark < self._last:
            raise ValueError("members of a shard come in the order of their fingerprints")
        self._last = mark
        full = self.length - self._block_began >= self._block or length >= self._block
        if not self._fences or (full and len(self._fences) < layout.MOST_FENCES):
            self._fences.append(Fence(mark, self.length))
            self._block_began = self.length

    def _entered(self, origin: Origin, member: Member, header: int) -> None:
        codec = CODECS[member.codec]
        row = (member.name, self.length, member.stored, member.size, codec, member.sha256)
        self._rows.append((origin.uid, *row, origin.created_at, origin.location))
        if len(self._rows) == INDEX_GROUP:
            self._gather()
        self._listed.append(layout.directory_record(member.name, member.stored, member.crc32, self.length))
        self.entries += 1
        self.length += header + member.stored

    def _gather(self) -> None:
        """Rows as a batch take a tenth of the memory."""
        if self._rows:
            self._gathered.append(index_rows(self._rows))
            self._rows = []

    def finish(self) -> Written:
        """Write the index, the directory and the end."""
        self._gather()
        rows = pa.Table.from_batches(self._gathered, INDEX)
        index = _parquet(rows)
        index_header = layout.index_header(index)
        directory = self._directory(index)
        offset = self.length + len(index_header) + len(index)
        comment = layout.comment_bytes(len(self._fences))
        ending = layout.end_records(self.entries + 1, len(directory), offset, comment)
        tail = b"".join([index_header, index, directory, ending])
        guide = Guide(
            self.entries, self.length, len(index), hashlib.sha256(tail).digest(), tuple(self._fences)
        )
        self._file.append(tail)
        self._file.append(guide.comment())
        self._file.finish()
        return Written(guide.sha256, len(tail) + self.length + comment, rows)

    def _directory(self, index: bytes) -> bytes:
        last = layout.directory_record(INDEX_MEMBER, len(index), zlib.crc32(index), self.length)
        return b"".join([*self._listed, last])


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _parquet(table: pa.Table) -> bytes:
    """Without the schema that Arrow would add: any reader of Parquet is a reader of it."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression={name: "zstd" if name in _TEXTS else "none" for name in INDEX.names},
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        row_group_size=INDEX_GROUP,
        use_dictionary=["codec"],
        store_schema=False,
        version="2.6",
    )
    return sink.getvalue()
