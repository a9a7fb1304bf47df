"""What a table's sync is told to do, once the three levels of defaults have been settled.

Plain values: this module needs no pydantic, so it is cheap to import where work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from tidegate.core.blackouts import Blackout
from tidegate.core.lossy import LossyPolicy
from tidegate.core.quality import Rules
from tidegate.core.strategies import (
    ANYHOW,
    ANYWHERE,
    CeilingSettings,
    Cursor,
    FileLayout,
    Mask,
    NullCursorPolicy,
    Placement,
    Strategy,
    WriteMode,
)


class Layout(StrEnum):
    """How staged files are sorted into folders."""

    DATETIME = "datetime"
    TABLE = "table"
    HYBRID = "hybrid"


class Compression(StrEnum):
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    BROTLI = "brotli"
    ZSTD = "zstd"
    NONE = "none"


COPIED_BY_REDSHIFT = frozenset({Compression.SNAPPY, Compression.GZIP, Compression.NONE})
"""What Redshift's documentation says that COPY reads; of Parquet with others it says nothing."""


class TableOrder(StrEnum):
    """Whether a pipeline's tables go one after the other or several at once."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class Processing:
    """How a pipeline goes about its tables."""

    strategy: TableOrder = TableOrder.SEQUENTIAL
    max_parallel_tables: int = 4
    """Counts only where the strategy is parallel."""
    timeout_minutes: float | None = None


def takes_window(query: str) -> bool:
    """Whether a user's SELECT asks to be told the ends of the window."""
    return "{low}" in query or "{high}" in query


@dataclass(frozen=True, slots=True)
class Mercy:
    """What a source is spared. The defaults here are the built-in ones."""

    max_connections: int | None = None
    max_rows_per_second: int | None = None
    max_query: timedelta | None = None
    """The longest that one of our own queries may run."""
    max_running: int | None = None
    """Statements at the source above which no further chunk is begun."""
    max_replica_lag: timedelta | None = None
    slow_down_at: float | None = None
    max_pause: timedelta = timedelta(minutes=5)
    blackout: tuple[Blackout, ...] = ()

    @property
    def looks(self) -> bool:
        """Whether the source is asked how it is, while it is being read."""
        return self.max_running is not None or self.max_replica_lag is not None


@dataclass(frozen=True, slots=True)
class Retries:
    max: int = 3
    backoff: timedelta = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class TableSettings:
    """One table of one pipeline. The defaults here are the built-in ones; there are no others."""

    table: str
    """As the source calls it."""
    target_name: str
    strategy: Strategy
    cursor: Cursor = field(default_factory=Cursor)
    """What the strategy needs of the configured columns: nothing for a strategy that reads everything."""
    write_mode: WriteMode | None = None
    """None: merge where a key is known, else append."""
    full_sync_mode: WriteMode = WriteMode.REPLACE
    """How a whole table is written: replace or append."""
    keys: tuple[str, ...] = ()
    """Empty: the source's primary key."""
    include: tuple[str, ...] = ()
    """Empty: all columns."""
    exclude: tuple[str, ...] = ()
    masks: Mapping[str, Mask] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """What columns are called at the target because somebody decided so; all others are made safe for it."""
    filter: str | None = None
    query: str | None = None
    null_cursor: NullCursorPolicy = NullCursorPolicy.ERROR
    default_start: datetime | None = None
    """Where a new stream begins; without a zone it is a reading of the column's own clock."""
    ceiling: CeilingSettings = field(default_factory=CeilingSettings)
    batch_size: int = 50_000
    parallelism: int | None = None
    """Chunks at once; None: one for each core."""
    retries: Retries = field(default_factory=Retries)
    layout: Layout = Layout.DATETIME
    prefix: str = ""
    compression: Compression = Compression.SNAPPY
    lossy: LossyPolicy = field(default_factory=LossyPolicy)
    """What becomes of values that their type cannot hold."""
    validation: Rules | None = None
    """What the rows have to be; None: anything."""
    files: FileLayout = ANYHOW
    """For tables that are made as Delta tables."""
    placement: Placement = ANYWHERE
    """For tables that are made at Redshift."""
    emptied: bool = False
    """Whether a job deletes the rows at the source: then some that were there before may come again."""

    @property
    def incremental(self) -> bool:
        """Whether runs read only what is new. Otherwise every run reads everything."""
        return bool(self.cursor.columns) or self.windowed

    @property
    def windowed(self) -> bool:
        """Whether the user's SELECT takes a window by itself."""
        return self.query is not None and takes_window(self.query)

    @property
    def one_chunk(self) -> bool:
        """A user's SELECT without a cursor cannot be cut: nothing says how its rows are ordered."""
        return self.strategy is Strategy.CUSTOM_SQL and not self.cursor.columns
