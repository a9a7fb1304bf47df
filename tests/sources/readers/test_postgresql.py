"""The reader of PostgreSQL, on a real server."""

from __future__ import annotations

import math
import pickle
import re
import struct
import subprocess
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Server, wait_until_replayed
from tests.sources.conftest import Opened
from tests.sources.readers.reading import EVERYTHING, column_of, login, read_all, run, wait_until, whole
from tests.toxiproxy import Toxiproxy
from tidegate.core.errors import ConnectError, LossyValue, SourceError
from tidegate.core.types import Column, DataType, Kind
from tidegate.reach.login import Login
from tidegate.sources.contract import Read, Reader, Source
from tidegate.sources.readers.postgresql import PostgreSQLReader
from tidegate.sources.rows import PostgreSQLWire, RowReader

MANY_ROWS = "(SELECT generate_series(1, 100000000::bigint) AS id, repeat('x', 100) AS t) AS q"
MANY_COLUMNS = (
    Column("id", DataType(Kind.INT64), nullable=False, native="bigint"),
    Column("t", DataType(Kind.TEXT), native="text"),
)
ENDLESS = Read(MANY_ROWS, MANY_COLUMNS, EVERYTHING, ("id",))


def clock(text: str) -> datetime:
    """A reading of a wall clock, or with a zone an instant."""
    return datetime.fromisoformat(text)


def f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@pytest.fixture
def reader(postgres_database: Server) -> PostgreSQLReader:
    return PostgreSQLReader(login(postgres_database))


@pytest.fixture
def source(postgres_source: Source) -> Source:
    return postgres_source


def table_of(server: Server, native: str, *literals: str) -> None:
    """A table `x` with a column `c` of a type, the given values in it, and NULL in the last row."""
    rows = ", ".join(f"({number}, {literal})" for number, literal in enumerate((*literals, "NULL"), 1))
    run(server, f"CREATE TABLE x (id int PRIMARY KEY, c {native})", f"INSERT INTO x VALUES {rows}")


