"""Evidence of what was loaded: the keys and versions of rows, read from the segments that the target holds.

It lies in a temporary file, so that a million rows need no memory.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.core.errors import StagingError
from tidegate.core.receipts import Segment
from tidegate.core.types import Schema
from tidegate.core.watermark import Event
from tidegate.staging.contract import Staging
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
    """Rows by key and version, each once."""

    def __init__(self, key: tuple[str, ...], version: tuple[str, ...]) -> None:
        self.key = key
        self.columns = evidence_columns(key, version)
        self._rows = sqlite3.connect("")  # a database without a name is a file that vanishes when closed
        self._rows.execute("CREATE TABLE seen (key TEXT, version TEXT, row BLOB, PRIMARY KEY (key, version))")

    def add(self, rows: Iterable[Row]) -> None:
        end = len(self.key)
        self._rows.executemany(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)",
            ((repr(row[:end]), repr(row[end:]), pickle.dumps(row)) for row in rows),
        )

    @property
    def keys(self) -> int:
        return int(self._rows.execute("SELECT count(DISTINCT key) FROM seen").fetchone()[0])

    @property
    def versions(self) -> int:
        return int(self._rows.execute("SELECT count(*) FROM seen").fetchone()[0])

    def parts(self, size: int) -> Iterator[list[Row]]:
        """All rows, so many at a time, in the order of their keys' texts."""
        cursor = self._rows.execute("SELECT row FROM seen ORDER BY key, version")
        while found := cursor.fetchmany(size):
            yield [pickle.loads(data) for (data,) in found]

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
    for segment in segments:
        if staging.stat(segment.key) is None:
            raise StagingError(
                "a loaded segment is gone from staging, so nobody can tell which rows it had",
                where=staging.url(segment.key),
                hint="look after the temporary rows yourself, then `tidegate watermark reset` the table; "
                "clean staging after jobs, not during them",
            )
        schema = schemas[segment.schema]
        staged = StagedSegment(
            segment=segment,
            schema=Schema(tuple(schema.column(name) for name in evidence.columns)),
            path=staging.local_path(segment.key),
            open=partial(staging.open, segment.key),
        )
        for batch in batches(staged):
            evidence.add(zip(*(column.to_pylist() for column in batch.columns), strict=True))
