"""Watermarks in a SQL database: SQLite, PostgreSQL, MySQL or MariaDB.

Every change is one conditional UPDATE of a stream's row: it names the version it replaces and the lease it
is made under, and zero rows mean that nothing was written. The events of a write go in the same
transaction. A stream is found by a hash of its name, so that neither collations nor the length of keys
matter.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tidegate.core import watermark as watermarks
from tidegate.core.errors import (
    Conflict,
    ConnectError,
    DamagedRecord,
    OutcomeUnknown,
    StateError,
    TidegateError,
)
from tidegate.core.leases import Holder, Lease
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.reach.login import DIRECT, Way
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Stored
from tidegate.state.databases import Connection, Database, Failure, database
from tidegate.state.rules import KnownDead, demand_lease, demand_name, demand_turn, grant
from tidegate.state.sealed import damaged, said, seal, unseal

_ATTEMPTS = 5
"""How often an operation is tried that meets deadlocks, or finds that others were quicker."""

T = TypeVar("T")
_Row = tuple[Any, ...]


class SqlStore:
    """Watermarks, leases and history in a database. Threads may share a store; they take turns."""

    def __init__(
        self,
        url: str,
        *,
        way: Way = DIRECT,
        known_dead: KnownDead = process.known_dead,
    ) -> None:
        self._database = database(url, way)
        self._known_dead = known_dead
        self._session: _Session | None = None
        self._turn = threading.RLock()

    def __repr__(self) -> str:
        return f"SqlStore({self._database.place!r})"

    def read(self, stream: StreamId) -> Stored:
        return self._perform(lambda session: self._stored(session, stream))

    def streams(self, pipeline: str | None = None) -> Listing:
        found: list[Stored] = []
        broken: list[Damaged] = []
        for row in self._perform(lambda session: session.rows(f"SELECT {_COLUMNS} FROM tidegate_watermarks")):
            record = _Record(*row)
            if pipeline not in (None, record.pipeline):
                continue
            where = self._where(record.pipeline, record.name)
            try:
                found.append(record.understood(where))
            except DamagedRecord as error:
                broken.append(Damaged(where, error.message))
        found.sort(key=lambda stored: stored.stream)
        return Listing(tuple(found), tuple(sorted(broken, key=lambda item: item.where)))

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        demand_name(stream)

        def attempt(session: _Session) -> Lease | None:
            record = self._record(session, stream)
            if record is None:
                self._insert(session, stream)
                return None
            stored = record.understood(self._where(*_parts(stream)))
            lease = grant(
                stored, record.fence, holder, now=now, ttl=ttl, nonce=nonce, known_dead=self._known_dead
            )
            # The old lease is compared as a whole: one that was renewed meanwhile is not taken over.
            taken = session.changed(
                "UPDATE tidegate_watermarks SET fence = ?, lease = ?, lease_nonce = ?"
                " WHERE stream_key = ? AND fence = ? AND lease = ?",
                (lease.fence, seal(lease.to_json()), nonce, _key(stream), record.fence, record.lease),
            )
            return lease if taken else None

        return self._until_done(attempt, stream)

    def renew(self, stream: StreamId, lease: Lease, *, now: datetime, ttl: timedelta) -> Lease:
        renewed = lease.renewed(now, ttl)

        def attempt(session: _Session) -> Lease | None:
            if self._set_lease(session, stream, lease, (seal(renewed.to_json()), renewed.nonce)):
                return renewed
            demand_lease(self._stored(session, stream), lease)
            return None

        return self._until_done(attempt, stream)

    def release(self, stream: StreamId, lease: Lease) -> None:
        self._perform(lambda session: self._set_lease(session, stream, lease, ("", "")))

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        version = expected + 1
        document = seal(watermarks.to_json(watermark))

        def attempt(session: _Session) -> int | None:
            demand_turn(self._stored(session, watermark.stream), expected, lease)
            with session.transaction():
                # This line moves the mark, or does nothing.
                landed = session.changed(
                    "UPDATE tidegate_watermarks SET version = ?, document = ?"
                    " WHERE stream_key = ? AND version = ? AND lease_nonce = ? AND fence = ?",
                    (version, document, _key(watermark.stream), expected, lease.nonce, lease.fence),
                )
                if landed:
                    self._append(session, watermark.stream, version, events)
            return version if landed else None

        return self._until_done(attempt, watermark.stream)

    def history(self, stream: StreamId, *, limit: int | None = None) -> list[Event]:
        sql = "SELECT seq, event FROM tidegate_history WHERE stream_key = ? ORDER BY seq DESC"
        if limit is not None:
            sql += f" LIMIT {int(limit)}"
        rows = self._perform(lambda session: session.rows(sql, (_key(stream),)))
        return [_event(text, f"{self._where(*_parts(stream))}, event {seq}") for seq, text in reversed(rows)]

    def set_aside(self, stream: StreamId) -> str:
        def work(session: _Session) -> str:
            with session.transaction():
                record = self._record(session, stream)
                where = self._where(*_parts(stream))
                if record is None or _is_sound(record, where):
                    raise StateError("the record is not damaged, so it stays where it is", where=where)
                return self._move_aside(session, stream)

        return self._perform(work)

    def close(self) -> None:
        with self._turn:
            self._drop()

    # --- Rows ------------------------------------------------------------------

    def _where(self, pipeline: object, name: object) -> str:
        return f"{self._database.place}, table tidegate_watermarks, stream {pipeline}/{name}"

    def _record(self, session: _Session, stream: StreamId) -> _Record | None:
        rows = session.rows(
            f"SELECT {_COLUMNS} FROM tidegate_watermarks WHERE stream_key = ?", (_key(stream),)
        )
        return _Record(*rows[0]) if rows else None

    def _stored(self, session: _Session, stream: StreamId) -> Stored:
        record = self._record(session, stream)
        return record.understood(self._where(*_parts(stream))) if record else Stored(stream)

    def _insert(self, session: _Session, stream: StreamId) -> None:
        """A row for a new stream. Its fences go on from those of a record that was set aside."""
        lost = session.rows("SELECT fence FROM tidegate_set_aside WHERE stream_key = ?", (_key(stream),))
        fence = max((fence for (fence,) in lost if isinstance(fence, int)), default=0)
        insert, unless_there = self._database.insert_if_absent
        session.changed(
            f"{insert} INTO tidegate_watermarks ({_COLUMNS}, lease_nonce)"
            f" VALUES (?, ?, ?, 0, ?, '', '', '') {unless_there}",
            (_key(stream), stream.pipeline, stream.name, fence),
        )

    def _set_lease(self, session: _Session, stream: StreamId, old: Lease, new: tuple[str, str]) -> bool:
        return session.changed(
            "UPDATE tidegate_watermarks SET lease = ?, lease_nonce = ?"
            " WHERE stream_key = ? AND lease_nonce = ? AND fence = ?",
            (*new, _key(stream), old.nonce, old.fence),
        )

    def _append(self, session: _Session, stream: StreamId, version: int, events: Sequence[Event]) -> None:
        """Add to the history. The stream's row is locked, so nobody else is counting at the same time."""
        if not events:
            return
        [(last,)] = session.rows(
            "SELECT COALESCE(MAX(seq), 0) FROM tidegate_history WHERE stream_key = ?", (_key(stream),)
        )
        for seq, event in enumerate(events, start=last + 1):
            session.changed(
                "INSERT INTO tidegate_history (stream_key, pipeline, name, seq, version, event)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (_key(stream), *_parts(stream), seq, version, json.dumps(event.to_json())),
            )

    def _move_aside(self, session: _Session, stream: StreamId) -> str:
        key = _key(stream)
        [(last,)] = session.rows(
            "SELECT COALESCE(MAX(number), 0) FROM tidegate_set_aside WHERE stream_key = ?", (key,)
        )
        session.changed(
            f"INSERT INTO tidegate_set_aside ({_COLUMNS}, number)"
            f" SELECT {_COLUMNS}, {last + 1} FROM tidegate_watermarks WHERE stream_key = ?",
            (key,),
        )
        session.changed("DELETE FROM tidegate_watermarks WHERE stream_key = ?", (key,))
        return f"{self._database.place}, table tidegate_set_aside, stream {stream}, number {last + 1}"

    # --- The connection --------------------------------------------------------

    def _until_done(self, attempt: Callable[[_Session], T | None], stream: StreamId) -> T:
        """Try again while others change the row between our look and our change."""
        for _ in range(_ATTEMPTS * _ATTEMPTS):
            done = self._perform(attempt)
            if done is not None:
                return done
        raise Conflict(
            "others kept changing the record; nothing was written", where=str(stream), hint="run it again"
        )

    def _perform(self, work: Callable[[_Session], T]) -> T:
        """Do `work`, and do it again where that is safe.

        Whatever a lost connection cut short, except a commit, had no effect or may be repeated: every
        statement here says which state it expects. An idle connection that the server has closed is
        therefore replaced without a word.
        """
        with self._turn:
            for attempt in range(1, _ATTEMPTS + 1):
                fresh = self._session is None
                try:
                    return work(self._opened())
                except _Lost as error:
                    self._drop()
                    if fresh or attempt == _ATTEMPTS:
                        raise ConnectError(
                            f"the connection to the state database was lost: {error}",
                            where=self._database.place,
                            hint="run it again",
                        ) from error
                except _Busy as error:
                    if attempt == _ATTEMPTS:
                        raise StateError(
                            f"others kept the state database busy: {error}",
                            where=self._database.place,
                            hint="run it again; if it stays so, look for a transaction that never ends",
                        ) from error
                    time.sleep(0.01 * attempt)
                except TidegateError as error:
                    if isinstance(error, OutcomeUnknown):
                        self._drop()
                    raise
                except BaseException:
                    # Cut short in mid-answer: what the connection says next may answer an older question.
                    self._drop()
                    raise
        raise AssertionError("unreachable")

    def _opened(self) -> _Session:
        if self._session is None:
            session = _Session(self._database, self._database.connect())
            try:
                session.create_tables()
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


