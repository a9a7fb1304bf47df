"""Going on where the S3-Redshift backup tool has stopped, losing nothing and loading nothing twice.

Its mark says that everything at or below it was read. That is taken at its word only where the warehouse has
it all: files that still wait, a load that failed, counts that differ or a run that has not ended are refused,
unless somebody says from where to read again. Where rows are merged, the mark is also put back a little: that
tool reads up to the largest timestamp it sees, so rows that were committed late, or that share the mark's
timestamp, can be missing below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidegate.core import transitions
from tidegate.core.errors import UsageError
from tidegate.core.older import Older
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Kind
from tidegate.core.watermark import Extracted, Loaded, Watermark
from tidegate.observe.figures import counted, span
from tidegate.sync.checking import ahead_of
from tidegate.sync.job import TableJob
from tidegate.sync.planning import parse_id, parse_timestamp, timestamp_value

_DONE = frozenset({"success", "completed"})
_RUNNING = frozenset({"in_progress", "running"})
_SLACK = timedelta(minutes=5)


@dataclass(frozen=True)
class TakeOver:
    """What a watermark of the older tool becomes, and what there is to say about it."""

    mark: Watermark
    document: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Wish:
    """What somebody asks for beside the file."""

    begin: str | None = None
    """Read again from here, whatever the file says."""
    lookback: timedelta = timedelta(days=1)
    """How far the mark is put back where rows are merged."""


def take_over(older: Older, job: TableJob, wish: Wish, now: datetime) -> TakeOver:
    """The mark to begin with. Raises `UsageError` where nobody could say what is loaded."""
    if not job.settings.incremental:
        raise UsageError(
            "this table is read whole every time: it has no mark to take over", where=older.table
        )
    if wish.begin is None:
        _demand_whole(older)
    merged = job.target.mode is WriteMode.MERGE
    position = _begin(job, wish.begin) if wish.begin else _position(older, job)
    lookback = wish.lookback if merged and not wish.begin else timedelta(0)
    put_back = _put_back(position, lookback)
    _demand_past(put_back, job, now, older.table)
    notes = (*_carried(older), *_doubts(older, job, wish, lookback))
    return TakeOver(_mark(older, job, put_back, now), dict(older.document), notes)


# --- What cannot be taken at its word ------------------------------------------


def _demand_whole(older: Older) -> None:
    problem = next(_unfinished(older), None)
    if problem is not None:
        raise UsageError(
            f"{problem}, so rows below its mark may be missing in the warehouse",
            where=older.table,
            hint="finish with the older tool first (`sync --redshift-only`) and give the file again, or say "
            "with --begin from where to read again",
        )


def _unfinished(older: Older) -> Iterator[str]:
    if older.extracted in _RUNNING or older.loaded in _RUNNING:
        yield "the older tool was at work when this was written, or still is"
    if older.waiting:
        yield f"{counted(len(older.waiting), 'file')} of the older tool wait to be loaded"
    if older.begun and older.loaded not in _DONE:
        yield f"the older tool's last load is `{older.loaded or 'not there'}`"
    if older.rows_extracted != older.rows_loaded:
        yield f"the older tool extracted {older.rows_extracted:,} rows and loaded {older.rows_loaded:,}"


def _demand_past(position: Position | None, job: TableJob, now: datetime, table: str) -> None:
    ahead = ahead_of(position, job.settings.cursor.zone, now)
    if ahead is not None and ahead > _SLACK:
        raise UsageError(
            f"the mark {position} lies in the future: rows before it would never be read",
            where=table,
            hint="say with --begin from where to read",
        )


# --- Where to go on ------------------------------------------------------------


def _position(older: Older, job: TableJob) -> Position | None:
    cursor = job.settings.cursor
    if not older.begun:
        return None
    values: list[Value] = []
    if cursor.timestamp is not None:
        if older.timestamp is None:
            raise _lacks(older, "timestamp", cursor.timestamp, "--begin")
        values.append(_reading(job, older.timestamp))
    if cursor.id is not None and older.id is not None:
        values.append(parse_id(str(older.id), job.relation.schema.column(cursor.id).type.kind))
    if not values:
        raise _lacks(older, "id", str(cursor.id), "`tidegate watermark set --id`")
    return Position(tuple(values))


def _lacks(older: Older, what: str, column: str, instead: str) -> UsageError:
    return UsageError(
        f"the table follows {column}, and the older watermark has no {what}",
        where=older.table,
        hint=f"say where to begin with {instead}",
    )


def _reading(job: TableJob, text: str) -> Value:
    """The tool wrote `Z` behind what the column's clock said: for a zoneless column it means nothing."""
    moment = parse_timestamp(text)
    column = str(job.settings.cursor.timestamp)
    zoneless = job.relation.schema.column(column).type.kind is not Kind.INSTANT
    return timestamp_value(job, moment.replace(tzinfo=None if zoneless else moment.tzinfo or UTC))


