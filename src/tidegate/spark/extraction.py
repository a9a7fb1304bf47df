"""Extraction on Spark: chunk numbers go out as rows of a DataFrame, receipts come back.

The executor reads a chunk with an Arrow-native driver and writes it as Parquet straight to staging; rows
never cross into the JVM. While a segment travels there, the next chunk is read. Each receipt is also written
beside the segments, so that the driver can commit progress while the job runs, and a later run can take over
what a dead one had finished.

Nothing here moves a mark. A task that Spark runs twice writes under another attempt's name.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.arrow import arrow_schema
from tidegate.config.settings import Compression
from tidegate.core.deadlines import NEVER, Deadline
from tidegate.core.errors import StagingError, TidegateError, retold, told
from tidegate.core.lossy import tally
from tidegate.core.mappings import Limits
from tidegate.core.positions import Position
from tidegate.core.quality import Rules
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.strategies import Mask
from tidegate.core.types import Column, Kind
from tidegate.core.windows import Window
from tidegate.sources.contract import Read, Reader
from tidegate.sources.masking import mask, masked_columns
from tidegate.sources.strain import Pulse
from tidegate.spark.limits import Limited
from tidegate.spark.pacing import NO_HURRY, Pace, Pacer
from tidegate.spark.screening import REASON, Screen
from tidegate.staging.contract import ObjectWriter, Staging
from tidegate.staging.layout import SegmentPath
from tidegate.staging.parquet import plain_schema, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 32_768
"""Rows in memory at a time: enough for Parquet to encode well, few enough for 500 wide columns."""

_ANSWER = "chunk int, receipt string, error string, note string"


@dataclass(frozen=True)
class ChunkRead:
    """One chunk as a task gets it: its number in the run, its window, and how to read it."""

    number: int
    window: Window
    read: Read


@dataclass(frozen=True)
class Extraction:
    """What all tasks of a run need to know. Travels to executors inside the task's function, never as
    rows, so that credentials show in no query plan."""

    run_id: str
    run_number: int
    reader: Reader
    staging: Staging
    paths: SegmentPath
    masks: dict[str, Mask]
    schema: str
    compression: Compression
    plain: bool = False
    """Write only integers that every warehouse reads from a file."""
    overlaps: bool = False
    snapshot: bool = False
    """A chunk of a snapshot is staged even without rows: an empty table has something to say."""
    rules: Rules | None = None
    """What the rows have to be."""
    limits: dict[str, Limits] = field(default_factory=dict)
    """What the target cannot hold, by column."""
    deadline: Deadline = NEVER
    """After it no further chunk is begun."""
    pace: Pace = NO_HURRY
    """The share of the source that one task may use."""
    pulse: Pulse | None = None


@dataclass(frozen=True)
class Extracted:
    """What became of a job's chunks."""

    receipts: list[Receipt]
    notes: list[str]
    """What tasks had to say, though nothing is wrong."""


def extract(session: SparkSession, work: Extraction, chunks: list[ChunkRead], parallelism: int) -> Extracted:
    """Run the chunks as one Spark job and return their receipts; after the deadline, those there are.

    Chunks are dealt out in turn, so that the tasks move through the window side by side and progress
    stays contiguous. The answers are few and small: collecting them holds no rows in the driver.
    """
    partitions = min(parallelism, len(chunks))
    numbers = session.range(0, partitions, 1, partitions)
    answers = numbers.mapInArrow(_task(work, chunks, partitions), _ANSWER).collect()
    for answer in answers:
        if answer["error"]:
            raise retold(json.loads(answer["error"]))
    return Extracted(
        [Receipt.from_json(json.loads(answer["receipt"])) for answer in answers if answer["receipt"]],
        [answer["note"] for answer in answers if answer["note"]],
    )


