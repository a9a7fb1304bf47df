"""Watermarks in a local folder.

    watermarks/  one file for each stream: the watermark, and events that are not in the history yet
    history/     one file for each stream, a line for each event, only ever appended to
    leases/      one file for each stream: who holds it
    locks/       empty files to lock, so that the others can be replaced while they are locked

A record is replaced whole: written beside, synced, renamed, and the folder synced. That rename is the
compare-and-set. The events of a write travel inside the record, in its outbox, and so exist exactly when
the write does. The next to replace the record first moves them to the history, at the very place where
the record says the history ends: doing that twice, or half, makes no difference.

Leases are replaced whole too, but not synced: after a power cut nobody on this machine holds one, and a
holder elsewhere whose lease was lost finds out at its next write. So a sync that finds nothing new does
not wait for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate.core.errors import DamagedRecord, OutcomeUnknown, StateError
from tidegate.core.leases import Holder, Lease
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Stored
from tidegate.state.locks import locked
from tidegate.state.names import pipeline_of, stem_of
from tidegate.state.rules import KnownDead, demand_lease, demand_name, demand_turn, grant
from tidegate.state.sealed import damaged, frame_of, framed, opened, seal, unseal


class LocalStore:
    """Watermarks, leases and history in a folder, for all processes that can lock files in it."""

    def __init__(self, path: Path | str, *, known_dead: KnownDead = process.known_dead) -> None:
        self._path = Path(path)
        self._known_dead = known_dead

    def __repr__(self) -> str:
        return f"LocalStore({str(self._path)!r})"

    def read(self, stream: StreamId) -> Stored:
        with _on_disk(self._path):
            return self._stored(self._record(stream))

    def streams(self, pipeline: str | None = None) -> Listing:
        found: list[Stored] = []
        broken: list[Damaged] = []
        with _on_disk(self._path):
            for file in self._record_files():
                try:
                    record = self._load(file)
                except DamagedRecord as error:
                    if pipeline is None or pipeline_of(file.stem) in (pipeline, None):
                        broken.append(Damaged(str(file), error.message))
                    continue
                if record is not None and pipeline in (None, record.stream.pipeline):
                    found.append(self._stored(record))
        return Listing(tuple(sorted(found, key=lambda stored: stored.stream)), tuple(broken))

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        with self._locked(stream):
            record = self._record(stream)
            lease = grant(
                self._stored(record),
                max(record.fence, self._held(stream).fence),
                holder,
                now=now,
                ttl=ttl,
                nonce=nonce,
                known_dead=self._known_dead,
            )
            if not self._file(stream).exists():
                self._replace(record)
            self._set_lease(stream, lease.fence, lease)
        return lease

    def renew(self, stream: StreamId, lease: Lease, *, now: datetime, ttl: timedelta) -> Lease:
        with self._locked(stream):
            demand_lease(Stored(stream, lease=self._held(stream).lease), lease)
            renewed = lease.renewed(now, ttl)
            self._set_lease(stream, renewed.fence, renewed)
        return renewed

    def release(self, stream: StreamId, lease: Lease) -> None:
        with self._locked(stream):
            if not lease.same(self._held(stream).lease):
                return
            self._set_lease(stream, lease.fence, None)
            record = self._record(stream)
            if record.outbox:  # it may be large, and nobody may come for a long time
                self._replace(self._flushed(record))

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        version = expected + 1
        outbox = tuple({"version": version, "event": event.to_json()} for event in events)
        with self._locked(watermark.stream):
            record = self._record(watermark.stream)
            demand_turn(self._stored(record), expected, lease)
            flushed = self._flushed(record)
            self._replace(
                replace(flushed, version=version, fence=lease.fence, watermark=watermark, outbox=outbox)
            )
        return version

    def history(self, stream: StreamId, *, limit: int | None = None) -> list[Event]:
        with _on_disk(self._path):
            record = self._record(stream)
            lines = (self._past(record) + record.outbox_lines).splitlines()
        skipped = 0 if limit is None else max(0, len(lines) - limit)
        return _events(lines[skipped:], self._history_file(stream), skipped)

    def set_aside(self, stream: StreamId) -> str:
        with self._locked(stream):
            try:
                record = self._record(stream)
            except DamagedRecord:
                where = _aside(self._file(stream))
                self._set_lease(stream, self._held(stream).fence, None)
                return str(where)
            return self._set_history_aside(record)

    def close(self) -> None:
        """Nothing stays open between two calls."""

    # --- Records ---------------------------------------------------------------

    def _record(self, stream: StreamId) -> _Record:
        demand_name(stream)
        record = self._load(self._file(stream))
        if record is None:
            return self._fresh(stream)
        if record.stream != stream:
            raise damaged(f"it is the record of {record.stream}", str(self._file(stream)))
        return record

    def _load(self, file: Path) -> _Record | None:
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return None
        record = opened(text, str(file), _Record.from_json)
        if stem_of(record.stream) != file.stem:
            raise damaged(f"it is the record of {record.stream}, under another name", str(file))
        return record

    def _fresh(self, stream: StreamId) -> _Record:
        """The first record of a stream, or the first after one that was set aside or deleted."""
        history = _whole_lines(_content(self._history_file(stream)))
        return _Record(stream, history_bytes=len(history))

    def _replace(self, record: _Record) -> None:
        """Put the record in the place of the old one. The rename is the moment it counts."""
        file = self._file(record.stream)
        _written_beside(file, seal(record.to_json()), sync=os.fsync).replace(file)
        try:
            _sync_folder(file.parent)
        except OSError as error:
            raise OutcomeUnknown(
                f"the record was written, but it is not certain that it would survive a power cut: {error}",
                where=str(file),
            ) from error

    # --- Leases ----------------------------------------------------------------

    def _stored(self, record: _Record) -> Stored:
        return Stored(record.stream, record.version, record.watermark, self._held(record.stream).lease)

    def _held(self, stream: StreamId) -> _Held:
        """Who holds the stream. A lease that cannot be read is none, and its holder is fenced off."""
        try:
            data = unseal(_content(self._lease_file(stream)), str(stream))
            held = _Held(data["fence"], None if data["lease"] is None else Lease.from_json(data["lease"]))
            demand_shape(held, _Held)
        except (DamagedRecord, KeyError, TypeError, ValueError, AttributeError):
            return _Held(0, None)
        return held

    def _set_lease(self, stream: StreamId, fence: int, lease: Lease | None) -> None:
        file = self._lease_file(stream)
        data = {"fence": fence, "lease": lease.to_json() if lease else None}
        _written_beside(file, seal(data), sync=None).replace(file)

    # --- History ---------------------------------------------------------------

    def _past(self, record: _Record) -> bytes:
        """The part of the history file that the record vouches for."""
        content = _content(self._history_file(record.stream))[: record.history_bytes]
        if len(content) < record.history_bytes or content != _whole_lines(content):
            raise damaged(
                f"the history ends after {len(content)} bytes, and {record.history_bytes} were written",
                str(self._history_file(record.stream)),
            )
        return content

    def _flushed(self, record: _Record) -> _Record:
        """The record with its outbox moved to the history, durably."""
        lines = record.outbox_lines
        if not lines:
            return record
        file = self._history_file(record.stream)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            end = _end_of_history(descriptor, record, file)
            _write_at(descriptor, lines, end)
            os.ftruncate(descriptor, end + len(lines))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(file.parent)
        return replace(record, history_bytes=end + len(lines), outbox=())

    def _set_history_aside(self, record: _Record) -> str:
        file = self._history_file(record.stream)
        try:
            _events(self._past(record).splitlines(), file)
        except DamagedRecord:
            where = _aside(file) if file.exists() else file
            self._replace(replace(record, history_bytes=0))
            return str(where)
        raise StateError(
            "the record is not damaged, so it stays where it is", where=str(self._file(record.stream))
        )

    # --- Files -----------------------------------------------------------------

    def _record_files(self) -> list[Path]:
        try:
            with os.scandir(self._path / "watermarks") as entries:
                return sorted(Path(entry.path) for entry in entries if _is_record(entry))
        except FileNotFoundError:
            return []

    def _file(self, stream: StreamId) -> Path:
        return self._path / "watermarks" / f"{stem_of(stream)}.json"

    def _lease_file(self, stream: StreamId) -> Path:
        return self._path / "leases" / f"{stem_of(stream)}.json"

    def _history_file(self, stream: StreamId) -> Path:
        return self._path / "history" / f"{stem_of(stream)}.jsonl"

    @contextlib.contextmanager
    def _locked(self, stream: StreamId) -> Iterator[None]:
        demand_name(stream)
        with _on_disk(self._path):
            for folder in ("watermarks", "history", "leases", "locks"):
                _make_folder(self._path / folder)
            with locked(self._path / "locks" / f"{stem_of(stream)}.lock"):
                yield


@dataclass(frozen=True, slots=True)
class _Held:
    fence: int
    """The largest that was ever given for the stream, as far as this file knows."""
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class _Record:
    stream: StreamId
    version: int = 0
    fence: int = 0
    """That of the lease it was written under."""
    watermark: Watermark | None = None
    history_bytes: int = 0
    """How much of the history file belongs to the stream's past; what lies behind was never finished."""
    outbox: tuple[dict[str, Any], ...] = ()
    """Events of the last write, which come next in the history."""

    @property
    def outbox_lines(self) -> bytes:
        return b"".join(json.dumps(item).encode() + b"\n" for item in self.outbox)

    def to_json(self) -> dict[str, Any]:
        return framed(
            self.stream,
            self.watermark,
            version=self.version,
            fence=self.fence,
            history_bytes=self.history_bytes,
            outbox=list(self.outbox),
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Record:
        stream, watermark = frame_of(data)
        bare = cls(
            stream=stream,
            version=data["version"],
            fence=data["fence"],
            history_bytes=data["history_bytes"],
            outbox=tuple(data["outbox"]),
        )
        demand_shape(bare, cls)
        return replace(bare, watermark=watermark)


def _events(lines: Sequence[bytes], file: Path, skipped: int = 0) -> list[Event]:
    return [_event(line, f"{file}, line {number}") for number, line in enumerate(lines, skipped + 1)]


def _event(line: bytes, where: str) -> Event:
    try:
        return Event.from_json(json.loads(line)["event"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"not a line of history: {error!r}", where) from error


def _is_record(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".json") and not entry.name.startswith(".") and entry.is_file()


# --- Reading and writing -----------------------------------------------------


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """Say in words what the operating system refused."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        raise StateError(
            f"the state cannot be read or written: {error.strerror or error}",
            where=where,
            hint=_hint(error),
        ) from error


def _hint(error: OSError) -> str | None:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return "make room; what was committed before is intact, so run it again afterwards"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "the folder and its files must be writable for the user who runs this"
        case errno.ENOTDIR | errno.EEXIST:
            return "the path of the state must be a folder"
        case _:
            return None


def _written_beside(file: Path, text: str, *, sync: Callable[[int], None] | None) -> Path:
    """The text in a file beside `file`, to be renamed to it."""
    beside = file.with_name(f".{file.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write_at(descriptor, text.encode(), 0)
        if sync is not None:
            sync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # a leftover does no harm: the next write starts it afresh
            beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return beside


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_history(descriptor: int, record: _Record, file: Path) -> int:
    """Where the outbox belongs: behind what the record vouches for, over what was left half-written.

    Lines of history that this record knows nothing of stay: somebody has put an older record back.
    """
    size = os.fstat(descriptor).st_size
    if size < record.history_bytes:
        raise damaged(
            f"the history ends after {size} bytes, and {record.history_bytes} were written", str(file)
        )
    tail = os.pread(descriptor, size - record.history_bytes, record.history_bytes)
    if record.outbox_lines.startswith(tail) or not _is_history(tail):
        return record.history_bytes
    return record.history_bytes + len(_whole_lines(tail))


def _is_history(tail: bytes) -> bool:
    """Whether these are lines that were finished once, and not the traces of a power cut."""
    try:
        _event(tail.partition(b"\n")[0], "")
    except DamagedRecord:
        return False
    return True


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _aside(file: Path) -> Path:
    """Rename a damaged file to a name that is free. The caller holds the lock."""
    number = 1
    while (free := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    file.rename(free)
    _sync_folder(file.parent)
    return free
