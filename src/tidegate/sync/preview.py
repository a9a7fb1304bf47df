"""What a sync would do, as a value that can be printed. Nothing here changes anything.

It asks what the sync itself would ask: where the next window begins and ends, how it is cut, and what would
happen at the target. No lease is taken, so another run may move the mark before this plan is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.config.pipelines import Pipeline
from tidegate.config.settings import TableSettings
from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import TidegateError
from tidegate.core.names import named_schema
from tidegate.core.secrecy import hidden
from tidegate.core.types import Schema
from tidegate.core.watermark import RunKind, StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.state.contract import Stored
from tidegate.sync.continuity import demand_continuity, demand_loadable
from tidegate.sync.cutting import cut_round
from tidegate.sync.evolution import admitted
from tidegate.sync.job import TableJob, describe, target_table
from tidegate.sync.marks import live_holder
from tidegate.sync.mercy import allowance
from tidegate.sync.naming import Naming, named_table
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, Scope, includes_null_cursors, null_cursor_job, tables_of
from tidegate.sync.planning import WindowPlan, next_window
from tidegate.sync.ranges import plan_range, range_job
from tidegate.sync.streams import family
from tidegate.targets.contract import TargetTable

NO_CEILING = Ceiling(None)


@dataclass(frozen=True)
class TablePlan:
    """What the next sync would do with a table, or with a stream beside it."""

    table: str
    window: Window | None = None
    """None: there is nothing to read."""
    resumes: str | None = None
    """The interrupted run whose frozen window this is."""
    chunks: int = 0
    estimated_rows: int = 0
    pending_files: int = 0
    pending_rows: int = 0
    """What waits in staging and would be loaded too."""
    held_back_seconds: float = 0.0
    held_back_by: str | None = None
    target_action: str | None = None
    notes: tuple[str, ...] = ()
    error: TidegateError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "window": {
                "low": str(self.window.low) if self.window.low else None,
                "high": str(self.window.high) if self.window.high else None,
            }
            if self.window is not None
            else None,
            "resumes": self.resumes,
            "chunks": self.chunks,
            "estimated_rows": self.estimated_rows,
            "pending_files": self.pending_files,
            "pending_rows": self.pending_rows,
            "held_back_seconds": round(self.held_back_seconds, 3),
            "held_back_by": self.held_back_by,
            "target_action": self.target_action,
            "notes": list(self.notes),
            "error": hidden(str(self.error)) if self.error else None,
        }


def preview(
    pipeline: Pipeline,
    request: Request,
    *,
    parts: Parts,
    cores: int | None,
    clock: Callable[[], datetime],
) -> list[TablePlan]:
    """The plans of the requested tables; one that cannot be planned does not hide the others."""
    plans: list[TablePlan] = []
    tables = tables_of(pipeline, request, parts)
    allowed = allowance(pipeline, len(tables), cores)
    for table in tables:
        stream = StreamId(pipeline.name, table)
        try:
            settings = allowed.settings(pipeline.settings_for(table))
            naming = Naming(pipeline.name_rules, settings.names, parts.store)
            plans += _Preview(parts, request, clock, naming).table(settings, stream)
        except TidegateError as error:
            plans.append(TablePlan(table, error=error))
    return plans


@dataclass(frozen=True)
class _Preview:
    parts: Parts
    request: Request
    clock: Callable[[], datetime]
    naming: Naming

    def table(self, settings: TableSettings, stream: StreamId) -> list[TablePlan]:
        if self.request.scope is Scope.LOAD:
            return self._pending(settings, stream)
        source = self.parts.source()
        job = describe(source, settings, stream)
        if self.request.ranged:
            return self._ranges(source, job)
        plans = [self._stream(source, job)]
        if includes_null_cursors(job):
            plans.append(self._stream(source, null_cursor_job(job, source)))
        return plans

    def _stream(self, source: Source, job: TableJob) -> TablePlan:
        stored = self.parts.store.read(job.stream)
        mark = stored.watermark
        run = mark.open_run if mark else None
        _demand_fit(mark, job)
        if mark is not None and run is not None and run.kind is RunKind.INCREMENTAL:
            rest = Window(run.progress, run.window.high)
            note = f"run {run.id} was interrupted: its window is finished first, then a fresh one follows"
            plan = replace(self._window(source, job, rest), resumes=run.id, notes=(note,))
        else:
            following = next_window(source, job, mark, limit=self.request.limit, now=self.clock())
            plan = self._planned(source, job, following)
        plan = replace(plan, notes=(*plan.notes, *admitted(mark, job).words))
        return self._with_pending(plan, stored)

    def _ranges(self, source: Source, job: TableJob) -> list[TablePlan]:
        main = self.parts.store.read(job.stream).watermark
        side = range_job(job)
        stored = self.parts.store.read(side.stream)
        planned = plan_range(
            source, side, stored.watermark, main, low=self.request.low, high=self.request.high
        )
        if not planned.windows:
            return [TablePlan(side.stream.name, notes=planned.notes)]
        return [
            self._planned(source, side, WindowPlan(window, planned.ceiling, notes=planned.notes))
            for window in planned.windows
        ]

    def _planned(self, source: Source, job: TableJob, plan: WindowPlan) -> TablePlan:
        empty = TablePlan(job.stream.name, target_action=self._action(job))
        found = self._window(source, job, plan.window) if plan.window is not None else empty
        return replace(
            found,
            held_back_seconds=plan.ceiling.held_back_seconds,
            held_back_by=plan.ceiling.held_back_by,
            notes=plan.notes,
        )

    def _window(self, source: Source, job: TableJob, window: Window) -> TablePlan:
        chunks, rows = _size(source, job, window)
        return TablePlan(
            job.stream.name, window, chunks=chunks, estimated_rows=rows, target_action=self._action(job)
        )

    def _action(self, job: TableJob) -> str | None:
        if self.request.scope is Scope.EXTRACT:
            return None
        return self._deed(job.target, job.schema)

    def _deed(self, table: TargetTable, schema: Schema) -> str:
        target = self.parts.target()
        names = self.naming.names(table.stream, schema.names, lambda: target.columns(table.name))
        return target.action(named_table(table, names), named_schema(schema, names))

    def _pending(self, settings: TableSettings, stream: StreamId) -> list[TablePlan]:
        """Loading alone asks nothing of the source."""
        plans = []
        for stored in map(self.parts.store.read, family(stream)):
            mark = stored.watermark
            if mark is None or not mark.pending:
                continue
            demand_loadable(mark, settings, stored.stream)
            action = self._deed(*_pending_target(settings, stored.stream, mark))
            plans.append(self._with_pending(TablePlan(stored.stream.name, target_action=action), stored))
        return plans or [TablePlan(stream.name)]

    def _with_pending(self, plan: TablePlan, stored: Stored) -> TablePlan:
        pending = stored.watermark.pending if stored.watermark else ()
        holder = live_holder(stored, self.parts.holder, self.clock())
        held = (f"held by {holder} right now",) if holder else ()
        return replace(
            plan,
            pending_files=len(pending),
            pending_rows=sum(segment.rows for segment in pending),
            notes=(*plan.notes, *held),
        )


def _demand_fit(mark: Watermark | None, job: TableJob) -> None:
    """Refuse what the sync itself would refuse; a snapshot that was interrupted gives way to anything."""
    if mark is None:
        return
    demand_loadable(mark, job.settings, job.stream)
    if mark.open_run is None or mark.open_run.kind is not RunKind.SNAPSHOT:
        demand_continuity(mark, job)


def _pending_target(settings: TableSettings, stream: StreamId, mark: Watermark) -> tuple[TargetTable, Schema]:
    schema = Schema.from_json(dict(mark.schemas)[mark.pending[-1].schema])
    return target_table(settings, stream, schema), schema


def _size(source: Source, job: TableJob, window: Window) -> tuple[int, int]:
    """Chunks and rows. The first round is cut exactly as the sync would do it; the rest is estimated."""
    relation, held = job.part(source, window)
    rows = source.count(relation, job.order, held)
    cut = cut_round(source, job, window)
    chunks = len(cut.cuts) + 1
    if cut.window.high == window.high:
        return chunks, rows
    return max(chunks + 1, -(-rows // job.settings.batch_size)), rows
