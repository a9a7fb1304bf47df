"""Sessions with MySQL and MariaDB: pinned, read-only, and with errors that people can act on."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR, ER
from pymysql.cursors import Cursor

from tidegate.core.errors import ConnectError, LoginRefused, SourceError, TidegateError, TlsRefused
from tidegate.core.positions import Value
from tidegate.reach import mysql, tls, tunnel
from tidegate.reach.login import APPLICATION_NAME, Login
from tidegate.sources.values import written

Session: TypeAlias = "Connection[Cursor]"
Row = tuple[Any, ...]

UTC_ZONE = "+00:00"
_PINNED = (
    "SET SESSION {limit} sql_mode = '', sql_select_limit = 18446744073709551615, sql_big_selects = 1, "
    "wait_timeout = 28800, net_write_timeout = 3600, lock_wait_timeout = 300, time_zone = '{zone}'"
)
"""A global sql_select_limit would end every read early, and silently. A table that is being altered is waited
for, but not for a day."""
_READ_ONLY = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""Under another isolation level a consistent snapshot is quietly none at all."""
_LOST = frozenset({CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, 0, 4031})
_UNREACHABLE = frozenset({CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_UNKNOWN_HOST})
_TOO_LONG = frozenset({1969, 3024})
_NO_PRIVILEGE = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.VIEW_INVALID})


def connect(login: Login, *, zone: str = UTC_ZONE) -> Session:
    """A read-only session. Values arrive as the server writes them: nothing is converted by the driver."""
    with errors(login):
        session = connect_writing(login, zone=zone)
        run(session, _READ_ONLY)
    return session


def connect_writing(login: Login, *, zone: str = UTC_ZONE) -> Session:
    """A session that may write, statement by statement. Nobody who reads uses it."""
    session = mysql.connect(login, program_name=APPLICATION_NAME, conv={})
    run(session, _PINNED.format(zone=zone, limit=mysql.limited(login)))
    return session


def run(session: Session, sql: str) -> list[Row]:
    """Run one statement without any templating: a percent sign in a name is a percent sign."""
    with session.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def close(session: Session | None) -> None:
    if session is not None:
        with suppress(pymysql.err.Error):  # it only read; nothing can be lost with it
            session.close()


def lost(error: pymysql.err.MySQLError) -> bool:
    """Whether the session is gone, so that a read may simply be asked again in a new one."""
    return isinstance(error, pymysql.err.InterfaceError) or code(error) in _LOST


def code(error: pymysql.err.MySQLError) -> int | None:
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else None


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(value: Value) -> str:
    """Text and bytes go as hexadecimal digits, which no sql_mode reads differently.

    The introducer gives text a character set; the column's own collation still decides how it compares.
    """
    match value:
        case datetime():
            return f"TIMESTAMP'{written(value.astimezone(UTC) if value.tzinfo else value)}'"
        case date():
            return f"DATE'{value.isoformat()}'"
        case Decimal():
            return format(value, "f")
        case int():
            return str(value)
        case bytes():
            return f"X'{value.hex()}'"
        case str():
            return f"_utf8mb4 X'{value.encode().hex()}'"


@contextmanager
def errors(login: Login, where: str | None = None) -> Iterator[None]:
    """Put the driver's errors into words, once for everything that talks to the server."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise _in_words(login, error, where) from error
    except UnicodeDecodeError as error:
        shown = error.object[max(0, error.start - 20) : error.end + 20]
        hint = "half a character is none: correct the value, or leave such rows out with a filter"
        raise SourceError(f"a text is no UTF-8: {shown!r}", where=where or login.where, hint=hint) from error


def _in_words(login: Login, error: pymysql.err.MySQLError, where: str | None) -> TidegateError:
    number = code(error)
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if number == CR.CR_SSL_CONNECTION_ERROR or _is_tls(error):
        return tls.refused(login, _reason(text)) or TlsRefused(text, where=login.where)
    if number in _UNREACHABLE or number in _LOST:
        behind = tunnel.beyond(login)
        if behind is not None:
            return behind
    if number in _UNREACHABLE:
        reason = _reason(text)
        return ConnectError(
            f"cannot reach the server: {reason}",
            where=login.where,
            hint="check host and port, that the server is running, and that no firewall is in between",
        )
    if number in (ER.ACCESS_DENIED_ERROR, 1698):
        return LoginRefused(
            f"the server refused the login of user `{login.username}`",
            where=login.where,
            hint="check username and password, and from which hosts this user may connect",
        )
    if number in (ER.BAD_DB_ERROR, ER.DBACCESS_DENIED_ERROR):
        return LoginRefused(
            f"user `{login.username}` cannot use a database `{login.database}`: {text}",
            where=login.where,
            hint="check its name, and `GRANT SELECT` on it",
        )
    if lost(error) or number == ER.CON_COUNT_ERROR:
        return ConnectError(f"the connection failed: {text}", where=login.where, hint="run it again")
    if number in _TOO_LONG:
        hint = "lower processing.batch_size, give the columns an index, or raise mercy.max_query"
        said = f"a query ran longer than the {login.max_query or 0:g} s that mercy.max_query allows"
        return SourceError(said, where=where or login.where, hint=hint)
    if number in _NO_PRIVILEGE:
        return SourceError(text, where=where or login.where, hint="`GRANT SELECT` on the table to this user")
    return SourceError(text, where=where or login.where)


def _reason(text: str) -> str:
    return re.sub(r"^Can't connect to MySQL server on '[^']*'\s*", "", text).strip("()") or text


def _is_tls(error: pymysql.err.MySQLError) -> bool:
    """The driver says of a broken handshake that it cannot connect, and keeps the cause beside it."""
    return isinstance(getattr(error, "original_exception", None), ssl.SSLError)
