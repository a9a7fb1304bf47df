"""Staging in a local folder: temporary file beside, fsync, rename."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa

from tidegate.core.errors import StagingError
from tidegate.staging.contract import StagedObject, Unfinished
from tidegate.staging.layout import demand_key

_UNFINISHED = re.compile(r"\.unfinished-(?P<id>[0-9a-f]+)-(?P<name>.+)~")
"""It says what is being written, so that leftovers of dead runs can be told, and ends like no data file."""
_ATTEMPTS = 10
"""At a folder that others keep taking away."""


class _HashingFile(io.RawIOBase):
    """Passes bytes on and keeps their digest, so that no file is read twice to be checksummed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes


class _LocalWriter:
    def __init__(self, key: str, path: Path, sink: _HashingFile) -> None:
        self.file = cast(BinaryIO, sink)
        self._key = key
        self._path = path
        self._result: StagedObject | None = None

    @property
    def result(self) -> StagedObject:
        if self._result is None:
            raise StagingError("the object is not complete yet", where=self._key)
        return self._result

    def reopen(self) -> pa.NativeFile:
        with _problems(str(self._path)):
            return pa.OSFile(str(self._path), "rb")

    def finished(self, sink: _HashingFile, modified: datetime) -> None:
        digest = sink.digest.hexdigest()
        self._result = StagedObject(self._key, sink.size, digest, modified, digest)


@dataclass(frozen=True)
class LocalStaging:
    root: Path

    @property
    def pace(self) -> float:
        return 0.2

    @property
    def shared(self) -> bool:
        return False

    @contextmanager
    def create(self, key: str) -> Iterator[_LocalWriter]:
        path = self._path(key)
        unfinished = _beside(path, secrets.token_hex(4))
        with _problems(str(path)):
            try:
                with _begun(unfinished) as file:
                    sink = _HashingFile(file)
                    writer = _LocalWriter(key, path, sink)
                    yield writer
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.rename(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)
            writer.finished(sink, datetime.fromtimestamp(path.stat().st_mtime, UTC))

    def put(self, key: str, data: bytes) -> StagedObject:
        with self.create(key) as writer:
            writer.file.write(data)
        return writer.result

    def get(self, key: str) -> bytes:
        with _problems(str(self._path(key))):
            return self._path(key).read_bytes()

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def stat(self, key: str) -> StagedObject | None:
        path = self._path(key)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        # A local file system keeps no digest; size tells a whole file, its receipt tells the digest.
        return StagedObject(key, found.st_size, "", datetime.fromtimestamp(found.st_mtime, UTC))

    def stat_all(self, keys: Sequence[str]) -> dict[str, StagedObject]:
        return {key: found for key in keys if (found := self.stat(key)) is not None}

    def open(self, key: str) -> pa.NativeFile:
        with _problems(str(self._path(key))):
            return pa.OSFile(str(self._path(key)), "rb")

    def local_path(self, key: str) -> Path:
        return self._path(key)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[StagedObject]:
        for path in self._files(self.root / prefix):
            key = path.relative_to(self.root).as_posix()
            if _UNFINISHED.fullmatch(path.name) or key <= after:
                continue
            found = self.stat(key)
            if found is not None:
                yield found

    def unfinished(self) -> Iterator[Unfinished]:
        for path in self._files(self.root):
            parts = _UNFINISHED.fullmatch(path.name)
            if parts is None:
                continue
            with suppress(FileNotFoundError):  # it has ended since
                began = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                key = path.with_name(parts["name"]).relative_to(self.root).as_posix()
                yield Unfinished(key, parts["id"], began)

    def discard(self, item: Unfinished) -> None:
        path = self._path(item.key)
        with _problems(str(path)):
            _beside(path, item.id).unlink(missing_ok=True)
        self._prune(path.parent)

    def _files(self, folder: Path) -> Iterator[Path]:
        """All files below a folder, in the order of their keys: `a-b` comes before `a/b`."""
        with _problems(str(folder)):
            try:
                with os.scandir(folder) as found:
                    entries = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found]
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in sorted(entries):
            if name.endswith("/"):
                yield from self._files(folder / name)
            else:
                yield folder / name

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with _problems(str(path)):
                path.unlink(missing_ok=True)
            self._prune(path.parent)

    def url(self, key: str = "") -> str:
        return self._path(key).as_uri() if key else self.root.absolute().as_uri()

    def _path(self, key: str) -> Path:
        demand_key(key)
        return self.root.joinpath(*key.split("/"))

    def _prune(self, folder: Path) -> None:
        while folder != self.root and self.root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def _begun(path: Path) -> BinaryIO:
    """A new file. Somebody who cleans up may take its folder away while that is empty: it is made again."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            return path.open("xb")
    return path.open("xb")


def _make_folder(folder: Path) -> None:
    """What lies in it is there after a power cut only if its own name is."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):  # another task was quicker
        folder.mkdir()
    _sync_folder(folder.parent)


def _beside(path: Path, write: str) -> Path:
    return path.with_name(f".unfinished-{write}-{path.name}~")


@contextmanager
def _problems(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = {
            errno.ENOSPC: "free some space and run it again: nothing was lost",
            errno.EDQUOT: "raise the quota and run it again: nothing was lost",
            errno.EACCES: "give this user the right to write there, or choose another staging path",
            errno.EROFS: "the file system is read-only: choose another staging path",
        }.get(error.errno or 0)
        raise StagingError(f"staging failed: {error.strerror or error}", where=where, hint=hint) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
