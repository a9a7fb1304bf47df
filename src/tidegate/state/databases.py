"""What the SQL store must know of each database: how to connect, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tidegate.core.errors import ConfigError, ConnectError, LoginRefused, StateError, TidegateError
from tidegate.reach import libpq
from tidegate.reach.login import DIRECT, Login, Tls, Way
from tidegate.reach.tls import refused as tls_refused
from tidegate.reach.tunnel import beyond

_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 30
_LOCK_SECONDS = 20
"""How long to wait for a row that another transaction has locked; shorter than the wait for an answer."""


class Failure(Enum):
    """What an error says about the statement that met it."""

    LOST = auto()
    """The connection is gone, and with it the answer."""
    BUSY = auto()
    """Others got in the way; nothing was done, and trying again at once may work."""
    LOCKED = auto()
    """Somebody kept others out for longer than is worth waiting; nothing was done."""
    NO_ROOM = auto()
    FORBIDDEN = auto()
    OTHER = auto()


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Any: ...
    def execute(self, sql: Any, params: Any = ..., /) -> Any: ...
    def fetchall(self) -> Any: ...
    def close(self) -> Any: ...


class Connection(Protocol):
    """A connection that commits every statement by itself unless told to begin a transaction."""

    def cursor(self) -> Cursor: ...
    def close(self) -> None: ...


class Database(Protocol):
    @property
    def place(self) -> str:
        """Where it is, for messages: without a password."""
        ...

    @property
    def marker(self) -> str:
        """What stands for a value in a statement."""
        ...

    @property
    def types(self) -> Mapping[str, str]:
        """The types `key` and `text`, and `table`: what follows a table's columns."""
        ...

    @property
    def insert_if_absent(self) -> tuple[str, str]:
        """What stands before and behind an INSERT that does nothing if the key is there."""
        ...

    @property
    def begin(self) -> str: ...

    @property
    def begin_creation(self) -> str:
        """Begins a transaction in which no other process creates tables."""
        ...

    @property
    def table_exists(self) -> str:
        """A query with the table's name as its value; it has a row if the table exists."""
        ...

    def connect(self) -> Connection: ...

    @property
    def errors(self) -> type[Exception]:
        """The root of the driver's errors."""
        ...

    def failure(self, error: Exception) -> Failure: ...


def database(url: str, way: Way = DIRECT) -> Database:
    """The database a URL names: `sqlite:///path`, `postgresql://…` or `mysql://…`."""
    scheme = url.partition(":")[0]
    if scheme not in _DATABASES:
        supported = ", ".join(_DATABASES)
        raise ConfigError(f"`{scheme}` is no database that can hold state", hint=f"use one of {supported}")
    return _DATABASES[scheme](url, way)


# --- SQLite ------------------------------------------------------------------


@dataclass(frozen=True)
class Sqlite:
    path: Path

    marker = "?"
    types = {"key": "TEXT", "text": "TEXT", "table": ""}  # noqa: RUF012 - a constant of the class
    insert_if_absent = ("INSERT", "ON CONFLICT DO NOTHING")
    begin = "BEGIN IMMEDIATE"
    begin_creation = "BEGIN IMMEDIATE"
    table_exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    errors = sqlite3.Error

    @classmethod
    def at(cls, url: str, way: Way = DIRECT) -> Sqlite:
        del way  # a file is where it is
        return cls(path_of(url))

    @property
    def place(self) -> str:
        return str(self.path)

    def connect(self) -> Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise self._unopened(error) from error
        try:
            # A commit must survive a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error as error:
            connection.close()
            raise self._unopened(error) from error
        # What is no text must not keep the other rows from being read.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return connection

    def _unopened(self, error: Exception) -> StateError:
        return StateError(
            f"the database cannot be opened: {error}",
            where=self.place,
            hint="it must be an SQLite file, or none yet, in a folder that the user who runs this can write",
        )

    def failure(self, error: Exception) -> Failure:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in (sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_BUSY_RECOVERY):
            return Failure.BUSY
        match code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Failure.LOCKED
            case sqlite3.SQLITE_IOERR:
                return Failure.LOST
            case sqlite3.SQLITE_FULL:
                return Failure.NO_ROOM
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return Failure.FORBIDDEN
            case _:
                return Failure.OTHER


# --- Servers -----------------------------------------------------------------

_TLS_OPTIONS = {"sslmode": "mode", "sslrootcert": "ca", "sslcert": "cert", "sslkey": "key"}
"""Options of a URL, in libpq's words for any server."""


