"""The files that are packed: read whole, and only if they stayed the same while they were read."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from tidegate.archive.compressing import WHOLE
from tidegate.archive.records import ProblemKind
from tidegate.core.errors import ArchiveError, NotAllowed
from tidegate.s3 import Absent, S3Place, Unmet


class Unpackable(Exception):
    """A file that cannot be packed. Not for users: it becomes a line of the window's list of problems."""

    def __init__(self, kind: ProblemKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class OpenFile(Protocol):
    """It stays open for as long as one is in its context."""

    size: int

    def __enter__(self) -> OpenFile: ...

    def __exit__(self, *_: object) -> None: ...

    def whole(self) -> bytes:
        """All of it, for small ones. Raises `Unpackable` if it changed meanwhile."""
        ...

    def content(self) -> Iterator[bytes]:
        """All of it, in pieces of size `WHOLE` but the last.

        Raises `Unpackable` if it changed meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """Where the table's locations lead: local paths, `file://` and `s3://`."""

    root: bytes | None = None
    """Where relative paths begin."""
    s3: S3Place | None = None
    """How buckets are reached; each location names its own."""

    def open(self, location: bytes | None) -> OpenFile:
        if location is None:
            raise Unpackable(ProblemKind.UNREADABLE, "the row has no location")
        scheme, separator, rest = location.partition(b"://")
        if not separator or location.startswith(b"/"):  # a path may hold any bytes
            return _LocalFile(self._absolute(location))
        if scheme.lower() == b"file":
            return _LocalFile(self._absolute(_path_of(rest)))
        if scheme.lower() == b"s3":
            return self._in_s3(rest)
        raise Unpackable(
            ProblemKind.UNREADABLE, f"there is no way to read `{scheme.decode(errors='replace')}://`"
        )

    def _in_s3(self, rest: bytes) -> OpenFile:
        try:
            bucket, _, key = rest.decode().partition("/")
        except UnicodeDecodeError as error:
            raise Unpackable(
                ProblemKind.UNREADABLE, "the name of an object is UTF-8, and this is not"
            ) from error
        if not bucket or not key:
            raise Unpackable(ProblemKind.UNREADABLE, "the location names no object")
        return _S3File(replace(self.s3 or S3Place(""), bucket=bucket, prefix=""), key)

    def _absolute(self, path: bytes) -> bytes:
        if b"\0" in path:
            raise Unpackable(ProblemKind.UNREADABLE, "the path holds a NUL")
        if path.startswith(b"/"):
            return path
        if self.root is None:
            raise Unpackable(ProblemKind.UNREADABLE, "the path is relative, and packer.input_dir is not set")
        return os.path.join(self.root, path)  # noqa: PTH118 - paths are bytes here


def _path_of(rest: bytes) -> bytes:
    """`file:///a%20b`: what stands between the slashes is a host, and the path is percent-encoded."""
    host, slash, path = rest.partition(b"/")
    if host.lower() not in (b"", b"localhost"):
        raise Unpackable(ProblemKind.UNREADABLE, "the file lies on another host")
    return unquote_to_bytes(slash + path)


_REST_NS = 100_000_000
"""Longer than a tick of the slowest clock of a kernel, and than a call of `write` usually takes."""
_NOT_ITS_OWN = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
    }
)
"""Troubles of this machine or of a whole file system. A policy must not skip all files because of them."""


def _failed(error: OSError, path: bytes) -> Unpackable | ArchiveError:
    said = error.strerror or str(error)
    if error.errno in _NOT_ITS_OWN:
        return ArchiveError(
            f"files cannot be read now: {said}",
            where=path.decode(errors="backslashreplace"),
            hint="look after the mount and the limits of this machine, and run it again",
        )
    gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return Unpackable(ProblemKind.MISSING if gone else ProblemKind.UNREADABLE, said)


