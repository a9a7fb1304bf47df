"""Sessions with PostgreSQL: pinned, read-only, and with errors that people can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg

from tidegate.core.errors import ConnectError, LoginRefused, SourceBusy, SourceError, TidegateError
from tidegate.core.positions import Value
from tidegate.reach import libpq, tls, tunnel
from tidegate.reach.login import APPLICATION_NAME, CONNECT_TIMEOUT_SECONDS, Login
from tidegate.sources.values import written

Row = tuple[Any, ...]
Session = psycopg.Connection[Row]

_PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",  # before PostgreSQL 12, 1 is a digit less than it takes
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "300s",
}
_GRANTS = "`GRANT SELECT` on the table"
_REFUSED_LOGIN = ("authentication failed", "pg_hba.conf", "not permitted to log in")


def connect(login: Login, *, read_only: bool = True) -> Session:
    """A session in which every statement is a transaction of its own; it can only read, unless told."""
    with errors(login):
        session = psycopg.connect(
            application_name=APPLICATION_NAME,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            client_encoding="UTF8",
            autocommit=True,
            prepare_threshold=None,  # a SELECT that was prepared fails for good once its columns have changed
            **libpq.parameters(login),
        )
        settings = {**_PINNED, **({"statement_timeout": limit_of(login)} if login.max_query else {})}
        if not read_only:
            settings["default_transaction_read_only"] = "off"
        pins = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        run(session, f"SELECT {pins}")
    return session


def limit_of(login: Login) -> str:
    """The limit of a query's time as `statement_timeout` has it: in milliseconds, 0 for none."""
    return str(max(1, round(login.max_query * 1000))) if login.max_query else "0"


def too_long(login: Login, where: str) -> SourceError:
    return SourceError(
        f"a query ran longer than the {login.max_query or 0:g} s that mercy.max_query allows",
        where=where,
        hint="lower processing.batch_size, give the columns an index, or raise mercy.max_query",
    )


def cut_short(text: str, where: str) -> SourceBusy:
    """A standby ends reads that keep it from following its primary for too long."""
    return SourceBusy(
        text,
        where=where,
        hint="run it again; on a standby, lower processing.batch_size, or turn hot_standby_feedback on there",
    )


def run(session: Session, sql: str) -> list[Row]:
    """Run one statement. Asking for binary results takes the protocol in which a second one is an error."""
    cursor = session.execute(sql.encode(), binary=True)
    return cursor.fetchall() if cursor.description else []


def close(session: Session | None) -> None:
    if session is not None:
        with suppress(psycopg.Error):  # it only read; nothing can be lost with it
            session.close()


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Value) -> str:
    """Text is left untyped, so that it takes the type of what it is compared with: a UUID, an enum, …"""
    match value:
        case datetime() if value.tzinfo is not None:
            return f"'{written(value.astimezone(UTC))}+00'::timestamptz"
        case datetime():
            return f"'{written(value)}'::timestamp"
        case date():
            return f"'{value.isoformat()}'::date"
        case Decimal():
            return format(value, "f")
        case int():
            return str(value)
        case bytes():
            return f"decode('{value.hex()}', 'hex')"
        case str():
            return text_literal(value)


def text_literal(value: str) -> str:
    """The same in every session: with a backslash inside, only E'' does not depend on settings."""
    quoted = "'" + value.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


@contextmanager
def errors(login: Login, where: str | None = None, *, grants: str = _GRANTS) -> Iterator[None]:
    """Put the driver's errors into words, once for everything that talks to the server.

    `grants` says what it takes to do what is done there.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _in_words(login, error, where, grants) from error


def _in_words(login: Login, error: psycopg.Error, where: str | None, grants: str) -> TidegateError:
    text = error.diag.message_primary or str(error).strip()
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return _not_connected(login, text)
    if isinstance(error, psycopg.errors.QueryCanceled) and login.max_query and "timeout" in text:
        return too_long(login, where or login.where)
    if isinstance(error, psycopg.OperationalError) and error.sqlstate and error.sqlstate[:2] in ("08", "57"):
        return ConnectError(f"the connection failed: {text}", where=login.where, hint="run it again")
    if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
        return cut_short(text, where or login.where)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return SourceError(text, where=where or login.where, hint=f'{grants} to "{login.username}"')
    return SourceError(text, where=where or login.where)


def _not_connected(login: Login, text: str) -> ConnectError:
    reason = text.rpartition("FATAL:")[2].strip().splitlines()[0] if text else "the connection was lost"
    if any(phrase in text for phrase in _REFUSED_LOGIN) or f'role "{login.username}" does not exist' in text:
        return LoginRefused(
            f"the server refused the login of user `{login.username}`: {reason}",
            where=login.where,
            hint="check username and password, and pg_hba.conf on the server",
        )
    if f'database "{login.database}" does not exist' in text:
        hint = "check the name of the database"
        return LoginRefused(f"there is no database `{login.database}`", where=login.where, hint=hint)
    unencrypted = tls.refused(login, reason)
    if unencrypted is not None:
        return unencrypted
    return tunnel.beyond(login) or ConnectError(
        f"cannot reach the server: {reason}",
        where=login.where,
        hint="check host and port, that the server is running, and that no firewall is in between",
    )
