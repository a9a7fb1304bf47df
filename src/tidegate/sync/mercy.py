"""How much of a source a run may use, shared out so that it holds for all its tasks and tables together.

The driver divides the limits by the number of tasks that can run at once and gives each its share. Nobody has
to be asked while the run lasts, so it holds on any cluster; a table that is the last to run leaves the shares
of the others unused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidegate.config.pipelines import Pipeline
from tidegate.config.settings import Mercy, TableOrder, TableSettings
from tidegate.core.blackouts import blacked_out_until, next_blackout
from tidegate.core.deadlines import NEVER, Deadline
from tidegate.core.errors import ConfigError
from tidegate.spark.pacing import Pace

DRIVER_CONNECTIONS = 3
"""What the driver holds for each table it works on: one that asks, and two that watch transactions."""

_SMOOTH_SECONDS = 5
"""A chunk is no larger than what may be read in this time, so that a rate is kept over short spans too."""
_SMALLEST_CHUNK = 100


@dataclass(frozen=True)
class Allowance:
    """What a run may use of its source."""

    mercy: Mercy
    tables: int
    """How many at once."""
    tasks: int | None
    """How many at once for each table; None: as many as are asked for."""

    def parallelism(self, wanted: int) -> int:
        return wanted if self.tasks is None else min(wanted, self.tasks)

    def pace(self, tasks: int) -> Pace:
        """The share of one of so many tasks of a table."""
        rate = self.mercy.max_rows_per_second
        lag = self.mercy.max_replica_lag
        return Pace(
            rows_per_second=rate / (self.tables * tasks) if rate else None,
            max_running=self.mercy.max_running,
            max_lag=lag.total_seconds() if lag else None,
            slow_down_at=self.mercy.slow_down_at,
            max_pause=self.mercy.max_pause.total_seconds(),
        )

    def settings(self, settings: TableSettings) -> TableSettings:
        """With chunks that are small enough to keep the rate."""
        rate = self.mercy.max_rows_per_second
        if rate is None:
            return settings
        most = max(_SMALLEST_CHUNK, rate * _SMOOTH_SECONDS // self.tables)
        return replace(settings, batch_size=min(settings.batch_size, most))


UNLIMITED = Allowance(Mercy(), 1, None)


def allowance(pipeline: Pipeline, tables: int) -> Allowance:
    """What a run over so many tables may use."""
    mercy, processing = pipeline.mercy, pipeline.processing
    at_once = min(tables, processing.max_parallel_tables) if processing.strategy is TableOrder.PARALLEL else 1
    at_once = max(1, at_once)
    most = mercy.max_connections
    if most is None:
        return Allowance(mercy, at_once, None)
    least = DRIVER_CONNECTIONS + 1
    if most < least:
        raise ConfigError(
            f"`mercy.max_connections` is {most}, and a run needs {least}: {DRIVER_CONNECTIONS} to ask and to "
            "watch transactions, and one to read",
            where=pipeline.file,
            hint=f"allow at least {least}",
        )
    at_once = min(at_once, most // least)
    return Allowance(mercy, at_once, most // at_once - DRIVER_CONNECTIONS)


def blackout(mercy: Mercy, now: datetime) -> Deadline:
    """When reading has to stop because the source is to be left alone: now, if it is to be left alone now."""
    stop = next_blackout(mercy.blackout, now)
    if stop is None:
        return NEVER
    again = blacked_out_until(mercy.blackout, stop) or stop
    return Deadline(
        stop,
        f"the source is to be left alone until {again.astimezone(UTC):%Y-%m-%d %H:%M} UTC (`mercy.blackout`)",
        "run it again after that; --load-only loads what is staged without asking the source",
    )
