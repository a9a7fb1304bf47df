"""A shop in SQLite: generated, the same every time, and then changed in the ways that are hard to follow."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

FIRST_AFTER_GAP = 9_000_000_000
"""Where ids go on after a gap of billions."""

_TABLES = """
CREATE TABLE products (
    code TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    price DECIMAL(10, 2) NOT NULL
);
CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT,
    country TEXT NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX customers_by_change ON customers (updated_at);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL,
    status TEXT NOT NULL,
    amount DECIMAL(10, 2) NOT NULL,
    note TEXT,
    placed_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX orders_by_change ON orders (updated_at, id);
CREATE TABLE payments (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL,
    method TEXT NOT NULL,
    amount DECIMAL(10, 2) NOT NULL
);
"""

_PRODUCTS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
INSERT INTO products
SELECT printf('P%04d', i), 'Product ' || i, round((i * 7919 % 20000) / 100.0 + 1, 2) FROM n
"""

_CUSTOMERS = """
WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
INSERT INTO customers
SELECT i, 'Customer ' || i,
    CASE WHEN i % 9 = 0 THEN NULL ELSE 'c' || i || '@example.com' END,
    substr('DEJPKEPENZ', (i * 31 % 5) * 2 + 1, 2),
    datetime(:begin, '+' || ((i - :first) * :seconds / (:last - :first + 1)) || ' seconds')
FROM n
"""

_ORDERS = """
WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
INSERT INTO orders
SELECT i, i * 7919 % :customers + 1,
    CASE i % 4 WHEN 0 THEN 'open' WHEN 1 THEN 'paid' ELSE 'shipped' END,
    round((i * 104729 % 50000) / 100.0 + 0.99, 2),
    CASE WHEN i % 50 = 0 THEN 'gift wrap, please – № ' || i END,
    datetime(:begin, '+' || ((i - :first) * :seconds / (:last - :first + 1)) || ' seconds'),
    datetime(:begin, '+' || ((i - :first) * :seconds / (:last - :first + 1)) || ' seconds')
FROM n
"""

_PAYMENTS = """
INSERT INTO payments (order_id, method, amount)
SELECT id, CASE id % 3 WHEN 0 THEN 'card' WHEN 1 THEN 'transfer' ELSE 'cash' END, amount
FROM orders WHERE id > :after AND status <> 'open'
"""

_UPDATE_SPREAD = """
UPDATE orders SET status = :status,
    updated_at = datetime(:begin, '+' || (id * 48271 % :seconds) || ' seconds')
WHERE id % :of < :part AND id < :below
"""

_UPDATE_AT_ONCE = """
UPDATE orders SET note = 'prices corrected', updated_at = datetime(:at)
WHERE id % 6 = 1 AND id < :below
"""


@dataclass(frozen=True)
class Change:
    """What happened in the shop, in words and in rows."""

    what: str
    rows: int


def create(path: Path, rows: int, *, begin: datetime, end: datetime) -> dict[str, int]:
    """A shop with this many orders, placed between two moments; returns the rows of each table."""
    customers = max(rows // 10, 10)
    seconds = int((end - begin).total_seconds())
    when = {"begin": _text(begin), "seconds": seconds}
    with _open(path) as shop:
        shop.executescript(_TABLES)
        shop.execute(_PRODUCTS, {"rows": 200})
        shop.execute(_CUSTOMERS, {"first": 1, "last": customers, **when})
        shop.execute(_ORDERS, {"first": 1, "last": rows, "customers": customers, **when})
        shop.execute(_PAYMENTS, {"after": 0})
    return counts(path)


def change(path: Path, *, begin: datetime, end: datetime) -> list[Change]:
    """New rows, rows behind a gap of billions, many rows in one second, updates, a new price list."""
    seconds = int((end - begin).total_seconds())
    known = counts(path)
    rows, customers = known["orders"], known["customers"]
    spread = {"begin": _text(begin), "seconds": seconds}
    with _open(path) as shop:

        def run(sql: str, **values: object) -> int:
            shop.execute(sql, {**spread, **values})
            return int(shop.execute("SELECT changes()").fetchone()[0])

        last = rows + rows // 10
        new = run(_ORDERS, first=rows + 1, last=last, customers=customers)
        gap_end = FIRST_AFTER_GAP + max(rows // 100, 10) - 1
        beyond = run(_ORDERS, first=FIRST_AFTER_GAP, last=gap_end, customers=customers)
        updated = run(_UPDATE_SPREAD, status="shipped", of=20, part=1, below=rows)
        middle = begin + timedelta(seconds=seconds // 2)
        together = run(_UPDATE_AT_ONCE, at=_text(middle), below=rows)
        joined = run(_CUSTOMERS, first=customers + 1, last=customers + customers // 20 + 1)
        paid = run(_PAYMENTS, after=rows)
        repriced = run("UPDATE products SET price = round(price * 1.1, 2)")
    return [
        Change("new orders", new),
        Change(f"orders behind a gap: their ids begin at {FIRST_AFTER_GAP:,}", beyond),
        Change("orders updated, here and there", updated),
        Change("orders corrected by one statement, all in the same second", together),
        Change("new customers", joined),
        Change("new payments", paid),
        Change("products with a new price", repriced),
    ]


def archive(path: Path, status: str, *, begin: datetime, end: datetime) -> Change:
    """One large change: two of three orders get a new status."""
    seconds = int((end - begin).total_seconds())
    values = {"status": status, "of": 3, "part": 2, "below": 2**62, "begin": _text(begin), "seconds": seconds}
    with _open(path) as shop:
        return Change(f"orders set to {status!r}", shop.execute(_UPDATE_SPREAD, values).rowcount)


def counts(path: Path) -> dict[str, int]:
    with _open(path) as shop:
        return {
            table: shop.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            for table in ("products", "customers", "orders", "payments")
        }


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
