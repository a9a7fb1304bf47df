"""Watching the transactions of PostgreSQL.

`now()` is the moment a transaction began, so one that is open and has not written yet can still write an old
timestamp: every open transaction of the database counts, not only those that have written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import psycopg

from tidegate.core.ceiling import OpenTransaction
from tidegate.reach.login import APPLICATION_NAME, Login
from tidegate.sources.ceiling import CannotSee
from tidegate.sources.postgresql_session import Row, Session, close, connect, errors, quote, run

_T = TypeVar("_T")

_PREPARED = "prepared:"

_CLOCK = """
SELECT CASE WHEN pg_is_in_recovery() AND pg_last_wal_receive_lsn() IS DISTINCT FROM pg_last_wal_replay_lsn()
            THEN least(clock_timestamp(), pg_last_xact_replay_timestamp()) ELSE clock_timestamp() END
"""
"""A standby that lags shows the past, so its clock stands where its data does."""

_ACTIVITY = """
SELECT pid, xact_start, coalesce(state, ''), coalesce(usename, '')::text, coalesce(application_name, ''),
       coalesce(host(client_addr), 'local')
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
  AND (xact_start IS NOT NULL OR state = 'disabled')
"""
_PREPARED_TRANSACTIONS = """
SELECT transaction::text, gid, owner::text, prepared
FROM pg_prepared_xacts WHERE database = current_database()
"""
_MAY_SEE = "SELECT pg_has_role('pg_read_all_stats', 'USAGE'), current_user::text"


class PostgreSQLWatch:
    """An observer of one database."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._sessions: dict[str, Session] = {}
        self._may_see: CannotSee | None = None
        self._asked = False

    def clock(self) -> datetime:
        [(now,)] = self._retried(lambda: run(self._session("watch"), _CLOCK))
        return _utc(now)

    def blindness(self) -> CannotSee | None:
        """Without the privilege, the transactions of other users look as if they were not there."""
        if not self._asked:
            [(may_see, user)] = self._retried(lambda: run(self._session("watch"), _MAY_SEE))
            if not may_see:
                reason = "this user may not see the transactions of others"
                self._may_see = CannotSee(reason, f"GRANT pg_read_all_stats TO {quote(user)}")
            self._asked = True
        return self._may_see

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        return self._retried(lambda: self._look(self._session("watch"), {*ignore, APPLICATION_NAME}))

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        return listed.identity.startswith(_PREPARED) and not gone.startswith(_PREPARED)

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        """Rows are read where transactions are listed."""
        del patience
        return None

    def close(self) -> None:
        for session in self._sessions.values():
            close(session)
        self._sessions = {}

    # --- one look

    def _look(self, watch: Session, ignored: set[str]) -> tuple[OpenTransaction, ...]:
        """Activity first, then what is prepared: what is being prepared meanwhile is in one of the two."""
        with self._canary_sings(self._session("canary")) as canary:
            activity = run(watch, _ACTIVITY)
            prepared = run(watch, _PREPARED_TRANSACTIONS)
        if canary not in {(pid, started) for pid, started, *_ in activity}:
            raise CannotSee(
                "the server's list of transactions does not show one that was just begun",
                "connect to the server itself, not to a pool that spreads over several",
            )
        hidden = [row for row in activity if row[1] is None and not ignored.intersection((row[3], row[4]))]
        if hidden:
            raise CannotSee(
                f"connections of {hidden[0][3]} do not show their transactions",
                "turn `track_activities` on for that user",
            )
        others = [row for row in activity if not ignored.intersection((row[3], row[4]))]
        return (*map(_transaction, others), *map(_prepared, prepared))

    @contextmanager
    def _canary_sings(self, canary: Session) -> Iterator[tuple[int, datetime]]:
        """Begin a transaction that a fresh list must show, with the very moment it began."""
        run(canary, "BEGIN READ ONLY")
        try:
            [(pid, began)] = run(canary, "SELECT pg_backend_pid(), now()")
            yield pid, began
        finally:
            run(canary, "ROLLBACK")

    # --- sessions

    def _retried(self, act: Callable[[], _T]) -> _T:
        """Sessions that were closed for being idle are opened again, once."""
        with errors(self._login):
            try:
                return act()
            except psycopg.OperationalError:
                if not any(session.closed for session in self._sessions.values()):
                    raise
            self.close()
            return act()

    def _session(self, role: str) -> Session:
        if role not in self._sessions:
            self._sessions[role] = connect(self._login)
        return self._sessions[role]


def _transaction(row: Row) -> OpenTransaction:
    pid, started, state, user, application, host = row
    program = f" ({application})" if application else ""
    description = f"transaction {pid} of {user}@{host}{program}, {state or 'running'}"
    return OpenTransaction(f"{pid}@{_utc(started).isoformat()}", _utc(started), description)


def _prepared(row: Row) -> OpenTransaction:
    number, gid, owner, prepared = row
    description = f"prepared transaction `{gid}` of {owner}, prepared at {_utc(prepared):%Y-%m-%d %H:%M:%S}Z"
    return OpenTransaction(f"{_PREPARED}{number}:{gid}", None, description)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
