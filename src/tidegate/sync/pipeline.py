"""A pipeline's tables, one after another or several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from tidegate.config.models import Pipeline, TableSettings
from tidegate.core import transitions
from tidegate.core.errors import Conflict, LeaseHeld, LeaseLost, SourceError, StateError, TidegateError
from tidegate.core.receipts import Receipt
from tidegate.core.strategies import Cursor, NullCursorPolicy, Strategy
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId
from tidegate.spark.session import LazySession
from tidegate.state.hold import HeldStream
from tidegate.sync.extracting import Extractor
from tidegate.sync.job import TableJob, describe, target_table
from tidegate.sync.loading import Loader
from tidegate.sync.parts import Parts
from tidegate.sync.progress import Progress
from tidegate.sync.ranges import sync_range
from tidegate.sync.result import SyncResult, TableResult, TableStatus
from tidegate.sync.table import Passage, TableSync

NULL_CURSORS = "@null-cursor"
"""Suffix of the stream that follows, by id, the rows whose cursor is NULL."""


class Scope(StrEnum):
    BOTH = "both"
    EXTRACT = "extract"
    LOAD = "load"


@dataclass(frozen=True)
class Request:
    """What a user asks of a pipeline."""

    tables: tuple[str, ...] = ()
    """Empty: all the pipeline has."""
    scope: Scope = Scope.BOTH
    limit: int | None = None
    low: str | None = None
    """Beginning of a range to read beside the mark."""
    high: str | None = None

    @property
    def ranged(self) -> bool:
        return self.low is not None or self.high is not None


def sync_pipeline(
    pipeline: Pipeline,
    request: Request,
    *,
    parts: Parts,
    session: LazySession,
    progress: Progress,
    clock: Callable[[], datetime],
    token: Callable[[], str],
) -> SyncResult:
    """Sync the requested tables; one that fails does not keep the others from finishing."""
    started = clock()
    tables = _tables(pipeline, request, parts)
    work = _Work(pipeline, request, parts, session, progress, clock, token, _deadline(pipeline))
    if pipeline.processing.strategy == "parallel" and len(tables) > 1:
        with ThreadPoolExecutor(pipeline.processing.max_parallel_tables, "table") as pool:
            results = list(pool.map(work.table, tables))
    else:
        results = [work.table(table) for table in tables]
    return SyncResult(
        execution_id=f"sync_{started:%Y%m%d_%H%M%S}_{token()}",
        pipeline=pipeline.name,
        tables_requested=tuple(tables),
        started_at=started,
        finished_at=clock(),
        tables={result.table: result for result in results},
    )


def _tables(pipeline: Pipeline, request: Request, parts: Parts) -> list[str]:
    """The tables asked for. Only patterns have to look at the source, or when loading, at the state."""
    if not pipeline.has_patterns:
        return pipeline.expand((), request.tables)
    if request.scope is Scope.LOAD:
        known: Iterable[str] = (stored.stream.name for stored in parts.store.streams(pipeline.name).streams)
        return pipeline.expand([name for name in known if "@" not in name], request.tables)
    return pipeline.expand(parts.source().tables(), request.tables)


def _deadline(pipeline: Pipeline) -> float | None:
    minutes = pipeline.processing.timeout_minutes
    return time.time() + minutes * 60 if minutes else None


@dataclass(frozen=True)
class _Work:
    pipeline: Pipeline
    request: Request
    parts: Parts
    session: LazySession
    progress: Progress
    clock: Callable[[], datetime]
    token: Callable[[], str]
    deadline: float | None

    def table(self, table: str) -> TableResult:
        """One table, retried where trying again may help. Errors become part of the result."""
        began = time.monotonic()
        stream = StreamId(self.pipeline.name, table)
        self.progress.started(stream)
        count = _Count(self.progress)
        try:
            passage = self._retried(table, stream, count)
            result = _succeeded(table, passage, count)
        except LeaseHeld as error:
            result = replace(count.result(table, TableStatus.HELD), error=error)
        except TidegateError as error:
            result = replace(count.result(table, TableStatus.FAILED), error=error)
        result = replace(result, duration_seconds=time.monotonic() - began)
        self.progress.finished(stream, result)
        return result

    def _retried(self, table: str, stream: StreamId, count: _Count) -> Passage:
        settings = self.pipeline.settings_for(table)
        attempt = 0
        while True:
            try:
                return self._attempt(settings, stream, count)
            except TidegateError as error:
                if not error.transient or attempt >= settings.retries.max:
                    raise
                self.parts.disconnect()
                pause = settings.retries.backoff_seconds * 2**attempt
                attempt += 1
                self.progress.note(stream, f"{error}; trying again in {pause:g} s ({attempt} of {settings.retries.max})")
                time.sleep(pause)

    def _attempt(self, settings: TableSettings, stream: StreamId, count: _Count) -> Passage:
        if self.request.scope is Scope.LOAD:
            return self._load_only(settings, stream, count)
        job = describe(self.parts.source(), settings, stream)
        sync = self._table_sync(job, count)
        if self.request.ranged:
            return self._in(sync_range_stream(stream), lambda held: sync_range(sync, held, job, self._main(stream), self.request.low, self.request.high))
        passage = self._in(stream, lambda held: sync.run(held, job, limit=self.request.limit))
        if settings.null_cursor is NullCursorPolicy.INCLUDE and settings.incremental:
            self._null_cursors(job, count)
        return passage
