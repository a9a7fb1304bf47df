"""The requests that the S3 store makes: whole small objects, read, listed and written on a condition."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tidegate.core.errors import ConfigError, StateError
from tidegate.s3 import S3Place, Unmet

T = TypeVar("T")
Made = TypeVar("Made")

ANSWER_SECONDS = 10.0
"""Short enough for a request, its repetitions and another look within the life of a lease."""
AT_ONCE = 16

_READ = "s3:GetObject and s3:ListBucket"  # without the second, S3 calls forbidden what is not there
_LIST = "s3:ListBucket"
_WRITE = "s3:PutObject"
_DELETE = "s3:DeleteObject"
_PROBE = "conditions"
_EXPLANATION = b"Tidegate writes this object to see whether the server heeds conditions. Leave it here.\n"


class Objects:
    """The objects under a prefix, by their names. An object is written whole, with a checksum."""

    def __init__(self, place: S3Place) -> None:
        self.place = place

    def read(self, name: str) -> tuple[bytes, str]:
        """The object and its ETag. Raises `Absent`."""
        return self.place.get(
            self.place.key(name), action=_READ, refused=StateError, answer_seconds=ANSWER_SECONDS
        )

    def replace(self, name: str, text: bytes, etag: str | None) -> str | None:
        """Write if the object is still the one with this ETag; if there is still none, where that is None.

        Returns the new ETag, if the server says it. Raises `Unmet`, `Absent`, or `OutcomeUnknown`.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        found: str | None = self._put(name, text, writes=True, **condition).get("ETag")
        return found

    def add(self, name: str, text: bytes) -> None:
        """Write what its name says all of: doing it twice makes no difference."""
        self._put(name, text, writes=False)

    def delete(self, name: str) -> None:
        key = self.place.key(name)
        with self._asking(_DELETE, key) as client:
            client.delete_object(Bucket=self.place.bucket, Key=key)

    def listed(self, beginning: str, *, after: str = "") -> Iterator[tuple[str, str]]:
        """Names and ETags of all objects whose names begin so, in order."""
        root = self.place.key("")
        with self._asking(_LIST, None) as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=root + beginning, StartAfter=root + after if after else ""
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"].removeprefix(root), item["ETag"]

    def together(self, work: Callable[[T], Made], items: Sequence[T]) -> list[Made]:
        """Do the same with many objects, several at a time."""
        if len(items) <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
            return list(pool.map(work, items))

    def demand_conditions(self) -> None:
        """Refuse a server that ignores conditions: there, two runs would overwrite each other's marks.

        Asked once by each process, with an object that stays where it is. On a server that heeds them
        nothing is written, save for the very first time.
        """
        if self.place in _HEEDING:
            return
        if self._answer(IfNoneMatch="*") is not None:  # nobody was here before, or conditions are ignored
            self._demand_refusal(IfNoneMatch="*")
        self._demand_refusal(IfMatch=f'"{"0" * 32}"')
        _HEEDING.add(self.place)

    def _demand_refusal(self, **condition: str) -> None:
        answer = self._answer(**condition)
        if answer is None:
            return
        [(name, value)] = condition.items()
        header = {"IfNoneMatch": "If-None-Match", "IfMatch": "If-Match"}[name]
        said = answer.get("ResponseMetadata", {})
        server = said.get("HTTPHeaders", {}).get("server", "the server").strip()
        raise ConfigError(
            "this S3 ignores conditions, so two runs could overwrite each other's state: to a write with"
            f" `{header}: {value}`, which has to be refused, {server} answered {said.get('HTTPStatusCode')}",
            where=self.place.url(_PROBE),
            hint="keep the state in a local folder, a database, or a server with conditional writes",
        )

    def _answer(self, **condition: str) -> dict[str, Any] | None:
        """What the server says to a write on this condition; None if it is refused, as it should be."""
        try:
            return self._put(_PROBE, _EXPLANATION, writes=False, **condition)
        except Unmet:
            return None

    def _put(self, name: str, text: bytes, *, writes: bool, **condition: str) -> dict[str, Any]:
        key = self.place.key(name)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        with self._asking(_WRITE, key, writes=writes) as client:
            answer: dict[str, Any] = client.put_object(
                Bucket=self.place.bucket,
                Key=key,
                Body=text,
                ChecksumSHA256=digest,  # the server refuses what arrives otherwise
                ContentType="application/json",
                **condition,
            )
        return answer

    def _asking(self, action: str, key: str | None, *, writes: bool = False) -> Any:
        return self.place.asking(
            action, key, refused=StateError, writes=writes, answer_seconds=ANSWER_SECONDS
        )


_HEEDING: set[S3Place] = set()
"""Places whose server was seen to heed conditions."""
