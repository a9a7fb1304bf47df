"""Data that breaks other tools arrives whole: hostile keys, clocks, names and values."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY, TIMESTAMP_ONLY
from tidegate.core.errors import LossyValue, NullCursor
from tidegate.sources.sql import SqlSource
from tidegate.sources.sqlite import SQLite
from tidegate.sync.parts import Parts
from tidegate.sync.result import TableStatus

CLOCK = {"mysql": "DATETIME(6)", "postgresql": "TIMESTAMP(6)", "sqlite": "DATETIME"}
NOON = "'2025-06-01 12:00:00'"
LATER = "'2025-06-02 12:00:00'"
APPEND = {"write_mode": "append"}
"""Appended tables show every row that comes twice."""


# --- Distributions ---------------------------------------------------------------


@contextmanager
def counted(place: Place, table: str) -> Iterator[Callable[[], int]]:
    """How many statements of a sync name the table, as the server's own log has it."""
    server = place.shop.server
    assert server is not None
    if place.shop.kind == "mysql":
        server.execute("TRUNCATE mysql.general_log")
        server.execute("SET GLOBAL log_output = 'TABLE'")
        server.execute("SET GLOBAL general_log = 1")
        try:
            yield partial(_logged_by_mariadb, place, relation(place, table))
        finally:
            server.execute("SET GLOBAL general_log = 0")
    else:
        server.execute(f"ALTER DATABASE {server.database} SET log_statement = 'all'")
        log = server.folder / "server.log"
        yield partial(_logged_by_postgresql, log, log.stat().st_size, relation(place, table))


def relation(place: Place, table: str) -> str:
    """The table as Tidegate's statements name it."""
    assert place.shop.server is not None
    schema = place.shop.server.database if place.shop.kind == "mysql" else "public"
    return f"{place.shop.quote(schema)}.{place.shop.quote(table)}"


def _logged_by_mariadb(place: Place, relation: str) -> int:
    assert place.shop.server is not None
    rows = place.shop.server.execute(
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log "
        "WHERE command_type IN ('Query', 'Execute')"
    )
    return sum(relation in text for (text,) in rows)


def _logged_by_postgresql(log: Path, size: int, relation: str) -> int:
    with log.open("rb") as file:
        file.seek(size)
        said = file.read().decode()
    statements = [text for text in said.split(" LOG:  ") if text.startswith(("statement:", "execute"))]
    return sum(relation in text for text in statements)


