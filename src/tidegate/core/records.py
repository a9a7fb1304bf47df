"""A watermark as rows of a table: the columns and the status names that people know.

Inside there is one state machine. Outside, a stream of Delta versions is PLANNED, COMPLETED, FAILED or
SKIPPED, and every other stream is READY, RUNNING, SUCCESS, FAILED or SKIPPED. A record is one window's row:
it changes while the window is worked on, and stays as it is once that went well. Then the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.core.positions import Position
from tidegate.core.watermark import Run, RunState, StreamId, Watermark

VERSION_CURSOR = ("version",)
"""The cursor of a stream whose positions are versions of a Delta table."""
TIME_CURSOR = ("time",)
"""The cursor of a tracked job, whose windows are ranges of time."""
TRACKED = "run"
"""The name of a tracked job's stream: the pipeline's name says it all."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the table `watermarks`, without what only the store gives it."""

    pipeline_name: str
    table_name: str | None
    job_id: str | None
    last_processed_ts: datetime | None
    current_run_ts: datetime | None
    last_processed_version: int | None
    start_version: int | None
    end_version: int | None
    status: str
    schema_version: str | None
    records_processed: int | None
    execution_duration: float | None
    """Seconds."""
    error_message: str | None
    failed_at: datetime | None
    created_at: datetime
    updated_at: datetime


def is_versions(mark: Watermark) -> bool:
    return mark.cursor == VERSION_CURSOR


def run_status(mark: Watermark) -> str:
    """What the outside calls the state of the stream's last run."""
    return (_VERSION_STATUS if is_versions(mark) else _STATUS)[mark.run.state if mark.run else None]


def status_of(mark: Watermark) -> str:
    """What the outside calls the state of a stream's record."""
    if mark.run is not None and mark.run.state is RunState.SUCCEEDED and not is_versions(mark):
        return _STATUS[None]  # that window is over, and the next record is open for a run to come
    return run_status(mark)


_STATUS = {
    None: "READY",
    RunState.PLANNED: "READY",
    RunState.RUNNING: "RUNNING",
    RunState.SUCCEEDED: "SUCCESS",
    RunState.FAILED: "FAILED",
    RunState.SKIPPED: "SKIPPED",
}
_VERSION_STATUS = {
    None: "SKIPPED",
    RunState.PLANNED: "PLANNED",
    RunState.RUNNING: "PLANNED",
    RunState.SUCCEEDED: "COMPLETED",
    RunState.FAILED: "FAILED",
    RunState.SKIPPED: "SKIPPED",
}


def current(mark: Watermark) -> Record:
    """The stream's record as it is now."""
    if mark.run is None or (mark.run.state is RunState.SUCCEEDED and not is_versions(mark)):
        return _ready(mark)
    return _of_run(mark, mark.run)


def closed(before: Watermark | None, after: Watermark) -> Record | None:
    """The record that will not change any more, if this step closes one."""
    if is_versions(after):
        # It stays in sight, as COMPLETED, until there is a new plan.
        old = before.run if before else None
        if before is None or old is None or old.state is not RunState.SUCCEEDED:
            return None
        return None if after.run is not None and after.run.number == old.number else _of_run(before, old)
    if after.run is None or after.run.state is not RunState.SUCCEEDED:
        return None
    again = before is not None and before.run == after.run
    return None if again else _of_run(before or after, after.run)


def _ready(mark: Watermark) -> Record:
    position = mark.extracted.position
    return Record(
        pipeline_name=mark.stream.pipeline,
        table_name=table_name(mark.stream),
        job_id=None,
        last_processed_ts=_moment(position),
        current_run_ts=None,
        last_processed_version=_number(position),
        start_version=None,
        end_version=None,
        status=status_of(mark),
        schema_version=_schema(mark),
        records_processed=None,
        execution_duration=None,
        error_message=mark.last_error,
        failed_at=None,
        created_at=mark.extracted.at or mark.created_at,
        updated_at=mark.updated_at,
    )


def _of_run(mark: Watermark, run: Run) -> Record:
    """The record of a run. `mark` is what it began from, or what it has become."""
    versions = is_versions(mark)
    done = run.state is RunState.SUCCEEDED
    reached = run.window.high if versions and done else run.window.low
    low, high = _number(run.window.low), _number(run.window.high)
    failed = run.state is RunState.FAILED or bool(run.error)
    return Record(
        pipeline_name=mark.stream.pipeline,
        table_name=table_name(mark.stream),
        job_id=run.id,
        last_processed_ts=mark.extracted.at if versions else _moment(reached),
        current_run_ts=run.started_at if versions else _moment(run.window.high) or run.started_at,
        last_processed_version=_number(reached),
        start_version=(0 if low is None else low + 1) if versions else None,
        end_version=high if versions else None,
        status=(_VERSION_STATUS if versions else _STATUS)[run.state],
        schema_version=_schema(mark),
        records_processed=min(run.rows, _LARGEST) if done else None,
        execution_duration=_seconds(run),
        error_message=run.error,
        failed_at=run.finished_at if failed else None,
        created_at=_planned_at(run) if versions else mark.extracted.at or mark.created_at,
        updated_at=run.finished_at or mark.updated_at,
    )


def _planned_at(run: Run) -> datetime:
    """Run numbers follow the clock, so they say when a run was planned."""
    try:
        return _EPOCH + timedelta(milliseconds=run.number)
    except OverflowError:
        return run.started_at


def _seconds(run: Run) -> float | None:
    if run.finished_at is None or run.state is RunState.PLANNED:
        return None
    return max((run.finished_at - run.started_at).total_seconds(), 0.0)


def _schema(mark: Watermark) -> str | None:
    return mark.schemas[-1][0] if mark.schemas else None


def table_name(stream: StreamId) -> str | None:
    return None if stream.name == TRACKED else stream.name


def _moment(position: Position | None) -> datetime | None:
    """The time in a position, if there is one; a wall-clock reading is taken as it stands."""
    value = position.values[0] if position else None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC)


def _number(position: Position | None) -> int | None:
    """The number in a position; of a moment, its milliseconds since 1970."""
    value = position.values[0] if position else None
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
    return value if isinstance(value, int) and abs(value) <= _LARGEST else None