VALUES: list[tuple[str, dict[str, Any]]] = [
    ("smallint", {"-32768": -32768, "32767": 32767}),
    ("integer", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("bigint", {str(-(2**63)): -(2**63), str(2**63 - 1): 2**63 - 1}),
    ("boolean", {"true": True, "false": False}),
    ("real", {"0.1": f32(0.1), "'-Infinity'": -math.inf, "'1e-45'": f32(1e-45)}),
    ("double precision", {"0.1": 0.1, "'Infinity'": math.inf, "'5e-324'": 5e-324}),
    ("numeric(5,0)", {"-99999": Decimal(-99999), "0": Decimal(0)}),
    ("numeric(12,2)", {"-9999999999.99": Decimal("-9999999999.99"), "0.01": Decimal("0.01")}),
    ("numeric(18,4)", {"99999999999999.9999": Decimal("99999999999999.9999")}),
    ("numeric(38,0)", {"-" + "9" * 38: Decimal("-" + "9" * 38)}),
    ("numeric(38,38)", {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    ("numeric(3,5)", {"0.00123": Decimal("0.00123")}),
    ("numeric(5,-2)", {"1234567": Decimal(1234600)}),
    ("date", {"'0001-01-01'": date(1, 1, 1), "'9999-12-31'": date(9999, 12, 31)}),
    ("time", {"'23:59:59.999999'": clock_time(23, 59, 59, 999999), "'00:00'": clock_time(0)}),
    (
        "timestamp",
        {
            "'9999-12-31 23:59:59.999999'": clock("9999-12-31 23:59:59.999999"),
            "'0001-01-01 00:00:00.000001'": clock("0001-01-01 00:00:00.000001"),
            "'1969-12-31 23:59:59.999999'": clock("1969-12-31 23:59:59.999999"),
        },
    ),
    ("timestamptz", {"'2024-02-29 23:59:59.123456+05:30'": clock("2024-02-29 18:29:59.123456+00:00")}),
    ("text", {"''": "", "'ab  '": "ab  ", "'😀é'": "😀é", "repeat('é', 1000000)": "é" * 1000000}),
    ("varchar(20)", {"'ab  '": "ab  ", "E'\\\\ \\n'": "\\ \n"}),
    ("char(5)", {"'ab'": "ab", "''": ""}),
    ("bytea", {"'\\x00ff'": b"\x00\xff", "''": b""}),
    ("uuid", {"'123E4567-E89B-12D3-A456-426614174000'": "123e4567-e89b-12d3-a456-426614174000"}),
    ("json", {"""'{"b": 1.10,  "a": 1, "b": "é"}'""": '{"b": 1.10,  "a": 1, "b": "é"}'}),
    ("jsonb", {"""'{"b": 1.10,  "a": 1e400}'""": '{"a": 1' + "0" * 400 + ', "b": 1.10}'}),
]


@pytest.mark.parametrize(("native", "values"), VALUES, ids=[native for native, _ in VALUES])
def test_a_value_arrives_as_it_is(
    native: str, values: dict[str, Any], postgres_database: Server, source: Source, reader: Reader
) -> None:
    table_of(postgres_database, native, *values)

    arrived = column_of(source, reader, "x")

    assert arrived.to_pylist() == [*values.values(), None]


WRITTEN: list[tuple[str, tuple[str, ...]]] = [
    ("numeric", ("'NaN'", "'Infinity'", "1e-400", "12345678901234567890123456789012345678901234567890.5")),
    ("numeric(50,10)", ("1234567890123456789012345678901234567890.1234567891", "'NaN'")),
    ("timetz", ("'24:00:00+15:59'", "'00:00:00.000001-01'")),
    ("interval", ("'-1 year 2 mons -3 days 04:05:06.000007'", "'178000000 years'")),
    ("integer[]", ("'{{1,NULL},{3,4}}'", "'{}'")),
    ("timestamptz[]", ("'{2024-01-01 00:00:00+05,infinity}'",)),
    ("double precision[]", ("'{0.1,NaN,5e-324}'",)),
    ("money", ("-12.34",)),
    ("inet", ("'::1/64'",)),
    ("cidr", ("'10.0.0.0/8'",)),
    ("macaddr", ("'08:00:2b:01:02:03'",)),
    ("bit(5)", ("'10101'",)),
    ("varbit", ("''", "'1'")),
    ("xml", ("'<a>é</a>'",)),
    ("int4range", ("'[1,5)'", "'empty'")),
    ("point", ("'(0.1,-2)'",)),
    ("tsvector", ("'a fat cat'",)),
    ("name", ("'x'",)),
    ("oid", ("4294967295",)),
    ('"char"', ("'x'",)),
    ("mood", ("'so so'",)),
    ("pair", ("'(1,\"a,b\")'",)),
    ("pg_lsn", ("'16/B374D848'",)),
    ("varchar(5)[]", ("'{ab}'",)),
    ("text[]", ('\'{"a,b",NULL,""}\'',)),
]


@pytest.mark.parametrize(("native", "literals"), WRITTEN, ids=[native for native, _ in WRITTEN])
def test_other_types_arrive_as_the_server_writes_them(
    native: str, literals: tuple[str, ...], postgres_database: Server, source: Source, reader: Reader
) -> None:
    run(postgres_database, "CREATE TYPE mood AS ENUM ('so so')", "CREATE TYPE pair AS (a int, b text)")
    table_of(postgres_database, native, *literals)

    arrived = column_of(source, reader, "x")

    assert source.table("x").schema.column("c").type.kind is Kind.TEXT
    written = postgres_database.execute("SELECT c::text FROM x ORDER BY id")
    assert arrived.to_pylist() == [text for (text,) in written]


def test_not_a_number_stays_so_in_a_float(postgres_database: Server, source: Source, reader: Reader) -> None:
    table_of(postgres_database, "float8", "'NaN'", "'-0'")

    first, second, _ = column_of(source, reader, "x").to_pylist()

    assert math.isnan(first)
    assert math.copysign(1, second) == -1


def test_dates_beyond_what_python_knows_arrive(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    run(
        postgres_database,
        "CREATE TABLE x (id int, d date, t timestamp)",
        "INSERT INTO x VALUES (1, '4713-01-01 BC', '4713-01-01 BC'), (2, '5874897-12-31', '294246-12-31')",
    )

    table = read_all(reader, whole(source.table("x"))).sort_by("id").combine_chunks()

    days = postgres_database.execute("SELECT d - date '1970-01-01' FROM x ORDER BY id")
    assert table.column("d").chunk(0).view(pa.int32()).to_pylist() == [number for (number,) in days]
    micros = postgres_database.execute(
        "SELECT (extract(epoch FROM t) * 1000000)::numeric::bigint FROM x ORDER BY id"
    )
    assert table.column("t").chunk(0).view(pa.int64()).to_pylist() == [number for (number,) in micros]


def test_a_domain_is_read_as_what_it_is_made_from(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    run(postgres_database, "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)")
    table_of(postgres_database, "price", "1.25")

    assert column_of(source, reader, "x").to_pylist() == [Decimal("1.25"), None]


# --- What cannot be held is refused ------------------------------------------


@pytest.mark.parametrize(
    ("native", "literal", "value"),
    [
        ("numeric(12,2)", "'NaN'", "NaN"),
        ("date", "'infinity'", "an infinite date"),
        ("date", "'-infinity'", "an infinite date"),
        ("timestamp", "'infinity'", "an infinite timestamp, or one after 294246"),
        ("timestamp", "'-infinity'", "an infinite timestamp, or one after 294246"),
        ("timestamp", "'294276-12-31 23:59:59.999999'", "an infinite timestamp, or one after 294246"),
        ("timestamptz", "'infinity'", "an infinite timestamp, or one after 294246"),
        ("timestamptz", "'294276-01-01'", "an infinite timestamp, or one after 294246"),
        ("time", "'24:00:00'", "24:00:00"),
    ],
)
def test_a_value_that_nobody_else_can_hold_is_an_error_that_names_it(
    native: str, literal: str, value: str, postgres_database: Server, source: Source
) -> None:
    run(
        postgres_database,
        f"CREATE TABLE x (id int PRIMARY KEY, zero numeric(5,2), c {native})",
        f"INSERT INTO x VALUES (1, 0, NULL), (41, 0, {literal}), (42, 0, NULL)",
    )
    reader = PostgreSQLReader(login(postgres_database))

    with pytest.raises(LossyValue, match=re.escape(f"column `c` holds {value} where id = 41")):
        read_all(reader, whole(source.table("x")))


def test_zeros_are_zeros(postgres_database: Server, source: Source, reader: Reader) -> None:
    table_of(postgres_database, "numeric(12,2)", "0", "0.00", "1")
    run(postgres_database, "INSERT INTO x VALUES (9, 'NaN')")

    read = whole(source.table("x"), "id < 9 -- and a comment\n")

    assert read_all(reader, read).column("c").to_pylist() == [0, 0, 1, None]


def test_nan_is_told_from_zero_whatever_was_read_before(postgres_database: Server, source: Source) -> None:
    run(
        postgres_database,
        "CREATE TABLE x (id int PRIMARY KEY, a numeric(5,2), b numeric(5,2))",
        "INSERT INTO x VALUES (1, 1, 1), (2, 0, 1), (3, 'NaN', 1), (4, 0, 'NaN'), (5, 0, NULL), (6, NULL, 0)",
    )
    with PostgreSQLReader(login(postgres_database)).kept() as kept:

        def read(number: int) -> dict[str, Any]:
            [row] = read_all(kept, whole(source.table("x"), f"id = {number}")).to_pylist()
            return dict(row)

        def refused(number: int) -> str:
            with pytest.raises(LossyValue) as error:
                read(number)
            return error.value.message

        assert read(1) == {"id": 1, "a": 1, "b": 1}
        assert "column `a` holds NaN where id = 3" in refused(3)
        assert read(2) == {"id": 2, "a": 0, "b": 1}
        assert "column `a` holds NaN where id = 3" in refused(3)
        assert "column `b` holds NaN where id = 4" in refused(4)
        assert read(5) == {"id": 5, "a": 0, "b": None}
        assert read(6) == {"id": 6, "a": None, "b": 0}
        assert "column `b` holds NaN where id = 4" in refused(4)


def test_nan_that_is_corrected_while_it_is_read_does_not_become_zero(
    postgres_database: Server, source: Source
) -> None:
    table_of(postgres_database, "numeric(12,2)", "1", "'NaN'")
    batches = PostgreSQLReader(login(postgres_database)).read(whole(source.table("x")), batch_rows=10)

    next(batches)
    run(postgres_database, "UPDATE x SET c = 0 WHERE c = 'NaN'")

    with pytest.raises(LossyValue, match="column `c` holds NaN where id = 2"):
        list(batches)


@pytest.mark.parametrize(
    ("was", "literal", "becomes"),
    [
        ("numeric(10,2)", "1.23", "numeric(10,4)"),
        ("numeric(10,2)", "1.23", "numeric(12,2)"),
        ("numeric(10,2)", "1.23", "numeric"),
        ("timestamp without time zone", "'2024-01-01'", "timestamptz"),
        ("timestamp with time zone", "'2024-01-01'", "timestamp"),
        ("integer", "1", "text"),
        ("real", "0.5", "float8"),
        ("text", "'1'", "integer USING c::integer"),
        ("boolean", "true", "text"),
    ],
)
def test_a_column_that_was_altered_after_planning_is_an_error(
    was: str, literal: str, becomes: str, postgres_database: Server, source: Source
) -> None:
    table_of(postgres_database, was, literal)
    planned = whole(source.table("x"))
    run(postgres_database, f"ALTER TABLE x ALTER c TYPE {becomes}")

    with pytest.raises(SourceError, match=re.escape(f"column `c` was {was} when the read was planned")):
        read_all(PostgreSQLReader(login(postgres_database)), planned)


def test_a_column_that_became_wider_is_read_as_long_as_its_values_fit(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    table_of(postgres_database, "integer", "1")
    planned = whole(source.table("x"))
    run(postgres_database, "ALTER TABLE x ALTER c TYPE bigint")
    assert read_all(reader, planned).column("c").to_pylist() == [1, None]

    run(postgres_database, "UPDATE x SET c = 4294967296 WHERE id = 1")
    with pytest.raises(LossyValue, match="column `c` holds 4294967296 where id = 1"):
        read_all(reader, planned)


def test_null_in_a_column_that_was_declared_without_is_an_error(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    run(postgres_database, "CREATE TABLE x (id int PRIMARY KEY, c int NOT NULL)")
    planned = whole(source.table("x"))
    run(postgres_database, "ALTER TABLE x ALTER c DROP NOT NULL", "INSERT INTO x VALUES (1, NULL)")

    with pytest.raises(SourceError, match="column `c` was integer"):
        read_all(reader, planned)


# --- All rows, or an error ---------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 2047, 2048, 2049, 6144])
def test_every_number_of_rows_is_read_to_the_end(
    rows: int, postgres_database: Server, source: Source, reader: Reader
) -> None:
    run(postgres_database, f"CREATE TABLE x AS SELECT g AS id FROM generate_series(1, {rows}) AS g")

    table = read_all(reader, whole(source.table("x")), batch_rows=2048)

    assert table.column("id").to_pylist() == list(range(1, rows + 1))


def test_a_read_that_is_given_up_ends_on_the_server(
    postgres_database: Server, reader: PostgreSQLReader
) -> None:
    batches = reader.read(ENDLESS, batch_rows=1000)
    next(batches)
    assert running(postgres_database)

    batches.close()  # type: ignore[attr-defined]

    wait_until(lambda: not sessions(postgres_database))


def test_a_reader_that_fails_ends_its_query(postgres_database: Server, reader: PostgreSQLReader) -> None:
    short = (Column("id", DataType(Kind.INT16), native="bigint"), *MANY_COLUMNS[1:])

    with pytest.raises(LossyValue, match="column `id` holds 32768 where id = 32768"):
        read_all(reader, Read(MANY_ROWS, short, EVERYTHING, ("id",)))

    wait_until(lambda: not sessions(postgres_database))


@pytest.mark.parametrize(
    ("end", "error"), [("pg_terminate_backend", ConnectError), ("pg_cancel_backend", SourceError)]
)
def test_a_query_that_is_ended_is_an_error_and_the_next_one_works(
    end: str, error: type[Exception], postgres_database: Server, reader: PostgreSQLReader
) -> None:
    batches = reader.read(ENDLESS, batch_rows=1000)
    next(batches)
    for number in running(postgres_database):
        postgres_database.execute(f"SELECT {end}({number})")

    with pytest.raises(error):
        for _ in batches:
            pass

    one = Read(MANY_ROWS, MANY_COLUMNS, "id < 10", ("id",))
    few = Read(one.relation.replace("100000000", "20"), one.columns, one.where, one.positions)
    assert read_all(reader, few).num_rows == 9


def test_reading_leaves_no_session_behind(
    postgres_database: Server, source: Source, reader: PostgreSQLReader
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))
    source.close()

    for _ in range(3):
        read_all(reader, read)

    wait_until(lambda: not sessions(postgres_database))


def test_the_reads_of_a_task_share_a_connection_until_one_fails(
    postgres_database: Server, source: Source, reader: PostgreSQLReader
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))
    source.close()
    seen = []

    with reader.kept() as kept:
        for _ in range(3):
            assert read_all(kept, read).num_rows == 2
            seen += sessions(postgres_database)
        assert len(seen) == 3
        assert len(set(seen)) == 1
        batches = kept.read(ENDLESS, batch_rows=1000)
        next(batches)
        run(postgres_database, f"SELECT pg_terminate_backend({seen[0]})")
        with pytest.raises(ConnectError):
            for _ in batches:
                pass
        assert read_all(kept, read).num_rows == 2
        assert seen[0] not in sessions(postgres_database)

    wait_until(lambda: not sessions(postgres_database))


def test_the_reads_of_a_task_see_what_was_committed_in_between(
    postgres_database: Server, source: Source, reader: PostgreSQLReader
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))

    with reader.kept() as kept:
        assert read_all(kept, read).num_rows == 2
        run(postgres_database, "INSERT INTO x VALUES (9, 9)")
        assert read_all(kept, read).num_rows == 3


def test_two_reads_may_go_on_at_once(postgres_database: Server, reader: PostgreSQLReader) -> None:
    one, two = (reader.read(ENDLESS, batch_rows=1000) for _ in range(2))

    assert [next(one).num_rows, next(two).num_rows, next(one).num_rows] == [1000, 1000, 1000]

    one.close()  # type: ignore[attr-defined]
    assert next(two).num_rows == 1000
    two.close()  # type: ignore[attr-defined]


def sessions(server: Server) -> list[int]:
    rows = server.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'tidegate reader'",
        [server.database],
    )
    return [int(number) for (number,) in rows]


def running(server: Server) -> list[int]:
    rows = server.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = %s AND query LIKE 'COPY%%' AND state = 'active'",
        [server.database],
    )
    return [int(number) for (number,) in rows]


MEMORY = """
import resource, sys
from tidegate.arrow import arrow_schema
from tidegate.config.settings import Compression
from tidegate.core.types import Column, DataType, Kind
from tidegate.sources.contract import Read
from tidegate.reach.login import Login
from tidegate.sources.readers.postgresql import PostgreSQLReader
from tidegate.staging.parquet import write_segment

host, port, database, user, password, rows = sys.argv[1:]
columns = (Column("t", DataType(Kind.TEXT), native="text"),)
relation = f"(SELECT repeat(md5(g::text), 10) AS t FROM (SELECT generate_series(1, {rows}) AS g) AS s) AS q"
reader = PostgreSQLReader(Login(host, int(port), database, user, password))
with open("/dev/null", "wb") as file:
    batches = reader.read(Read(relation, columns, "1 = 1"), batch_rows=16384)
    assert write_segment(file, arrow_schema(columns), batches, compression=Compression.SNAPPY) == int(rows)
assert "pandas" not in sys.modules, "which takes longer to import than many a chunk to read"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_chunk(postgres_database: Server) -> None:
    """A segment of 320 MB takes no more than one of 64 MB, the size of a row group."""
    small, large = (_peak_mb(postgres_database, rows) for rows in (200_000, 1_000_000))

    assert large < small + 100


def _peak_mb(server: Server, rows: int) -> int:
    arguments = [server.host, str(server.port), server.database, server.user, server.password, str(rows)]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *arguments], check=True, capture_output=True, text=True, timeout=120
    )
    return int(done.stdout)


# --- The session -------------------------------------------------------------


def test_a_read_sees_the_snapshot_it_is_given(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))

    with source.snapshot() as snapshot:
        run(postgres_database, "DELETE FROM x")
        then = Read(read.relation, read.columns, read.where, read.positions, snapshot)
        assert read_all(reader, then).num_rows == 2

    assert read_all(reader, read).num_rows == 0


def test_a_snapshot_that_is_gone_is_an_error(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))

    with pytest.raises(SourceError, match="snapshot"):
        read_all(reader, Read(read.relation, read.columns, read.where, snapshot="00000003-0000001B-1"))


def test_a_standby_is_read(postgres_database: Server, postgres_standby: Server, opened: Opened) -> None:
    table_of(postgres_database, "numeric(5,2)", "0")
    wait_until_replayed(postgres_database, postgres_standby)
    standby = postgres_standby.using(postgres_database.database)
    source = opened(standby)

    table = read_all(PostgreSQLReader(login(standby)), whole(source.table("x")))
    source.close()

    assert table.num_rows == 2


def test_a_read_cannot_write(postgres_database: Server, reader: Reader) -> None:
    run(
        postgres_database,
        "CREATE TABLE w (i int)",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'INSERT INTO w VALUES (1) RETURNING 1'",
    )
    columns = (Column("c", DataType(Kind.INT32), native="integer"),)

    with pytest.raises(SourceError, match="read-only transaction"):
        read_all(reader, Read("(SELECT f() AS c) AS q", columns, EVERYTHING))

    assert postgres_database.execute("SELECT * FROM w") == []


def test_settings_of_the_server_change_nothing(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    for setting in (
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'German, DMY'",
        "IntervalStyle = 'iso_8601'",
        "extra_float_digits = 0",
        "bytea_output = 'escape'",
        "statement_timeout = '1h'",
    ):
        run(postgres_database, f"ALTER DATABASE {postgres_database.database} SET {setting}")
    run(
        postgres_database,
        "CREATE TABLE x (id int, i timestamptz, t timestamptz[], v interval, f float8[], b bytea[])",
        "INSERT INTO x VALUES (1, '2024-01-02 00:00+00', ARRAY['2024-01-02 00:00+00'::timestamptz], '1 day', "
        "ARRAY[0.1::float8 + 0.2], ARRAY['\\xff'::bytea])",
    )

    [row] = read_all(reader, whole(source.table("x"))).to_pylist()

    assert row == {
        "id": 1,
        "i": datetime(2024, 1, 2, tzinfo=UTC),
        "t": '{"2024-01-02 00:00:00+00"}',
        "v": "1 day",
        "f": "{0.30000000000000004}",
        "b": '{"\\\\xff"}',
    }


def test_text_of_a_database_with_another_encoding_arrives(postgres: Server, opened: Opened) -> None:
    name = "latin_reader"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        latin = postgres.using(name)
        table_of(latin, "text", "'é'")
        source = opened(latin)
        assert column_of(source, PostgreSQLReader(login(latin)), "x").to_pylist() == ["é", None]
        source.close()
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("name", ['a"b', "ä ö", "select", "50%", "c0", "'", "ID", "a\\b", "😀", "$tag$"])
def test_a_column_may_have_any_name(
    name: str, postgres_database: Server, source: Source, reader: Reader
) -> None:
    quoted = source.quote(name)
    run(
        postgres_database, f"CREATE TABLE x (id int PRIMARY KEY, {quoted} int)", "INSERT INTO x VALUES (1, 2)"
    )

    assert column_of(source, reader, "x", name).to_pylist() == [2]


def test_500_columns_are_read(postgres_database: Server, source: Source, reader: Reader) -> None:
    columns = ", ".join(f"c{number} int" for number in range(499))
    values = ", ".join(str(number) for number in range(499))
    run(
        postgres_database,
        f"CREATE TABLE x (id int PRIMARY KEY, {columns})",
        f"INSERT INTO x VALUES (1, {values})",
    )

    table = read_all(reader, whole(source.table("x")))

    assert list(table.to_pylist()[0].values()) == [1, *range(499)]


def test_a_view_and_a_query_are_read_like_a_table(
    postgres_database: Server, source: Source, reader: Reader
) -> None:
    table_of(postgres_database, "numeric(10,2)", "1.25", "2.50")
    run(postgres_database, "CREATE VIEW v AS SELECT id, c FROM x")

    assert column_of(source, reader, "v").to_pylist() == [Decimal("1.25"), Decimal("2.50"), None]
    query = source.query("sums", "SELECT count(*) AS id, sum(c) AS c FROM x")
    assert read_all(reader, whole(query)).to_pylist() == [{"id": 3, "c": "3.75"}]


# --- Failures people can act on ----------------------------------------------


def test_a_refused_login_is_said_without_the_password(postgres_database: Server) -> None:
    reader = PostgreSQLReader(login(postgres_database, password="not-the-password"))

    with pytest.raises(ConnectError, match="refused the login") as caught:
        read_all(reader, ENDLESS)

    shown = [str(caught.value), repr(reader)]
    error: BaseException | None = caught.value
    while error is not None:
        shown.append(repr(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "not-the-password" not in " ".join(shown)


def test_an_unreachable_server_is_an_error(postgres_database: Server) -> None:
    nowhere = PostgreSQLReader(Login("127.0.0.1", 1, postgres_database.database, "nobody", "secret"))

    with pytest.raises(ConnectError, match="cannot reach"):
        read_all(nowhere, ENDLESS)


def test_a_server_that_goes_away_between_two_reads_is_an_error_without_the_password(
    postgres_database: Server, source: Source, toxiproxy: Toxiproxy
) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))
    with toxiproxy.before(postgres_database.port) as proxied:
        behind = replace(login(postgres_database), port=proxied.port)
        with PostgreSQLReader(behind).kept() as kept:
            assert read_all(kept, read).num_rows == 2
            with proxied.down(), pytest.raises(ConnectError) as caught:
                read_all(kept, read)
            assert caught.value.transient
            assert postgres_database.password not in "".join(traceback.format_exception(caught.value))
            assert read_all(kept, read).num_rows == 2


@pytest.mark.parametrize(
    ("relation", "message"),
    [("gone", 'relation "gone" does not exist'), ("(SELECT 1 AS id, 1/0 AS t) AS q", "division by zero")],
)
def test_what_the_server_refuses_is_said_in_its_words(
    relation: str, message: str, postgres_database: Server, reader: Reader
) -> None:
    with pytest.raises(SourceError, match=message):
        read_all(reader, Read(relation, MANY_COLUMNS, EVERYTHING))


@pytest.mark.parametrize("password", ["p@ss:w/o#r?d% &+", "é😀 ' \" \\", "%41"])
def test_a_password_may_have_any_character(password: str, postgres_database: Server, source: Source) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))
    quoted = password.replace("'", "''")
    run(
        postgres_database,
        f"CREATE ROLE any_password LOGIN PASSWORD '{quoted}'",
        "GRANT SELECT ON x TO any_password",
    )
    try:
        reader = PostgreSQLReader(login(postgres_database, user="any_password", password=password))
        assert read_all(reader, read).num_rows == 2
    finally:
        run(postgres_database, "DROP OWNED BY any_password", "DROP ROLE any_password")


def test_a_reader_travels(postgres_database: Server, source: Source, reader: Reader) -> None:
    table_of(postgres_database, "int", "1")
    read = whole(source.table("x"))

    travelled, chunk = pickle.loads(pickle.dumps((reader, read)))

    assert read_all(travelled, chunk).num_rows == 2
    assert postgres_database.password not in repr(travelled)


# --- Any rows ----------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-(2**15), 2**15 - 1),
        st.none() | st.decimals(-(10**10) + 1, 10**10 - 1, places=2, allow_nan=False),
        st.none() | st.decimals(-(10**28) + 1, 10**28 - 1, places=10, allow_nan=False),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.floats(width=32, allow_nan=False),
        st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=50),
        st.none() | st.binary(max_size=50),
        st.none() | st.datetimes(),
        st.none() | st.dates(),
        st.none() | st.datetimes(clock("0001-01-02"), clock("9999-12-30"), timezones=st.just(UTC)),
        st.none() | st.booleans(),
        st.none() | st.times(),
        st.none() | st.uuids().map(str),
    ),
    max_size=20,
)
ROW_COLUMNS = (
    Column("id", DataType(Kind.INT32), nullable=False, native="integer"),
    Column("a", DataType(Kind.INT64), native="bigint"),
    Column("b", DataType(Kind.INT16), native="smallint"),
    Column("c", DataType(Kind.DECIMAL, 12, 2), native="numeric(12,2)"),
    Column("d", DataType(Kind.DECIMAL, 38, 10), native="numeric(38,10)"),
    Column("e", DataType(Kind.FLOAT64), native="double precision"),
    Column("f", DataType(Kind.FLOAT32), native="real"),
    Column("g", DataType(Kind.TEXT), native="text"),
    Column("h", DataType(Kind.BYTES), native="bytea"),
    Column("i", DataType(Kind.TIMESTAMP, 6), native="timestamp without time zone"),
    Column("j", DataType(Kind.DATE), native="date"),
    Column("k", DataType(Kind.INSTANT, 6), native="timestamp with time zone"),
    Column("l", DataType(Kind.BOOL), native="boolean"),
    Column("m", DataType(Kind.TIME, 6), native="time without time zone"),
    Column("n", DataType(Kind.UUID), native="uuid"),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS)
def test_any_rows_arrive_as_they_were_written_and_as_the_plain_reader_reads_them(
    rows: list[tuple[Any, ...]], postgres_database: Server, reader: Reader
) -> None:
    declared = ", ".join(f"{column.name} {column.native}" for column in ROW_COLUMNS)
    run(postgres_database, "DROP TABLE IF EXISTS x", f"CREATE TABLE x ({declared})")
    with (
        closing(postgres_database.connect(autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        values = ", ".join(["%s"] * len(ROW_COLUMNS))
        cursor.executemany(f"INSERT INTO x VALUES ({values})", [(n, *row) for n, row in enumerate(rows)])
    read = Read('"x"', ROW_COLUMNS, EVERYTHING, ("id",))

    table = read_all(reader, read).sort_by("id")

    plain = read_all(RowReader(PostgreSQLWire(login(postgres_database))), read).sort_by("id")
    assert table.equals(plain)
    assert [tuple(row.values())[1:] for row in table.to_pylist()] == rows
