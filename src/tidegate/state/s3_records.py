"""What a bucket with state holds: records, and the history that has left them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.core.leases import Lease
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.state.contract import Stored
from tidegate.state.names import stem_of
from tidegate.state.sealed import frame_of, framed, seal

_TRAIL = 8
"""Tokens that a record keeps."""
MANY = 100
_MUCH = 64 * 1024
"""Events in an outbox, and their bytes, before the next write empties it."""


@dataclass(frozen=True, slots=True)
class Line:
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
    def from_json(cls, data: dict[str, Any]) -> Line:
        return cls(data["seq"], data["fence"], data["version"], Event.from_json(data["event"]))


@dataclass(frozen=True, slots=True)
class Record:
    stream: StreamId
    version: int = 0
    fence: int = 0
    """The largest that was ever given for the stream."""
    lease: Lease | None = None
    watermark: Watermark | None = None
    events: int = 0
    """How many there have been: the next one gets this number."""
    outbox: tuple[Line, ...] = ()
    """Events that are not in the history yet; after an interruption, perhaps there too."""
    trail: tuple[str, ...] = ()
    """The tokens of the last writes, newest last. Empty as long as there is no object."""

    @property
    def stored(self) -> Stored:
        return Stored(self.stream, self.version, self.watermark, self.lease)

    @property
    def full(self) -> bool:
        """Whether the outbox should be emptied before more goes into it."""
        return len(self.outbox) >= MANY or sum(len(line.text) for line in self.outbox) >= _MUCH

    def with_events(self, events: Sequence[Event]) -> Record:
        lines = tuple(
            Line(self.events + place, self.fence, self.version, event) for place, event in enumerate(events)
        )
        return replace(self, events=self.events + len(lines), outbox=(*self.outbox, *lines))

    def signed(self, token: str, trail: tuple[str, ...]) -> Record:
        """This record as a write that leaves its token behind those of the writes before."""
        return replace(self, trail=(*trail, token)[-_TRAIL:])

    def follows(self, earlier: Record) -> bool:
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
    def from_json(cls, data: dict[str, Any]) -> Record:
        stream, watermark = frame_of(data)
        bare = cls(
            stream=stream,
            version=data["version"],
            fence=data["fence"],
            lease=None if data["lease"] is None else Lease.from_json(data["lease"]),
            events=data["events"],
            outbox=tuple(Line.from_json(line) for line in data["outbox"]),
            trail=tuple(data["trail"]),
        )
        demand_shape(bare, cls)
        return replace(bare, watermark=watermark)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it was read, or written."""

    record: Record
    etag: str | None
    """None if there was no object, or if the server did not say it."""


@dataclass(frozen=True, slots=True)
class Past:
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
    def of(cls, stream: StreamId, lines: Sequence[Line], text: bytes) -> Past:
        seq, count, fence, digest = lines[0].seq, len(lines), lines[-1].fence, digest_of(text)
        name = f"{history_folder(stream)}{seq:012}-{count}-{fence}-{digest}.jsonl"
        return cls(name, seq, count, fence, digest)

    @classmethod
    def named(cls, name: str) -> Past | None:
        """None for an object that is none of ours."""
        found = _PAST_NAME.search(name)
        if found is None:
            return None
        return cls(name, int(found["seq"]), int(found["count"]), int(found["fence"]), found["digest"])


_PAST_NAME = re.compile(r"/(?P<seq>\d{12,})-(?P<count>\d+)-(?P<fence>\d+)-(?P<digest>[0-9a-f]{16})\.jsonl$")


def parts_of(listed: Iterable[tuple[str, str]]) -> list[Past]:
    return [part for name, _ in listed if (part := Past.named(name)) is not None]


def digest_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def record_name(stream: StreamId) -> str:
    return f"watermarks/{stem_of(stream)}.json"


def stem_in(name: str) -> str:
    return name.removeprefix("watermarks/").removesuffix(".json")


def history_folder(stream: StreamId) -> str:
    return f"history/{stem_of(stream)}/"
