"""Deleting rows at a source: by key and version, a bounded number at a time, on a connection that may write.

A row that was changed since has another version, so it stays. A DELETE that waits for somebody's lock looks
at the row again when it has got it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.core.positions import Value
from tidegate.reach.login import login_of

Row = tuple[Value, ...]


@dataclass(frozen=True)
class Versions:
    """Where rows lie, and the columns that tell them and their versions apart. The first is of the key."""

    relation: str
    """The table as the source's SQL has it."""
    columns: tuple[str, ...]


class Connection(Protocol):
    def quote(self, name: str) -> str: ...
    def literals(self, value: Value) -> Sequence[str]:
        """The ways in which the database may have a value written; mostly there is one."""
        ...

    def count(self, sql: str) -> int: ...
    def change(self, sql: str) -> int:
        """Run a statement in a transaction of its own; return how many rows it touched."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Eraser:
    connection: Connection

    def count(self, versions: Versions, rows: Sequence[Row]) -> int:
        """How many of these rows are there, in this version."""
        if not rows:
            return 0
        return self.connection.count(
            f"SELECT count(*) FROM {versions.relation} WHERE {self._these(versions, rows)}"
        )

    def erase(self, versions: Versions, rows: Sequence[Row]) -> int:
        """Delete these rows, where they still have this version; return how many went."""
        if not rows:
            return 0
        return self.connection.change(f"DELETE FROM {versions.relation} WHERE {self._these(versions, rows)}")

    def close(self) -> None:
        self.connection.close()

    def _these(self, versions: Versions, rows: Sequence[Row]) -> str:
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


def _mysql(config: Any) -> Connection:
    from tidegate.sources import mysql_session

    login = login_of(config)

    class MySQL:
        def __init__(self) -> None:
            with mysql_session.errors(login):
                self._session = mysql_session.connect_writing(login)

        quote = staticmethod(mysql_session.quote)

        def literals(self, value: Value) -> Sequence[str]:
            return [mysql_session.literal(value)]

        def count(self, sql: str) -> int:
            with mysql_session.errors(login):
                return int(mysql_session.run(self._session, sql)[0][0])

        def change(self, sql: str) -> int:
            with mysql_session.errors(login), self._session.cursor() as cursor:
                return int(cursor.execute(sql))

        def close(self) -> None:
            mysql_session.close(self._session)

    return MySQL()


def _postgresql(config: Any) -> Connection:
    from tidegate.sources import postgresql_session

    login = login_of(config)

    class PostgreSQL:
        def __init__(self) -> None:
            self._session = postgresql_session.connect(login, read_only=False)

        quote = staticmethod(postgresql_session.quote)

        def literals(self, value: Value) -> Sequence[str]:
            return [postgresql_session.literal(value)]

        def count(self, sql: str) -> int:
            with postgresql_session.errors(login):
                return int(postgresql_session.run(self._session, sql)[0][0])

        def change(self, sql: str) -> int:
            with postgresql_session.errors(login):
                return self._session.execute(sql.encode()).rowcount

        def close(self) -> None:
            postgresql_session.close(self._session)

    return PostgreSQL()


def _sqlite(config: Any) -> Connection:
    from tidegate.sources import sqlite_session

    path = str(config.path)

    class SQLite:
        def __init__(self) -> None:
            self._session = sqlite_session.connect(path, read_only=False)

        quote = staticmethod(sqlite_session.quote)
        literals = staticmethod(sqlite_session.written_forms)

        def count(self, sql: str) -> int:
            with sqlite_session.errors(path):
                return int(sqlite_session.run(self._session, sql)[0][0])

        def change(self, sql: str) -> int:
            with sqlite_session.errors(path):
                return self._session.execute(sql).rowcount

        def close(self) -> None:
            self._session.close()

    return SQLite()


_OPENERS: dict[str, Callable[[Any], Connection]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}