@dataclass(frozen=True)
class Address:
    """Where a server is and how to log in, as a URL says it."""

    scheme: str
    host: str
    port: int | None
    user: str | None
    database: str
    password: str | None = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    def login(self, port: int, way: Way) -> Login:
        """`port` is the one that is meant where the URL names none; TLS may stand in the URL too."""
        named = {key: self.options[name] for name, key in _TLS_OPTIONS.items() if name in self.options}
        return Login(
            host=self.host,
            port=self.port or port,
            database=self.database,
            username=self.user,
            password=self.password,
            tls=way.tls or Tls(**named),
            tunnel=way.tunnel,
            iam=way.iam,
        )

    @property
    def further(self) -> dict[str, str]:
        """Options that are the driver's own business."""
        return {name: value for name, value in self.options.items() if name not in _TLS_OPTIONS}

    @classmethod
    def at(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # The driver's own words could quote a part of the password.
            raise _unreadable(url) from None
        if "@" in parts.path or "@" in parts.query or "@" in parts.fragment or parts.fragment:
            raise _unreadable(url)
        return cls._of(parts, port)

    @classmethod
    def _of(cls, parts: SplitResult, port: int | None) -> Address:
        database_name = unquote(parts.path.removeprefix("/"))
        options = dict(parse_qsl(parts.query))
        if not (parts.hostname or options.keys() & {"host", "unix_socket"}) or not database_name:
            raise ConfigError(
                "the URL of the store names no host or no database",
                hint=f"write it like {parts.scheme}://user:password@host/database",
            )
        return cls(
            scheme=parts.scheme,
            host=unquote(parts.hostname or ""),
            port=port,
            user=None if parts.username is None else unquote(parts.username),
            database=database_name,
            password=None if parts.password is None else unquote(parts.password),
            options=options,
        )

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{user}{self.host}{port}/{self.database}"


def _unreadable(url: str) -> ConfigError:
    return ConfigError(
        f"the {url.partition(':')[0]} URL of the store cannot be understood",
        hint="in user names and passwords, write @ as %40, / as %2F, : as %3A, # as %23, ? as %3F, % as %25",
    )


def path_of(url: str) -> Path:
    """The path in a URL like `file:///path`."""
    scheme, _, rest = url.partition("://")
    if not rest.startswith("/") or not rest.strip("/") or "?" in rest or "#" in rest:
        raise ConfigError(
            f"`{url}` names no file",
            hint=f"write {scheme}:///absolute/path, with ? as %3F and # as %23",
        )
    return Path(unquote(rest))


# --- PostgreSQL --------------------------------------------------------------

_POSTGRES_CODES = {
    "40001": Failure.BUSY,
    "40P01": Failure.BUSY,
    "55P03": Failure.LOCKED,
    "53100": Failure.NO_ROOM,
    "42501": Failure.FORBIDDEN,
    "25006": Failure.FORBIDDEN,
}


@dataclass(frozen=True)
class Postgres:
    address: Address
    driver: ModuleType = field(repr=False)
    login: Login

    marker = "%s"
    types = {"key": "TEXT", "text": "TEXT", "table": ""}  # noqa: RUF012
    insert_if_absent = ("INSERT", "ON CONFLICT DO NOTHING")
    # A client that vanished, together with its machine, must not keep a row locked for hours.
    begin = (
        "BEGIN ISOLATION LEVEL READ COMMITTED;"
        f" SET LOCAL lock_timeout = '{_LOCK_SECONDS}s';"
        f" SET LOCAL idle_in_transaction_session_timeout = '{_ANSWER_SECONDS}s'"
    )
    begin_creation = f"{begin}; SELECT pg_advisory_xact_lock(8388337064421917541)"
    table_exists = "SELECT 1 WHERE to_regclass(%s) IS NOT NULL"

    @classmethod
    def at(cls, url: str, way: Way = DIRECT) -> Postgres:
        address = Address.at(url)
        return cls(address, _driver("psycopg", extra="postgresql"), address.login(5432, way))

    @property
    def place(self) -> str:
        return str(self.address)

    @property
    def errors(self) -> type[Exception]:
        errors: type[Exception] = self.driver.Error
        return errors

    def connect(self) -> Connection:
        settings = {
            **libpq.parameters(self.login),
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": _ANSWER_SECONDS * 1000,
            "application_name": "tidegate",
        }
        try:
            connection: Connection = self.driver.connect(
                **{**settings, **self.address.further},
                autocommit=True,
                prepare_threshold=None,  # a pooler between us and the server may not know our statements
            )
        except self.driver.OperationalError as error:
            raise self._unconnected(error) from error
        except self.driver.ProgrammingError as error:
            raise ConfigError(f"the URL of the store cannot be used: {error}", where=self.place) from error
        return connection

    def _unconnected(self, error: Exception) -> TidegateError:
        refused = ("authentication", "pg_hba.conf", "does not exist", "permission denied", "no password")
        found = tls_refused(self.login, _line(error)) or beyond(self.login)
        if found is not None and not any(words in str(error) for words in refused):
            return found
        kind = LoginRefused if any(words in str(error) for words in refused) else ConnectError
        return kind(f"no connection to the state database: {_line(error)}", where=self.place)

    def failure(self, error: Exception) -> Failure:
        code = getattr(error, "sqlstate", None)
        if code is None:
            lost = isinstance(error, self.driver.OperationalError | self.driver.InterfaceError)
            return Failure.LOST if lost else Failure.OTHER
        if code.startswith("08") or code in ("57P01", "57P02", "57P03", "57P05", "25P03"):
            return Failure.LOST
        return _POSTGRES_CODES.get(code, Failure.OTHER)


# --- MySQL and MariaDB -------------------------------------------------------

_MYSQL_OPTIONS = (*_TLS_OPTIONS, "unix_socket")
_MYSQL_REFUSED = (1044, 1045, 1049, 1130, 1251, 1698)
_MYSQL_LOST = (0, 1053, 1158, 1159, 1160, 1161, 1317, 1927, 4031, *range(2000, 3000))
_MYSQL_CODES = {
    **dict.fromkeys(_MYSQL_LOST, Failure.LOST),
    **dict.fromkeys((1020, 1213), Failure.BUSY),
    1205: Failure.LOCKED,
    **dict.fromkeys((3, 28, 1021, 1041, 1114), Failure.NO_ROOM),
    **dict.fromkeys((1142, 1143, 1227, 1290, 1792, 1836), Failure.FORBIDDEN),
}


@dataclass(frozen=True)
class Mysql:
    address: Address
    driver: ModuleType = field(repr=False)
    login: Login

    marker = "%s"
    # Names are compared as they are written: no letter case, accent or emoji counts as another.
    types = {  # noqa: RUF012
        "key": "CHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "text": "LONGTEXT",
        "table": "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    }
    insert_if_absent = ("INSERT", "ON DUPLICATE KEY UPDATE version = version")
    begin = "START TRANSACTION"
    begin_creation = "START TRANSACTION"
    table_exists = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
    )

    @classmethod
    def at(cls, url: str, way: Way = DIRECT) -> Mysql:
        address = Address.at(url)
        for option in address.options:
            if option not in _MYSQL_OPTIONS:
                hint = f"there are {', '.join(_MYSQL_OPTIONS)}"
                raise ConfigError(f"the URL of the store has an unknown option `{option}`", hint=hint)
        return cls(address, _driver("pymysql", extra="mysql"), address.login(3306, way))

    @property
    def place(self) -> str:
        return str(self.address)

    @property
    def errors(self) -> type[Exception]:
        errors: type[Exception] = self.driver.MySQLError
        return errors

    def connect(self) -> Connection:
        from tidegate.reach import mysql

        # A client that vanished, together with its machine, must not keep a row locked for hours.
        session = (
            f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS},"
            f" SESSION wait_timeout = {2 * _ANSWER_SECONDS}"
        )
        try:
            connection: Connection = mysql.connect(
                self.login,
                **self.address.further,
                client_flag=self.driver.constants.CLIENT.FOUND_ROWS,
                init_command=session,
                read_timeout=_ANSWER_SECONDS,
                write_timeout=_ANSWER_SECONDS,
            )
        except (self.errors, OSError) as error:
            raise self._unconnected(error) from error
        return connection

    def _unconnected(self, error: Exception) -> TidegateError:
        found = tls_refused(self.login, str(error)) or beyond(self.login)
        if found is not None and _code(error) not in _MYSQL_REFUSED:
            return found
        kind = LoginRefused if _code(error) in _MYSQL_REFUSED else ConnectError
        words = error.args[-1] if error.args else error
        return kind(f"no connection to the state database: {words}", where=self.place)

    def failure(self, error: Exception) -> Failure:
        code = _code(error)
        # Without a number it was not the server who spoke.
        return Failure.LOST if code is None else _MYSQL_CODES.get(code, Failure.OTHER)


def _code(error: Exception) -> int | None:
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _driver(name: str, *, extra: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"state in this database needs the Python package {name}",
            hint=f"pip install 'tidegate[{extra}]'",
        ) from error


_DATABASES: dict[str, Callable[[str, Way], Database]] = {
    "sqlite": Sqlite.at,
    "postgresql": Postgres.at,
    "mysql": Mysql.at,
}