def _task(
    work: Extraction, chunks: list[ChunkRead], stride: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for first in batch.column(0).to_pylist():
                with work.reader.kept() as reader:
                    yield from _answers(replace(work, reader=reader), chunks[first::stride])

    return run


def _answers(work: Extraction, chunks: list[ChunkRead]) -> Iterator[pa.RecordBatch]:
    pacer = Pacer(work.pace, work.pulse, work.deadline, lambda: datetime.now(UTC))
    for chunk, arriving in _staged(work, chunks, pacer):
        try:
            receipt = arriving.result()
        except TidegateError as error:
            yield _answer(chunk.number, error=json.dumps(told(error)))
            return
        yield _answer(
            chunk.number, receipt=json.dumps(receipt.to_json()), note="; ".join(pacer.notes) or None
        )
        pacer.notes.clear()


def _staged(
    work: Extraction, chunks: list[ChunkRead], pacer: Pacer
) -> Iterator[tuple[ChunkRead, Future[Receipt]]]:
    """The chunks in their order and their receipts to come: while a segment travels, the next one is read.

    So the way to staging costs time only where it takes longer than reading does.
    """
    with ThreadPoolExecutor(1, "staging") as travelling:
        before: tuple[ChunkRead, Future[Receipt]] | None = None
        for chunk in chunks:
            pacer.before_chunk()
            if work.deadline.passed(datetime.now(UTC)) or (before and _failed(before[1])):
                break
            arriving = _begun(work, chunk, pacer, travelling)
            if before is not None:
                yield before
            before = chunk, arriving
        if before is not None:
            yield before


def _begun(
    work: Extraction, chunk: ChunkRead, pacer: Pacer, travelling: ThreadPoolExecutor
) -> Future[Receipt]:
    try:
        written = write(work, chunk, attempt=secrets.token_hex(4))
    except TidegateError as error:
        failed: Future[Receipt] = Future()
        failed.set_exception(error)
        return failed
    pacer.after_chunk(written.passing.span.rows)
    return travelling.submit(finish, work, written)


def _failed(arriving: Future[Receipt]) -> bool:
    return arriving.done() and arriving.exception() is not None


def _answer(number: int, **texts: str | None) -> pa.RecordBatch:
    columns = {name: pa.array([texts.get(name)], pa.string()) for name in ("receipt", "error", "note")}
    return pa.RecordBatch.from_pydict({"chunk": pa.array([number], pa.int32()), **columns})


@dataclass(frozen=True)
class _Passing:
    """What looks at the rows of a chunk as they pass."""

    span: Span
    screen: Screen | None
    limited: Limited
    lost: Counter[str]
    """Values that became NULL because they did not fit."""

    @property
    def passed(self) -> int:
        return self.screen.passed if self.screen else self.span.rows


@dataclass(frozen=True)
class Written:
    """A chunk whose rows have all been read; its files, if there are any, are not visible yet."""

    chunk: ChunkRead
    attempt: str
    passing: _Passing
    writer: ObjectWriter | None
    aside: _Aside
    opened: ExitStack
    """Closing it makes the files visible."""


def stage(work: Extraction, chunk: ChunkRead, *, attempt: str) -> Receipt:
    """Read one chunk, write its segment and its receipt. Runs on an executor."""
    return finish(work, write(work, chunk, attempt=attempt))


def write(work: Extraction, chunk: ChunkRead, *, attempt: str) -> Written:
    """Read one chunk; write the rows that pass into one file, those that are put aside into another.

    An error leaves nothing.
    """
    screen = Screen(work.rules, chunk.read.columns, str(work.paths.stream)) if work.rules else None
    lost: Counter[str] = Counter()
    limited = Limited(chunk.read, work.limits, lost)
    passing = _Passing(Span(chunk.read.positions, chunk.read.columns), screen, limited, lost)
    staged = arrow_schema(masked_columns(chunk.read.columns, work.masks))
    aside = _Aside(work, staged, work.paths.quarantine(chunk.number, attempt))
    batches = work.reader.read(chunk.read, batch_rows=BATCH_ROWS, lost=lost)
    first = next(batches, None)
    writer = None
    with ExitStack() as opened:
        if first is not None or work.snapshot:
            writer = opened.enter_context(work.staging.create(work.paths.segment(chunk.number, attempt)))
            opened.enter_context(aside)
            rows = chain([first] if first is not None else [], batches)
            prepared = _prepared(rows, work, passing, staged, aside)
            stored = plain_schema(staged) if work.plain else staged
            cast = (batch.cast(stored) for batch in prepared) if stored != staged else prepared
            write_segment(writer.file, stored, cast, compression=work.compression)
        return Written(chunk, attempt, passing, writer, aside, opened.pop_all())


def finish(work: Extraction, written: Written) -> Receipt:
    """Make the files visible, ask them what they hold, and only then write the receipt."""
    written.opened.close()
    chunk, span, aside = written.chunk, written.passing.span, written.aside
    receipt = Receipt(
        run_id=work.run_id,
        chunk=chunk.number,
        attempt=written.attempt,
        window=chunk.window,
        rows=span.rows,
        lowest=span.lowest,
        highest=span.highest,
        segment=_segment(work, chunk, written.writer, written.passing.passed) if written.writer else None,
        quarantined=_segment(work, chunk, aside.writer, aside.rows) if aside.writer else None,
        findings=written.passing.screen.findings if written.passing.screen else None,
        lossy=tally(written.passing.lost),
    )
    key = work.paths.receipt(chunk.number, written.attempt)
    work.staging.put(key, json.dumps(receipt.to_json()).encode())
    return receipt


def _segment(work: Extraction, chunk: ChunkRead, writer: ObjectWriter, rows: int) -> Segment:
    return Segment(
        key=writer.result.key,
        rows=_rows_in(writer, rows),
        bytes=writer.result.bytes,
        etag=writer.result.etag,
        checksum=writer.result.checksum,
        run=work.run_number,
        chunk=chunk.number,
        window=chunk.window,
        schema=work.schema,
        overlaps=work.overlaps,
        snapshot=work.snapshot,
    )


def _prepared(
    rows: Iterator[pa.RecordBatch], work: Extraction, passing: _Passing, staged: pa.Schema, aside: _Aside
) -> Iterator[pa.RecordBatch]:
    for batch in map(passing.limited.taken, rows):
        passing.span.see(batch)
        found = passing.screen.sort(batch) if passing.screen else None
        hidden = mask(batch, work.masks, staged)
        if found is None or found.passed is None:
            yield hidden
        else:
            aside.write(hidden.filter(pc.invert(found.passed)), found.reasons)
            yield hidden.filter(found.passed)


class _Aside:
    """The file of the rows that are put aside; it is begun with the first of them."""

    def __init__(self, work: Extraction, schema: pa.Schema, key: str) -> None:
        self._work = work
        self._schema = schema.remove_metadata().append(pa.field(REASON, pa.string()))
        self._key = key
        self._stack = ExitStack()
        self._parquet: pq.ParquetWriter | None = None
        self.writer: ObjectWriter | None = None
        self.rows = 0

    def write(self, batch: pa.RecordBatch, reasons: pa.StringArray) -> None:
        if self._parquet is None:
            self.writer = self._stack.enter_context(self._work.staging.create(self._key))
            self._parquet = self._stack.enter_context(
                pq.ParquetWriter(self.writer.file, self._schema, version="2.6", store_schema=False)
            )
        self._parquet.write_batch(pa.record_batch([*batch.columns, reasons], schema=self._schema))
        self.rows += batch.num_rows

    def __enter__(self) -> _Aside:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _rows_in(writer: ObjectWriter, written: int) -> int:
    """What the finished file says of itself: the receipt is about the file, not about our intentions.

    Where reading costs a request, the bytes that were kept while writing may answer, but only once the
    other side has confirmed the digest of the whole: then they are the file's own.
    """
    with writer.reopen() as file:
        rows = int(pq.read_metadata(file).num_rows)
    if rows != written:
        raise StagingError(f"the segment holds {rows} rows, {written} were written", where=writer.result.key)
    return rows


_ORDERED = frozenset(
    {Kind.DATE, Kind.TIMESTAMP, Kind.INSTANT, Kind.DECIMAL}
    | {Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64}
    | {Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64}
)
"""What positions are made of and Arrow orders as the database does."""


class Span:
    """Counts rows and keeps the smallest and largest leading position of what passes by."""

    def __init__(self, positions: tuple[str, ...], columns: tuple[Column, ...]) -> None:
        kinds = {column.name: column.type.kind for column in columns}
        leading = positions[0] if positions else None
        self._column = leading if leading is not None and kinds.get(leading) in _ORDERED else None
        self.rows = 0
        self.lowest: Position | None = None
        self.highest: Position | None = None

    def see(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if self._column is None:
            return
        try:
            ends = pc.min_max(batch.column(self._column)).as_py()
        except (ValueError, OverflowError):  # beyond Python's calendar: the receipt does without its ends
            self._column = self.lowest = self.highest = None
            return
        if ends["min"] is None:
            return
        low, high = _position(ends["min"]), _position(ends["max"])
        self.lowest = low if self.lowest is None or low < self.lowest else self.lowest
        self.highest = high if self.highest is None or self.highest < high else self.highest


def _position(value: Any) -> Position:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return Position.of(value)


def receipts(staging: Staging, paths: SegmentPath, seen: set[str], first: int = 0) -> list[Receipt]:
    """The receipts of a run that lie in staging and are not in `seen`, which grows by their keys.

    Those of chunks before `first` are not even listed: over a long run, a look costs the same to its end.
    Several attempts at one chunk may have finished; any of them is good, the first one counts.
    """
    listed = staging.list(paths.receipts, after=paths.before_receipts(first))
    unseen = [item.key for item in listed if item.key.endswith(".json") and item.key not in seen]
    seen.update(unseen)
    return read_receipts(staging, unseen)


def read_receipts(staging: Staging, keys: list[str]) -> list[Receipt]:
    return [Receipt.from_json(json.loads(data)) for data in staging.get_all(keys)]
