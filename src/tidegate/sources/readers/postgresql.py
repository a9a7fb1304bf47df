"""Reading PostgreSQL: COPY in its binary form, through DuckDB's scanner, behind a projection it cannot bend.

What the scanner does with a type was tried out, type by type; only what arrives exactly, or can be told from
what did not, is selected as it is. See docs/adr/0002-readers.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import make_conninfo

from tidegate.arrow import arrow_schema
from tidegate.core.errors import ConfigError, ConnectError, SourceError, TidegateError
from tidegate.core.types import Column, DataType, Kind
from tidegate.reach import libpq
from tidegate.reach.login import APPLICATION_NAME, CONNECT_TIMEOUT_SECONDS, Login
from tidegate.sources.contract import Read, Reader
from tidegate.sources.postgresql_session import (
    connect,
    cut_short,
    errors,
    limit_of,
    quote,
    run,
    text_literal,
    too_long,
)
from tidegate.sources.readers import exact
from tidegate.sources.readers.exact import Projection, Rule

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",  # before PostgreSQL 12, 1 is a digit less than it takes
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "idle_in_transaction_session_timeout": "0",
}
_LONGEST_NAN = 6
"""Bytes of a numeric without digits: a length of one byte in a table, of four elsewhere, and two more."""
_MOST_ROWS = 4096
_MOST_SHORT_ROWS = 16_384
"""Rows at once where all that were read before had at most `_SHORT` bytes, which no type tells: a `text` may
be a word or a book. The client takes a tenth less."""
_SHORT = 1024
_MOST_LARGE_ROWS = 1024
"""Rows at once where values tend to be large."""
_LARGE_KINDS = frozenset({Kind.BYTES, Kind.JSON})

# --- What is selected --------------------------------------------------------

_EARLIEST_DATE, _LATEST_DATE = -2_440_588, 2_145_042_905
"""What is not infinite: from 4714-11-24 BC to 5874897-12-31, in days from 1970."""
_EARLIEST_MOMENT, _LATEST_MOMENT = -210_866_803_200_000_000, 2**63 - 2
"""In microseconds. The last years before 294277 run over, and come out before the first."""

_PLAIN_TEXTS = frozenset({"text", "character varying"})
_WITH_TIME = "an infinite timestamp, or one after 294246"


def _plain(name: str, declared: DataType) -> str:
    del declared
    return name


def _as_text(name: str, declared: DataType) -> str:
    """As PostgreSQL itself writes it. The blanks that fill up a `character(n)` are not part of its text."""
    del declared
    return f"{name}::text"


RULES = (
    Rule(frozenset({Kind.BOOL}), None, _plain, exact.unchanged),
    Rule(frozenset({Kind.INT16, Kind.INT32, Kind.INT64}), None, _plain, exact.integer),
    Rule(frozenset({Kind.FLOAT32, Kind.FLOAT64}), None, _plain, exact.real),
    Rule(frozenset({Kind.DECIMAL}), None, _plain, exact.decimal),
    Rule(
        frozenset({Kind.DATE}),
        None,
        _plain,
        exact.within(exact.unchanged, _EARLIEST_DATE, _LATEST_DATE, "an infinite date"),
    ),
    Rule(frozenset({Kind.TIME}), None, _plain, exact.time_of_day),
    Rule(
        frozenset({Kind.TIMESTAMP}),
        None,
        _plain,
        exact.within(exact.unchanged, _EARLIEST_MOMENT, _LATEST_MOMENT, _WITH_TIME),
    ),
    Rule(
        frozenset({Kind.INSTANT}),
        None,
        _plain,
        exact.within(exact.instant, _EARLIEST_MOMENT, _LATEST_MOMENT, _WITH_TIME),
    ),
    Rule(frozenset({Kind.BYTES}), None, _plain, exact.octets),
    Rule(frozenset({Kind.UUID, Kind.JSON}), None, _plain, exact.text),
    Rule(frozenset({Kind.TEXT}), _PLAIN_TEXTS, _plain, exact.text),
    Rule(frozenset({Kind.TEXT}), None, _as_text, exact.text),
)


def _projections(columns: Iterable[Column]) -> tuple[Projection, ...]:
    return tuple(
        _signed(projection.column) if projection.column.charset else _widened(projection)
        for projection in exact.projections(columns, RULES, quote)
    )


_UTF8 = "|".join(
    [
        r"[\u0001-\u007f]",
        r"[\u00c2-\u00df][\u0080-\u00bf]",
        r"\u00e0[\u00a0-\u00bf][\u0080-\u00bf]",
        r"[\u00e1-\u00ec\u00ee\u00ef][\u0080-\u00bf]{2}",
        r"\u00ed[\u0080-\u009f][\u0080-\u00bf]",
        r"\u00f0[\u0090-\u00bf][\u0080-\u00bf]{2}",
        r"[\u00f1-\u00f3][\u0080-\u00bf]{3}",
        r"\u00f4[\u0080-\u008f][\u0080-\u00bf]{2}",
    ]
)
"""What every text is in UTF-8, where each byte counts as a character."""


def _no_utf8(column: Column) -> str:
    """In a database that takes any bytes for text; the server would refuse to send them."""
    return f"COALESCE({quote(column.name)}::text !~ '^({_UTF8})*$', false)"


def _signed(column: Column) -> Projection:
    """A text behind a sign that says whether it is one; bytes that are none are written as numbers."""
    sent = f"{quote(column.name)}::text"
    written = f"encode(convert_to({sent}, 'SQL_ASCII'), 'escape')"
    sql = f"CASE WHEN {_no_utf8(column)} THEN '!' || {written} ELSE '=' || {sent} END"
    return Projection(column, sql, exact.signed)


def _widened(projection: Projection) -> Projection:
    """Decimals whose scale is negative or beyond their digits are declared wider, and travel as text."""
    column = projection.column
    plain = f"numeric({column.type.precision},{column.type.scale})"
    if column.type.kind is not Kind.DECIMAL or column.native == plain:
        return projection
    return Projection(column, _as_text(projection.sql, column.type), exact.decimal)


_UNFIT = {
    Kind.DATE: "NOT isfinite({})",
    Kind.TIMESTAMP: "{} IN ('infinity', '-infinity') OR {} > '294247-01-10 04:00:54.775806'",
    Kind.INSTANT: "{} IN ('infinity', '-infinity') OR {} > '294247-01-10 04:00:54.775806+00'",
    Kind.TIME: "{} = '24:00'",
    Kind.DECIMAL: "{} = 'NaN'",
}


def _unfit(column: Column) -> str | None:
    if column.charset:
        return _no_utf8(column)
    name = quote(column.name)
    condition = _UNFIT.get(column.type.kind)
    return f"COALESCE({condition.replace('{}', name)}, false)" if condition else None


def _as_declared(column: Column) -> str:
    """PostgreSQL forgets a column's sizes in a CASE; what travels as text has none."""
    plain = f"numeric({column.type.precision},{column.type.scale})"
    if column.charset or (column.type.kind is Kind.DECIMAL and column.native != plain):
        return "{}"
    return f"({{}})::{column.native}"