# --- Records -----------------------------------------------------------------

_COLUMNS = "stream_key, pipeline, name, version, fence, document, lease"


@dataclass(frozen=True, slots=True)
class _Record:
    """A row as it was read: nothing in it is believed yet."""

    key: str
    pipeline: str
    name: str
    version: int
    fence: int
    document: str
    """Empty before the first write."""
    lease: str
    """Empty while nobody holds the stream."""

    def understood(self, where: str) -> Stored:
        try:
            return self._understood(where)
        except DamagedRecord as error:
            raise DamagedRecord(error.message, where=where, hint=error.hint) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(said(error), where) from error

    def _understood(self, where: str) -> Stored:
        demand_shape(self, _Record)
        stream = StreamId(self.pipeline, self.name)
        if self.key.strip() != _key(stream):
            raise ValueError(f"it is filed under a key that is not that of {stream}")
        if bool(self.document) != bool(self.version):
            raise ValueError(f"version {self.version} with a document of {len(self.document)} characters")
        mark = watermarks.from_json(unseal(self.document, where)) if self.document else None
        if mark is not None and mark.stream != stream:
            raise ValueError(f"it holds the watermark of {mark.stream}")
        lease = Lease.from_json(unseal(self.lease, where)) if self.lease else None
        if lease is not None:
            demand_shape(lease, Lease, "lease")
        return Stored(stream, self.version, mark, lease)


