"""A window for any Spark job, and a memory of it.

    tracker = WatermarkTracker("file:///path/to/state")

    with tracker.run("wos") as run:
        changed = run.window.filter(spark.table("source"), "updated_at")
        ...

A run's window is frozen when it starts: what it reads is what it closes. It holds the pipeline's lease until
it is finalised, so a second job of the same pipeline is told who is at work. A job that died leaves its
window to the next one, unchanged. After FAILED or SKIPPED the next run begins where this one began, with
a new end. Only SUCCESS moves the mark.

No Spark is needed, and none is imported: `filter` works on whatever overloads comparison, as Spark does.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from tidegate.core import direct, transitions
from tidegate.core.errors import TidegateError, UsageError
from tidegate.core.positions import Position
from tidegate.core.records import TIME_CURSOR, TRACKED, Record, closed, current
from tidegate.core.secrecy import hidden
from tidegate.core.watermark import Event, RunKind, RunState, StreamId, Watermark
from tidegate.core.windows import Window, within
from tidegate.state import clock as clocks
from tidegate.state.contract import Store
from tidegate.state.hold import TTL, HeldStream, hold
from tidegate.state.opening import open_store
from tidegate.state.process import this_process

LAG = timedelta(seconds=1)
"""How far behind the clock a window ends: rows may carry a moment that is not over yet."""

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Status(StrEnum):
    """How a run can end."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class TimeWindow(NamedTuple):
    """What is after `start`, up to and including `end`. No start: from the beginning."""

    start: datetime | None
    end: datetime

    def filter(self, frame: T, column: str) -> T:
        """The rows of a Spark DataFrame whose column lies in the window; NULL lies in none.

        What has no zone, Spark takes to be in the session's, `spark.sql.session.timeZone`.
        """
        rows: Any = frame
        _demand_moments(rows, column)
        kept: T = rows.filter(within(rows[column], self.start, self.end))
        return kept


def _demand_moments(rows: Any, column: str) -> None:
    """A day counts as its first moment: what comes later that day would lie in a window that is closed."""
    spark = type(rows).__module__.startswith("pyspark.sql")
    # Selected, since `column` may be `t.day` or a field in a column.
    if spark and rows.select(rows[column]).dtypes[0][1] == "date":
        raise UsageError(
            f"`{column}` holds days, and a window is cut between two moments of a day",
            hint="filter by a column of timestamps, or by days that are over",
        )


@dataclass(frozen=True)
class WatermarkRecord:
    """A pipeline's record, under the names of the table `watermarks`."""

    pipeline_name: str
    job_id: str | None
    last_processed_ts: datetime | None
    current_run_ts: datetime | None
    last_processed_version: int | None
    status: str
    created_at: datetime
    updated_at: datetime
    records_processed: int | None = None
    execution_duration: float | None = None
    error_message: str | None = None
    watermark_id: int | None = None
    """Given by the table; stores that have none leave it out."""
    run: int | None = field(default=None, repr=False)
    """Which run of the pipeline this is, even where two jobs have the same id."""


class TrackedRun:
    """A run under way: its frozen window, and what it has to say when it ends."""

    def __init__(self, record: WatermarkRecord) -> None:
        assert record.current_run_ts is not None
        self.record = record
        self.window = TimeWindow(record.last_processed_ts, record.current_run_ts)
        self.records_processed = 0
        self._skipped: str | None = None

    @property
    def pipeline(self) -> str:
        return self.record.pipeline_name

    @property
    def job_id(self) -> str | None:
        return self.record.job_id

    def skip(self, reason: str) -> None:
        """End as SKIPPED: the window is left to a later run."""
        self._skipped = reason

    @property
    def skipped(self) -> str | None:
        return self._skipped


@dataclass(frozen=True)
class LineageEntry:
    """Which run read which window, and how that ended. `jobs` are all that worked on it, in order."""

    run: int
    jobs: tuple[str, ...]
    window: TimeWindow
    status: str
    started_at: datetime
    finished_at: datetime | None = None
    records_processed: int | None = None
    error_message: str | None = None


