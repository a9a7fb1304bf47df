"""Every option of a pipeline and of a sync does what it says, and no row is lost or doubled by it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY, LONG_AGO, TIMESTAMP_ONLY
from tests.targets.proxy import Break, breaking
from tidegate.config.project import Project
from tidegate.core.errors import ConfigError, Interrupted
from tidegate.core.positions import Position
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.core.watermark import StreamId
from tidegate.spark import session as sessions
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.staging.local import LocalStaging
from tidegate.sync import loading
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Scope
from tidegate.sync.result import TableResult, TableStatus
from tidegate.sync.verifying import verified
from tidegate.targets.duckdb import DuckDbTarget

SOURCES = ["mariadb", "postgres", "sqlite"]
ORDERS = StreamId("shop", "orders")
NEXT_DAY = LONG_AGO + timedelta(days=1)
SECOND_DAY = LONG_AGO + timedelta(days=2)


@pytest.fixture
def shop(build: Build) -> Place:
    """The cheapest route, for what does not depend on a database."""
    place = build("sqlite-duckdb")
    place.shop.create()
    place.configure()
    return place


def _failed(place: Place, **request: Any) -> TableResult:
    [table] = place.sync(**request).tables.values()
    assert table.status is TableStatus.FAILED
    return table


def _touch(place: Place, ids: str, at: datetime, customer: str) -> None:
    place.shop.execute(f"UPDATE orders SET customer = '{customer}', updated_at = '{at}' WHERE id IN ({ids})")


# --- How much is read ---------------------------------------------------------------


def test_a_limit_takes_whole_groups_of_equal_timestamps(shop: Place) -> None:
    for group in range(6):
        shop.shop.insert(10, first=1 + 10 * group, at=LONG_AGO + timedelta(minutes=group), step=timedelta(0))
    shop.configure({"orders": {**TIMESTAMP_ONLY, "write_mode": "append"}}, processing={"batch_size": 4})

    assert shop.synced(limit=15).rows_extracted == 20
    assert shop.synced(limit=10).rows_extracted == 10
    assert shop.synced().rows_extracted == 30

    shop.agree()


def test_a_limit_counts_rows_where_every_row_has_a_position_of_its_own(shop: Place) -> None:
    shop.shop.insert(25, step=timedelta(0))
    shop.configure({"orders": {**HYBRID, "write_mode": "append"}}, processing={"batch_size": 4})

    assert [shop.synced(limit=10).rows_extracted for _ in range(4)] == [10, 10, 5, 0]

    shop.agree()


def test_a_limit_says_that_it_does_not_cut_a_table_that_is_read_whole(shop: Place) -> None:
    shop.shop.insert(25)
    shop.configure({"orders": FULL_SYNC})

    result = shop.synced(limit=10)

    shop.agree()
    assert any("limit" in note for note in result.notes)


def test_ids_that_are_read_again_are_not_appended_again_and_do_not_use_a_limit_up(shop: Place) -> None:
    shop.shop.insert(100)
    shop.shop.execute("DELETE FROM orders WHERE id = 45")
    shop.configure({"orders": {**ID_ONLY, "write_mode": "append"}}, ceiling={"lookback_ids": 20})
    for _ in range(5):
        shop.synced(limit=10)
    shop.shop.insert(1, first=45)

    shop.synced(limit=10)
    shop.synced()

    shop.agree()


def test_a_new_table_begins_at_its_default_start_and_says_what_it_leaves_out(shop: Place) -> None:
    shop.shop.insert(30)
    shop.shop.insert(12, first=100, at=NEXT_DAY)
    shop.configure({"orders": HYBRID}, default_start=str(NEXT_DAY - timedelta(seconds=1)))

    result = shop.synced()

    assert result.rows_loaded == 12
    assert any("30 older rows are left out" in note for note in result.notes)
    assert shop.synced().status is TableStatus.NOTHING_NEW


def test_a_filter_holds_for_every_sync(shop: Place) -> None:
    shop.shop.insert(20)
    odd = "id % 2 = 1 OR customer = 'kept' -- the rest is noise"
    shop.configure({"orders": {**HYBRID, "filter": odd}}, processing={"batch_size": 3})
    shop.synced()
    shop.shop.insert(4, first=100, at=NEXT_DAY)
    _touch(shop, "2, 4", SECOND_DAY, "kept")
    shop.synced()

    assert shop.warehouse.rows() == [row for row in shop.shop.rows() if row[0] % 2 or row[1] == "kept"]


# --- In two steps ---------------------------------------------------------------------


def test_several_extractions_load_as_one_without_the_source(shop: Place) -> None:
    shop.shop.insert(30)
    shop.configure(processing={"batch_size": 10})
    shop.synced(scope=Scope.EXTRACT)
    _touch(shop, "1, 2, 3", NEXT_DAY, "second")
    shop.synced(scope=Scope.EXTRACT)
    _touch(shop, "2, 3", SECOND_DAY, "third")
    shop.synced(scope=Scope.EXTRACT)
    source = Path(shop.shop.config["path"])
    away = source.rename(source.with_suffix(".away"))

    result = shop.synced(scope=Scope.LOAD)

    away.rename(source)
    shop.agree()
    assert result.rows_loaded == 35
    assert shop.synced(scope=Scope.LOAD).status is TableStatus.NOTHING_NEW


@pytest.mark.parametrize("target", ["duckdb", "postgres"])
def test_the_newest_version_stays_though_an_older_one_is_loaded_after_it(build: Build, target: str) -> None:
    place = build(f"sqlite-{target}")
    place.shop.create()
    place.configure()
    place.shop.insert(5)
    place.synced(scope=Scope.EXTRACT)
    _touch(place, "1, 2", NEXT_DAY, "newest")
    place.synced(low=str(LONG_AGO + timedelta(hours=1)), high=str(NEXT_DAY))
    assert len(place.warehouse.rows()) == 2

    place.synced(scope=Scope.LOAD)

    place.agree()


# --- Which tables, which columns --------------------------------------------------------


def test_a_pattern_stands_for_every_table_it_matches(build: Build) -> None:
    place = build("sqlite-duckdb")
    for name in ("orders_2024", "orders_2025", "customers"):
        _yearly(place, name)
    place.configure({"orders_*": {**HYBRID, "write_mode": "append"}, "orders_2025": FULL_SYNC})

    assert set(place.sync().tables) == {"orders_2024", "orders_2025"}
    _yearly(place, "orders_2026")
    assert set(place.sync(tables=("orders_2026",)).tables) == {"orders_2026"}
    result = place.sync(scope=Scope.LOAD)

    assert set(result.tables) == {"orders_2024", "orders_2025", "orders_2026"}
    for name in ("orders_2024", "orders_2025", "orders_2026"):
        place.same(name, "id", "word")


def _yearly(place: Place, name: str) -> None:
    place.shop.execute(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, word TEXT, updated_at DATETIME NOT NULL);"
        f"INSERT INTO {name} SELECT n, '{name}', '2025-01-01 00:00:00' FROM {place.shop.numbers(7)}"
    )


def test_only_the_chosen_columns_travel(shop: Place) -> None:
    shop.shop.insert(10)
    shop.configure({"orders": {**HYBRID, "columns": {"include": ["id", "amount", "updated_at"]}}})
    shop.synced()
    assert _columns(shop, "orders") == {"id", "amount", "updated_at"}

    shop.configure(
        {"orders": {**HYBRID, "target_name": "rest", "columns": {"exclude": ["customer", "note"]}}}
    )
    shop.by_hand().reset([ORDERS], reason="another target")
    shop.synced()
    assert _columns(shop, "rest") == {"id", "amount", "updated_at"}


def _columns(place: Place, table: str) -> set[str]:
    rows = place.warehouse.execute(
        f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
    )
    return {name for (name,) in rows} - {"_tidegate_run"}


def test_masked_columns_never_leave_the_executor_in_the_clear(build: Build) -> None:
    place = build("mariadb-duckdb")
    place.shop.execute(
        "CREATE TABLE people (id INT PRIMARY KEY, mail VARCHAR(50), card VARCHAR(20), born DATE, salary INT, "
        "updated_at DATETIME NOT NULL);"
        "INSERT INTO people VALUES (1, 'a@b.c', '4111111111111234', '1990-01-31', 123456, '2025-01-01'), "
        "(2, NULL, '123', NULL, NULL, '2025-01-01'), (3, '', NULL, '1990-01-31', 7, '2025-01-01')"
    )
    masks = {"mail": "hash", "card": "last4", "born": "redact", "salary": "hash"}
    place.configure({"people": {**HYBRID, "columns": {"mask": masks}}})

    place.synced(scope=Scope.EXTRACT)
    [segment] = place.mark("people").pending
    staged = pq.read_table(place.folder / "staging" / segment.key).to_pylist()
    place.synced(scope=Scope.LOAD)

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    expected = [
        (1, digest("a@b.c"), "***1234", "***", digest("123456")),
        (2, None, "***", None, None),
        (3, digest(""), None, "***", digest("7")),
    ]
    assert place.warehouse.execute("SELECT id, mail, card, born, salary FROM people ORDER BY id") == expected
    assert [tuple(row.values())[:5] for row in staged] == expected


def test_a_column_that_merging_needs_can_be_neither_masked_nor_left_out(shop: Place) -> None:
    shop.configure({"orders": {**TIMESTAMP_ONLY, "columns": {"mask": {"id": "hash"}}}})
    masked = _failed(shop)
    shop.configure({"orders": {**TIMESTAMP_ONLY, "columns": {"exclude": ["id"]}}})
    left_out = _failed(shop)

    for table in (masked, left_out):
        assert isinstance(table.error, ConfigError)
        assert "`id`" in str(table.error)


# --- How rows go in ---------------------------------------------------------------------


def test_keys_can_be_other_columns_than_the_primary_key(shop: Place) -> None:
    shop.shop.insert(5)
    shop.configure({"orders": {**HYBRID, "keys": ["customer"]}})
    shop.synced()
    shop.shop.execute(
        "DELETE FROM orders WHERE id = 1;"
        f"INSERT INTO orders VALUES (100, 'customer 1', 1, 'again', '{NEXT_DAY}')"
    )
    shop.synced()

    shop.agree()


def test_append_keeps_every_version_and_merge_the_newest(shop: Place) -> None:
    for mode, versions in (("append", 8), ("merge", 5)):
        shop.shop.execute("DELETE FROM orders")
        shop.shop.insert(5)
        shop.configure({"orders": {**HYBRID, "write_mode": mode, "target_name": mode}})
        shop.by_hand().reset([ORDERS], reason="another target")
        shop.synced()
        _touch(shop, "1, 2, 3", NEXT_DAY, "renamed")
        shop.synced()

        assert len(shop.warehouse.rows(mode)) == versions


def test_replacing_a_table_by_what_is_new_is_refused(shop: Place) -> None:
    shop.configure({"orders": {**HYBRID, "write_mode": "replace"}})

    with pytest.raises(ConfigError, match="replace would keep only the rows of the last run"):
        shop.sync()


def test_merging_without_a_key_is_refused_with_the_way_out(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.execute("CREATE TABLE loose (word TEXT, updated_at DATETIME NOT NULL)")
    place.configure({"loose": {**TIMESTAMP_ONLY, "write_mode": "merge"}})

    table = _failed(place)

    assert isinstance(table.error, ConfigError)
    assert "keys:" in str(table.error)


# --- One's own SQL ------------------------------------------------------------------------

JOINED = (
    "SELECT o.id, o.customer, o.updated_at, 2 * o.amount AS twice FROM orders o JOIN orders p ON p.id = o.id"
)


@pytest.mark.parametrize("source", SOURCES)
def test_a_select_of_ones_own_is_read_whole_as_one_chunk(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.shop.insert(25)
    place.configure({"joined": {"query": f"{JOINED};"}}, processing={"batch_size": 10})

    first = place.synced()
    place.shop.execute("DELETE FROM orders WHERE id > 20")
    place.synced()

    assert (first.rows_loaded, first.files_created) == (25, 1)
    assert place.warehouse.execute("SELECT count(*), max(id) FROM joined") == [(20, 20)]


OWN_CURSORS = {
    "a cursor": JOINED,
    "a cursor and the window": f"{JOINED} WHERE o.updated_at > {{low}} AND o.updated_at < {{high}}",
}


@pytest.mark.parametrize("query", OWN_CURSORS.values(), ids=OWN_CURSORS.keys())
@pytest.mark.parametrize("source", SOURCES)
def test_a_select_of_ones_own_with_a_cursor_is_followed_in_chunks(
    build: Build, source: str, query: str
) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.shop.insert(25)
    joined = {"query": query, "cdc_timestamp_column": "updated_at", "cdc_id_column": "id"}
    place.configure({"joined": {**joined, "write_mode": "append"}}, processing={"batch_size": 10})
    first = place.synced()
    place.shop.insert(5, first=100, at=NEXT_DAY)

    second = place.synced()

    assert (first.rows_loaded, first.files_created, second.rows_loaded) == (25, 3, 5)
    assert place.warehouse.execute("SELECT count(*), count(DISTINCT id) FROM joined") == [(30, 30)]
    assert place.synced().status is TableStatus.NOTHING_NEW


NOW = {"mysql": "NOW(6)", "postgresql": "clock_timestamp() AT TIME ZONE 'UTC'", "sqlite": None}


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_select_that_takes_a_window_by_itself_is_told_the_clocks(
    build: Build, source: str, mode: str
) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.shop.insert(25)
    windowed = f"{JOINED} WHERE o.updated_at > {{low}} AND o.updated_at <= {{high}}"
    place.configure({"joined": {"query": windowed, "keys": ["id"], "write_mode": mode}}, ceiling={"lag": 0.2})
    assert place.synced(limit=10).rows_loaded == 25
    assert place.synced().rows_loaded == 0
    now = NOW[place.shop.kind] or f"'{datetime.now(UTC).replace(tzinfo=None)}'"
    place.shop.execute(f"UPDATE orders SET customer = 'late', updated_at = {now} WHERE id <= 3")
    time.sleep(0.5)

    assert place.synced().rows_loaded == 3

    count = 28 if mode == "append" else 25
    assert place.warehouse.execute("SELECT count(*) FROM joined") == [(count,)]


def test_a_select_that_takes_a_window_by_itself_can_be_told_where_to_begin(shop: Place) -> None:
    shop.shop.insert(25)
    windowed = f"{JOINED} WHERE o.updated_at > {{low}} AND o.updated_at <= {{high}}"
    shop.configure({"joined": {"query": windowed}}, default_start=str(LONG_AGO + timedelta(seconds=9)))

    result = shop.synced()

    assert result.rows_loaded == 15
    assert any("10 older rows are left out" in note for note in result.notes)


@pytest.mark.parametrize("source", SOURCES)
def test_a_ceiling_without_columns_is_the_clock_alone(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.configure()
    parts = place.parts()
    opened = parts.source()

    before = datetime.now(UTC)
    ceiling = opened.freeze(opened.table("orders"), Cursor(), CeilingSettings(lag=timedelta(seconds=1)))
    after = datetime.now(UTC)

    parts.close()
    assert ceiling.position is not None
    [moment] = ceiling.position.values
    assert isinstance(moment, datetime)
    lag = timedelta(seconds=1)
    assert before - 2 * lag < moment <= after - lag


def test_counts_agree_where_rows_without_a_cursor_are_included(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.execute(
        "CREATE TABLE loose (id INTEGER PRIMARY KEY, updated_at DATETIME);"
        "INSERT INTO loose VALUES (1, '2025-01-01 00:00:00'), (2, NULL), (3, NULL)"
    )
    place.configure({"loose": {**HYBRID, "null_cursor": "include"}})
    result = place.sync()
    parts = place.parts()

    checked = verified(result, Project.load(place.folder).pipeline("shop"), parts)

    parts.close()
    assert checked.exit_code == 0
    assert checked.tables["loose"].notes[-1] == "verified: 3 rows in the warehouse agree with the source"


# --- Marks moved by hand --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_mark_set_back_catches_up_and_one_set_ahead_leaves_a_gap(shop: Place, mode: str) -> None:
    shop.shop.insert(20)
    shop.configure({"orders": {**HYBRID, "write_mode": mode}})
    cursor = ("updated_at", "id")
    # Behind a bare timestamp everything at that timestamp is done.
    ahead = Position.of(LONG_AGO + timedelta(seconds=14))
    shop.by_hand().move(ORDERS, ahead, cursor=cursor, reason="only the last ones")
    assert shop.synced().rows_extracted == 5

    back = Position.of(LONG_AGO + timedelta(seconds=9), 10)
    shop.by_hand().move(ORDERS, back, cursor=cursor, reason="some more")
    assert shop.synced().rows_extracted == 10
    assert shop.mark().manual == "some more"


def test_a_table_that_was_reset_is_read_from_the_start_and_merged(shop: Place) -> None:
    shop.shop.insert(20)
    shop.synced()
    shop.shop.execute("UPDATE orders SET customer = 'quietly changed'")
    shop.by_hand().reset([ORDERS], reason="start over")

    assert shop.synced().rows_extracted == 20

    shop.agree()


def test_another_cursor_is_refused_with_an_explanation(shop: Place) -> None:
    shop.shop.insert(5)
    shop.synced()
    shop.configure({"orders": ID_ONLY})

    table = _failed(shop)

    assert isinstance(table.error, ConfigError)
    assert "updated_at + id" in str(table.error)
    assert "watermark reset" in str(table.error)
    shop.by_hand().reset([ORDERS], reason="another cursor")
    shop.synced()
    shop.agree()


# --- Time, failure, company -------------------------------------------------------------------


class SlowStaging(LocalStaging):
    """Takes its time for every segment."""

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        if key.endswith(".parquet"):
            time.sleep(0.3)
        with super().create(key) as writer:
            yield writer


def test_a_run_whose_time_is_up_stops_between_two_chunks_and_goes_on_later(shop: Place) -> None:
    shop.shop.insert(200)
    shop.configure(
        {"orders": {**HYBRID, "write_mode": "append"}},
        processing={"batch_size": 10, "parallelism": 1, "timeout_minutes": 2 / 60},
    )

    def slow() -> Parts:
        parts = Place.parts(shop)
        return replace(parts, staging=SlowStaging(shop.folder / "staging"))

    shop.parts = slow  # type: ignore[method-assign]
    result = shop.sync()
    del shop.parts

    assert isinstance(result.tables["orders"].error, Interrupted)
    assert result.exit_code == 1
    run = shop.mark().open_run
    assert run is not None
    assert run.round is not None
    assert run.rows == 10 * (run.chunks_done + run.round.done) < 200
    assert sum(segment.rows for segment in shop.mark().pending) == run.rows

    shop.configure({"orders": {**HYBRID, "write_mode": "append"}}, processing={"batch_size": 10})
    assert shop.synced().rows_extracted == 200 - run.rows
    shop.agree()


def test_loading_whose_time_is_up_stops_between_two_loads_and_goes_on_later(
    shop: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "ROWS_PER_LOAD", 10)
    append = {"orders": {**HYBRID, "write_mode": "append"}}
    shop.shop.insert(200)
    shop.configure(append, processing={"batch_size": 10})
    shop.synced(scope=Scope.EXTRACT)
    shop.configure(append, processing={"timeout_minutes": 1})
    time_passed = timedelta(0)
    shop.clock = lambda: datetime.now(UTC) + time_passed
    at_once = DuckDbTarget.load

    def slowly(*args: Any, **how: Any) -> int:
        nonlocal time_passed
        time_passed += timedelta(seconds=59 if time_passed else 1)
        return at_once(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(DuckDbTarget, "load", slowly)
        result = shop.sync(scope=Scope.LOAD)

    assert isinstance(result.tables["orders"].error, Interrupted)
    assert "between two loads" in str(result.tables["orders"].error)
    assert 0 < shop.mark().loaded.rows_total < 200
    shop.configure(append)
    shop.synced(scope=Scope.LOAD)
    shop.agree()


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_connection_lost_while_a_chunk_is_read_is_tried_again(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.shop.insert(40)
    server = place.shop.server
    assert server is not None
    only_in_reads = place.shop.quote("note").encode()
    with breaking((server.host, server.port), only_in_reads, Break.BEFORE) as proxy:
        place.shop.config["port"] = proxy.port
        place.configure(
            {"orders": {**HYBRID, "write_mode": "append"}},
            processing={"batch_size": 10},
            retries={"max": 2, "backoff_seconds": 0.1},
        )
        place.synced()
        assert proxy.broken.is_set()

    assert any("trying again in 0.1 s (1 of 2)" in text for text in place.notes.texts)
    place.agree()


def test_a_server_that_stays_away_fails_the_table_after_the_last_retry(build: Build) -> None:
    place = build("mariadb-duckdb")
    place.shop.config["port"] = 1
    place.configure(retries={"max": 1, "backoff_seconds": 0.1})

    result = place.sync()

    assert result.exit_code == 5
    assert [text.count("trying again") for text in place.notes.texts] == [1]


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_refused_login_is_not_tried_again(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.config["password"] = "wrong"
    place.configure(retries={"max": 3, "backoff_seconds": 60})

    assert place.sync().exit_code == 5
    assert place.notes.texts == []


@pytest.mark.parametrize("source", SOURCES)
def test_tables_side_by_side_finish_though_one_of_them_fails(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    names = [f"table_{number}" for number in range(4)]
    clock = "DATETIME" if source != "postgres" else "TIMESTAMP"
    for name in names:
        place.shop.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, updated_at {clock} NOT NULL);"
            f"INSERT INTO {name} SELECT n, '2025-01-01 00:00:00' FROM {place.shop.numbers(30)}"
        )
    place.configure(
        {**dict.fromkeys(names, HYBRID), "missing": HYBRID},
        processing={"strategy": "parallel", "max_parallel_tables": 3, "batch_size": 10},
    )

    result = place.sync()

    assert (result.status, result.exit_code) == ("partial", 1)
    assert {name for name, table in result.tables.items() if table.error} == {"missing"}
    for name in names:
        place.same(name, "id")
        planned, *_ = place.parts().store.history(StreamId("shop", name))
        assert planned.data["tables"] == "parallel"


def test_tables_side_by_side_start_one_spark_session(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(settings: SparkSettings) -> object:
        time.sleep(0.1)
        started.append(settings)
        return object()

    monkeypatch.setattr(sessions, "start", start)
    session = LazySession(SparkSettings())
    threads = [threading.Thread(target=session.get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(started) == 1
