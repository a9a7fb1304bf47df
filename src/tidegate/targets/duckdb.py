"""DuckDB: a warehouse in one file, loaded straight from Parquet.

DuckDB lets one process in at a time and keeps readers out while it writes. So the file is opened for one
operation and closed after it; when another process holds it, we wait, and then say who it is. Threads of
this process take turns.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidegate.arrow import arrow_schema
from tidegate.core.errors import (
    ConnectError,
    IncompatibleTable,
    InvariantBroken,
    LoginRefused,
    OutcomeUnknown,
    TargetError,
)
from tidegate.core.mappings import CARRIED, native_type
from tidegate.core.names import RULES, fold_ascii
from tidegate.core.types import DataType, Kind
from tidegate.targets.contract import StagedSegment
from tidegate.targets.ddl import Dialect, TableName, TargetColumn, listed, quote
from tidegate.targets.segments import at_hand, batches, check
from tidegate.targets.sql import SqlTarget

_PLAIN: dict[str, DataType] = {row.duckdb.native: DataType(kind) for kind, row in CARRIED.items()}
_ALSO: dict[str, DataType] = {
    "HUGEINT": DataType(Kind.DECIMAL, precision=38, scale=0),
    "TIMESTAMP_S": DataType(Kind.TIMESTAMP, precision=0),
    "TIMESTAMP_MS": DataType(Kind.TIMESTAMP, precision=3),
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_HOLDER = re.compile(r"lock is held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")
_IN_USE = re.compile(r"Conflicting lock|Unique file handle conflict")
"""Another process has the file, or another connection of this one is just closing it."""
_FOR_GOOD = (
    (
        re.compile(r"not a valid DuckDB database file"),
        "move what lies there away, or correct the target's `path`",
    ),
    (
        re.compile(r"Permission denied|Read-only file system"),
        "let the user who runs this write the file and the folder it lies in",
    ),
)
"""What no second try mends, and what does."""
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")
"""A quoted text, a quoted name, or, as its group, the number of a parameter."""
_RETRY_SECONDS = 0.1

_TURNS: dict[str, threading.Lock] = {}


# No primary key: without one DuckDB keeps no index, whose upkeep costs time and space, and with it go the
# limits on changing rows and columns that indexes bring. One writer at a time keeps the key unique.
DIALECT = Dialect(
    native=partial(native_type, "duckdb"), names=RULES["duckdb"], unique_keys=False, writes_text=True
)


def declared_type(native: str) -> DataType | None:
    """A column's type in declared terms; None for one that no declared kind is like."""
    sizes = _DECIMAL.fullmatch(native)
    if sizes:
        return DataType(Kind.DECIMAL, precision=int(sizes[1]), scale=int(sizes[2]))
    return _PLAIN.get(native) or _ALSO.get(native)


class DuckDbTarget(SqlTarget):
    """A DuckDB file as a target. `wait` is how many seconds to wait for another process to let go of it."""

    def __init__(self, path: str | Path, schema: str = "main", *, wait: float = 30.0) -> None:
        super().__init__(DuckDb(Path(path), wait), schema)


