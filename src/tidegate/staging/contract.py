"""What a staging area must do. Objects become visible whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


class ObjectWriter(Protocol):
    """An open object. `file` takes the bytes; `result` is known once the context has closed cleanly."""

    file: BinaryIO

    @property
    def result(self) -> StagedObject: ...


class Staging(Protocol):
    """Where segments lie between source and target.

    Instances travel to Spark executors, so they can be pickled and hold no open connection.
    Keys are relative, with `/` between parts.
    """

    def create(self, key: str) -> AbstractContextManager[ObjectWriter]:
        """Write a new object. An error inside the context leaves nothing visible."""
        ...

    def put(self, key: str, data: bytes) -> StagedObject: ...

    def get(self, key: str) -> bytes: ...

    def stat(self, key: str) -> StagedObject | None: ...

    def open(self, key: str) -> pa.NativeFile:
        """A random-access file to read from."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The object as a local file, where it is one."""
        ...

    def list(self, prefix: str = "") -> Iterator[StagedObject]: ...

    def delete(self, keys: Iterable[str]) -> None: ...

    def url(self, key: str = "") -> str:
        """The object's address, for messages and for warehouses that read it themselves."""
        ...
