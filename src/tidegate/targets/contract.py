"""What a target must do. Every target passes the suite in `tidegate.testing.targets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from tidegate.core.receipts import Segment
from tidegate.core.strategies import ANYHOW, ANYWHERE, FileLayout, Placement, WriteMode
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId

LEDGER = "_tidegate_loads"
FENCES = "_tidegate_fences"
"""Beside the ledger: streams whose marks were moved by hand, and the lease under which that happened."""
LOST_SEGMENT = (
    "put the file back; or read its rows again, from before its run with `tidegate watermark rollback`, "
    "or from the beginning with `tidegate watermark reset`"
)
"""What to do where a pending segment is gone, or is not what was written."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table at the target and how rows go into it. All names are the target's."""

    name: str
    stream: StreamId
    mode: WriteMode
    key: tuple[str, ...] = ()
    """What makes a row the same row; needed to merge."""
    cursor: tuple[str, ...] = ()
    """Columns that say which of two versions of a row is newer."""
    texts: tuple[str, ...] = ()
    """Columns that came to travel as text: one of dates or decimals that is there already becomes text."""
    files: FileLayout = ANYHOW
    placement: Placement = ANYWHERE


class StagedFile(Protocol):
    @property
    def bytes(self) -> int: ...

    @property
    def etag(self) -> str: ...


class FileWriter(Protocol):
    @property
    def file(self) -> BinaryIO: ...

    @property
    def result(self) -> StagedFile: ...


class StagingArea(Protocol):
    """What a warehouse that reads staged files by itself needs of the area they lie in."""

    def url(self, key: str = "") -> str: ...

    def stat(self, key: str) -> StagedFile | None: ...

    def put(self, key: str, data: bytes) -> StagedFile: ...

    def create(self, key: str) -> AbstractContextManager[FileWriter]: ...

    def delete(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment and how to read it."""

    segment: Segment
    schema: Schema
    """In the target's names."""
    path: Path | None
    """The file, where it is a local one."""
    open: Callable[[], pa.NativeFile]
    names: tuple[str, ...] = ()
    """What the file calls the schema's columns, in their order, which is what the source calls them; empty:
    the same as the target does."""
    area: StagingArea | None = None
    """Where it lies, if that is a place that a warehouse can read by itself."""

    @property
    def stored(self) -> tuple[str, ...]:
        """The file's names of the columns."""
        return self.names or self.schema.names


class Target(Protocol):
    """A warehouse. `load` puts rows and ledger in one transaction: a segment is in it exactly once."""

    def action(self, table: TargetTable, schema: Schema) -> str:
        """What a load would do, in words, changing nothing: "create table orders, then merge by id"."""
        ...

    def prepare(self, table: TargetTable, schema: Schema) -> None:
        """Create the table if it is missing, add columns that are new.

        Raises `IncompatibleTable`, with both sides, if the rows cannot go in as they are.
        """
        ...

    def load(
        self,
        table: TargetTable,
        segments: Sequence[StagedSegment],
        *,
        generation: int,
        fence: int,
        skip_existing: bool = False,
    ) -> int:
        """Load those of the segments that the ledger does not hold; return how many rows went in.

        The table has been prepared for the schema of every segment. `append` adds rows (with
        `skip_existing`, only those whose key is not there); `merge` keeps the newest version of each key
        by (cursor, run number), whatever the order of segments; `replace` takes the segments as the whole
        table, built beside and swapped in, unless the ledger already knows a newer run.

        `fence` is that of the lease the load happens under. Raises `LeaseLost` if the stream was fenced off
        above it, `OutcomeUnknown` if the answer to the commit was lost.
        """
        ...

    def fence_off(self, stream: StreamId, fence: int) -> None:
        """From now on refuse every load of the stream under a smaller fencing number.

        Waits for a load that is under way: once this returns, the ledger tells all that older leases have
        loaded or ever will.
        """
        ...

    def loaded(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        """Which of these segments the ledger holds."""
        ...

    def last_run(self, stream: StreamId) -> int:
        """The largest run number the ledger knows of this stream; 0 if none."""
        ...

    def exists(self, name: str) -> bool: ...

    def columns(self, name: str) -> tuple[str, ...]:
        """What the columns of a table are called; none if there is no such table."""
        ...

    def count(self, name: str) -> int: ...

    def present(self, name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
        """How many rows of the table have one of these combinations in these columns.

        Any number of them may be asked for. None of the values is NULL.
        """
        ...

    def close(self) -> None: ...
