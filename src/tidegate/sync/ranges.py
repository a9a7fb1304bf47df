"""Ranges read beside the mark: `--from/--to`, and history behind a live mark.

A range has a stream of its own, with its own lease and its own marks, so it never disturbs the table's.
Ranges that were read are remembered, and a table that is appended to is never given one twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.core import transitions
from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import UsageError
from tidegate.core.positions import Position
from tidegate.core.strategies import WriteMode
from tidegate.core.watermark import RunState, Watermark
from tidegate.core.windows import Window, subtract
from tidegate.sources.contract import Source
from tidegate.state.hold import HeldStream
from tidegate.sync.continuity import fits
from tidegate.sync.job import TableJob
from tidegate.sync.planning import WindowPlan, parse_position
from tidegate.sync.streams import RANGES, beside
from tidegate.sync.table import Passage, TableSync


def range_job(job: TableJob) -> TableJob:
    stream = beside(job.stream, RANGES)
    return replace(job, stream=stream, target=replace(job.target, stream=stream))


@dataclass(frozen=True)
class RangePlan:
    """What of a wanted range is left to read, below a commit-safe ceiling like any other window's."""

    wanted: Window
    windows: tuple[Window, ...]
    ceiling: Ceiling

    unreachable: bool = False
    """Whether all of it is above the ceiling."""

    @property
    def window(self) -> Window | None:
        """From the beginning of what is read to its end; None: nothing is."""
        return Window(self.windows[0].low, self.windows[-1].high) if self.windows else None

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.ceiling.warnings, *self._left_out())

    def _left_out(self) -> tuple[str, ...]:
        holder = self.ceiling.held_back_by
        if self.windows or not (holder and self.unreachable):
            return () if self.windows else (f"nothing of {self.wanted} is left to read",)
        return (f"nothing of {self.wanted} can be read yet: it is held back by {holder}",)


def plan_range(
    source: Source,
    job: TableJob,
    side: Watermark | None,
    main: Watermark | None,
    *,
    low: str | None,
    high: str | None,
) -> RangePlan:
    """`side` is the state of the ranges' own stream, `main` that of the table's. Changes nothing."""
    if not job.settings.incremental or not job.order:
        raise UsageError("a range needs a cursor, and this table is read whole", where=job.settings.table)
    wanted = _window(job, low, high)
    ceiling = source.freeze(job.relation, job.settings.cursor, job.settings.ceiling)
    end = _end(job, wanted, ceiling, main)
    if end is None or (wanted.low is not None and end.precedes(wanted.low)):
        return RangePlan(wanted, (), ceiling, unreachable=True)
    return RangePlan(wanted, tuple(_uncovered(job, Window(wanted.low, end), side, main)), ceiling)


def _end(job: TableJob, wanted: Window, ceiling: Ceiling, main: Watermark | None) -> Position | None:
    """Where the range ends: as it says, but not above the ceiling.

    A ceiling in time leaves whole timestamps behind it, whatever the ids, so a range ends with one: of such
    ends anybody can say which is the larger.
    """
    timed = job.settings.cursor.timestamp is not None
    known = [position for position in (ceiling.position, _proved(job, main)) if position is not None]
    ends = [Position(position.values[:1]) if timed else position for position in known]
    if not ends:
        return None
    highest = max(ends)
    return highest if wanted.high is None or highest.precedes(wanted.high) else wanted.high


def _proved(job: TableJob, main: Watermark | None) -> Position | None:
    """The table's mark, where a run has brought it there: nothing can appear below the ceiling of that run,
    whoever holds today's back. A mark that was set by hand proves nothing."""
    if main is None or main.run is None or not fits(main, job):
        return None
    if main.run.progress != main.extracted.position:
        return None
    return main.extracted.position


def sync_range(
    sync: TableSync,
    held: HeldStream,
    job: TableJob,
    main: Watermark | None,
    *,
    low: str | None,
    high: str | None,
) -> Passage:
    """Finish a range that was interrupted, then read what is left of this one."""
    sync.finish_interrupted(held, job)
    _remember(sync, held)
    sync.load(held, job)
    plan = plan_range(sync.source, job, held.watermark, main, low=low, high=high)
    for note in plan.notes:
        sync.progress.note(job.stream, note)
    changes: tuple[str, ...] = ()
    for window in plan.windows:
        changes += sync.through(held, job, WindowPlan(window, plan.ceiling))
        _remember(sync, held)
    return Passage(plan.window, plan.ceiling, plan.ceiling.warnings, changes)


def _uncovered(job: TableJob, wanted: Window, side: Watermark | None, main: Watermark | None) -> list[Window]:
    """Merging a range again is harmless; appending it again would double its rows.

    What lies ahead of the mark is the table's own to bring.
    """
    if job.target.mode is not WriteMode.APPEND:
        return [wanted]
    if main is None or main.extracted.position is None:
        raise UsageError(
            "the table is appended to and has no mark yet: its first sync would read the range again",
            where=job.settings.table,
            hint="sync the table first; `default_start` says where it begins",
        )
    covered = [*main.covered, Window(main.began, None), *(side.covered if side else ())]
    try:
        return [window for window in subtract(wanted, covered) if not window.empty]
    except TypeError:
        raise UsageError(
            "only the database could say which part of the range was read before",
            where=job.settings.table,
            hint="choose ends that differ in the timestamp from those of earlier ranges and of the mark",
        ) from None


def _window(job: TableJob, low: str | None, high: str | None) -> Window:
    try:
        return Window(parse_position(job, low) if low else None, parse_position(job, high) if high else None)
    except ValueError as error:
        raise UsageError(str(error), where=job.settings.table) from None


def _remember(sync: TableSync, held: HeldStream) -> None:
    """Cover the window of the run that has just finished, or was finished before a crash.

    Whoever has reset the stream since then wants that window to be read again.
    """
    mark = held.watermark
    if mark is None or mark.run is None or mark.run.state is not RunState.SUCCEEDED:
        return
    if mark.run.number != mark.runs:
        return
    covered = transitions.cover(mark, mark.run.window, sync.clock())
    if covered.covered != mark.covered:
        held.commit(covered)
