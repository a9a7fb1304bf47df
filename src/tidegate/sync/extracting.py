"""Source → staging: rounds of chunks, proved and committed while the Spark job runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from tidegate.config.settings import TableSettings
from tidegate.core import transitions
from tidegate.core.deadlines import Deadline
from tidegate.core.errors import SourceError, StagingError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import Run, RunKind, StreamId
from tidegate.core.windows import Chunk
from tidegate.sources.contract import Source
from tidegate.spark.extraction import ChunkRead, Extracted, Extraction, extract, receipts
from tidegate.spark.failures import in_words
from tidegate.spark.running import RunningJob
from tidegate.spark.session import LazySession
from tidegate.staging.contract import Staging
from tidegate.staging.layout import SegmentPath
from tidegate.state.hold import HeldStream
from tidegate.sync.job import TableJob
from tidegate.sync.markers import StagedChunk
from tidegate.sync.mercy import UNLIMITED, Allowance
from tidegate.sync.patience import Patience
from tidegate.sync.progress import Progress


@dataclass(frozen=True)
class Extractor:
    """What it takes to move a round from the source to staging."""

    source: Source
    staging: Staging
    session: LazySession
    progress: Progress
    clock: Callable[[], datetime]
    deadline: Deadline
    allowance: Allowance = UNLIMITED
    plain: bool = False
    """Whether the target reads files by itself, and not every kind of integer."""
    proved: dict[str, StagedChunk] = field(default_factory=dict)
    """What was committed here, by the keys of the receipts, for the markers of the runs."""

    def round(
        self, held: HeldStream, job: TableJob, snapshot: str | None, meanwhile: Callable[[], bool]
    ) -> None:
        """Stage the chunks of the current round that have no receipt yet, committing as they finish.

        `meanwhile` is done again and again while tasks are at work, until it says that nothing is left to do.
        """
        run = held.mark.current_run
        ledger = _Receipts(run, self.staging, self.paths(job, run))
        ledger.collect()
        self._commit(held, ledger, job)
        missing = ledger.missing()
        if missing:
            with self._begin(held.mark.current_run, job, missing, snapshot) as running:
                self._watch(held, job, ledger, running, meanwhile)
        self._commit(held, ledger, job)
        self._demand_complete(held, job, ledger)

    def paths(self, job: TableJob, run: Run) -> SegmentPath:
        return paths_of(job.settings, job.stream, run)

    def _begin(
        self, run: Run, job: TableJob, missing: list[Chunk], snapshot: str | None
    ) -> RunningJob[Extracted]:
        tasks = min(self.parallelism(job), len(missing))
        work = self._extraction(job, run, tasks)
        chunks = [self._chunk_read(job, run, chunk, snapshot) for chunk in missing]
        return RunningJob(
            self.session.get,
            lambda session: extract(session, work, chunks, tasks),
            name=f"extract {job.stream}",
        )

    def _watch(
        self,
        held: HeldStream,
        job: TableJob,
        ledger: _Receipts,
        running: RunningJob[Extracted],
        meanwhile: Callable[[], bool],
    ) -> None:
        """Commit what the Spark job proves while it runs, and what it answers when it has ended."""
        answer = running.answer
        patience = Patience(partial(self.progress.note, job.stream), self.deadline, str(job.stream))
        while not self._ended(answer, meanwhile):
            held.check()
            ledger.collect()
            self._commit(held, ledger, job)
            patience.look(running.tasks, self.clock())
        error = answer.exception()
        if error is None:
            ledger.add(answer.result().receipts)
            for note in answer.result().notes:
                self.progress.note(job.stream, note)
            return
        ledger.collect()
        self._commit(held, ledger, job)
        raise in_words(error, self.session, SourceError, where=str(job.stream), again="the last proved chunk")

    def _ended(self, answer: Future[Extracted], meanwhile: Callable[[], bool]) -> bool:
        """Whether the job has ended by the time of the next look."""
        look = time.monotonic() + self.staging.pace
        while time.monotonic() < look and not answer.done() and meanwhile():
            pass
        return bool(wait([answer], max(0.0, look - time.monotonic())).done)

    def _commit(self, held: HeldStream, ledger: _Receipts, job: TableJob) -> None:
        """Commit `extracted` over the contiguous chunks that are proved: the moment progress exists."""
        proved = ledger.take_contiguous()
        if not proved:
            return
        held.commit(transitions.advance(held.mark, proved, self.clock()))
        for receipt in proved:
            self.proved[ledger.key(receipt)] = StagedChunk.of(receipt)
            self.progress.staged(job.stream, receipt)

    def _demand_complete(self, held: HeldStream, job: TableJob, ledger: _Receipts) -> None:
        if not held.mark.current_run.chunks_left:
            return
        self.deadline.demand(self.clock(), where=str(job.stream), stopped="between two chunks")
        if ledger.unseen:
            raise StagingError(
                f"a task has staged {ledger.unseen[0]}, and from here it cannot be seen as it was written",
                where=self.staging.url(),
                hint="staging has to be one place for the driver and all tasks: on a cluster, S3 or a folder "
                "that all machines share. Nothing was lost",
            )
        raise StagingError("some chunks left no receipt", where=str(job.stream), hint="run it again")

    def _extraction(self, job: TableJob, run: Run, tasks: int = 1) -> Extraction:
        return Extraction(
            run_id=run.id,
            run_number=run.number,
            reader=self.source.reader(),
            staging=self.staging,
            paths=self.paths(job, run),
            masks=dict(job.settings.masks),
            schema=job.schema.fingerprint,
            compression=job.settings.compression,
            plain=self.plain,
            overlaps=run.lookback,
            snapshot=run.kind is RunKind.SNAPSHOT,
            rules=job.settings.validation,
            limits=dict(job.fit.limits),
            deadline=self.deadline,
            pace=self.allowance.pace(tasks),
            pulse=self.source.pulse(),
        )

    def _chunk_read(self, job: TableJob, run: Run, chunk: Chunk, snapshot: str | None) -> ChunkRead:
        relation, window = job.part(self.source, chunk.window)
        read = self.source.chunk(
            relation,
            tuple(column.name for column in job.columns),
            window,
            positions=tuple(name for name in job.order if name in {c.name for c in job.columns}),
            order=job.order,
            snapshot=snapshot,
        )
        fitted = replace(read, columns=job.columns, nulled=job.fit.nulled, as_written=job.fit.as_written)
        return ChunkRead(run.chunks_done + chunk.number, chunk.window, fitted)

    def parallelism(self, job: TableJob) -> int:
        return self.allowance.parallelism(job.settings)


def paths_of(settings: TableSettings, stream: StreamId, run: Run) -> SegmentPath:
    return SegmentPath(settings.layout, settings.prefix, stream, run.id, run.started_at)


class _Receipts:
    """The receipts of a round as they come in, handed out in the order of the chunks."""

    def __init__(self, run: Run, staging: Staging, paths: SegmentPath) -> None:
        if run.round is None:
            raise SourceError("no round has been planned", where=run.id)
        self._chunks = {run.chunks_done + chunk.number: chunk for chunk in run.round.chunks}
        self._next = run.chunks_done + run.round.done + 1
        self._staging = staging
        self._paths = paths
        self._seen: set[str] = set()
        self._found: dict[int, Receipt] = {}
        self.unseen: list[str] = []
        """Segments that receipts speak of, and that are not there."""

    def collect(self) -> None:
        """Look for what the tasks, or those of an earlier attempt, have left in staging."""
        self.add(receipts(self._staging, self._paths, self._seen, self._next))

    def add(self, found: list[Receipt]) -> None:
        """Take those that count; each is looked at once, whichever way it comes."""
        fresh = [receipt for receipt in found if self._fits(receipt)]
        whole = self._whole(fresh)
        for receipt in whole:
            self._seen.add(self.key(receipt))
            self._found.setdefault(receipt.chunk, receipt)
        self.unseen = [receipt.segment.key for receipt in fresh if receipt.segment and receipt not in whole]

    def key(self, receipt: Receipt) -> str:
        return self._paths.receipt(receipt.chunk, receipt.attempt)

    def _fits(self, receipt: Receipt) -> bool:
        """A receipt of another cut of the same run would prove another range: it does not count."""
        chunk = self._chunks.get(receipt.chunk)
        return receipt.chunk not in self._found and chunk is not None and receipt.window == chunk.window

    def _whole(self, found: list[Receipt]) -> list[Receipt]:
        """No mark ever refers to a file that is not there, whole: such a chunk is done again."""
        there = self._staging.stat_all([receipt.segment.key for receipt in found if receipt.segment])
        return [
            receipt
            for receipt in found
            if receipt.segment is None
            or (receipt.segment.key in there and there[receipt.segment.key].bytes == receipt.segment.bytes)
        ]

    def take_contiguous(self) -> list[Receipt]:
        taken = []
        while self._next in self._found:
            taken.append(self._found[self._next])
            self._next += 1
        return taken

    def missing(self) -> list[Chunk]:
        return [
            chunk
            for number, chunk in self._chunks.items()
            if number >= self._next and number not in self._found
        ]
