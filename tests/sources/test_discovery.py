"""Schemas are found many at once, and remembered no longer than they may be."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.sources.conftest import Opened
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.sources.discovery import SchemaCache, TableName
from tidegate.sources.sql import SqlSource

ORDERS = TableName("shop", "orders")
NARROW, WIDE = (Schema((Column("id", DataType(kind)),), ("id",)) for kind in (Kind.INT32, Kind.INT64))


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2025, 8, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".tidegate" / "schemas" / "shop.json"


def test_what_was_found_is_known_to_the_next_run_for_an_hour(path: Path, clock: Clock) -> None:
    SchemaCache(path, clock).put({ORDERS: NARROW})
    assert SchemaCache(path, clock).get(ORDERS) == NARROW
    assert (path.parents[1] / ".gitignore").read_text() == "*\n"
    clock.now += timedelta(minutes=59)
    assert SchemaCache(path, clock).get(ORDERS) == NARROW
    clock.now += timedelta(minutes=1)
    assert SchemaCache(path, clock).get(ORDERS) is None
    clock.now -= timedelta(hours=2)  # the clock was set back
    assert SchemaCache(path, clock).get(ORDERS) is None


def test_a_change_is_written_down_at_once_and_the_same_again_is_not(path: Path, clock: Clock) -> None:
    cache = SchemaCache(path, clock)
    cache.put({ORDERS: NARROW})
    before = path.stat().st_mtime_ns
    cache.put({ORDERS: NARROW})
    assert path.stat().st_mtime_ns == before
    cache.put({ORDERS: WIDE})
    assert SchemaCache(path, clock).get(ORDERS) == WIDE
    cache.forget()
    assert cache.get(ORDERS) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "tables": [{}]}', "\udcff"])
def test_a_file_that_is_not_ours_is_no_file(path: Path, clock: Clock, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    cache = SchemaCache(path, clock)
    assert cache.get(ORDERS) is None
    cache.put({ORDERS: NARROW})
    assert json.loads(path.read_text())["format"] == 1


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    cache = SchemaCache(tmp_path / "file" / "schemas" / "shop.json", clock)
    cache.put({ORDERS: NARROW})
    assert cache.get(ORDERS) == NARROW


@pytest.mark.parametrize("database", ["mariadb_database", "postgres_database"])
def test_many_tables_take_no_more_queries_than_one(
    database: str, opened: Opened, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(database)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        server.execute(f"CREATE TABLE {name} (a INT, b INT, c DECIMAL(20, {name[1:]}), PRIMARY KEY (b, a))")
    source = opened(server)
    assert isinstance(source, SqlSource)
    one_by_one = {name: opened(server).table(name).schema for name in names}
    asked: list[str] = []
    port: Any = source._database  # noqa: SLF001 - to count what is asked of the server
    rows = port.rows

    def counted(sql: str) -> Any:
        asked.append(sql)
        return rows(sql)

    monkeypatch.setattr(port, "rows", counted)
    source.discover([*names, "nowhere"])
    assert len(asked) <= 4
    asked.clear()
    assert {name: source.table(name, fresh=False).schema for name in names} == one_by_one
    assert asked == []
    assert one_by_one["t3"].key == ("b", "a")
    server.execute("ALTER TABLE t3 ADD COLUMN d INT")
    assert source.table("t3", fresh=False).schema.names == ("a", "b", "c")
    assert source.table("t3").schema.names == ("a", "b", "c", "d")
    assert source.table("t3", fresh=False).schema.names == ("a", "b", "c", "d")
