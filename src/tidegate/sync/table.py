"""One table through its window, in the order that must never be broken.

1. take the lease, read the watermark, freeze the ceiling, persist the planned window;
2. extract chunks to segments;
3. check that the receipts tile the window;
4. commit `extracted` with the pending segments, in one compare-and-set;
5. load pending segments and their ledger rows in one target transaction;
6. commit `loaded`;
7. clean up what is known to be loaded.

A crash between any two lines loses nothing and doubles nothing: run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.core import transitions
from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import ConfigError
from tidegate.core.watermark import Run, RunKind, Watermark
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.state.hold import HeldStream
from tidegate.sync.extracting import Extractor
from tidegate.sync.job import TableJob
from tidegate.sync.loading import Loader
from tidegate.sync.planning import WindowPlan, cut_round, next_window
from tidegate.sync.progress import Progress


@dataclass(frozen=True)
class Passage:
    """Which window a table's sync went through, and what it had to say."""

    window: Window | None = None
    ceiling: Ceiling = Ceiling(None)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSync:
    source: Source
    extractor: Extractor
    loader: Loader | None
    """None: extract only."""
    progress: Progress
    clock: Callable[[], datetime]
    new_run_id: Callable[[], str]

    def run(self, held: HeldStream, job: TableJob, *, limit: int | None = None) -> Passage:
        """Finish what was interrupted, then open and finish one fresh window."""
        passage = Passage()
        if held.watermark is not None and held.watermark.open_run is not None:
            passage = self._finish_interrupted(held, job, passage)
        plan = self._plan(held, job, limit)
        passage = replace(passage, ceiling=plan.ceiling, notes=passage.notes + plan.notes)
        if plan.window is not None:
            self._through(held, job)
            passage = replace(passage, window=plan.window)
        self._load(held, job)
        return passage

    def _finish_interrupted(self, held: HeldStream, job: TableJob, passage: Passage) -> Passage:
        mark = _mark(held)
        _demand_same_cursor(mark, job)
        if _run(mark).kind is RunKind.SNAPSHOT:
            held.commit(transitions.restart_snapshot(mark, self.clock()))
            return passage
        self.progress.note(job.stream, f"resuming run {_run(mark).id} at {_run(mark).progress or 'the beginning'}")
        held.commit(transitions.resume(mark, _schema(job), self.clock()))
        self._through(held, job)
        return replace(passage, window=_run(mark).window)

    def _plan(self, held: HeldStream, job: TableJob, limit: int | None) -> WindowPlan:
        """Freeze a window and persist it before anything is read."""
        now = self.clock()
        mark = held.watermark or transitions.new(job.stream, job.order, now)
        _demand_same_cursor(mark, job)
        plan = next_window(self.source, job, held.watermark, limit=limit, now=now)
        for note in plan.notes:
            self.progress.note(job.stream, note)
        remembered = transitions.remember(mark, plan.ceiling.candidates, now)
        if plan.window is None:
            self._commit_nothing_new(held, mark, remembered)
            return plan
        planned, events = transitions.plan(
            remembered,
            run_id=self.new_run_id(),
            kind=job.kind,
            window=plan.window,
            now=now,
            cursor=job.order,
            schema=_schema(job),
            lookback=plan.lookback,
        )
        held.commit(planned, events)
        return plan

    def _commit_nothing_new(self, held: HeldStream, mark: Watermark, remembered: Watermark) -> None:
        """Write only what changed: an unmoved stream costs its store nothing."""
        if remembered.candidates != mark.candidates or mark.last_error is not None:
            held.commit(transitions.nothing_new(remembered, self.clock()))

    def _through(self, held: HeldStream, job: TableJob) -> None:
        """Take the open run to the end of its window, round by round."""
        whole = job.kind is RunKind.SNAPSHOT
        with self.source.snapshot() if whole else nullcontext(None) as snapshot:
            while not _done(_run(_mark(held))):
                self._round(held, job, snapshot)
                if not whole:
                    self._load(held, job)
        finished, events = transitions.finish(_mark(held), self.clock())
        held.commit(finished, events)
        self._forget_receipts(job, finished.run)

    def _round(self, held: HeldStream, job: TableJob, snapshot: str | None) -> None:
        run = _run(_mark(held))
        if run.round is None or run.round.finished:
            cut = cut_round(self.source, job, Window(run.progress, run.window.high))
            held.commit(transitions.begin_round(_mark(held), cut.window, cut.cuts, self.clock()))
        part = _run(_mark(held)).round
        assert part is not None
        self.progress.planned(job.stream, len(part.chunks) - part.done, job.settings.batch_size)
        self.extractor.round(held, job, snapshot)

    def _load(self, held: HeldStream, job: TableJob) -> None:
        if self.loader is not None:
            self.loader.load(held, job.target)

    def _forget_receipts(self, job: TableJob, run: Run | None) -> None:
        """Receipts have done their work once the window is finished; losing one now loses nothing."""
        if run is None:
            return
        staging = self.extractor.staging
        folder = self.extractor.paths(job, run).receipts
        staging.delete([item.key for item in staging.list(folder)])


def _done(run: Run) -> bool:
    return run.round is not None and run.round.finished and run.progress == run.window.high


def _schema(job: TableJob) -> tuple[str, dict[str, object]]:
    return job.schema.fingerprint, job.schema.to_json()


def _run(mark: Watermark) -> Run:
    assert mark.open_run is not None
    return mark.open_run


def _mark(held: HeldStream) -> Watermark:
    assert held.watermark is not None
    return held.watermark


def _demand_same_cursor(mark: Watermark, job: TableJob) -> None:
    if mark.cursor != job.order and (mark.extracted.position is not None or mark.open_run is not None):
        raise ConfigError(
            f"the mark was made with cursor {_named(mark.cursor)}, the pipeline now says {_named(job.order)}",
            where=str(job.stream),
            hint="put the cursor back, or begin again with `tidegate watermark reset`",
        )


def _named(cursor: tuple[str, ...]) -> str:
    return " + ".join(cursor) or "none"
