"""Cutting a table into chunks and reading them, as a sync does, with every query counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.core.positions import Position
from tidegate.core.windows import Window, cut
from tidegate.sources.contract import Relation
from tidegate.sources.sql import Database, SqlSource


@dataclass
class Counting:
    """A database that remembers what it was asked."""

    database: Any
    asked: list[str] = field(default_factory=list)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        result: list[tuple[Any, ...]] = self.database.rows(sql)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


@dataclass
class Tiled:
    chunks: list[list[tuple[Any, ...]]]
    cuts: list[Position]
    queries: int

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for chunk in self.chunks for row in chunk]


def tile(
    database: Database,
    table: str,
    order: tuple[str, ...],
    batch: int,
    *,
    high: Callable[[SqlSource, Relation], Position | None] = lambda *_: None,
) -> Tiled:
    counting = Counting(database)
    source = SqlSource(counting)
    relation = source.table(table)
    window = Window(None, high(source, relation))
    counting.asked.clear()
    cuts: list[Position] = []
    low = None
    while (position := source.nth(relation, order, Window(low, window.high), batch)) is not None:
        if position == window.high:
            break
        cuts.append(position)
        low = position
    chunks = [counting.rows(_select(source, relation, order, chunk.window)) for chunk in cut(window, cuts)]
    return Tiled(chunks, cuts, len(counting.asked))


def _select(source: SqlSource, relation: Relation, order: tuple[str, ...], window: Window) -> str:
    read = source.chunk(relation, order, window, positions=order, order=order)
    names = ", ".join(source.quote(name) for name in order)
    return f"SELECT {names} FROM {read.relation} WHERE {read.where}"


def most_queries(rows: int, batch: int) -> int:
    """What boundaries and reads together may cost, whatever the keys are."""
    return 2 * -(-rows // batch) + 10
