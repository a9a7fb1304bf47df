"""Who packs: this process, or the tasks of a Spark session.

Parts go out as rows of a DataFrame; a task packs them one after the other and answers with their receipts.
What it needs to know travels inside the task's function, never as rows, so that credentials show in no
query plan. Nothing here moves a mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.archive.packing import Packing, pack
from tidegate.archive.records import PartReceipt
from tidegate.core.errors import ArchiveError, TidegateError, retold, told
from tidegate.spark.failures import in_words
from tidegate.spark.session import LazySession

_ANSWER = "part string, receipt string, error string"
_PARTS_OF_A_TASK = 4
_TASKS_OF_A_CORE = 4
_CLUSTER_CORES = 8
"""Tasks at once on a cluster, which alone knows how many it has."""


class InProcess:
    """One part after the other, here."""

    def pack(self, work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
        return (receipt for _, receipt in pack(work, parts))


@dataclass
class OnSpark:
    """As Spark jobs of moderate size: between two of them one can stop, and progress is told."""

    session: LazySession

    def pack(self, work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
        tasks = (self.session.settings.cores or _CLUSTER_CORES) * _TASKS_OF_A_CORE
        size = tasks * _PARTS_OF_A_TASK
        for begin in range(0, len(parts), size):
            yield from self._job(work, parts[begin : begin + size], tasks)

    def _job(self, work: Packing, parts: Sequence[str], tasks: int) -> Iterator[PartReceipt | None]:
        partitions = min(tasks, len(parts))
        numbers = self.session.get().range(0, partitions, 1, partitions)
        try:
            # The answers are few and small: collecting them holds no file in the driver.
            answers = numbers.mapInArrow(_task(work, parts, partitions), _ANSWER).collect()
        except TidegateError:
            raise
        except Exception as error:
            raise in_words(
                error, self.session, ArchiveError, where=None, again="the parts that are packed"
            ) from error
        for answer in answers:
            if answer["error"]:
                raise retold(json.loads(answer["error"]))
        for answer in answers:
            yield PartReceipt.from_json(json.loads(answer["receipt"])) if answer["receipt"] else None


def _task(
    work: Packing, parts: Sequence[str], stride: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for first in batch.column(0).to_pylist():
                yield from _answers(work, parts[first::stride])

    return run


def _answers(work: Packing, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        for part, receipt in pack(work, parts):
            yield _answer(part, json.dumps(receipt.to_json()) if receipt is not None else None)
    except TidegateError as problem:
        yield _answer(None, None, json.dumps(told(problem)))


def _answer(part: str | None, receipt: str | None, error: str | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], pa.string()) for value in (part, receipt, error)],
        names=["part", "receipt", "error"],
    )
