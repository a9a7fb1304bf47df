"""Deleting rows at a source: by key and version, a bounded number at a time, on a connection that may write.

A row that was changed since has another version, so it stays. A DELETE that waits for somebody's lock looks
at the row again when it has got it. Where no column says that a row was changed, all that it holds is read
again, in the transaction that deletes it: nobody can change it in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from tidegate.core.errors import ConfigError, SourceError
from tidegate.core.positions import Value
from tidegate.reach.login import login_of
from tidegate.sources.contract import Read
from tidegate.sources.rows import (
    LENIENT,
    MySQLWire,
    PostgreSQLWire,
    SQLiteWire,
    Wire,
    arranged,
    selection,
)

Row = tuple[Value, ...]
Rows = Mapping[Row, bytes | None]
"""Rows by key and version, with the digest of all they hold where it is needed to tell them."""

_AT_ONCE = 50
"""Rows whose contents are in memory at a time."""
_TRIES = 10


@dataclass(frozen=True)
class Contents:
    """All that rows hold, which tells them where no column tells one version from the next."""

    read: Read
    """How they were read, whichever they are."""
    told: Callable[[pa.RecordBatch], Iterable[tuple[Row, bytes]]]
    """The key and version of each row, and the digest of what it holds."""


@dataclass(frozen=True)
class Versions:
    """Where rows lie, and the columns that tell them and their versions apart. The first is of the key."""

    relation: str
    """The table as the source's SQL has it."""
    columns: tuple[str, ...]
    contents: Contents | None = None
    """None: the columns tell whether a row has changed."""