def _at_rest(descriptor: int) -> os.stat_result:
    """What is known of a file that nobody seems to be writing to.

    A write gives a file its date when it begins, and dates go by ticks: what was written to a moment ago may
    change while it is read and have the same date in the end.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise Unpackable(ProblemKind.UNREADABLE, "it is not a regular file")
    if _just_written(found):
        time.sleep(_REST_NS / 1e9)
        found = os.fstat(descriptor)
        if _just_written(found):
            raise Unpackable(ProblemKind.CHANGED, "it is being written to")
    return found


def _just_written(found: os.stat_result) -> bool:
    return 0 <= time.time_ns() - found.st_ctime_ns < _REST_NS


class _LocalFile:
    def __init__(self, path: bytes) -> None:
        self._path = path
        try:
            # Not blocking: a pipe among the files must not stop everything.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _failed(error, path) from error
        try:
            self._before = _at_rest(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.size = self._before.st_size

    def __enter__(self) -> _LocalFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def whole(self) -> bytes:
        # One byte more than it is said to have: some file systems do not know better than to say none.
        data = self._piece(self.size + 1)
        self._demand_same(len(data))
        return data

    def content(self) -> Iterator[bytes]:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        left = self.size
        while left > 0 and (piece := self._piece(min(WHOLE, left))):
            left -= len(piece)
            yield piece
        self._demand_same(self.size - left + len(self._piece(1)))

    def _piece(self, length: int) -> bytes:
        try:
            return _read(self._descriptor, length)
        except OSError as error:
            raise _failed(error, self._path) from error

    def _demand_same(self, length: int) -> None:
        if length != self.size or self._has_changed():
            raise Unpackable(ProblemKind.CHANGED, "it changed while it was read")

    def _has_changed(self) -> bool:
        """Whether the path leads to something else than before, as it does where a file was replaced.

        One that was taken away meanwhile was read whole, if it was not written to.
        """
        before = self._before
        try:
            after = os.stat(self._path)  # noqa: PTH116 - paths are bytes here
        except OSError:
            after = os.fstat(self._descriptor)  # to take it away has changed its ctime
        else:
            if after.st_ctime_ns != before.st_ctime_ns:  # this one nobody can set back
                return True
        return (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def _read(descriptor: int, length: int) -> bytes:
    data = os.read(descriptor, length)
    if len(data) == length or not data:
        return data
    pieces = [data]
    while (missing := length - sum(map(len, pieces))) and (data := os.read(descriptor, missing)):
        pieces.append(data)
    return b"".join(pieces)


class _S3File:
    """An object. Whatever is written to it meanwhile, a request brings one version of it."""

    def __init__(self, place: S3Place, key: str) -> None:
        self._place = place
        self._key = key
        with self._said():
            answer = self._looked_at()
        self.size = int(answer["ContentLength"])
        self._version = answer["ETag"]

    def __enter__(self) -> _S3File:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between two requests."""

    def whole(self) -> bytes:
        return b"".join(self.content())

    def content(self) -> Iterator[bytes]:
        left = self.size
        with self._said(), self._asking() as client:
            body = client.get_object(**self._named, IfMatch=self._version)["Body"]
            while left > 0 and (piece := _filled(body, min(WHOLE, left))):
                left -= len(piece)
                yield piece
            left -= len(_end_of(body))
        if left:
            raise Unpackable(ProblemKind.CHANGED, "it is not as long as it was said to be")

    def _looked_at(self) -> Any:
        try:
            with self._asking() as client:
                return client.head_object(**self._named)
        except NotAllowed:
            # Such an answer has no body: it would say the same of a secret that is wrong, or has expired.
            with self._asking() as client:
                client.get_object(**self._named)["Body"].close()
            raise

    def _asking(self) -> Any:
        return self._place.asking("s3:GetObject", self._key, refused=ArchiveError)

    @property
    def _named(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key}

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except Absent as error:
            raise Unpackable(ProblemKind.MISSING, "there is no such object") from error
        except Unmet as error:
            raise Unpackable(ProblemKind.CHANGED, "it changed while it was read") from error
        except NotAllowed as error:
            raise Unpackable(ProblemKind.UNREADABLE, error.message) from error


def _end_of(body: Any) -> bytes:
    """What comes where the end should be. Only there botocore compares the checksum that the server keeps."""
    from botocore.exceptions import FlexibleChecksumError

    try:
        end: bytes = body.read(1)
    except FlexibleChecksumError as error:
        raise Unpackable(ProblemKind.UNREADABLE, "it is not what the checksum of the server says") from error
    return end


def _filled(body: Any, length: int) -> bytes:
    """A piece of exactly this length, unless the end comes first."""
    pieces = []
    while length > 0 and (piece := body.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
