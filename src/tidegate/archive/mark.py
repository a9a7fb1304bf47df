"""The mark: the one row of `des_archive_config`, in a database that other programs read as well.

`archived_until` moves by one conditional UPDATE, from what was read to what was proved. Nothing else of the
archiver is written into a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from tidegate.archive.config import MOST_LAG_DAYS
from tidegate.core.errors import ConfigError, Conflict, ConnectError, OutcomeUnknown, StateError
from tidegate.reach import libpq
from tidegate.reach.login import CONNECT_TIMEOUT_SECONDS, Login
from tidegate.sources.postgresql_session import errors

TABLE = "des_archive_config"
_GRANTS = "`GRANT SELECT, INSERT, UPDATE` on the table, and `GRANT CREATE` on its schema if there is none,"
_PINNED = {"TimeZone": "UTC", "DateStyle": "ISO, YMD"}

_EXISTS = "SELECT to_regclass('des_archive_config') IS NOT NULL"
_CREATE = """
CREATE TABLE IF NOT EXISTS des_archive_config (
    id INTEGER PRIMARY KEY,
    archived_until TIMESTAMP WITH TIME ZONE NOT NULL,
    lag_days INTEGER NOT NULL
)
"""
_READ = """
SELECT archived_until, lag_days, format_type(a.atttypid, a.atttypmod) FROM des_archive_config, pg_attribute a
WHERE id = 1 AND a.attrelid = 'des_archive_config'::regclass AND a.attname = 'archived_until'
"""
_EXACT = ("timestamp with time zone", "timestamp(6) with time zone")
"""Of another type it would not be the moment that was written: rounded, or in a zone that nobody names."""
_BEGIN = """
INSERT INTO des_archive_config (id, archived_until, lag_days) VALUES (1, %s, %s) ON CONFLICT (id) DO NOTHING
"""
_MOVE = "UPDATE des_archive_config SET archived_until = %s WHERE id = 1 AND archived_until = %s"


@dataclass(frozen=True, slots=True)
class Mark:
    archived_until: datetime
    lag_days: int

    @property
    def lag(self) -> timedelta:
        """How far the mark stays behind the clock. Ahead of it, it would pass files still to come."""
        if not 0 <= self.lag_days <= MOST_LAG_DAYS:
            wrong = "would go past files that are still to come" if self.lag_days < 0 else "would never move"
            raise ConfigError(
                f"lag_days is {self.lag_days}: the mark {wrong}",
                where=TABLE,
                hint=f"UPDATE {TABLE} SET lag_days = 7 WHERE id = 1",
            )
        return timedelta(days=self.lag_days)


@dataclass(frozen=True)
class MarkTable:
    login: Login
    schema: str | None = None
    """Where the table lies, unless it is where the user's search path leads."""

    def read(self) -> Mark | None:
        """The mark, or nothing if the table or its row is missing."""
        with self._asking() as session:
            if session.execute(_EXISTS).fetchone() != (True,):
                return None
            row = self._row(session)
        return Mark(_utc(row[0]), int(row[1])) if row else None

    def _row(self, session: psycopg.Connection[Any]) -> Any:
        cursor = session.execute(_READ)
        try:
            row = cursor.fetchone()
        except psycopg.DataError as error:
            raise ConfigError(
                f"archived_until is no date that files can have: {error}",
                where=f"{self.login.where}, {TABLE}",
                hint=f"UPDATE {TABLE} SET archived_until = … WHERE id = 1, with a date that all files "
                "before it are archived",
            ) from error
        if row is not None and row[2] not in _EXACT:
            raise ConfigError(
                f"archived_until is {row[2]}, which does not hold every moment as it is",
                where=f"{self.login.where}, {TABLE}",
                hint=f"ALTER TABLE {TABLE} ALTER archived_until TYPE timestamp with time zone",
            )
        return row

    def begin(self, mark: Mark) -> Mark:
        """Create the table and its row, unless they are there; the mark that is there counts."""
        with self._asking() as session:
            if session.execute(_EXISTS).fetchone() != (True,):
                session.execute(_CREATE)
            session.execute(_BEGIN, [mark.archived_until, mark.lag_days])
        found = self.read()
        if found is None:
            raise StateError(f"the row of `{TABLE}` cannot be found", where=self.login.where)
        return found

    def move(self, before: datetime, after: datetime) -> None:
        """Move the mark from `before` to `after`, if it still is where it was.

        Raises `Conflict` if somebody else has moved it. An answer that was lost is asked for.
        """
        try:
            moved = self._update(before, after)
        except ConnectError as error:
            moved = self._landed(before, after, error)
        if not moved:
            found = self.read()
            there = f"{found.archived_until:%Y-%m-%d %H:%M:%S.%f}Z" if found else "gone"
            raise Conflict(
                f"the mark was at {before:%Y-%m-%d %H:%M:%S.%f}Z when the window began, and is {there} now",
                where=f"{self.login.where}, {TABLE}",
                hint="run it again: what was packed stays packed, and the window is planned anew",
            )

    def _update(self, before: datetime, after: datetime) -> bool:
        with self._asking() as session:
            return session.execute(_MOVE, [after, before]).rowcount == 1

    def _landed(self, before: datetime, after: datetime, cause: ConnectError) -> bool:
        """Whether the mark has moved although nobody said so; if it has not, it is moved now."""
        try:
            # The second attempt may have waited for the first, which then was the one that landed.
            return self._is_at(after) or self._update(before, after) or self._is_at(after)
        except ConnectError as error:
            raise OutcomeUnknown(
                f"it is not known whether the mark has moved: {cause.message}",
                where=f"{self.login.where}, {TABLE}",
                hint="run it again once the database can be reached: it will look",
            ) from error

    def _is_at(self, moment: datetime) -> bool:
        found = self.read()
        return found is not None and found.archived_until == moment

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection[Any]]:
        with errors(self.login, TABLE, grants=_GRANTS), connect(self.login, self.schema) as session:
            yield session


def connect(login: Login, schema: str | None = None) -> psycopg.Connection[Any]:
    """A session that may write. Each statement is a transaction of its own."""
    session = psycopg.connect(
        application_name="tidegate archive",
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        client_encoding="UTF8",
        autocommit=True,
        **libpq.parameters(login),
    )
    pins = {**_PINNED, **({"search_path": schema} if schema else {})}
    try:
        # Not at the start of the session: what pools connections may not pass that on.
        session.cursor().executemany("SELECT set_config(%s, %s, false)", list(pins.items()))
    except BaseException:
        session.close()
        raise
    return session


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
