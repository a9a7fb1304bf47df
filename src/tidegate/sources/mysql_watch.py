"""Watching the transactions of MySQL and MariaDB.

Traps that were found by trying:

- `trx_started` is written in the server's *system* time zone, in whole seconds, whatever the session's zone
  is. It is read in a session that follows the system's zone, and where a clock was set back, the earlier of
  the two moments a reading can mean is taken.
- `innodb_trx` is a cached picture that is not renewed while somebody keeps asking for it. So every look is
  proved by a canary: a transaction of our own, begun just before, whose session carries a mark that changes
  from look to look.
- A transaction is listed only once its first statement has reached InnoDB, but `NOW()` is the moment that
  statement was sent, also while it waits for a lock. So running statements are listed too, *before* the
  transactions: a statement that has become a transaction in between is seen as one or the other.
- `trx_id` changes with the first write. A transaction is known by its connection and its start.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pymysql
from pymysql.constants import ER

from tidegate.core.ceiling import OpenTransaction
from tidegate.reach.login import Login
from tidegate.sources.ceiling import POLL, CannotSee
from tidegate.sources.mysql_session import UTC_ZONE, Row, Session, close, code, connect, errors, lost, run

_T = TypeVar("_T")

SYSTEM_ZONE = "SYSTEM"
_LOOKS = 12
"""How often a list without the canary is asked for again."""
_XAER_RMERR = 1401
_DENIED = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, _XAER_RMERR})

_PREPARED = "xa:"
_BARE = "?"

EARLIEST_MOMENT = "LEAST({})".format(
    ", ".join(
        f"IF(FROM_UNIXTIME(UNIX_TIMESTAMP({{reading}}) - {shift}) = {{reading}}, "
        f"UNIX_TIMESTAMP({{reading}}) - {shift}, UNIX_TIMESTAMP({{reading}}))"
        for shift in (1800, 3600, 7200)
    )
)
"""The earliest moment that a reading of the system's clock can mean."""

_TRANSACTIONS = (
    "SELECT trx_mysql_thread_id, {}, trx_is_read_only, trx_foreign_key_checks, trx_id "
    "FROM information_schema.innodb_trx"
).format(EARLIEST_MOMENT.format(reading="trx_started"))

_STATEMENTS = (
    "SELECT id, user, host, command, {elapsed}, {query}, state, LEFT(info, 200), UTC_TIMESTAMP(6) "
    "FROM information_schema.processlist"
)

_PROGRAMS = (
    "SELECT processlist_id, attr_value FROM performance_schema.session_connect_attrs "
    "WHERE attr_name = 'program_name'"
)

_CONNECT = "Connect"
_SYSTEM_USER = "system user"
_IDLE = frozenset(
    {
        "Binlog Dump",
        "Binlog Dump GTID",
        _CONNECT,
        "Daemon",
        "Slave_IO",
        "Slave_SQL",
        "Slave_worker",
        "Sleep",
    }
)
_WRITES_NOTHING = frozenset(
    {
        "BEGIN",
        "COMMIT",
        "DESC",
        "DESCRIBE",
        "EXPLAIN",
        "HELP",
        "KILL",
        "ROLLBACK",
        "SAVEPOINT",
        "SET",
        "SHOW",
        "START",
        "USE",
    }
)
_GAP = r"(?:\s|\(|/\*[^!+M].*?\*/|--\s[^\n]*\n|#[^\n]*\n)*"
_FIRST_WORDS = re.compile(rf"{_GAP}([A-Za-z]+)(?:{_GAP}([A-Za-z]+))?", re.DOTALL)
_WITH_SETTINGS = ("SET", "STATEMENT")
"""How MariaDB begins any statement that has settings of its own."""
_WAITS = "Waiting for "
"""For a table that somebody has locked: then a SELECT may be about to call a function that writes."""


@dataclass(frozen=True)
class Connected:
    """A connection as the process list shows it. `statement_began` is missing while it runs nothing."""

    thread: int
    user: str
    host: str
    state: str
    query: str
    statement_began: datetime | None
    may_write: bool


@dataclass(frozen=True)
class _Numbered:
    """A session and the number the server lists it under."""

    session: Session
    thread: int


