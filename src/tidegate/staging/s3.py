"""Staging in S3, or in something that speaks its language.

An object is visible whole or not at all by nature; what has to be looked after are uploads that never ended,
answers that were lost, and the number of requests: they cost time and money.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any, BinaryIO, TypeVar, cast

import pyarrow as pa

from tidegate.core.errors import StagingError
from tidegate.s3 import Absent, S3Place
from tidegate.staging.contract import StagedObject, Unfinished
from tidegate.staging.layout import demand_key
from tidegate.staging.pages import pages
from tidegate.staging.s3_file import S3File, fetched
from tidegate.staging.s3_upload import PART_BYTES, Landed, Upload, abort, uploads

ASKED_AT_ONCE = 10

_Answer = TypeVar("_Answer")


class _S3Writer:
    def __init__(self, staging: S3Staging, key: str, upload: Upload) -> None:
        self.file = cast(BinaryIO, upload)
        self._staging = staging
        self._key = key
        self._upload = upload
        self._landed: Landed | None = None

    @property
    def result(self) -> StagedObject:
        landed = self._finished()
        return StagedObject(self._key, self._upload.size, landed.etag, landed.modified, self._upload.checksum)

    def reopen(self) -> pa.NativeFile:
        """The finished object, for which S3 is asked only if it has not confirmed the checksum.

        If it has, then the bytes that were kept are what it holds, and the end of the object is among them.
        """
        landed = self._finished()
        if not landed.confirmed:
            return self._staging.open(self._key)
        place = self._staging.place
        tail, size = self._upload.tail, self._upload.size
        return pa.PythonFile(S3File(place, place.key(self._key), tail, size, landed.etag), mode="r")

    def finish(self) -> None:
        self._landed = self._upload.finish()

    def _finished(self) -> Landed:
        if self._landed is None:
            raise StagingError("the object is not complete yet", where=self._key)
        return self._landed


@dataclass(frozen=True)
class S3Staging:
    place: S3Place
    part_bytes: int = PART_BYTES

    @property
    def pace(self) -> float:
        return 1.0

    @property
    def shared(self) -> bool:
        return True

    @contextmanager
    def create(self, key: str) -> Iterator[_S3Writer]:
        demand_key(key)
        upload = Upload(self.place, self.place.key(key), self.part_bytes)
        writer = _S3Writer(self, key, upload)
        try:
            yield writer
            writer.finish()
        except BaseException:
            upload.abandon()
            raise

    def put(self, key: str, data: bytes) -> StagedObject:
        with self.create(key) as writer:
            writer.file.write(data)
        return writer.result

    def get(self, key: str) -> bytes:
        demand_key(key)
        return fetched(self.place, self.place.key(key))

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        return _at_once(self.get, keys)

    def stat(self, key: str) -> StagedObject | None:
        demand_key(key)
        whole = self.place.key(key)
        try:
            with self.place.asking("s3:GetObject", whole, refused=StagingError) as client:
                found = client.head_object(Bucket=self.place.bucket, Key=whole)
        except Absent:
            return None
        return _object(key, found["ContentLength"], found)

    def stat_all(self, keys: Sequence[str]) -> dict[str, StagedObject]:
        found = zip(keys, _at_once(self.stat, keys), strict=True)
        return {key: there for key, there in found if there is not None}

    def open(self, key: str) -> pa.NativeFile:
        demand_key(key)
        return pa.PythonFile(S3File.open(self.place, self.place.key(key)), mode="r")

    def local_path(self, key: str) -> None:  # noqa: ARG002 - the contract's signature
        return None

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[StagedObject]:
        folder = self.place.key(f"{prefix}/" if prefix else "")
        more = {"StartAfter": self.place.key(after)} if after else {}
        while True:
            with self.place.asking("s3:ListBucket", folder, refused=StagingError) as client:
                answer = client.list_objects_v2(Bucket=self.place.bucket, Prefix=folder, **more)
            for found in answer.get("Contents", ()):
                if not found["Key"].endswith("/"):  # consoles make such objects, to show empty folders
                    yield _object(self._relative(found["Key"]), found["Size"], found)
            if not answer.get("IsTruncated"):
                return
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, keys: Iterable[str]) -> None:
        for page in pages(keys):
            objects = [{"Key": self.place.key(key)} for key in page]
            with self.place.asking("s3:DeleteObject", refused=StagingError) as client:
                answer = client.delete_objects(
                    Bucket=self.place.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            _demand_deleted(self.place, answer.get("Errors", ()), len(page))

    def unfinished(self) -> Iterator[Unfinished]:
        for key, upload in uploads(self.place, self.place.key("")):
            yield Unfinished(self._relative(key), upload["UploadId"], upload["Initiated"].astimezone(UTC))

    def discard(self, item: Unfinished) -> None:
        demand_key(item.key)
        abort(self.place, self.place.key(item.key), item.id)

    def url(self, key: str = "") -> str:
        return self.place.url(key)

    def _relative(self, key: str) -> str:
        return key.removeprefix(self.place.key(""))


def _at_once(ask: Callable[[str], _Answer], keys: Sequence[str]) -> list[_Answer]:
    """Answers in the order of the keys; where one fails, the rest is not asked for."""
    if len(keys) <= 1:
        return [ask(key) for key in keys]
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(keys)), "ask") as pool:
        return list(pool.map(ask, keys))


def _object(key: str, size: int, answer: dict[str, Any]) -> StagedObject:
    return StagedObject(key, size, str(answer["ETag"]).strip('"'), answer["LastModified"].astimezone(UTC))


def _demand_deleted(place: S3Place, errors: Sequence[dict[str, Any]], asked: int) -> None:
    if not errors:
        return
    first = errors[0]
    said = f"{first.get('Code')}: {first.get('Message')}"
    raise StagingError(
        f"{len(errors):,} of {asked:,} objects could not be deleted: {said}",
        where=f"s3://{place.bucket}/{first.get('Key')}",
        hint="grant s3:DeleteObject to whoever runs this, then run it again: the rest is gone already",
    )
