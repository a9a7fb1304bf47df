"""Reading MySQL and MariaDB: connectorx, which is quick, behind a projection that it cannot bend.

What connectorx does with a type was tried out, type by type; only what arrives exactly is selected as it is.
Its failures are panics, its end is silent, and it reads ahead: see docs/adr/0002-readers.md. What could not
be cut into chunks is left to the plain reader, which waits for whoever takes its rows.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote as percent

import pyarrow as pa
import pymysql
from pymysql.constants import CR

from tidegate.arrow import arrow_schema
from tidegate.core.errors import ConfigError, ConnectError, SourceError, TidegateError
from tidegate.core.types import Column, DataType, Kind
from tidegate.reach.login import CONNECT_TIMEOUT_SECONDS, Login
from tidegate.reach.mysql import limited
from tidegate.reach.tls import authorities
from tidegate.sources.contract import Read, Reader
from tidegate.sources.mysql_guard import altered, has_failed
from tidegate.sources.mysql_session import connect, errors, quote, run
from tidegate.sources.mysql_types import SPATIAL, with_sign
from tidegate.sources.mysql_unfit import unfit, unreadable
from tidegate.sources.readers import exact
from tidegate.sources.readers.exact import Projection, Rule
from tidegate.sources.rows import MySQLWire, RowReader

_SESSION = (
    "SET SESSION {limit} character_set_client = utf8mb4, character_set_results = utf8mb4, "
    "collation_connection = utf8mb4_general_ci, sql_mode = '', sql_select_limit = 18446744073709551615, "
    "sql_big_selects = 1, net_write_timeout = 3600, time_zone = '+00:00'"
)
_TRANSACTION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_TLS_MODES = {
    "disable": "DISABLED",
    "require": "REQUIRED",
    "verify-ca": "VERIFY_CA",
    "verify-full": "VERIFY_IDENTITY",
}
_LARGE_TYPES = frozenset({"mediumtext", "longtext", "mediumblob", "longblob", "json"}) | SPATIAL
_MOST_LARGE_ROWS = 2048
"""Rows at once where a value may have megabytes."""
_MOST_ROWS = 32_768
"""With half of that the driver takes a tenth longer."""

# --- What is selected --------------------------------------------------------

_INTEGERS = frozenset(
    {
        Kind.INT8,
        Kind.INT16,
        Kind.INT32,
        Kind.INT64,
        Kind.UINT8,
        Kind.UINT16,
        Kind.UINT32,
        Kind.UINT64,
    }
)
_TEXTS = frozenset({Kind.TEXT, Kind.UUID, Kind.JSON})
_PLAIN_TEXTS = frozenset(
    {
        "char",
        "varchar",
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
        "enum",
        "set",
        "uuid",
        "inet4",
        "inet6",
    }
)
_MOST_SCALED_DIGITS = 18


def _plain(name: str, declared: DataType) -> str:
    del declared
    return name


def _number(name: str, declared: DataType) -> str:
    del declared
    return f"{name} + 0"


def _as_text(name: str, declared: DataType) -> str:
    del declared
    return f"CAST({name} AS CHAR)"


def _in_unicode(name: str, declared: DataType) -> str:
    """Of any length: a CAST makes NULL of what is longer than max_allowed_packet."""
    del declared
    return f"CONVERT({name} USING utf8mb4)"


def _as_bytes(name: str, declared: DataType) -> str:
    del declared
    return f"CAST({name} AS BINARY)"


def _well_known_binary(name: str, declared: DataType) -> str:
    del declared
    return f"ST_AsWKB({name})"


def _without_point(name: str, declared: DataType) -> str:
    """The driver would make every decimal one of 38 digits, 10 of them behind the point, and cut the rest."""
    if not _fits_integer(declared.precision):
        return _as_text(name, declared)
    return f"CAST({name} * {10 ** (declared.scale or 0)} AS SIGNED)"


def _with_point(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    restore = exact.scaled if _fits_integer(wanted.precision) else exact.decimal
    return restore(array, wanted)


def _fits_integer(digits: int | None) -> bool:
    return digits is not None and digits <= _MOST_SCALED_DIGITS


RULES = (
    Rule(frozenset({Kind.BOOL}), frozenset({"bit"}), _number, exact.truth),
    Rule(frozenset({Kind.BOOL}), None, _plain, exact.truth),
    Rule(_INTEGERS, frozenset({"bit"}), _number, exact.integer),
    Rule(_INTEGERS, None, _plain, exact.integer),
    Rule(frozenset({Kind.FLOAT32, Kind.FLOAT64}), None, _plain, exact.real),
    Rule(frozenset({Kind.DECIMAL}), None, _without_point, _with_point),
    Rule(frozenset({Kind.DATE, Kind.TIMESTAMP}), None, _plain, exact.unchanged),
    Rule(frozenset({Kind.INSTANT}), None, _plain, exact.utc_reading),
    Rule(_TEXTS, _PLAIN_TEXTS, _plain, exact.text),
    Rule(_TEXTS, frozenset({"json"}), _in_unicode, exact.text),
    Rule(_TEXTS, None, _as_text, exact.text),
    Rule(frozenset({Kind.BYTES}), SPATIAL, _well_known_binary, exact.octets),
    Rule(frozenset({Kind.BYTES}), frozenset({"vector"}), _as_bytes, exact.octets),
    Rule(frozenset({Kind.BYTES}), None, _plain, exact.octets),
)

QUERY_RULES = (Rule(frozenset({Kind.DECIMAL}), None, _as_text, exact.decimal), *RULES)
"""A user's SELECT may get its decimals from anywhere, so they travel as text, which has its point with it."""