class MySQLWatch:
    """An observer of one server."""

    def __init__(self, login: Login, *, mariadb: bool, jitter: Callable[[], float] = random.random) -> None:
        self._login = login
        self._mariadb = mariadb
        self._jitter = jitter
        self._sessions: dict[str, _Numbered] = {}
        self._marked = False
        self._last_look = 0.0
        self._stale: CannotSee | None = None

    def clock(self) -> datetime:
        return _utc(self._retried(lambda: run(self._watch.session, "SELECT UTC_TIMESTAMP(6)"))[0][0])

    def blindness(self) -> CannotSee | None:
        """A list that was not renewed for seconds is not asked for again by the next table."""
        return self._stale

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        try:
            return self._retried(lambda: self._look(self._watch, self._canary, ignore))
        except CannotSee:
            self.close()
            raise

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        if listed.identity.startswith(_PREPARED):
            return not gone.startswith(_PREPARED)
        thread, bare, _ = gone.partition(_BARE)
        return bool(bare) and listed.identity.startswith(f"{thread}@")

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        """Rows are read where transactions are listed."""
        del patience
        return None

    def close(self) -> None:
        for numbered in self._sessions.values():
            close(numbered.session)
        self._sessions = {}

    # --- one look

    def _look(
        self, watch: _Numbered, canary: _Numbered, ignore: Collection[str]
    ) -> tuple[OpenTransaction, ...]:
        with self._canary_sings(canary.session) as mark:
            connected = self._connected(watch.session)
            listed = self._list_that_shows(canary.thread, mark)
            prepared = _unless_denied(watch.session, "XA RECOVER")
        ignored = self._ignored(watch.session, connected.values(), ignore)
        return tuple(_open(connected, listed, prepared, {watch.thread, canary.thread, *ignored}))

    @contextmanager
    def _canary_sings(self, canary: Session) -> Iterator[str]:
        """Begin a transaction that a fresh list must show, with a mark that the last one did not have.

        Two marks are enough: an older list with the same mark has been replaced by one with the other mark,
        which was seen. After a look in vain the canary is another session.
        """
        time.sleep(max(0.0, self._last_look + POLL.total_seconds() - time.monotonic()))
        self._marked = not self._marked
        mark = "1" if self._marked else "0"
        run(canary, f"SET SESSION foreign_key_checks = {mark}")
        run(canary, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            yield mark
        finally:
            run(canary, "ROLLBACK")

    def _list_that_shows(self, thread: int, mark: str) -> list[Row]:
        """Several who ask in step would keep the list from being renewed, so the pauses differ."""
        for _ in range(_LOOKS):
            listed = _unless_denied(self._watch.session, _TRANSACTIONS)
            self._last_look = time.monotonic()
            if listed is None:
                raise self._no_privilege(self._watch.session)
            if (thread, mark) in {(int(row[0]), row[3]) for row in listed}:
                return listed
            time.sleep(POLL.total_seconds() * (1 + 2 * self._jitter()))
        self._stale = CannotSee(
            "the server's list of transactions does not show one that was just begun",
            "let no other program read information_schema.innodb_trx many times a second",
        )
        raise self._stale

    def _connected(self, watch: Session) -> dict[int, Connected]:
        """MySQL counts in whole seconds and does not number its statements; MariaDB does better."""
        elapsed, query = ("time_ms / 1000", "query_id") if self._mariadb else ("time + 1", "''")
        rows = run(watch, _STATEMENTS.format(elapsed=elapsed, query=query))
        return {int(row[0]): _connection(row) for row in rows}

    def _ignored(self, watch: Session, connected: Collection[Connected], ignore: Collection[str]) -> set[int]:
        if not ignore:
            return set()
        programs = {int(thread): _text(name) for thread, name in _unless_denied(watch, _PROGRAMS) or ()}
        return {
            one.thread for one in connected if one.user in ignore or programs.get(one.thread, "") in ignore
        }

    def _no_privilege(self, watch: Session) -> CannotSee:
        [(account,)] = run(watch, "SELECT CURRENT_USER()")
        user, _, host = str(account).rpartition("@")
        return CannotSee(
            "this user may not see the transactions of others",
            f"GRANT PROCESS ON *.* TO '{user}'@'{host}'",
        )

    # --- sessions

    def _retried(self, act: Callable[[], _T]) -> _T:
        """Sessions that the server has closed for being idle are opened again, once."""
        with errors(self._login):
            try:
                return act()
            except pymysql.err.MySQLError as error:
                if not lost(error):
                    raise
            self.close()
            return act()

    @property
    def _watch(self) -> _Numbered:
        return self._session("watch", SYSTEM_ZONE)

    @property
    def _canary(self) -> _Numbered:
        return self._session("canary", UTC_ZONE)

    def _session(self, role: str, zone: str) -> _Numbered:
        if role not in self._sessions:
            session = connect(self._login, zone=zone)
            [(thread,)] = run(session, "SELECT CONNECTION_ID()")
            self._sessions[role] = _Numbered(session, int(thread))
        return self._sessions[role]


def _connection(row: Row) -> Connected:
    thread, user, host, command, elapsed, query, state, info, now = row
    # An event of the server's own scheduler runs its statements in what looks like a connection being made.
    scheduled = command == _CONNECT and bool(info) and _text(user) != _SYSTEM_USER
    running = scheduled or command not in _IDLE
    began = _utc(now) - timedelta(seconds=max(0.0, float(elapsed or 0))) if running else None
    return Connected(
        thread=int(thread),
        user=_text(user),
        host=_text(host).rpartition(":")[0] or _text(host),
        state=_text(state),
        query=_text(query),
        statement_began=began,
        may_write=running and _may_write(_text(info), _text(state)),
    )


def _may_write(statement: str, state: str) -> bool:
    """What cannot be recognised may write."""
    found = _FIRST_WORDS.match(statement)
    if found is None:
        return True
    first, second = found[1].upper(), (found[2] or "").upper()
    if first == "SELECT":
        return state.startswith(_WAITS)
    return first not in _WRITES_NOTHING or (first, second) == _WITH_SETTINGS


def _open(
    connected: Mapping[int, Connected], listed: list[Row], prepared: list[Row] | None, ignored: set[int]
) -> Iterator[OpenTransaction]:
    """What may still commit. A transaction that was begun as read-only never will.

    Where this user may not ask for prepared ones, a transaction without a connection is taken to be one.
    """
    in_transaction = set()
    for thread, started, read_only, _, number in listed:
        in_transaction.add(int(thread))
        if read_only == "1" or int(thread) in ignored:
            continue
        if int(thread) != 0:
            yield _transaction(int(thread), started, connected.get(int(thread)))
        elif prepared is None:
            yield OpenTransaction(f"{_PREPARED}{number}", None, f"prepared transaction {number}")
    for one in connected.values():
        if one.may_write and one.thread not in in_transaction and one.thread not in ignored:
            yield _statement(one)
    for form, _, _, data in prepared or ():
        name = data if isinstance(data, bytes) else str(data).encode()
        shown = name.decode(errors="backslashreplace")
        yield OpenTransaction(f"{_PREPARED}{form}:{name.hex()}", None, f"prepared transaction `{shown}`")


def _transaction(thread: int, started: str | None, one: Connected | None) -> OpenTransaction:
    who = f" of {one.user}@{one.host}" if one else ""
    description = f"transaction {thread}{who}, {_doing(one)}"
    identity = f"{thread}@{started}"
    if started is None:
        return OpenTransaction(identity, None, description)
    # Whole seconds, and its first statement was sent before it was listed.
    began = datetime.fromtimestamp(float(started), UTC) - timedelta(seconds=1)
    statement = one.statement_began if one else None
    return OpenTransaction(identity, min(began, statement or began), description)


def _statement(one: Connected) -> OpenTransaction:
    description = f"a statement of {one.user}@{one.host} on connection {one.thread}, {_doing(one)}"
    return OpenTransaction(f"{one.thread}{_BARE}{one.query}", one.statement_began, description)


def _doing(one: Connected | None) -> str:
    if one is None or one.statement_began is None:
        return "idle in transaction"
    return one.state.lower() or "running"


def _unless_denied(session: Session, sql: str) -> list[Row] | None:
    try:
        return run(session, sql)
    except pymysql.err.MySQLError as error:
        if code(error) in _DENIED or code(error) in (ER.TABLEACCESS_DENIED_ERROR, ER.NO_SUCH_TABLE):
            return None
        raise


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
