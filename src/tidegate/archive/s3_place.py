"""An archive in S3. Objects are written on the condition that there is none, and read back by ranges."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO, TypeVar

from tidegate.archive.layout import ENDING_BYTES
from tidegate.archive.place import Listed, problems
from tidegate.archive.shard import Bytes
from tidegate.core.errors import ArchiveError, OutcomeUnknown
from tidegate.s3 import Absent, S3Place, Unmet
from tidegate.staging.s3_upload import PART_BYTES, Upload
from tidegate.state.contract import Store

_PIECE = 1 << 20
_ATTEMPTS = 3
_DELETED_AT_ONCE = 1_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class S3ArchivePlace:
    s3: S3Place

    @contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        with problems(tempfile.gettempdir()), tempfile.TemporaryFile(prefix="tidegate-shard-") as file:
            yield file

    def sweep(self) -> None:
        """Nothing is left: such files have no name."""

    def publish(self, key: str, file: BinaryIO) -> bool:
        file.flush()
        file.seek(0)
        self._send(key, iter(lambda: file.read(_PIECE), b""))
        return False

    def settle(self, keys: Iterable[str]) -> None:
        """An object that was answered for is durable."""

    def put_new(self, key: str, data: bytes) -> bool:
        return self._send(key, iter([data]))

    def jot(self, key: str, data: bytes) -> bool:
        return self.put_new(key, data)

    def _send(self, key: str, pieces: Iterator[bytes]) -> bool:
        """Write an object unless there is one; False if there is, which may be ours if answers were lost."""
        upload = Upload(self.s3, self.s3.key(key), PART_BYTES, only_new=True)
        try:
            for piece in pieces:
                upload.write(piece)
            upload.finish()
        except Unmet:
            upload.abandon()
            return False
        except BaseException:
            upload.abandon()
            raise
        return True

    def put(self, key: str, data: bytes) -> None:
        def send() -> bool:
            with self._asking("s3:PutObject", key, writes=True) as client:
                client.put_object(Bucket=self.s3.bucket, Key=self.s3.key(key), Body=data)
            return True

        self._asked_again(send)

    def _asked_again(self, send: Callable[[], _T]) -> _T:
        """Send again when the answer was lost: with the same bytes it does no harm."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return send()
            except OutcomeUnknown:
                continue
        return send()

    def get(self, key: str) -> bytes | None:
        try:
            return self._fetched(key)[0]
        except Absent:
            return None

    def open(self, key: str) -> Bytes | None:
        """One request tells the size and brings the end, which is what readers of shards begin with."""
        try:
            tail, answer = self._fetched(key, f"bytes=-{ENDING_BYTES}")
        except Absent:
            return None
        total = re.search(r"/(\d+)$", answer.get("ContentRange", ""))
        return S3Bytes(self, key, int(total[1]) if total else len(tail), tail)

    def read(self, key: str, offset: int, length: int) -> bytes:
        try:
            return self._fetched(key, f"bytes={offset}-{offset + length - 1}")[0]
        except Absent as error:
            raise ArchiveError("the object is gone", where=self.where(key)) from error

    def _fetched(self, key: str, part: str | None = None) -> tuple[bytes, dict[str, Any]]:
        wanted = {"Range": part} if part is not None else None
        return self.s3.fetch(self.s3.key(key), wanted, refused=ArchiveError)

    def list(self, prefix: str) -> Iterator[Listed]:
        with self._asking("s3:ListBucket") as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.s3.bucket, Prefix=self.s3.key(f"{prefix}/" if prefix else "")
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield Listed(self._relative(item["Key"]), item["Size"])

    def _relative(self, key: str) -> str:
        return key.removeprefix(self.s3.key(""))

    def delete(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while some := list(islice(remaining, _DELETED_AT_ONCE)):
            objects = [{"Key": self.s3.key(key)} for key in some]
            with self._asking("s3:DeleteObject") as client:
                answer = client.delete_objects(
                    Bucket=self.s3.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            self._demand_deleted(answer.get("Errors", ()))

    def _demand_deleted(self, errors: Sequence[dict[str, Any]]) -> None:
        """A refusal stands in an answer that says all is well. A listing that stays would be believed."""
        if errors:
            first = errors[0]
            raise ArchiveError(
                f"{len(errors):,} objects could not be deleted: {first.get('Code')}: {first.get('Message')}",
                where=f"s3://{self.s3.bucket}/{first.get('Key')}",
                hint="grant s3:DeleteObject below `_tidegate/`, and run it again",
            )

    def where(self, key: str) -> str:
        return self.s3.url(key)

    def store(self) -> Store:
        from tidegate.state.s3 import S3Store

        return S3Store(replace(self.s3, prefix=self.s3.key("_tidegate/state")))

    def _asking(self, action: str, key: str | None = None, *, writes: bool = False) -> Any:
        named = None if key is None else self.s3.key(key)
        return self.s3.asking(action, named, refused=ArchiveError, writes=writes)


@dataclass(frozen=True)
class S3Bytes:
    """An object, of which the end is already here."""

    place: S3ArchivePlace
    key: str
    size: int
    tail: bytes = field(repr=False)
    piece = 4 << 20

    @property
    def where(self) -> str:
        return self.place.where(self.key)

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        known = self.size - len(self.tail)
        if offset >= known:
            return self.tail[offset - known : offset - known + length]
        return self.place.read(self.key, offset, length)
