"""Evidence of what was loaded: the keys and versions of rows, read from the segments that the target holds.

Where no column says that a row was changed, the digest of all it holds stands for its version.

It lies in a temporary file, so that a million rows need no memory.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from tidegate.core.errors import StagingError
from tidegate.core.receipts import Segment
from tidegate.core.types import Schema
from tidegate.core.watermark import Event
from tidegate.staging.contract import Staging
from tidegate.sync.contents import digested
from tidegate.sync.marks import loaded_schemas, loaded_segments
from tidegate.targets.contract import StagedSegment
from tidegate.targets.segments import batches

Row = tuple[Any, ...]
KIND = "job"
"""The kind of a job's events in a stream's history."""


@dataclass(frozen=True)
class Outstanding:
    """What the history tells: the segments that were loaded and whose rows may still lie in the source."""

    segments: tuple[Segment, ...]
    verified: frozenset[str]
    """Those whose counts have agreed: their rows are to be deleted, whatever happens in between."""
    schemas: dict[str, Schema]
    place: str | None = None
    """Where the rows of those that were verified are deleted."""

    @property
    def doomed(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.key in self.verified)


def outstanding(events: Sequence[Event]) -> Outstanding:
    verified: set[str] = set()
    cleaned: set[str] = set()
    place: str | None = None
    for event in events:
        if event.kind == "manual" and event.data.get("act") == "reset":
            verified, cleaned = set(), set()
        elif event.kind == KIND and event.data["act"] == "verified":
            verified |= set(event.data["segments"])
            place = event.data["place"]
        elif event.kind == KIND and event.data["act"] == "cleaned":
            cleaned |= set(event.data["segments"])
    left = tuple(segment for segment in loaded_segments(events) if segment.key not in cleaned)
    schemas = {name: Schema.from_json(data) for name, data in loaded_schemas(events).items()}
    return Outstanding(left, frozenset(verified - cleaned), schemas, place)


def evidence_columns(key: tuple[str, ...], version: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of the key, then those of the version that are not among them."""
    return (*key, *(name for name in version if name not in key))


class Evidence:
    """Rows by key and version, each once; with the digest of what the target holds of it, if that counts."""

    def __init__(
        self, key: tuple[str, ...], version: tuple[str, ...], contents: tuple[str, ...] = ()
    ) -> None:
        self.key = key
        self.columns = evidence_columns(key, version)
        self.contents = contents
        """The columns whose values the digest is of; none: there is no digest."""
        self._rows = sqlite3.connect("")  # a database without a name is a file that vanishes when closed
        self._rows.execute(
            "CREATE TABLE seen (key TEXT, version TEXT, row BLOB, digest BLOB, PRIMARY KEY (key, version))"
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """What is added later is newer: of a row that was read twice the target has the later reading."""
        end = len(self.key)
        rows = zip(*(batch.column(name).to_pylist() for name in self.columns), strict=True)
        digests: Iterable[bytes | None] = (
            digested(batch, [name for name in self.contents if name in batch.schema.names])
            if self.contents
            else repeat(None, batch.num_rows)
        )
        self._rows.executemany(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
            (
                (repr(row[:end]), repr(row[end:]), pickle.dumps(row), digest)
                for row, digest in zip(rows, digests, strict=True)
            ),
        )

    @property
    def keys(self) -> int:
        return int(self._rows.execute("SELECT count(DISTINCT key) FROM seen").fetchone()[0])

    @property
    def versions(self) -> int:
        return int(self._rows.execute("SELECT count(*) FROM seen").fetchone()[0])

    def parts(self, size: int) -> Iterator[dict[Row, bytes | None]]:
        """All rows, so many at a time, in the order of their keys' texts."""
        cursor = self._rows.execute("SELECT row, digest FROM seen ORDER BY key, version")
        while found := cursor.fetchmany(size):
            yield {pickle.loads(data): digest for data, digest in found}

    def key_parts(self, size: int) -> Iterator[list[Row]]:
        """The keys alone, each once."""
        cursor = self._rows.execute("SELECT min(row) FROM seen GROUP BY key")
        while found := cursor.fetchmany(size):
            yield [pickle.loads(data)[: len(self.key)] for (data,) in found]

    def close(self) -> None:
        self._rows.close()


def collect(
    evidence: Evidence, segments: Iterable[Segment], schemas: dict[str, Schema], staging: Staging
) -> None:
    """Read the keys and versions of these segments."""
    for segment in sorted(segments, key=lambda segment: (segment.run, segment.chunk)):
        if staging.stat(segment.key) is None:
            raise StagingError(
                "a loaded segment is gone from staging, so nobody can tell which rows it had",
                where=str(staging.local_path(segment.key) or staging.url(segment.key)),
                hint="look after the temporary rows yourself, then `tidegate watermark reset` the table; "
                "clean staging after jobs, not during them",
            )
        schema = schemas[segment.schema]
        needed = {*evidence.columns, *evidence.contents}
        staged = StagedSegment(
            segment=segment,
            schema=Schema(tuple(column for column in schema.columns if column.name in needed)),
            path=staging.local_path(segment.key),
            open=partial(staging.open, segment.key),
        )
        for batch in batches(staged):
            evidence.add(batch)
