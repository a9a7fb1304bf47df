"""One object on its way to S3: cut into parts while it is written, checked by the server, or given up.

What fits into one part is sent with one PUT, more as a multipart upload, whose parts travel while the next
is being filled. Memory is bounded by the parts, not by the object: a process has at most `PARTS_AT_ONCE` on
their way, and one being filled for each object that it is writing.

The server checks every part against its CRC32 before it keeps it, and the whole before it shows it: a PUT
against its SHA-256, a multipart upload against the CRC32 of all its bytes. The SHA-256 of the whole goes
into the receipt either way.
"""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tidegate.core.errors import OutcomeUnknown, StagingError, TidegateError
from tidegate.s3 import Absent, S3Place

PART_BYTES = 50 * 2**20
PARTS_AT_ONCE = 10
_ROOM = threading.BoundedSemaphore(PARTS_AT_ONCE)
"""For parts on their way, of whatever object of this process."""
_MOST_PARTS = 10_000
_KEPT = 2**20
"""Of what has left: enough for the footer of a Parquet file, so that nobody has to ask S3 for it."""


@dataclass(frozen=True)
class Landed:
    """An object that S3 shows, whole."""

    etag: str
    modified: datetime
    confirmed: bool
    """Whether S3 has said that what it holds has our checksum."""


