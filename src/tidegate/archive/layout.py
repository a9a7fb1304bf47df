"""A shard, byte by byte: a ZIP archive whose every byte follows from its entries.

    members      in the order of their fingerprints, each as a zstd stream or as it was
    index        the last member, `_index.parquet`: one row for each member
    directory    ZIP's own list of the members
    ending       ZIP's end records, and in their comment the *guide*: how to find a member in one step

Nothing here reads or writes. docs/reference/shard-format.md says the same in tables.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidegate.archive.naming import INDEX_MEMBER
from tidegate.core.errors import DamagedShard

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_EXTRA = struct.Struct("<HHBQ32s")
_SIZES64 = struct.Struct("<HHQQ")
_GUIDE = struct.Struct(">QQQ32sI")
_FENCE = struct.Struct(">QQ")

_LOCAL_SIGN, _CENTRAL_SIGN, _END_SIGN = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64_SIGN, _LOCATOR64_SIGN = b"PK\x06\x06", b"PK\x06\x07"
_VERSION = 45
_MADE_BY = (3 << 8) | _VERSION
_MIDNIGHT_1980 = 0x0021
_REGULAR_FILE = 0o100644 << 16
_ZIP64, _OURS = 0x0001, 0x4754
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_SHA256_BYTES = 32

LOCAL_BYTES = _LOCAL.size
LONGEST_HEADER = _LOCAL.size + 256 + _SIZES64.size + _EXTRA.size
_GUIDE_MAGIC = b"tidegate-shard-1 "
_LONGEST_COMMENT = _U16
ENDING_BYTES = _LONGEST_COMMENT + _END.size + _LOCATOR64.size + _END64.size
"""The most that can stand behind the directory: reading so much of the end always finds the guide."""
MOST_FENCES = 3_000


class Codec(IntEnum):
    STORED = 0
    ZSTD = 1


class Member(NamedTuple):
    """What a member's header says of it. A tuple, because there is one for every file there is."""

    name: str
    codec: Codec
    size: int
    """Of the file, as it was."""
    stored: int
    """Of the bytes in the shard."""
    crc32: int
    """Of the bytes in the shard."""
    sha256: bytes
    """Of the file, as it was."""
    wide: bool = False
    """Whether the sizes stand in 64 bits; always so for members that were written as a stream."""


class Header(NamedTuple):
    """A member's header as it stands in a shard, where the uid is only known by its name."""

    name: str
    codec: Codec
    size: int
    stored: int
    crc32: int
    sha256: bytes
    wide: bool
    length: int
    """Of the header itself."""


def local_header(member: Member) -> bytes:
    return _local(member.name, member.stored, member.crc32, _own(member), wide=member.wide)


def index_header(data: bytes) -> bytes:
    return _local(INDEX_MEMBER, len(data), binascii.crc32(data), b"", wide=False)


def _own(member: Member) -> bytes:
    return _EXTRA.pack(_OURS, _EXTRA.size - 4, member.codec, member.size, member.sha256)


def _local(name: str, stored: int, crc32: int, own: bytes, *, wide: bool) -> bytes:
    encoded = name.encode("ascii")
    shown = _U32 if wide else stored
    sizes = _SIZES64.pack(_ZIP64, _SIZES64.size - 4, stored, stored) if wide else b""
    fixed = _LOCAL.pack(
        _LOCAL_SIGN,
        _VERSION,
        0,
        0,
        0,
        _MIDNIGHT_1980,
        crc32,
        shown,
        shown,
        len(encoded),
        len(sizes) + len(own),
    )
    return fixed + encoded + sizes + own


def read_header(data: bytes, where: str) -> Header:
    """The header that begins at the start of `data`. Every byte of it must be as it was written."""
    try:
        return _read_header(data)
    except (struct.error, ValueError, IndexError) as error:
        raise DamagedShard(f"a member's header is damaged: {error}", where=where) from error


def _read_header(data: bytes) -> Header:
    *_, crc32, shown, _, name_bytes, extra_bytes = _LOCAL.unpack_from(data)
    wide = extra_bytes == _SIZES64.size + _EXTRA.size
    place = _LOCAL.size + name_bytes
    name = data[_LOCAL.size : place].decode("ascii")
    stored = _SIZES64.unpack_from(data, place)[2] if wide else shown
    *_, codec, size, sha256 = _EXTRA.unpack_from(data, place + (_SIZES64.size if wide else 0))
    length = _LOCAL.size + name_bytes + extra_bytes
    own = _EXTRA.pack(_OURS, _EXTRA.size - 4, codec, size, sha256)
    if _local(name, stored, crc32, own, wide=wide) != data[:length]:
        raise ValueError("it is not what Tidegate writes")
    return Header(name, Codec(codec), size, stored, crc32, sha256, wide, length)


# --- The directory and the ending ---------------------------------------------------------------------