# --- Reading -----------------------------------------------------------------


@dataclass(frozen=True)
class PostgreSQLReader:
    """Reads chunks; connects for each of them anew, unless it is kept."""

    login: Login

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        with self.kept() as connected:
            yield from connected.read(read, batch_rows=batch_rows, lost=lost)

    @contextmanager
    def kept(self) -> Iterator[Reader]:
        with closing(_Connection(self.login)) as connection:
            yield connection


class _Connection:
    """A connection behind a name in DuckDB, made for the first read and kept as long as reads succeed.

    Connecting, with a password hashed as it should be, takes as long as reading 10,000 rows.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._name = f"source_{next(_NUMBERS)}"
        self._duckdb: DuckDBPyConnection | None = None
        self._longest: float | None = None
        """Bytes of a row, in the batch that had most."""
        self._zeros: set[tuple[str, str]] = set()

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        complete = False
        try:
            yield from self._read(read, batch_rows, lost)
            complete = True
        finally:
            if not (complete and self._rolled_back()):
                self.close()

    def kept(self) -> AbstractContextManager[Reader]:
        return nullcontext(self)

    def close(self) -> None:
        """Said aloud: if DuckDB finds by itself that it cannot roll back, it ends the process."""
        if self._duckdb is None:
            return
        self._rolled_back()
        self._run(f"DETACH {self._name}")
        self._duckdb.close()
        self._duckdb = None

    def _read(self, read: Read, batch_rows: int, lost: Counter[str] | None) -> Iterator[pa.RecordBatch]:
        nulled = exact.Nulled(read, _unfit, lost)
        chosen = nulled.projected(_projections(read.columns), _as_declared)
        schema = arrow_schema(read.columns)
        rows = _rows_at_once(read.columns, batch_rows, self._longest)
        nan = _NaN(read, chosen, self._zeros)
        session = _begin(self._attached(), self._login, read, self._name)
        select = f"SELECT {nan.flag}{nulled.flags}{exact.select(read, chosen)}"
        with closing(session.stream(select, rows)) as batches:
            for raw in batches:
                self._longest = max(self._longest or 0, raw.nbytes / max(1, raw.num_rows))
                rest = nulled.counted(nan.checked(raw, session))
                yield from exact.exact(rest, chosen, schema, read)
                nan.see(rest)
        nan.settle(session)

    def _attached(self) -> DuckDBPyConnection:
        if self._duckdb is None:
            self._duckdb = _duckdb(os.getpid()).cursor()
            _attach(self._duckdb, self._login, self._name)
        return self._duckdb

    def _rolled_back(self) -> bool:
        return self._run("ROLLBACK")

    def _run(self, statement: str) -> bool:
        from duckdb import Error

        assert self._duckdb is not None
        try:
            self._duckdb.execute(statement)
        except Error:  # the connection may be gone; it only read, so nothing can be lost with it
            return False
        return True


def _rows_at_once(columns: tuple[Column, ...], wanted: int, longest: float | None) -> int:
    if any(column.type.kind in _LARGE_KINDS for column in columns):
        most = _MOST_LARGE_ROWS
    elif longest is not None and longest <= _SHORT:
        most = _MOST_SHORT_ROWS
    else:
        most = _MOST_ROWS
    return exact.rows_at_once(len(columns), wanted, most)


class _NaN:
    """Tells NaN from the zero that the scanner makes of it in a decimal.

    Where zeros have been seen, by a flag beside the row. Where none have, the server is spared that work, and
    asked at the end if one has arrived after all: in the same snapshot, and before the read is complete.
    """

    def __init__(self, read: Read, chosen: tuple[Projection, ...], zeros: set[tuple[str, str]]) -> None:
        self._read = read
        self._zeros = zeros
        """Columns in which zeros have been seen, by what they were read from."""
        numbers = {
            projection.column: number
            for number, projection in enumerate(chosen)
            if projection.column.type.kind is Kind.DECIMAL and projection.sql == quote(projection.column.name)
        }
        self._flagged = [column for column in numbers if (read.relation, column.name) in zeros]
        self._bare = {column: number for column, number in numbers.items() if column not in self._flagged}
        self._doubtful: list[Column] = []

    @property
    def flag(self) -> str:
        return f"{_any_nan(self._flagged)} AS nan, " if self._flagged else ""

    def checked(self, raw: pa.RecordBatch, session: _Session) -> pa.RecordBatch:
        """The batch without its flag, if it was never raised."""
        if not self._flagged:
            return raw
        if pc.any(raw.column(0)).as_py():
            self._refuse(self._flagged, session)
        return raw.select(range(1, raw.num_columns))

    def see(self, batch: pa.RecordBatch) -> None:
        """Look for zeros in columns that are read without a flag."""
        found = [column for column, number in self._bare.items() if _has_zero(batch.column(number))]
        for column in found:
            del self._bare[column]
        self._doubtful += found

    def settle(self, session: _Session) -> None:
        """After the last row: were all zeros zeros?"""
        if self._doubtful:
            self._refuse(self._doubtful, session)
            self._zeros.update((self._read.relation, column.name) for column in self._doubtful)

    def _refuse(self, columns: list[Column], session: _Session) -> None:
        """Raise if there is a NaN, and say in which column of which row."""
        shown = [
            *(_is_nan(column) for column in columns),
            *(f"{quote(n)}::text" for n in self._read.positions),
        ]
        selected = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(shown))
        found = session.rows(
            f"SELECT {selected} FROM {self._read.relation} "
            f"WHERE {self._read.condition} AND ({_any_nan(columns)}) LIMIT 1"
        )
        for row in found:
            named = exact.named_row(zip(self._read.positions, row[len(columns) :], strict=True))
            raise exact.lossy(self._read, columns[row.index(True)], "NaN", named)


def _any_nan(columns: list[Column]) -> str:
    return " OR ".join(map(_is_nan, columns))


def _is_nan(column: Column) -> str:
    """To compare numbers takes the server as long as to send them, so few of them are: like zero, NaN has no
    digits, and nothing that has several is as short."""
    name = quote(column.name)
    return f"pg_column_size({name}) <= {_LONGEST_NAN} AND {name} = 'NaN'"


def _has_zero(decimals: pa.Array) -> bool:
    return bool(pc.any(pc.equal(decimals, pa.scalar(0, decimals.type))).as_py())


@dataclass(frozen=True)
class _Session:
    """A read-only transaction on a connection of its own, behind a name in DuckDB."""

    login: Login
    read: Read
    duckdb: DuckDBPyConnection
    name: str
    backend: int

    def stream(self, sql: str, rows: int) -> Generator[pa.RecordBatch]:
        with _failures(self.login, self.read):
            stream = iter(_query(self.duckdb, self.name, sql).to_arrow_reader(rows))
        complete = False
        try:
            while (raw := self._next(stream)) is not None:
                yield raw
            complete = True
        finally:
            if not complete:
                _cancel(self.login, self.backend)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with _failures(self.login, self.read):
            return _query(self.duckdb, self.name, sql).fetchall()

    def _next(self, stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with _failures(self.login, self.read):
            return next(stream, None)


_NUMBERS = count(1)


def _begin(duckdb: DuckDBPyConnection, login: Login, read: Read, name: str) -> _Session:
    """DuckDB's BEGIN for what is attached to be read: REPEATABLE READ READ ONLY, and one connection."""
    pins = ", ".join(
        f"set_config('{setting}', '{value}', true) AS c{number}"
        # Without a limit of the user's own, a read lasts as long as its rows take to be staged.
        for number, (setting, value) in enumerate(
            {**_PINNED, "statement_timeout": limit_of(login)}.items(), 1
        )
    )
    with _failures(login, read):
        duckdb.execute("BEGIN")
        if read.snapshot is not None:
            snapshot = f"SET TRANSACTION SNAPSHOT {text_literal(read.snapshot)}"
            duckdb.execute(f"CALL postgres_execute({_text(name)}, {_text(snapshot)})")
        [(backend, *_)] = _query(duckdb, name, f"SELECT pg_backend_pid() AS c0, {pins}").fetchall()
    return _Session(login, read, duckdb, name, backend)