class Connection(Protocol):
    @property
    def wire(self) -> Wire:
        """How this database's readers select and convert values."""
        ...

    @property
    def locking(self) -> str:
        """What a SELECT ends with so that its rows stay as they are until the transaction ends; nothing
        where they do so anyway, or where deleting a row that was changed since is an error."""
        ...

    def quote(self, name: str) -> str: ...
    def literals(self, value: Value) -> Sequence[str]:
        """The ways in which the database may have a value written; mostly there is one."""
        ...

    def demand_held(self, relation: str) -> None:
        """Refuse a table whose rows cannot be kept as they are between being read and being deleted."""
        ...

    def count(self, sql: str) -> int: ...
    def rows(self, read: Read, sql: str) -> Iterator[Sequence[tuple[Any, ...]]]: ...
    def change(self, sql: str) -> int:
        """Run a statement, in a transaction of its own if none is open; return how many rows it touched."""
        ...

    def transaction(self) -> AbstractContextManager[None]: ...
    def overtaken(self, error: SourceError) -> bool:
        """Whether a transaction failed only because others were changing the same rows."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Eraser:
    connection: Connection

    def demand_fit(self, versions: Versions) -> None:
        """Refuse what could not be deleted without the risk of deleting what nobody has looked at."""
        if versions.contents is not None:
            self.connection.demand_held(versions.relation)

    def count(self, versions: Versions, rows: Rows) -> int:
        """How many of these rows are there, in this version."""
        if not rows:
            return 0
        if versions.contents is not None:
            return len(self._unchanged(versions, versions.contents, rows))
        return self.connection.count(
            f"SELECT count(*) FROM {versions.relation} WHERE {self._these(versions, rows)}"
        )

    def erase(self, versions: Versions, rows: Rows) -> int:
        """Delete these rows, where they still have this version; return how many went."""
        if not rows:
            return 0
        contents = versions.contents
        if contents is not None:
            return self._in_one(lambda: self._erase_unchanged(versions, contents, rows))
        return self._delete(versions, rows)

    def close(self) -> None:
        self.connection.close()

    def _delete(self, versions: Versions, rows: Iterable[Row]) -> int:
        return self.connection.change(f"DELETE FROM {versions.relation} WHERE {self._these(versions, rows)}")

    def _in_one(self, work: Callable[[], int]) -> int:
        """Do it in one transaction; again, if others were changing these rows meanwhile."""
        for _ in range(_TRIES - 1):
            try:
                with self.connection.transaction():
                    return work()
            except SourceError as error:
                if not self.connection.overtaken(error):
                    raise
        with self.connection.transaction():
            return work()

    def _erase_unchanged(self, versions: Versions, contents: Contents, rows: Rows) -> int:
        found = self._unchanged(versions, contents, rows, self.connection.locking)
        if not found:
            return 0
        gone = self._delete(versions, dict.fromkeys(found))
        if gone > len(found):
            # Told by its values each row is another one, to the database's own `=` it is not.
            raise SourceError(
                "the database takes different keys for equal ones, so these rows were left where they are",
                where=versions.relation,
                hint="name a key with `keys:` whose values differ in more than case, accents or spaces",
            )
        return gone

    def _unchanged(self, versions: Versions, contents: Contents, rows: Rows, locking: str = "") -> list[Row]:
        """Those of the rows that still hold what they held."""
        read = replace(
            contents.read, where=f"(\n{contents.read.where}\n) AND ({self._these(versions, rows)})"
        )
        wire = self.connection.wire
        arriving = self.connection.rows(read, f"{selection(wire, read)}{locking}")
        return [
            row
            for batch in arranged(wire, read, arriving, Counter())
            for row, digest in contents.told(batch)
            if rows.get(row) == digest
        ]

    def _these(self, versions: Versions, rows: Iterable[Row]) -> str:
        """The list of the first column alone lets every database use the index of its key."""
        names = [self.connection.quote(name) for name in versions.columns]
        written = [[self.connection.literals(value) for value in row] for row in rows]
        firsts = dict.fromkeys(form for values in written for form in values[0])
        each = " OR ".join("(" + " AND ".join(map(_is_one_of, names, values)) + ")" for values in written)
        return f"{names[0]} IN ({', '.join(firsts)}) AND ({each})"


def _is_one_of(name: str, forms: Sequence[str]) -> str:
    return f"{name} = {forms[0]}" if len(forms) == 1 else f"{name} IN ({', '.join(forms)})"


def open_eraser(config: Any) -> Eraser:
    """The eraser of an entry of connections.yml, connected."""
    return Eraser(_OPENERS[config.type](config))


def place_of(config: Any) -> str:
    """Which database an entry of connections.yml leads to, in words that hold no secret."""
    return (
        f"{config.database} at {config.host}:{config.port}" if hasattr(config, "host") else str(config.path)
    )


def _not_held(relation: str, what: str) -> ConfigError:
    return ConfigError(
        f"{what}, so a row could change unseen between being compared and being deleted",
        where=relation,
        hint="give the table a timestamp that every change moves and name it with `cdc_timestamp_column`, or "
        "keep it where rows can be locked",
    )


@contextmanager
def _transaction(run: Callable[[str], object], begin: str) -> Iterator[None]:
    run(begin)
    try:
        yield
    except BaseException:
        with suppress(SourceError):  # the connection may be gone, which ends the transaction just as well
            run("ROLLBACK")
        raise
    run("COMMIT")


def _mysql(config: Any) -> Connection:
    import pymysql
    from pymysql.constants import ER
    from pymysql.cursors import SSCursor

    from tidegate.sources import mysql_session
    from tidegate.sources.mysql_guard import alterations

    login = login_of(config)

    class MySQL:
        wire = MySQLWire(login)
        locking = " FOR UPDATE"
        quote = staticmethod(mysql_session.quote)

        def __init__(self) -> None:
            with mysql_session.errors(login):
                self._session = mysql_session.connect_writing(login)

        def literals(self, value: Value) -> Sequence[str]:
            return [mysql_session.literal(value)]

        def demand_held(self, relation: str) -> None:
            schema, name = (part.replace("``", "`") for part in re.findall("`((?:[^`]|``)*)`", relation))
            with mysql_session.errors(login):
                found = mysql_session.run(
                    self._session,
                    "SELECT t.engine, e.transactions FROM information_schema.tables t "
                    "LEFT JOIN information_schema.engines e ON e.engine = t.engine WHERE t.table_schema = "
                    f"{mysql_session.literal(schema)} AND t.table_name = {mysql_session.literal(name)}",
                )
            if found and found[0][1] != "YES":
                engine = found[0][0]
                what = f"engine {engine} locks no rows" if engine else "the rows of a view cannot be locked"
                raise _not_held(relation, what)

        def count(self, sql: str) -> int:
            with mysql_session.errors(login):
                return int(mysql_session.run(self._session, sql)[0][0])

        def rows(self, read: Read, sql: str) -> Iterator[Sequence[tuple[Any, ...]]]:
            with (
                mysql_session.errors(login, read.relation),
                alterations(login, read),
                self._session.cursor(SSCursor) as cursor,
            ):
                cursor.execute(sql)
                while rows := cursor.fetchmany(_AT_ONCE):
                    yield rows

        def change(self, sql: str) -> int:
            with mysql_session.errors(login), self._session.cursor() as cursor:
                return int(cursor.execute(sql))

        def transaction(self) -> AbstractContextManager[None]:
            return _transaction(self.change, "START TRANSACTION")

        def overtaken(self, error: SourceError) -> bool:
            cause = error.__cause__
            return isinstance(cause, pymysql.err.MySQLError) and mysql_session.code(cause) in (
                ER.LOCK_DEADLOCK,
                ER.CHECKREAD,
            )

        def close(self) -> None:
            mysql_session.close(self._session)

    return MySQL()


def _postgresql(config: Any) -> Connection:
    import psycopg

    from tidegate.sources import postgresql_session

    login = login_of(config)

    class PostgreSQL:
        wire = PostgreSQLWire(login)
        locking = ""
        """To delete a row that was changed after the transaction's snapshot is an error, and takes no
        privilege beyond DELETE."""
        quote = staticmethod(postgresql_session.quote)

        def __init__(self) -> None:
            self._session = postgresql_session.connect(login, read_only=False)

        def literals(self, value: Value) -> Sequence[str]:
            return [postgresql_session.literal(value)]

        def demand_held(self, relation: str) -> None:
            with postgresql_session.errors(login):
                found = postgresql_session.run(
                    self._session,
                    "SELECT relkind::text FROM pg_class "
                    f"WHERE oid = to_regclass({postgresql_session.literal(relation)})",
                )
            if found and found[0][0] not in ("r", "p"):
                what = "foreign table" if found[0][0] == "f" else "view"
                raise _not_held(relation, f"the rows of a {what} cannot be locked")

        def count(self, sql: str) -> int:
            with postgresql_session.errors(login):
                return int(postgresql_session.run(self._session, sql)[0][0])

        def rows(self, read: Read, sql: str) -> Iterator[Sequence[tuple[Any, ...]]]:
            with postgresql_session.errors(login, read.relation), self._session.cursor() as cursor:
                arriving = cursor.stream(sql.encode())
                while rows := list(islice(arriving, _AT_ONCE)):
                    yield rows

        def change(self, sql: str) -> int:
            with postgresql_session.errors(login):
                return self._session.execute(sql.encode()).rowcount

        def transaction(self) -> AbstractContextManager[None]:
            return _transaction(self.change, "BEGIN ISOLATION LEVEL REPEATABLE READ")

        def overtaken(self, error: SourceError) -> bool:
            cause = error.__cause__
            return isinstance(cause, psycopg.Error) and (cause.sqlstate or "").startswith("40")

        def close(self) -> None:
            postgresql_session.close(self._session)

    return PostgreSQL()


def _sqlite(config: Any) -> Connection:
    from tidegate.sources import sqlite_session

    path = str(config.path)

    class SQLite:
        wire = SQLiteWire(path)
        locking = ""
        """The transaction is the only one that writes."""
        quote = staticmethod(sqlite_session.quote)
        literals = staticmethod(sqlite_session.written_forms)

        def __init__(self) -> None:
            self._session = sqlite_session.connect(path, read_only=False)
            self._session.text_factory = LENIENT

        def demand_held(self, relation: str) -> None:
            """The whole file is locked."""

        def count(self, sql: str) -> int:
            with sqlite_session.errors(path):
                return int(sqlite_session.run(self._session, sql)[0][0])

        def rows(self, read: Read, sql: str) -> Iterator[Sequence[tuple[Any, ...]]]:
            with sqlite_session.errors(path, read.relation):
                cursor = self._session.execute(sql)
                while rows := cursor.fetchmany(_AT_ONCE):
                    yield rows

        def change(self, sql: str) -> int:
            with sqlite_session.errors(path):
                return self._session.execute(sql).rowcount

        def transaction(self) -> AbstractContextManager[None]:
            return _transaction(self.change, "BEGIN IMMEDIATE")

        def overtaken(self, error: SourceError) -> bool:
            del error
            return False

        def close(self) -> None:
            self._session.close()

    return SQLite()


_OPENERS: dict[str, Callable[[Any], Connection]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}
