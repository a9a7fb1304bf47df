"""PostgreSQL as a source: what there is, how it is cut, how values are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Connection, Server
from tests.sources.conftest import Opened
from tests.sources.readers.reading import whole
from tests.sources.tiling import most_queries, tile
from tidegate.core.errors import ConnectError, LossyValue, SourceBusy, SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import Cursor
from tidegate.core.types import DataType, Kind
from tidegate.core.windows import Window
from tidegate.reach.login import Login
from tidegate.sources.contract import Relation, Source
from tidegate.sources.postgresql import PostgreSQL
from tidegate.sources.sql import SqlSource

reading = datetime.fromisoformat

TEXT = DataType(Kind.TEXT)
KINDS: dict[str, DataType] = {
    "smallint": DataType(Kind.INT16),
    "integer": DataType(Kind.INT32),
    "bigint": DataType(Kind.INT64),
    "numeric(10,2)": DataType(Kind.DECIMAL, 10, 2),
    "numeric(38,0)": DataType(Kind.DECIMAL, 38, 0),
    "numeric(3,5)": DataType(Kind.DECIMAL, 5, 5),
    "numeric(3,-2)": DataType(Kind.DECIMAL, 5, 0),
    "numeric(39,2)": TEXT,
    "numeric": TEXT,
    "real": DataType(Kind.FLOAT32),
    "double precision": DataType(Kind.FLOAT64),
    "boolean": DataType(Kind.BOOL),
    "text": TEXT,
    "character varying(20)": DataType(Kind.TEXT, length=20),
    "character(5)": DataType(Kind.TEXT, length=5),
    "bytea": DataType(Kind.BYTES),
    "date": DataType(Kind.DATE),
    "time(3) without time zone": DataType(Kind.TIME, 3),
    "time with time zone": TEXT,
    "timestamp without time zone": DataType(Kind.TIMESTAMP, 6),
    "timestamp(0) without time zone": DataType(Kind.TIMESTAMP, 0),
    "timestamp(3) with time zone": DataType(Kind.INSTANT, 3),
    "uuid": DataType(Kind.UUID),
    "json": DataType(Kind.JSON),
    "jsonb": DataType(Kind.JSON),
    "integer[]": TEXT,
    "int4range": TEXT,
    "interval": TEXT,
    "inet": TEXT,
    "money": TEXT,
    "xml": TEXT,
    "bit(3)": TEXT,
    "point": TEXT,
    "mood": TEXT,
    "pair": TEXT,
}


def login(server: Server) -> Login:
    return Login(server.host, server.port, server.database, server.user, server.password)


@pytest.fixture
def database(postgres_database: Server) -> Iterator[PostgreSQL]:
    with closing(PostgreSQL(login(postgres_database))) as database:
        yield database


# --- what there is ----------------------------------------------------------


@pytest.fixture
def things(postgres_database: Server) -> Server:
    columns = ", ".join(f'"{native}" {native}' for native in KINDS)
    postgres_database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    postgres_database.execute("CREATE TYPE pair AS (a int, b int)")
    postgres_database.execute(f"CREATE TABLE things ({columns})")
    return postgres_database


def test_every_type_is_mapped(things: Server, postgres_source: Source) -> None:
    schema = postgres_source.schema("things")
    assert {column.name: column.type for column in schema.columns} == KINDS
    assert {column.native for column in schema.columns} == KINDS.keys() - {"mood"} | {"enum('sad','ok')"}


def test_a_query_has_the_types_its_columns_have(things: Server, postgres_source: Source) -> None:
    schema = postgres_source.query("q", "SELECT * FROM things -- all of them").schema
    assert {column.name: column.type for column in schema.columns} == KINDS


def test_a_domain_is_the_type_it_is_made_from(postgres_database: Server, postgres_source: Source) -> None:
    for sql in (
        "CREATE DOMAIN price AS numeric(12,3) CHECK (VALUE >= 0)",
        "CREATE DOMAIN good_price AS price",
        "CREATE DOMAIN email AS varchar(50)",
        "CREATE TABLE things (a good_price, b email)",
    ):
        postgres_database.execute(sql)
    assert [(c.type, c.native) for c in postgres_source.schema("things").columns] == [
        (DataType(Kind.DECIMAL, 12, 3), "numeric(12,3)"),
        (DataType(Kind.TEXT, length=50), "character varying(50)"),
    ]


def test_the_key_is_in_its_own_order(postgres_database: Server, postgres_source: Source) -> None:
    postgres_database.execute("CREATE TABLE things (a int, gone int, b int, c int, PRIMARY KEY (c, a))")
    postgres_database.execute("ALTER TABLE things DROP COLUMN gone")
    schema = postgres_source.schema("things")
    assert (schema.names, schema.key) == (("a", "b", "c"), ("c", "a"))
    assert [column.nullable for column in schema.columns] == [False, True, False]


def test_tables_are_listed_and_views_are_read_like_tables(
    postgres_database: Server, postgres_source: Source
) -> None:
    for sql in (
        "CREATE TABLE plain (a int PRIMARY KEY)",
        'CREATE TABLE "odd.name" (a int)',
        "CREATE TABLE parts (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE VIEW shown AS SELECT a FROM plain",
        "CREATE SCHEMA other",
        "CREATE TABLE other.away (b int)",
    ):
        postgres_database.execute(sql)
    assert postgres_source.tables() == ["other.away", "odd.name", "parts", "plain"]
    assert postgres_source.schema("odd.name").names == ("a",)
    assert postgres_source.schema("other.away").names == ("b",)
    assert (postgres_source.schema("shown").names, postgres_source.schema("shown").key) == (("a",), ())


def test_names_may_hold_anything(postgres_database: Server, database: PostgreSQL) -> None:
    postgres_database.execute(
        'CREATE TABLE "se""lect %s {x}" ("o\'r""d`er %d {y}" int PRIMARY KEY, "ünï 😀" int)'
    )
    postgres_database.execute('INSERT INTO "se""lect %s {x}" VALUES (1, 2), (3, 4), (5, 6)')
    tiled = tile(database, 'se"lect %s {x}', ("o'r\"d`er %d {y}",), 1)
    assert tiled.chunks == [[(1,)], [(3,)], [(5,)], []]


def test_a_missing_table_is_named_with_the_nearest_ones(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match=r"no table `order`.*did you mean `orders`"):
        postgres_source.schema("order")


# --- errors -----------------------------------------------------------------


def test_a_wrong_password_is_said_in_words(postgres: Server, opened: Opened) -> None:
    with pytest.raises(ConnectError) as caught:
        opened(postgres.logged_in_as(postgres.user, "wrong-secret")).tables()
    assert caught.value.exit_code == 5
    assert f"refused the login of user `{postgres.user}`" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


def _read(source: Source, things: Relation) -> object:
    return list(source.reader().read(whole(things), batch_rows=10))


def _count(source: Source, things: Relation) -> object:
    return source.count(replace(things, filter="c = 1"), ("id",), Window(None, None))


@pytest.mark.parametrize("ask", [_read, _count])
def test_a_read_that_a_standby_cuts_short_is_worth_another_try(
    postgres_database: Server, postgres_source: Source, ask: Callable[[Source, Relation], object]
) -> None:
    """A conflict with recovery cannot be had for the asking; the server can be told to say the same."""
    postgres_database.execute(
        "CREATE FUNCTION cut() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'canceling statement due to conflict with recovery' USING ERRCODE = '40001'; END $$"
    )
    postgres_database.execute("CREATE VIEW things AS SELECT 1 AS id, cut() AS c")
    with pytest.raises(SourceBusy, match="hot_standby_feedback") as caught:
        ask(postgres_source, postgres_source.table("things"))
    assert (caught.value.transient, caught.value.exit_code) == (True, 1)


def test_an_unknown_database_is_said_in_words(postgres: Server, opened: Opened) -> None:
    with pytest.raises(ConnectError, match="no database `no_such_database`"):
        opened(postgres.using("no_such_database")).tables()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_unreachable_server_is_said_in_words(host: str) -> None:
    with closing(PostgreSQL(Login(host, 1, "shop", "me", "secret"))) as database:
        with pytest.raises(ConnectError, match="cannot reach the server") as caught:
            database.tables()
        assert "secret" not in str(caught.value)


def test_a_table_that_may_not_be_read_is_an_error_with_the_grant(
    postgres_database: Server, opened: Opened
) -> None:
    role = f"narrow_{postgres_database.database}"
    postgres_database.execute("CREATE TABLE secrets (id int PRIMARY KEY)")
    postgres_database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    source = opened(postgres_database.logged_in_as(role, "secret"))
    with pytest.raises(SourceError, match="GRANT SELECT"):
        source.count(source.table("secrets"), ("id",), Window(None, None))


def test_sessions_cannot_write_and_take_one_statement_at_a_time(
    postgres_database: Server, database: PostgreSQL
) -> None:
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match="read-only"):
        database.rows("INSERT INTO orders VALUES (1)")
    with pytest.raises(SourceError, match="multiple commands"):
        database.rows("SELECT 1; SELECT 2")


def test_settings_of_the_role_do_not_change_what_is_read(
    postgres_database: Server, database: PostgreSQL
) -> None:
    name = postgres_database.database
    for setting in ("TimeZone = 'Asia/Tokyo'", "DateStyle = 'German'", "bytea_output = 'escape'"):
        postgres_database.execute(f"ALTER DATABASE {name} SET {setting}")
    rows = database.rows("SELECT '2026-01-31 00:00Z'::timestamptz::text, '2026-01-31'::date::text")
    assert rows == [("2026-01-31 00:00:00+00", "2026-01-31")]


# --- cutting ----------------------------------------------------------------

KEYS = {
    "composite": ("a int, b int, c int", "s % 3, s % 7, s", ("a", "b", "c")),
    "negative and far apart": ("a bigint", "CASE WHEN s < 100 THEN -s ELSE s * 9000000000 END", ("a",)),
    "uuid": ("a uuid", "gen_random_uuid()", ("a",)),
    "text": ("a text", "E'\\\\%''' || s", ("a",)),
    "padded text": ("a char(9)", "s", ("a",)),
    "enum": ("a mood, b int", "(ARRAY['sad', 'ok', 'gone'])[1 + s % 3]::mood, s", ("a", "b")),
    "bytes": ("a bytea", "decode(md5(s::text), 'hex')", ("a",)),
    "decimal": ("a numeric(20,5)", "s / 7.0 - 10", ("a",)),
    "any decimal": ("a numeric", "s / 7.0 - 10", ("a",)),
    "date": ("a date", "date '2020-01-01' + s", ("a",)),
    "timestamp": ("a timestamp", "timestamp '2020-01-01' + s * interval '7 microseconds'", ("a",)),
    "instant": ("a timestamptz", "timestamptz '2020-01-01Z' + s * interval '7 microseconds'", ("a",)),
    "time": ("a time, b int", "time '00:00' + s % 5 * interval '1 hour', s", ("a", "b")),
    "boolean": ("a boolean, b int", "s % 2 = 0, s", ("a", "b")),
    "inet": ("a inet", "'10.0.0.0'::inet + s", ("a",)),
}


@pytest.mark.parametrize("key", KEYS)
def test_chunks_tile_whatever_the_key_is(key: str, postgres_database: Server, database: PostgreSQL) -> None:
    columns, values, names = KEYS[key]
    postgres_database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'gone')")
    postgres_database.execute(f"CREATE TABLE things ({columns}, PRIMARY KEY ({', '.join(names)}))")
    postgres_database.execute(f"INSERT INTO things SELECT {values} FROM generate_series(1, 200) s")
    tiled = tile(database, "things", names, 30)
    assert [len(chunk) for chunk in tiled.chunks] == [30] * 6 + [20]
    assert len(set(tiled.rows)) == 200
    assert tiled.queries <= most_queries(200, 30)


def test_a_jump_inside_a_hot_second_walks_over_the_rows_it_skips_and_no_others(
    postgres_database: Server, database: PostgreSQL
) -> None:
    postgres_database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, updated_at timestamp NOT NULL)")
    postgres_database.execute(
        "INSERT INTO orders SELECT s, timestamp '2026-01-01' + (s > 1000)::int * interval '1 day' "
        "+ (s > 21000)::int * interval '1 day' FROM generate_series(1, 22000) s"
    )
    postgres_database.execute("CREATE INDEX ON orders (updated_at, id)")
    postgres_database.execute("VACUUM ANALYZE orders")
    source = SqlSource(database)
    window = Window(Position.of(reading("2026-01-02"), 15000), Position.of(reading("2026-01-03"), 22000))
    orders = source.table("orders")
    assert source.nth(orders, ("updated_at", "id"), window, 1000) == Position.of(reading("2026-01-02"), 16000)
    read = source.chunk(orders, ("id",), window, positions=(), order=("updated_at", "id"))
    plan = database.rows(
        f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT id FROM {read.relation} WHERE {read.where} "
        "ORDER BY updated_at, id LIMIT 1 OFFSET 999"
    )
    text = "\n".join(line for (line,) in plan)
    assert "actual rows=1000" in text
    assert "Rows Removed" not in text
    tiled = tile(database, "orders", ("updated_at", "id"), 1000)
    assert len(set(tiled.rows)) == 22000
    assert tiled.queries <= most_queries(22000, 1000)


def test_the_order_is_that_of_the_column_not_of_its_text(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    postgres_database.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
    orders = postgres_source.table("orders")
    assert postgres_source.nth(orders, ("id",), Window(None, None), 500) == Position.of(500)


def test_a_filter_holds_for_counts_cuts_and_chunks(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    postgres_database.execute(
        "INSERT INTO orders "
        "SELECT s, CASE WHEN s % 2 = 1 THEN 'odd' ELSE 'even' END FROM generate_series(1, 100) s"
    )
    relation = postgres_source.table("orders", filter="note = 'odd' OR note = 'x' -- only these")
    window = Window(Position.of(10), Position.of(60))
    assert postgres_source.count(relation, ("id",), window) == 25
    assert postgres_source.nth(relation, ("id",), window, 25) == Position.of(59)


def test_rows_without_a_cursor_value_are_counted_and_in_no_window(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE orders (at timestamp, id int)")
    postgres_database.execute(
        "INSERT INTO orders VALUES (NULL, 1), ('2026-01-01', NULL), ('2026-01-01', 3), (NULL, NULL)"
    )
    orders = postgres_source.table("orders")
    assert postgres_source.null_cursors(orders, Cursor("at", "id")) == 3
    assert postgres_source.count(orders, ("at", "id"), Window(None, None)) == 1
    only = Position.of(reading("2026-01-01"), 3)
    assert postgres_source.nth(orders, ("at", "id"), Window(None, None), 1) == only


@pytest.mark.parametrize(
    ("kind", "value"), [("timestamp", "-infinity"), ("date", "0044-03-15 BC"), ("numeric(9,2)", "NaN")]
)
def test_a_value_that_is_no_moment_or_number_has_no_place_in_an_order(
    kind: str, value: str, postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute(f"CREATE TABLE orders (at {kind} NOT NULL)")
    postgres_database.execute("INSERT INTO orders VALUES (%s)", [value])
    with pytest.raises(LossyValue, match=value):
        postgres_source.nth(postgres_source.table("orders"), ("at",), Window(None, None), 1)


# --- snapshots --------------------------------------------------------------


def test_a_snapshot_is_one_picture_for_all_who_read(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    postgres_database.execute("INSERT INTO orders VALUES (1)")
    with postgres_source.snapshot() as snapshot:
        postgres_database.execute("INSERT INTO orders VALUES (2)")
        with closing(postgres_database.connect(autocommit=True)) as reader:
            cursor = reader.cursor()
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            cursor.execute("SELECT id FROM orders")
            assert cursor.fetchall() == [(1,)]
    assert postgres_database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    ) == [(0,)]


# --- values -----------------------------------------------------------------

VALUES: st.SearchStrategy[tuple[str, Value]] = st.one_of(
    st.tuples(st.just("text"), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=60)),
    st.tuples(st.just("text"), st.text("\\'\"%`\n;-E$/*", max_size=20)),
    st.tuples(st.just("bytea"), st.binary(max_size=60)),
    st.tuples(st.just("bigint"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("numeric(38,10)"), st.decimals(-(10**27), 10**27, places=10)),
    st.tuples(st.just("date"), st.dates(date(1, 1, 1))),
    st.tuples(st.just("timestamp"), st.datetimes()),
    st.tuples(st.just("timestamptz"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("uuid"), st.uuids().map(str)),
)


@pytest.fixture
def mirror(postgres_database: Server, database: PostgreSQL) -> Iterator[tuple[Connection, SqlSource]]:
    """A row with a column of each type that values are made for, somebody who writes it, and the source."""
    types = ("text", "bytea", "bigint", "numeric(38,10)", "date", "timestamp", "timestamptz", "uuid")
    columns = ", ".join(f'"{kind}" {kind}' for kind in types)
    postgres_database.execute(f"CREATE TABLE mirror (id int PRIMARY KEY, {columns})")
    postgres_database.execute("INSERT INTO mirror (id) VALUES (1)")
    with closing(postgres_database.connect(autocommit=True)) as connection:
        connection.cursor().execute("SET standard_conforming_strings = off")
        yield connection, SqlSource(database)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pair=VALUES)
def test_what_is_written_as_a_literal_comes_back_as_it_was(
    pair: tuple[str, Value], mirror: tuple[Connection, SqlSource]
) -> None:
    """Also in a session that reads backslashes the old way."""
    kind, value = pair
    writer, source = mirror
    writer.cursor().execute(f'UPDATE mirror SET "{kind}" = {source.literal(value)}'.encode())
    relation = source.table("mirror")
    position = source.nth(relation, (kind,), Window(None, Position.of(value)), 1)
    assert position == Position.of(value)
    assert type(position.values[0]) is type(value)
    assert source.count(relation, (kind,), Window(Position.of(value), None)) == 0


def test_a_query_is_described_anew_however_often_it_was_before(
    postgres_database: Server, postgres_source: Source
) -> None:
    postgres_database.execute("CREATE TABLE things (id int)")
    for _ in range(10):
        assert postgres_source.query("q", "SELECT * FROM things").schema.names == ("id",)

    postgres_database.execute("ALTER TABLE things ADD COLUMN note text")

    assert postgres_source.query("q", "SELECT * FROM things").schema.names == ("id", "note")
