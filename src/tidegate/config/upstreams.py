"""What a pipeline of kind delta is told to do, once its file has been read. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

CHANGE, VERSION, COMMITTED_AT = "_tidegate_change", "_tidegate_version", "_tidegate_committed_at"
BESIDE = (CHANGE, VERSION, COMMITTED_AT)
"""What is told of a change, beside the columns of its row."""
NEW = "_tidegate_new"
"""Whether the row's key was not there before, where changes are brought into a table by keys."""
DELETED_AT = "_deleted_at"
"""Since when a row is gone that stays in the target."""


class FirstRun(StrEnum):
    """Where a stream of versions begins, unless a version or a moment is named."""

    SNAPSHOT = "snapshot"
    """The table as it is now; from then on, its changes."""
    FULL_HISTORY = "full_history"
    """Every change since the table was made."""


class DeltaMode(StrEnum):
    MERGE = "merge"
    """The target holds what the upstream holds."""
    HISTORY = "history"
    """Every change becomes a row of its own."""


class Deletes(StrEnum):
    HARD = "hard"
    SOFT = "soft"
    """The row stays, and says when it was deleted."""


class WithoutFeed(StrEnum):
    """What becomes of a table whose change data feed is not enabled."""

    DIFF = "diff"
    """Its two versions are compared."""
    REFUSE = "refuse"


class OnPlanned(StrEnum):
    RESUME = "resume"
    ALERT = "alert"


class OnSchemaChange(StrEnum):
    EVOLVE = "evolve"
    """New columns are followed, and missing ones stay; any other change stops the upstream."""
    STOP = "stop"
    REBASELINE = "rebaseline"
    """The upstream is read whole again, and the target is made anew of it."""


@dataclass(frozen=True)
class Upstream:
    """A Delta table whose versions are a stream."""

    name: str
    place: str | None = None
    """A folder, or an address such as s3://bucket/prefix."""
    table: str | None = None
    """The name of a table in a catalog, where there is no place."""
    keys: tuple[str, ...] = ()
    target_name: str = ""
    first_run: FirstRun | int | datetime = FirstRun.SNAPSHOT
    """Also the version, or the moment, whose changes are the first."""
    write_mode: DeltaMode = DeltaMode.MERGE
    deletes: Deletes = Deletes.HARD
    without_feed: WithoutFeed = WithoutFeed.DIFF

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are told of its rows: it cannot have any that are called so."""
        return (*BESIDE, NEW, DELETED_AT) if self.deletes is Deletes.SOFT else (*BESIDE, NEW)


@dataclass(frozen=True)
class Pattern:
    """Upstreams that are found: in folders, or in a schema of a catalog."""

    place: str | None
    schema: str | None
    exclude: tuple[str, ...]
    like: Upstream
    """What each of them is told."""


@dataclass(frozen=True)
class TransformTarget:
    """How what a transformation returns under a name is written; without keys it is appended."""

    keys: tuple[str, ...] = ()
    write_mode: str = "append"


@dataclass(frozen=True)
class Limits:
    """Beyond these something is wrong."""

    stuck_after: timedelta = timedelta(hours=6)
    missing_after: timedelta | None = None
    """None: no run is ever missed."""
    failures: int = 3


@dataclass(frozen=True)
class DeltaSettings:
    """What holds for all upstreams of a pipeline together."""

    align: bool = False
    """End every upstream at the last commit before one common moment."""
    lag: timedelta = timedelta(seconds=1)
    """How far behind the clock that moment is: commits carry the moment at which they began."""
    on_planned: OnPlanned = OnPlanned.RESUME
    transform: str | None = None
    targets: Mapping[str, TransformTarget] = field(default_factory=dict)
    all_or_nothing: bool = False
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    max_parallel: int = 4
    limits: Limits = field(default_factory=Limits)

    @property
    def joint(self) -> bool:
        """Whether the upstreams of a plan are done together or not at all."""
        return self.all_or_nothing or self.align or self.transform is not None