def _begin(job: TableJob, text: str) -> Position:
    cursor = job.settings.cursor
    if cursor.timestamp is not None:
        return Position((timestamp_value(job, parse_timestamp(text)),))
    return Position((parse_id(text, job.relation.schema.column(str(cursor.id)).type.kind),))


def _put_back(position: Position | None, lookback: timedelta) -> Position | None:
    """A timestamp is put back as a whole: everything at the new one counts as read, whatever its id."""
    first = position.values[0] if position else None
    if not lookback or not isinstance(first, date):
        return position
    if not isinstance(first, datetime):
        return Position((first - max(lookback, timedelta(days=1)),))
    return Position((first - lookback,))


def _mark(older: Older, job: TableJob, position: Position | None, now: datetime) -> Watermark:
    start = job.settings.default_start
    began = Position((timestamp_value(job, start),)) if start and job.settings.cursor.timestamp else None
    if began is not None and position is not None and position.precedes(began):
        began = position
    rows = max(older.rows_extracted, older.rows_loaded)
    # A file without times still says that there is a table with rows in it.
    at = older.loaded_at or (now if older.begun else None)
    return replace(
        transitions.new(job.stream, job.order, now),
        extracted=Extracted(position, rows, min(older.rows_last_run, rows), older.extracted_at),
        loaded=Loaded(position, older.rows_loaded, at),
        began=began if position else None,
        last_error=older.error,
    )


# --- What there is to say ------------------------------------------------------


def _carried(older: Older) -> Iterator[str]:
    if older.files or older.file_count:
        count = max(len(older.files), older.file_count or 0)
        yield (
            f"{counted(count, 'file')} of the older tool stay where they are: they are neither loaded nor "
            "deleted, and their names are kept in the history"
        )
    if older.error:
        yield f"the older tool's last error is kept: {older.error}"
    if older.unknown:
        yield f"kept in the history, and of no effect: {', '.join(older.unknown)}"


def _doubts(older: Older, job: TableJob, wish: Wish, lookback: timedelta) -> Iterator[str]:
    merged = job.target.mode is WriteMode.MERGE
    if not older.begun and not wish.begin:
        yield "the older tool has read nothing of it: the next sync begins at the beginning"
        return
    if wish.begin:
        yield f"the mark of the file is not used: rows after {wish.begin} are read again" + (
            "" if merged else ", and those that the warehouse has are then there twice"
        )
    elif lookback and job.settings.cursor.timestamp:
        yield f"{span(lookback)} before the mark are read again and merged, for what was committed late"
    else:
        yield (
            "rows that were committed late, or share the mark's timestamp, cannot be told from those that "
            "are loaded: compare the counts with `tidegate sync --verify-data`"
        )
    column = job.settings.cursor.timestamp
    if column and job.relation.schema.column(column).type.kind is Kind.INSTANT:
        yield f"the older timestamp is read as UTC; column {column} keeps moments, not readings of a clock"
