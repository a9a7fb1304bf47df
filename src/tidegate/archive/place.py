"""Where an archive lies: shards, and under `_tidegate` everything that the archiver keeps for itself.

An object is there whole or not at all, and once it is there it never changes, but for the few that `put`
replaces. Instances travel to Spark's executors, so they hold nothing open.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from tidegate.archive.shard import Bytes
from tidegate.core.errors import ArchiveError
from tidegate.state.contract import Store

_T = TypeVar("_T")
_UNFINISHED = ".unfinished-"
_UMASK = threading.Lock()
_SYNCED_AT_ONCE = 8
_BUFFER = 64 << 10
"""For those who write in small pieces."""
_ABANDONED_SECONDS = 3600.0
"""A file that nobody holds for so long is nobody's, even if its lock cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class Listed:
    key: str
    bytes: int


class ArchivePlace(Protocol):
    """Keys are relative, with `/` between their parts."""

    def scratch(self) -> Any:
        """A new file to write a shard into, gone at the end of the context, whatever became of it."""
        ...

    def sweep(self) -> None:
        """Remove what writers that died have left of `scratch`."""
        ...

    def publish(self, key: str, file: BinaryIO) -> bool:
        """Let what `scratch` gave be the object `key`, unless there is one already.

        Its bytes are durable, and its name is once `settle` has returned.
        True: the object is the very file that was written. False: it was there before, or it lies in
        another place now, and has to be read back before anybody may trust it.
        """
        ...

    def settle(self, keys: Iterable[str]) -> None:
        """Make the names of objects durable that `publish` or `put_new` has given them."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one already; False if there is."""
        ...

    def jot(self, key: str, data: bytes) -> bool:
        """Like `put_new`, but do not wait until it is durable.

        After a power cut it may be gone or torn: for what can be done again.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a small object in the place of the one there is."""
        ...

    def get(self, key: str) -> bytes | None: ...

    def open(self, key: str) -> Bytes | None:
        """An object to read ranges from."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects in a folder and the folders below it, in the order of their keys."""
        ...

    def delete(self, keys: Iterable[str]) -> None: ...

    def where(self, key: str) -> str:
        """An object's address, for messages."""
        ...

    def store(self) -> Store:
        """The store that lies beside the shards: leases, planned windows, history."""
        ...


@dataclass(frozen=True)
class LocalPlace:
    root: Path

    @contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        folder = self._scratch
        with problems(str(folder)):
            descriptor, name = _in_folder(folder, lambda: tempfile.mkstemp(prefix=_UNFINISHED, dir=folder))
        file = open(descriptor, "w+b", buffering=_BUFFER)  # noqa: PTH123, SIM115 - it is open already
        try:
            with problems(str(folder)):
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # as long as it is held, its writer lives
                yield _Named(file, Path(name))  # type: ignore[misc]
        finally:
            with suppress(OSError):  # what is still to be written was never published, and why was said
                file.close()
            with suppress(OSError):  # it is a second name of the object, or nothing at all
                Path(name).unlink()

    def sweep(self) -> None:
        for path in self._scratch.glob(f"{_UNFINISHED}*"):
            with suppress(OSError), path.open("rb") as file:  # somebody else may be quicker
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    def publish(self, key: str, file: BinaryIO) -> bool:
        path = self._path(key)
        with problems(str(path)):
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
            name = cast(_Named, file).path
            try:
                _in_folder(path.parent, lambda: os.link(name, path))
            except FileExistsError:
                return False
        return True

    def settle(self, keys: Iterable[str]) -> None:
        parents = {folder for key in keys for folder in self._path(key).parents}
        ours = [folder for folder in parents if folder.is_relative_to(self.root)]
        with problems(str(self.root)), ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
            deque(threads.map(_sync_folder, ours), maxlen=0)  # whatever one of them raises, this raises

    def put_new(self, key: str, data: bytes) -> bool:
        with self.scratch() as file:
            file.write(data)
            return self.publish(key, file)

    def jot(self, key: str, data: bytes) -> bool:
        path, folder = self._path(key), self._scratch
        beside = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        with problems(str(path)):
            try:
                with _in_folder(folder, lambda: beside.open("xb")) as file:
                    file.write(data)
                _in_folder(path.parent, lambda: os.link(beside, path))
            except FileExistsError:
                return False
            finally:
                beside.unlink(missing_ok=True)
        return True

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        beside = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        with problems(str(path)):
            _make_folders(path.parent, self.root)
            try:
                with beside.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        with problems(str(path)):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, key: str) -> Bytes | None:
        path = self._path(key)
        with problems(str(path)):
            try:
                mode = path.stat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None
        return LocalBytes(path) if stat.S_ISREG(mode) else None

    def list(self, prefix: str) -> Iterator[Listed]:
        folder = self.root / prefix if prefix else self.root
        with problems(str(folder)):
            for parent, folders, files in os.walk(folder, onerror=_unless_gone):
                folders.sort()
                # A window has a file for each of its parts, and whoever waits for others lists them often.
                below = Path(parent).relative_to(self.root).parts
                for name in sorted(files):
                    if not name.startswith(_UNFINISHED):
                        with suppress(FileNotFoundError):
                            size = os.stat(f"{parent}/{name}").st_size  # noqa: PTH116
                            yield Listed("/".join((*below, name)), size)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with problems(str(path)):
                path.unlink(missing_ok=True)
            _prune(path.parent, self.root)

    def where(self, key: str) -> str:
        return f"{self.root}/{key}"

    def store(self) -> Store:
        from tidegate.state.local import LocalStore

        return LocalStore(self.root / "_tidegate" / "state")

    @cached_property
    def _scratch(self) -> Path:
        """On the same file system, so that a file can become an object by a new name alone."""
        return self.root / "_tidegate" / "scratch"

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise ArchiveError("a key is a relative path without `..`", where=key)
        return self.root / key


