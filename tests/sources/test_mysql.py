"""MariaDB as a source: what there is, how it is cut, how values are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Connection, Server
from tests.sources.conftest import Opened
from tests.sources.tiling import most_queries, tile
from tidegate.core.errors import ConnectError, LossyValue, SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import Cursor
from tidegate.core.types import DataType, Kind
from tidegate.core.windows import Window
from tidegate.reach.login import Login
from tidegate.sources.contract import Source
from tidegate.sources.mysql import MySQL
from tidegate.sources.sql import SqlSource

reading = datetime.fromisoformat

KINDS: dict[str, DataType] = {
    "tinyint": DataType(Kind.INT8),
    "tinyint(1)": DataType(Kind.INT8),
    "tinyint unsigned": DataType(Kind.UINT8),
    "smallint": DataType(Kind.INT16),
    "smallint unsigned": DataType(Kind.UINT16),
    "mediumint": DataType(Kind.INT32),
    "mediumint unsigned": DataType(Kind.UINT32),
    "int": DataType(Kind.INT32),
    "int unsigned": DataType(Kind.UINT32),
    "int(5) zerofill": DataType(Kind.UINT32),
    "bigint": DataType(Kind.INT64),
    "bigint unsigned": DataType(Kind.UINT64),
    "decimal(10,2)": DataType(Kind.DECIMAL, 10, 2),
    "decimal(38,38)": DataType(Kind.DECIMAL, 38, 38),
    "decimal(39,0)": DataType(Kind.TEXT),
    "decimal(65,30)": DataType(Kind.TEXT),
    "float": DataType(Kind.FLOAT32),
    "double": DataType(Kind.FLOAT64),
    "bit(1)": DataType(Kind.BOOL),
    "bit(64)": DataType(Kind.UINT64),
    "date": DataType(Kind.DATE),
    "datetime": DataType(Kind.TIMESTAMP, 0),
    "datetime(6)": DataType(Kind.TIMESTAMP, 6),
    "timestamp(3) null": DataType(Kind.INSTANT, 3),
    "time(6)": DataType(Kind.TEXT),
    "year": DataType(Kind.INT16),
    "char(3)": DataType(Kind.TEXT, length=3),
    "varchar(20)": DataType(Kind.TEXT, length=20),
    "longtext": DataType(Kind.TEXT, length=4294967295),
    "json": DataType(Kind.JSON),
    "enum('a','b')": DataType(Kind.TEXT),
    "set('a','b')": DataType(Kind.TEXT),
    "binary(16)": DataType(Kind.BYTES, length=16),
    "varbinary(9)": DataType(Kind.BYTES, length=9),
    "blob": DataType(Kind.BYTES, length=65535),
    "point": DataType(Kind.BYTES),
    "geometry": DataType(Kind.BYTES),
    "uuid": DataType(Kind.UUID),
    "inet6": DataType(Kind.TEXT),
}


def login(server: Server) -> Login:
    return Login(server.host, server.port, server.database, server.user, server.password)


@pytest.fixture
def database(mariadb_database: Server) -> Iterator[MySQL]:
    with closing(MySQL(login(mariadb_database))) as database:
        yield database


# --- what there is ----------------------------------------------------------


def test_every_type_is_mapped(mariadb_database: Server, mariadb_source: Source) -> None:
    columns = ", ".join(f"`{native}` {native}" for native in KINDS)
    mariadb_database.execute(f"CREATE TABLE things ({columns})")
    schema = mariadb_source.schema("things")
    assert {column.name: column.type for column in schema.columns} == KINDS
    assert schema.key == ()
    assert all(column.nullable for column in schema.columns)


def test_a_query_has_the_types_its_columns_have(mariadb_database: Server, mariadb_source: Source) -> None:
    columns = ", ".join(f"`{native}` {native}" for native in KINDS)
    mariadb_database.execute(f"CREATE TABLE things ({columns})")
    schema = mariadb_source.query("q", "SELECT * FROM things -- all of them").schema
    without_length = {name: (kind.kind, kind.precision, kind.scale) for name, kind in KINDS.items()}
    # A result does not tell these from the text they are kept as.
    for name in ("json", "uuid"):
        without_length[name] = (Kind.TEXT, None, None)
    assert {c.name: (c.type.kind, c.type.precision, c.type.scale) for c in schema.columns} == without_length


def test_the_key_is_in_its_own_order(mariadb_database: Server, mariadb_source: Source) -> None:
    mariadb_database.execute("CREATE TABLE things (a int, b int, c int, PRIMARY KEY (c, a))")
    schema = mariadb_source.schema("things")
    assert schema.key == ("c", "a")
    assert [column.nullable for column in schema.columns] == [False, True, False]


def test_generated_and_invisible_columns_are_columns(
    mariadb_database: Server, mariadb_source: Source
) -> None:
    mariadb_database.execute(
        "CREATE TABLE things "
        "(a int, b int AS (a + 1) VIRTUAL, c int AS (a + 2) STORED, d int INVISIBLE DEFAULT 4)"
    )
    assert mariadb_source.schema("things").names == ("a", "b", "c", "d")


def test_tables_are_listed_and_views_are_read_like_tables(
    mariadb_database: Server, mariadb: Server, mariadb_source: Source
) -> None:
    other = mariadb_database.database + "_other"
    mariadb.execute(f"CREATE DATABASE {other}")
    try:
        mariadb_database.execute("CREATE TABLE plain (a int PRIMARY KEY)")
        mariadb_database.execute("CREATE TABLE `odd.name` (a int)")
        mariadb_database.execute("CREATE VIEW shown AS SELECT a FROM plain")
        mariadb.execute(f"CREATE TABLE {other}.away (b int)")
        assert [name for name in mariadb_source.tables() if "." not in name or other in name] == [
            "plain",
            f"{other}.away",
        ]
        assert "odd.name" in mariadb_source.tables()
        assert mariadb_source.schema("odd.name").names == ("a",)
        assert mariadb_source.schema(f"{other}.away").names == ("b",)
        assert (mariadb_source.schema("shown").names, mariadb_source.schema("shown").key) == (("a",), ())
    finally:
        mariadb.execute(f"DROP DATABASE {other}")


def test_names_may_hold_anything(mariadb_database: Server, database: MySQL) -> None:
    mariadb_database.execute(
        "CREATE TABLE `se``lect %s {x}` (`o'r\"d``er %d {y}` int PRIMARY KEY, `ünïcode €` int)"
    )
    mariadb_database.execute("INSERT INTO `se``lect %s {x}` VALUES (1, 2), (3, 4), (5, 6)")
    tiled = tile(database, "se`lect %s {x}", ("o'r\"d`er %d {y}",), 1)
    assert tiled.chunks == [[("1",)], [("3",)], [("5",)], []]


def test_a_missing_table_is_named_with_the_nearest_ones(
    mariadb_database: Server, mariadb_source: Source
) -> None:
    mariadb_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match=r"no table `order`.*did you mean `orders`"):
        mariadb_source.schema("order")
    with pytest.raises(SourceError, match=r"orders: there is no column `idd`.*did you mean `id`"):
        mariadb_source.nth(mariadb_source.table("orders"), ("idd",), Window(None, None), 1)


# --- errors -----------------------------------------------------------------


def test_a_wrong_password_is_said_in_words(mariadb: Server, opened: Opened) -> None:
    with pytest.raises(ConnectError) as caught:
        opened(mariadb.logged_in_as(mariadb.user, "wrong-secret")).tables()
    assert caught.value.exit_code == 5
    assert f"refused the login of user `{mariadb.user}`" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


def test_an_unknown_database_is_said_in_words(mariadb: Server, opened: Opened) -> None:
    with pytest.raises(ConnectError, match="no_such_database"):
        opened(mariadb.using("no_such_database")).tables()


def test_an_unreachable_server_is_said_in_words() -> None:
    with closing(MySQL(Login("127.0.0.1", 1, "shop", "me", "secret"))) as database:
        with pytest.raises(ConnectError, match="cannot reach the server") as caught:
            database.tables()
        assert "secret" not in str(caught.value)
    with (
        closing(MySQL(Login("no-such-host.invalid", 1, "shop", "me", "secret"))) as database,
        pytest.raises(ConnectError, match="cannot reach the server"),
    ):
        database.tables()


def test_a_table_that_may_not_be_read_is_an_error_with_the_grant(
    mariadb_database: Server, opened: Opened
) -> None:
    mariadb_database.execute("CREATE TABLE secrets (id int PRIMARY KEY, other int)")
    mariadb_database.execute("CREATE OR REPLACE USER narrow IDENTIFIED BY 'secret'")
    mariadb_database.execute(f"GRANT INSERT ON {mariadb_database.database}.* TO narrow")
    source = opened(mariadb_database.logged_in_as("narrow", "secret"))
    with pytest.raises(SourceError, match="GRANT SELECT"):
        source.count(source.table("secrets"), ("id",), Window(None, None))


def test_sessions_cannot_write(mariadb_database: Server, database: MySQL) -> None:
    mariadb_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match="READ ONLY"):
        database.rows("INSERT INTO orders VALUES (1)")


def test_settings_of_the_server_do_not_change_what_is_read(mariadb_database: Server, database: MySQL) -> None:
    mariadb_database.execute("SET GLOBAL sql_select_limit = 1")
    try:
        assert len(database.rows("SELECT seq FROM seq_1_to_5")) == 5
        assert database.rows("SELECT @@time_zone, @@sql_mode") == [("+00:00", "")]
    finally:
        mariadb_database.execute("SET GLOBAL sql_select_limit = DEFAULT")


# --- cutting ----------------------------------------------------------------


def test_a_gap_of_billions_costs_nothing(mariadb_database: Server, database: MySQL) -> None:
    mariadb_database.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    mariadb_database.execute(
        "INSERT INTO orders SELECT CAST(seq AS signed) - 50 FROM seq_1_to_100 "
        "UNION ALL SELECT seq + 9000000000000 FROM seq_1_to_100"
    )
    tiled = tile(database, "orders", ("id",), 30)
    assert sorted(tiled.rows) == sorted(
        (str(number),) for (number,) in mariadb_database.execute("SELECT id FROM orders")
    )
    assert [len(chunk) for chunk in tiled.chunks] == [30] * 6 + [20]
    assert tiled.queries <= most_queries(200, 30)


def test_ids_above_the_signed_range_are_exact(mariadb_database: Server, database: MySQL) -> None:
    mariadb_database.execute("CREATE TABLE orders (id bigint unsigned PRIMARY KEY)")
    mariadb_database.execute("INSERT INTO orders SELECT 18446744073709551615 - seq FROM seq_0_to_99")
    tiled = tile(database, "orders", ("id",), 40)
    assert tiled.cuts[0] == Position.of(18446744073709551615 - 60)
    assert sorted(len(chunk) for chunk in tiled.chunks) == [20, 40, 40]
    assert len(set(tiled.rows)) == 100


KEYS = {
    "composite": ("a int, b int, c int", "seq MOD 3, seq MOD 7, seq", ("a", "b", "c")),
    "uuid": ("a uuid", "UUID()", ("a",)),
    "uuid as text": ("a char(36)", "UUID()", ("a",)),
    "uuid as bytes": ("a binary(16)", "UNHEX(MD5(seq))", ("a",)),
    "case-insensitive": ("a varchar(9), b int", "ELT(1 + seq MOD 4, 'a', 'A', 'ä', 'b'), seq", ("a", "b")),
    "latin1": ("a varchar(20) CHARACTER SET latin1", "CONCAT('\\\\ü''%', seq)", ("a",)),
    "trailing spaces": ("a varchar(9), b int", "ELT(1 + seq MOD 2, 'a', 'a  '), seq", ("a", "b")),
    "enum": ("a enum('z','m','a'), b int", "1 + seq MOD 3, seq", ("a", "b")),
    "set": ("a set('z','m','a'), b int", "seq MOD 8, seq", ("a", "b")),
    "decimal": ("a decimal(20,5)", "seq / 7 - 10", ("a",)),
    "wide decimal": ("a decimal(65,30)", "CAST(seq AS decimal(65,30)) / 7 - 10", ("a",)),
    "date": ("a date", "DATE'2020-01-01' + INTERVAL seq DAY", ("a",)),
    "timestamp": ("a timestamp(6)", "TIMESTAMP'2020-01-01 00:00:00' + INTERVAL seq * 7 MICROSECOND", ("a",)),
    "time": ("a time(3)", "SEC_TO_TIME(CAST(seq AS signed) * 100 - 9000)", ("a",)),
    "year": ("a year, b int", "2000 + seq MOD 5, seq", ("a", "b")),
    "bit": ("a bit(40)", "seq * 99999", ("a",)),
    "inet6": ("a inet6", "CONCAT('fe80::', HEX(seq))", ("a",)),
}


@pytest.mark.parametrize("key", KEYS)
def test_chunks_tile_whatever_the_key_is(key: str, mariadb_database: Server, database: MySQL) -> None:
    columns, values, names = KEYS[key]
    mariadb_database.execute(f"CREATE TABLE things ({columns}, PRIMARY KEY ({', '.join(names)}))")
    mariadb_database.execute(f"INSERT INTO things SELECT {values.replace('%', '%%')} FROM seq_1_to_200", [])
    tiled = tile(database, "things", names, 30)
    assert [len(chunk) for chunk in tiled.chunks] == [30] * 6 + [20]
    assert len(set(tiled.rows)) == 200
    assert tiled.queries <= most_queries(200, 30)


@pytest.fixture
def hot(mariadb_database: Server) -> Server:
    """A table most of whose rows were changed in one and the same second."""
    mariadb_database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, updated_at datetime NOT NULL, note varchar(50), "
        "KEY (updated_at))"
    )
    mariadb_database.execute(
        "INSERT INTO orders SELECT seq, IF(seq <= 1000, '2026-01-01', IF(seq <= 21000, '2026-01-02', "
        "'2026-01-03')), REPEAT('x', 50) FROM seq_1_to_22000"
    )
    mariadb_database.execute("ANALYZE TABLE orders")
    return mariadb_database


def handler_reads(database: MySQL) -> int:
    return sum(int(count) for _, count in database.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_a_jump_inside_a_hot_second_walks_over_the_rows_it_skips_and_no_others(
    hot: Server, database: MySQL
) -> None:
    source = SqlSource(database)
    orders = source.table("orders")
    second = reading("2026-01-02")
    for high in (None, Position.of(reading("2026-01-03"), 22000), Position.of(second, 21000)):
        database.rows("FLUSH STATUS")
        window = Window(Position.of(second, 15000), high)
        assert source.nth(orders, ("updated_at", "id"), window, 1000) == Position.of(second, 16000)
        assert handler_reads(database) < 1100


def test_all_timestamps_equal_are_cut_by_id_without_walking_in_squares(hot: Server, database: MySQL) -> None:
    source = SqlSource(database)
    orders = source.table("orders")
    database.rows("FLUSH STATUS")
    tiled = tile(database, "orders", ("updated_at", "id"), 1000)
    assert sorted(len(chunk) for chunk in tiled.chunks) == [0] + [1000] * 22
    assert len(set(tiled.rows)) == 22000
    assert tiled.queries <= most_queries(22000, 1000)
    assert handler_reads(database) < 4 * 22000
    assert source.count(orders, ("updated_at", "id"), Window(tiled.cuts[3], tiled.cuts[7])) == 4000


def test_a_filter_holds_for_counts_cuts_and_chunks(mariadb_database: Server, mariadb_source: Source) -> None:
    mariadb_database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    mariadb_database.execute("INSERT INTO orders SELECT seq, IF(seq MOD 2, 'odd', 'even') FROM seq_1_to_100")
    relation = mariadb_source.table("orders", filter="note = 'odd' OR note = 'x' -- only these")
    window = Window(Position.of(10), Position.of(60))
    assert mariadb_source.count(relation, ("id",), window) == 25
    assert mariadb_source.nth(relation, ("id",), window, 25) == Position.of(59)
    read = mariadb_source.chunk(relation, ("id",), window, positions=(), order=("id",))
    assert mariadb_database.execute(f"SELECT count(*) FROM {read.relation} WHERE {read.where}") == [(25,)]


def test_rows_without_a_cursor_value_are_counted_and_in_no_window(
    mariadb_database: Server, mariadb_source: Source
) -> None:
    mariadb_database.execute("CREATE TABLE orders (at datetime, id int)")
    mariadb_database.execute(
        "INSERT INTO orders VALUES (NULL, 1), ('2026-01-01', NULL), ('2026-01-01', 3), (NULL, NULL)"
    )
    orders = mariadb_source.table("orders")
    assert mariadb_source.null_cursors(orders, Cursor("at", "id")) == 3
    assert mariadb_source.null_cursors(orders, Cursor("at")) == 2
    assert mariadb_source.count(orders, ("at", "id"), Window(None, None)) == 1
    only = Position.of(reading("2026-01-01"), 3)
    assert mariadb_source.nth(orders, ("at", "id"), Window(None, None), 1) == only


def test_a_date_that_is_none_has_no_place_in_an_order(
    mariadb_database: Server, mariadb_source: Source
) -> None:
    mariadb_database.execute("CREATE TABLE orders (at datetime NOT NULL)")
    with closing(mariadb_database.connect(autocommit=True)) as connection:
        connection.cursor().execute("SET sql_mode = ''")
        connection.cursor().execute("INSERT INTO orders VALUES ('0000-00-00')")
    with pytest.raises(LossyValue, match="0000-00-00"):
        mariadb_source.nth(mariadb_source.table("orders"), ("at",), Window(None, None), 1)


def test_a_column_without_an_exact_order_cannot_cut(mariadb_database: Server, mariadb_source: Source) -> None:
    mariadb_database.execute("CREATE TABLE things (a double PRIMARY KEY)")
    with pytest.raises(SourceError, match="no exact order"):
        mariadb_source.nth(mariadb_source.table("things"), ("a",), Window(None, None), 1)


# --- values -----------------------------------------------------------------

VALUES: st.SearchStrategy[tuple[str, Value]] = st.one_of(
    st.tuples(st.just("longtext"), st.text(max_size=60)),
    st.tuples(st.just("longtext"), st.text("\\'\"%`\n\0;-#/*", max_size=20)),
    st.tuples(st.just("longblob"), st.binary(max_size=60)),
    st.tuples(st.just("bigint"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("bigint unsigned"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("decimal(65,30)"), st.decimals(-(10**30), 10**30, places=10)),
    st.tuples(st.just("date"), st.dates(date(1000, 1, 1))),
    st.tuples(st.just("datetime(6)"), st.datetimes(reading("1000-01-01"))),
    st.tuples(
        st.just("timestamp(6)"),
        st.datetimes(reading("1971-01-01"), reading("2037-12-31"), timezones=st.just(UTC)),
    ),
)


@pytest.fixture
def mirror(mariadb_database: Server, database: MySQL) -> Iterator[tuple[Connection, SqlSource]]:
    """A row with a column of each type that values are made for, somebody who writes it, and the source."""
    types = ("longtext", "longblob", "bigint", "bigint unsigned", "decimal(65,30)", "date", "datetime(6)")
    columns = ", ".join(f"`{kind}` {kind}" for kind in types)
    mariadb_database.execute(
        f"CREATE TABLE mirror (id int PRIMARY KEY, {columns}, `timestamp(6)` timestamp(6) NULL) "
        "COLLATE utf8mb4_nopad_bin"
    )
    mariadb_database.execute("INSERT INTO mirror (id) VALUES (1)")
    with closing(mariadb_database.connect(autocommit=True)) as connection:
        yield connection, SqlSource(database)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pair=VALUES)
def test_what_is_written_as_a_literal_comes_back_as_it_was(
    pair: tuple[str, Value], mirror: tuple[Connection, SqlSource]
) -> None:
    kind, value = pair
    writer, source = mirror
    writer.cursor().execute(f"UPDATE mirror SET `{kind}` = {source.literal(value)}")
    relation = source.table("mirror")
    position = source.nth(relation, (kind,), Window(None, Position.of(value)), 1)
    assert position == Position.of(value)
    assert type(position.values[0]) is type(value)
    assert source.count(relation, (kind,), Window(Position.of(value), None)) == 0


def test_a_position_with_half_a_character_is_an_error_in_words(
    mariadb_database: Server, opened: Opened
) -> None:
    mariadb_database.execute("CREATE TABLE things (a varchar(9) CHARACTER SET utf8mb4 PRIMARY KEY)")
    mariadb_database.execute("INSERT INTO things VALUES (X'61EDA0BD')")
    source = opened(mariadb_database)
    with pytest.raises(SourceError, match=r"a text is no UTF-8: b'a\\xed"):
        source.nth(source.table("things"), ("a",), Window(None, None), 1)
