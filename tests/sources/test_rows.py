"""The plain reader is exact for everything a database can hold."""

from __future__ import annotations

import math
import pickle
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.servers import Server
from tests.sources.conftest import Opened
from tests.sources.test_mysql import login
from tidegate.arrow import arrow_schema
from tidegate.core.errors import LossyValue, SourceError
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.sources.opening import open_source
from tidegate.sources.rows import MySQLWire, PostgreSQLWire, RowReader, SQLiteWire

EVERYTHING = Window(None, None)
WIDE = Decimal("-1234567890123456789012345678.0123456789")
moment = datetime.fromisoformat


def read(
    source: Source, reader: RowReader, table: str = "things", batch_rows: int = 100
) -> list[pa.RecordBatch]:
    relation = source.table(table)
    chunk = source.chunk(relation, relation.schema.names, EVERYTHING, positions=(), order=())
    copy: RowReader = pickle.loads(pickle.dumps(reader))
    batches = list(copy.read(chunk, batch_rows=batch_rows))
    assert all(batch.schema == arrow_schema(chunk.columns) for batch in batches)
    return batches


MYSQL: list[tuple[str, str, Any]] = [
    ("bigint unsigned", "18446744073709551615", 2**64 - 1),
    ("tinyint(1)", "127", 127),
    (
        "decimal(38,10)",
        str(WIDE),
        WIDE,
    ),
    ("decimal(65,30)", "1.000000000000000000000000000001", "1.000000000000000000000000000001"),
    ("float", "16777217.5", 16777218.0),
    ("double", "0.1", 0.1),
    ("bit(1)", "b'1'", True),
    ("bit(64)", "18446744073709551615", 2**64 - 1),
    ("date", "'1000-01-01'", date(1000, 1, 1)),
    ("datetime(6)", "'2026-01-31 23:59:59.000001'", moment("2026-01-31 23:59:59.000001")),
    ("timestamp(6) null", "'2026-01-31 23:59:59.999999'", moment("2026-01-31 23:59:59.999999+00:00")),
    ("time(6)", "'-838:59:59.000000'", "-838:59:59.000000"),
    ("year", "2155", 2155),
    ("varchar(20) character set latin1", "'ü€'", "ü€"),
    ("longtext", "'a\\0😀'", "a\0😀"),
    ("json", "'{\"a\": 1.10}'", '{"a": 1.10}'),
    ("enum('a','b')", "'b'", "b"),
    ("set('a','b')", "'a,b'", "a,b"),
    ("binary(4)", "x'00ff'", b"\0\xff\0\0"),
    ("blob", "x'00ff27'", b"\0\xff'"),
    ("point", "point(1, 2)", bytes.fromhex("0101000000000000000000f03f0000000000000040")),
    ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
    ("inet6", "'fe80::1'", "fe80::1"),
]


def test_every_type_of_mariadb_is_read_exactly(mariadb_database: Server, opened: Opened) -> None:
    names = [f"c{number}" for number in range(len(MYSQL))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, MYSQL, strict=True))
    mariadb_database.execute(f"CREATE TABLE things ({columns})")
    mariadb_database.execute(f"INSERT INTO things VALUES ({', '.join(value for _, value, _ in MYSQL)})")
    mariadb_database.execute("INSERT INTO things VALUES ()")
    [batch] = read(opened(mariadb_database), RowReader(MySQLWire(login(mariadb_database))))
    full, empty = batch.to_pylist()
    assert full == dict(zip(names, (expected for _, _, expected in MYSQL), strict=True))
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", "0000-00-00"), ("datetime", "2026-00-00 00:00:00"), ("datetime", "0000-00-00 00:00:00")],
)
def test_a_date_that_is_none_is_named_not_bent(
    kind: str, value: str, mariadb_database: Server, opened: Opened
) -> None:
    mariadb_database.execute(f"CREATE TABLE things (at {kind} NOT NULL)")
    with closing(mariadb_database.connect(autocommit=True)) as connection:
        connection.cursor().execute("SET sql_mode = ''")
        connection.cursor().execute(f"INSERT INTO things VALUES ('2026-01-01'), ('{value}')")
    with pytest.raises(LossyValue, match=f"`at` holds '{value}'"):
        read(opened(mariadb_database), RowReader(MySQLWire(login(mariadb_database))))


