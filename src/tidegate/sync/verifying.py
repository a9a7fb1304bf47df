"""`--verify-data`: do the row counts of source and warehouse agree?

The source moves on while we count. Rows that are gone from below the mark because they were updated since
are found above it, so the warehouse may hold between the rows at or below the mark and all rows there are.
Fewer rows were lost on the way; more were deleted at the source, or came from elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.config.pipelines import Pipeline
from tidegate.core.errors import TidegateError, VerificationFailed
from tidegate.core.strategies import WriteMode
from tidegate.core.watermark import StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.sync.job import TableJob, describe
from tidegate.sync.parts import Parts
from tidegate.sync.quarantine import in_quarantine
from tidegate.sync.result import SyncResult, TableResult, TableStatus
from tidegate.sync.streams import family

_VERIFIABLE = (TableStatus.SUCCESS, TableStatus.NOTHING_NEW)


def verified(result: SyncResult, pipeline: Pipeline, parts: Parts) -> SyncResult:
    """The same result, in which tables whose counts differ have failed."""
    tables = {name: _table(table, pipeline, parts) for name, table in result.tables.items()}
    return replace(result, tables=tables)


def _table(result: TableResult, pipeline: Pipeline, parts: Parts) -> TableResult:
    if result.status not in _VERIFIABLE:
        return result
    stream = StreamId(pipeline.name, result.table)
    try:
        mark = parts.store.read(stream).watermark
        note = _compare(parts, describe(parts.source(), pipeline.settings_for(result.table), stream), mark)
    except TidegateError as error:
        return replace(result, status=TableStatus.FAILED, error=error)
    return replace(result, notes=(*result.notes, note))


def _compare(parts: Parts, job: TableJob, mark: Watermark | None) -> str:
    if mark is None or (mark.extracted.position is None and job.settings.incremental):
        return "verified: nothing has been read yet"
    if mark.pending:
        raise VerificationFailed(
            f"{len(mark.pending):,} staged files are not loaded yet",
            where=str(job.stream),
            hint="load them with `tidegate sync --load-only`",
        )
    there = parts.target().count(job.target.name)
    least, most = _expected(parts, job, mark)
    least -= _aside(parts, job)
    if there < least or (most is not None and there > most):
        between = (
            f"{least:,}"
            if most == least
            else f"between {least:,} and {most:,}"
            if most
            else f"{least:,} or more"
        )
        raise VerificationFailed(
            f"the warehouse has {there:,} rows, the source says {between}",
            where=str(job.stream),
            hint="rows deleted at the source stay in the warehouse; rows missing there are read again after "
            "`tidegate watermark rollback`",
        )
    return f"verified: {there:,} rows in the warehouse agree with the source"


def _aside(parts: Parts, job: TableJob) -> int:
    """Rows in quarantine are at the source, and not in the warehouse, or not in this version."""
    if job.settings.validation is None:
        return 0
    streams = [parts.store.history(stream) for stream in family(job.stream)]
    return sum(segment.rows for history in streams for segment, _ in in_quarantine(history))


def _expected(parts: Parts, job: TableJob, mark: Watermark) -> tuple[int, int | None]:
    if not job.settings.incremental:
        last = mark.extracted.rows_last_run
        return last, last if job.target.mode is WriteMode.REPLACE else None
    source, position = parts.source(), mark.extracted.position
    relation, window = job.part(source, Window(mark.began, position))
    behind = source.count(relation, job.order, window)
    if job.target.mode is WriteMode.APPEND:
        return behind, None
    # Without a look at the cursor: rows that lack it may be in the warehouse too.
    return behind, source.count(job.relation, (), Window(None, None))
