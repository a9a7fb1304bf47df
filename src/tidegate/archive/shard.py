"""Reading files back from a shard. It is read through ranges of bytes, so that it may lie anywhere."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.archive import layout
from tidegate.archive.compressing import WHOLE, decompressed, pieces
from tidegate.archive.entries import CODECS, INDEX, INDEX_GROUP
from tidegate.archive.layout import Codec, Header
from tidegate.archive.naming import INDEX_MEMBER, fingerprint, member_name
from tidegate.core.errors import DamagedShard

_DRAINED = 1 << 20
Content = Iterator[bytes]
"""A file in pieces."""
_CHECKED = ("member", "offset", "stored", "size", "codec", "sha256")
"""Columns of the index that a member's header says, too."""


class Bytes(Protocol):
    """A shard where it lies: ranges of its bytes, and how many there are."""

    piece: int
    """How much is best read at a time: what fits into a core's cache, or what is worth a request."""

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
        self._ending_offset, self._ending = begin, ending
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

    def _checked_at_once(self, header: Header, reading: _Reading) -> bytes:
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
        found = self._index(INDEX.names)
        # Only the schema is another: `cast` would look at each column.
        return pa.Table.from_arrays(found.columns, schema=INDEX)

    def uids(self) -> list[str]:
        """Of all files, in the same order."""
        uids: list[str] = self._index(["uid"]).column(0).to_pylist()
        return uids

    def _index(self, names: list[str]) -> pa.Table:
        self.check_tail()
        header = len(layout.index_header(b""))
        data = self._read(self.guide.index_offset + header, self.guide.index_bytes)
        # `read_table` would make a dataset of it first, at twenty times the cost.
        with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
            return file.read(names, use_threads=False)

    def check_tail(self) -> None:
        """Raise `DamagedShard` unless index, directory and end records are what was written."""
        digest = hashlib.sha256()
        for piece in self._pieces(self.guide.index_offset, self._comment_offset):
            digest.update(piece)
        if digest.digest() != self.guide.tail_sha256:
            raise DamagedShard("its index or directory is damaged", where=self.where)

    def files(self) -> Iterator[tuple[str, Content]]:
        """Every file with its uid, read from the beginning to the end, and checked."""
        reading = _Reading(self._source, 0, self.guide.index_offset)
        for uid, _, _, content in self._walk(self.index(), reading):
            yield uid, content

    def verify(self) -> str:
        """Read all of it, check every file, and return the checksum of the shard.

        Whatever is not a file's content is made anew from what was read, and must be the same.
        """
        reading = _Reading(self._source, 0, self.guide.index_offset)
        directory = [
            layout.directory_record(header.name, header.stored, header.crc32, offset)
            for _, offset, header, _ in self._walk(self.index(), reading)
        ]
        self._verify_tail(directory)
        return self.guide.sha256

    def _walk(self, index: pa.Table, reading: _Reading) -> Iterator[tuple[str, int, Header, Content]]:
        """Every member: its uid, where it begins, its header, its content."""
        for batch in index.to_batches(max_chunksize=INDEX_GROUP):
            columns = [batch.column(name).to_pylist() for name in ("uid", *_CHECKED)]
            for uid, *told in zip(*columns, strict=True):
                offset = reading.place
                header = self._next_header(uid, told, reading)
                if header.size <= WHOLE:
                    yield uid, offset, header, iter((self._checked_at_once(header, reading),))
                    continue
                content = self._checked(header, reading)
                yield uid, offset, header, content
                for _ in content:
                    pass  # what nobody asked for is checked all the same
        if not reading.done or index.num_rows != self.guide.entries:
            raise DamagedShard("the index does not name all files of the shard", where=self.where)

    def _next_header(self, uid: str, told: list[Any], reading: _Reading) -> Header:
        """The header that comes next; the index must say the same of the file as its header does."""
        header = layout.read_header(reading.peek(layout.LONGEST_HEADER), self.where)
        name, codec, size, stored, _, sha256, _, length = header
        if told != [name, reading.place, stored, size, CODECS[codec], sha256]:
            raise self._damaged(header, "the index says something else of it")
        if name != member_name(uid, compressed=codec is Codec.ZSTD):
            raise self._damaged(header, "the index says something else of it")
        if reading.left < length + stored:
            raise self._damaged(header, "it reaches beyond the index")
        reading.skip(length)
        return header

    def _verify_tail(self, directory: list[bytes]) -> None:
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

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            piece = self._read(begin, min(self._source.piece, end - begin))
            if not piece:
                raise DamagedShard("the shard ends too early", where=self.where)
            yield piece
            begin += len(piece)

    def _read(self, offset: int, length: int) -> bytes:
        """As the source does; but the end of a shard has been read already, and of a small one it is most."""
        begin = offset - self._ending_offset
        return self._ending[begin : begin + length] if begin >= 0 else self._source.read(offset, length)


class _Reading:
    """A range of a shard, read from its beginning to its end in large pieces."""

    def __init__(self, source: Bytes, begin: int, end: int, *, head: bytes = b"") -> None:
        self._source = source
        self.place = begin
        self._end = end
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
            missing = max(wanted - len(self._data), min(self._source.piece, self.left - len(self._data)))
            more = self._source.read(self.place + len(self._data), missing)
            self._data += more
            if len(self._data) < wanted:
                raise DamagedShard("the shard ends too early", where=self._source.where)
        return self.at_hand(wanted)

    def take(self, length: int) -> bytes:
        data = self.peek(length)
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
        while self.read(_DRAINED):
            pass
        return self._crc32

    def close(self) -> None:
        """Arrow closes what it has read; what lies behind the file is still to be read."""