def _projections(read: Read) -> tuple[Projection, ...]:
    chosen = exact.projections(read.columns, QUERY_RULES if exact.is_query(read) else RULES, quote)
    return tuple(_signed(each.column) if each.column.charset else each for each in chosen)


def _signed(column: Column) -> Projection:
    """Of the column itself: what has been converted once tells nothing of what was lost."""
    return Projection(column, with_sign(quote(column.name)), exact.signed)


# --- Reading -----------------------------------------------------------------


@dataclass(frozen=True)
class MySQLReader:
    """Reads chunks; connects for each of them anew."""

    login: Login

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if read.uncut:
            return RowReader(MySQLWire(self.login)).read(read, batch_rows=batch_rows, lost=lost)
        return self._read(read, batch_rows, lost)

    def kept(self) -> AbstractContextManager[Reader]:
        """The driver connects for each query, and cannot do otherwise."""
        return nullcontext(self)

    def _read(self, read: Read, batch_rows: int, lost: Counter[str] | None) -> Iterator[pa.RecordBatch]:
        nulled = exact.Nulled(read, unfit, lost)
        chosen = nulled.projected(_projections(read), lambda _: "{}")
        schema = arrow_schema(read.columns)
        rows = _rows_at_once(read.columns, batch_rows)
        stream = _Stream(_settled(self.login), read, nulled.flags + exact.select(read, chosen), rows)
        with closing(stream.batches()) as batches:
            for raw in batches:
                yield from exact.exact(nulled.counted(raw), chosen, schema, read)