def _query(duckdb: DuckDBPyConnection, name: str, sql: str) -> DuckDBPyConnection:
    """Without parameters: for the first of them DuckDB imports pandas, as slow as many a chunk."""
    return duckdb.execute(f"FROM postgres_query({_text(name)}, {_text(sql)})")


def _text(text: str) -> str:
    """A literal of DuckDB's."""
    return "'" + text.replace("'", "''") + "'"


def _attach(duckdb: DuckDBPyConnection, login: Login, name: str) -> None:
    from duckdb import Error

    address = make_conninfo(
        **libpq.parameters(login),
        application_name=APPLICATION_NAME,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        client_encoding="UTF8",
    )
    try:
        duckdb.execute(f"ATTACH {_text(address)} AS {name} (TYPE postgres, READ_ONLY)")
    except Error as error:
        raise _unconnected(login, str(error)) from None  # it holds the password


@cache
def _duckdb(process: int) -> DuckDBPyConnection:
    """One for each process, since loading the scanner takes longer than reading a small chunk."""
    del process  # told apart, because a forked child must neither use nor close its parent's
    with exact.extra("postgresql"):
        import duckdb
    settings: dict[str, Any] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # The one that is loaded came with this package, like any other module; to have its 40 MB hashed once
        # more, in every worker, would take as long as reading 80,000 rows.
        "allow_unsigned_extensions": True,
    }
    instance = duckdb.connect(config=settings)
    instance.execute(f"LOAD {_text(str(_scanner(duckdb.__version__)))}")
    return instance


