"""Reading an object in S3 as a file, by ranges."""

from __future__ import annotations

import io
import re
from typing import Any

from tidegate.core.errors import StagingError
from tidegate.s3 import Absent, S3Place, Unmet

READ_AHEAD = 8 * 2**20
"""Bytes of one request, if fewer are asked for: what is read next mostly lies next to it."""


class S3File(io.RawIOBase):
    """Random access to an object. It holds its end and what was read last, about `READ_AHEAD` of each.

    The end comes first, by one request that also tells the size: it is where Parquet has its footer, and of
    most segments it is all there is. Every range must be of the same object, or reading fails.
    """

    def __init__(self, place: S3Place, key: str, tail: bytes, size: int, etag: str) -> None:
        self._place = place
        self._key = key
        self._tail = tail
        self._size = size
        self._etag = f'"{etag.strip(chr(34))}"'
        self._start = 0
        self._block = b""
        self._position = 0

    @classmethod
    def open(cls, place: S3Place, key: str) -> S3File:
        tail, answer = _fetched(place, key, Range=f"bytes=-{READ_AHEAD}")
        found = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.get("ContentRange", ""))
        return cls(place, key, tail, int(found[1]) if found else len(tail), answer.get("ETag", ""))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._size - self._position)
        wanted = rest if size is None or size < 0 else min(size, rest)
        pieces = []
        while wanted:
            piece = self._piece(self._position, wanted)
            pieces.append(piece)
            self._position += len(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(view.nbytes)
        view[: len(data)] = data
        return len(data)

    def _piece(self, start: int, wanted: int) -> bytes:
        """Some of what is wanted, from what is held or by one request."""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : start - tail_start + wanted]
        if not self._start <= start < self._start + len(self._block):
            stop = min(start + max(wanted, READ_AHEAD), tail_start)
            self._block = self._range(start, stop)
            self._start = start
        return self._block[start - self._start : start - self._start + wanted]

    def _range(self, start: int, stop: int) -> bytes:
        wanted = f"bytes={start}-{stop - 1}"
        data, _ = _fetched(self._place, self._key, Range=wanted, IfMatch=self._etag)
        if len(data) != stop - start:
            raise StagingError(f"{stop - start} bytes were asked for, {len(data)} came", where=self._where)
        return data

    @property
    def _where(self) -> str:
        return f"s3://{self._place.bucket}/{self._key}"


def fetched(place: S3Place, key: str) -> bytes:
    """The whole object; S3's client compares it with the checksum that S3 keeps."""
    return _fetched(place, key)[0]


def _fetched(place: S3Place, key: str, **wanted: str) -> tuple[bytes, dict[str, Any]]:
    where = f"s3://{place.bucket}/{key}"
    try:
        return place.fetch(key, wanted, refused=StagingError)
    except Absent:
        raise StagingError("the object is missing", where=where) from None
    except Unmet:
        raise StagingError("the object was replaced while it was read", where=where) from None