class Upload(io.RawIOBase):
    """A file to write to; `finish` makes it visible, `abandon` leaves nothing of it."""

    def __init__(self, place: S3Place, key: str, part_bytes: int, *, only_new: bool = False) -> None:
        self._place = place
        self._condition = {"IfNoneMatch": "*"} if only_new else {}
        """With it, `finish` raises `Unmet` where an object is there already."""
        self._key = key
        self._part_bytes = part_bytes
        self._part = bytearray()
        self._kept = b""
        self._id: str | None = None
        self._doubtful = False
        self._sent: list[Future[dict[str, Any]]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._crc = 0
        """Of the parts that were sent; an object of one part is checked by its SHA-256 instead."""
        self._sha = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    @property
    def checksum(self) -> str:
        """SHA-256 of what was written, in hex."""
        return self._sha.hexdigest()

    @property
    def tail(self) -> bytes:
        """The end of the object."""
        return self._kept

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = view.nbytes
        while view:
            if len(self._part) == self._part_bytes:
                self._send()
            piece = view[: self._part_bytes - len(self._part)]
            self._part += piece
            self._sha.update(piece)
            self.size += piece.nbytes
            view = view[piece.nbytes :]
        return written

    def finish(self) -> Landed:
        """Make the object visible. If this raises `OutcomeUnknown`, S3 could not be asked whether it is."""
        try:
            answer = self._complete() if self._id else self._put()
        except OutcomeUnknown:
            landed = self._found()
            if landed is None or not landed.confirmed:
                raise
        else:
            landed = self._told(answer)
            if landed is None or not landed.confirmed:
                landed = self._found() or landed
            if landed is None:
                raise OutcomeUnknown(
                    "the answer to s3:PutObject was cut short", where=self._where, hint="run it again"
                )
        self._sweep()
        return landed

    def abandon(self) -> None:
        """Leave nothing behind. If S3 cannot be reached, the leftover is for `staging clean`."""
        for part in self._sent:
            part.cancel()
        wait(self._sent)  # a part that arrives after the end would keep the upload alive
        self._close_pool()
        with suppress(TidegateError):
            if self._id is not None:
                abort(self._place, self._key, self._id)
            self._sweep()

    # --- Parts -----------------------------------------------------------------

    def _send(self) -> None:
        """Let the full part go, once there is room on the way."""
        if self._id is None:
            self._begin()
        for part in self._sent:
            if part.done():
                part.result()  # raises what went wrong, before more is written in vain
        number = len(self._sent) + 1
        if number > _MOST_PARTS:
            raise StagingError(
                f"an object of more than {_MOST_PARTS:,} parts of {self._part_bytes:,} bytes",
                where=self._where,
                hint="make chunks smaller with `batch_size`",
            )
        assert self._pool is not None
        self._crc = zlib.crc32(self._part, self._crc)
        room = _ROOM
        room.acquire()
        sent = self._pool.submit(self._upload, number, self._let_go())
        sent.add_done_callback(lambda _: room.release())
        self._sent.append(sent)

    def _let_go(self) -> bytearray:
        """The part, to be sent, and never written to again."""
        part, self._part = self._part, bytearray()
        end = part[-_KEPT:]
        self._kept = self._kept[len(end) - _KEPT :] + end if len(end) < _KEPT else bytes(end)
        return part

    def _begin(self) -> None:
        self._doubtful = True
        with self._asking() as client:
            answer = client.create_multipart_upload(
                **self._object, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
            )
        self._id = answer["UploadId"]
        # If an answer was lost on the way, an upload exists whose name nobody knows.
        self._doubtful = answer["ResponseMetadata"].get("RetryAttempts", 0) > 0
        self._pool = ThreadPoolExecutor(PARTS_AT_ONCE, "upload")

    def _upload(self, number: int, part: bytearray) -> dict[str, Any]:
        checksum = _crc(zlib.crc32(part))
        with self._asking() as client:
            answer = client.upload_part(
                **self._object, UploadId=self._id, PartNumber=number, Body=part, ChecksumCRC32=checksum
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

    # --- The end ---------------------------------------------------------------

    def _put(self) -> dict[str, Any]:
        part = self._let_go()
        with self._asking(writes=True) as client:
            answer: dict[str, Any] = client.put_object(
                **self._object, **self._condition, Body=part, ChecksumSHA256=self._sha256
            )
        return answer

    def _complete(self) -> dict[str, Any]:
        self._send()
        parts = [part.result() for part in self._sent]
        self._close_pool()
        with self._asking(writes=True) as client:
            answer: dict[str, Any] = client.complete_multipart_upload(
                **self._object,
                **self._condition,
                UploadId=self._id,
                MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT",
                ChecksumCRC32=_crc(self._crc),
            )
        return answer

    def _told(self, answer: dict[str, Any]) -> Landed | None:
        """What S3 says of it by itself; None if the line broke before it had said all."""
        try:
            modified = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
            return Landed(_etag(answer), modified.astimezone(UTC), self._confirms(answer))
        except (KeyError, ValueError):
            return None

    def _found(self) -> Landed | None:
        """What S3 shows under our key: ours alone, so it is there if it has our size and checksum."""
        try:
            with self._asking("s3:GetObject") as client:
                answer = client.head_object(**self._object, ChecksumMode="ENABLED")
        except (Absent, TidegateError):
            return None
        if answer["ContentLength"] != self.size:
            return None
        return Landed(_etag(answer), answer["LastModified"].astimezone(UTC), self._confirms(answer))

    def _confirms(self, answer: dict[str, Any]) -> bool:
        if answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
            return False
        if self._id is None:
            return bool(answer.get("ChecksumSHA256") == self._sha256)
        return bool(answer.get("ChecksumCRC32") == _crc(self._crc))

    def _sweep(self) -> None:
        """Abort what a lost answer to the beginning has left: an upload of our key that we do not know."""
        if not self._doubtful:
            return
        for key, upload in uploads(self._place, self._key):
            if key == self._key:
                abort(self._place, key, upload["UploadId"])
        self._doubtful = False

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    @property
    def _object(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key}

    @property
    def _where(self) -> str:
        return f"s3://{self._place.bucket}/{self._key}"

    @property
    def _sha256(self) -> str:
        return base64.b64encode(self._sha.digest()).decode()

    def _asking(self, action: str = "s3:PutObject", *, writes: bool = False) -> Any:
        return self._place.asking(action, self._key, refused=StagingError, writes=writes)


def uploads(place: S3Place, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Uploads that have not ended, of keys that begin like this, with their keys."""
    more: dict[str, str] = {}
    while True:
        with place.asking("s3:ListBucketMultipartUploads", prefix, refused=StagingError) as client:
            answer = client.list_multipart_uploads(Bucket=place.bucket, Prefix=prefix, **more)
        for upload in answer.get("Uploads", ()):
            yield upload["Key"], upload
        if not answer.get("IsTruncated"):
            return
        more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def abort(place: S3Place, key: str, upload: str) -> None:
    """Give up an upload; one that has ended, or was given up before, is as good."""
    from botocore.exceptions import ClientError

    with place.asking("s3:AbortMultipartUpload", key, refused=StagingError) as client:
        try:
            client.abort_multipart_upload(Bucket=place.bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise


def _crc(number: int) -> str:
    return base64.b64encode(number.to_bytes(4)).decode()


def _etag(answer: dict[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')
