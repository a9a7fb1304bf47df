"""What a source must do: discover, freeze, cut and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.core.ceiling import Ceiling
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.core.types import Column, Schema
from tidegate.core.watermark import Candidate
from tidegate.core.windows import Window
from tidegate.sources.strain import Pulse


@dataclass(frozen=True, slots=True)
class Relation:
    """What is read: a table, or a user's SELECT, with the user's row filter."""

    name: str
    """As the user calls it, for messages."""
    sql: str
    """What stands behind FROM: a quoted table, or a SELECT in brackets with an alias."""
    schema: Schema
    filter: str | None = None
    """A condition in the source's SQL."""
    unaltered: str | None = None
    """A condition that fails a statement if what is read is no longer what the schema says; None: whatever
    has changed shows in what arrives."""


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk to read, in a form that travels to an executor."""

    relation: str
    columns: tuple[Column, ...]
    where: str
    positions: tuple[str, ...] = ()
    """Columns whose smallest and largest values the receipt shall name."""
    snapshot: str | None = None
    unaltered: str | None = None
    """The relation's."""
    uncut: bool = False
    """It could not be cut, so nobody knows how many rows it has."""
    nulled: tuple[str, ...] = ()
    """Columns in which a value that the declared type cannot hold becomes NULL, and is counted."""
    as_written: tuple[str, ...] = ()
    """Columns that are carried as the text of whatever is in them: somebody has decided so."""

    @property
    def condition(self) -> str:
        """What stands behind WHERE. Either part may end in a comment."""
        where = f"(\n{self.where}\n)"
        return where if self.unaltered is None else f"{where} AND {self.unaltered}"


class Reader(Protocol):
    """The executor's side of a source. Can be pickled; connects when it reads, and closes afterwards."""

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of exactly the Arrow schema that `tidegate.arrow.arrow_schema` gives the columns.

        Reads in one read-only transaction with the session's time zone pinned to UTC. A value that the
        declared type cannot hold raises `LossyValue`, naming column and value; nothing is bent. In columns
        that the read says are `nulled` it becomes NULL instead, and `lost` counts it.
        """
        ...

    def kept(self) -> AbstractContextManager[Reader]:
        """A reader for several reads of one task, one after the other, which may keep its connection."""
        ...


class Source(Protocol):
    """The driver's side of a source. Holds connections; used from one thread."""

    def tables(self) -> list[str]:
        """All tables, as `name` in the connection's own schema and `schema.name` elsewhere."""
        ...

    def schema(self, table: str) -> Schema:
        """Raises `SourceError` with the nearest names if there is no such table."""
        ...

    def discover(self, tables: Sequence[str]) -> None:
        """Look at many tables at once, so that `table` finds them known."""
        ...

    def table(self, table: str, *, filter: str | None = None, fresh: bool = True) -> Relation:
        """A table. Unless it must be `fresh`, what was found out a short while ago will do."""
        ...

    def query(self, name: str, select: str) -> Relation:
        """A user's SELECT as a relation; its schema is what the database says the result has."""
        ...

    def narrowed(self, relation: Relation, select: str) -> Relation:
        """The relation of a user's SELECT, told another window: the database is not asked again."""
        ...

    def null_cursors(self, relation: Relation, cursor: Cursor) -> int: ...

    def freeze(
        self,
        relation: Relation,
        cursor: Cursor,
        settings: CeilingSettings,
        candidates: tuple[Candidate, ...] = (),
        *,
        after: Position | None = None,
    ) -> Ceiling:
        """The commit-safe ceiling, now.

        If the largest visible position is not after `after`, there is nothing new, and the answer is that
        position without a look at other transactions. A cursor without columns asks for the clock alone.
        """
        ...

    def nth(self, relation: Relation, columns: tuple[str, ...], window: Window, n: int) -> Position | None:
        """The position of the n-th row of the window in the order of the columns; None if it has fewer."""
        ...

    def count(self, relation: Relation, columns: tuple[str, ...], window: Window) -> int: ...

    def chunk(
        self,
        relation: Relation,
        columns: tuple[str, ...],
        window: Window,
        *,
        positions: tuple[str, ...],
        order: tuple[str, ...],
        snapshot: str | None = None,
    ) -> Read:
        """The read of one chunk: `columns` are carried, the window is over the columns `order`."""
        ...

    def snapshot(self) -> AbstractContextManager[str | None]:
        """One picture of the database that all chunks can share while the context is open, if it can."""
        ...

    def reader(self) -> Reader: ...

    def pulse(self) -> Pulse | None:
        """What tells tasks how hard the source is working; None where nobody else works."""
        ...

    def quote(self, name: str) -> str:
        """An identifier as the dialect writes it."""
        ...

    def literal(self, value: Value) -> str:
        """A value of a position as SQL, for a user's `{low}` and `{high}`."""
        ...

    def close(self) -> None: ...
