"""What a task does with its chunks, without Spark around it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.arrow import arrow_schema
from tidegate.config.settings import Compression, Layout
from tidegate.core.errors import SourceError, StagingError
from tidegate.core.positions import Position
from tidegate.core.types import Column, DataType, Kind
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.sources.contract import Read
from tidegate.spark.extraction import ChunkRead, Extraction, _answers
from tidegate.staging.layout import RECEIPTS, SegmentPath
from tidegate.staging.local import LocalStaging

COLUMNS = (Column("id", DataType(Kind.INT64), nullable=False),)
PATIENCE = 60.0


@dataclass
class Numbers:
    """A source whose chunks have one row each; it remembers which were read."""

    fails: int | None = None
    read_so_far: list[int] = field(default_factory=list)
    second_begun: threading.Event = field(default_factory=threading.Event)

    def read(
        self, read: Read, *, batch_rows: int, lost: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert batch_rows
        assert lost is not None
        number = int(read.where)
        self.read_so_far.append(number)
        if number > 1:
            self.second_begun.set()
        if number == self.fails:
            raise SourceError("no more rows today")
        yield pa.RecordBatch.from_arrays([pa.array([number])], schema=arrow_schema(COLUMNS))

    @contextmanager
    def kept(self) -> Iterator[Numbers]:
        yield self


def work(reader: Numbers, staging: LocalStaging) -> Extraction:
    paths = SegmentPath(
        Layout.DATETIME, "", StreamId("shop", "orders"), "r1", datetime(2025, 8, 1, tzinfo=UTC)
    )
    return Extraction("r1", 1, reader, staging, paths, {}, "f1", Compression.SNAPPY)


def chunk(number: int) -> ChunkRead:
    window = Window(Position.of(number - 1), Position.of(number))
    return ChunkRead(number, window, Read("orders", COLUMNS, str(number), ("id",)))


def answers(extraction: Extraction, chunks: int) -> list[tuple[int, bool]]:
    """The chunks that were answered for, and whether with a receipt."""
    batches = _answers(extraction, [chunk(number) for number in range(1, chunks + 1)])
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["chunk"], row["receipt"] is not None) for row in rows]


def receipts(staging: LocalStaging) -> list[str]:
    return [item.key.rpartition("/")[2][:9] for item in staging.list(RECEIPTS)]


@dataclass(frozen=True)
class Distant(LocalStaging):
    """Where the first segment arrives only once the second chunk is being read."""

    begun: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with super().create(key) as writer:
            yield writer
            if "_batch_0001_" in key:
                assert self.begun.wait(PATIENCE)


def test_while_a_segment_travels_the_next_chunk_is_read(tmp_path: Path) -> None:
    reader = Numbers()
    staging = Distant(tmp_path, reader.second_begun)

    assert answers(work(reader, staging), 3) == [(1, True), (2, True), (3, True)]
    assert receipts(staging) == ["000000001", "000000002", "000000003"]


def test_a_chunk_that_cannot_be_read_ends_the_task_after_the_one_before_it_arrived(tmp_path: Path) -> None:
    reader, staging = Numbers(fails=3), LocalStaging(tmp_path)

    assert answers(work(reader, staging), 5) == [(1, True), (2, True), (3, False)]
    assert receipts(staging) == ["000000001", "000000002"]
    assert reader.read_so_far == [1, 2, 3]


@dataclass(frozen=True)
class Broken(LocalStaging):
    """Where the first segment does not arrive."""

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with super().create(key) as writer:
            yield writer
            if "_batch_0001_" in key:
                raise StagingError("gone")


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_segment_that_does_not_arrive_ends_the_task_and_leaves_no_receipt_of_it(
    tmp_path: Path, chunks: int
) -> None:
    reader, staging = Numbers(), Broken(tmp_path)

    assert answers(work(reader, staging), chunks) == [(1, False)]
    assert "000000001" not in receipts(staging)
    assert max(reader.read_so_far) <= 2
    assert list(staging.unfinished()) == []
