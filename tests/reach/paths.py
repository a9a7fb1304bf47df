"""Every path by which the product connects to a database, each asked how its own connection is encrypted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from urllib.parse import quote

from tidegate.reach.login import Login, Way
from tidegate.sources import mysql_session, postgresql_session
from tidegate.sources.contract import Read, Reader
from tidegate.sources.mysql import MySQL
from tidegate.sources.postgresql import PostgreSQL
from tidegate.sources.rows import MySQLWire, PostgreSQLWire, RowReader
from tidegate.sources.sql import SqlSource
from tidegate.state.databases import database
from tidegate.targets.postgresql import Postgres

Path = Callable[[Login], str]
"""The cipher of a connection; empty if it is not encrypted."""

CIPHER = {
    "mysql": "SELECT variable_value AS c FROM information_schema.session_status "
    "WHERE variable_name = 'Ssl_cipher'",
    "postgresql": "SELECT coalesce(cipher, '') AS c FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
}


def read_of(login: Login, kind: str) -> tuple[Reader, Read]:
    """The reader that tasks get for this login, and the question as something to read."""
    port = MySQL(login) if kind == "mysql" else PostgreSQL(login, "public")
    with closing(SqlSource(port)) as source:
        relation = source.query("cipher", CIPHER[kind])
        return source.reader(), Read(relation.sql, relation.schema.columns, "1 = 1")


def answer(reader: Reader, read: Read) -> str:
    [batch] = reader.read(read, batch_rows=10)
    return str(batch.column(0)[0].as_py())


def _chosen_reader(kind: str) -> Path:
    return lambda login: answer(*read_of(login, kind))


def _plain_mysql(login: Login) -> str:
    return answer(RowReader(MySQLWire(login)), read_of(login, "mysql")[1])


def _plain_postgresql(login: Login) -> str:
    return answer(RowReader(PostgreSQLWire(login)), read_of(login, "postgresql")[1])


def _mysql_session(login: Login) -> str:
    with closing(mysql_session.connect(login)) as session, mysql_session.errors(login):
        return str(mysql_session.run(session, CIPHER["mysql"])[0][0])


def _postgresql_session(login: Login) -> str:
    with closing(postgresql_session.connect(login)) as session, postgresql_session.errors(login):
        return str(postgresql_session.run(session, CIPHER["postgresql"])[0][0])


def _state(kind: str) -> Path:
    def ask(login: Login) -> str:
        password = f":{quote(login.password, safe='')}" if login.password else ""
        url = f"{kind}://{login.username}{password}@{login.host}:{login.port}/{login.database}"
        with (
            closing(database(url, Way(login.tls, login.tunnel, login.iam)).connect()) as connection,
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute(CIPHER[kind])
            return str(cursor.fetchall()[0][0])

    return ask


def _target(login: Login) -> str:
    with Postgres(login).reading() as session:
        return str(session.rows(CIPHER["postgresql"])[0][0])


MYSQL: dict[str, Path] = {
    "session": _mysql_session,
    "reader": _chosen_reader("mysql"),
    "plain reader": _plain_mysql,
    "state": _state("mysql"),
}
POSTGRESQL: dict[str, Path] = {
    "session": _postgresql_session,
    "reader": _chosen_reader("postgresql"),
    "plain reader": _plain_postgresql,
    "state": _state("postgresql"),
    "target": _target,
}
ALL = [(kind, name) for kind, paths in (("mysql", MYSQL), ("postgresql", POSTGRESQL)) for name in paths]


def path(kind: str, name: str) -> Path:
    return (MYSQL if kind == "mysql" else POSTGRESQL)[name]
