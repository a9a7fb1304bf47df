"""Watermarks in S3: one object for each stream, replaced by conditional writes.

    watermarks/   one object for each stream: the watermark, its lease, and events not in the history yet
    history/      a folder for each stream, with objects that hold events, a line for each; never changed
    set-aside/    a folder for each stream, with what was damaged and moved out of the way
    conditions    shows to each process that the server heeds conditions

The lease lies in the same object as the watermark, so that one write on the condition that the object is
still the one that was read (`If-Match`) checks both. It is the compare-and-set.

The answer to such a write can be lost, and a second attempt of the same write is then refused because of
the first. So every write leaves a token in the record, and the record keeps the last of them as its trail:
whoever is refused, or hears nothing, reads the record back and knows by the trail what became of the write.

The events of a write travel inside the record, in its outbox, and so exist exactly when the write does.
They leave for the history when they are many, and when the lease is given back: first they are written
there, then the record lets go of them. Writing them twice makes no difference, for what is in a history
object follows from its name.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tidegate.core.errors import (
    Conflict,
    ConnectError,
    DamagedRecord,
    LeaseLost,
    OutcomeUnknown,
    StateError,
    TidegateError,
)
from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.s3 import Absent, S3Place, Unmet
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Stored
from tidegate.state.names import beginning_of, pipeline_of, stem_of
from tidegate.state.rules import KnownDead, demand_lease, demand_name, demand_turn, grant
from tidegate.state.s3_objects import Objects
from tidegate.state.s3_records import (
    MANY,
    Line,
    Past,
    Record,
    Seen,
    digest_of,
    history_folder,
    parts_of,
    record_name,
    stem_in,
)
from tidegate.state.sealed import damaged, opened, reading

_ATTEMPTS = 10
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Before each attempt of one and the same write."""

Change = Callable[[Record], Record]