def _is_sound(record: _Record, where: str) -> bool:
    try:
        record.understood(where)
    except DamagedRecord:
        return False
    return True


def _event(text: Any, where: str) -> Event:
    try:
        return Event.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"not an event of the history: {error!r}", where) from error


def _key(stream: StreamId) -> str:
    text = f"{len(stream.pipeline)}:{stream.pipeline}/{stream.name}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _parts(stream: StreamId) -> tuple[str, str]:
    return stream.pipeline, stream.name


# --- Sessions ----------------------------------------------------------------

_TABLES = {
    "tidegate_watermarks": """(
        stream_key {key} NOT NULL PRIMARY KEY,
        pipeline {text} NOT NULL,
        name {text} NOT NULL,
        version BIGINT NOT NULL,
        fence BIGINT NOT NULL,
        document {text} NOT NULL,
        lease {text} NOT NULL,
        lease_nonce {text} NOT NULL
    ) {table}""",
    "tidegate_history": """(
        stream_key {key} NOT NULL,
        pipeline {text} NOT NULL,
        name {text} NOT NULL,
        seq BIGINT NOT NULL,
        version BIGINT NOT NULL,
        event {text} NOT NULL,
        PRIMARY KEY (stream_key, seq)
    ) {table}""",
    "tidegate_set_aside": """(
        stream_key {key} NOT NULL,
        number BIGINT NOT NULL,
        pipeline {text} NOT NULL,
        name {text} NOT NULL,
        version BIGINT NOT NULL,
        fence BIGINT NOT NULL,
        document {text} NOT NULL,
        lease {text} NOT NULL,
        PRIMARY KEY (stream_key, number)
    ) {table}""",
}