@dataclass
class _Open:
    """A run that this process has started: the held stream, and what lets go of it."""

    held: HeldStream
    release: ExitStack


class WatermarkTracker:
    """Windows for the jobs of many pipelines, kept in any store. Threads may share a tracker."""

    def __init__(
        self,
        store: Store | str,
        *,
        lag: timedelta = LAG,
        ttl: timedelta = TTL,
        clock: Callable[[], datetime] = clocks.now,
        token: Callable[[], str] = clocks.new_token,
    ) -> None:
        self._store = open_store(store) if isinstance(store, str) else store
        self._lag = lag
        self._ttl = ttl
        self._clock = clock
        self._token = token
        self._runs: dict[str, _Open] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> WatermarkTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what this tracker holds. A run that was not finalised is left to the next job."""
        with self._guard:
            left, self._runs = list(self._runs.values()), {}
        for item in left:
            item.release.close()

    # --- The three steps -------------------------------------------------------

    def start_pipeline_run(self, pipeline: str | Enum, job_id: str | None = None) -> WatermarkRecord:
        """Take the pipeline, freeze its window, and record that the job is RUNNING.

        Raises `LeaseHeld`, naming the other job, while one is at work.
        """
        name = _named(pipeline)
        job = job_id or f"job-{self._token()}"
        with ExitStack() as stack:
            held = self._hold(name, job, stack)
            mark = self._started(held, name, job)
            with self._guard:
                self._runs[name] = _Open(held, stack.pop_all())
        return _record(mark)

    def get_delta_window(self, pipeline: str | Enum) -> TimeWindow:
        """The window of the run under way, as often as it is asked for.

        While no run is open, it is what a run that started now would get.
        """
        mark = self._store.read(_stream(_named(pipeline))).watermark
        if mark is None or mark.open_run is None or mark.open_run.state is RunState.FAILED:
            return _times(self._next(mark))
        return _times(mark.open_run.window)

    def finalize_pipeline_run(
        self,
        record: WatermarkRecord,
        final_status: str,
        *,
        error: str | None = None,
        records_processed: int = 0,
    ) -> WatermarkRecord:
        """Close the run that `record` began. SUCCESS moves the mark and opens the next READY record.

        It may be called in another process than the one that started the run, once that one is gone.
        """
        status = _status(final_status)
        with ExitStack() as stack:
            held = self._finishing(record, stack)
            before = _demand_open(held.watermark, record)
            after, events = self._ended(before, status, error, records_processed)
            held.commit(after, events)
        done = closed(before, after)
        return _row(done, after) if done else _record(after)

    # --- The short way ---------------------------------------------------------

    @contextmanager
    def run(self, pipeline: str | Enum, job_id: str | None = None) -> Iterator[TrackedRun]:
        """A run for the length of a `with` block: SUCCESS at its end, FAILED if it raises."""
        record = self.start_pipeline_run(pipeline, job_id)
        run = TrackedRun(record)
        try:
            yield run
        except BaseException as error:
            said = hidden(f"{type(error).__name__}: {error}")
            self._record_failure(record, said)
            raise
        status = Status.SKIPPED if run.skipped is not None else Status.SUCCESS
        self.finalize_pipeline_run(record, status, error=run.skipped, records_processed=run.records_processed)

    def tracked(
        self, pipeline: str | Enum, job_id: str | None = None
    ) -> Callable[[Callable[Concatenate[TrackedRun, P], T]], Callable[P, T]]:
        """Make a function a tracked job. It is given its run as its first argument."""

        def decorate(job: Callable[Concatenate[TrackedRun, P], T]) -> Callable[P, T]:
            _demand_work(job)

            @functools.wraps(job)
            def tracked_job(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.run(pipeline, job_id) as run:
                    return job(run, *args, **kwargs)

            return tracked_job

        return decorate

    # --- By hand, and looking back ---------------------------------------------

    def correct(self, pipeline: str | Enum, to: datetime | None, reason: str) -> WatermarkRecord:
        """Move the mark by hand: the next window begins at `to`. The reason is kept in the history."""
        position = None if to is None else Position.of(_instant(to))
        name = _named(pipeline)
        with ExitStack() as stack:
            held = self._hold(name, "a correction", stack)
            mark = held.watermark or transitions.new(_stream(name), TIME_CURSOR, self._clock())
            moved, events = transitions.move(mark, position, reason=reason, now=self._clock())
            held.commit(moved, events)
        return _record(moved)

    def lineage(self, pipeline: str | Enum) -> list[LineageEntry]:
        """Which run read which window, oldest first."""
        entries: dict[int, LineageEntry] = {}
        for event in self._store.history(_stream(_named(pipeline))):
            number = event.data.get("run")
            if isinstance(number, int):
                entries[number] = _told(entries.get(number), number, event)
            elif event.kind == "manual" and entries:
                last = max(entries)
                entries[last] = _overruled(entries[last], event)
        return list(entries.values())

    # --- Inside ----------------------------------------------------------------

    def _hold(self, pipeline: str, job: str, stack: ExitStack) -> HeldStream:
        holder = this_process(f"job {job} of pipeline {pipeline}")
        held = hold(
            self._store,
            _stream(pipeline),
            holder=holder,
            clock=self._clock,
            nonce=self._token(),
            ttl=self._ttl,
        )
        return stack.enter_context(held)

    def _finishing(self, record: WatermarkRecord, stack: ExitStack) -> HeldStream:
        """The stream, held until the run is closed. A record of another run lets go of nothing."""
        name = record.pipeline_name
        with self._guard:
            mine = self._runs.get(name)
            if mine is not None:
                _demand_open(mine.held.watermark, record)
                stack.push(self._runs.pop(name).release.pop_all())
                return mine.held
        return self._hold(name, record.job_id or "", stack)

    def _started(self, held: HeldStream, pipeline: str, job: str) -> Watermark:
        """Plan and start in one commit, or take over the window of a job that died."""
        now = self._clock()
        mark = held.watermark or transitions.new(_stream(pipeline), TIME_CURSOR, now)
        planned: tuple[Event, ...] = ()
        if mark.open_run is None or mark.open_run.state is RunState.FAILED:
            mark, planned = transitions.plan(
                mark,
                run_id=job,
                kind=RunKind.DIRECT,
                window=self._next(mark),
                now=now,
                cursor=TIME_CURSOR,
            )
        else:
            _log.warning("job %s was abandoned; %s goes on with its window", mark.open_run.id, job)
        started, events = direct.start(mark, run_id=job, now=now)
        held.commit(started, (*planned, *events))
        return started

    def _next(self, mark: Watermark | None) -> Window:
        """From the mark to now, less the lag. Right after a success there may be nothing in it."""
        low = mark.extracted.position if mark else None
        high = Position.of((self._clock() - self._lag).astimezone(UTC))
        return Window(low, low if low is not None and high < low else high)

    def _ended(
        self, mark: Watermark, status: Status, said: str | None, rows: int
    ) -> tuple[Watermark, tuple[Event, ...]]:
        now = self._clock()
        match status:
            case Status.SUCCESS:
                return direct.complete(mark, rows=rows, now=now)
            case Status.FAILED:
                return transitions.fail(mark, said or "the job said that it failed", now)
            case Status.SKIPPED:
                return direct.skip(mark, reason=said, now=now)

    def _record_failure(self, record: WatermarkRecord, said: str) -> None:
        """The job's own error is what the user must see, whatever becomes of the record."""
        try:
            self.finalize_pipeline_run(record, Status.FAILED, error=said)
        except TidegateError as error:
            # Nothing is lost: the window stays open, for this job or whoever has taken it over.
            _log.warning("%s: the failure could not be recorded: %s", record.pipeline_name, error)


