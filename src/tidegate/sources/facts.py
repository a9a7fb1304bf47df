"""What a server says of itself, for those who want to know whether it can be worked with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.reach.login import Login
from tidegate.sources.values import timestamp_of


@dataclass(frozen=True)
class Facts:
    version: str
    cipher: str
    """Empty: this connection is not encrypted."""
    ahead: timedelta
    """How far its clock is ahead of ours."""
    doubt: timedelta
    """How much of that may be the journey of the question."""
    closed: tuple[str, ...] = ()
    """Tables that this user can see and not read."""


Clock = Callable[[], datetime]
"""Ours, in UTC."""


def facts_of(kind: str, login: Login, clock: Clock, schema: str | None = None) -> Facts:
    """Connect, and ask. `schema` is the one whose tables are looked at."""
    return _ASKED[kind](login, clock, schema)


def _mysql(login: Login, clock: Clock, schema: str | None) -> Facts:
    from tidegate.sources.mysql_session import connect, errors, run

    del schema  # tables that cannot be read cannot be seen either
    with errors(login), closing(connect(login)) as session:
        before = clock()
        [(version, now)] = run(session, "SELECT VERSION(), CAST(UTC_TIMESTAMP(6) AS CHAR)")
        after = clock()
        [(_, cipher)] = run(session, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    name = "MariaDB" if "mariadb" in str(version).lower() else "MySQL"
    theirs = timestamp_of(str(now)).replace(tzinfo=UTC)
    return Facts(f"{name} {version}", str(cipher), *_compared(theirs, before, after))


_CLOSED = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, 'SELECT') ORDER BY 1
"""


def _postgresql(login: Login, clock: Clock, schema: str | None) -> Facts:
    from tidegate.sources.postgresql_session import connect, errors, run, text_literal

    with errors(login), closing(connect(login)) as session:
        before = clock()
        [(version, now)] = run(session, "SELECT current_setting('server_version'), clock_timestamp()")
        after = clock()
        ciphers = run(session, "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl")
        closed = run(session, _CLOSED.format(schema=text_literal(schema))) if schema else []
    return Facts(
        f"PostgreSQL {version}",
        str(ciphers[0][0]) if ciphers else "",
        *_compared(now, before, after),
        tuple(str(name) for (name,) in closed),
    )


def _compared(theirs: datetime, before: datetime, after: datetime) -> tuple[timedelta, timedelta]:
    """The server looked at its clock at some moment between our two looks at ours."""
    half = (after - before) / 2
    return theirs - (before + half), half


_ASKED: dict[str, Callable[[Login, Clock, str | None], Facts]] = {"mysql": _mysql, "postgresql": _postgresql}
