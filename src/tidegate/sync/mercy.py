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
"""The chunks that are read at once are no larger than what may be read in this time, so that a rate is kept
over short spans too."""
_SMALLEST_CHUNK = 100

_CLUSTER_PARALLELISM = 8
"""Chunks at once on a cluster, unless the pipeline says otherwise: what most sources bear."""


@dataclass(frozen=True)
class Allowance:
    """What a run may use of its source."""

    mercy: Mercy
    tables: int
    """How many at once."""
    tasks: int | None
    """How many at once for each table; None: as many as are asked for."""
    cores: int | None = None
    """How many tasks Spark runs at once; None: only the cluster knows."""

    def parallelism(self, settings: TableSettings) -> int:
        """How many tasks read a table at once."""
        wanted = settings.parallelism or self.cores or _CLUSTER_PARALLELISM
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
        """With chunks so small that all tasks together keep the rate."""
        rate = self.mercy.max_rows_per_second
        if rate is None:
            return settings
        most = max(_SMALLEST_CHUNK, rate * _SMOOTH_SECONDS // (self.tables * self.parallelism(settings)))
        return replace(settings, batch_size=min(settings.batch_size, most))


UNLIMITED = Allowance(Mercy(), 1, None)


def allowance(pipeline: Pipeline, tables: int, cores: int | None) -> Allowance:
    """What a run over so many tables may use, on a Spark with so many cores."""
    mercy, processing = pipeline.mercy, pipeline.processing
    at_once = min(tables, processing.max_parallel_tables) if processing.strategy is TableOrder.PARALLEL else 1
    at_once = max(1, at_once)
    most = mercy.max_connections
    if most is None:
        return Allowance(mercy, at_once, None, cores)
    each = 2 if mercy.looks else 1
    least = DRIVER_CONNECTIONS + each
    if most < least:
        looking = " and one to look how the source is" if mercy.looks else ""
        raise ConfigError(
            f"`mercy.max_connections` is {most}, and a run needs {least}: {DRIVER_CONNECTIONS} to ask and to "
            f"watch transactions, and one to read{looking}",
            where=pipeline.file,
            hint=f"allow at least {least}",
        )
    at_once = min(at_once, most // least)
    return Allowance(mercy, at_once, (most // at_once - DRIVER_CONNECTIONS) // each, cores)


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