class S3Store:
    """Watermarks, leases and history in a bucket. Threads may share a store."""

    def __init__(
        self,
        place: S3Place,
        *,
        known_dead: KnownDead = process.known_dead,
        token: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._objects = Objects(place)
        self._known_dead = known_dead
        self._token = token
        self._held: dict[StreamId, Seen] = {}
        """What this store last wrote of the streams it holds, and nobody else should have changed."""
        self._listed: dict[str, Seen] = {}
        """The records of earlier listings, by name. What still has the same ETag is still the same."""

    def __repr__(self) -> str:
        return f"S3Store({str(self._objects.place)!r})"

    def read(self, stream: StreamId) -> Stored:
        return self._look(stream).record.stored

    def streams(self, pipeline: str | None = None) -> Listing:
        found: list[Stored] = []
        broken: list[Damaged] = []
        beginning = "" if pipeline is None else beginning_of(pipeline)
        listed = list(self._objects.listed(f"watermarks/{beginning}"))
        for name, record in self._objects.together(self._as_listed, listed):
            match record:
                case Record() if pipeline in (None, record.stream.pipeline):
                    found.append(record.stored)
                case Damaged() if pipeline is None or pipeline_of(stem_in(name)) in (pipeline, None):
                    broken.append(record)
        return Listing(tuple(sorted(found, key=lambda stored: stored.stream)), tuple(broken))

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        demand_name(stream)
        self._objects.demand_conditions()

        def granted(record: Record) -> Record:
            record = record if record.trail else self._begun(stream)
            lease = grant(
                record.stored,
                record.fence,
                holder,
                now=now,
                ttl=ttl,
                nonce=nonce,
                known_dead=self._known_dead,
            )
            return replace(record, fence=lease.fence, lease=lease)

        lease = self._replace(stream, granted).lease
        assert lease is not None
        return lease

    def renew(self, stream: StreamId, lease: Lease, *, now: datetime, ttl: timedelta) -> Lease:
        renewed = lease.renewed(now, ttl)

        def prolonged(record: Record) -> Record:
            demand_lease(record.stored, lease)
            return replace(record, lease=renewed)

        self._replace(stream, prolonged)
        return renewed

    def release(self, stream: StreamId, lease: Lease) -> None:
        def released(record: Record) -> Record:
            demand_lease(record.stored, lease)
            # The events leave too: nobody may come for a long time, and a record can be damaged.
            return replace(self._flushed(record), lease=None)

        with contextlib.suppress(LeaseLost):
            self._replace(stream, released)

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        version = expected + 1

        def written(record: Record) -> Record:
            demand_turn(record.stored, expected, lease)
            kept = self._flushed(record) if record.full else record
            return replace(kept, version=version, watermark=watermark).with_events(events)

        self._replace(watermark.stream, written)
        return version

    def history(self, stream: StreamId, *, limit: int | None = None) -> list[Event]:
        record = self._look(stream).record
        wanted = 0 if limit is None else record.events - limit
        # What lies in the history and still in the outbox is one and the same line.
        lines = {(line.seq, line.fence): line for line in (*self._past(record, wanted), *record.outbox)}
        events = [line.event for _, line in sorted(lines.items())]
        return events if limit is None else events[max(0, len(events) - limit) :]

    def set_aside(self, stream: StreamId) -> str:
        name = record_name(stream)
        try:
            text, etag = self._objects.read(name)
        except Absent:
            return self._set_history_aside(stream)
        try:
            self._opened(name, text)
        except DamagedRecord:
            where = self._copied_aside(stream, text)
            self._begin_again(stream, etag)
            return where
        return self._set_history_aside(stream)

    def close(self) -> None:
        """Nothing stays open but the client, which belongs to the process."""

    def demand_conditions(self) -> None:
        """Refuse a server that ignores conditions, as every `acquire` does; this takes no lease."""
        self._objects.demand_conditions()

    # --- Records ---------------------------------------------------------------

    def _look(self, stream: StreamId) -> Seen:
        demand_name(stream)
        try:
            return self._read(record_name(stream))
        except Absent:
            return Seen(Record(stream), None)

    def _read(self, name: str) -> Seen:
        text, etag = self._objects.read(name)
        return Seen(self._opened(name, text), etag)

    def _opened(self, name: str, text: bytes) -> Record:
        record = opened(text, self._where(name), Record.from_json)
        if record_name(record.stream) != name:
            raise damaged(f"it is the record of {record.stream}, under another name", self._where(name))
        return record

    def _as_listed(self, found: tuple[str, str]) -> tuple[str, Record | Damaged | None]:
        name, etag = found
        known = self._listed.get(name)
        if known is None or known.etag != etag:
            try:
                known = self._listed[name] = self._read(name)
            except Absent:  # since it was listed
                return name, None
            except DamagedRecord as error:
                return name, Damaged(self._where(name), error.message)
        return name, known.record

    def _begun(self, stream: StreamId) -> Record:
        """The first record of a stream, or the first after one that was set aside or deleted."""
        past = self._past_of(stream)
        if not past:
            return Record(stream)
        return Record(stream, events=past[-1].end, fence=max(part.fence for part in past))

    def _begin_again(self, stream: StreamId, etag: str) -> None:
        """Put a new record in the place of a damaged one."""
        record = self._begun(stream).signed(self._token(), ())
        try:
            self._objects.replace(record_name(stream), record.sealed, etag)
        except (Unmet, Absent, OutcomeUnknown):
            self._look(stream)  # damaged, if it is as it was; else it is ours, or somebody's who came first

    def _where(self, name: str) -> str:
        return self._objects.place.url(name)

    # --- Replacing a record ----------------------------------------------------

    def _replace(self, stream: StreamId, change: Change) -> Record:
        """Put what `change` makes of the record in its place, and return it."""
        seen = self._held.pop(stream, None)
        fresh = False
        for _ in range(_ATTEMPTS):
            if seen is None:
                seen, fresh = self._look(stream), True
            try:
                record = change(seen.record).signed(self._token(), seen.record.trail)
            except TidegateError:
                if fresh:
                    raise
                seen = None  # somebody has changed it after all: look what is there, and judge again
                continue
            seen, landed = self._land(record, seen)
            if landed:
                if seen.etag is not None and seen.record.lease is not None:
                    self._held[stream] = seen
                return record
            fresh = True
        raise _outrun(stream)

    def _land(self, record: Record, seen: Seen) -> tuple[Seen, bool]:
        """Write `record` in the place of what was seen: what lies there now, and whether it was written.

        Trying again is safe: it is the same text on the same condition, so it is written at most once.
        """
        name, text = record_name(record.stream), record.sealed
        lost: OutcomeUnknown | None = None
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                # This line moves the mark, or does nothing.
                etag = self._objects.replace(name, text, seen.etag)
            except OutcomeUnknown as error:
                lost = error
            except Unmet as error:
                lost = lost if error.certain else _unheard(self._where(name), error)
            except Absent:
                pass  # there is nothing to replace any more
            else:
                return Seen(record, etag), True
            found = self._look_back(record.stream, lost)
            if record.trail[-1] in found.record.trail:
                return found, True
            if found.etag != seen.etag:
                if lost is not None and not found.record.follows(seen.record):
                    raise lost
                return found, False
        raise lost or _outrun(record.stream)

    def _look_back(self, stream: StreamId, lost: OutcomeUnknown | None) -> Seen:
        try:
            return self._look(stream)
        except ConnectError as error:
            raise lost or error from error

    # --- History ---------------------------------------------------------------

    def _flushed(self, record: Record) -> Record:
        """The record with its outbox moved to the history."""
        if record.outbox:
            text = b"".join(line.text for line in record.outbox)
            self._objects.add(Past.of(record.stream, record.outbox, text).name, text)
        return replace(record, outbox=())

    def _past(self, record: Record, wanted: int) -> list[Line]:
        """What left for the history: at least everything from event number `wanted` on."""
        if record.outbox and record.outbox[0].seq <= wanted:
            return []
        parts = [part for part in self._past_of(record.stream, wanted) if part.end > wanted]
        return [line for lines in self._objects.together(self._lines, parts) for line in lines]

    def _past_of(self, stream: StreamId, wanted: int = 0) -> list[Past]:
        """The stream's history objects, in order: at least from the one on that holds event `wanted`."""
        folder = history_folder(stream)
        near = max(0, wanted - 2 * MANY)
        if near:
            parts = parts_of(self._objects.listed(folder, after=f"{folder}{near:012}"))
            if parts and parts[0].seq <= wanted:
                return parts
        return parts_of(self._objects.listed(folder))

    def _lines(self, part: Past) -> list[Line]:
        text = self._text(part)
        return [] if text is None else self._understood(part, text)

    def _text(self, part: Past) -> bytes | None:
        """What a history object holds; None if it was set aside since it was listed."""
        try:
            return self._objects.read(part.name)[0]
        except Absent:
            return None

    def _understood(self, part: Past, text: bytes) -> list[Line]:
        where = self._where(part.name)
        if digest_of(text) != part.digest:
            raise damaged("its checksum does not fit: a part of it was changed", where)
        with reading(where):
            return [Line.from_json(json.loads(line)) for line in text.splitlines()]

    def _set_history_aside(self, stream: StreamId) -> str:
        for part in self._past_of(stream):
            text = self._text(part)
            if text is None:
                continue
            try:
                self._understood(part, text)
            except DamagedRecord:
                where = self._copied_aside(stream, text)
                self._objects.delete(part.name)
                return where
        raise StateError(
            "the record is not damaged, so it stays where it is", where=self._where(record_name(stream))
        )

    def _copied_aside(self, stream: StreamId, text: bytes) -> str:
        """A copy of something damaged, under a name that is free."""
        folder = f"set-aside/{stem_of(stream)}/"
        number = 1 + sum(1 for _ in self._objects.listed(folder))
        while True:
            name = f"{folder}{number:06}"
            try:
                self._objects.replace(name, text, None)
            except Unmet:
                number += 1
            else:
                return self._where(name)


def _outrun(stream: StreamId) -> Conflict:
    return Conflict(
        "others kept changing the record; nothing was written", where=str(stream), hint="run it again"
    )


def _unheard(where: str, cause: Exception) -> OutcomeUnknown:
    unknown = OutcomeUnknown("the answer to a write was lost", where=where, hint="run it again")
    unknown.__cause__ = cause
    return unknown
