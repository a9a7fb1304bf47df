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
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

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
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.s3 import Absent, S3Place, Unmet
from tidegate.state import process
from tidegate.state.contract import Damaged, Listing, Stored
from tidegate.state.names import beginning_of, pipeline_of, stem_of
from tidegate.state.rules import KnownDead, demand_lease, demand_name, demand_turn, grant
from tidegate.state.s3_objects import Objects
from tidegate.state.sealed import damaged, frame_of, framed, opened, reading, seal

_ATTEMPTS = 10
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Before each attempt of one and the same write."""
_TRAIL = 8
_MANY = 100
_MUCH = 64 * 1024
"""Events in an outbox, and their bytes, before the next write empties it."""

Change = Callable[["_Record"], "_Record"]


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
        self._held: dict[StreamId, _Seen] = {}
        """What this store last wrote of the streams it holds, and nobody else should have changed."""
        self._listed: dict[str, _Seen] = {}
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
                case _Record() if pipeline in (None, record.stream.pipeline):
                    found.append(record.stored)
                case Damaged() if pipeline is None or pipeline_of(_stem_in(name)) in (pipeline, None):
                    broken.append(record)
        return Listing(tuple(sorted(found, key=lambda stored: stored.stream)), tuple(broken))

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        demand_name(stream)
        self._objects.demand_conditions()

        def granted(record: _Record) -> _Record:
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

        def prolonged(record: _Record) -> _Record:
            demand_lease(record.stored, lease)
            return replace(record, lease=renewed)

        self._replace(stream, prolonged)
        return renewed

    def release(self, stream: StreamId, lease: Lease) -> None:
        def released(record: _Record) -> _Record:
            demand_lease(record.stored, lease)
            # The events leave too: nobody may come for a long time, and a record can be damaged.
            return replace(self._flushed(record), lease=None)

        with contextlib.suppress(LeaseLost):
            self._replace(stream, released)

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        version = expected + 1

        def written(record: _Record) -> _Record:
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
        name = _record_name(stream)
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

    # --- Records ---------------------------------------------------------------

    def _look(self, stream: StreamId) -> _Seen:
        demand_name(stream)
        try:
            return self._read(_record_name(stream))
        except Absent:
            return _Seen(_Record(stream), None)

    def _read(self, name: str) -> _Seen:
        text, etag = self._objects.read(name)
        return _Seen(self._opened(name, text), etag)

    def _opened(self, name: str, text: bytes) -> _Record:
        record = opened(text, self._where(name), _Record.from_json)
        if _record_name(record.stream) != name:
            raise damaged(f"it is the record of {record.stream}, under another name", self._where(name))
        return record

    def _as_listed(self, found: tuple[str, str]) -> tuple[str, _Record | Damaged | None]:
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

    def _begun(self, stream: StreamId) -> _Record:
        """The first record of a stream, or the first after one that was set aside or deleted."""
        past = self._past_of(stream)
        if not past:
            return _Record(stream)
        return _Record(stream, events=past[-1].end, fence=max(part.fence for part in past))

    def _begin_again(self, stream: StreamId, etag: str) -> None:
        """Put a new record in the place of a damaged one."""
        record = self._signed(self._begun(stream), ())
        try:
            self._objects.replace(_record_name(stream), record.sealed, etag)
        except (Unmet, Absent, OutcomeUnknown):
            self._look(stream)  # damaged, if it is as it was; else it is ours, or somebody's who came first

    def _where(self, name: str) -> str:
        return self._objects.place.url(name)

    # --- Replacing a record ----------------------------------------------------

    def _replace(self, stream: StreamId, change: Change) -> _Record:
        """Put what `change` makes of the record in its place, and return it."""
        seen = self._held.pop(stream, None)
        fresh = False
        for _ in range(_ATTEMPTS):
            if seen is None:
                seen, fresh = self._look(stream), True
            try:
                record = self._signed(change(seen.record), seen.record.trail)
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

    def _signed(self, record: _Record, trail: tuple[str, ...]) -> _Record:
        return replace(record, trail=(*trail, self._token())[-_TRAIL:])

    def _land(self, record: _Record, seen: _Seen) -> tuple[_Seen, bool]:
        """Write `record` in the place of what was seen: what lies there now, and whether it was written.

        Trying again is safe: it is the same text on the same condition, so it is written at most once.
        """
        name, text = _record_name(record.stream), record.sealed
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
                return _Seen(record, etag), True
            found = self._look_back(record.stream, lost)
            if record.trail[-1] in found.record.trail:
                return found, True
            if found.etag != seen.etag:
                if lost is not None and not found.record.follows(seen.record):
                    raise lost
                return found, False
        raise lost or _outrun(record.stream)

    def _look_back(self, stream: StreamId, lost: OutcomeUnknown | None) -> _Seen:
        try:
            return self._look(stream)
        except ConnectError as error:
            raise lost or error from error

    # --- History ---------------------------------------------------------------

    def _flushed(self, record: _Record) -> _Record:
        """The record with its outbox moved to the history."""
        if record.outbox:
            text = b"".join(line.text for line in record.outbox)
            self._objects.add(_Past.of(record.stream, record.outbox, text).name, text)
        return replace(record, outbox=())

    def _past(self, record: _Record, wanted: int) -> list[_Line]:
        """What left for the history: at least everything from event number `wanted` on."""
        if record.outbox and record.outbox[0].seq <= wanted:
            return []
        parts = [part for part in self._past_of(record.stream, wanted) if part.end > wanted]
        return [line for lines in self._objects.together(self._lines, parts) for line in lines]

    def _past_of(self, stream: StreamId, wanted: int = 0) -> list[_Past]:
        """The stream's history objects, in order: at least from the one on that holds event `wanted`."""
        folder = _history_folder(stream)
        near = max(0, wanted - 2 * _MANY)
        if near:
            parts = _parts(self._objects.listed(folder, after=f"{folder}{near:012}"))
            if parts and parts[0].seq <= wanted:
                return parts
        return _parts(self._objects.listed(folder))

    def _lines(self, part: _Past) -> list[_Line]:
        text = self._text(part)
        return [] if text is None else self._understood(part, text)

    def _text(self, part: _Past) -> bytes | None:
        """What a history object holds; None if it was set aside since it was listed."""
        try:
            return self._objects.read(part.name)[0]
        except Absent:
            return None

    def _understood(self, part: _Past, text: bytes) -> list[_Line]:
        where = self._where(part.name)
        if _digest(text) != part.digest:
            raise damaged("its checksum does not fit: a part of it was changed", where)
        with reading(where):
            return [_Line.from_json(json.loads(line)) for line in text.splitlines()]

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
            "the record is not damaged, so it stays where it is", where=self._where(_record_name(stream))
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


