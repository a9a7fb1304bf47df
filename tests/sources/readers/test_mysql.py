"""The reader of MySQL and MariaDB, on a real server."""

from __future__ import annotations

import os
import pickle
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Server
from tests.sources.conftest import Opened
from tests.sources.readers.reading import EVERYTHING, column_of, login, read_all, run, wait_until, whole
from tidegate.core.errors import ConfigError, ConnectError, LossyValue, SourceError
from tidegate.core.mappings import Declared, data_type
from tidegate.core.types import Column, DataType, Kind
from tidegate.reach.login import Login, Tls
from tidegate.sources.contract import Read, Reader, Source
from tidegate.sources.readers.mysql import MySQLReader, _Stream
from tidegate.sources.rows import MySQLWire, RowReader

MANY_ROWS = "(SELECT seq AS id, REPEAT('x', 100) AS t FROM seq_1_to_100000000) AS q"
MANY_COLUMNS = (
    Column("id", DataType(Kind.UINT64), nullable=False, native="bigint unsigned"),
    Column("t", DataType(Kind.TEXT), native="varchar"),
)
ENDLESS = Read(MANY_ROWS, MANY_COLUMNS, EVERYTHING, ("id",))


def clock(text: str) -> datetime:
    """A reading of a wall clock."""
    return datetime.fromisoformat(text)


def f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@pytest.fixture
def reader(mariadb_database: Server) -> MySQLReader:
    return MySQLReader(login(mariadb_database))


@pytest.fixture
def source(mariadb_source: Source) -> Source:
    return mariadb_source


def table_of(server: Server, native: str, *literals: str) -> None:
    """A table `x` with a column `c` of a type, the given values in it, and NULL in the last row."""
    rows = ", ".join(f"({number}, {literal})" for number, literal in enumerate((*literals, "NULL"), 1))
    run(
        server,
        "SET time_zone = '+00:00'",
        f"CREATE OR REPLACE TABLE x (id int PRIMARY KEY, c {native} NULL)",
        f"INSERT INTO x VALUES {rows}",
    )


JSON = '{"b": 1.10, "a": 12345678901234567890123, "b": "é😀"}'
UTC_2038 = datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=UTC)

