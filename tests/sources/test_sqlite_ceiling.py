"""The commit-safe ceiling on SQLite: whoever writes holds a lock that can be asked for."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.sources.writing import IMPATIENT, PATIENT
from tidegate.core.errors import SourceError
from tidegate.core.positions import Position
from tidegate.core.strategies import Cursor
from tidegate.sources import sqlite, sqlite_session
from tidegate.sources.sql import SqlSource
from tidegate.sources.sqlite import SQLite

NOON = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
BY_TIME = Cursor(timestamp="at")
BY_ID = Cursor(id="id")


@pytest.fixture(params=["wal", "delete"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, at timestamp)")
        connection.execute("INSERT INTO orders (at) VALUES ('2026-06-01 11:00:00'), ('2026-06-01 11:59:58')")
    return path


@pytest.fixture
def source(path: Path) -> Iterator[SqlSource]:
    with closing(SqlSource(SQLite(str(path), clock=lambda: NOON))) as source:
        yield source


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders (at) VALUES ('2026-06-01 11:30:00')")
        yield connection


def test_with_nobody_writing_the_ceiling_is_the_largest_row(source: SqlSource) -> None:
    orders = source.table("orders")
    assert source.freeze(orders, BY_TIME, IMPATIENT).position == Position.of(datetime(2026, 6, 1, 11, 59, 58))  # noqa: DTZ001
    assert source.freeze(orders, BY_ID, IMPATIENT).position == Position.of(2)


def test_the_lag_leaves_the_newest_for_later(source: SqlSource) -> None:
    settings = replace(IMPATIENT, lag=timedelta(seconds=2))
    position = source.freeze(source.table("orders"), BY_TIME, settings).position
    assert position == Position.of(datetime(2026, 6, 1, 11, 0, 0))  # noqa: DTZ001


def test_a_writer_that_keeps_its_lock_leaves_everything_for_later(path: Path, source: SqlSource) -> None:
    orders = source.table("orders")
    with writing(path) as late:
        ceiling = source.freeze(orders, BY_TIME, IMPATIENT)
        assert (ceiling.position, ceiling.held_back_by) == (None, "a connection that holds the write lock")
        by_id = source.freeze(orders, BY_ID, IMPATIENT)
        assert by_id.position is None
        late.execute("COMMIT")
    assert source.freeze(orders, BY_ID, IMPATIENT, by_id.candidates).position == Position.of(3)


def test_a_writer_that_ends_in_time_is_waited_for(path: Path, source: SqlSource) -> None:
    with writing(path) as late:
        timer = threading.Timer(0.5, late.execute, ["COMMIT"])
        timer.start()
        began = time.monotonic()
        ceiling = source.freeze(source.table("orders"), BY_TIME, PATIENT)
        assert time.monotonic() - began > 0.4
        timer.join()
    assert (ceiling.position, ceiling.held_back_by) == (Position.of(datetime(2026, 6, 1, 11, 59, 58)), None)  # noqa: DTZ001


def test_nobody_is_kept_from_writing_afterwards(path: Path, source: SqlSource) -> None:
    source.freeze(source.table("orders"), BY_TIME, IMPATIENT)
    with closing(sqlite3.connect(path, timeout=0)) as connection, connection:
        connection.execute("INSERT INTO orders (at) VALUES ('2026-06-01 11:30:00')")


def test_a_file_nobody_may_write_is_read_with_a_lag_and_a_look_back(
    source: SqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, whom no permission stops."""
    for module in (sqlite, sqlite_session):
        monkeypatch.setattr(module, "writable", lambda _: False)
    ceiling = source.freeze(source.table("orders"), BY_TIME, IMPATIENT)
    assert ceiling.position == Position.of(datetime(2026, 6, 1, 11, 0, 0))  # noqa: DTZ001
    assert ceiling.lookback == timedelta(seconds=60)
    assert "may not be written" in ceiling.warnings[0]


def test_a_new_form_of_timestamps_is_noticed_at_the_next_ceiling(path: Path, source: SqlSource) -> None:
    orders = source.table("orders")
    source.freeze(orders, BY_TIME, IMPATIENT)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO orders (at) VALUES ('2026-06-01T10:00:00')")
    with pytest.raises(SourceError, match="two forms"):
        source.freeze(orders, BY_TIME, IMPATIENT)


def test_ids_that_begin_anew_below_the_mark_are_told_of(path: Path, source: SqlSource) -> None:
    orders = source.table("orders")
    mark = Position.of(2)
    assert source.freeze(orders, BY_ID, IMPATIENT, after=mark).warnings == ()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM orders")
    assert source.freeze(orders, BY_ID, IMPATIENT, after=mark).warnings == ()  # who empties it may refill it
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO orders (at) VALUES ('2026-06-01 11:00:00')")
    [warning] = source.freeze(orders, BY_ID, IMPATIENT, after=mark).warnings
    assert warning.startswith("the mark, 2, is ahead of the largest id, 1")
    filtered = source.table("orders", filter="at > '2026'")
    assert source.freeze(filtered, BY_ID, IMPATIENT, after=mark).warnings == ()
