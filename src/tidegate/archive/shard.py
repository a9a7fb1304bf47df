"""Writing a shard, and reading files back from one.

A shard is written into an ordinary file, beside the place where it will lie, and read back before anything
refers to it. It is read through ranges of bytes, so that it may lie anywhere.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.archive import layout
from tidegate.archive.compressing import WHOLE, Compressor, compressed, decompressed, pieces
from tidegate.archive.layout import Codec, Fence, Guide, Header, Member
from tidegate.archive.naming import INDEX_MEMBER, fingerprint, member_name
from tidegate.core.errors import DamagedShard

SMALLEST_BLOCK = 256 << 10
_BLOCKS = 1_400
_READ = 4 << 20
_INDEX_GROUP = 4_096

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
Content = Iterator[bytes] | Iterator[bytes | memoryview]
"""A file in pieces."""
_CODECS = {Codec.STORED: "stored", Codec.ZSTD: "zstd"}


@dataclass(frozen=True, slots=True)
class Origin:
    """What the table says of a file: where it lies as bytes, since a path need not be text."""

    uid: str
    created_at: datetime
    location: bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A file that fits in memory, in the form in which it will be stored."""

    codec: Codec
    size: int
    sha256: bytes
    data: bytes

    @classmethod
    def of(cls, data: bytes, level: int) -> Packed:
        codec, stored = compressed(data, level)
        return cls(codec, len(data), hashlib.sha256(data).digest(), stored)


# --- Writing ------------------------------------------------------------------------------------------