@dataclass(frozen=True)
class DuckDb:
    path: Path
    wait: float = 30.0

    @property
    def dialect(self) -> Dialect:
        return DIALECT

    @contextmanager
    def reading(self) -> Iterator[DuckDbSession]:
        with self._turn(), closing(self._connect_to_read()) as connection:
            yield DuckDbSession(connection, str(self.path))

    @contextmanager
    def writing(self) -> Iterator[DuckDbSession]:
        with self._turn(), closing(self._connect_to_write()) as connection:
            session = DuckDbSession(connection, str(self.path))
            # Where a column becomes text: in the machine's own zone, moments before 1900 would lose seconds.
            session.change("SET TimeZone = 'UTC'")
            session.change("BEGIN TRANSACTION")
            yield session  # on an error the connection closes, and the transaction is gone with it
            self._commit(connection)

    def _commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            connection.execute("COMMIT")
        except (duckdb.IOException, duckdb.FatalException, duckdb.InternalException) as error:
            raise OutcomeUnknown(
                f"the answer to the commit was lost: {_first_line(error)}", where=str(self.path)
            ) from error
        except duckdb.Error as error:
            raise TargetError(
                f"DuckDB refused to commit: {_first_line(error)}", where=str(self.path)
            ) from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with _TURNS.setdefault(str(self.path.absolute()), threading.Lock()):
            yield

    def _connect_to_read(self) -> duckdb.DuckDBPyConnection:
        self._demand_folder()
        if not self.path.exists():
            return duckdb.connect(":memory:")  # nothing is there, and looking must not create it
        try:
            return self._connect(read_only=True)
        except duckdb.ConnectionException:
            # This process has it open for writing elsewhere, and DuckDB wants all its openings alike.
            return self._connect_to_write()

    def _connect_to_write(self) -> duckdb.DuckDBPyConnection:
        self._demand_folder()
        try:
            return self._connect(read_only=False)
        except duckdb.ConnectionException as error:
            raise self._unopened(error) from error

    def _connect(self, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + self.wait
        while True:
            try:
                return duckdb.connect(self.path.absolute(), read_only=read_only)
            except (duckdb.IOException, duckdb.BinderException) as error:
                if not _IN_USE.search(str(error)):
                    raise self._unopened(error) from error
                if time.monotonic() >= deadline:
                    raise self._held(error) from error
            time.sleep(_RETRY_SECONDS)

    def _demand_folder(self) -> None:
        if not self.path.parent.is_dir():
            raise LoginRefused(
                f"the folder {self.path.parent} does not exist",
                where=str(self.path),
                hint="make the folder, or correct the target's `path`",
            )

    def _unopened(self, error: duckdb.Error) -> ConnectError:
        problem = f"the DuckDB file cannot be opened: {_first_line(error)}"
        for reason, hint in _FOR_GOOD:
            if reason.search(str(error)):
                return LoginRefused(problem, where=str(self.path), hint=hint)
        return ConnectError(problem, where=str(self.path))

    def _held(self, error: duckdb.Error) -> ConnectError:
        holder = _HOLDER.search(str(error))
        if holder is None:
            return self._unopened(error)
        pid = int(holder["pid"])
        return ConnectError(
            f"process {pid} ({_program(pid) or Path(holder['program']).name}) holds the DuckDB file, "
            f"and did not let go of it for {self.wait:g} s",
            where=str(self.path),
            hint="DuckDB lets one process in at a time: close the other one, then run this again",
        )


def _program(pid: int) -> str | None:
    """The name of a process, without its arguments: those may hold secrets."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """DuckDB's errors as Tidegate's."""
    try:
        yield
    except duckdb.Error as error:
        raise TargetError(f"DuckDB: {_first_line(error)}", where=where) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class DuckDbSession:
    def __init__(self, connection: duckdb.DuckDBPyConnection, where: str) -> None:
        self._connection = connection
        self._where = where
        [(self._catalog,)] = self.rows("SELECT current_database()")

    def relation(self, table: TableName) -> str:
        # With the catalog: a file called main.duckdb would make `main.orders` ambiguous.
        return f"{quote(self._catalog)}.{quote(table.schema)}.{quote(table.name)}"

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _translated(self._where):
            return self._connection.execute(_written_out(sql, parameters)).fetchall()

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        found = self.rows(sql, parameters)
        return int(found[0][0]) if found else 0

    def columns(self, table: TableName) -> tuple[TargetColumn, ...]:
        if self.rows(f"SELECT 1 FROM duckdb_views() WHERE {_NAMED.format('view')}", self._names(table)):
            raise IncompatibleTable(
                "there is a view of that name, and rows cannot go into it", where=str(table)
            )
        rows = self.rows(
            "SELECT column_name, data_type, is_nullable, column_default IS NOT NULL FROM duckdb_columns() "
            f"WHERE {_NAMED.format('table')} ORDER BY column_index",
            self._names(table),
        )
        return tuple(
            TargetColumn(name, native, declared_type(native), nullable, automatic)
            for name, native, nullable, automatic in rows
        )

    def create_schema(self, name: str) -> None:
        self.change(f"CREATE SCHEMA IF NOT EXISTS {quote(self._catalog)}.{quote(name)}")

    def lock(self, name: str) -> None:
        """Nobody else is in: the process holds the file, and its threads take turns."""

    def temporary(self, name: str, select: str) -> str:
        self.change(f"CREATE TEMP TABLE {quote(name)} AS {select}")
        return f"temp.main.{quote(name)}"

    def copy(self, staged: Sequence[StagedSegment], into: str, *, run_column: str | None) -> int:
        return sum(self._copy_local(here, into, run_column) for here in at_hand(staged))

    def _copy_local(self, staged: Sequence[StagedSegment], into: str, run_column: str | None) -> int:
        for item in staged:
            check(item)
        rows = 0
        for (_, run, _), alike in groupby(staged, key=_source):
            group = list(alike)
            expected = sum(item.segment.rows for item in group)
            found = self._copy(group, into, [] if run_column is None else [(run_column, run)])
            if found != expected:
                raise InvariantBroken(f"{found} of {expected} rows went in", where=group[0].segment.key)
            rows += found
        return rows

    def _copy(self, group: Sequence[StagedSegment], into: str, constants: Sequence[tuple[str, int]]) -> int:
        """Load segments of one schema and one run in one statement, or one with an odd name on its own."""
        columns = listed([*group[0].schema.names, *(name for name, _ in constants)])
        names = group[0].stored if _plain_file(group[0]) else group[0].schema.names
        values = ", ".join([listed(names), *(str(value) for _, value in constants)])
        insert = f"INSERT INTO {into} ({columns}) SELECT {values} FROM"
        if _plain_file(group[0]):
            # Without `hive_partitioning = false`, a folder called `year=2025` would become a column.
            paths = [str(item.path) for item in group]
            return self.change(f"{insert} read_parquet($1, hive_partitioning = false)", [paths])
        [item] = group
        reader = pa.RecordBatchReader.from_batches(arrow_schema(item.schema.columns), batches(item))
        self._connection.register("_tidegate_segment", reader)
        try:
            return self.change(f"{insert} _tidegate_segment")
        finally:
            self._connection.unregister("_tidegate_segment")

    def analyze(self, relation: str, columns: Sequence[str]) -> None:
        """DuckDB knows its tables as it fills them."""

    def replace(self, table: TableName, fill: Callable[[str], int]) -> int:
        relation = self.relation(table)
        if not self._plain(table):
            # A new table would lack its constraints, indexes or defaults. Readers of this process see the
            # old rows until the commit, and others cannot look in before.
            self.change(f"DELETE FROM {relation}")
            return fill(relation)
        beside = TableName(table.schema, f"_tidegate_new_{table.name}")
        self.change(f"CREATE TABLE {self.relation(beside)} AS SELECT * FROM {relation} LIMIT 0")
        rows = fill(self.relation(beside))
        self.change(f"DROP TABLE {relation}")
        self.change(f"ALTER TABLE {self.relation(beside)} RENAME TO {quote(table.name)}")
        return rows

    def _plain(self, table: TableName) -> bool:
        """Whether columns and their types are all there is to the table."""
        named = _NAMED.format("table")
        [(extras,)] = self.rows(
            f"SELECT (SELECT count(*) FROM duckdb_constraints() WHERE {named}) + "
            f"(SELECT count(*) FROM duckdb_indexes() WHERE {named}) + "
            f"(SELECT count(*) FROM duckdb_tables() WHERE {named} AND comment IS NOT NULL) + "
            f"(SELECT count(*) FROM duckdb_columns() WHERE {named} "
            "AND (column_default IS NOT NULL OR comment IS NOT NULL))",
            self._names(table),
        )
        return not extras

    def _names(self, table: TableName) -> list[str]:
        return [self._catalog, table.schema, table.name]


def _written_out(sql: str, parameters: Sequence[object]) -> str:
    """The statement with its parameters as literals.

    The driver imports pandas to bind its first parameter: over a second of a run that may need no more.
    """
    if not parameters:
        return sql
    return _PARAMETER.sub(
        lambda found: _literal(parameters[int(found[1]) - 1]) if found[1] else found[0], sql
    )


def _literal(value: object) -> str:
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case int():
            return str(value)
        case datetime():
            kind = "TIMESTAMPTZ" if value.tzinfo else "TIMESTAMP"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case Decimal():
            return format(value, "f")
        case bytes():
            return f"from_hex('{value.hex()}')"
        case list():
            return f"CAST([{', '.join(_literal(item) for item in value)}] AS VARCHAR[])"
        case _:
            raise TypeError(f"{type(value).__name__} is not written into SQL here")


_NAMED = "database_name = $1 AND lower(schema_name) = lower($2) AND lower({}_name) = lower($3)"


def _source(item: StagedSegment) -> tuple[str, int, str]:
    """Neighbours for which this is equal can be read by one statement."""
    return item.segment.schema, item.segment.run, "" if _plain_file(item) else item.segment.key


def _plain_file(item: StagedSegment) -> bool:
    """Whether DuckDB can read the file by its path.

    One with glob characters it would take for a pattern, and of two columns that differ by case alone it
    would read the first one twice.
    """
    if item.path is None or set("*?[]{}") & set(str(item.path)):
        return False
    return len({fold_ascii(name) for name in item.stored}) == len(item.stored)
