"""One table through its window, in the order that must never be broken.

1. take the lease, read the watermark, freeze the ceiling, persist the planned window;
2. extract chunks to segments;
3. check that the receipts tile the window;
4. commit `extracted` with the pending segments, in one compare-and-set;
5. load pending segments and their ledger rows in one target transaction;
6. commit `loaded`;
7. mark the run as complete, and clean up what is known to be loaded.

A crash between any two lines loses nothing and doubles nothing: run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime

from tidegate.config.settings import TableOrder
from tidegate.core import transitions
from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import SourceError
from tidegate.core.strategies import WriteMode
from tidegate.core.watermark import Event, Run, RunKind, Watermark
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.state.hold import HeldStream
from tidegate.sync.continuity import demand_continuity
from tidegate.sync.cutting import CHUNKS_PER_ROUND, CHUNKS_PER_TASK, Cutter
from tidegate.sync.evolution import admitted, last_schema
from tidegate.sync.extracting import Extractor
from tidegate.sync.job import TableJob, target_table
from tidegate.sync.loading import Loader
from tidegate.sync.markers import conclude, finished_run
from tidegate.sync.planning import WindowPlan, next_window
from tidegate.sync.progress import Progress
from tidegate.sync.quality import Judge

NO_CEILING = Ceiling(None)


@dataclass(frozen=True)
class Passage:
    """Which window a table's sync went through, and what it had to say."""

    window: Window | None = None
    ceiling: Ceiling = NO_CEILING
    notes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """What is different about the table's columns."""


