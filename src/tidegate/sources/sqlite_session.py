"""Sessions with an SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote as url_quote

from tidegate.core.errors import LoginRefused, SourceError, TidegateError
from tidegate.core.positions import Value

Row = tuple[Any, ...]
Session = sqlite3.Connection

BUSY_SECONDS = 30.0
"""How long a read waits for a writer that keeps readers out while it commits."""


def connect(path: str, *, busy: float = BUSY_SECONDS, read_only: bool = True) -> Session:
    """A session on a file that is there. It can only read, unless it is to ask for the write lock."""
    with errors(path):
        if not Path(path).is_file():
            raise LoginRefused("there is no such file", where=path, hint="check `path` of the source")
        mode = "rw" if writable(path) else "ro"
        session = sqlite3.connect(
            f"file:{url_quote(str(Path(path).absolute()))}?mode={mode}",
            uri=True,
            timeout=busy,
            isolation_level=None,
            check_same_thread=False,  # used by one thread, and perhaps closed by another
        )
        if read_only:
            run(session, "PRAGMA query_only = ON")
        run(session, "PRAGMA schema_version")
    return session


def writable(path: str) -> bool:
    """A lock needs a file beside the database, so the folder counts too."""
    return os.access(path, os.W_OK) and os.access(Path(path).absolute().parent, os.W_OK)


def run(session: Session, sql: str) -> list[Row]:
    return session.execute(sql).fetchall()


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Value) -> str:
    match value:
        case datetime():
            return text_literal(value.replace(tzinfo=None).isoformat(sep=" "))
        case date():
            return text_literal(value.isoformat())
        case Decimal():
            return format(value, "f")
        case int():
            return str(value)
        case bytes():
            return f"X'{value.hex()}'"
        case str():
            return text_literal(value)


def written_forms(value: Value) -> list[str]:
    """A value in all the ways in which a file may have it: timestamps are text there."""
    if not isinstance(value, datetime):
        return [literal(value)]
    fraction = f"{value.microsecond:06d}"
    exact = [size for size in range(7) if not fraction[size:].strip("0")]
    texts = [
        value.replace(microsecond=0, tzinfo=None).isoformat(sep=separator)
        + (f".{fraction[:size]}" if size else "")
        for separator in " T"
        for size in exact
    ]
    return [text_literal(text) for text in texts]


def text_literal(value: str) -> str:
    if "\0" in value:
        return f"CAST(X'{value.encode().hex()}' AS TEXT)"
    return "'" + value.replace("'", "''") + "'"


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def cannot_write(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


def _code(error: sqlite3.Error) -> int | None:
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


@contextmanager
def errors(path: str, where: str | None = None) -> Iterator[None]:
    """Put the library's errors into words, once for everything that reads the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _in_words(path, error, where) from error


def _in_words(path: str, error: sqlite3.Error, where: str | None) -> TidegateError:
    if _code(error) == sqlite3.SQLITE_NOTADB:
        return LoginRefused(
            "the file is not an SQLite database", where=path, hint="check `path` of the source"
        )
    if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return LoginRefused(f"the file cannot be opened: {error}", where=path, hint="check its permissions")
    if is_busy(error):
        hint = "another program keeps it locked; run it again"
        return SourceError("the database is locked", where=where or path, hint=hint)
    return SourceError(str(error), where=where or path)
