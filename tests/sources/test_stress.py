"""Nothing is lost while transactions of all lengths come and go."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest

from tests.servers import Connection, Server
from tests.sources.conftest import Opened
from tidegate.core.positions import Position
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.core.watermark import Candidate
from tidegate.core.windows import Window
from tidegate.sources.contract import Relation, Source
from tidegate.sources.opening import open_source

SECONDS = 15.0
LONGEST = 120.0
FEW = 3
HASTY = CeilingSettings(max_wait=timedelta(milliseconds=250), lag=timedelta(0))
Rows = Callable[[str], list[tuple[Any, ...]]]


@dataclass
class Stream:
    """A reader that follows one table by one cursor, as a sync does."""

    source: Source
    relation: Relation
    cursor: Cursor
    rows: Rows
    mark: Position | None = None
    candidates: tuple[Candidate, ...] = ()
    newest: dict[int, int] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)
    moves: int = 0
    held: int = 0

    def advance(self, settings: CeilingSettings = HASTY) -> None:
        ceiling = self.source.freeze(self.relation, self.cursor, settings, self.candidates, after=self.mark)
        self.candidates = ceiling.candidates
        self.held += ceiling.held_back_by is not None
        high = ceiling.position
        if high is None or (self.mark is not None and high <= self.mark):
            return
        chunk = self.source.chunk(
            self.relation, ("id",), Window(self.mark, high), positions=(), order=self.cursor.columns
        )
        for number, version in self.rows(f"SELECT id, version FROM {chunk.relation} WHERE {chunk.where}"):
            self.newest[number] = version
            self.times[number] += 1
        self.mark = high
        self.moves += 1


def write(connection: Connection, chance: random.Random, now: str) -> None:
    """One transaction: perhaps idle before it writes, perhaps long, perhaps in vain."""
    cursor = connection.cursor()
    cursor.execute("SELECT 1 FROM orders WHERE id = 0")
    time.sleep(chance.choice([0, 0, 0.05, 0.4, 1.2]))
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            cursor.execute("INSERT INTO orders (version) VALUES (1)")
        else:
            some = chance.randint(1, 40)
            cursor.execute(f"UPDATE orders SET version = version + 1, updated_at = {now} WHERE id = {some}")
        cursor.execute("INSERT INTO events (version) VALUES (1)")
        time.sleep(chance.choice([0, 0, 0.02, 0.3]))
    if chance.random() < 0.2:
        connection.rollback()
    else:
        connection.commit()


@contextmanager
def writers(server: Server, now: str, count: int = 6) -> Iterator[None]:
    stop = threading.Event()

    def keep_writing(seed: int) -> None:
        chance = random.Random(seed)
        with closing(server.connect()) as connection:
            while not stop.is_set():
                try:
                    write(connection, chance, now)
                except (pymysql.err.OperationalError, psycopg.errors.DeadlockDetected):
                    connection.rollback()

    threads = [threading.Thread(target=keep_writing, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def follow(source: Source, rows: Rows) -> list[Stream]:
    orders, events = source.table("orders"), source.table("events")
    return [
        Stream(source, orders, Cursor("updated_at", "id"), rows),
        Stream(source, orders, Cursor("updated_at"), rows),
        Stream(source, events, Cursor(None, "id"), rows),
    ]


def advance(streams: list[Stream], seconds: float) -> None:
    """For so long; on a machine that is busy with other things until each has moved a few times."""
    began = time.monotonic()
    while (took := time.monotonic() - began) < seconds or (
        took < LONGEST and min(stream.moves for stream in streams) <= FEW
    ):
        for stream in streams:
            stream.advance()


def prove(streams: list[Stream], server_rows: Rows) -> None:
    time.sleep(0.2)
    for stream in streams:
        stream.advance()
    *by_time, by_id = streams
    orders: dict[int, int] = dict(server_rows("SELECT id, version FROM orders"))
    events = [number for (number,) in server_rows("SELECT id FROM events")]
    assert len(orders) > 20
    for stream in by_time:
        assert stream.moves > FEW
        stale = {
            number: stream.newest.get(number)
            for number in orders
            if stream.newest.get(number) != orders[number]
        }
        assert stale == {}, f"lost or stale under {stream.cursor}"
    assert by_id.moves > FEW
    assert by_id.times == Counter(events)


def test_nothing_is_lost_on_mariadb(mariadb_database: Server, opened: Opened) -> None:
    shop = mariadb_database
    for table in ("orders", "events"):
        shop.execute(
            f"CREATE TABLE {table} (id bigint AUTO_INCREMENT PRIMARY KEY, version int NOT NULL, "
            "updated_at datetime(6) NOT NULL DEFAULT current_timestamp(6), KEY (updated_at))"
        )
    streams = follow(opened(shop), shop.execute)
    with writers(shop, "now(6)"):
        advance(streams, SECONDS)
    prove(streams, shop.execute)
    assert any(stream.held for stream in streams)


def test_nothing_is_lost_on_postgresql(postgres_database: Server, opened: Opened) -> None:
    shop = postgres_database
    for table in ("orders", "events"):
        shop.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, version int NOT NULL, "
            "updated_at timestamptz NOT NULL DEFAULT now())"
        )
    streams = follow(opened(shop), shop.execute)
    with writers(shop, "now()"):
        advance(streams, SECONDS)
    prove(streams, shop.execute)
    assert any(stream.held for stream in streams)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_nothing_is_lost_on_sqlite(journal: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        for table in ("orders", "events"):
            connection.execute(
                f"CREATE TABLE {table} (id integer PRIMARY KEY, version int NOT NULL, "
                f"updated_at timestamp NOT NULL DEFAULT ({now}))"
            )

    def rows(sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            return connection.execute(sql).fetchall()

    server: Any = SimpleNamespace(
        connect=lambda: sqlite3.connect(path, timeout=30, isolation_level="IMMEDIATE")
    )
    source = open_source(SimpleNamespace(type="sqlite", path=path))
    streams = follow(source, rows)
    with closing(source), writers(server, now, count=3):
        advance(streams, SECONDS / 2)
    prove(streams, rows)