POSTGRES: list[tuple[str, str, Any]] = [
    ("bigint", "-9223372036854775808", -(2**63)),
    (
        "numeric(38,10)",
        str(WIDE),
        WIDE,
    ),
    ("numeric", "1e-40", "0.0000000000000000000000000000000000000001"),
    ("real", "0.1", 0.10000000149011612),
    ("double precision", "'-infinity'", -math.inf),
    ("boolean", "true", True),
    ("text", "E'it''s \\\\ 😀'", "it's \\ 😀"),
    ("char(5)", "'ab'", "ab"),
    ("bytea", "'\\x00ff27'", b"\0\xff'"),
    ("date", "'0001-01-01'", date(1, 1, 1)),
    ("time", "'23:59:59.000001'", time(23, 59, 59, 1)),
    ("timetz", "'23:59:59+02'", "23:59:59+02"),
    ("timestamp", "'2026-01-31 23:59:59.000001'", moment("2026-01-31 23:59:59.000001")),
    ("timestamptz", "'2026-01-31 23:59:59.5+02'", datetime(2026, 1, 31, 21, 59, 59, 500000, tzinfo=UTC)),
    ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
    ("json", '\'{"b": 1.10,  "a": 1}\'', '{"b": 1.10,  "a": 1}'),
    ("jsonb", '\'{"b": 1.10, "a": 1}\'', '{"a": 1, "b": 1.10}'),
    ("integer[]", "'{1,NULL,3}'", "{1,NULL,3}"),
    ("text[]", "'{a,\"b c\"}'", '{a,"b c"}'),
    ("int4range", "'[1,5)'", "[1,5)"),
    ("interval", "'1 year 2 days 03:04:05.5'", "1 year 2 days 03:04:05.5"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("bit(3)", "B'101'", "101"),
    ("xml", "'<a/>'", "<a/>"),
]


def test_every_type_of_postgresql_is_read_exactly(postgres_database: Server, opened: Opened) -> None:
    names = [f"c{number}" for number in range(len(POSTGRES))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, POSTGRES, strict=True))
    postgres_database.execute(f"CREATE TABLE things ({columns})")
    postgres_database.execute(f"INSERT INTO things VALUES ({', '.join(value for _, value, _ in POSTGRES)})")
    postgres_database.execute("INSERT INTO things DEFAULT VALUES")
    [batch] = read(opened(postgres_database), RowReader(PostgreSQLWire(login(postgres_database))))
    full, empty = batch.to_pylist()
    assert full == dict(zip(names, (expected for _, _, expected in POSTGRES), strict=True))
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", "infinity"),
        ("date", "-infinity"),
        ("numeric(9,2)", "NaN"),
        ("time", "24:00:00"),
    ],
)
def test_what_no_declared_type_can_hold_is_named_not_bent(
    kind: str, value: str, postgres_database: Server, opened: Opened
) -> None:
    postgres_database.execute(f"CREATE TABLE things (a {kind})")
    postgres_database.execute("INSERT INTO things VALUES (%s)", [value])
    with pytest.raises(LossyValue, match=f"`a` holds '{value}'"):
        read(opened(postgres_database), RowReader(PostgreSQLWire(login(postgres_database))))


def test_rows_come_in_batches_and_a_reader_may_stop_early(mariadb_database: Server, opened: Opened) -> None:
    mariadb_database.execute("CREATE TABLE things (a int PRIMARY KEY)")
    mariadb_database.execute("INSERT INTO things SELECT seq FROM seq_1_to_10000")
    source = opened(mariadb_database)
    reader = RowReader(MySQLWire(login(mariadb_database)))
    assert [batch.num_rows for batch in read(source, reader, batch_rows=4000)] == [4000, 4000, 2000]
    relation = source.table("things")
    batches = reader.read(source.chunk(relation, ("a",), EVERYTHING, positions=(), order=()), batch_rows=10)
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]


