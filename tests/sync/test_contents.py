"""Rows that say nothing of their version are told by all they hold: exactly as it was staged, or changed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.servers import Server
from tests.sources.readers.test_mysql import VALUES as MYSQL_VALUES
from tests.sources.readers.test_postgresql import VALUES as POSTGRES_VALUES
from tests.sync.test_round_trips import (
    LITE,
    MYSQL_MORE,
    POSTGRES_MORE,
    fill,
    literals_of,
    mysql,  # noqa: F401 - a fixture
    postgresql,  # noqa: F401 - a fixture
)
from tests.sync.travelling import STREAM, Lite, Origin, Served
from tidegate.arrow import arrow_schema
from tidegate.config.connection_models import MySQLSource, PostgreSQLSource, SQLiteSource
from tidegate.config.settings import TableSettings
from tidegate.core.errors import ConfigError, SourceError
from tidegate.core.lossy import LossyPolicy
from tidegate.core.strategies import Cursor, Mask, Strategy
from tidegate.sources.erasing import Eraser, Rows, Versions, open_eraser
from tidegate.sources.masking import mask
from tidegate.sources.opening import open_source
from tidegate.sync.contents import contents_of
from tidegate.sync.evidence import Evidence
from tidegate.sync.job import TableJob, describe

MODELS = {"mysql": MySQLSource, "postgresql": PostgreSQLSource, "sqlite": SQLiteSource}


@dataclass
class Seen:
    """What was read of table `x`, by the reader that tasks read with, and what deletes it."""

    eraser: Eraser
    versions: Versions
    rows: Rows

    def erase(self) -> int:
        return self.eraser.erase(self.versions, self.rows)


def settings(**more: object) -> TableSettings:
    return TableSettings("x", "x", Strategy.ID_ONLY, cursor=Cursor(id="id"), **more)  # type: ignore[arg-type]


@contextmanager
def seen(origin: Origin, table: TableSettings | None = None) -> Iterator[Seen]:
    chosen = table or settings(lossy=LossyPolicy(origin.kind, "duckdb"))
    with closing(open_source(SimpleNamespace(**origin.config))) as source:
        job = describe(source, chosen, STREAM)
        contents = contents_of(source, job, ("id",))
        evidence = Evidence(("id",), ("id",), job.schema.names)
        staged = arrow_schema(job.schema.columns)
        for batch in source.reader().read(contents.read, batch_rows=1000):
            evidence.add(mask(batch, dict(chosen.masks), staged))
        [rows] = evidence.parts(10_000)
        evidence.close()
        with closing(open_eraser(MODELS[origin.kind](**origin.config))) as eraser:
            yield Seen(eraser, Versions(job.relation.sql, ("id",), contents), rows)


def ids(origin: Origin) -> list[int]:
    if isinstance(origin, Lite):
        with closing(sqlite3.connect(origin.path)) as file:
            return [row[0] for row in file.execute("SELECT id FROM x ORDER BY id")]
    assert isinstance(origin, Served)
    return [row[0] for row in origin.server.execute("SELECT id FROM x ORDER BY id")]


def test_values_of_every_type_of_mysql_are_found_as_they_were_staged(mysql: Served) -> None:  # noqa: F811
    fill(mysql, literals_of(MYSQL_VALUES, MYSQL_MORE))
    with seen(mysql) as found:
        assert found.eraser.count(found.versions, found.rows) == len(found.rows)
        assert found.erase() == len(found.rows)
    assert ids(mysql) == []


def test_values_of_every_type_of_postgresql_are_found_as_they_were_staged(
    postgresql: Served,  # noqa: F811
) -> None:
    fill(postgresql, literals_of(POSTGRES_VALUES, POSTGRES_MORE))
    with seen(postgresql) as found:
        assert found.erase() == len(found.rows)
    assert ids(postgresql) == []


@pytest.fixture
def lite(tmp_path: Path) -> Lite:
    return Lite(tmp_path / "lite.db")


def test_values_of_every_type_of_sqlite_are_found_as_they_were_staged(lite: Lite) -> None:
    declared = ", ".join(f"c{number} {native}" for number, native in enumerate(LITE))
    longest = max(map(len, LITE.values())) + 1
    filled = [(*values, *[None] * (longest - len(values))) for values in LITE.values()]
    with closing(sqlite3.connect(lite.path)) as file, file:
        file.execute(f"CREATE TABLE x (id INTEGER PRIMARY KEY, {declared})")
        marks = ", ".join("?" * (len(LITE) + 1))
        file.executemany(f"INSERT INTO x VALUES ({marks})", zip(range(longest), *filled, strict=True))
    with seen(lite) as found:
        assert found.erase() == longest
    assert ids(lite) == []


# A type, a value, and another one that the database itself, or a careless comparison, takes for equal.
SMALL = {
    "mysql": [
        ("varchar(20)", "'a'", "'A'"),
        ("varchar(20)", "'a'", "'a '"),
        ("varchar(20)", "'e'", "'é'"),
        ("varchar(20)", "''", "NULL"),
        ("varbinary(9)", "X'00'", "X'0000'"),
        ("double", "0.1", "0.1 + 1e-16"),
        ("float", "16777216", "16777218"),
        ("decimal(38,10)", "0.0000000001", "0.0000000002"),
        ("json", """'{"a": 1}'""", """'{"a":1}'"""),
        ("longtext", "'1'", "'1.0'"),
        ("datetime(6)", "'2025-01-01 00:00:00.000001'", "'2025-01-01 00:00:00.000002'"),
        ("time(6)", "'-838:59:59'", "'838:59:59'"),
        ("bit(9)", "b'1'", "b'100000001'"),
        ("enum('a','b')", "'a'", "'b'"),
    ],
    "postgresql": [
        ("text", "'a'", "'A'"),
        ("citext", "'a'", "'A'"),
        ("text", "''", "NULL"),
        ("varchar(9)", "'a'", "'a '"),
        ("bytea", "'\\x00'", "'\\x0000'"),
        ("double precision", "0", "'-0'"),
        ("double precision", "0.1", "0.1 + 1e-16"),
        ("double precision", "'NaN'", "NULL"),
        ("real", "16777216", "16777218"),
        ("numeric", "1.0", "1.00"),
        ("json", """'{"a": 1}'""", """'{"a":1}'"""),
        ("jsonb", """'{"a": 1.0}'""", """'{"a": 1.00}'"""),
        ("timestamptz", "'2025-01-01 00:00:00.000001+00'", "'2025-01-01 00:00:00.000002+00'"),
        ("interval", "'1 mon'", "'30 days'"),
        ("text[]", "'{a,NULL}'", "'{a,\"NULL\"}'"),
    ],
    "sqlite": [
        ("TEXT COLLATE NOCASE", "'a'", "'A'"),
        ("TEXT COLLATE RTRIM", "'a'", "'a '"),
        ("TEXT", "''", "NULL"),
        ("BLOB", "X'00'", "X'0000'"),
        ("REAL", "0.0", "-1e-320"),
        ("REAL", "0.1", "0.1 + 2e-17"),
        ("NUMERIC", "1", "1.5"),
        ("JSON", """'{"a": 1}'""", """'{"a":1}'"""),
    ],
}


@pytest.mark.parametrize("kind", SMALL)
def test_the_smallest_change_of_any_value_keeps_a_row(request: pytest.FixtureRequest, kind: str) -> None:
    origin: Origin = request.getfixturevalue("lite" if kind == "sqlite" else kind)
    cases = SMALL[kind]
    changing = [f"UPDATE x SET c{i} = {new} WHERE id = {i}" for i, (_, _, new) in enumerate(cases)]
    columns = ", ".join(f"c{i} {native}" for i, (native, _, _) in enumerate(cases))
    values = ", ".join(old for _, old, _ in cases)
    run(
        origin,
        f"CREATE TABLE x (id INTEGER PRIMARY KEY, {columns})",
        *(f"INSERT INTO x VALUES ({i}, {values})" for i in range(len(cases) + 1)),
    )
    with seen(origin) as found:
        run(origin, *changing)
        found.erase()
    assert ids(origin) == list(range(len(cases)))


def run(origin: Origin, *statements: str) -> None:
    for statement in statements:
        if isinstance(origin, Lite):
            with closing(sqlite3.connect(origin.path)) as file, file:
                file.execute(statement)
        else:
            assert isinstance(origin, Served)
            origin.server.execute(statement)


def few(origin: Origin, engine: str = "") -> None:
    run(
        origin,
        f"CREATE TABLE x (id INTEGER PRIMARY KEY, a VARCHAR(20), b VARCHAR(20)){engine}",
        "INSERT INTO x VALUES (1, 'one', 'b'), (2, 'two', 'b'), (3, 'three', 'b')",
    )


@pytest.fixture(params=["mysql", "postgresql", "lite"])
def origin(request: pytest.FixtureRequest) -> Origin:
    made: Origin = request.getfixturevalue(request.param)
    few(made)
    return made


def test_a_column_that_came_later_counts_where_it_is_filled(origin: Origin) -> None:
    with seen(origin) as before:
        run(origin, "ALTER TABLE x ADD COLUMN later VARCHAR(20)", "UPDATE x SET later = 'y' WHERE id = 2")
        with seen(origin) as after:
            assert after.eraser.erase(after.versions, before.rows) == 2
    assert ids(origin) == [2]


def test_what_was_masked_is_compared_as_it_was_masked(origin: Origin) -> None:
    with seen(origin, settings(masks={"a": Mask.HASH, "b": Mask.REDACT})) as found:
        run(origin, "UPDATE x SET a = 'ONE' WHERE id = 1", "UPDATE x SET b = 'B' WHERE id = 2")
        assert found.erase() == 2
    assert ids(origin) == [1]


def test_a_row_that_is_left_by_the_filter_stays(origin: Origin) -> None:
    with seen(origin, settings(filter="b = 'b'", exclude=("b",))) as found:
        run(origin, "UPDATE x SET b = 'c' WHERE id = 3")
        assert found.erase() == 2
    assert ids(origin) == [3]


WAITING = {
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database()",
}


@pytest.mark.parametrize("kind", WAITING)
def test_a_row_that_somebody_is_changing_is_waited_for_and_stays(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """He has not committed when its deletion begins, and nobody but he sees his change."""
    origin: Served = request.getfixturevalue(kind)
    few(origin)
    with seen(origin) as found, closing(origin.server.connect()) as writer, closing(writer.cursor()) as hand:
        hand.execute("UPDATE x SET a = 'changed' WHERE id = 2")
        erased: list[int] = []
        erasing = threading.Thread(target=lambda: erased.append(found.erase()))
        erasing.start()
        until(lambda: origin.server.execute(WAITING[kind]) != [(0,)])
        writer.commit()
        erasing.join(240)
    assert (erased, ids(origin)) == ([2], [2])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.2)


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_selecting_and_deleting_is_all_that_the_user_has_to_be_allowed(
    request: pytest.FixtureRequest, kind: str
) -> None:
    origin: Served = request.getfixturevalue(kind)
    few(origin)
    with seen(origin) as found:
        user = limited(origin.server)
        try:
            login = {"username": user, "password": "few-rights"}
            with closing(open_eraser(MODELS[origin.kind](**{**origin.config, **login}))) as eraser:
                eraser.demand_fit(found.versions)
                assert eraser.erase(found.versions, found.rows) == 3
        finally:
            forget(origin.server, user)


def limited(server: Server) -> str:
    name = f"few_{server.database[-8:]}"
    if server.kind == "mysql":
        server.execute(f"CREATE USER {name} IDENTIFIED BY 'few-rights'")
        server.execute(f"GRANT SELECT, DELETE ON {server.database}.x TO {name}")
    else:
        server.execute(f"CREATE USER {name} PASSWORD 'few-rights'")
        server.execute(f"GRANT SELECT, DELETE ON x TO {name}")
    return name


def forget(server: Server, name: str) -> None:
    if server.kind == "postgresql":
        server.execute(f"DROP OWNED BY {name}")
    server.execute(f"DROP USER {name}")


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
def test_an_engine_that_locks_no_rows_is_refused(mysql: Served, engine: str) -> None:  # noqa: F811
    few(mysql, f" ENGINE={engine}")
    with seen(mysql) as found, pytest.raises(ConfigError, match=f"engine {engine} locks no rows"):
        found.eraser.demand_fit(found.versions)


def test_keys_that_differ_only_for_us_keep_all_their_rows(mysql: Served) -> None:  # noqa: F811
    """Deleting `a` would delete `A` too, which nobody has looked at."""
    run(
        mysql,
        "CREATE TABLE x (id INTEGER, a VARCHAR(20), b VARCHAR(20))",
        "INSERT INTO x VALUES (1, 'a', 'x'), (1, 'A', 'x')",
    )
    told = ("a", "id")
    with closing(open_source(SimpleNamespace(**mysql.config))) as source:
        job: TableJob = describe(source, settings(keys=("a",)), STREAM)
        contents = contents_of(source, job, told)
        evidence = Evidence(("a",), ("id",), job.schema.names)
        for batch in source.reader().read(contents.read, batch_rows=10):
            evidence.add(batch)
        [rows] = evidence.parts(10)
    only = {row: digest for row, digest in rows.items() if row[0] == "a"}
    with closing(open_eraser(MySQLSource(**mysql.config))) as eraser:
        versions = Versions(job.relation.sql, told, contents)
        with pytest.raises(SourceError, match="takes different keys for equal ones"):
            eraser.erase(versions, only)
        assert eraser.erase(versions, rows) == 2
