"""What a database must offer to be an SQL target: transactions, bulk loading and a swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tidegate.targets.contract import StagedSegment
from tidegate.targets.ddl import Dialect, TableName, TargetColumn


class Session(Protocol):
    """A transaction at a database. Parameters are written `$1`, `$2`; errors are Tidegate's."""

    def relation(self, table: TableName) -> str:
        """The table's name as SQL, quoted and in full."""
        ...

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; return how many rows it touched."""
        ...

    def columns(self, table: TableName) -> tuple[TargetColumn, ...]:
        """In their order; none if there is no such table."""
        ...

    def create_schema(self, name: str) -> None:
        """Unless it is there."""
        ...

    def lock(self, name: str) -> None:
        """Wait until no other transaction holds this name, and hold it until the end of this one."""
        ...

    def temporary(self, name: str, select: str) -> str:
        """A table of the query's result that ends with the transaction; returns its relation."""
        ...

    def copy(self, staged: Sequence[StagedSegment], into: str, *, run_column: str | None) -> int:
        """Bulk-load the segments' rows, by column name; return how many there were."""
        ...

    def analyze(self, relation: str, columns: Sequence[str]) -> None:
        """Let the planner know what is in these columns of a table that was just filled."""
        ...

    def replace(self, table: TableName, fill: Callable[[str], int]) -> int:
        """Let what `fill` puts into the relation it is given take the place of all rows."""
        ...


class Database(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction that changes nothing. A database that is not there yet reads as an empty one."""
        ...

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that is committed at the end and rolled back on an error.

        Raises `OutcomeUnknown` if the answer to the commit was lost.
        """
        ...
