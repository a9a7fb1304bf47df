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

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.core.errors import DamagedRecord, StateError, TidegateError
from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.delta_log import STATE, DeltaLog, Overtaken, undisturbed
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Store, Stored
from tidegate.state.delta_rows import (
    ASIDE,
    COLUMNS,
    LIVE,
    READ,
    Document,
    Ids,
    Row,
    event_schema,
    is_sound,
    listed,
    partition_name,
    record_rows,
    record_schema,
    stream_key,
    told_event,
)
from tidegate.state.local import LocalStore
from tidegate.state.locks import locked
from tidegate.state.rules import KnownDead, demand_name, demand_turn

if TYPE_CHECKING:
    pass

WATERMARKS = "watermarks"
HISTORY = "pipeline_watermark_history"

_INDEXED = ("watermark_id", "stream_key", "seq")

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
            document = row.understood(self._where(stream)) if row else Document(stream)
            told_already = self._events.transaction(document.key) >= document.seq
            waiting = () if told_already else document.outbox
            lines = self._past(stream, limit)
        told = [told_event(line["details"], f"{self._events.place}, event {line['seq']}") for line in lines]
        told += [Event.from_json(item) for item in waiting]
        return told if limit is None else told[len(told) - min(limit, len(told)) :]

    def set_aside(self, stream: StreamId) -> str:
        demand_name(stream)

        def work() -> str:
            row = self._current().get(stream_key(stream))
            if row is None or is_sound(row, self._where(stream)):
                raise StateError(
                    "the record is not damaged, so it stays where it is", where=self._where(stream)
                )
            key = row.stream_key
            taken = self._records.rows(
                f"SELECT DISTINCT stream_key FROM log WHERE stream_key LIKE '{key}{ASIDE}%'"
            )
            aside = f"{key}{ASIDE}{len(taken) + 1}"
            rows = self._records.rows(f"SELECT * FROM log WHERE stream_key = '{key}'")
            moved = [{**item, "stream_key": aside} for item in rows]
            self._records.commit(moved, instead_of=f"stream_key IN ({listed([key, aside])})")
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
                DeltaLog(f"{place}/{WATERMARKS}", record_schema(), self._options, indexed=_INDEXED),
                DeltaLog(f"{place}/{HISTORY}", event_schema(), self._options, indexed=_INDEXED),
            )
        return self._logs

    def _where(self, stream: StreamId) -> str:
        return f"{self._records.place}, stream {stream}"

    def _current(self) -> dict[str, Row]:
        """The current rows of all streams. They are read again only when somebody else has written."""
        table = self._records.refresh()
        version = -1 if table is None else table.version()
        if version != self._known.version:
            rows = self._records.rows(f"SELECT {COLUMNS} FROM log WHERE {LIVE}")
            self._known = _Known(version, {row["stream_key"]: Row(**row) for row in rows})
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
        with self._alone():
            return undisturbed(work, where=self._records.place, words=STATE)

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
        ids = Ids(self._records.largest("watermark_id"))
        for change in changes:
            key = stream_key(change.stream)
            before = documents.get(key) or self._fresh(change.stream)
            change.document = before if before.token == change.token else None
            if change.document or change.version.done() or not self._has_turn(change, before):
                continue  # it landed before, and only the answer was lost; or it may not be written
            change.document = documents[key] = before.followed_by(
                change.watermark, change.events, token=change.token
            )
            number = rows[key].watermark_id if key in rows else None
            written.append(_Written(key, before.version, record_rows(before, change.document, number, ids)))
        if written:
            self._replace(written)
        for change in changes:
            if change.document is not None:
                change.version.set_result(change.document.version)

    def _documents(self, changes: Sequence[_Change], rows: Mapping[str, Row]) -> dict[str, Document]:
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

    def _has_turn(self, change: _Change, before: Document) -> bool:
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
        live = {item.key: Row(**{name: item.rows[-1][name] for name in READ}) for item in written}
        self._known = _Known(table.version(), {**self._known.rows, **live})

    def _fresh(self, stream: StreamId) -> Document:
        """The first document of a stream, or the first after one that was set aside."""
        self._events.refresh()
        return Document(stream, seq=self._events.transaction(stream_key(stream)))

    def _append(self, documents: Sequence[Document]) -> None:
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
        self.document: Document | None = None
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


@dataclass(frozen=True, slots=True)
class _Known:
    """All current rows, by their stream, as of a version of the table."""

    version: int
    rows: dict[str, Row]


@dataclass(frozen=True, slots=True)
class _Written:
    """Rows of a stream, the current one last, that replace those of its version `old`."""

    key: str
    old: int
    rows: list[dict[str, Any]]
