"""What a staging area must do. Every one passes the suite in `tidegate.testing.staging`.

Objects become visible whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StagedObject:
    key: str
    bytes: int
    etag: str
    modified: datetime
    checksum: str = ""
    """SHA-256 of the content, in hex. Its writer knows it; a listing need not."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A write that was begun and has neither ended nor been given up: its writer lives, or was killed."""

    key: str
    id: str
    """Tells writes of the same key apart."""
    began: datetime


class ObjectWriter(Protocol):
    """An open object. `file` takes the bytes; the rest is known once the context has closed cleanly."""

    file: BinaryIO

    @property
    def result(self) -> StagedObject: ...

    def reopen(self) -> pa.NativeFile:
        """The finished object, to ask it what it holds.

        What is read is the object and not our memory of it: bytes that were kept while writing may answer
        only where the other side has confirmed their digest.
        """
        ...


class Staging(Protocol):
    """Where segments lie between source and target.

    Instances travel to Spark executors, so they can be pickled and hold no open connection.
    Keys are relative, with `/` between parts; a prefix is a folder of them. Questions about many keys are
    asked several at a time where each costs a journey.
    """

    @property
    def pace(self) -> float:
        """Seconds between two looks for what others have written: where looking costs, one looks less."""
        ...

    @property
    def shared(self) -> bool:
        """Whether a warehouse can read the objects by their addresses."""
        ...

    def create(self, key: str) -> AbstractContextManager[ObjectWriter]:
        """Write a new object. An error inside the context leaves nothing visible."""
        ...

    def put(self, key: str, data: bytes) -> StagedObject: ...

    def get(self, key: str) -> bytes: ...

    def get_all(self, keys: Sequence[str]) -> list[bytes]: ...

    def stat(self, key: str) -> StagedObject | None: ...

    def stat_all(self, keys: Sequence[str]) -> Mapping[str, StagedObject]:
        """Those of the objects that are there, by key."""
        ...

    def open(self, key: str) -> pa.NativeFile:
        """A random-access file to read from."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The object as a local file, where it is one."""
        ...

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[StagedObject]:
        """The objects below a folder, in the order of their keys; only those past `after`."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete what is there of these. Raises `StagingError`, naming one, if some could not be deleted."""
        ...

    def unfinished(self) -> Iterator[Unfinished]: ...

    def discard(self, item: Unfinished) -> None:
        """Give up an unfinished write. If its writer lives, it fails; if it has ended, nothing happens."""
        ...

    def url(self, key: str = "") -> str:
        """The object's address, for messages and for warehouses that read it themselves."""
        ...
