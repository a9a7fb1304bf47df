"""The job of a temporary table: what was moved on is proved, then deleted where it came from.

Each step can be the last one before the process dies; running the job again makes it whole:

1. The counts of source, extracted rows and target agree, for every table of the job, under all their leases.
2. `verified` goes into the history with the segments that were proved. From here on their rows are to go.
3. Rows are deleted by the key and version that stand in those segments. What was changed or has arrived since
   is another version or another key, and stays. Where only an id is followed no column tells a version: there
   a row goes only if all it holds is what the target was given. Deleting again what is gone does nothing.
4. The mark is reset, which forgets the segments: whatever is left in the table is new to the next run.
5. Their files are removed from staging, which nothing refers to any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.config.jobs import ToldBy
from tidegate.config.pipelines import Pipeline
from tidegate.core import transitions
from tidegate.core.errors import ConfigError, SourceError, VerificationFailed
from tidegate.core.receipts import Segment
from tidegate.core.strategies import NullCursorPolicy, WriteMode
from tidegate.core.types import Kind
from tidegate.core.watermark import Event, StreamId
from tidegate.core.windows import Window
from tidegate.observe.figures import counted
from tidegate.sources.erasing import Eraser, Versions, open_eraser, place_of
from tidegate.staging.layout import SegmentPath, run_of
from tidegate.state.hold import HeldStream
from tidegate.sync.contents import contents_of
from tidegate.sync.evidence import KIND, Evidence, Outstanding, collect, evidence_columns, outstanding
from tidegate.sync.job import TableJob, describe
from tidegate.sync.naming import Naming, named_table
from tidegate.sync.parts import Parts
from tidegate.sync.streams import JOB, beside
from tidegate.targets.contract import TargetTable

_WITHOUT_EQUALS = frozenset({Kind.BOOL, Kind.FLOAT32, Kind.FLOAT64, Kind.JSON, Kind.TIME})

_ASKED_AT_ONCE = 100_000
"""Keys in one question to the target, which are in memory then."""


@dataclass(frozen=True)
class Counts:
    """How many rows there are of one table, wherever they have been."""

    table: str
    source: int
    """At or below the mark."""
    extracted: int
    """Different keys in the segments that are loaded."""
    target: int
    expected: int
    """Rows that the target should have of them: every version, where it is appended to."""
    newer: int = 0
    """Behind the mark: nobody has counted on them yet, and they stay for the next run."""

    @property
    def agree(self) -> bool:
        return self.source == self.extracted and self.target == self.expected

    def to_json(self) -> dict[str, int]:
        names = ("source", "extracted", "target", "newer")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Cleaned:
    """What became of the rows of one table."""

    table: str
    verified: int
    deleted: int
    """Fewer than were verified: the others have changed meanwhile and stay, or had gone before."""
    reset: bool

    def to_json(self) -> dict[str, Any]:
        return {"verified": self.verified, "deleted": self.deleted, "watermark_reset": self.reset}


@dataclass(frozen=True)
class Temporary:
    """What it takes to prove and empty the temporary tables of a job."""

    pipeline: Pipeline
    tables: tuple[str, ...]
    parts: Parts
    clock: Callable[[], datetime]
    token: Callable[[], str]
    batch_size: int
    eraser: Callable[[], Eraser]
    place: str
    """Where the eraser deletes: who has begun there does not go on elsewhere."""
    told_by: ToldBy

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts no other job of these tables begins."""
        with ExitStack() as stack:
            for stream in sorted(self._streams()):
                stack.enter_context(self.parts.hold(beside(stream, JOB), self.clock, self.token))
            yield

    def demand_fit(self) -> None:
        """Refuse what could never be proved and deleted, before anything is begun."""
        for stream in self._streams():
            job = self._job(stream)
            if not self._tells_versions(job):
                with closing(self.eraser()) as eraser:
                    eraser.demand_fit(self._versions(job))

    def finish(self) -> list[Cleaned]:
        """Make whole what an earlier run has proved and not finished."""
        with self._held() as all_held:
            found = [(held, rows) for held in all_held if (rows := self._outstanding(held)).verified]
            for held, rows in found:
                self._demand_place_of(held, rows)
                self._demand_loaded(held, rows)
                self._demand_at_target(held, rows)
            return [self._clean(held, rows) for held, rows in found]

    def prove_and_clean(self) -> tuple[list[Counts], list[Cleaned]]:
        """Compare the counts of all tables; only if they all agree, delete what was moved on."""
        with self._held() as all_held:
            found = [(held, self._outstanding(held)) for held in all_held]
            counts = [self._counted(held, rows) for held, rows in found]
            demand_agreement(counts, self.pipeline.name)
            for (held, rows), count in zip(found, counts, strict=True):
                self._demand_same_rows(held, rows, count.source)
            for (held, rows), count in zip(found, counts, strict=True):
                self._record(held, "verified", rows.segments, {**count.to_json(), "place": self.place})
            again = [(held, self._outstanding(held)) for held, rows in found if rows.segments]
            return counts, [self._clean(held, rows) for held, rows in again]

    # --- Proving ---------------------------------------------------------------

    def _counted(self, held: HeldStream, rows: Outstanding) -> Counts:
        mark, table = held.watermark, held.stream.name
        if mark is not None and mark.pending:
            raise VerificationFailed(
                f"{counted(len(mark.pending), 'staged file')} not loaded yet",
                where=str(held.stream),
                hint="run the job again with --sync-only",
            )
        job = self._job(held.stream)
        position = mark.extracted.position if mark else None
        newer = self.parts.source().count(job.relation, job.order, Window(position, None))
        if position is None:
            return Counts(table, 0, 0, 0, 0, newer)
        source = self.parts.source().count(job.relation, job.order, Window(None, position))
        with closing(self._evidence(job, rows, rows.segments)) as evidence:
            target, expected = self._at_target(job, evidence)
            return Counts(table, source, evidence.keys, target, expected, newer)

    def _at_target(self, job: TableJob, evidence: Evidence) -> tuple[int, int]:
        """How many rows the target has of these keys, and how many it should have.

        Where every version is kept, it is versions that are counted.
        """
        appended = job.target.mode is WriteMode.APPEND
        expected = evidence.versions if appended else evidence.keys
        target, table = self.parts.target(), self._named(job)
        if not target.exists(table.name):
            return 0, expected
        parts = evidence.parts if appended else evidence.key_parts
        asked = (list(part) for part in parts(_ASKED_AT_ONCE))
        return sum(target.present(table.name, table.key, part) for part in asked), expected

    def _named(self, job: TableJob) -> TargetTable:
        naming = Naming(self.pipeline.name_rules, job.settings.names, self.parts.store)
        there = lambda: self.parts.target().columns(job.target.name)  # noqa: E731 - asked if need be
        return named_table(job.target, naming.names(job.stream, job.schema.names, there))

    def _evidence(self, job: TableJob, rows: Outstanding, segments: Iterable[Segment]) -> Evidence:
        contents = () if self._tells_versions(job) else job.schema.names
        evidence = Evidence(job.schema.key, job.target.cursor, contents)
        collect(evidence, segments, rows.schemas, self.parts.staging)
        return evidence

    def _demand_same_rows(self, held: HeldStream, rows: Outstanding, source: int) -> None:
        """What deletes has to see every row that was counted, in the version that was synced.

        Otherwise it looks at another database, or at a version in other words, and what it leaves behind
        would be taken for changed and come again. Where no column tells versions, a row that was changed
        since is told when it is to be deleted: no sync would bring it before the mark is reset.
        """
        if not rows.segments:
            return
        job = self._job(held.stream)
        by_columns = replace(self._versions(job), contents=None)
        with closing(self._evidence(job, rows, rows.segments)) as evidence, closing(self.eraser()) as eraser:
            found = sum(eraser.count(by_columns, part) for part in evidence.parts(self.batch_size))
        if found == source:
            return
        if not found:
            raise ConfigError(
                "the write connection shows none of the rows that were synced, so nothing was deleted",
                where=f"{held.stream}: job.write_connection",
                hint="it has to lead to the database that the pipeline's source reads",
            )
        raise VerificationFailed(
            f"of {counted(source, 'row')} that were counted the write connection shows {found:,} as they "
            "were synced, so nothing was deleted",
            where=f"{held.stream}: job.write_connection",
            hint="rows that changed meanwhile agree when the job runs again",
        )

    def _demand_loaded(self, held: HeldStream, rows: Outstanding) -> None:
        """Somebody who lets segments load again has found that the target lacks them."""
        again = rows.verified & {segment.key for segment in held.mark.pending}
        if again:
            raise VerificationFailed(
                f"{counted(len(again), 'file')} whose rows are being deleted wait to be loaded again, so no "
                "more of them were deleted",
                where=str(held.stream),
                hint="load them with `tidegate sync --load-only`, then run the job again",
            )

    def _demand_at_target(self, held: HeldStream, rows: Outstanding) -> None:
        """Between two halves of a job a target can be emptied, put back or exchanged for another.

        Of rows that have gone from the source already the files in staging are then the last copy.
        """
        job = self._job(held.stream)
        with closing(self._evidence(job, rows, rows.doomed)) as evidence:
            found, expected = self._at_target(job, evidence)
        if found < expected:
            appended = found > 0 and job.target.mode is WriteMode.APPEND
            first = "delete these rows at the target, which would be there twice, then " if appended else ""
            raise VerificationFailed(
                f"an earlier run has proved {counted(expected, 'row')} and begun to delete them; the target "
                f"has {found:,} of them now, so no more were deleted",
                where=str(held.stream),
                hint=f"{first}load their files again with `tidegate watermark reset --loaded-only` and "
                "`tidegate sync --load-only`, then run the job again",
            )

    def _demand_place_of(self, held: HeldStream, rows: Outstanding) -> None:
        """Rows that an earlier run began to delete in one place cannot be found gone in another."""
        if rows.place != self.place:
            raise ConfigError(
                f"an earlier run has begun to delete rows in {rows.place}, which is to be finished there",
                where=f"{held.stream}: job.write_connection",
                hint=f"it leads to {self.place} now; put it back until the job has run",
            )

    # --- Cleaning --------------------------------------------------------------

    def _clean(self, held: HeldStream, rows: Outstanding) -> Cleaned:
        """Delete what was verified, then forget it. An earlier run may have deleted some of it."""
        job = self._job(held.stream)
        versions = self._versions(job)
        with closing(self._evidence(job, rows, rows.doomed)) as evidence, closing(self.eraser()) as eraser:
            eraser.demand_fit(versions)
            deleted = 0
            for part in evidence.parts(self.batch_size):
                held.check()
                deleted += eraser.erase(versions, part)  # the only line that deletes anything at a source
            self._demand_gone(eraser, versions, evidence, held)
            verified = evidence.versions
            behind = 0 if self._tells_versions(job) else self._behind(eraser, versions, evidence)
        reset = self._forget(held, rows, deleted, behind)
        self._sweep(rows.segments if reset else rows.doomed, job, held)
        return Cleaned(held.stream.name, verified, deleted, reset)

    def _behind(self, eraser: Eraser, versions: Versions, evidence: Evidence) -> int:
        """Rows that have changed without moving past the mark."""
        by_columns = replace(versions, contents=None)
        return sum(eraser.count(by_columns, part) for part in evidence.parts(self.batch_size))

    def _demand_gone(self, eraser: Eraser, versions: Versions, evidence: Evidence, held: HeldStream) -> None:
        left = sum(eraser.count(versions, part) for part in evidence.parts(self.batch_size))
        if left:
            raise SourceError(
                f"{counted(left, 'row')} of those that were deleted are still there",
                where=str(held.stream),
                hint="somebody puts them back, or a rule of the database keeps them; run the job again",
            )

    def _forget(self, held: HeldStream, rows: Outstanding, deleted: int, behind: int) -> bool:
        """Reset the mark, unless more was loaded meanwhile that is not proved yet. One commit either way.

        Rows that have stayed behind the mark come again only when it is reset; then so do those that are not
        proved yet, which are still in the source, and are merged.
        """
        mark = held.mark
        whole = len(rows.doomed) == len(rows.segments) or behind
        if not whole or mark.pending or mark.open_run is not None:
            self._record(held, "cleaned", rows.doomed, {"deleted": deleted})
            return False
        reason = f"job of {self.pipeline.name}: {counted(deleted, 'temporary row')} deleted"
        held.commit(*transitions.reset(mark, reason=reason, now=self.clock()))
        return True

    def _sweep(self, segments: Sequence[Segment], job: TableJob, held: HeldStream) -> None:
        """Remove files that nothing refers to any more; what is left behind, `staging clean` finds."""
        held.check()
        settings, now = job.settings, self.clock()
        runs = {run for segment in segments if (run := run_of(segment.key))}
        markers = [SegmentPath(settings.layout, settings.prefix, held.stream, r, now).marker for r in runs]
        self.parts.staging.delete([*markers, *(segment.key for segment in segments)])

    # --- Under the lease -------------------------------------------------------

    def _record(self, held: HeldStream, act: str, segments: Sequence[Segment], facts: dict[str, Any]) -> None:
        if not segments:
            return
        data = {"act": act, "segments": [segment.key for segment in segments], **facts}
        held.commit(held.mark, [Event(KIND, self.clock(), None, data)])

    @contextmanager
    def _held(self) -> Iterator[list[HeldStream]]:
        with ExitStack() as stack:
            yield [
                stack.enter_context(self.parts.hold(stream, self.clock, self.token))
                for stream in sorted(self._streams())
            ]

    def _outstanding(self, held: HeldStream) -> Outstanding:
        return outstanding(self.parts.store.history(held.stream))

    def _job(self, stream: StreamId) -> TableJob:
        job = describe(self.parts.source(), self._settings(stream), stream)
        demand_temporary(job)
        if not self._tells_versions(job):
            demand_merged(job)
        return job

    def _tells_versions(self, job: TableJob) -> bool:
        return job.tells_versions and self.told_by is ToldBy.VERSION

    def _versions(self, job: TableJob) -> Versions:
        columns = evidence_columns(job.schema.key, job.target.cursor)
        contents = None if self._tells_versions(job) else contents_of(self.parts.source(), job, columns)
        return Versions(job.relation.sql, columns, contents)

    def _settings(self, stream: StreamId) -> Any:
        return self.pipeline.settings_for(stream.name)

    def _streams(self) -> list[StreamId]:
        return [StreamId(self.pipeline.name, table) for table in self.tables]


