"""Rows that were put aside: which there are, and what becomes of them. The history tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.config.settings import TableSettings
from tidegate.core import transitions
from tidegate.core.errors import UsageError
from tidegate.core.receipts import Segment
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Schema
from tidegate.core.watermark import Event, StreamId
from tidegate.sync.job import target_table
from tidegate.sync.parts import Parts
from tidegate.sync.sifting import Sieve, Sifted
from tidegate.sync.streams import family
from tidegate.targets.contract import TargetTable


def in_quarantine(events: Iterable[Event]) -> list[tuple[Segment, Event]]:
    """The segments that are still there, each with the event that put it there."""
    found: dict[str, tuple[Segment, Event]] = {}
    for event in events:
        if event.kind == "quarantined":
            for data in event.data["segments"]:
                segment = Segment.from_json(data)
                found[segment.key] = (segment, event)
        elif event.kind == "manual" and event.data.get("act") in ("redrive", "discard"):
            for key in event.data["released"]:
                found.pop(key, None)
    return list(found.values())


@dataclass(frozen=True)
class Quarantined:
    """A file of rows that were put aside."""

    stream: StreamId
    segment: Segment
    run_id: str | None
    at: datetime
    reasons: tuple[str, ...]
    """Why all rows of the run are here; none: each row carries its own reason."""
    schemas: dict[str, Any]


@dataclass(frozen=True)
class Quarantine:
    """One table's rows that were put aside."""

    parts: Parts
    table: StreamId
    clock: Callable[[], datetime]
    token: Callable[[], str]

    def files(self, run: str | None = None) -> list[Quarantined]:
        return [
            Quarantined(
                stream, segment, event.run_id, event.at, tuple(event.data["reasons"]), event.data["schemas"]
            )
            for stream in family(self.table)
            for segment, event in in_quarantine(self.parts.store.history(stream))
            if run in (None, event.run_id)
        ]

    def redrive(
        self,
        files: Sequence[Quarantined],
        settings: TableSettings,
        *,
        reason: str,
        sieve: Sieve | None = None,
    ) -> int:
        """Make rows pending, so that the next load brings them once; returns how many.

        With a sieve only those that break no rule any more; the others stay. Where the newest version of a
        row is kept, older ones lose against what has arrived since.
        """
        tables = [target_table(settings, self.table, schema) for schema in map(_schema, files)]
        if any(table.mode is WriteMode.REPLACE for table in tables):
            raise UsageError(
                "this table is replaced as a whole, so its rows cannot be brought one by one",
                where=str(self.table),
                hint="relax `validation:` and sync it again, then `tidegate quarantine discard`",
            )
        versions = all(_are_told_apart(table, settings) for table in tables)
        return sum(
            self._redriven(stream, own, reason, sieve, overlaps=versions)
            for stream, own in _by_stream(files).items()
        )

    def _redriven(
        self,
        stream: StreamId,
        files: Sequence[Quarantined],
        reason: str,
        sieve: Sieve | None,
        *,
        overlaps: bool,
    ) -> int:
        """Under the lease throughout: until the commit nobody knows what the sieve writes."""
        with self.parts.hold(stream, self.clock, self.token) as held:
            files = self._still_there(stream, files)
            sifted = [(file, sieve.sift(file) if sieve else Sifted(passed=file.segment)) for file in files]
            moved = [(file, found) for file, found in sifted if found.passed is not None]
            passed = [
                replace(found.passed, overlaps=overlaps or found.passed.overlaps)
                for _, found in moved
                if found.passed is not None
            ]
            if not passed:
                return 0
            now = self.clock()
            released = [file.segment.key for file, _ in moved]
            schemas = {key: value for file, _ in moved for key, value in file.schemas.items()}
            mark, events = transitions.redrive(held.mark, released, passed, schemas, reason=reason, now=now)
            stay = [
                transitions.still_aside(file.run_id, found.broken, file.schemas, now)
                for file, found in moved
                if found.broken is not None
            ]
            held.commit(mark, (*events, *stay))
        return sum(segment.rows for segment in passed)

    def discard(self, files: Sequence[Quarantined], *, reason: str) -> None:
        """Give the rows up. Their files are orphans from now on, for `staging clean`."""
        for stream, own in _by_stream(files).items():
            with self.parts.hold(stream, self.clock, self.token) as held:
                keys = [file.segment.key for file in self._still_there(stream, own)]
                if keys:
                    held.commit(*transitions.discard(held.mark, keys, reason=reason, now=self.clock()))

    def _still_there(self, stream: StreamId, files: Sequence[Quarantined]) -> list[Quarantined]:
        """Somebody else may have decided about some while this one was asked: the lease ends that."""
        keys = {segment.key for segment, _ in in_quarantine(self.parts.store.history(stream))}
        return [file for file in files if file.segment.key in keys]


def _schema(file: Quarantined) -> Schema:
    return Schema.from_json(file.schemas[file.segment.schema])


def _are_told_apart(table: TargetTable, settings: TableSettings) -> bool:
    """Whether appended versions of a row are told by the source's own key and the cursor, as they are.

    Then a version that has come another way meanwhile is left out: what is put aside can be read again by a
    look-back, or after the mark was moved back. Of `keys:` nobody knows whether only one row has them.
    """
    order = settings.cursor.columns
    plain = table.cursor == order and not settings.masks.keys() & set(order)
    return table.mode is WriteMode.APPEND and bool(table.key and order) and plain and not settings.keys


def _by_stream(files: Sequence[Quarantined]) -> dict[StreamId, list[Quarantined]]:
    grouped: dict[StreamId, list[Quarantined]] = {}
    for file in files:
        grouped.setdefault(file.stream, []).append(file)
    return grouped
