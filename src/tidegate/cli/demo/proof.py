"""Proof that source and warehouse agree: both are read whole, by their own drivers, and compared.

Nothing of Tidegate takes part in it. A checksum covers every column of every row, in the order of the key.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any

_AT_ONCE = 10_000


@dataclass(frozen=True)
class Sum:
    rows: int
    checksum: str


@dataclass(frozen=True)
class Compared:
    table: str
    source: Sum
    warehouse: Sum

    @property
    def agree(self) -> bool:
        return self.source == self.warehouse


def compare(shop: Path, warehouse: Path, tables: dict[str, str]) -> list[Compared]:
    """Compare tables, given the key of each."""
    import duckdb

    results = []
    with (
        closing(sqlite3.connect(shop)) as source,
        closing(duckdb.connect(str(warehouse), read_only=True)) as target,
    ):
        for table, key in tables.items():
            columns = [row[1] for row in source.execute(f'PRAGMA table_info("{table}")')]
            names = ", ".join(map(_quoted, columns))
            select = f"SELECT {names} FROM {_quoted(table)} ORDER BY {_quoted(key)}"
            results.append(Compared(table, _sum(source.execute(select)), _sum(target.execute(select))))
    return results


def _sum(cursor: Any) -> Sum:
    digest = hashlib.sha256()
    rows = 0
    while batch := cursor.fetchmany(_AT_ONCE):
        rows += len(batch)
        digest.update("".join(_line(row) for row in batch).encode())
    return Sum(rows, digest.hexdigest())


def _line(row: Iterable[Any]) -> str:
    return "\x1f".join([_WRITTEN[type(value)](value) for value in row]) + "\n"


def _number(value: float | Decimal) -> str:
    """SQLite keeps 19.90 as the number 19.9, a warehouse as a decimal with two digits."""
    text = str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


_WRITTEN: dict[type, Callable[[Any], str]] = {
    NoneType: lambda _: "\x00",
    int: str,
    str: str,
    float: _number,
    Decimal: _number,
    datetime: str,
}
"""A value as text, the same whichever driver it came from."""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
