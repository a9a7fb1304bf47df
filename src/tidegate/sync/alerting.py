"""What a sync found wrong with its streams, for those who want to be told."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.core.errors import LeaseHeld, TidegateError, VerificationFailed
from tidegate.core.watermark import StreamId, Watermark
from tidegate.observe.alerts import Alerts, Condition, Kind, Look
from tidegate.observe.figures import counted
from tidegate.state.contract import Store, Stored
from tidegate.sync.result import SyncResult, TableResult, TableStatus

JOB = "job"
WHOLE = ""
"""What has no stream of its own is said of the pipeline as a whole."""


@dataclass(frozen=True)
class Done:
    """A sync that is over, and what of it tells something."""

    result: SyncResult
    read: bool
    """Whether the source was asked: only then is anything known of what holds it back."""
    verified: bool


def look_at(done: Done, stored: Iterable[Stored], now: datetime) -> Look:
    """What a sync shows of its tables, and the state of all streams of the pipeline."""
    pipeline = done.result.pipeline
    looked_at = {(Kind.FAILURE, WHOLE)}
    found: list[Condition] = []
    for table in done.result.tables.values():
        looked_at |= {(kind, table.table) for kind in _judged(table, done)}
        found += _wrong(table, now)
    for item in stored:
        looked_at.add((Kind.PENDING, item.stream.name))
        found += _pending(item.stream, item.watermark)
    return Look(pipeline, looked_at, tuple(found), done.result.execution_id)


def _judged(table: TableResult, done: Done) -> Iterator[Kind]:
    if table.status is TableStatus.HELD:
        return  # another run has it, and will tell
    yield Kind.FAILURE
    if done.verified and not _failed(table):
        yield Kind.DIFFERENCE
    if done.read and not _failed(table):
        yield Kind.HELD_BACK


def _failed(table: TableResult) -> bool:
    return table.error is not None and not isinstance(table.error, VerificationFailed)


def _wrong(table: TableResult, now: datetime) -> Iterator[Condition]:
    if table.status is TableStatus.FAILED and table.error is not None:
        yield failure(table.table, table.error)
    if table.held_back_seconds > 0:
        since = now - timedelta(seconds=table.held_back_seconds)
        message = f"held back by {table.held_back_by or 'a transaction that is still open'}"
        yield Condition(Kind.HELD_BACK, table.table, message, since)


def failure(stream: str, error: TidegateError) -> Condition:
    kind = Kind.DIFFERENCE if isinstance(error, VerificationFailed) else Kind.FAILURE
    return Condition(kind, stream, str(error), facts={"error": type(error).__name__})


def _pending(stream: StreamId, mark: Watermark | None) -> Iterator[Condition]:
    if mark is None or not mark.pending:
        return
    rows = sum(segment.rows for segment in mark.pending)
    message = f"{counted(len(mark.pending), 'file')} with {counted(rows, 'row')} wait to be loaded"
    facts = {"files": len(mark.pending), "rows": rows}
    yield Condition(Kind.PENDING, stream.name, message, _waiting_since(mark), facts)


def _waiting_since(mark: Watermark) -> datetime:
    """Run numbers are the milliseconds at which runs were planned."""
    return datetime.fromtimestamp(min(segment.run for segment in mark.pending) / 1000, UTC)


def not_started(pipeline: str, error: TidegateError) -> Look:
    """A pipeline none of whose tables could begin."""
    return Look(pipeline, {(Kind.FAILURE, WHOLE)}, (failure(WHOLE, error),))


def job_ended(pipeline: str, error: TidegateError | None) -> Look:
    """How a job of temporary tables ended; another run that is in the way is none of its troubles."""
    if isinstance(error, LeaseHeld):
        return Look(pipeline, frozenset())
    found = () if error is None else (failure(JOB, error),)
    return Look(pipeline, {(Kind.FAILURE, JOB), (Kind.DIFFERENCE, JOB)}, found)


def look_after(done: Done, alerts: Alerts, store: Store, now: datetime) -> Look:
    """The look at a sync that is over, and at the state it left, as far as somebody wants to know."""
    stored: tuple[Stored, ...] = ()
    if alerts.wants(Kind.PENDING):
        try:
            stored = store.streams(done.result.pipeline).streams
        except TidegateError as error:  # the next sync looks again
            logging.getLogger(__name__).warning("cannot look for pending files: %s", error)
    return look_at(done, stored, now)