def _crowd(place: Place, rows: int) -> None:
    """Most rows in one second, with a gap of billions in their ids, and a few around it."""
    clock = CLOCK[place.shop.kind]
    place.shop.execute(
        "CREATE TABLE crowd (id BIGINT PRIMARY KEY, filler VARCHAR(20), price DECIMAL(10,2) NOT NULL, "
        f"updated_at {clock} NOT NULL);"
        "CREATE INDEX crowd_cursor ON crowd (updated_at, id)"
    )
    gap = "CASE WHEN n % 2 = 0 THEN 5000000000 * n ELSE -3000000000 * n END"
    place.shop.execute(
        f"INSERT INTO crowd SELECT {gap}, 'hot', n % 5, {NOON} FROM {place.shop.numbers(rows)};"
        "INSERT INTO crowd VALUES (7, 'before', 0, '2025-05-31 00:00:00'), "
        "(8, 'after', 1, '2025-06-01 12:00:01')"
    )


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_hot_second_with_gaps_of_billions_is_cut_by_rows_in_few_queries(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    _crowd(place, 60_000)
    place.configure({"crowd": {**HYBRID, **APPEND}}, processing={"batch_size": 10_000})

    with counted(place, "crowd") as queries:
        result = place.synced()
        assert 7 < queries() <= 2 * 7 + 10

    place.same("crowd", "id", "filler", "price", "updated_at")
    assert result.files_created == 7


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_hot_second_without_ids_travels_as_one_group(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    _crowd(place, 60_000)
    place.configure({"crowd": {**TIMESTAMP_ONLY, **APPEND}}, processing={"batch_size": 1_000})

    with counted(place, "crowd") as queries:
        result = place.synced()
        assert queries() <= 2 * 61 + 10

    place.same("crowd", "id", "filler", "price", "updated_at")
    assert result.files_created == 2


CUSTOM = {
    "cdc_strategy": "custom_sql",
    "cdc_id_column": "id",
    "query": "SELECT id, filler, price, updated_at FROM TABLE WHERE id > {low} AND id <= {high}",
    "write_mode": "append",
}


@pytest.mark.parametrize("strategy", [ID_ONLY, FULL_SYNC, CUSTOM], ids=lambda s: s["cdc_strategy"])
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_ids_with_gaps_of_billions_are_cut_by_rows_in_few_queries(
    build: Build, source: str, strategy: dict[str, str]
) -> None:
    place = build(f"{source}-duckdb")
    _crowd(place, 3_000)
    query = {key: text.replace("TABLE", relation(place, "crowd")) for key, text in strategy.items()}
    place.configure({"crowd": query}, processing={"batch_size": 500})

    with counted(place, "crowd") as queries:
        result = place.synced()
        assert 7 < queries() <= 2 * 7 + 10

    place.same("crowd", "id", "filler", "price", "updated_at")
    assert result.files_created == 7


@pytest.mark.parametrize("strategy", [HYBRID, TIMESTAMP_ONLY, FULL_SYNC], ids=lambda s: s["cdc_strategy"])
def test_rows_whose_timestamps_are_all_equal_arrive_once(build: Build, strategy: dict[str, str]) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(95, step=timedelta(0))
    place.configure({"orders": strategy}, processing={"batch_size": 10})

    assert place.synced().rows_extracted == 95
    place.agree()


IDS = {
    "unsigned ids above 2^63": (
        "mariadb-postgres",
        "BIGINT UNSIGNED",
        [0, 1, 2**32, 9 * 10**9, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2],
        [2**64 - 1],
    ),
    "negative ids": ("mariadb-duckdb", "BIGINT", [-(2**63), -7 * 10**9, -2, -1, 0, 1, 2**40], [2**63 - 1]),
    "negative ids on PostgreSQL": (
        "postgres-duckdb",
        "BIGINT",
        [-(2**63), -7 * 10**9, -2, -1, 0, 1, 2**40],
        [2**63 - 1],
    ),
    "ids of 38 digits": ("postgres-postgres", "NUMERIC(38)", [-(10**37), 0, 1, 2**64], [10**38 - 1]),
}


@pytest.mark.parametrize(("route", "kind", "first", "second"), IDS.values(), ids=IDS.keys())
def test_ids_from_the_edges_of_their_type_arrive_once(
    build: Build, route: str, kind: str, first: list[int], second: list[int]
) -> None:
    place = build(route)
    place.shop.execute(f"CREATE TABLE edges (id {kind} PRIMARY KEY, word VARCHAR(30))")
    place.shop.execute("INSERT INTO edges VALUES (%s, 'first')", [(number,) for number in first])
    place.configure({"edges": {**ID_ONLY, **APPEND}}, processing={"batch_size": 3})
    place.synced()
    place.shop.execute("INSERT INTO edges VALUES (%s, 'second')", [(number,) for number in second])

    assert place.synced().rows_extracted == len(second)

    place.same("edges", "id", "word")


# --- Keys ------------------------------------------------------------------------

KEYS = {
    "CHAR(36)": ("mariadb", "CHAR(36)", str),
    "MariaDB UUID": ("mariadb", "UUID", str),
    "BINARY(16)": ("mariadb", "BINARY(16)", lambda key: key.bytes),
    "PostgreSQL uuid": ("postgres", "uuid", str),
    "PostgreSQL text": ("postgres", "text", lambda key: f"{key}' \\ ü"),
}


@pytest.mark.parametrize(("source", "kind", "write"), KEYS.values(), ids=KEYS.keys())
def test_keys_that_only_the_database_can_order_are_cut_without_gap_or_overlap(
    build: Build, source: str, kind: str, write: Callable[[uuid.UUID], object]
) -> None:
    place = build(f"{source}-duckdb")
    clock = CLOCK[place.shop.kind]
    for table in ("moved", "copied"):
        place.shop.execute(
            f"CREATE TABLE {table} (id {kind} PRIMARY KEY, n INT, updated_at {clock} NOT NULL);"
            f"CREATE INDEX {table}_cursor ON {table} (updated_at, id)"
        )
    place.configure({"moved": {**HYBRID, **APPEND}, "copied": FULL_SYNC}, processing={"batch_size": 10})
    dice = random.Random(7)

    def insert(table: str, count: int, at: str) -> None:
        rows = [(write(uuid.UUID(int=dice.getrandbits(128), version=4)), n) for n in range(count)]
        place.shop.execute(f"INSERT INTO {table} VALUES (%s, %s, {at})", rows)

    insert("moved", 95, NOON)
    insert("copied", 95, NOON)
    _all_well(place)
    insert("moved", 25, LATER)
    place.shop.execute("DELETE FROM copied WHERE n < 5")
    result = _all_well(place)

    assert result["moved"].rows_extracted == 25
    place.same("moved", "id", "n", "updated_at")
    place.same("copied", "id", "n", "updated_at")


def _all_well(place: Place, **request: Any) -> dict[str, Any]:
    result = place.sync(**request)
    assert {name: str(table.error) for name, table in result.tables.items() if table.error} == {}
    return result.tables


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb", "sqlite-duckdb"])
def test_rows_with_composite_keys_are_merged_and_copied(build: Build, route: str) -> None:
    place = build(route)
    clock = CLOCK[place.shop.kind]
    for table in ("moved", "copied"):
        place.shop.execute(
            f"CREATE TABLE {table} (region VARCHAR(10) NOT NULL, number INT NOT NULL, word VARCHAR(20), "
            f"updated_at {clock} NOT NULL, PRIMARY KEY (region, number));"
            f"INSERT INTO {table} SELECT CASE n % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'B' ELSE 'ç' END, n, 'old', "
            f"{NOON} FROM {place.shop.numbers(95)}"
        )
    place.configure({"moved": TIMESTAMP_ONLY, "copied": FULL_SYNC}, processing={"batch_size": 10})
    _all_well(place)
    for table in ("moved", "copied"):
        place.shop.execute(f"UPDATE {table} SET word = 'new', updated_at = {LATER} WHERE number <= 12")
    _all_well(place)

    place.same("moved", "region", "number", "word")
    place.same("copied", "region", "number", "word")


@pytest.mark.parametrize("source", ["mariadb", "postgres", "sqlite"])
def test_a_table_without_a_key_keeps_rows_that_look_the_same(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    for table in ("moved", "copied", "piled"):
        place.shop.execute(
            f"CREATE TABLE {table} (word VARCHAR(10), updated_at {CLOCK[place.shop.kind]});"
            f"INSERT INTO {table} SELECT 'same', {NOON} FROM {place.shop.numbers(30)}"
        )
    piled = {**FULL_SYNC, "full_sync_mode": "append"}
    place.configure({"moved": TIMESTAMP_ONLY, "copied": FULL_SYNC, "piled": piled})
    _all_well(place)
    for table in ("moved", "copied", "piled"):
        place.shop.execute(f"INSERT INTO {table} SELECT 'same', {LATER} FROM {place.shop.numbers(5)}")
    _all_well(place)

    place.same("moved", "word")
    place.same("copied", "word")
    assert place.warehouse.execute("SELECT count(*) FROM piled") == [(30 + 35,)]


KEY_KINDS = {
    "mariadb": {
        "enum": ("ENUM('z','a','m') NOT NULL", "ELT(1 + n % 3, 'a', 'm', 'z')"),
        "bits": ("BIT(9) NOT NULL", "n * 7"),
        "floating": ("DOUBLE NOT NULL", "n / 3"),
        "digits": ("DECIMAL(65,30) NOT NULL", "n / 3"),
        "moment": ("TIMESTAMP(3) NOT NULL", "'2025-03-01' + INTERVAL n * 7 HOUR"),
        "hours": ("TIME NOT NULL", "SEC_TO_TIME(n * 40000 - 900000)"),
        "folded": ("VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL", "CONCAT(CHAR(65 + n % 60), ' ')"),
    },
    "postgres": {
        "flag": ("boolean", "n % 2 = 0"),
        "floating": ("double precision", "n / 3.0"),
        "digits": ("numeric", "n / 3.0"),
        "moment": ("timestamptz(3)", "timestamptz '2025-03-01 00:00:00.123+09' + n * interval '7 hours'"),
        "hours": ("time", "time '00:00' + n * interval '1 second'"),
        "span": ("interval", "n % 7 * interval '1 day 3 hours'"),
        "padded": ("char(9)", "chr(65 + n % 60)"),
        "list": ("text[]", "ARRAY[chr(65 + n % 60), NULL, '\"']"),
        "document": ("jsonb", "jsonb_build_object('n', n)"),
    },
}


@pytest.mark.parametrize(("source", "kinds"), KEY_KINDS.items(), ids=KEY_KINDS.keys())
def test_a_table_is_copied_whatever_its_key_is_made_of(
    build: Build, source: str, kinds: dict[str, tuple[str, str]]
) -> None:
    place = build(f"{source}-duckdb")
    for name, (kind, values) in kinds.items():
        place.shop.run(f"CREATE TABLE {name} (part {kind}, n INT NOT NULL, PRIMARY KEY (part, n))")
        place.shop.run(f"INSERT INTO {name} SELECT {values}, n FROM {place.shop.numbers(50)}")
    place.configure(dict.fromkeys(kinds, FULL_SYNC), processing={"batch_size": 15})

    _all_well(place)

    for name in kinds:
        place.same(name, "n")


@pytest.mark.parametrize("route", ["sqlite-duckdb", "mariadb-postgres", "postgres-duckdb"])
def test_an_empty_table_is_nothing_new_and_one_that_became_empty_empties_its_copy(
    build: Build, route: str
) -> None:
    place = build(route)
    place.shop.create()
    place.configure()
    assert place.synced().status is TableStatus.NOTHING_NEW

    place.configure({"orders": FULL_SYNC})
    place.synced()
    assert place.warehouse.rows() == []
    place.shop.insert(5)
    place.synced()
    place.agree()
    place.shop.execute("DELETE FROM orders")
    place.synced()
    place.agree()


# --- Moving targets ---------------------------------------------------------------

NOW = {"mysql": "NOW(6)", "postgresql": "clock_timestamp() AT TIME ZONE 'UTC'"}


@contextmanager
def _updating(place: Place) -> Iterator[None]:
    """Somebody who touches rows all the time, each with a timestamp of its moment."""
    done = threading.Event()

    def body() -> None:
        dice = random.Random(5)
        with closing(place.shop.connect()) as connection:
            while not done.is_set():
                first = dice.randint(1, 480)
                connection.cursor().execute(
                    f"UPDATE orders SET customer = 'again', updated_at = {NOW[place.shop.kind]} "
                    f"WHERE id BETWEEN {first} AND {first + 20}"
                )
                connection.commit()

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-postgres"])
def test_rows_that_change_while_they_are_read_are_right_after_another_sync(build: Build, route: str) -> None:
    place = build(route)
    place.shop.create()
    place.shop.insert(500)
    place.configure(processing={"batch_size": 20}, ceiling={"lag": 0.2})

    with _updating(place):
        place.synced()
        place.synced()
    time.sleep(0.5)
    place.synced()

    place.agree()


# --- Clocks ----------------------------------------------------------------------


def _at(place: Place, moment: datetime) -> None:
    """Let the source's clock stand at a moment."""

    def parts() -> Parts:
        opened = Place.parts(place)
        opened.open_source = lambda: SqlSource(SQLite(str(place.shop.config["path"]), lambda: moment))
        return opened

    place.parts = parts  # type: ignore[method-assign]


def test_rows_of_the_hour_that_a_clock_repeats_wait_until_it_has_passed(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.configure({"orders": {**HYBRID, **APPEND, "cursor_timezone": "Europe/Berlin"}})

    def insert(number: int, wall: str) -> None:
        place.shop.insert(1, first=number, at=datetime.fromisoformat(wall))

    insert(1, "2025-10-26 01:59:00")
    insert(2, "2025-10-26 02:40:00")
    _at(place, datetime(2025, 10, 26, 0, 50, tzinfo=UTC))  # 02:50 for the first time
    assert place.synced().rows_extracted == 1

    insert(3, "2025-10-26 02:20:00")  # written later, an hour and twenty minutes after the one above
    _at(place, datetime(2025, 10, 26, 1, 30, tzinfo=UTC))  # 02:30 for the second time
    place.synced()
    insert(4, "2025-10-26 02:35:00")
    _at(place, datetime(2025, 10, 26, 2, 10, tzinfo=UTC))  # 03:10
    place.synced()

    place.agree()


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_rows_of_a_repeated_hour_long_ago_arrive_once(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    berlin = {**HYBRID, **APPEND, "cursor_timezone": "Europe/Berlin"}
    place.configure({"orders": berlin}, processing={"batch_size": 10})
    hour = datetime(2025, 10, 26, 1, 30)  # noqa: DTZ001 - a wall clock's reading
    place.shop.insert(45, at=hour, step=timedelta(minutes=3))
    place.shop.insert(45, first=100, at=hour, step=timedelta(minutes=3))  # the clock's second pass
    place.shop.insert(20, first=200, at=datetime(2026, 3, 29, 1, 50), step=timedelta(minutes=5))  # noqa: DTZ001

    place.synced()

    place.agree()


def test_a_day_is_complete_when_it_is_over(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.execute("CREATE TABLE days (id INTEGER PRIMARY KEY, day DATE NOT NULL)")
    place.configure({"days": {"cdc_timestamp_column": "day", "write_mode": "append"}})
    place.shop.execute("INSERT INTO days VALUES (1, '2025-06-01'), (2, '2025-06-02')")
    _at(place, datetime(2025, 6, 2, 10, tzinfo=UTC))
    assert place.synced().rows_extracted == 1
    place.shop.execute("INSERT INTO days VALUES (3, '2025-06-02')")
    _at(place, datetime(2025, 6, 3, 0, 0, 2, tzinfo=UTC))

    assert place.synced().rows_extracted == 2

    place.same("days", "id")


EAST = {
    "mariadb_east": "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "postgres": "TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()",
}


@pytest.mark.parametrize(("source", "moment"), EAST.items(), ids=EAST.keys())
def test_instants_are_the_same_where_sessions_follow_another_time_zone(
    build: Build, source: str, moment: str
) -> None:
    place = build(f"{source}-duckdb")
    if place.shop.kind == "postgresql":
        place.shop.execute(f"ALTER DATABASE {place.shop.config['database']} SET TimeZone = 'Asia/Tokyo'")
    place.shop.execute(f"CREATE TABLE moments (id BIGINT PRIMARY KEY, updated_at {moment})")
    place.configure({"moments": {**HYBRID, **APPEND}}, ceiling={"lag": 0.2}, processing={"batch_size": 2})
    place.shop.execute("INSERT INTO moments VALUES (1, '2025-03-01 09:30:00.123456')")
    place.shop.execute("INSERT INTO moments (id) VALUES (2), (3), (4)")
    time.sleep(0.4)

    assert place.synced().rows_extracted == 4
    place.shop.execute("INSERT INTO moments (id) VALUES (5)")
    time.sleep(0.4)
    assert place.synced().rows_extracted == 1

    micros = {"mysql": "CAST(UNIX_TIMESTAMP(updated_at) * 1000000 AS INT)"}
    written = micros.get(place.shop.kind, "CAST(EXTRACT(EPOCH FROM updated_at) * 1000000 AS BIGINT)")
    source_rows = place.shop.execute(f"SELECT id, {written} FROM moments")
    assert sorted(place.warehouse.execute("SELECT id, epoch_us(updated_at) FROM moments")) == sorted(
        source_rows
    )
    assert (1, 1740789000123456) in source_rows  # half past nine in Tokyo


# --- Names -----------------------------------------------------------------------

NAMES = {
    "mariadb-duckdb": "sel`ect; — 'from' \"where\" %s {low} ключ 表",
    "mariadb-postgres": "Order",
    "postgres-postgres": "sel`ect; — 'from' \"where\" %s {low} 🐬 表",
    "postgres-duckdb": "select",
    "sqlite-duckdb": "sel`ect; — 'from' \"where\" %s ? {low} 🐬 表",
}
COLUMNS = (
    "key",
    "up\"dat`ed 'at'",
    "select",
    "Größe in €; %d",
    "a.b",
    "{low} and {high}",
    "_order\\",
    "$1",
    "?",
)


@pytest.mark.parametrize(("route", "table"), NAMES.items(), ids=NAMES.keys())
def test_names_with_quotes_spaces_reserved_words_and_unicode_are_names(
    build: Build, route: str, table: str
) -> None:
    place = build(route)
    key, cursor, *rest = COLUMNS
    quote = place.shop.quote
    columns = ", ".join(f"{quote(name)} INT" for name in rest)
    place.shop.run(
        f"CREATE TABLE {quote(table)} ({quote(key)} INT PRIMARY KEY, "
        f"{quote(cursor)} {CLOCK[place.shop.kind]} NOT NULL, {columns})"
    )
    place.configure(
        {table: {"cdc_timestamp_column": cursor, "cdc_id_column": key}}, processing={"batch_size": 10}
    )
    values = ", ".join(f"n + {number}" for number, _ in enumerate(rest))
    place.shop.run(f"INSERT INTO {quote(table)} SELECT n, {NOON}, {values} FROM {place.shop.numbers(25)}")
    place.synced()
    place.shop.run(
        f"UPDATE {quote(table)} SET {quote(cursor)} = {LATER}, {quote(rest[0])} = 0 WHERE {quote(key)} < 4"
    )

    assert place.synced().rows_extracted == 3

    place.same(table, key, *rest)
    assert place.mark(table).pending == ()


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb"])
def test_a_table_of_five_hundred_columns_arrives_whole(build: Build, route: str) -> None:
    place = build(route)
    kinds = ["INT", "VARCHAR(8)", "DECIMAL(20,4)", "DATE"]
    values = ["n + 1", "'wörd 🌊'", "n / 7.0", "DATE '2025-02-28'"]
    names = [f"column_{number}" for number in range(498)]
    columns = ", ".join(f"{name} {kinds[number % 4]}" for number, name in enumerate(names))
    place.shop.run(
        f"CREATE TABLE wide (id INT PRIMARY KEY, updated_at {CLOCK[place.shop.kind]} NOT NULL, {columns})"
    )
    filled = ", ".join(values[number % 4] for number in range(498))
    place.shop.run(f"INSERT INTO wide SELECT n, {NOON}, {filled} FROM {place.shop.numbers(60)}")
    place.configure({"wide": HYBRID}, processing={"batch_size": 25})
    place.synced()
    place.shop.execute(f"UPDATE wide SET column_497 = NULL, updated_at = {LATER} WHERE id <= 7")

    place.synced()

    place.same("wide", "id", "updated_at", *names)


# --- Missing cursors --------------------------------------------------------------


def _with_null_cursors(build: Build, route: str, policy: str, **options: Any) -> Place:
    place = build(route)
    clock = CLOCK[place.shop.kind] if place.shop.kind != "sqlite" else "TEXT"
    place.shop.execute(
        f"CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(20), amount DECIMAL(12,2), note TEXT, "
        f"updated_at {CLOCK[place.shop.kind]})"
    )
    place.shop.execute(
        f"INSERT INTO orders SELECT n, 'x', n, NULL, CASE WHEN n % 10 <> 0 THEN CAST({NOON} AS {clock}) END "
        f"FROM {place.shop.numbers(50)}"
    )
    odd = {**HYBRID, "null_cursor": policy, "filter": "id <> 0 -- which never happens", **options}
    place.configure({"orders": odd}, processing={"batch_size": 20})
    return place


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-duckdb", "sqlite-duckdb"])
def test_rows_without_a_cursor_are_an_error_that_counts_them(build: Build, route: str) -> None:
    place = _with_null_cursors(build, route, "error")

    result = place.sync()

    [table] = result.tables.values()
    assert isinstance(table.error, NullCursor)
    assert "5 rows" in str(table.error)
    assert result.exit_code == 1


def test_rows_without_a_cursor_are_skipped_aloud(build: Build) -> None:
    place = _with_null_cursors(build, "sqlite-duckdb", "skip")

    result = place.synced()

    assert result.rows_loaded == 45
    assert any("5 rows" in note and "skipped" in note for note in result.notes)


@pytest.mark.parametrize("mode", ["merge", "append"])
@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-postgres"])
def test_rows_without_a_cursor_are_followed_by_id(build: Build, route: str, mode: str) -> None:
    place = _with_null_cursors(build, route, "include", write_mode=mode)
    place.synced()
    place.same("orders", "id", "customer", "updated_at")

    place.shop.execute(
        "INSERT INTO orders (id, customer) VALUES (61, 'none'), (62, 'none');"
        f"INSERT INTO orders (id, customer, updated_at) VALUES (63, 'some', {LATER})"
    )
    assert place.synced().rows_extracted == 3
    place.same("orders", "id", "customer", "updated_at")

    place.shop.execute(
        "UPDATE orders SET customer = 'at last', updated_at = '2025-06-03 12:00:00' WHERE id = 61"
    )
    assert place.synced().rows_extracted == 1
    versions = place.warehouse.execute("SELECT customer FROM orders WHERE id = 61 ORDER BY customer")
    assert versions == ([("at last",)] if mode == "merge" else [("at last",), ("none",)])


def test_a_row_without_an_id_is_not_lost_where_missing_timestamps_are_included(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.execute(
        "CREATE TABLE loose (id BIGINT, updated_at DATETIME);"
        f"INSERT INTO loose VALUES (1, {NOON}), (NULL, {NOON}), (3, NULL)"
    )
    place.configure({"loose": {**HYBRID, "null_cursor": "include"}})

    [table] = place.sync().tables.values()

    assert isinstance(table.error, NullCursor)
    assert "1 row has no value in id" in str(table.error)


def test_a_table_that_cannot_miss_its_cursor_needs_no_id_to_include_what_misses_it(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(5)
    place.configure({"orders": ID_ONLY}, null_cursor="include")

    place.synced()

    place.agree()


# --- Values ----------------------------------------------------------------------

WAVES = "𝄞🌊 'quoted' \"twice\" \\ back\tslash\nline"
LAST = datetime(2025, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - zoneless
MARIADB_VALUES: list[tuple[str, str, Any]] = [
    ("BOOLEAN", "TRUE", 1),
    ("BIT(1)", "b'1'", True),
    ("BIT(12)", "b'101010101010'", 0b101010101010),
    ("TINYINT UNSIGNED", "255", 255),
    ("INT UNSIGNED", "4294967295", 2**32 - 1),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT UNSIGNED", "18446744073709551615", 2**64 - 1),
    ("DECIMAL(38,10)", f"'-{'9' * 28}.{'9' * 10}'", Decimal(f"-{'9' * 28}.{'9' * 10}")),
    ("DECIMAL(38,0)", f"'{'1' * 38}'", Decimal("1" * 38)),
    ("DECIMAL(65,30)", f"'{'9' * 35}.{'1' * 30}'", f"{'9' * 35}.{'1' * 30}"),
    ("DOUBLE", "0.1", 0.1),
    ("FLOAT", "0.5", 0.5),
    ("DATE", "'9999-12-31'", date(9999, 12, 31)),
    ("TIME", "'-838:59:59'", "-838:59:59"),
    ("YEAR", "2025", 2025),
    ("DATETIME(6)", "'2025-12-31 23:59:59.999999'", LAST),
    ("TIMESTAMP(6) NULL", "'2025-12-31 23:59:59.999999'", LAST.replace(tzinfo=UTC)),
    ("VARCHAR(100)", "''", ""),
    ("TEXT", "'%s'", WAVES),
    ("CHAR(5)", "'ab'", "ab"),
    ("ENUM('small','large')", "'large'", "large"),
    ("SET('a','b','c')", "'a,c'", "a,c"),
    ("UUID", "'123E4567-E89B-12D3-A456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"),
    ("JSON", '\'{"a": [1, null, "🌊"]}\'', {"a": [1, None, "🌊"]}),
    ("VARBINARY(10)", "X'00FF5C27'", b"\x00\xff\\'"),
    ("BLOB", "''", b""),
]
POSTGRESQL_VALUES: list[tuple[str, str, Any]] = [
    ("boolean", "false", False),
    ("smallint", "-32768", -32768),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("numeric(38,10)", f"-{'9' * 28}.{'9' * 10}", Decimal(f"-{'9' * 28}.{'9' * 10}")),
    ("numeric(38,0)", "1" * 38, Decimal("1" * 38)),
    ("numeric", "1234567890.12345678901234567890", "1234567890.12345678901234567890"),
    ("double precision", "0.1", 0.1),
    ("double precision", "'-Infinity'", float("-inf")),
    ("real", "0.5", 0.5),
    ("date", "'0001-01-01'", date(1, 1, 1)),
    ("time(6)", "'23:59:59.999999'", time_of_day(23, 59, 59, 999999)),
    ("interval", "'-1 mon 3 days 04:05:06'", "-1 mons +3 days 04:05:06"),
    ("timestamp(6)", "'2025-12-31 23:59:59.999999'", LAST),
    ("timestamptz(6)", "'2026-01-01 08:59:59.999999+09'", LAST.replace(tzinfo=UTC)),
    ("text", "''", ""),
    ("text", "'%s'", WAVES),
    ("char(5)", "'ab'", "ab"),
    ("uuid", "'123E4567-E89B-12D3-A456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"),
    ("jsonb", '\'{"a": [1, null, "🌊"]}\'', {"a": [1, None, "🌊"]}),
    ("json", "'[ ]'", []),
    ("bytea", "'\\x00ff5c27'", b"\x00\xff\\'"),
    ("bytea", "''", b""),
    ("text[]", "ARRAY['a,b', NULL, 'c']", '{"a,b",NULL,c}'),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
]


def _literal(place: Place, text: str) -> str:
    if text != "'%s'":
        return text
    escaped = WAVES.replace("'", "''")
    return "'" + (escaped.replace("\\", "\\\\") if place.shop.kind == "mysql" else escaped) + "'"


def _meant(value: Any) -> Any:
    """A value as a driver hands it out, as what it means."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _travelled(place: Place, kinds: list[str], literals: list[str]) -> list[tuple[Any, ...]]:
    """One row of values and one of NULLs, as they arrive."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    written = ", ".join(_literal(place, text) for text in literals)
    place.shop.run(f"CREATE TABLE kinds (id INT PRIMARY KEY, {columns})")
    place.shop.run(f"INSERT INTO kinds VALUES (1, {written})")
    place.shop.run("INSERT INTO kinds (id) VALUES (2)")
    place.configure({"kinds": FULL_SYNC})
    place.synced()
    names = ", ".join(f"c{number}" for number in range(len(kinds)))
    rows = place.warehouse.execute(f"SELECT {names} FROM kinds ORDER BY id")
    return [tuple(_meant(value) for value in row) for row in rows]


VALUES = {"mariadb": MARIADB_VALUES, "postgres": POSTGRESQL_VALUES}


@pytest.mark.parametrize("target", ["duckdb", "postgres"])
@pytest.mark.parametrize(("source", "described"), VALUES.items(), ids=VALUES.keys())
def test_every_value_arrives_as_it_is(
    build: Build, source: str, target: str, described: list[tuple[str, str, Any]]
) -> None:
    place = build(f"{source}-{target}")
    kinds, literals, expected = zip(*described, strict=True)

    values, nulls = _travelled(place, list(kinds), list(literals))

    assert values == expected
    assert nulls == (None,) * len(kinds)


@pytest.mark.parametrize("target", ["duckdb", "postgres"])
def test_moments_beyond_the_calendars_of_most_tools_arrive_as_they_are(build: Build, target: str) -> None:
    place = build(f"postgres-{target}")
    place.shop.execute(
        "CREATE TABLE ages (id INT PRIMARY KEY, day DATE, updated_at TIMESTAMP NOT NULL);"
        "INSERT INTO ages VALUES (1, '20000-01-01', '0044-03-15 12:00 BC'), (2, NULL, '2025-01-01 00:00')"
    )
    place.configure({"ages": HYBRID})

    place.synced()

    query = "SELECT id, EXTRACT(year FROM day), EXTRACT(year FROM updated_at) FROM ages ORDER BY id"
    arrived = [
        tuple(None if part is None else int(part) for part in row) for row in place.warehouse.execute(query)
    ]
    before_christ = -43 if target == "duckdb" else -44  # they count the year 0, or do not
    assert arrived == [(1, 20_000, before_christ), (2, None, 2025)]


LOSSY = {
    "a zero date": ("mariadb", "DATE", "'0000-00-00'"),
    "a date without a day": ("mariadb", "DATETIME", "'2025-02-00 00:00:00'"),
    "a timestamp at infinity": ("postgres", "timestamp", "'infinity'"),
    "text in a number's column": ("sqlite", "INTEGER", "'twelve'"),
}


@pytest.mark.parametrize(("source", "kind", "literal"), LOSSY.values(), ids=LOSSY.keys())
def test_a_value_that_no_type_can_hold_is_named_and_never_bent(
    build: Build, source: str, kind: str, literal: str
) -> None:
    place = build(f"{source}-duckdb")
    place.shop.execute(f"CREATE TABLE odd (id INT PRIMARY KEY, oddity {kind})")
    relaxed = "SET sql_mode = '';" if source == "mariadb" else ""
    place.shop.execute(f"{relaxed}INSERT INTO odd VALUES (1, {literal})")
    place.configure({"odd": FULL_SYNC})

    [table] = place.sync().tables.values()

    assert isinstance(table.error, LossyValue)
    assert "oddity" in str(table.error)


def test_columns_that_differ_only_in_case_get_names_of_their_own_where_the_warehouse_cannot_tell_them(
    build: Build,
) -> None:
    place = build("postgres-duckdb")
    place.shop.run('CREATE TABLE twins (id int PRIMARY KEY, "Name" text, name text)')
    place.shop.run("INSERT INTO twins VALUES (1, 'one', 'other')")
    place.configure({"twins": FULL_SYNC})

    place.synced()

    [row] = place.warehouse.execute("SELECT * FROM twins")
    assert row == (1, "one", "other")
