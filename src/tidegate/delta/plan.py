"""A plan: the version ranges of a pipeline's upstreams that are to be processed under one run id.

Inside, each upstream is a stream whose positions are versions and whose window is its range. Outside, their
states are called PLANNED, COMPLETED, FAILED and SKIPPED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.core.positions import Position
from tidegate.core.records import VERSION_CURSOR, current
from tidegate.core.watermark import RunState, StreamId, Watermark

PLANNED, COMPLETED, FAILED, SKIPPED = "PLANNED", "COMPLETED", "FAILED", "SKIPPED"

PLANNING = "@plan"
"""The stream whose lease is the right to plan or process a pipeline. It has no mark of its own."""
BEFORE_ALL = -1
"""Every commit comes after it. A window without a low end is no range of commits: it is the whole table."""


@dataclass(frozen=True)
class PlannedUpstream:
    """What a plan says of one upstream."""

    name: str
    status: str
    start_version: int | None = None
    end_version: int | None = None
    snapshot: bool = False
    """The whole table as of `end_version` is to be read, and no changes."""
    schema_version: str | None = None
    error_message: str | None = None
    records_processed: int | None = None
    run_id: str | None = None
    number: int = 0
    """Larger than that of any plan before: what targets remember."""
    processed: int | None = None
    """The last version that was processed before; None if none was, or the whole table counts anew."""
    asked_for: bool = False
    """The mark was moved by hand: what was processed before may come once more."""
    table_id: str | None = None
    """Of the table that was planned. Another one may lie at its place by now."""
    digest: str | None = None
    """Of the commit of `end_version`, as it was planned. An older copy of the table may be there by now."""

    @property
    def open(self) -> bool:
        return self.status in (PLANNED, FAILED)

    @property
    def low(self) -> int | None:
        """The version before the first; None if the whole table is to be read."""
        return None if self.snapshot or self.start_version is None else self.start_version - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "start_version": self.start_version,
            "end_version": self.end_version,
            "status": self.status,
            "schema_version": self.schema_version,
            "error_message": self.error_message,
            "reads": None if self.end_version is None else "snapshot" if self.snapshot else "changes",
            "records_processed": self.records_processed,
        }


@dataclass(frozen=True)
class Plan:
    run_id: str | None
    """None: there was nothing new to plan."""
    pipeline: str
    created_at: datetime
    upstreams: tuple[PlannedUpstream, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        said = {upstream.status for upstream in self.upstreams}
        return next((word for word in (FAILED, PLANNED, COMPLETED) if word in said), SKIPPED)

    @property
    def work(self) -> tuple[PlannedUpstream, ...]:
        """The upstreams that are still to be processed."""
        return tuple(
            upstream for upstream in self.upstreams if upstream.open and upstream.run_id == self.run_id
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "pipeline": self.pipeline,
            "status": self.status,
            "created_at": self.created_at.isoformat(),
            "upstreams": [upstream.to_json() for upstream in self.upstreams],
            "notes": list(self.notes),
        }


def stream_of(pipeline: str, upstream: str) -> StreamId:
    return StreamId(pipeline, upstream)


def version_of(position: Position | None) -> int | None:
    value = position.values[0] if position else None
    return value if isinstance(value, int) else None


def position_at(version: int | None) -> Position | None:
    return None if version is None else Position.of(version)


def told(mark: Watermark | None, name: str) -> PlannedUpstream:
    """What a stream's record says. One that never had a run, or has nothing new, is SKIPPED."""
    if mark is None or mark.run is None:
        return PlannedUpstream(name, SKIPPED, error_message=mark.last_error if mark else None)
    row, run = current(mark), mark.run
    table: Mapping[str, Any] = mark.schemas[-1][1] if mark.schemas else {}
    return PlannedUpstream(
        name,
        row.status,
        start_version=row.start_version,
        end_version=row.end_version,
        snapshot=run.window.low is None,
        schema_version=row.schema_version,
        error_message=row.error_message or mark.last_error,
        records_processed=row.records_processed,
        run_id=run.id,
        number=run.number,
        processed=version_of(mark.extracted.position),
        asked_for=mark.manual is not None,
        table_id=table.get("table_id"),
        digest=table.get("commit") if table.get("version") == row.end_version else None,
    )


def plan_of(
    pipeline: str, run_id: str | None, marks: Iterable[tuple[str, Watermark | None]], now: datetime
) -> Plan:
    """The plan of a run id. Upstreams that have no part in it are SKIPPED: they had nothing new."""
    rows, created = [], []
    for name, mark in marks:
        mine = mark is not None and mark.run is not None and mark.run.id == run_id
        if mine and mark is not None:
            created.append(current(mark).created_at)
            rows.append(told(mark, name))
        else:
            error = mark.last_error if mark and mark.open_run is None else None
            rows.append(PlannedUpstream(name, FAILED if error else SKIPPED, error_message=error))
    return Plan(run_id, pipeline, min(created, default=now), tuple(rows))


def run_id_of(mark: Watermark | None) -> str | None:
    return mark.run.id if mark and mark.run else None


def newest_id(marks: Mapping[str, Watermark], names: Sequence[str]) -> str:
    """The id of the newest plan among these streams."""
    newest = max((marks[name] for name in names), key=lambda mark: mark.runs)
    return newest.current_run.id


def torn(marks: Mapping[str, Watermark]) -> frozenset[str]:
    """Streams whose window is part of a plan that was not written to its end. No work has begun on it."""
    written = Counter(run_id_of(mark) for mark in marks.values())
    return frozenset(
        name
        for name, mark in marks.items()
        if (run := mark.open_run) is not None
        and run.state is RunState.PLANNED
        and run.error is None
        and run.together is not None
        and written[run.id] < run.together
    )


def is_planned(mark: Watermark | None) -> bool:
    """Whether its window is waiting for somebody, or somebody works on it."""
    return _state(mark) in (RunState.PLANNED, RunState.RUNNING)


def has_failed(mark: Watermark | None) -> bool:
    return _state(mark) is RunState.FAILED


def _state(mark: Watermark | None) -> RunState | None:
    run = mark.open_run if mark and mark.cursor == VERSION_CURSOR else None
    return run.state if run else None
