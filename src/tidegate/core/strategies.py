"""The words a table's configuration is made of, shared by every layer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Strategy(StrEnum):
    TIMESTAMP_ONLY = "timestamp_only"
    HYBRID = "hybrid"
    ID_ONLY = "id_only"
    FULL_SYNC = "full_sync"
    CUSTOM_SQL = "custom_sql"


class WriteMode(StrEnum):
    APPEND = "append"
    MERGE = "merge"
    REPLACE = "replace"


class NullCursorPolicy(StrEnum):
    ERROR = "error"
    INCLUDE = "include"
    SKIP = "skip"


class Mask(StrEnum):
    HASH = "hash"
    REDACT = "redact"
    LAST4 = "last4"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The columns whose values are positions, in order, and the zone a zoneless timestamp is written in."""

    timestamp: str | None = None
    id: str | None = None
    zone: str = "UTC"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for column in (self.timestamp, self.id) if column is not None)


class DistStyle(StrEnum):
    AUTO = "auto"
    EVEN = "even"
    ALL = "all"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Placement:
    """How a warehouse with many disks lays out the rows of a table that is made for us."""

    dist_style: DistStyle | None = None
    dist_key: str | None = None
    """Rows with the same value of this column lie together."""
    sort_key: tuple[str, ...] = ()


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the files of a table in a lake are laid out."""

    partition_by: tuple[str, ...] = ()
    """Rows of one file have the same values in these columns."""
    cluster_by: tuple[str, ...] = ()
    """The rows of each new file are sorted by these columns."""


ANYHOW = FileLayout()


@dataclass(frozen=True, slots=True)
class CeilingSettings:
    """How a commit-safe ceiling is found, and what happens when other transactions cannot be seen."""

    max_wait: timedelta = timedelta(seconds=5)
    lag: timedelta = timedelta(seconds=1)
    fallback_lag: timedelta = timedelta(seconds=60)
    ignore: tuple[str, ...] = ()
    """Users or application names that never write."""
    lookback_ids: int = 0
    """How many ids below the mark are read again, for sequences that hand out ids out of order."""