def test_chunks_read_in_a_snapshot_see_one_picture(postgres_database: Server, opened: Opened) -> None:
    postgres_database.execute("CREATE TABLE things (a int PRIMARY KEY)")
    postgres_database.execute("INSERT INTO things VALUES (1)")
    source = opened(postgres_database)
    relation = source.table("things")
    reader = RowReader(PostgreSQLWire(login(postgres_database)))
    with source.snapshot() as snapshot:
        postgres_database.execute("INSERT INTO things VALUES (2)")
        chunk = source.chunk(relation, ("a",), EVERYTHING, positions=(), order=(), snapshot=snapshot)
        assert [batch.to_pydict() for batch in reader.read(chunk, batch_rows=10)] == [{"a": [1]}]


def test_a_table_that_went_away_is_said_in_words(postgres_database: Server, opened: Opened) -> None:
    postgres_database.execute("CREATE TABLE things (a int PRIMARY KEY)")
    source = opened(postgres_database)
    chunk = source.chunk(source.table("things"), ("a",), EVERYTHING, positions=(), order=())
    postgres_database.execute("DROP TABLE things")
    with pytest.raises(SourceError, match="things"):
        list(RowReader(PostgreSQLWire(login(postgres_database))).read(chunk, batch_rows=10))


SQLITE: list[tuple[str, str, Any]] = [
    ("integer", "-9223372036854775808", -(2**63)),
    ("real", "0.1", 0.1),
    ("real", "7", 7.0),
    ("text", "'it''s 😀'", "it's 😀"),
    ("blob", "x'00ff'", b"\0\xff"),
    ("boolean", "1", True),
    ("decimal(10,2)", "19.99", Decimal("19.99")),
    ("decimal(10,2)", "7", Decimal("7.00")),
    ("numeric", "12345678901234567", "12345678901234567"),
    ("numeric", "0.1", "0.1"),
    ("date", "'2026-01-31'", date(2026, 1, 31)),
    ("timestamp", "'2026-01-31T23:59:59.5'", moment("2026-01-31 23:59:59.5")),
    ("json", "'{\"a\":1}'", '{"a":1}'),
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def things(path: Path, columns: str, *rows: str) -> Source:
    from types import SimpleNamespace

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE things ({columns})")
        for row in rows:
            connection.execute(f"INSERT INTO things VALUES ({row})")
    return open_source(SimpleNamespace(type="sqlite", path=path))


def test_every_declared_type_of_sqlite_is_read_exactly(shop: Path) -> None:
    names = [f"c{number}" for number in range(len(SQLITE))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, SQLITE, strict=True))
    nothing = ", ".join(["NULL"] * len(SQLITE))
    with closing(things(shop, columns, ", ".join(value for _, value, _ in SQLITE), nothing)) as source:
        [batch] = read(source, RowReader(SQLiteWire(str(shop))))
    full, empty = batch.to_pylist()
    assert full == dict(zip(names, (expected for _, _, expected in SQLITE), strict=True))
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "'many'"),
        ("integer", "1.5"),
        ("real", "'x'"),
        ("text", "x'00'"),
        ("blob", "'text'"),
        ("boolean", "2"),
        ("decimal(4,2)", "1.005"),
        ("decimal(4,2)", "100"),
        ("date", "'2026-01-31 00:00:00'"),
        ("timestamp", "1767225600"),
        ("timestamp", "'2026-01-01 00:00:00+02:00'"),
    ],
)
def test_a_value_that_breaks_its_declaration_is_named_not_bent(kind: str, value: str, shop: Path) -> None:
    with closing(things(shop, f"a {kind}", value)) as source, pytest.raises(LossyValue, match="`a` holds"):
        read(source, RowReader(SQLiteWire(str(shop))))