class ShardWriter:
    """A shard that is being written. Members come in the order of their fingerprints."""

    def __init__(self, file: BinaryIO, *, max_bytes: int, level: int) -> None:
        self._file = file
        self._level = level
        self._block = max(SMALLEST_BLOCK, -(-max_bytes // _BLOCKS))
        self._fences: list[Fence] = []
        self._block_began = 0
        self._last = -1
        self._offset = 0
        self._rows: dict[str, list[Any]] = {name: [] for name in INDEX.names}
        self._crcs: list[int] = []

    @property
    def length(self) -> int:
        """Of the members so far."""
        return self._offset

    @property
    def entries(self) -> int:
        return len(self._crcs)

    def add(self, origin: Origin, packed: Packed) -> None:
        member = Member(
            origin.uid,
            packed.codec,
            packed.size,
            len(packed.data),
            zlib.crc32(packed.data),
            packed.sha256,
        )
        header = layout.local_header(member)
        self._fence(origin.uid, len(header) + len(packed.data))
        self._file.write(header)
        self._file.write(packed.data)
        self._entered(origin, member, len(header))

    def add_stream(self, origin: Origin, content: Iterable[bytes]) -> bytes:
        """Store a large file that comes in pieces, and return its SHA-256.

        If reading it fails, the shard is as it was before.
        """
        try:
            return self._add_stream(origin, content)
        except BaseException:
            self._file.seek(self._offset)
            self._file.truncate()
            raise

    def _add_stream(self, origin: Origin, content: Iterable[bytes]) -> bytes:
        remaining = iter(content)
        first = next(remaining, b"")
        stored = _Stored(self._file)
        compressor = Compressor(first, self._level)
        blank = Member(origin.uid, compressor.codec, 0, 0, 0, bytes(32), wide=True)
        self._file.write(layout.local_header(blank))
        digest, size = hashlib.sha256(), 0
        for piece in _chained(first, remaining):
            digest.update(piece)
            size += len(piece)
            stored.write(compressor.stored(piece))
        member = Member(
            origin.uid, compressor.codec, size, stored.bytes, stored.crc32, digest.digest(), wide=True
        )
        header = layout.local_header(member)
        self._file.seek(self._offset)
        self._file.write(header)
        self._file.seek(0, io.SEEK_END)
        self._fence(origin.uid, len(header) + stored.bytes)
        self._entered(origin, member, len(header))
        return member.sha256

    def _fence(self, uid: str, length: int) -> None:
        """Begin a new block, unless this member still belongs to the last one. A large one has its own."""
        mark = fingerprint(uid)
        if mark < self._last:
            raise ValueError("members of a shard come in the order of their fingerprints")
        self._last = mark
        full = self._offset - self._block_began >= self._block or length >= self._block
        if not self._fences or (full and len(self._fences) < layout.MOST_FENCES):
            self._fences.append(Fence(mark, self._offset))
            self._block_began = self._offset

    def _entered(self, origin: Origin, member: Member, header: int) -> None:
        row = (
            origin.uid,
            member.name,
            self._offset,
            member.stored,
            member.size,
            _CODECS[member.codec],
            member.sha256,
            origin.created_at,
            origin.location,
        )
        for column, value in zip(self._rows.values(), row, strict=True):
            column.append(value)
        self._crcs.append(member.crc32)
        self._offset += header + member.stored

    def finish(self) -> None:
        """Write the index, the directory and the end."""
        index = _parquet(pa.table(self._rows, schema=INDEX))
        index_header = layout.index_header(index)
        directory = self._directory(index)
        offset = self._offset + len(index_header) + len(index)
        comment = layout.comment_bytes(len(self._fences))
        ending = layout.end_records(self.entries + 1, len(directory), offset, comment)
        tail = b"".join([index_header, index, directory, ending])
        guide = Guide(
            self.entries, self._offset, len(index), hashlib.sha256(tail).digest(), tuple(self._fences)
        )
        self._file.write(tail)
        self._file.write(guide.comment())

    def _directory(self, index: bytes) -> bytes:
        rows = zip(self._rows["member"], self._rows["stored"], self._crcs, self._rows["offset"], strict=True)
        last = layout.directory_record(INDEX_MEMBER, len(index), zlib.crc32(index), self._offset)
        return b"".join([*(layout.directory_record(*row) for row in rows), last])


class _Stored:
    """Counts and sums up what a stream stores."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0
        self.crc32 = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _parquet(table: pa.Table) -> bytes:
    """Without the schema that Arrow would add: any reader of Parquet is a reader of it."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        row_group_size=_INDEX_GROUP,
        use_dictionary=["codec"],
        store_schema=False,
        version="2.6",
    )
    return sink.getvalue()


# --- Reading ------------------------------------------------------------------------------------------


class Bytes(Protocol):
    """A shard where it lies: ranges of its bytes, and how many there are."""

    @property
    def where(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """As many bytes as there are, at most `length`."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A member that was found in a shard: its header, and the range of its bytes."""

    header: Header
    offset: int
    head: bytes
    """What was already read of it."""


class Shard:
    """A finished shard. Finding a file takes one read of the end, and one of the block it lies in."""

    def __init__(self, source: Bytes) -> None:
        self._source = source
        self.where = source.where
        size = source.size
        begin = max(0, size - layout.ENDING_BYTES)
        ending = source.read(begin, size - begin)
        if len(ending) != size - begin:
            raise DamagedShard("the shard ends too early", where=self.where)
        self.guide, comment = layout.read_guide(ending, self.where)
        self._comment_offset = size - comment
        if self.guide.index_offset + self.guide.index_bytes > self._comment_offset:
            raise DamagedShard("the end of the shard points behind it", where=self.where)

    def find(self, uid: str) -> Found | None:
        """The member of a uid, or nothing."""
        block = self.guide.blocks(fingerprint(uid))
        if block is None:
            return None
        names = {member_name(uid, compressed=flag): flag for flag in (False, True)}
        reading = _Reading(self._source, *block)
        while not reading.done:
            header = layout.read_header(reading.peek(layout.LONGEST_HEADER), self.where)
            if reading.left < header.length + header.stored:
                raise self._damaged(header, "it reaches beyond its block")
            reading.skip(header.length)
            if names.get(header.name) is (header.codec is Codec.ZSTD):
                return Found(header, reading.place, reading.at_hand(header.stored))
            reading.skip(header.stored)
        return None

    def content(self, found: Found) -> Iterator[bytes]:
        """The file, in pieces. Raises `DamagedShard` at the end if it is not what was packed."""
        end = found.offset + found.header.stored
        reading = _Reading(self._source, found.offset, end, head=found.head)
        return self._checked(found.header, reading)

    def _checked(self, header: Header, reading: _Reading) -> Iterator[bytes]:
        """The file that comes next in a reading. It is over once its checksums were found to fit."""
        stored = _Taken(reading, header.stored)
        digest, size = hashlib.sha256(), 0
        try:
            for piece in pieces(header.codec, pa.PythonFile(stored, mode="r"), header.size):
                digest.update(piece)
                size += len(piece)
                yield piece
        except OSError as error:
            raise self._damaged(header, str(error)) from error
        if (digest.digest(), size, stored.drained()) != (header.sha256, header.size, header.crc32):
            raise self._damaged(header, "its checksum does not fit")

    def _checked_at_once(self, header: Header, reading: _Reading) -> bytes | memoryview:
        """The same for a small file, without the cost of a stream."""
        stored = reading.take(header.stored)
        try:
            data = decompressed(header.codec, stored, header.size)
        except OSError as error:
            raise self._damaged(header, str(error)) from error
        if (hashlib.sha256(data).digest(), len(data)) != (header.sha256, header.size):
            raise self._damaged(header, "its checksum does not fit")
        if zlib.crc32(stored) != header.crc32:
            raise self._damaged(header, "the checksum in its header does not fit")
        return data

    def _damaged(self, header: Header, problem: str) -> DamagedShard:
        return DamagedShard(f"`{header.name}` is damaged: {problem}", where=self.where)

    # --- The whole of it

    def index(self) -> pa.Table:
        """One row for each file, in the order in which they lie in the shard."""
        self.check_tail()
        header = len(layout.index_header(b""))
        data = self._source.read(self.guide.index_offset + header, self.guide.index_bytes)
        return pq.read_table(pa.BufferReader(data), schema=INDEX)

    def check_tail(self) -> None:
        """Raise `DamagedShard` unless index, directory and end records are what was written."""
        digest = hashlib.sha256()
        for piece in self._pieces(self.guide.index_offset, self._comment_offset):
            digest.update(piece)
        if digest.digest() != self.guide.tail_sha256:
            raise DamagedShard("its index or directory is damaged", where=self.where)

    def files(self) -> Iterator[tuple[dict[str, Any], Content]]:
        """Every file with its row of the index, read from the beginning to the end, and checked."""
        for row, _, content in self._walk(self.index(), None):
            yield row, content

    def verify(self) -> str:
        """Read all of it, check every file, and return the SHA-256 of the shard.

        Whatever is not a file's content is made anew from what was read, and must be the same.
        """
        digest = hashlib.sha256()
        directory = [
            layout.directory_record(header.name, header.stored, header.crc32, row["offset"])
            for row, header, _ in self._walk(self.index(), digest)
        ]
        self._verify_tail(directory, digest)
        return digest.hexdigest()

    def _walk(self, index: pa.Table, digest: Any) -> Iterator[tuple[dict[str, Any], Header, Content]]:
        reading = _Reading(self._source, 0, self.guide.index_offset, digest=digest)
        for batch in index.to_batches(max_chunksize=_INDEX_GROUP):
            for row in batch.to_pylist():
                header = self._next_header(row, reading)
                if header.size <= WHOLE:
                    yield row, header, iter([self._checked_at_once(header, reading)])
                    continue
                content: Content = self._checked(header, reading)
                yield row, header, content
                for _ in content:
                    pass  # what nobody asked for is checked all the same
        if not reading.done or index.num_rows != self.guide.entries:
            raise DamagedShard("the index does not name all files of the shard", where=self.where)

    def _next_header(self, row: dict[str, Any], reading: _Reading) -> Header:
        """The header that comes next; the index must say the same of the file as its header does."""
        begin = reading.place
        header = layout.read_header(reading.peek(layout.LONGEST_HEADER), self.where)
        told = (row["member"], row["stored"], row["size"], row["codec"], row["sha256"], row["offset"])
        read = (header.name, header.stored, header.size, _CODECS[header.codec], header.sha256, begin)
        if told != read or header.name != member_name(row["uid"], compressed=header.codec is Codec.ZSTD):
            raise self._damaged(header, "the index says something else of it")
        if reading.left < header.length + header.stored:
            raise self._damaged(header, "it reaches beyond the index")
        reading.take(header.length)
        return header

    def _verify_tail(self, directory: list[bytes], digest: Any) -> None:
        guide = self.guide
        tail = b"".join(self._pieces(guide.index_offset, self._source.size))
        data = tail[len(layout.index_header(b"")) :][: guide.index_bytes]
        index = layout.index_header(data)
        offset = guide.index_offset
        directory.append(layout.directory_record(INDEX_MEMBER, len(data), zlib.crc32(data), offset))
        listed = b"".join(directory)
        comment = guide.comment()
        where = offset + len(index) + len(data)
        ending = layout.end_records(guide.entries + 1, len(listed), where, len(comment))
        if b"".join([index, data, listed, ending, comment]) != tail:
            raise DamagedShard("its directory is not that of its files", where=self.where)
        digest.update(tail)

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            piece = self._source.read(begin, min(_READ, end - begin))
            if not piece:
                raise DamagedShard("the shard ends too early", where=self.where)
            yield piece
            begin += len(piece)


class _Reading:
    """A range of a shard, read from its beginning to its end in large pieces."""

    def __init__(self, source: Bytes, begin: int, end: int, *, digest: Any = None, head: bytes = b"") -> None:
        self._source = source
        self.place = begin
        self._end = end
        self._digest = digest
        self._data = head
        self._at = 0
        """Where in `_data` the place is."""

    @property
    def left(self) -> int:
        return self._end - self.place

    @property
    def done(self) -> bool:
        return self.place >= self._end

    def at_hand(self, length: int) -> bytes:
        """What comes next, as far as it was already read."""
        return self._data[self._at : self._at + length]

    def peek(self, length: int) -> bytes:
        """What comes next, without going on: fewer bytes at the end."""
        wanted = min(length, self.left)
        if len(self._data) - self._at < wanted:
            self._data = self._data[self._at :]
            self._at = 0
            missing = max(wanted - len(self._data), min(_READ, self.left - len(self._data)))
            self._data += self._source.read(self.place + len(self._data), missing)
            if len(self._data) < wanted:
                raise DamagedShard("the shard ends too early", where=self._source.where)
        return self.at_hand(wanted)

    def take(self, length: int) -> bytes:
        data = self.peek(length)
        if self._digest is not None:
            self._digest.update(data)
        self.skip(len(data))
        return data

    def skip(self, length: int) -> None:
        self.place += length
        if self._at + length <= len(self._data):
            self._at += length
        else:
            self._data, self._at = b"", 0


class _Taken:
    """The next bytes of a reading as a file, with the checksum of what passes."""

    closed = False

    def __init__(self, reading: _Reading, length: int) -> None:
        self._reading = reading
        self._left = length
        self._crc32 = 0

    def read(self, size: int) -> bytes:
        data = self._reading.take(min(size, self._left))
        self._left -= len(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        return data

    def drained(self) -> int:
        """The checksum of all of it, with what a decompressor had no need of."""
        while self.read(_READ):
            pass
        return self._crc32

    def close(self) -> None:
        """Arrow closes what it has read; what lies behind the file is still to be read."""