# --- What lies in the bucket -------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """An event, and its place in the history."""

    seq: int
    fence: int
    version: int
    event: Event

    def to_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "fence": self.fence,
            "version": self.version,
            "event": self.event.to_json(),
        }

    @property
    def text(self) -> bytes:
        return json.dumps(self.to_json()).encode() + b"\n"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Line:
        return cls(data["seq"], data["fence"], data["version"], Event.from_json(data["event"]))


@dataclass(frozen=True, slots=True)
class _Record:
    stream: StreamId
    version: int = 0
    fence: int = 0
    """The largest that was ever given for the stream."""
    lease: Lease | None = None
    watermark: Watermark | None = None
    events: int = 0
    """How many there have been: the next one gets this number."""
    outbox: tuple[_Line, ...] = ()
    """Events that are not in the history yet; after an interruption, perhaps there too."""
    trail: tuple[str, ...] = ()
    """The tokens of the last writes, newest last. Empty as long as there is no object."""

    @property
    def stored(self) -> Stored:
        return Stored(self.stream, self.version, self.watermark, self.lease)

    @property
    def full(self) -> bool:
        """Whether the outbox should be emptied before more goes into it."""
        return len(self.outbox) >= _MANY or sum(len(line.text) for line in self.outbox) >= _MUCH

    def with_events(self, events: Sequence[Event]) -> _Record:
        lines = tuple(
            _Line(self.events + place, self.fence, self.version, event) for place, event in enumerate(events)
        )
        return replace(self, events=self.events + len(lines), outbox=(*self.outbox, *lines))

    def follows(self, earlier: _Record) -> bool:
        """Whether the trail shows every write since an earlier record."""
        return len(self.trail) < _TRAIL or not set(earlier.trail[-1:]).isdisjoint(self.trail)

    @property
    def sealed(self) -> bytes:
        record = framed(
            self.stream,
            self.watermark,
            version=self.version,
            fence=self.fence,
            lease=self.lease.to_json() if self.lease else None,
            events=self.events,
            outbox=[line.to_json() for line in self.outbox],
            trail=list(self.trail),
        )
        return seal(record).encode()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Record:
        stream, watermark = frame_of(data)
        bare = cls(
            stream=stream,
            version=data["version"],
            fence=data["fence"],
            lease=None if data["lease"] is None else Lease.from_json(data["lease"]),
            events=data["events"],
            outbox=tuple(_Line.from_json(line) for line in data["outbox"]),
            trail=tuple(data["trail"]),
        )
        demand_shape(bare, cls)
        return replace(bare, watermark=watermark)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record as it was read, or written."""

    record: _Record
    etag: str | None
    """None if there was no object, or if the server did not say it."""


@dataclass(frozen=True, slots=True)
class _Past:
    """A history object, as its name tells."""

    name: str
    seq: int
    """The number of its first event."""
    count: int
    fence: int
    """Of the lease under which its last event was written."""
    digest: str

    @property
    def end(self) -> int:
        return self.seq + self.count

    @classmethod
    def of(cls, stream: StreamId, lines: Sequence[_Line], text: bytes) -> _Past:
        seq, count, fence, digest = lines[0].seq, len(lines), lines[-1].fence, _digest(text)
        name = f"{_history_folder(stream)}{seq:012}-{count}-{fence}-{digest}.jsonl"
        return cls(name, seq, count, fence, digest)

    @classmethod
    def named(cls, name: str) -> _Past | None:
        """None for an object that is none of ours."""
        found = _PAST_NAME.search(name)
        if found is None:
            return None
        return cls(name, int(found["seq"]), int(found["count"]), int(found["fence"]), found["digest"])


_PAST_NAME = re.compile(r"/(?P<seq>\d{12,})-(?P<count>\d+)-(?P<fence>\d+)-(?P<digest>[0-9a-f]{16})\.jsonl$")


def _parts(listed: Iterable[tuple[str, str]]) -> list[_Past]:
    return [part for name, _ in listed if (part := _Past.named(name)) is not None]


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _record_name(stream: StreamId) -> str:
    return f"watermarks/{stem_of(stream)}.json"


def _stem_in(name: str) -> str:
    return name.removeprefix("watermarks/").removesuffix(".json")


def _history_folder(stream: StreamId) -> str:
    return f"history/{stem_of(stream)}/"