def _scanner(version: str) -> Path:
    package = "duckdb_extension_postgres_scanner"
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / "extensions" / f"v{version}" / "postgres_scanner.duckdb_extension"
        if path.exists():
            return path
    raise ConfigError(
        f"`{package}` for DuckDB {version} is not installed",
        hint="install it with `pip install 'tidegate[postgresql]'`, wherever tasks run",
    )


# --- Failures ----------------------------------------------------------------

_UNCONNECTED = "Unable to connect to Postgres"
_LOST = ("server closed the connection", "no connection to the server", "could not receive data", "SSL ")


_CUT_SHORT = ("conflict with recovery", "could not serialize access", "deadlock detected")


@contextmanager
def _failures(login: Login, read: Read) -> Iterator[None]:
    """Put what goes wrong in DuckDB, or in the stream it hands to Arrow, into words."""
    from duckdb import Error

    try:
        yield
    except (Error, OSError, pa.ArrowException) as error:
        if _UNCONNECTED in str(error):  # DuckDB noticed that its connection was gone, and made another
            raise _unconnected(login, str(error)) from None  # it holds the password
        raise _in_words(login, read, str(error)) from error


def _unconnected(login: Login, text: str) -> TidegateError:
    """What DuckDB says of a connection that it could not make, without the address that it shows."""
    reason = text.rpartition('": ')[2]
    try:
        with errors(login):
            raise psycopg.OperationalError(reason)
    except TidegateError as known:
        return known


def _in_words(login: Login, read: Read, text: str) -> TidegateError:
    if login.max_query and "statement timeout" in text:
        return too_long(login, exact.place(read))
    fatal = "FATAL:" in text or any(phrase in text for phrase in _LOST)
    said = text.rpartition("FATAL:" if "FATAL:" in text else "ERROR:")[2].strip().partition("\n")[0]
    if fatal:
        return ConnectError(f"the connection failed: {said}", where=login.where, hint="run it again")
    if any(phrase in said for phrase in _CUT_SHORT):
        return cut_short(said, exact.place(read))
    hint = f'`GRANT SELECT` on the table to "{login.username}"' if "permission denied" in said else None
    return SourceError(said, where=exact.place(read), hint=hint)


def _cancel(login: Login, backend: int) -> None:
    """End a query that nobody reads any more: DuckDB would fetch all of it before it rolls back."""
    # It only reads, so nothing is lost if it cannot be ended: it ends by itself.
    with suppress(TidegateError, psycopg.Error), closing(connect(login)) as session:
        run(session, f"SELECT pg_cancel_backend({backend})")
