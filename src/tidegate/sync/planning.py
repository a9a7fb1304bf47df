"""Planning: from a mark and a source to a frozen window. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import ConfigError, NullCursor, UsageError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import NullCursorPolicy, WriteMode
from tidegate.core.types import Kind
from tidegate.core.watermark import RunKind, Watermark
from tidegate.core.windows import Window
from tidegate.observe.figures import counted
from tidegate.sources.contract import Source
from tidegate.sync.job import TableJob

EVERYTHING = Window(None, None)
_NO_LIMIT = "no limit can cut what has no cursor: it is read whole"


@dataclass(frozen=True)
class WindowPlan:
    """The next window of a stream, or the reason why there is none."""

    window: Window | None
    """None: nothing new."""
    ceiling: Ceiling
    lookback: bool = False
    notes: tuple[str, ...] = ()


def next_window(
    source: Source, job: TableJob, mark: Watermark | None, *, limit: int | None, now: datetime
) -> WindowPlan:
    """Freeze the ceiling and say which window comes next."""
    uncut = () if limit is None or job.settings.cursor.columns else (_NO_LIMIT,)
    if job.kind is RunKind.SNAPSHOT:
        return WindowPlan(EVERYTHING, Ceiling(None), notes=uncut)
    notes = uncut + _null_cursors(source, job)
    low, start_notes = _low(source, job, mark)
    settled = _settled(mark, job, now)
    ceiling = source.freeze(
        job.relation,
        job.settings.cursor,
        job.settings.ceiling,
        mark.candidates if mark else (),
        after=low if settled else None,
    )
    notes += start_notes + ceiling.warnings
    back = _look_back(job, low, ceiling)
    if back != low and settled and not _after(ceiling.position, low):
        back = low
    if not _after(ceiling.position, back):
        return WindowPlan(None, ceiling, notes=notes)
    high = ceiling.position
    if limit is not None and job.order and _after(high, low):
        # Counted from the mark: rows that are read again would use the limit up and never let it move.
        high = source.nth(job.relation, job.order, Window(low, high), limit) or high
    unproved = bool(ceiling.lookback) or back != low or job.settings.emptied
    return WindowPlan(Window(back, high), ceiling, lookback=unproved, notes=notes)


def _after(position: Position | None, low: Position | None) -> bool:
    return position is not None and position.may_follow(low)


def _settled(mark: Watermark | None, job: TableJob, now: datetime) -> bool:
    """Whether nothing can appear behind the mark any more, so that an unmoved table needs no look."""
    if job.settings.ceiling.lookback_ids:
        return False
    run = mark.run if mark else None
    if run is None or not run.lookback:
        return True
    return run.finished_at is not None and now - run.finished_at > 2 * job.settings.ceiling.fallback_lag


def _null_cursors(source: Source, job: TableJob) -> tuple[str, ...]:
    policy, cursor = job.settings.null_cursor, job.settings.cursor
    if policy is NullCursorPolicy.INCLUDE:
        # Rows without a timestamp are followed by id. Without an id there is nothing to follow them by.
        cursor = replace(cursor, timestamp=None)
    if not any(job.relation.schema.column(name).nullable for name in cursor.columns):
        return ()
    count = source.null_cursors(job.relation, cursor)
    if not count:
        return ()
    columns = " or ".join(cursor.columns)
    if policy is not NullCursorPolicy.SKIP:
        raise NullCursor(
            f"{counted(count, 'row has', 'rows have')} no value in {columns}, so no window would ever hold "
            f"{'it' if count == 1 else 'them'}",
            where=str(job.stream),
            hint="fill the column, or set `null_cursor: skip`; with `include`, rows without a timestamp are "
            "followed by id",
        )
    return (f"{counted(count, 'row')} without a value in {columns} skipped, as configured",)


def _low(source: Source, job: TableJob, mark: Watermark | None) -> tuple[Position | None, tuple[str, ...]]:
    if mark is not None and mark.extracted.position is not None:
        return mark.extracted.position, ()
    start = job.settings.default_start
    if start is None:
        return None, (f"{job.stream.name} is new: it starts from the beginning",)
    low = Position.of(timestamp_value(job, start))
    relation, window = job.part(source, Window(None, low))
    older = source.count(relation, job.order[:1], window)
    left = f"; {older:,} older rows are left out" if older else ""
    return low, (f"{job.stream.name} is new: it starts after {low}{left}",)


def _look_back(job: TableJob, low: Position | None, ceiling: Ceiling) -> Position | None:
    """Where to begin reading, if rows behind the mark may have appeared since."""
    reach = _reach(job, low, ceiling.lookback) if low is not None else None
    again = bool(ceiling.lookback) or reach != low
    if again and job.target.mode is WriteMode.APPEND and not _tells_versions_apart(job):
        raise ConfigError(
            "rows have to be read again to be safe, and append could not tell them from those it has",
            where=str(job.stream),
            hint="; ".join(
                (*ceiling.warnings, "or use write_mode merge, or keep key and cursor columns as they are")
            ),
        )
    return reach


def _tells_versions_apart(job: TableJob) -> bool:
    """Whether key and cursor are staged as they are, so that a version of a row can be recognised."""
    plain = {column.name for column in job.schema.columns if column.name not in job.settings.masks}
    return bool(job.schema.key) and bool(job.order) and set(job.order) <= plain


def _reach(job: TableJob, low: Position, lookback: timedelta) -> Position:
    first = low.values[0]
    if isinstance(first, datetime):
        return Position.of(first - lookback) if lookback else low
    if isinstance(first, date):
        return Position.of(first - max(lookback, timedelta(days=1))) if lookback else low
    if isinstance(first, int) and job.settings.ceiling.lookback_ids:
        return Position.of(first - job.settings.ceiling.lookback_ids)
    return low


def parse_position(job: TableJob, text: str) -> Position:
    """A position as a user writes it: a timestamp, or an id where the stream has no timestamp."""
    if job.settings.cursor.timestamp is not None:
        return Position.of(timestamp_value(job, parse_timestamp(text)))
    column = job.settings.cursor.id
    if column is None:
        raise UsageError("this table has no cursor, so it has no positions", where=job.settings.table)
    kind = job.relation.schema.column(column).type.kind
    return Position.of(parse_id(text, kind))


def parse_timestamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"`{text}` is not a timestamp", hint="write it like 2025-08-01 or 2025-08-01 12:30:00"
        ) from None


def parse_id(text: str, kind: Kind) -> Value:
    try:
        match kind:
            case Kind.DECIMAL:
                return Decimal(text)
            case Kind.TEXT | Kind.UUID:
                return text
            case Kind.BYTES:
                return bytes.fromhex(text.removeprefix("0x"))
            case _:
                return int(text)
    except (ArithmeticError, ValueError):
        raise UsageError(f"`{text}` is not an id of kind {kind.value}") from None


def timestamp_value(job: TableJob, moment: datetime) -> Value:
    """A moment as the cursor column holds it. A zoneless moment is a reading of the column's own clock."""
    column = job.settings.cursor.timestamp
    kind = job.relation.schema.column(column).type.kind if column else Kind.INSTANT
    if kind is Kind.DATE:
        return moment.date()
    zone = ZoneInfo(job.settings.cursor.zone)
    if kind is Kind.INSTANT:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return aware.astimezone(UTC)
    return moment.astimezone(zone).replace(tzinfo=None) if moment.tzinfo else moment
