"""A pipeline's tables, one after another or several at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tidegate.config.project import Pipeline
from tidegate.config.settings import TableSettings
from tidegate.core import transitions
from tidegate.core.deadlines import Deadline
from tidegate.core.errors import (
    ConfigError,
    Conflict,
    DamagedRecord,
    InvariantBroken,
    LeaseHeld,
    LeaseLost,
    TidegateError,
)
from tidegate.core.lossy import Tally, tally
from tidegate.core.receipts import Receipt
from tidegate.core.strategies import Cursor, NullCursorPolicy, Strategy
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId
from tidegate.sources.contract import Source
from tidegate.spark.session import LazySession
from tidegate.state.hold import HeldStream
from tidegate.sync.continuity import demand_loadable
from tidegate.sync.extracting import Extractor, paths_of
from tidegate.sync.job import TableJob, describe, remembered, target_table
from tidegate.sync.loading import Loader
from tidegate.sync.markers import conclude, finished_run
from tidegate.sync.mercy import Allowance, allowance, blackout
from tidegate.sync.naming import Naming
from tidegate.sync.parts import Parts
from tidegate.sync.progress import Progress
from tidegate.sync.quality import Judge
from tidegate.sync.ranges import range_job, sync_range
from tidegate.sync.reaching import demand_own_way
from tidegate.sync.result import SyncResult, TableResult, TableStatus
from tidegate.sync.streams import NULL_CURSORS, beside, family, owner
from tidegate.sync.table import Passage, TableSync


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
    execution_id: str | None = None
    """What whoever asked calls it; None: it gets a name of its own."""

    @property
    def ranged(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def reads(self) -> bool:
        """Whether the source is asked how far it can be read."""
        return self.scope is not Scope.LOAD and not self.ranged


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
    deadline = _deadline(pipeline, started)
    until = deadline
    if request.scope is not Scope.LOAD:
        demand_own_way(pipeline.source, session.settings)
        until = deadline.or_earlier(blackout(pipeline.mercy, started))
        until.demand(started, where=pipeline.source_name, stopped="before it began")
    tables = tables_of(pipeline, request, parts)
    _discover(pipeline, request, tables, parts)
    allowed = allowance(pipeline, len(tables), session.settings.cores)
    work = _Work(pipeline, request, parts, session, progress, clock, token, deadline, until, allowed)
    if allowed.tables > 1:
        parts.disconnect()  # from here on each table's thread has its own
        with ThreadPoolExecutor(allowed.tables, "table") as pool:
            results = list(pool.map(work.table, tables))
    else:
        results = [work.table(table) for table in tables]
    return SyncResult(
        execution_id=request.execution_id or f"sync_{started:%Y%m%d_%H%M%S}_{token()}",
        pipeline=pipeline.name,
        tables_requested=tuple(tables),
        started_at=started,
        finished_at=clock(),
        tables={result.table: result for result in results},
    )


def tables_of(pipeline: Pipeline, request: Request, parts: Parts) -> list[str]:
    """The tables asked for. Only patterns have to look at the source, or when loading, at the state."""
    if not pipeline.has_patterns:
        return pipeline.expand((), request.tables)
    if request.scope is Scope.LOAD:
        return pipeline.expand(_known_tables(pipeline, parts), request.tables)
    return pipeline.expand(parts.source().tables(), request.tables)


def _known_tables(pipeline: Pipeline, parts: Parts) -> list[str]:
    listing = parts.store.streams(pipeline.name)
    for damaged in listing.damaged:
        raise DamagedRecord(
            f"nobody knows which table this was, nor what of it waits to be loaded: {damaged.problem}",
            where=damaged.where,
            hint="`tidegate watermark check` shows how to repair it",
        )
    return sorted({owner(stored.stream).name for stored in listing.streams})


def _discover(pipeline: Pipeline, request: Request, tables: list[str], parts: Parts) -> None:
    """Look at many tables at once. What goes wrong here goes wrong again where it can be told of a table."""
    plain = [table for table in tables if pipeline.settings_for(table).query is None]
    if request.scope is not Scope.LOAD and len(plain) > 1:
        with suppress(TidegateError):
            parts.source().discover(plain)


def _deadline(pipeline: Pipeline, started: datetime) -> Deadline:
    minutes = pipeline.processing.timeout_minutes
    return Deadline(started + timedelta(minutes=minutes) if minutes else None)


@dataclass(frozen=True)
class _Work:
    pipeline: Pipeline
    request: Request
    parts: Parts
    session: LazySession
    progress: Progress
    clock: Callable[[], datetime]
    token: Callable[[], str]
    deadline: Deadline
    until: Deadline
    """When reading has to stop, which may be earlier."""
    allowance: Allowance

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
        except Exception as error:
            logging.getLogger(__name__).exception("unexpected error in %s", stream)
            result = replace(count.result(table, TableStatus.FAILED), error=_defect(error, stream))
        count.tell_lossy(stream)
        result = replace(result, duration_seconds=time.monotonic() - began)
        self.progress.finished(stream, result)
        return result

    def _retried(self, table: str, stream: StreamId, count: _Count) -> Passage:
        self.until.demand(self.clock(), where=str(stream), stopped="before this table")
        settings = self.allowance.settings(self.pipeline.settings_for(table))
        attempt = 0
        while True:
            try:
                return self._attempt(settings, stream, count)
            except TidegateError as error:
                if not error.transient or attempt >= settings.retries.max:
                    raise
                self.parts.disconnect()
                pause = settings.retries.backoff.total_seconds() * 2**attempt
                attempt += 1
                again = f"trying again in {pause:g} s ({attempt} of {settings.retries.max})"
                self.progress.note(stream, f"{error}; {again}")
                time.sleep(pause)

    def _attempt(self, settings: TableSettings, stream: StreamId, count: _Count) -> Passage:
        if self.request.scope is Scope.LOAD:
            return self._load_only(settings, stream, count)
        if self.request.ranged:
            return self._range(describe(self.parts.source(), settings, stream), count)
        job = remembered(self.parts.source(), settings, stream)
        passage = self._held(job, count, self._run)
        if includes_null_cursors(job):
            self._held(null_cursor_job(job, self.parts.source()), count, self._run)
        return passage

    def _run(self, sync: TableSync, held: HeldStream, job: TableJob) -> Passage:
        return sync.run(held, job, limit=self.request.limit)

    def _range(self, job: TableJob, count: _Count) -> Passage:
        main = self.parts.store.read(job.stream).watermark
        ends = {"low": self.request.low, "high": self.request.high}
        return self._held(
            range_job(job), count, lambda sync, held, side: sync_range(sync, held, side, main, **ends)
        )

    def _held(self, job: TableJob, count: _Count, act: _Act) -> Passage:
        with self.parts.hold(job.stream, self.clock, self.token) as held, self._recorded(held):
            if held.watermark is not None:
                demand_loadable(held.watermark, job.settings, job.stream)
            return act(self._table_sync(count, job), held, job)

    def _load_only(self, settings: TableSettings, stream: StreamId, count: _Count) -> Passage:
        """Load what is pending, of the table and of the streams beside it, without asking the source."""
        for stored in map(self.parts.store.read, family(stream)):
            mark = stored.watermark
            if mark is None or not mark.pending:
                continue
            schema = Schema.from_json(dict(mark.schemas)[mark.pending[-1].schema])
            table = target_table(settings, stored.stream, schema)
            with self.parts.hold(stored.stream, self.clock, self.token) as held, self._recorded(held):
                demand_loadable(mark, settings, stored.stream)
                self._loader(count, settings).load(held, table)
                self._conclude(held, settings)
        return Passage()

    def _conclude(self, held: HeldStream, settings: TableSettings) -> None:
        mark, run = held.watermark, finished_run(held.watermark)
        if mark is not None and run is not None:
            conclude(self.parts.staging, paths_of(settings, held.stream, run), mark, run, {})

    @contextmanager
    def _recorded(self, held: HeldStream) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._record(held, error)
            raise

    def _record(self, held: HeldStream, error: Exception) -> None:
        """Let the state say what went wrong; if it cannot be written, the error itself still gets out."""
        if held.watermark is None or isinstance(error, LeaseLost | Conflict):
            return
        with suppress(TidegateError):
            held.commit(*transitions.fail(held.watermark, self.parts.hidden(str(error)), self.clock()))

    def _table_sync(self, count: _Count, job: TableJob) -> TableSync:
        extractor = Extractor(
            self.parts.source(),
            self.parts.staging,
            self.session,
            count,
            self.clock,
            self.until,
            self.allowance,
            plain=self.pipeline.target.type == "redshift",
        )
        loader = self._loader(count, job.settings) if self.request.scope is Scope.BOTH else None
        judge = Judge(
            self.parts.staging,
            self.session,
            self.parts.store.history,
            self.clock,
            count.found,
            count.put_aside,
            count.note,
            self.until,
        )
        order = self.pipeline.processing.strategy
        return TableSync(
            self.parts.source(), extractor, loader, count, self.clock, self._run_id, judge, order
        )

    def _loader(self, count: _Count, settings: TableSettings) -> Loader:
        naming = Naming(self.pipeline.name_rules, settings.names, self.parts.store)
        return Loader(self.parts.staging, self.parts.target, naming, count, self.clock, self.deadline)

    def _run_id(self) -> str:
        return f"{self.clock():%Y%m%dT%H%M%S}-{self.token()}"


_Act = Callable[[TableSync, HeldStream, TableJob], Passage]


def includes_null_cursors(job: TableJob) -> bool:
    """Whether rows may lack their timestamp, and are to be followed all the same."""
    moment = job.settings.cursor.timestamp
    included = job.settings.null_cursor is NullCursorPolicy.INCLUDE
    return included and moment is not None and job.relation.schema.column(moment).nullable


def _defect(error: Exception, stream: StreamId) -> TidegateError:
    return InvariantBroken(
        f"unexpected {type(error).__name__}: {error}",
        where=str(stream),
        hint="this is a defect in Tidegate, nothing was lost; --debug shows where, please report it",
    )


def null_cursor_job(job: TableJob, source: Source) -> TableJob:
    """The rows without a cursor value, as a stream of their own that follows the id."""
    moment = job.settings.cursor.timestamp
    key = job.settings.cursor.id or (
        job.relation.schema.key[0] if len(job.relation.schema.key) == 1 else None
    )
    if moment is None or key is None:
        raise ConfigError(
            "`null_cursor: include` follows such rows by id, and there is no id column to follow",
            where=str(job.stream),
            hint="name one with cdc_id_column",
        )
    empty = f"{source.quote(moment)} IS NULL"
    # A filter may end in a comment, so its closing bracket stands on a line of its own.
    both = f"(\n{job.relation.filter}\n) AND {empty}" if job.relation.filter else empty
    settings = replace(
        job.settings, strategy=Strategy.ID_ONLY, cursor=Cursor(id=key), null_cursor=NullCursorPolicy.SKIP
    )
    stream = beside(job.stream, NULL_CURSORS)
    again = job.again
    return replace(
        job,
        settings=settings,
        stream=stream,
        relation=replace(job.relation, filter=both),
        target=replace(job.target, stream=stream),
        again=None if again is None else lambda: null_cursor_job(again(), source),
    )


def _succeeded(table: str, passage: Passage, count: _Count) -> TableResult:
    moved = count.rows_extracted or count.rows_loaded or count.files
    status = TableStatus.SUCCESS if moved or passage.window is not None else TableStatus.NOTHING_NEW
    return replace(
        count.result(table, status),
        window=passage.window,
        held_back_seconds=passage.ceiling.held_back_seconds,
        held_back_by=passage.ceiling.held_back_by,
        notes=passage.notes,
        schema_changes=passage.changes,
    )


class _Count:
    """Counts what passes by, for the result, and passes it on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.rows_extracted = 0
        self.rows_loaded = 0
        self.files = 0
        self.bytes = 0
        self.quarantined = 0
        self.failures: list[str] = []
        self.lossy: Tally = ()

    def result(self, table: str, status: TableStatus) -> TableResult:
        return TableResult(
            table=table,
            status=status,
            rows_extracted=self.rows_extracted,
            rows_loaded=self.rows_loaded,
            files_created=self.files,
            bytes=self.bytes,
            rows_quarantined=self.quarantined,
            quality=tuple(self.failures),
            lossy=self.lossy,
        )

    def started(self, stream: StreamId) -> None:
        self._progress.started(stream)

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        self._progress.planned(stream, chunks, batch_size)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        self.rows_extracted += receipt.rows
        if receipt.segment is not None:
            self.files += 1
            self.bytes += receipt.segment.bytes
        if receipt.quarantined is not None:
            self.quarantined += receipt.quarantined.rows
        self.lossy = tally(self.lossy, receipt.lossy)
        self._progress.staged(stream, receipt)

    def loaded(self, stream: StreamId, rows: int) -> None:
        self.rows_loaded += rows
        self._progress.loaded(stream, rows)

    def note(self, stream: StreamId, text: str) -> None:
        self._progress.note(stream, text)

    def put_aside(self, rows: int) -> None:
        self.quarantined += rows

    def found(self, stream: StreamId, failure: str) -> None:
        self.failures.append(failure)
        self._progress.note(stream, failure)

    def finished(self, stream: StreamId, result: TableResult) -> None:
        self._progress.finished(stream, result)

    def tell_lossy(self, stream: StreamId) -> None:
        for column, values in self.lossy:
            many = "1 value" if values == 1 else f"{values:,} values"
            self._progress.note(stream, f"column {column}: {many} did not fit and became NULL")
