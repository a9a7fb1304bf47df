"""Watermarks in Delta tables that any Delta reader understands.

    watermarks/                  a row for each record: each stream's current one, and those that are done
    pipeline_watermark_history/  a row for each event, only ever appended to
    _leases/                     who holds which stream: beside the log, since a heartbeat is no news

The current row of a stream carries its whole state as a sealed document. A write replaces that row in one
commit, which is made on the very version that was read, so it is the compare-and-set. Rows of records that
are done stay: they carry the version after which they never changed, and only younger ones are replaced.

The events of a write travel inside the document and so exist exactly when the write does; they are appended
to the history right afterwards, and if that was interrupted, by whoever writes next. The history's own log
remembers how many of a stream's events it has, so doing that twice makes no difference.

A lease is checked before a commit and lies outside of it: a write by a holder that lost its lease at that
very moment can still land, as if it had been a little quicker. Whoever took over then finds another version
than it read, and nothing of either is lost.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from tidegate.core import watermark as watermarks
from tidegate.core.errors import DamagedRecord, StateError, TidegateError
from tidegate.core.leases import Holder, Lease
from tidegate.core.records import closed, current, run_status
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Store, Stored
from tidegate.state.delta_log import LOG_VERSION, DeltaLog, Overtaken
from tidegate.state.local import LocalStore
from tidegate.state.locks import locked
from tidegate.state.rules import KnownDead, demand_name, demand_turn
from tidegate.state.sealed import damaged, opened, seal

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
WATERMARKS = "watermarks"
HISTORY = "pipeline_watermark_history"

_PATIENCE_SECONDS = 60.0
_ASIDE = ".damaged-"

T = TypeVar("T")


class DeltaStore:
    """Watermarks, leases and history in Delta tables. Threads may share a store: their writes go together."""

    def __init__(
        self,
        path: Path | str,
        *,
        leases: Store | None = None,
        options: Mapping[str, str] | None = None,
        known_dead: KnownDead = process.known_dead,
    ) -> None:
        self._place = str(path)
        self._local = None if "://" in self._place else Path(path)
        self._leases = leases or LocalStore(Path(path) / "_leases", known_dead=known_dead)
        self._options = dict(options or {})
        self._turn = threading.RLock()
        self._waiting: list[_Change] = []
        self._guard = threading.Lock()
        self._logs: tuple[DeltaLog, DeltaLog] | None = None
        self._known = _Known(-1, {})

    def __repr__(self) -> str:
        return f"DeltaStore({self._place!r})"

    def read(self, stream: StreamId) -> Stored:
        demand_name(stream)
        with self._turn:
            row = self._current().get(stream_key(stream))
        held = self._leases.read(stream).lease
        return row.understood(self._where(stream)).stored(held) if row else Stored(stream, lease=held)

    def streams(self, pipeline: str | None = None) -> Listing:
        with self._turn:
            rows = list(self._current().values())
        taken = {stored.stream: stored.lease for stored in self._leases.streams(pipeline).streams}
        found = {stream: Stored(stream, lease=lease) for stream, lease in taken.items()}
        broken: list[Damaged] = []
        for row in rows:
            where = f"{self._records.place}, stream {row.pipeline_name}/{row.table_name}"
            try:
                document = row.understood(where)
            except DamagedRecord as error:
                if pipeline is None or row.pipeline_name == partition_name(pipeline):
                    broken.append(Damaged(where, error.message))
                    found = {
                        stream: item for stream, item in found.items() if stream_key(stream) != row.stream_key
                    }
                continue
            if pipeline in (None, document.stream.pipeline):
                found[document.stream] = document.stored(taken.get(document.stream))
        ordered = sorted(found.values(), key=lambda stored: stored.stream)
        return Listing(tuple(ordered), tuple(sorted(broken, key=lambda item: item.where)))

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        demand_name(stream)
        with self._turn:
            row = self._current().get(stream_key(stream))
        if row is not None:
            row.understood(self._where(stream))  # what cannot be understood is not for anybody to hold
        return self._leases.acquire(stream, holder, now=now, ttl=ttl, nonce=nonce)

    def renew(self, stream: StreamId, lease: Lease, *, now: datetime, ttl: timedelta) -> Lease:
        return self._leases.renew(stream, lease, now=now, ttl=ttl)

    def release(self, stream: StreamId, lease: Lease) -> None:
        self._leases.release(stream, lease)

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        demand_name(watermark.stream)
        change = _Change(watermark, expected, lease, tuple(events))
        with self._guard:
            self._waiting.append(change)
        with self._turn:  # whoever comes first writes for all that wait
            if not change.version.done():
                with self._guard:
                    together, self._waiting = self._waiting, []
                self._land(together)
        return change.version.result()

    def history(self, stream: StreamId, *, limit: int | None = None) -> list[Event]:
        demand_name(stream)
        with self._turn:
            row = self._current().get(stream_key(stream))
            self._events.refresh()
            document = row.understood(self._where(stream)) if row else _Document(stream)
            told_already = self._events.transaction(document.key) >= document.seq
            waiting = () if told_already else document.outbox
            lines = self._past(stream, limit)
        told = [_event(line["details"], f"{self._events.place}, event {line['seq']}") for line in lines]
        told += [Event.from_json(item) for item in waiting]
        return told if limit is None else told[len(told) - min(limit, len(told)) :]

    def set_aside(self, stream: StreamId) -> str:
        demand_name(stream)

        def work() -> str:
            row = self._current().get(stream_key(stream))
            if row is None or _is_sound(row, self._where(stream)):
                raise StateError(
                    "the record is not damaged, so it stays where it is", where=self._where(stream)
                )
            key = row.stream_key
            taken = self._records.rows(
                f"SELECT DISTINCT stream_key FROM log WHERE stream_key LIKE '{key}{_ASIDE}%'"
            )
            aside = f"{key}{_ASIDE}{len(taken) + 1}"
            rows = self._records.rows(f"SELECT * FROM log WHERE stream_key = '{key}'")
            moved = [{**item, "stream_key": aside} for item in rows]
            self._records.commit(moved, instead_of=f"stream_key IN ({_listed([key, aside])})")
            return f"{self._records.place}, stream_key {aside}"

        with self._turn:
            where = self._undisturbed(work)
        held = self._leases.read(stream).lease
        if held is not None:
            self._leases.release(stream, held)
        return where

    def close(self) -> None:
        with self._turn:
            self._logs, self._known = None, _Known(-1, {})
        self._leases.close()

    # --- Tables ----------------------------------------------------------------

    @property
    def _records(self) -> DeltaLog:
        return self._opened()[0]

    @property
    def _events(self) -> DeltaLog:
        return self._opened()[1]

    def _opened(self) -> tuple[DeltaLog, DeltaLog]:
        if self._logs is None:
            place = self._place.rstrip("/")
            self._logs = (
                DeltaLog(f"{place}/{WATERMARKS}", record_schema(), self._options),
                DeltaLog(f"{place}/{HISTORY}", event_schema(), self._options),
            )
        return self._logs

    def _where(self, stream: StreamId) -> str:
        return f"{self._records.place}, stream {stream}"

    def _current(self) -> dict[str, _Row]:
        """The current rows of all streams. They are read again only when somebody else has written."""
        table = self._records.refresh()
        version = -1 if table is None else table.version()
        if version != self._known.version:
            rows = self._records.rows(f"SELECT {_COLUMNS} FROM log WHERE {_LIVE}")
            self._known = _Known(version, {row["stream_key"]: _Row(**row) for row in rows})
        return self._known.rows

    def _past(self, stream: StreamId, limit: int | None) -> list[dict[str, Any]]:
        newest = "" if limit is None else f" LIMIT {int(limit)}"
        query = f"SELECT seq, details FROM log WHERE stream_key = '{stream_key(stream)}'"
        return self._events.rows(f"{query} ORDER BY seq DESC{newest}")[::-1]

    # --- Writing ---------------------------------------------------------------

    def _land(self, changes: list[_Change]) -> None:
        """Write what may be written in one commit, and tell each writer how its change ended."""
        try:
            self._undisturbed(lambda: self._attempt(changes))
        except Exception as error:  # noqa: BLE001 - every writer that waits raises it
            for change in changes:
                change.fail(error)
            return
        # It has landed. What is missing in the history or left untidy is the next writer's to do.
        with suppress(TidegateError, Overtaken):
            self._append(
                [change.document for change in changes if change.document and change.document.outbox]
            )
            self._records.tidy()
            self._events.tidy()

    def _undisturbed(self, work: Callable[[], T]) -> T:
        """Do the work on the newest version, again and again until nobody got in the way."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with self._alone():
            for attempt in range(1, 1000):
                try:
                    return work()
                except Overtaken:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(random.uniform(0, 0.02 * min(attempt, 20)))
        raise StateError(
            f"others kept writing for {_PATIENCE_SECONDS:g} s; nothing was written",
            where=self._records.place,
            hint="run it again",
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """On one machine, writers wait for each other: quicker than finding out that one was overtaken."""
        if self._local is None:
            yield
            return
        self._local.mkdir(parents=True, exist_ok=True)
        with locked(self._local / "_writing.lock"):
            yield

    def _attempt(self, changes: list[_Change]) -> None:
        self._records.ensure()
        rows = self._current()
        documents = self._documents(changes, rows)
        self._append([document for document in documents.values() if document.outbox])
        written: list[_Written] = []
        ids = _Ids(self._records.largest("watermark_id"))
        for change in changes:
            key = stream_key(change.stream)
            before = documents.get(key) or self._fresh(change.stream)
            change.document = before if before.token == change.token else None
            if change.document or change.version.done() or not self._has_turn(change, before):
                continue  # it landed before, and only the answer was lost; or it may not be written
            change.document = documents[key] = before.followed_by(change)
            number = rows[key].watermark_id if key in rows else None
            written.append(_Written(key, before.version, _record_rows(before, change.document, number, ids)))
        if written:
            self._replace(written)
        for change in changes:
            if change.document is not None:
                change.version.set_result(change.document.version)

    def _documents(self, changes: Sequence[_Change], rows: Mapping[str, _Row]) -> dict[str, _Document]:
        """What there is of the streams that are to be written. A damaged record fails its change alone."""
        found = {}
        for change in changes:
            row = rows.get(stream_key(change.stream))
            try:
                if row is not None:
                    found[row.stream_key] = row.understood(self._where(change.stream))
            except DamagedRecord as error:
                change.fail(error)
        return found

    def _has_turn(self, change: _Change, before: _Document) -> bool:
        try:
            held = self._leases.read(change.stream).lease
            demand_turn(before.stored(held), change.expected, change.lease)
        except TidegateError as error:
            change.fail(error)
            return False
        return True

    def _replace(self, written: Sequence[_Written]) -> None:
        """This commit moves the marks, or does nothing."""
        replaced = " OR ".join(f"(stream_key = '{item.key}' AND version >= {item.old})" for item in written)
        table = self._records.commit([row for item in written for row in item.rows], instead_of=replaced)
        live = {item.key: _Row(**{name: item.rows[-1][name] for name in _READ}) for item in written}
        self._known = _Known(table.version(), {**self._known.rows, **live})

    def _fresh(self, stream: StreamId) -> _Document:
        """The first document of a stream, or the first after one that was set aside."""
        self._events.refresh()
        return _Document(stream, seq=self._events.transaction(stream_key(stream)))

    def _append(self, documents: Sequence[_Document]) -> None:
        """Append events to the history that are not there yet."""
        if not documents:
            return
        self._events.ensure()
        self._events.refresh()
        missing = [item for item in documents if self._events.transaction(item.key) < item.seq]
        if missing:
            self._events.commit(
                [row for document in missing for row in document.event_rows()],
                transactions={document.key: document.seq for document in missing},
            )


class _Change:
    """A write that waits for its turn."""

    def __init__(self, watermark: Watermark, expected: int, lease: Lease, events: tuple[Event, ...]) -> None:
        self.watermark = watermark
        self.stream = watermark.stream
        self.expected = expected
        self.lease = lease
        self.events = events
        self.token = secrets.token_hex(8)
        """Tells its own document from another's, when the answer to a commit was lost."""
        self.version: Future[int] = Future()
        self.document: _Document | None = None
        """What it becomes, once it is known that it may be written."""

    def fail(self, error: Exception) -> None:
        if not self.version.done():
            self.version.set_exception(_copy(error))


def _copy(error: Exception) -> Exception:
    """Each thread raises an error of its own: a traceback belongs to one of them."""
    if isinstance(error, TidegateError):
        copied = type(error)(error.message, where=error.where, hint=error.hint)
        copied.__cause__ = error
        return copied
    return error


# --- Documents and rows ----------------------------------------------------------

_LIVE = f"document IS NOT NULL AND stream_key NOT LIKE '%{_ASIDE}%'"
_READ = ("watermark_id", "pipeline_name", "table_name", "stream_key", "document")
_COLUMNS = ", ".join(_READ)


@dataclass(frozen=True, slots=True)
class _Known:
    """All current rows, by their stream, as of a version of the table."""

    version: int
    rows: dict[str, _Row]


@dataclass(frozen=True, slots=True)
class _Written:
    """Rows of a stream, the current one last, that replace those of its version `old`."""

    key: str
    old: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A stream's current row, as far as the store needs it."""

    watermark_id: int
    pipeline_name: str | None
    table_name: str | None
    stream_key: str
    document: str | None

    def understood(self, where: str) -> _Document:
        document = opened(self.document or "", where, _Document.from_json)
        if stream_key(document.stream) != self.stream_key:
            raise damaged(f"it is the record of {document.stream}", where)
        return document


@dataclass(frozen=True, slots=True)
class _Document:
    """All there is to know of a stream."""

    stream: StreamId
    version: int = 0
    seq: int = 0
    """How many events the stream has had, with those in the outbox."""
    watermark: Watermark | None = None
    outbox: tuple[dict[str, Any], ...] = ()
    """Events of the last write, which come next in the history."""
    token: str = ""
    """Of the change that made it."""

    @property
    def key(self) -> str:
        return stream_key(self.stream)

    def stored(self, lease: Lease | None) -> Stored:
        return Stored(self.stream, self.version, self.watermark, lease)

    def followed_by(self, change: _Change) -> _Document:
        return replace(
            self,
            version=change.expected + 1,
            seq=self.seq + len(change.events),
            watermark=change.watermark,
            outbox=tuple(event.to_json() for event in change.events),
            token=change.token,
        )

    def event_rows(self) -> list[dict[str, Any]]:
        first = self.seq - len(self.outbox) + 1
        return [self._event_row(seq, item) for seq, item in enumerate(self.outbox, start=first)]

    def _event_row(self, seq: int, item: dict[str, Any]) -> dict[str, Any]:
        assert self.watermark is not None
        row = asdict(current(self.watermark))
        return {
            **{name: row.get(name) for name in event_schema().names},
            "pipeline_name": partition_name(self.stream.pipeline),
            "run_id": item["run_id"],
            "event": item["kind"],
            "status": run_status(self.watermark),
            "at": datetime.fromisoformat(item["at"]),
            "records_processed": item.get("rows") if isinstance(item.get("rows"), int) else None,
            "error_message": item.get("error"),
            "details": json.dumps(item),
            "stream_key": self.key,
            "seq": seq,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "pipeline": self.stream.pipeline,
            "name": self.stream.name,
            "version": self.version,
            "seq": self.seq,
            "outbox": list(self.outbox),
            "token": self.token,
            "watermark": watermarks.to_json(self.watermark) if self.watermark else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Document:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
        document = cls(
            stream=StreamId(data["pipeline"], data["name"]),
            version=data["version"],
            seq=data["seq"],
            watermark=None if data["watermark"] is None else watermarks.from_json(data["watermark"]),
            outbox=tuple(data["outbox"]),
            token=data["token"],
        )
        demand_shape(replace(document, watermark=None), cls)  # the watermark has been checked
        return document


class _Ids:
    """Numbers for new records. Commits are made one after another, so no two records get the same."""

    def __init__(self, last: int) -> None:
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last


def _record_rows(before: _Document, after: _Document, number: int | None, ids: _Ids) -> list[dict[str, Any]]:
    """The stream's current row, and before it the row of the record that this change closes, if it does."""
    assert after.watermark is not None
    rows = []
    done = closed(before.watermark, after.watermark)
    if done is not None:
        rows.append(_columns(before, asdict(done), number or ids.next()))
        number = None
    live = _columns(after, asdict(current(after.watermark)), number or ids.next())
    return [*rows, {**live, "document": seal(after.to_json())}]


def _columns(document: _Document, row: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        **row,
        "watermark_id": number,
        "run_id": row["job_id"],
        "pipeline_name": partition_name(document.stream.pipeline),
        "stream_key": document.key,
        "version": document.version,
        "document": None,
    }


@cache
def record_schema() -> pa.Schema:
    import pyarrow as pa

    text, number, moment = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            ("watermark_id", pa.int32()),
            ("pipeline_name", text),
            ("job_id", text),
            ("last_processed_ts", moment),
            ("current_run_ts", moment),
            ("last_processed_version", number),
            ("status", text),
            ("created_at", moment),
            ("updated_at", moment),
            ("table_name", text),
            ("run_id", text),
            ("start_version", number),
            ("end_version", number),
            ("schema_version", text),
            ("records_processed", number),
            ("execution_duration", pa.float64()),
            ("error_message", text),
            ("failed_at", moment),
            ("stream_key", text),
            ("version", number),
            ("document", text),
            (LOG_VERSION, number),
        ]
    )