def directory_record(name: str, stored: int, crc32: int, offset: int) -> bytes:
    """A member in ZIP's directory. What does not fit into 32 bits stands behind the name."""
    encoded = name.encode("ascii")
    large = [stored, stored] if stored >= _U32 else []
    large += [offset] if offset >= _U32 else []
    extra = struct.pack(f"<HH{len(large)}Q", _ZIP64, 8 * len(large), *large) if large else b""
    shown = min(stored, _U32)
    fixed = _CENTRAL.pack(
        _CENTRAL_SIGN,
        _MADE_BY,
        _VERSION,
        0,
        0,
        0,
        _MIDNIGHT_1980,
        crc32,
        shown,
        shown,
        len(encoded),
        len(extra),
        0,
        0,
        0,
        _REGULAR_FILE,
        min(offset, _U32),
    )
    return fixed + encoded + extra


def end_records(members: int, directory: int, directory_offset: int, comment: int) -> bytes:
    """ZIP's end: with 64 bits in front where a number needs them."""
    wide = members >= _U16 or directory >= _U32 or directory_offset >= _U32
    parts = []
    if wide:
        parts.append(
            _END64.pack(
                _END64_SIGN,
                _END64.size - 12,
                _MADE_BY,
                _VERSION,
                0,
                0,
                members,
                members,
                directory,
                directory_offset,
            )
        )
        parts.append(_LOCATOR64.pack(_LOCATOR64_SIGN, 0, directory_offset + directory, 1))
    shown = min(members, _U16)
    parts.append(
        _END.pack(_END_SIGN, 0, 0, shown, shown, min(directory, _U32), min(directory_offset, _U32), comment)
    )
    return b"".join(parts)


# --- The guide ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a block of members begins, and the fingerprint of its first one."""

    fingerprint: int
    offset: int


@dataclass(frozen=True, slots=True)
class Guide:
    """What stands in the comment: with it, a member is found by reading one block."""

    entries: int
    index_offset: int
    """Of the index member's header."""
    index_bytes: int
    """Of its content alone."""
    tail_sha256: bytes
    """Of everything from the index member to the comment."""
    fences: tuple[Fence, ...]

    def blocks(self, fingerprint: int) -> tuple[int, int] | None:
        """The range of bytes in which a member with this fingerprint lies, if there is one."""
        starts = [fence.fingerprint for fence in self.fences]
        first = max(0, bisect_left(starts, fingerprint) - 1)
        last = bisect_right(starts, fingerprint)
        if last == 0:
            return None
        end = self.fences[last].offset if last < len(self.fences) else self.index_offset
        return self.fences[first].offset, end

    @property
    def sha256(self) -> str:
        """The shard's own checksum. It is over that of the tail, which holds the checksum of every file."""
        return hashlib.sha256(self._body()).hexdigest()

    def comment(self) -> bytes:
        body = self._body()
        return _GUIDE_MAGIC + base64.b64encode(body + hashlib.sha256(body).digest())

    def _body(self) -> bytes:
        fences = b"".join(_FENCE.pack(fence.fingerprint, fence.offset) for fence in self.fences)
        fixed = _GUIDE.pack(
            self.entries, self.index_offset, self.index_bytes, self.tail_sha256, len(self.fences)
        )
        return fixed + fences


def comment_bytes(fences: int) -> int:
    """How long the comment of a guide with so many fences is: known before the guide is."""
    payload = _GUIDE.size + fences * _FENCE.size + _SHA256_BYTES
    return len(_GUIDE_MAGIC) + 4 * -(-payload // 3)


def read_guide(ending: bytes, where: str) -> tuple[Guide, int]:
    """The guide from the last bytes of a shard, and how long the comment is that holds it."""
    begin = ending.rfind(_GUIDE_MAGIC)
    comment = ending[begin:] if begin >= 0 else b""
    try:
        guide = _decoded(comment[len(_GUIDE_MAGIC) :])
    except (ValueError, struct.error) as error:
        raise DamagedShard(
            f"the end of the shard is damaged: {error}",
            where=where,
            hint="if its comment is intact in a copy, restore the copy; see docs/reference/shard-format.md",
        ) from error
    return guide, len(comment)


def _decoded(text: bytes) -> Guide:
    payload = base64.b64decode(text, validate=True)
    body, digest = payload[:-_SHA256_BYTES], payload[-_SHA256_BYTES:]
    if hashlib.sha256(body).digest() != digest or base64.b64encode(payload) != text:
        raise ValueError("its checksum does not fit")
    entries, index_offset, index_bytes, tail, count = _GUIDE.unpack_from(body)
    fences = tuple(Fence(*fence) for fence in _FENCE.iter_unpack(body[_GUIDE.size :]))
    if count != len(fences):
        raise ValueError("its list of blocks is not complete")
    return Guide(entries, index_offset, index_bytes, tail, fences)