# --- Names and records ---------------------------------------------------------


def _named(pipeline: str | Enum) -> str:
    """A pipeline's name: plain text, or a member of an enum."""
    if isinstance(pipeline, Enum):
        pipeline = pipeline.value if isinstance(pipeline.value, str) else pipeline.name
    if not pipeline:
        raise UsageError("a pipeline needs a name")
    return pipeline


def _demand_work(job: Callable[..., object]) -> None:
    """What such a function returns when it is called is work to be done: its run would end before that."""
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_later(job) for is_later in later):
        name = getattr(job, "__name__", str(job))
        raise UsageError(
            f"`{name}` has done nothing yet when it returns, and its run would be over",
            hint="write `with tracker.run(…) as run:` in it",
        )


def _stream(pipeline: str) -> StreamId:
    return StreamId(pipeline, TRACKED)


def _status(text: str) -> Status:
    try:
        return Status(str(text).upper())
    except ValueError:
        raise UsageError(f"a run cannot end as {text!r}", hint="say SUCCESS, FAILED or SKIPPED") from None


def _instant(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise UsageError(
            f"{moment} has no time zone", hint="say which, e.g. datetime(2025, 1, 1, tzinfo=UTC)"
        )
    return moment.astimezone(UTC)


def _demand_open(mark: Watermark | None, record: WatermarkRecord) -> Watermark:
    """The run to be finalised must be the very one that this record began."""
    run = mark.open_run if mark else None
    if mark is not None and run is not None and run.number == record.run and run.state is not RunState.FAILED:
        if run.id == record.job_id:
            return mark
        raise UsageError(
            f"job {record.job_id} no longer has the pipeline's window: job {run.id} took it over",
            where=record.pipeline_name,
            hint="its work is repeated by that job; let it finish",
        )
    raise UsageError(
        f"the run of job {record.job_id} is over",
        where=record.pipeline_name,
        hint="a run is finalised once; start another",
    )


def _record(mark: Watermark) -> WatermarkRecord:
    return _row(current(mark), mark)


def _row(row: Record, mark: Watermark) -> WatermarkRecord:
    return WatermarkRecord(
        pipeline_name=row.pipeline_name,
        job_id=row.job_id,
        last_processed_ts=row.last_processed_ts,
        current_run_ts=row.current_run_ts,
        last_processed_version=row.last_processed_version,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        records_processed=row.records_processed,
        execution_duration=row.execution_duration,
        error_message=row.error_message,
        run=mark.run.number if mark.run and row.job_id is not None else None,
    )


def _times(window: Window) -> TimeWindow:
    low = window.low.values[0] if window.low else None
    high = window.high.values[0] if window.high else None
    assert low is None or isinstance(low, datetime)
    assert isinstance(high, datetime)
    return TimeWindow(low, high)


def _overruled(entry: LineageEntry, event: Event) -> LineageEntry:
    """A correction gives up the window of a run that was abandoned."""
    if entry.finished_at is not None:
        return entry
    return replace(entry, status="SKIPPED", finished_at=event.at, error_message=event.data["reason"])


def _told(entry: LineageEntry | None, number: int, event: Event) -> LineageEntry:
    """What a line of history adds to what is known of a run."""
    data = event.data
    if entry is None:
        window = _times(Window.from_json(data["window"]))
        entry = LineageEntry(number, (), window, "READY", event.at)
    match event.kind:
        case "started":
            jobs = (*entry.jobs, str(event.run_id))
            return replace(entry, jobs=jobs, status="RUNNING", started_at=event.at)
        case "completed":
            return replace(entry, status="SUCCESS", finished_at=event.at, records_processed=data["rows"])
        case "failed":
            return replace(entry, status="FAILED", finished_at=event.at, error_message=data["error"])
        case "skipped":
            return replace(entry, status="SKIPPED", finished_at=event.at, error_message=data["reason"])
        case _:
            return entry