def demand_agreement(counts: Sequence[Counts], pipeline: str) -> None:
    wrong = [count for count in counts if not count.agree]
    if wrong:
        words = "; ".join(
            f"{c.table}: {c.source:,} in the source, {c.extracted:,} extracted, {c.target:,} in the target"
            + (f" where {c.expected:,} should be" if c.expected != c.extracted else "")
            for c in wrong
        )
        raise VerificationFailed(
            f"the row counts differ, so nothing was deleted: {words}",
            where=pipeline,
            hint="rows that changed meanwhile agree when the job runs again; rows that arrived below the "
            "mark are read after `tidegate watermark reset`",
        )


def demand_temporary(job: TableJob) -> None:
    """Refuse a table whose rows could not be told apart by key and version."""
    settings = job.settings
    if not settings.incremental or settings.query is not None:
        raise ConfigError(
            "a job needs a table that is followed by a timestamp or an id",
            where=str(job.stream),
            hint="use cdc_strategy hybrid, timestamp_only or id_only: a table read whole cannot be resumed",
        )
    if settings.null_cursor is NullCursorPolicy.INCLUDE:
        raise ConfigError(
            "rows without a cursor are followed beside the others, and a job would leave them where they are",
            where=str(job.stream),
            hint="use null_cursor error, and fill the column",
        )
    columns = (*job.schema.key, *settings.cursor.columns)
    if not job.schema.key or any(c in settings.masks or c not in job.schema.names for c in columns):
        raise ConfigError(
            "a job deletes rows by key and version, so both have to be synced as they are",
            where=str(job.stream),
            hint="name the key with `keys:`, and neither leave it out nor mask it, nor the cursor's columns",
        )
    for name in columns:
        if job.schema.column(name).type.kind in _WITHOUT_EQUALS:
            problem = f"column `{name}` is {job.schema.column(name).native}, by which no row is safely told"
            raise ConfigError(problem, where=str(job.stream), hint="name another key with `keys:`")


def demand_merged(job: TableJob) -> None:
    """Refuse to append where a row can change and still look like the one that the target has."""
    if job.target.mode is WriteMode.APPEND:
        raise ConfigError(
            "a row that is changed looks like the one before, and appending would leave out the newer one as "
            "known",
            where=str(job.stream),
            hint="use write_mode merge, which for rows that never change comes to the same, or name a "
            "timestamp that every change moves with `cdc_timestamp_column`",
        )


def temporary_of(
    pipeline: Pipeline, parts: Parts, clock: Callable[[], datetime], token: Callable[[], str]
) -> Temporary:
    """The temporary tables of a pipeline's job."""
    writer, job = pipeline.writer, pipeline.demanded_job
    return Temporary(
        pipeline,
        tuple(job.tables or pipeline.tables),
        parts,
        clock,
        token,
        job.batch_size,
        lambda: open_eraser(writer),
        place_of(writer),
        job.told_by,
    )