class _Lost(Exception):
    """The connection is gone."""


class _Busy(Exception):
    """Nothing was done, and trying again may work."""


class _Session:
    """An open connection, and the words for what its driver raises."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[_Row]:
        with self._asking(), closing(self._connection.cursor()) as cursor:
            cursor.execute(self._written(sql), tuple(values))
            return [tuple(row) for row in cursor.fetchall()]

    def changed(self, sql: str, values: Sequence[object] = ()) -> bool:
        """Execute a statement and say whether it found a row."""
        with self._asking(), closing(self._connection.cursor()) as cursor:
            cursor.execute(self._written(sql), tuple(values))
            return cursor.rowcount > 0

    @contextmanager
    def transaction(self, begin: str | None = None) -> Iterator[None]:
        """All or nothing. Raises `OutcomeUnknown` when the answer to the commit was lost."""
        self._say(begin or self._database.begin)
        try:
            yield
        except BaseException:
            with suppress(_Lost, _Busy, TidegateError):  # a transaction without a connection is over too
                self._say("ROLLBACK")
            raise
        self._commit()

    def _commit(self) -> None:
        try:
            self._say("COMMIT")
        except _Lost as error:
            raise OutcomeUnknown(
                f"the answer to a commit was lost: {error}", where=self._database.place
            ) from error
        except (_Busy, TidegateError):
            with suppress(_Lost, _Busy, TidegateError):  # SQLite keeps a refused transaction open
                self._say("ROLLBACK")
            raise

    def create_tables(self) -> None:
        """Create what is missing. Looking first lets users without that privilege use what is there."""
        if self._has_tables():
            return
        with self.transaction(self._database.begin_creation):
            for name, columns in _TABLES.items():
                self._say(f"CREATE TABLE IF NOT EXISTS {name} {columns.format(**self._database.types)}")

    def _has_tables(self) -> bool:
        return all(self.rows(self._database.table_exists, (name,)) for name in reversed(_TABLES))

    def close(self) -> None:
        # A connection that cannot even be closed is gone; what it was asked to do is settled elsewhere.
        with suppress(self._database.errors, OSError):
            self._connection.close()

    def _say(self, sql: str) -> None:
        with self._asking(), closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)

    def _written(self, sql: str) -> str:
        return sql.replace("?", self._database.marker)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say what the driver's errors mean."""
        try:
            yield
        except self._database.errors as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> Exception:
        words = " ".join(str(error).split())
        failure = self._database.failure(error)
        if failure is Failure.LOST:
            return _Lost(words)
        if failure is Failure.BUSY:
            return _Busy(words)
        return StateError(
            f"the state database refused: {words}", where=self._database.place, hint=_HINTS.get(failure)
        )


_HINTS = {
    Failure.LOCKED: "run it again; if it stays so, look for a transaction that never ends",
    Failure.NO_ROOM: "make room; what was committed before is intact, so run it again afterwards",
    Failure.FORBIDDEN: "the user needs to read and change the tables tidegate_*, and once to create them",
}