@lru_cache(maxsize=16)
def _settled(login: Login) -> Login:
    """Whether to encrypt where that is preferred: connectorx would insist on it.

    Found out once for all reads of a process, also because it takes as long as a small chunk does. This is
    also where an unreachable server or a refused login shows: at once, not after half a minute.
    """
    with closing(connect(login)) as session, errors(login):
        [(_, cipher)] = run(session, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    if login.tls.mode != "prefer":
        return login
    return replace(login, tls=replace(login.tls, mode="require" if cipher else "disable"))


def _rows_at_once(columns: tuple[Column, ...], wanted: int) -> int:
    large = any(exact.base(column) in _LARGE_TYPES for column in columns)
    return exact.rows_at_once(len(columns), wanted, _MOST_LARGE_ROWS if large else _MOST_ROWS)


@dataclass(frozen=True)
class _Stream:
    """The rows of a query, to the last one or with an error."""

    login: Login
    read: Read
    select: str
    rows: int

    def batches(self) -> Generator[pa.RecordBatch]:
        mark = f"tidegate {secrets.token_hex(8)}"
        with self._failures():
            stream = iter(self._open(f"SELECT /* {mark} */ {self.select}"))
        last = self.rows
        complete = False
        try:
            while (raw := self._next(stream)) is not None:
                last = raw.num_rows
                yield raw
            complete = last < self.rows  # it ends with a batch that is short, if only an empty one
        finally:
            if not complete:
                _kill(self.login, mark)
        if not complete:
            lost = "the rows ended before the last of them"
            raise ConnectError(lost, where=self.login.where, hint="run it again")

    def _next(self, stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with self._failures():
            return next(stream, None)

    def _open(self, sql: str) -> Iterable[pa.RecordBatch]:
        batches: Iterable[pa.RecordBatch] = _connectorx()(
            _address(self.login),
            sql,
            return_type="arrow_stream",
            protocol="binary",  # the text protocol rounds floats
            batch_size=self.rows,
            pre_execution_query=[_SESSION.format(limit=limited(self.login)), _TRANSACTION],
        )
        return batches

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Put the driver's failures into words. A Rust panic is no `Exception`, so few would catch it."""
        try:
            yield
        except BaseException as failure:
            driver = isinstance(failure, RuntimeError | pa.ArrowException)
            if not driver and type(failure).__name__ != "PanicException":
                raise
            text = str(failure).replace(self.login.credentials().password or "\0", "***")
            raise _in_words(self.login, self.read, text) from None  # it may hold the password


def _connectorx() -> Callable[..., Any]:
    os.environ.setdefault("RUST_BACKTRACE", "0")  # what it says is put into words here
    os.environ.setdefault("RUST_LOG", "off")
    with exact.extra("mysql"):
        import connectorx
    return connectorx.read_sql


def _address(login: Login) -> str:
    """The server for connectorx, with the password: never to be shown."""
    if login.tls.cert:
        raise ConfigError(
            "a MySQL source cannot be read with a client certificate",
            where=login.where,
            hint="leave `cert` and `key` out of `tls`",
        )
    address, port = login.endpoint()
    host = f"[{address}]" if ":" in address else address
    who = login.credentials()
    user, password, database = (
        percent(part or "", safe="") for part in (who.username, who.password, login.database)
    )
    options = "&".join(f"{name}={percent(value, safe='')}" for name, value in _options(login).items())
    return f"mysql://{user}:{password}@{host}:{port}/{database}?{options}"


def _options(login: Login) -> dict[str, str]:
    options = {
        "ssl-mode": _TLS_MODES[login.tls.mode],
        # It would follow the server's answer to a socket of this machine, which may be another server's.
        "prefer_socket": "false",
        "stmt_cache_size": "0",  # prepared again in the pinned session
        "tcp_connect_timeout_ms": str(CONNECT_TIMEOUT_SECONDS * 1000),
        "tcp_keepalive_time_ms": "60000",
    }
    if login.iam is not None:
        options["enable_cleartext_plugin"] = "true"
    trusted = login.tls.ca or authorities()
    if login.tls.verified and trusted:
        options["ssl-ca"] = trusted
    return options


# --- Failures ----------------------------------------------------------------

_SERVER_SAYS = re.compile(r"MySqlError \{ ERROR (\d+) \(\w+\): (.*?) \}", re.DOTALL)


def _in_words(login: Login, read: Read, text: str) -> TidegateError:
    said = _SERVER_SAYS.search(text)
    if said and has_failed(said[2]):
        return altered(login, read)
    try:
        with errors(login, exact.place(read)):
            if said:
                raise pymysql.err.OperationalError(int(said[1]), said[2])
            if "waiting for connection" in text:
                raise pymysql.err.OperationalError(CR.CR_CONN_HOST_ERROR, text)
            if "IO error" in text or "IoError" in text:
                raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, text)
    except TidegateError as known:
        return known
    if "max_allowed_packet" in text:
        large = "a row is larger than the server's max_allowed_packet"
        return SourceError(large, where=exact.place(read), hint="raise it, or leave columns out")
    return unreadable(login, read) or SourceError(f"a value cannot be read: {text}", where=exact.place(read))


def _kill(login: Login, mark: str) -> None:
    """End a query that nobody reads any more: the driver would read it to its end."""
    # It only reads, so nothing is lost if it cannot be ended: it ends by itself.
    with suppress(TidegateError, pymysql.err.MySQLError), closing(connect(login)) as session:
        for row in run(session, "SHOW FULL PROCESSLIST"):
            number, info = row[0], row[7]
            if info and mark in info and "PROCESSLIST" not in info:
                run(session, f"KILL CONNECTION {number}")
