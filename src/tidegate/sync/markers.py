"""Completion markers: `_SUCCESS` in staging, for whoever waits for a run's files.

A run is concluded once its window is finished and, unless only extraction was asked for, loaded: its marker
is written, then its receipts go. While receipts of a finished run are left, it has not been concluded, so
one that died in between is concluded by the next sync.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidegate.core.errors import StagingError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import Run, RunState, Watermark
from tidegate.spark.extraction import read_receipts
from tidegate.staging.contract import Staging
from tidegate.staging.layout import SegmentPath
from tidegate.sync.result import SyncResult, TableResult, TableStatus


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """What a marker says of a chunk: of a run of a hundred thousand, all are held at once."""

    number: int
    file: dict[str, Any] | None

    @classmethod
    def of(cls, receipt: Receipt) -> StagedChunk:
        segment = receipt.segment
        if segment is None:
            return cls(receipt.chunk, None)
        file = {"key": segment.key, "rows": segment.rows, "bytes": segment.bytes, "sha256": segment.checksum}
        return cls(receipt.chunk, file)


def finished_run(mark: Watermark | None) -> Run | None:
    """The stream's last run, if it came to its end."""
    run = mark.run if mark else None
    return run if run is not None and run.state is RunState.SUCCEEDED else None


def conclude(
    staging: Staging, paths: SegmentPath, mark: Watermark, run: Run, known: dict[str, StagedChunk]
) -> None:
    """Write the marker of a finished run and drop its receipts; one without receipts has its marker.

    `known` are chunks by the keys of their receipts, which need not be read again.
    """
    keys = [item.key for item in staging.list(paths.receipts)]
    if not keys:
        return
    if staging.stat(paths.marker) is None:
        unread = [key for key in keys if key not in known]
        chunks = [known[key] for key in keys if key in known]
        chunks += map(StagedChunk.of, read_receipts(staging, unread))
        staging.put(paths.marker, json.dumps(describe_run(mark, run, chunks), indent=2).encode())
    with suppress(StagingError):  # they have done their work: those that stay are orphans
        staging.delete(keys)


def describe_run(mark: Watermark, run: Run, chunks: Iterable[StagedChunk]) -> dict[str, Any]:
    """A finished run in the words of `sync --json-output`, with its files."""
    finished = run.finished_at or run.started_at
    files = _files(chunks)
    waiting = sum(segment.rows for segment in mark.pending if segment.run == run.number)
    result = TableResult(
        table=mark.stream.name,
        status=TableStatus.SUCCESS,
        rows_extracted=run.rows,
        rows_loaded=run.rows - run.rows_aside - waiting,
        rows_quarantined=run.rows_aside,
        lossy=run.lossy,
        files_created=len(files),
        bytes=sum(file["bytes"] for file in files),
        window=run.window,
        duration_seconds=(finished - run.started_at).total_seconds(),
    )
    whole = SyncResult(
        execution_id=run.id,
        pipeline=mark.stream.pipeline,
        tables_requested=(mark.stream.name,),
        started_at=run.started_at,
        finished_at=finished,
        tables={mark.stream.name: result},
    )
    return whole.to_json() | {"files": files}


def _files(chunks: Iterable[StagedChunk]) -> list[dict[str, Any]]:
    """One file for each chunk: of several attempts any is good, and the first counts, as everywhere."""
    first: dict[int, StagedChunk] = {}
    for chunk in chunks:
        first.setdefault(chunk.number, chunk)
    return [chunk.file for _, chunk in sorted(first.items()) if chunk.file is not None]