@dataclass(frozen=True)
class TableSync:
    source: Source
    extractor: Extractor
    loader: Loader | None
    """None: extract only."""
    progress: Progress
    clock: Callable[[], datetime]
    new_run_id: Callable[[], str]
    judge: Judge
    order: TableOrder
    """In which order the pipeline goes about its tables."""

    def run(self, held: HeldStream, job: TableJob, *, limit: int | None = None) -> Passage:
        """Finish what was interrupted, then open and finish one fresh window."""
        if job.again is not None and _has_work(held.watermark):
            job = job.again()
        passage = self.finish_interrupted(held, job)
        job, plan = self._next(held, job, limit)
        for note in plan.notes:
            self.progress.note(job.stream, note)
        changes = self.through(held, job, plan)
        if plan.window is None and held.watermark is not None:
            self.judge.idle(held.watermark, job)
        window = plan.window or passage.window
        return Passage(window, plan.ceiling, plan.notes, (*passage.changes, *changes))

    def _next(self, held: HeldStream, job: TableJob, limit: int | None) -> tuple[TableJob, WindowPlan]:
        """The next window. If there is one, it is planned and read with the table as it is now."""
        if job.again is None:
            return job, next_window(self.source, job, held.watermark, limit=limit, now=self.clock())
        try:
            plan = next_window(self.source, job, held.watermark, limit=limit, now=self.clock())
            if plan.window is None:
                return job, plan
            now = job.again()
            if now.relation == job.relation:
                return now, plan
        except SourceError:  # the table may not be any more what it was when it was last looked at
            now = job.again()
        return now, next_window(self.source, now, held.watermark, limit=limit, now=self.clock())

    def finish_interrupted(self, held: HeldStream, job: TableJob) -> Passage:
        mark = held.watermark
        run = mark.open_run if mark else None
        if mark is not None and run is not None and run.kind is RunKind.SNAPSHOT:
            held.commit(transitions.restart_snapshot(mark, self.clock()))
            return Passage()
        if mark is not None:
            demand_continuity(mark, job)
        if mark is None or run is None:
            self._conclude_last(held, job)
            return Passage()
        if run.rules != job.rules:
            self.progress.note(job.stream, f"run {run.id} was interrupted under other rules: it is given up")
            held.commit(transitions.give_up(mark, self.clock()))
            return Passage()
        self.progress.note(job.stream, f"resuming run {run.id} at {run.progress or 'the beginning'}")
        self._demand_own(held, job)
        changes = self._admit(held, job)
        resumed = transitions.resume(mark, _schema(job), self.clock())
        held.commit(resumed, self._changed(mark, job, changes))
        self._to_the_end(held, job)
        return Passage(run.window, changes=changes)

    def through(self, held: HeldStream, job: TableJob, plan: WindowPlan) -> tuple[str, ...]:
        """Persist the planned window before anything is read, then take it to its end.

        Returns what has changed in the table's columns since the last run.
        """
        now = self.clock()
        mark = held.watermark or transitions.new(job.stream, job.order, now)
        remembered = transitions.remember(mark, plan.ceiling.candidates, now)
        if plan.window is None:
            self._commit_nothing_new(held, mark, remembered)
            self.load(held, job)
            return ()
        self._demand_own(held, job)
        changes = self._admit(held, job)
        planned, events = transitions.plan(
            remembered,
            run_id=self.new_run_id(),
            kind=job.kind,
            window=plan.window,
            now=now,
            cursor=job.order,
            schema=_schema(job),
            lookback=plan.lookback,
            rules=job.rules,
            tables=self.order.value,
        )
        held.commit(planned, (*events, *self._changed(mark, job, changes)))
        self._to_the_end(held, job)
        return changes

    def _demand_own(self, held: HeldStream, job: TableJob) -> None:
        if self.loader is not None and job.kind is RunKind.INCREMENTAL:
            self.loader.demand_own(job.target, held.watermark)

    def _admit(self, held: HeldStream, job: TableJob) -> tuple[str, ...]:
        """Refuse, before anything is read, rows that could not go on where the earlier ones are.

        Where nothing has changed since the last run, neither source nor target is asked anything.
        """
        if held.watermark is not None and held.watermark.schema == job.schema.fingerprint:
            return ()
        evolution = admitted(held.watermark, job)
        changes = evolution.words
        if self.loader is not None:
            self.loader.demand_fit(job.target, job.schema)
            if evolution.added and job.target.mode is not WriteMode.REPLACE:
                added = [column.name for column in evolution.added]
                changes += self.loader.returned(job.target, job.schema, added)
        for change in changes:
            self.progress.note(job.stream, change)
        return changes

    def _changed(self, mark: Watermark, job: TableJob, changes: tuple[str, ...]) -> tuple[Event, ...]:
        return transitions.schema_changed(mark, job.schema.fingerprint, changes, self.clock())

    def _commit_nothing_new(self, held: HeldStream, mark: Watermark, remembered: Watermark) -> None:
        """Write only what changed: an unmoved stream costs its store nothing."""
        if remembered.candidates != mark.candidates or mark.last_error is not None:
            held.commit(transitions.nothing_new(remembered, self.clock()))

    def _to_the_end(self, held: HeldStream, job: TableJob) -> None:
        """Take the open run to the end of its window, round by round."""
        whole = job.kind is RunKind.SNAPSHOT
        cutter = Cutter.of(self.source, job, held.mark.current_run)
        with self.source.snapshot() if whole else nullcontext(None) as snapshot:
            while not _done(held.mark.current_run):
                self._round(held, job, snapshot, cutter)
                if not whole and job.rules is None and len(held.mark.pending) >= CHUNKS_PER_ROUND:
                    self.load(held, job)
        self.judge.conclude(held, job)
        self.load(held, job)
        self._conclude(held, job)

    def _round(self, held: HeldStream, job: TableJob, snapshot: str | None, cutter: Cutter) -> None:
        run = held.mark.current_run
        if run.round is None or run.round.finished:
            cut = cutter.round(CHUNKS_PER_TASK * self.extractor.parallelism(job))
            held.commit(transitions.begin_round(held.mark, cut.window, cut.cuts, self.clock()))
        self.progress.planned(job.stream, len(held.mark.current_run.chunks_left), job.settings.batch_size)
        self.extractor.round(held, job, snapshot, cutter.ahead)

    def load(self, held: HeldStream, job: TableJob) -> None:
        """Load what is pending, unless only extraction was asked for.

        As what was read last: a table that has changed since, with nothing new in it, was not admitted yet.
        """
        if self.loader is None:
            return
        read = last_schema(held.watermark) or job.schema
        as_it_is = read.fingerprint == job.schema.fingerprint
        table = job.target if as_it_is else target_table(job.settings, job.stream, read)
        self.loader.load(held, table)

    def _conclude_last(self, held: HeldStream, job: TableJob) -> None:
        """If the last run died between the end of its window and its marker, do what was left."""
        run = finished_run(held.watermark)
        if run is not None and any(self.extractor.staging.list(self.extractor.paths(job, run).receipts)):
            self.load(held, job)
            self._conclude(held, job)

    def _conclude(self, held: HeldStream, job: TableJob) -> None:
        mark = held.mark
        run = finished_run(mark)
        if run is not None:
            extractor = self.extractor
            conclude(extractor.staging, extractor.paths(job, run), mark, run, extractor.proved)


def _has_work(mark: Watermark | None) -> bool:
    """Whether something is left to do that the last run began."""
    return mark is not None and (bool(mark.pending) or mark.open_run is not None)


def _done(run: Run) -> bool:
    return run.round is not None and run.round.finished and run.progress == run.window.high


def _schema(job: TableJob) -> tuple[str, dict[str, object]]:
    return job.schema.fingerprint, job.schema.to_json()
