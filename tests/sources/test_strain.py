"""What real servers say about how hard they work, and how long they let our queries run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import psycopg
import pymysql
import pytest

from tests.servers import Server, wait_until_replayed
from tests.sources.readers.reading import wait_until
from tidegate.core.errors import SourceError
from tidegate.reach.login import Login, login_of
from tidegate.sources import mysql_session, postgresql_session
from tidegate.sources.contract import Read
from tidegate.sources.mysql import MySQL
from tidegate.sources.postgresql import PostgreSQL
from tidegate.sources.rows import MySQLWire, PostgreSQLWire, RowReader
from tidegate.sources.sql import SqlSource
from tidegate.sources.strain import MySQLPulse, PostgreSQLPulse


@contextmanager
def busy(server: Server, statement: str, sessions: int) -> Iterator[None]:
    """So many sessions that run a statement, until it is ended."""
    connections = [server.connect(autocommit=True) for _ in range(sessions)]

    def work(connection: object) -> None:
        with suppress(pymysql.err.Error, psycopg.Error):
            connection.cursor().execute(statement)  # type: ignore[attr-defined]

    threads = [threading.Thread(target=work, args=[one]) for one in connections]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        if server.kind == "mysql":
            for number, info in server.execute("SELECT id, info FROM information_schema.processlist"):
                if info and info.startswith("SELECT SLEEP"):
                    server.execute(f"KILL QUERY {number}")
        else:
            server.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            )
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()


def test_running_statements_are_counted(mariadb: Server, postgres: Server) -> None:
    for server, pulse, statement in (
        (mariadb, MySQLPulse(login_of(mariadb.config)), "SELECT SLEEP(60)"),
        (postgres, PostgreSQLPulse(login_of(postgres.config)), "SELECT pg_sleep(60)"),
    ):
        quiet = pulse.strain().running
        assert quiet is not None
        with busy(server, statement, 7):
            wait_until(lambda pulse=pulse, quiet=quiet: (pulse.strain().running or 0) >= quiet + 7)  # type: ignore[misc]


def test_a_standby_says_how_far_it_is_behind(postgres: Server, postgres_standby: Server) -> None:
    pulse = PostgreSQLPulse(login_of(postgres_standby.using("postgres").config))
    postgres.execute("CREATE TABLE IF NOT EXISTS followed (id int)")  # it knows no time before the first
    wait_until_replayed(postgres, postgres_standby)
    wait_until(lambda: pulse.strain().lag == 0)
    postgres_standby.using("postgres").execute("SELECT pg_wal_replay_pause()")
    try:
        postgres.execute("DROP TABLE followed")
        wait_until(lambda: (pulse.strain().lag or 0) > 0.3)
    finally:
        postgres_standby.using("postgres").execute("SELECT pg_wal_replay_resume()")
    wait_until(lambda: pulse.strain().lag == 0)


def test_a_server_without_replicas_has_no_lag(mariadb: Server) -> None:
    assert MySQLPulse(login_of(mariadb.config)).strain().lag is None


LONG = {"mysql": "SELECT SLEEP(20) AS c", "postgresql": "SELECT pg_sleep(20)::text AS c"}
TOO_LONG = r"ran longer than the 0\.3 s that mercy.max_query allows.*batch_size"


@pytest.mark.parametrize("name", ["mariadb", "postgres"])
def test_a_query_that_runs_too_long_is_ended(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    login = replace(login_of(server.config), max_query=0.3)
    module = mysql_session if server.kind == "mysql" else postgresql_session
    with (
        pytest.raises(SourceError, match=TOO_LONG) as refused,
        module.errors(login),
        closing(module.connect(login)) as session,
    ):
        module.run(session, LONG[server.kind])
    assert not refused.value.transient


@pytest.mark.parametrize("name", ["mariadb", "postgres"])
def test_a_chunk_that_reads_too_long_is_ended(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    login = replace(login_of(server.config), max_query=0.3)
    port = MySQL(login) if server.kind == "mysql" else PostgreSQL(login, "public")
    with closing(SqlSource(port)) as source:
        relation = source.query("q", "SELECT 1 AS id")
        column = relation.schema.columns[0]
        slow = "SLEEP(20) = 0" if server.kind == "mysql" else "pg_sleep(20) IS NOT NULL"
        read = Read(relation.sql, (column,), slow)
        for reader in (source.reader(), _plain(server, login)):
            with pytest.raises(SourceError, match=TOO_LONG):
                list(reader.read(read, batch_rows=10))


def _plain(server: Server, login: Login) -> RowReader:
    return RowReader(MySQLWire(login) if server.kind == "mysql" else PostgreSQLWire(login))