VALUES: list[tuple[str, dict[str, Any]]] = [
    ("tinyint", {"-128": -128, "127": 127, "0": 0}),
    ("tinyint unsigned", {"255": 255, "0": 0}),
    ("tinyint(1)", {"-5": -5, "1": 1}),
    ("smallint", {"-32768": -32768, "32767": 32767}),
    ("smallint unsigned", {"65535": 65535}),
    ("mediumint", {"-8388608": -8388608, "8388607": 8388607}),
    ("mediumint unsigned", {"16777215": 16777215}),
    ("int", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("int(5) zerofill", {"42": 42, "4294967295": 2**32 - 1}),
    ("bigint", {str(-(2**63)): -(2**63), str(2**63 - 1): 2**63 - 1}),
    ("bigint unsigned", {"0": 0, str(2**64 - 1): 2**64 - 1}),
    ("bit(1)", {"b'0'": False, "b'1'": True}),
    ("bit(10)", {"b'1100000001'": 769, "b'0'": 0}),
    ("bit(64)", {str(2**64 - 1): 2**64 - 1}),
    ("year", {"1901": 1901, "2155": 2155, "0": 0}),
    (
        "float",
        {"0.1": f32(0.1), "-3.4028234e38": f32(-3.4028234e38), "16777217": 16777216.0, "1e-45": f32(1e-45)},
    ),
    (
        "double",
        {
            "0.1": 0.1,
            "1.7976931348623157e308": 1.7976931348623157e308,
            "-2.2250738585072014e-308": -2.2250738585072014e-308,
        },
    ),
    ("decimal(5,0)", {"-99999": Decimal(-99999), "0": Decimal(0)}),
    ("decimal(12,2)", {"-9999999999.99": Decimal("-9999999999.99"), "0.01": Decimal("0.01")}),
    ("decimal(12,2) unsigned", {"9999999999.99": Decimal("9999999999.99")}),
    ("decimal(10,2) zerofill", {"1.5": Decimal("1.50")}),
    ("decimal(18,0)", {"-" + "9" * 18: Decimal(-(10**18) + 1)}),
    ("decimal(18,4)", {"99999999999999.9999": Decimal("99999999999999.9999"), "-0.0001": Decimal("-0.0001")}),
    (
        "decimal(18,18)",
        {"0." + "9" * 18: Decimal("0." + "9" * 18), "-0.000000000000000001": Decimal("-1e-18")},
    ),
    ("decimal(19,0)", {"-" + "9" * 19: Decimal("-" + "9" * 19)}),
    (
        "decimal(38,10)",
        {"9" * 28 + "." + "9" * 10: Decimal("9" * 28 + "." + "9" * 10), "-0.0000000001": Decimal("-1e-10")},
    ),
    ("decimal(38,0)", {"-" + "9" * 38: Decimal("-" + "9" * 38)}),
    ("decimal(38,38)", {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    ("decimal(65,30)", {"9" * 35 + "." + "9" * 30: "9" * 35 + "." + "9" * 30}),
    (
        "date",
        {
            "'1000-01-01'": date(1000, 1, 1),
            "'9999-12-31'": date(9999, 12, 31),
            "'2024-02-29'": date(2024, 2, 29),
            "'0001-01-01'": date(1, 1, 1),
        },
    ),
    ("datetime", {"'2024-02-29 23:59:59'": clock("2024-02-29 23:59:59")}),
    ("datetime(3)", {"'1969-12-31 23:59:59.999'": clock("1969-12-31 23:59:59.999000")}),
    (
        "datetime(6)",
        {
            "'9999-12-31 23:59:59.999999'": clock("9999-12-31 23:59:59.999999"),
            "'1000-01-01 00:00:00.000001'": clock("1000-01-01 00:00:00.000001"),
        },
    ),
    (
        "timestamp(6)",
        {
            "'1970-01-01 00:00:01'": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "'2038-01-19 03:14:07.999999'": UTC_2038,
        },
    ),
    ("time", {"'-838:59:59'": "-838:59:59", "'12:34:56'": "12:34:56"}),
    ("time(6)", {"'838:59:59.000001'": "838:59:59.000001"}),
    ("char(5)", {"''": "", "'ab  '": "ab"}),
    ("varchar(20)", {"''": "", "'ab  '": "ab  ", "'😀é\\0ß'": "😀é\0ß"}),
    ("varchar(20) CHARACTER SET latin1", {"'é€'": "é€"}),
    ("varchar(20) COLLATE utf8mb4_bin", {"'é😀'": "é😀"}),
    ("tinytext", {"'😀'": "😀", "''": ""}),
    ("text", {"'😀'": "😀"}),
    ("text CHARACTER SET latin1", {"'é'": "é"}),
    ("text COLLATE utf8mb4_bin", {"'é😀'": "é😀"}),
    ("mediumtext", {"REPEAT('é', 100000)": "é" * 100000}),
    ("longtext", {"REPEAT('😀', 300000)": "😀" * 300000}),
    ("binary(4)", {"x'00ff'": b"\x00\xff\x00\x00"}),
    ("varbinary(4)", {"x'00ff'": b"\x00\xff", "''": b""}),
    ("tinyblob", {"x'c328'": b"\xc3\x28"}),
    ("blob", {"x'00'": b"\0"}),
    ("longblob", {"REPEAT(x'ff', 1000000)": b"\xff" * 1000000}),
    ("enum('a','é','')", {"'é'": "é", "''": ""}),
    ("set('a','b')", {"'a,b'": "a,b", "''": ""}),
    (
        "json",
        {f"'{JSON}'": JSON},
    ),
    ("uuid", {"'123E4567-e89b-12d3-a456-426614174000'": "123e4567-e89b-12d3-a456-426614174000"}),
    ("inet4", {"'255.0.0.1'": "255.0.0.1"}),
    ("inet6", {"'2001:db8::ff00:42:8329'": "2001:db8::ff00:42:8329"}),
    ("point", {"ST_GeomFromText('POINT(1 2)')": struct.pack("<BIdd", 1, 1, 1.0, 2.0)}),
]


@pytest.mark.parametrize(("native", "values"), VALUES, ids=[native for native, _ in VALUES])
def test_a_value_arrives_as_it_is(
    native: str, values: dict[str, Any], mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, native, *values)

    arrived = column_of(source, reader, "x")

    assert arrived.to_pylist() == [*values.values(), None]


def test_a_vector_arrives_as_its_bytes(mariadb_database: Server, reader: Reader) -> None:
    """The server does not know the type yet: what it stores of one are these bytes."""
    table_of(mariadb_database, "varbinary(8)", "X'0000803FFF000041'")
    vector = Column("c", data_type("mysql", Declared("vector")), native="vector(2)")
    read = Read("`x`", (Column("id", DataType(Kind.INT32), native="int(11)"), vector), EVERYTHING, ("id",))

    for each in (reader, RowReader(MySQLWire(login(mariadb_database)))):
        arrived = read_all(each, read).sort_by("id").column("c")
        assert arrived.to_pylist() == [b"\0\0\x80?\xff\0\0A", None]


def test_decimals_of_every_length_arrive_as_they_are(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    sizes = [(digits, scale) for digits in range(1, 39) for scale in sorted({0, 1, digits // 2, digits})]
    largest = [Decimal((0, (9,) * digits, -scale)) for digits, scale in sizes]
    names = ", ".join(f"c{n} decimal({digits},{scale})" for n, (digits, scale) in enumerate(sizes))
    run(
        mariadb_database,
        f"CREATE TABLE x (id int PRIMARY KEY, {names})",
        f"INSERT INTO x VALUES (1, {', '.join(f'{value:f}' for value in largest)})",
        f"INSERT INTO x VALUES (2, {', '.join(f'-{value:f}' for value in largest)})",
    )

    table = read_all(reader, whole(source.table("x"))).sort_by("id")

    assert [list(row.values())[1:] for row in table.to_pylist()] == [
        largest,
        [value.copy_negate() for value in largest],
    ]


def test_a_timestamp_is_an_instant_wherever_the_server_stands(
    mariadb_east_database: Server, opened: Opened
) -> None:
    run(
        mariadb_east_database,
        "CREATE TABLE x (id int PRIMARY KEY, c timestamp(6) NOT NULL, w datetime NOT NULL)",
        "SET time_zone = '+00:00'",
        "INSERT INTO x VALUES (1, '2024-06-01 12:00:00.000001', '2024-06-01 12:00:00')",
    )
    source, reader = opened(mariadb_east_database), MySQLReader(login(mariadb_east_database))

    table = read_all(reader, whole(source.table("x")))

    assert table.column("c").to_pylist() == [datetime(2024, 6, 1, 12, 0, 0, 1, tzinfo=UTC)]
    assert table.column("w").to_pylist() == [clock("2024-06-01 12:00:00")]


# --- What cannot be held is refused ------------------------------------------


@pytest.mark.parametrize(
    ("native", "value"),
    [
        ("date", "0000-00-00"),
        ("date", "2024-00-15"),
        ("date", "2024-01-00"),
        ("datetime(6)", "0000-00-00 00:00:00.000000"),
        ("datetime", "2024-00-15 10:00:00"),
        ("timestamp", "0000-00-00 00:00:00"),
    ],
)
def test_a_date_that_is_no_date_is_an_error_that_names_it(
    native: str, value: str, mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(
        mariadb_database,
        "SET sql_mode = ''",
        f"CREATE TABLE x (id int PRIMARY KEY, fine date, c {native} NULL)",
        "INSERT INTO x VALUES (1, NULL, NULL), (2, '2024-01-01', '2024-01-01')",
        f"INSERT INTO x VALUES (41, '2024-01-01', '{value}')",
    )

    with pytest.raises(LossyValue, match=f"column `c` holds {value} where id = 41"):
        read_all(reader, whole(source.table("x")))


def test_a_chunk_without_such_a_date_is_read(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(
        mariadb_database,
        "SET sql_mode = ''",
        "CREATE TABLE x (id int PRIMARY KEY, c date NOT NULL)",
        "INSERT INTO x VALUES (1, '2024-01-01'), (2, '0000-00-00')",
    )

    assert read_all(reader, whole(source.table("x"), "id = 1")).num_rows == 1


def test_a_number_that_is_neither_true_nor_false_is_refused_as_a_boolean(
    mariadb_database: Server, reader: Reader
) -> None:
    run(
        mariadb_database,
        "CREATE TABLE x (id int PRIMARY KEY, c tinyint(1))",
        "INSERT INTO x VALUES (1, 1), (7, 2)",
    )
    columns = (
        Column("id", DataType(Kind.INT32), native="int(11)"),
        Column("c", DataType(Kind.BOOL), native="tinyint(1)"),
    )

    with pytest.raises(LossyValue, match="column `c` holds 2 where id = 7"):
        read_all(reader, Read("`x`", columns, EVERYTHING, ("id",)))


@pytest.mark.parametrize(
    ("was", "literal", "becomes"),
    [
        ("decimal(10,2)", "1.23", "decimal(10,4)"),
        ("decimal(10,2)", "1.23", "double"),
        ("datetime", "'2024-01-01'", "timestamp"),
        ("timestamp", "'2024-01-01'", "datetime"),
        ("int(11)", "1", "varchar(10)"),
        ("float", "0.5", "double"),
        ("varchar(10)", "'1'", "int"),
    ],
)
def test_a_column_that_was_altered_after_planning_is_an_error(
    was: str, literal: str, becomes: str, mariadb_database: Server, source: Source
) -> None:
    table_of(mariadb_database, was, literal)
    planned = whole(source.table("x"))
    run(mariadb_database, f"ALTER TABLE x MODIFY c {becomes} NULL")

    with pytest.raises(SourceError, match=re.escape(f"column `c` was {was} when the read was planned")):
        read_all(MySQLReader(login(mariadb_database)), planned)


def test_a_column_that_became_wider_is_read_as_long_as_its_values_fit(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, "int", "1")
    planned = whole(source.table("x"))
    run(mariadb_database, "ALTER TABLE x MODIFY c bigint NULL")
    assert read_all(reader, planned).column("c").to_pylist() == [1, None]

    run(mariadb_database, "UPDATE x SET c = 4294967296 WHERE id = 1")
    with pytest.raises(LossyValue, match="column `c` holds 4294967296 where id = 1"):
        read_all(reader, planned)


def test_a_decimal_that_became_longer_is_read_as_long_as_its_values_fit(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, "decimal(18,2)", "1.25")
    planned = whole(source.table("x"))
    run(mariadb_database, "ALTER TABLE x MODIFY c decimal(30,2) NULL")
    assert read_all(reader, planned).column("c").to_pylist() == [Decimal("1.25"), None]

    run(mariadb_database, "UPDATE x SET c = 12345678901234567890.25 WHERE id = 1")
    with pytest.raises((LossyValue, SourceError)):
        read_all(reader, planned)


def test_null_in_a_column_that_was_declared_without_is_an_error(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(mariadb_database, "CREATE TABLE x (id int PRIMARY KEY, c int NOT NULL)")
    planned = whole(source.table("x"))
    run(mariadb_database, "ALTER TABLE x MODIFY c int NULL", "INSERT INTO x VALUES (1, NULL)")

    with pytest.raises(SourceError, match="column `c` was int"):
        read_all(reader, planned)


def test_rows_that_were_read_before_the_table_was_altered_are_what_they_were(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(
        mariadb_database,
        "CREATE TABLE x SELECT seq AS id, CAST(1.25 AS decimal(10,2)) AS c FROM seq_1_to_3000",
    )
    planned = whole(source.table("x"))
    batches = reader.read(planned, batch_rows=1000)
    read = [next(batches)]
    run(mariadb_database, "ALTER TABLE x MODIFY c decimal(10,4)", "UPDATE x SET c = 7.7777")

    read += batches

    assert set(pa.Table.from_batches(read).column("c").to_pylist()) == {Decimal("1.25")}
    with pytest.raises(SourceError, match=r"column `c` was decimal.*4 digits behind the point"):
        read_all(reader, planned)


@pytest.mark.parametrize("how", ["table", "view", "query", "uncut"])
def test_a_table_that_is_altered_to_and_fro_is_read_exactly_or_not_at_all(
    how: str, mariadb_database: Server, source: Source, reader: Reader
) -> None:
    """Between any two looks at the definition it may have been another one."""
    run(
        mariadb_database,
        "CREATE TABLE x (id int PRIMARY KEY, c decimal(10,2), w datetime NULL)",
        "INSERT INTO x SELECT seq, 1.23, '2024-06-01 12:00:00' FROM seq_1_to_50",
        "CREATE VIEW v AS SELECT * FROM x",
    )
    query = "WITH q AS (SELECT * FROM x) SELECT q.* FROM q"
    relation = source.query("q", query) if how == "query" else source.table("v" if how == "view" else "x")
    planned = replace(whole(relation), uncut=how == "uncut")
    right = {(Decimal("1.23"), clock("2024-06-01 12:00:00"))}
    outcomes = Counter[str]()

    with _altering(mariadb_database):
        while min(outcomes["read"], outcomes["refused"]) < 5:
            assert outcomes.total() < 2000, outcomes
            try:
                arrived = read_all(reader, planned)
            except SourceError as error:
                assert "planned" in str(error) or "definition has changed" in str(error)  # noqa: PT017
                outcomes["refused"] += 1
                continue
            pairs = zip(arrived.column("c").to_pylist(), arrived.column("w").to_pylist(), strict=True)
            assert set(pairs) == right
            outcomes["read"] += 1


@contextmanager
def _altering(server: Server) -> Iterator[None]:
    """A clock that is an instant every other time, and digits that are there only then."""
    over = threading.Event()

    def alter() -> None:
        while not over.wait(0.02):
            run(
                server,
                "SET time_zone = '+09:00'",
                "ALTER TABLE x MODIFY c decimal(10,4), MODIFY w timestamp NULL",
                "UPDATE x SET c = 7.7777",
                "UPDATE x SET c = 1.23",
                "ALTER TABLE x MODIFY c decimal(10,2), MODIFY w datetime NULL",
            )

    altering = threading.Thread(target=alter)
    altering.start()
    try:
        yield
    finally:
        over.set()
        altering.join()


def test_a_query_that_fails_by_itself_is_not_taken_for_an_altered_table(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, "datetime", "'2024-01-01'", "'2024-01-02'")
    broken = whole(source.query("q", "SELECT id, c FROM x WHERE c = (SELECT c FROM x WHERE id < 3)"))

    for read in (broken, replace(broken, uncut=True)):
        with pytest.raises(SourceError, match="returns more than 1 row"):
            read_all(reader, read)


def test_a_read_waits_for_nobody_who_waits_for_it(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    """A statement that wants the table for itself waits for a writer, and ours for the statement."""
    table_of(mariadb_database, "int", "1")
    read = whole(source.table("x"))
    with closing(mariadb_database.connect()) as writer, closing(writer.cursor()) as cursor:
        cursor.execute("UPDATE x SET c = 2 WHERE id = 1")
        altering = threading.Thread(target=run, args=(mariadb_database, "ALTER TABLE x MODIFY c bigint"))
        altering.start()
        wait_until(lambda: _waiting(mariadb_database))
        ending = threading.Timer(0.5, writer.commit)
        ending.start()

        assert read_all(reader, read).num_rows == 2

        ending.join()
        altering.join(120)
        assert not altering.is_alive()


def _waiting(server: Server) -> bool:
    sql = "SELECT 1 FROM information_schema.processlist WHERE db = %s AND state LIKE '%%metadata lock'"
    return bool(server.execute(sql, [server.database]))


# --- All rows, or an error ---------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 3000])
def test_every_number_of_rows_is_read_to_the_end(
    rows: int, mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(
        mariadb_database,
        f"CREATE TABLE x (id int PRIMARY KEY) SELECT seq AS id FROM seq_1_to_3001 WHERE seq <= {rows}",
    )

    table = read_all(reader, whole(source.table("x")), batch_rows=1000)

    assert sorted(table.column("id").to_pylist()) == list(range(1, rows + 1))


def test_only_the_rows_of_the_condition_are_read(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, "varchar(20)", "'50% 😀'", "'other'")

    table = read_all(reader, whole(source.table("x"), "c LIKE '50\\%%' -- and a comment\n"))

    assert table.column("id").to_pylist() == [1]


def test_a_limit_that_the_server_sets_for_everybody_cuts_nothing_off(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    run(mariadb_database, "CREATE TABLE x SELECT seq AS id FROM seq_1_to_100")
    read = whole(source.table("x"))
    run(mariadb_database, "SET GLOBAL sql_select_limit = 10")
    try:
        assert read_all(reader, read).num_rows == 100
    finally:
        run(mariadb_database, "SET GLOBAL sql_select_limit = DEFAULT")


def test_a_read_that_is_given_up_ends_on_the_server(mariadb_database: Server, reader: MySQLReader) -> None:
    batches = reader.read(ENDLESS, batch_rows=1000)
    next(batches)
    assert running(mariadb_database)

    batches.close()  # type: ignore[attr-defined]

    wait_until(lambda: not running(mariadb_database))


def test_a_reader_that_fails_ends_its_query(mariadb_database: Server, reader: MySQLReader) -> None:
    short = (Column("id", DataType(Kind.INT8), native="bigint unsigned"), *MANY_COLUMNS[1:])

    with pytest.raises(LossyValue, match="column `id` holds 128 where id = 128"):
        read_all(reader, Read(MANY_ROWS, short, EVERYTHING, ("id",)))

    wait_until(lambda: not running(mariadb_database))


def test_what_could_not_be_cut_waits_at_the_server_for_whoever_takes_it(
    mariadb_database: Server, reader: MySQLReader
) -> None:
    """Ten gigabytes of rows, of which hardly any are taken: read ahead they would lie in memory."""
    memory, sent = _resident_bytes(), _bytes_sent(mariadb_database)
    batches = reader.read(replace(ENDLESS, uncut=True), batch_rows=1000)
    next(batches)

    stalled = _stalled(lambda: _bytes_sent(mariadb_database))

    assert stalled - sent < 50 << 20
    assert _resident_bytes() - memory < 100 << 20
    assert running(mariadb_database)
    batches.close()  # type: ignore[attr-defined]
    wait_until(lambda: not running(mariadb_database))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _bytes_sent(server: Server) -> int:
    [(_, count)] = server.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
    return int(count)


def _stalled(look: Callable[[], int], *, looks: int = 20, little: int = 100_000) -> int:
    """What one sees when it has hardly changed for a while: our looking at it changes it too."""
    seen: list[int] = []

    def still() -> bool:
        seen.append(look())
        return len(seen) > looks and seen[-1] - seen[-looks] < little

    wait_until(still)
    return seen[-1]


@pytest.mark.parametrize(("kill", "error"), [("CONNECTION", ConnectError), ("QUERY", SourceError)])
def test_a_query_that_is_killed_is_an_error(
    kill: str, error: type[Exception], mariadb_database: Server, reader: MySQLReader
) -> None:
    batches = reader.read(ENDLESS, batch_rows=1000)
    next(batches)
    for number in running(mariadb_database):
        run(mariadb_database, f"KILL {kill} {number}")

    with pytest.raises(error):
        for _ in batches:
            pass


class Cut(_Stream):
    """A driver that stops without a word, as some of its releases do."""

    def _open(self, sql: str) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - it never gets that far
        full = pa.RecordBatch.from_pydict({"c0": range(self.rows)})
        return iter([full, full])


def test_rows_that_end_with_a_full_batch_are_not_taken_for_all(mariadb_database: Server) -> None:
    cut = Cut(login(mariadb_database), ENDLESS, "1", 10)

    with pytest.raises(ConnectError, match="ended before the last"):
        list(cut.batches())


def test_reading_leaves_no_session_behind(
    mariadb_database: Server, source: Source, reader: MySQLReader
) -> None:
    table_of(mariadb_database, "int", "1")
    read = whole(source.table("x"))
    source.close()

    for _ in range(3):
        read_all(reader, read)

    wait_until(lambda: len(sessions(mariadb_database)) == 1)  # the one that asks


def sessions(server: Server) -> list[tuple[Any, ...]]:
    return server.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [server.database])


def running(server: Server) -> list[int]:
    rows = server.execute(
        "SELECT id FROM information_schema.processlist "
        "WHERE db = %s AND info LIKE %s AND id <> CONNECTION_ID()",
        [server.database, "%seq\\_1%"],
    )
    return [int(number) for (number,) in rows]


# --- The session -------------------------------------------------------------


def test_a_read_cannot_write(mariadb_database: Server, reader: Reader) -> None:
    run(
        mariadb_database,
        "CREATE TABLE w (i int)",
        "CREATE FUNCTION f() RETURNS int MODIFIES SQL DATA BEGIN INSERT INTO w VALUES (1); RETURN 1; END",
    )
    columns = (Column("c", DataType(Kind.INT32), native="int(11)"),)

    with pytest.raises(SourceError, match="READ ONLY"):
        read_all(reader, Read("(SELECT f() AS c) AS q", columns, EVERYTHING))

    assert mariadb_database.execute("SELECT * FROM w") == []


@pytest.mark.parametrize("name", ["a`b", "ä ö", "select", "50%", "c0", "'", '"', "a\\b"])
def test_a_column_may_have_any_name(
    name: str, mariadb_database: Server, source: Source, reader: Reader
) -> None:
    quoted = source.quote(name)
    run(mariadb_database, f"CREATE TABLE x (id int PRIMARY KEY, {quoted} int)", "INSERT INTO x VALUES (1, 2)")

    assert column_of(source, reader, "x", name).to_pylist() == [2]


def test_500_columns_are_read(mariadb_database: Server, source: Source, reader: Reader) -> None:
    columns = ", ".join(f"c{number} int" for number in range(499))
    values = ", ".join(str(number) for number in range(499))
    run(
        mariadb_database,
        f"CREATE TABLE x (id int PRIMARY KEY, {columns})",
        f"INSERT INTO x VALUES (1, {values})",
    )

    table = read_all(reader, whole(source.table("x")))

    assert list(table.to_pylist()[0].values()) == [1, *range(499)]


def test_a_view_and_a_query_are_read_like_a_table(
    mariadb_database: Server, source: Source, reader: Reader
) -> None:
    table_of(mariadb_database, "decimal(10,2)", "1.25", "2.50")
    run(mariadb_database, "CREATE VIEW v AS SELECT id, c * 2 AS c FROM x")

    assert column_of(source, reader, "v").to_pylist() == [Decimal("2.50"), Decimal("5.00"), None]
    query = source.query("sums", "SELECT COUNT(*) AS id, SUM(c) AS c, AVG(c) AS a FROM x")
    assert read_all(reader, whole(query)).to_pylist() == [
        {"id": 3, "c": Decimal("3.75"), "a": Decimal("1.875000")}
    ]


def test_encryption_that_is_preferred_is_not_insisted_on(mariadb_database: Server, source: Source) -> None:
    table_of(mariadb_database, "int", "1")

    arrived = column_of(source, MySQLReader(login(mariadb_database, tls="prefer")), "x")

    assert arrived.to_pylist() == [1, None]


# --- Failures people can act on ----------------------------------------------


def test_a_refused_login_is_said_at_once_and_without_the_password(mariadb_database: Server) -> None:
    reader = MySQLReader(login(mariadb_database, password="not-the-password"))

    with pytest.raises(ConnectError, match="refused the login") as caught, within(5):
        read_all(reader, ENDLESS)

    assert "not-the-password" not in f"{caught.value} {reader!r}"


def test_an_unreachable_server_is_said_at_once(mariadb_database: Server) -> None:
    nowhere = MySQLReader(Login("127.0.0.1", 1, mariadb_database.database, "nobody", "secret"))

    with pytest.raises(ConnectError, match="cannot reach"), within(5):
        read_all(nowhere, ENDLESS)


def test_a_table_that_is_gone_is_an_error(mariadb_database: Server, reader: Reader) -> None:
    with pytest.raises(SourceError, match="doesn't exist"):
        read_all(reader, Read("`gone`", MANY_COLUMNS, EVERYTHING))


def test_a_client_certificate_is_refused(mariadb_database: Server) -> None:
    given_ = login(mariadb_database)
    certified = Login(
        given_.host,
        given_.port,
        given_.database,
        given_.username,
        given_.password,
        Tls("prefer", cert="c", key="k"),
    )

    with pytest.raises((ConfigError, ConnectError), match=r"certificate|TLS"):
        read_all(MySQLReader(certified), ENDLESS)


@pytest.mark.parametrize("password", ["p@ss:w/o#r?d% &+", "é😀 ' \" \\", "%41"])
def test_a_password_may_have_any_character(password: str, mariadb_database: Server, source: Source) -> None:
    table_of(mariadb_database, "int", "1")
    read = whole(source.table("x"))
    quoted = password.replace("\\", "\\\\").replace("'", "''")
    run(mariadb_database, f"CREATE OR REPLACE USER 'reader'@'%' IDENTIFIED BY '{quoted}'")
    run(mariadb_database, f"GRANT SELECT ON {mariadb_database.database}.* TO 'reader'@'%'")
    try:
        reader = MySQLReader(login(mariadb_database, user="reader", password=password))
        assert read_all(reader, read).num_rows == 2
    finally:
        run(mariadb_database, "DROP USER 'reader'@'%'")


def test_a_reader_travels(mariadb_database: Server, source: Source, reader: Reader) -> None:
    table_of(mariadb_database, "int", "1")
    read = whole(source.table("x"))

    travelled, chunk = pickle.loads(pickle.dumps((reader, read)))

    assert read_all(travelled, chunk).num_rows == 2
    assert mariadb_database.password not in repr(travelled)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - began < seconds


# --- Any rows ----------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.decimals(-(10**10) + 1, 10**10 - 1, places=2, allow_nan=False),
        st.none() | st.decimals(-(10**28) + 1, 10**28 - 1, places=10, allow_nan=False),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=50),
        st.none() | st.binary(max_size=50),
        st.none() | st.datetimes(clock("1000-01-01 00:00:00"), clock("9999-12-31 00:00:00")),
        st.none() | st.dates(date(1000, 1, 1), date(9999, 12, 31)),
        st.none() | st.datetimes(clock("1970-01-02 00:00:00"), clock("2038-01-01 00:00:00")),
        st.none() | st.booleans(),
    ),
    max_size=20,
)
ROW_TABLE = (
    "CREATE TABLE x (id int AUTO_INCREMENT PRIMARY KEY, a bigint, b bigint unsigned, "
    "c decimal(12,2), d decimal(38,10), e double, f float, g text, h blob, i datetime(6), j date, "
    "k timestamp(6) NULL, l bit(1))"
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS)
def test_any_rows_arrive_as_they_were_written_and_as_the_plain_reader_reads_them(
    rows: list[tuple[Any, ...]], mariadb_database: Server, reader: Reader
) -> None:
    run(mariadb_database, "DROP TABLE IF EXISTS x", ROW_TABLE)
    with (
        closing(mariadb_database.connect(autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute("SET time_zone = '+00:00'")
        cursor.executemany(
            f"INSERT INTO x (a, b, c, d, e, f, g, h, i, j, k, l) VALUES ({', '.join(['%s'] * 12)})",
            [[_bound(value) for value in row] for row in rows],
        )
    read = Read("`x`", ROW_COLUMNS, EVERYTHING, ("id",))

    table = read_all(reader, read, batch_rows=7).sort_by("id")

    plain = read_all(RowReader(MySQLWire(login(mariadb_database))), read).sort_by("id")
    assert table.equals(plain)
    written = [(*row[:10], row[10].replace(tzinfo=UTC) if row[10] else None, row[11]) for row in rows]
    assert [tuple(row.values())[1:] for row in table.to_pylist()] == written


def _bound(value: Any) -> Any:
    """The driver writes floats with too few digits."""
    return repr(value) if isinstance(value, float) else value


ROW_COLUMNS = (
    Column("id", DataType(Kind.INT32), nullable=False, native="int(11)"),
    Column("a", DataType(Kind.INT64), native="bigint(20)"),
    Column("b", DataType(Kind.UINT64), native="bigint(20) unsigned"),
    Column("c", DataType(Kind.DECIMAL, 12, 2), native="decimal(12,2)"),
    Column("d", DataType(Kind.DECIMAL, 38, 10), native="decimal(38,10)"),
    Column("e", DataType(Kind.FLOAT64), native="double"),
    Column("f", DataType(Kind.FLOAT32), native="float"),
    Column("g", DataType(Kind.TEXT), native="text"),
    Column("h", DataType(Kind.BYTES), native="blob"),
    Column("i", DataType(Kind.TIMESTAMP, 6), native="datetime(6)"),
    Column("j", DataType(Kind.DATE), native="date"),
    Column("k", DataType(Kind.INSTANT, 6), native="timestamp(6)"),
    Column("l", DataType(Kind.BOOL), native="bit(1)"),
)
