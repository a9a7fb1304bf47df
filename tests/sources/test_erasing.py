"""Rows go by key and version, however the database has them written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from tidegate.config.connection_models import SQLiteSource
from tidegate.sources.erasing import Rows, Versions, open_eraser

WRITTEN = (
    "2025-01-01 12:30:00",
    "2025-01-01T12:30:00",
    "2025-01-01 12:30:00.000",
    "2025-01-01T12:30:00.000000",
)
MOMENT = datetime(2025, 1, 1, 12, 30)  # noqa: DTZ001 - a reading without a zone


@pytest.mark.parametrize("written", WRITTEN)
def test_a_timestamp_of_sqlite_is_found_in_any_form(tmp_path: Path, written: str) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME)")
        shop.executemany("INSERT INTO orders VALUES (?, ?)", [(1, written), (2, "2025-01-01 12:30:01")])
    orders = Versions('"orders"', ("id", "at"))
    with closing(open_eraser(SQLiteSource(type="sqlite", path=path))) as eraser:
        rows: Rows = dict.fromkeys([(1, MOMENT), (2, MOMENT)])
        assert eraser.count(orders, rows) == 1
        assert eraser.erase(orders, rows) == 1
        assert eraser.erase(orders, rows) == 0
    with closing(sqlite3.connect(path)) as shop:
        assert shop.execute("SELECT id FROM orders").fetchall() == [(2,)]