class _Named:
    """A file that knows the name it is written under."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self.path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclass(frozen=True)
class LocalBytes:
    """A local file, read in ranges. It stays open while it is used, and no longer."""

    path: Path
    piece = 1 << 20

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        with problems(self.where):
            return self.path.stat().st_size

    def read(self, offset: int, length: int) -> bytes:
        with problems(self.where), self.path.open("rb", buffering=0) as file:
            file.seek(offset)
            return _filled(file, length)


@dataclass(frozen=True)
class FileBytes:
    """A file that is still open, read in ranges: a shard is opened as readers do before it has a name."""

    file: BinaryIO
    where: str
    piece = 256 << 10

    @property
    def size(self) -> int:
        return self.file.seek(0, io.SEEK_END)

    def read(self, offset: int, length: int) -> bytes:
        self.file.seek(offset)
        return self.file.read(length)


def _filled(file: io.RawIOBase | BinaryIO, length: int) -> bytes:
    pieces = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _unless_gone(error: OSError) -> None:
    """A folder that is gone holds nothing; one that cannot be read may hold anything."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _in_folder(folder: Path, act: Callable[[], _T]) -> _T:
    """Do what needs a folder. It is made, with those above it, only where it turns out to be missing."""
    try:
        return act()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return act()


def _make_folders(folder: Path, root: Path) -> None:
    """Make a folder and those above it; each new one is synced, or a power cut could take it away."""
    if folder.is_dir():
        return
    if folder != root:
        _make_folders(folder.parent, root)
    folder.mkdir(parents=folder == root, exist_ok=True)
    _sync_folder(folder.parent)


def _prune(folder: Path, root: Path) -> None:
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


@cache
def _umask() -> int:
    """Files of `mkstemp` are private; an archive is as public as its owner's other files."""
    with _UMASK:  # it can only be read by setting it
        mask = os.umask(0o022)
        os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def problems(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = {
            errno.ENOSPC: "free some space and run it again: nothing was lost",
            errno.EDQUOT: "raise the quota and run it again: nothing was lost",
            errno.EACCES: "give this user the right to write there, or choose another `packer.output_dir`",
            errno.EPERM: "the file system must allow hard links: choose another place",
            errno.EOPNOTSUPP: "the file system must allow hard links: choose another place",
            errno.EROFS: "the file system is read-only: choose another `packer.output_dir`",
        }.get(error.errno or 0)
        raise ArchiveError(
            f"the archive cannot be reached: {error.strerror or error}", where=where, hint=hint
        ) from error