@cache
def event_schema() -> pa.Schema:
    import pyarrow as pa

    text, number, moment = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            ("pipeline_name", text),
            ("table_name", text),
            ("run_id", text),
            ("event", text),
            ("status", text),
            ("at", moment),
            ("last_processed_ts", moment),
            ("current_run_ts", moment),
            ("start_version", number),
            ("end_version", number),
            ("schema_version", text),
            ("records_processed", number),
            ("execution_duration", pa.float64()),
            ("error_message", text),
            ("details", text),
            ("stream_key", text),
            ("seq", number),
            (LOG_VERSION, number),
        ]
    )


def _event(text: str, where: str) -> Event:
    try:
        return Event.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"not a line of history: {error!r}", where) from error


def _is_sound(row: _Row, where: str) -> bool:
    try:
        row.understood(where)
    except DamagedRecord:
        return False
    return True


# --- Names ---------------------------------------------------------------------

_LONGEST = 200
_KEPT = 60


def stream_key(stream: StreamId) -> str:
    """A text for the stream that no other stream has, and that needs no quoting anywhere."""
    return hashlib.sha256(json.dumps([stream.pipeline, stream.name]).encode()).hexdigest()[:40]


def partition_name(pipeline: str) -> str:
    """What the column `pipeline_name` says: it also names a folder, so it cannot be of any length."""
    if len(quote(pipeline)) <= _LONGEST:
        return pipeline
    end = hashlib.sha256(pipeline.encode()).hexdigest()[:16]
    kept = pipeline[:_KEPT]
    while len(quote(kept)) > _LONGEST:
        kept = kept[: len(kept) // 2]
    return f"{kept}~{end}"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"'{key}'" for key in sorted(set(keys)))
