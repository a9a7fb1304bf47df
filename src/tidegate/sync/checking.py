"""`watermark check`: what is wrong with the state, each with the way to repair it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tidegate.core.errors import DamagedRecord
from tidegate.core.leases import Holder
from tidegate.core.positions import Position
from tidegate.core.watermark import StreamId, Watermark
from tidegate.observe.figures import counted
from tidegate.state.contract import Damaged, Store, Stored
from tidegate.state.process import known_dead
from tidegate.sync.streams import owner

if TYPE_CHECKING:
    from tidegate.staging.contract import Staging

_SLACK = timedelta(minutes=5)
"""Clocks of two machines may differ that much without anything being wrong."""


@dataclass(frozen=True)
class Finding:
    where: str
    problem: str
    repair: str


@dataclass(frozen=True)
class Checked:
    """A stream to check, with what is known of it beside its state."""

    stored: Stored
    staging: Staging | None
    """None where nothing is ever staged."""
    zone: str = "UTC"
    """Where a zoneless cursor's clock stands."""
    again: str = "tidegate sync"
    """What goes on with it."""


def check_stream(item: Checked, store: Store, me: Holder, now: datetime) -> Iterator[Finding]:
    stream, mark = item.stored.stream, item.stored.watermark
    yield from _history(store, stream)
    if item.stored.lease is not None and known_dead(item.stored.lease.holder, me):
        yield Finding(
            str(stream),
            f"the lease belongs to a process that is dead: {item.stored.lease.holder}",
            f"{item.again} {_chosen(stream)}   (it takes the lease over and goes on)",
        )
    if mark is not None:
        yield from _future(stream, mark, item.zone, now)
        yield from _counts(stream, mark)
        if item.staging is not None:
            yield from _pending(stream, mark, item.staging)


def damaged(records: Iterable[Damaged]) -> Iterator[Finding]:
    for record in records:
        yield Finding(
            record.where,
            record.problem,
            "tidegate watermark import BACKUP, or tidegate watermark reset for the table it belongs to",
        )


def _history(store: Store, stream: StreamId) -> Iterator[Finding]:
    try:
        store.history(stream)
    except DamagedRecord as error:
        repair = f"tidegate watermark reset {_chosen(stream)}   (the damaged file is kept beside)"
        yield Finding(error.where or str(stream), error.message, repair)


def _future(stream: StreamId, mark: Watermark, zone: str, now: datetime) -> Iterator[Finding]:
    ahead = ahead_of(mark.extracted.position, zone, now)
    if ahead is not None and ahead > _SLACK:
        yield Finding(
            str(stream),
            f"the mark {mark.extracted.position} lies in the future: rows before it would never be read",
            f"tidegate watermark rollback {_chosen(stream)} --to RUN --reason WHY, or watermark set",
        )
    if mark.updated_at > now + _SLACK:
        yield Finding(
            str(stream),
            f"the record was written at {mark.updated_at:%Y-%m-%d %H:%M:%SZ}, in the future",
            "set the clock of the machine that runs tidegate",
        )


def ahead_of(position: Position | None, zone: str, now: datetime) -> timedelta | None:
    """How far a timestamp mark is ahead of `now`; negative: how far behind. None if it is not a timestamp."""
    first = position.values[0] if position else None
    if not isinstance(first, datetime):
        return None
    instant = first if first.tzinfo else first.replace(tzinfo=ZoneInfo(zone))
    return instant.astimezone(UTC) - now


def _counts(stream: StreamId, mark: Watermark) -> Iterator[Finding]:
    waiting = sum(segment.rows for segment in mark.pending)
    known = mark.extracted.rows_total
    impossible = []
    if mark.loaded.rows_total > known:
        impossible.append(f"{mark.loaded.rows_total:,} rows loaded, but only {known:,} were extracted")
    if waiting > known:
        impossible.append(f"{waiting:,} rows are pending, but only {known:,} were extracted")
    if mark.extracted.rows_last_run > known:
        last = mark.extracted.rows_last_run
        impossible.append(f"the last run extracted {last:,} rows, all runs together {known:,}")
    for problem in impossible:
        yield Finding(
            str(stream),
            f"the counts cannot be: {problem}",
            f"tidegate watermark import BACKUP, or tidegate watermark reset {_chosen(stream)}",
        )


def _pending(stream: StreamId, mark: Watermark, staging: Staging) -> Iterator[Finding]:
    there = staging.stat_all([segment.key for segment in mark.pending])
    gone, bent = [], []
    for segment in mark.pending:
        found = there.get(segment.key)
        if found is None:
            gone.append(f"{segment.key} is gone")
        elif found.bytes != segment.bytes:
            bent.append(
                f"{segment.key} is not what was written: it has {found.bytes:,} bytes, not {segment.bytes:,}"
            )
    for problems in filter(None, (gone, bent)):
        yield Finding(
            str(stream),
            f"the pending file {problems[0]}{_and_more(len(problems) - 1)}",
            f"put {'the file' if len(problems) == 1 else 'the files'} back, "
            f"or read the table again: tidegate watermark reset {_chosen(stream)}",
        )


def _and_more(others: int) -> str:
    """A folder that is gone is one trouble, however many files it had."""
    return f", and so {'is' if others == 1 else 'are'} {counted(others, 'other', 'others')}" if others else ""


def _chosen(stream: StreamId) -> str:
    return f"-p {_quoted(stream.pipeline)} -t {_quoted(owner(stream).name)}"


def _quoted(name: str) -> str:
    import shlex

    return shlex.quote(name)
