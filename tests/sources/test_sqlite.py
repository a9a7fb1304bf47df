"""SQLite as a source."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.tiling import most_queries, tile
from tidegate.core.errors import ConnectError, LossyValue, SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import Cursor
from tidegate.core.types import DataType, Kind
from tidegate.core.windows import Window
from tidegate.sources.sql import SqlSource
from tidegate.sources.sqlite import SQLite

reading = datetime.fromisoformat
Run = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shöp ?#%.db"


@pytest.fixture
def run(path: Path) -> Run:
    def run_(*statements: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    run_("CREATE TABLE unrelated (a)")
    return run_


@pytest.fixture
def database(path: Path) -> Iterator[SQLite]:
    with closing(SQLite(str(path))) as database:
        yield database


@pytest.fixture
def source(database: SQLite) -> SqlSource:
    return SqlSource(database)


KINDS: dict[str, DataType] = {
    "integer": DataType(Kind.INT64),
    "bigint unsigned": DataType(Kind.INT64),
    "real": DataType(Kind.FLOAT64),
    "double precision": DataType(Kind.FLOAT64),
    "text": DataType(Kind.TEXT),
    "varchar(20)": DataType(Kind.TEXT),
    "blob": DataType(Kind.BYTES),
    "boolean": DataType(Kind.BOOL),
    "decimal(10,2)": DataType(Kind.DECIMAL, 10, 2),
    "numeric(5)": DataType(Kind.DECIMAL, 5, 0),
    "decimal(50,2)": DataType(Kind.TEXT),
    "numeric": DataType(Kind.TEXT),
    "date": DataType(Kind.DATE),
    "datetime": DataType(Kind.TIMESTAMP, 6),
    "timestamp": DataType(Kind.TIMESTAMP, 6),
    "json": DataType(Kind.JSON),
    "time": DataType(Kind.TEXT),
}


# --- what there is ----------------------------------------------------------


def test_declared_types_are_taken_at_their_word(run: Run, source: SqlSource) -> None:
    columns = ", ".join(f'"{native}" {native}' for native in KINDS)
    run(f"CREATE TABLE things ({columns})")
    assert {c.name: c.type for c in source.schema("things").columns} == KINDS
    queried = source.query("q", "SELECT * FROM things -- all of them").schema
    kept = {"decimal(10,2)", "numeric(5)", "decimal(50,2)"}  # a view tells affinities, not sizes
    assert {c.name: c.type for c in queried.columns if c.name not in kept} == {
        name: kind for name, kind in KINDS.items() if name not in kept
    }


def test_what_is_not_declared_is_judged_by_what_is_there(run: Run, source: SqlSource) -> None:
    run(
        "CREATE TABLE things (a, b, c, d, e)",
        "INSERT INTO things VALUES (1, 1.5, 'x', x'00', NULL), (2, 2, 3, x'01', NULL)",
    )
    kinds = [c.type.kind for c in source.schema("things").columns]
    assert kinds == [Kind.INT64, Kind.FLOAT64, Kind.TEXT, Kind.BYTES, Kind.TEXT]
    queried = source.query("q", "SELECT count(*) AS n, upper(c) AS u FROM things GROUP BY c").schema
    assert [c.type.kind for c in queried.columns] == [Kind.INT64, Kind.TEXT]


def test_keys_views_and_generated_columns(run: Run, source: SqlSource) -> None:
    run(
        "CREATE TABLE things (a int NOT NULL, b int NOT NULL, c int AS (a + b), PRIMARY KEY (b, a))",
        "CREATE TABLE rows (id integer PRIMARY KEY, note text)",
        "CREATE VIEW shown AS SELECT id, note FROM rows",
    )
    assert (source.schema("things").names, source.schema("things").key) == (("a", "b", "c"), ("b", "a"))
    assert [c.nullable for c in source.schema("rows").columns] == [False, True]
    assert source.schema("shown").key == ()
    assert source.tables() == ["rows", "things", "unrelated"]


def test_a_key_that_holds_null_is_no_key(run: Run, source: SqlSource) -> None:
    run("CREATE TABLE things (a text PRIMARY KEY)", "INSERT INTO things VALUES ('x')")
    assert source.schema("things").key == ("a",)
    run("INSERT INTO things VALUES (NULL)")
    assert source.schema("things").key == ()


def test_a_missing_table_is_named_with_the_nearest_ones(run: Run, source: SqlSource) -> None:
    run("CREATE TABLE orders (id integer PRIMARY KEY)")
    with pytest.raises(SourceError, match=r"no table `order`.*did you mean `orders`"):
        source.schema("order")


def test_a_file_that_is_not_there_or_not_a_database_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="no such file"):
        SQLite(str(tmp_path / "missing.db")).tables()
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text.db").write_text("This is not a database, and it is long enough to be read. " * 20)
    with pytest.raises(ConnectError, match="not an SQLite database"):
        SQLite(str(tmp_path / "text.db")).tables()


def test_sessions_cannot_write(run: Run, database: SQLite) -> None:
    with pytest.raises(SourceError, match="readonly"):
        database.rows("INSERT INTO unrelated VALUES (1)")


# --- cutting ----------------------------------------------------------------

KEYS = {
    "composite": ("a int NOT NULL, b int NOT NULL, c int NOT NULL", "n % 3, n % 7, n", ("a", "b", "c")),
    "far apart": ("a integer", "CASE WHEN n < 100 THEN -n ELSE n * 9000000000 END", ("a",)),
    "text": ("a text", "'''%' || n", ("a",)),
    "case-insensitive": ("a text COLLATE NOCASE, b int", "substr('aAbB', 1 + n % 4, 1), n", ("a", "b")),
    "bytes": ("a blob", "randomblob(16)", ("a",)),
    "timestamp": ("a timestamp", "datetime('2020-01-01', n || ' seconds')", ("a",)),
    "date": ("a date", "date('2020-01-01', n || ' days')", ("a",)),
    "mixed": ("a", "CASE n % 3 WHEN 0 THEN n WHEN 1 THEN 't' || n ELSE randomblob(9) END", ("a",)),
}


@pytest.mark.parametrize("key", KEYS)
def test_chunks_tile_whatever_the_key_is(key: str, run: Run, database: SQLite) -> None:
    columns, values, names = KEYS[key]
    run(
        f"CREATE TABLE things ({columns}, PRIMARY KEY ({', '.join(names)}))",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 200) "
        f"INSERT INTO things SELECT {values} FROM s",
    )
    tiled = tile(database, "things", names, 30)
    assert [len(chunk) for chunk in tiled.chunks] == [30] * 6 + [20]
    assert len(set(tiled.rows)) == 200
    assert tiled.queries <= most_queries(200, 30)


def test_a_jump_inside_a_hot_second_walks_over_the_rows_it_skips_and_no_others(
    run: Run, path: Path, database: SQLite
) -> None:
    run(
        "CREATE TABLE orders (id integer PRIMARY KEY, updated_at timestamp NOT NULL)",
        "CREATE INDEX by_time ON orders (updated_at)",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 22000) INSERT INTO orders "
        "SELECT n, date('2026-01-01', ((n > 1000) + (n > 21000)) || ' days') || ' 00:00:00' FROM s",
    )
    source = SqlSource(database)
    orders = source.table("orders")
    second = reading("2026-01-02")
    for high in (None, Position.of(reading("2026-01-03"), 22000), Position.of(second, 21000)):
        window = Window(Position.of(second, 15000), high)
        assert source.nth(orders, ("updated_at", "id"), window, 1000) == Position.of(second, 16000)
        [query] = database.in_order(orders, orders.schema.columns[::-1], window)[:1]
        with closing(sqlite3.connect(path)) as connection:
            plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT id FROM orders WHERE {query}").fetchall()
        assert "updated_at=? AND rowid>?" in plan[0][-1]
    tiled = tile(database, "orders", ("updated_at", "id"), 1000)
    assert len(set(tiled.rows)) == 22000
    assert tiled.queries <= most_queries(22000, 1000) + 2  # the form of the timestamps is looked at


def test_rows_without_a_cursor_value_are_counted_and_in_no_window(run: Run, source: SqlSource) -> None:
    run(
        "CREATE TABLE orders (at timestamp, id int)",
        "INSERT INTO orders VALUES (NULL, 1), ('2026-01-01 00:00:00', NULL), ('2026-01-01 00:00:00', 3)",
    )
    orders = source.table("orders")
    assert source.null_cursors(orders, Cursor("at", "id")) == 2
    assert source.count(orders, ("at", "id"), Window(None, None)) == 1


# --- timestamps are text ----------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "three"),
    [
        ("2026-01-01 00:00:00", "2026-01-01 00:00:01", "2026-01-01 00:00:02"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:01", "2026-01-01T00:00:02"),
        ("2026-01-01 00:00:00.000", "2026-01-01 00:00:01.500", "2026-01-01 00:00:02.999"),
        ("2026-01-01T00:00:00.000000", "2026-01-01T00:00:01.000001", "2026-01-01T00:00:02.999999"),
        ("2026-01-01 00:00:00", "2026-01-01 00:00:00.000001", "2026-01-01 00:00:01"),
    ],
)
def test_positions_are_compared_in_the_form_the_column_is_written_in(
    one: str, two: str, three: str, run: Run, source: SqlSource
) -> None:
    run(
        "CREATE TABLE orders (at timestamp NOT NULL)",
        f"INSERT INTO orders VALUES ('{one}'), ('{two}'), ('{three}')",
    )
    orders = source.table("orders")
    positions = [source.nth(orders, ("at",), Window(None, None), n) for n in (1, 2, 3)]
    assert positions == [Position.of(reading(text)) for text in (one, two, three)]
    first, second, third = positions
    assert source.count(orders, ("at",), Window(first, third)) == 2
    assert source.count(orders, ("at",), Window(first, second)) == 1
    assert source.count(orders, ("at",), Window(third, None)) == 0


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("2026-01-01 00:00:00", "2026-01-01T00:00:00"),
        ("2026-01-01 00:00:00", "2026-01-01 00:00:00.5"),
        ("2026-01-01 00:00:00.500", "2026-01-01 00:00:00.500000"),
    ],
)
def test_two_forms_in_one_column_are_refused_with_an_example_of_each(
    one: str, two: str, run: Run, source: SqlSource
) -> None:
    run("CREATE TABLE orders (at timestamp NOT NULL)", f"INSERT INTO orders VALUES ('{one}'), ('{two}')")
    with pytest.raises(SourceError, match="two forms") as caught:
        source.count(source.table("orders"), ("at",), Window(Position.of(reading("2026-01-01")), None))
    assert one in str(caught.value)
    assert two in str(caught.value)


@pytest.mark.parametrize(
    "value", ["'yesterday'", "1767225600", "'2026-01-01 00:00:00Z'", "'2026-01-01'", "x'00'"]
)
def test_what_is_no_timestamp_is_not_guessed_at(value: str, run: Run, source: SqlSource) -> None:
    run("CREATE TABLE orders (at timestamp NOT NULL)", f"INSERT INTO orders VALUES ({value})")
    with pytest.raises(LossyValue, match="timestamp promises"):
        source.count(source.table("orders"), ("at",), Window(Position.of(reading("2026-01-01")), None))


# --- values -----------------------------------------------------------------

VALUES: st.SearchStrategy[tuple[str, Value]] = st.one_of(
    st.tuples(st.just("text"), st.text(st.characters(codec="utf-8"), max_size=60)),
    st.tuples(st.just("text"), st.text("\\'\"%`\n\0;-/*", max_size=20)),
    st.tuples(st.just("blob"), st.binary(max_size=60)),
    st.tuples(st.just("integer"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("decimal(12,2)"), st.decimals(-(10**9), 10**9, places=2)),
    st.tuples(st.just("date"), st.dates(date(1, 1, 1))),
    st.tuples(st.just("timestamp"), st.datetimes()),
)


@pytest.fixture
def mirror(run: Run, path: Path, source: SqlSource) -> Iterator[tuple[Any, SqlSource]]:
    types = ("text", "blob", "integer", "decimal(12,2)", "date", "timestamp")
    columns = ", ".join(f'"{kind}" {kind}' for kind in types)
    run(f"CREATE TABLE mirror (id integer PRIMARY KEY, {columns})", "INSERT INTO mirror (id) VALUES (1)")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection, source


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pair=VALUES)
def test_what_is_written_as_a_literal_comes_back_as_it_was(
    pair: tuple[str, Value], mirror: tuple[sqlite3.Connection, SqlSource]
) -> None:
    kind, value = pair
    writer, source = mirror
    writer.execute(f'UPDATE mirror SET "{kind}" = {source.literal(value)}')
    relation = source.table("mirror")
    position = source.nth(relation, (kind,), Window(None, None), 1)
    assert position == Position.of(value)
    assert source.count(relation, (kind,), Window(None, Position.of(value))) == 1
    assert source.count(relation, (kind,), Window(Position.of(value), None)) == 0
    assert isinstance(position.values[0], Decimal) == isinstance(value, Decimal)
