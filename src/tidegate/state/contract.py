"""What a store must do. Every store passes the suite in `tidegate.testing.stores`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import Event, StreamId, Watermark


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store holds of a stream. Version 0 with no watermark: nothing was ever written."""

    stream: StreamId
    version: int = 0
    watermark: Watermark | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class Damaged:
    """A record that cannot be understood: where it lies and what is wrong with it."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True)
class Listing:
    streams: tuple[Stored, ...]
    damaged: tuple[Damaged, ...]


class Store(Protocol):
    """Watermarks, leases and history, with one compare-and-set.

    Raises `DamagedRecord` for a record that cannot be understood, `ConnectError` when the store cannot be
    reached, `OutcomeUnknown` when the answer to a write was lost.
    """

    def read(self, stream: StreamId) -> Stored: ...

    def streams(self, pipeline: str | None = None) -> Listing:
        """All streams, sorted; damaged records are named beside them, never swallowed."""
        ...

    def acquire(
        self, stream: StreamId, holder: Holder, *, now: datetime, ttl: timedelta, nonce: str
    ) -> Lease:
        """Take the lease if it is free, expired, or held by a process known to be dead.

        Raises `LeaseHeld` naming the holder otherwise. The fence is larger than that of any lease before.
        """
        ...

    def renew(self, stream: StreamId, lease: Lease, *, now: datetime, ttl: timedelta) -> Lease:
        """Raises `LeaseLost` if the lease was taken over."""
        ...

    def release(self, stream: StreamId, lease: Lease) -> None:
        """Does nothing if the lease was taken over."""
        ...

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        """Compare-and-set: replace version `expected` and return the new version.

        The events are in the history if and only if the write landed. Raises `Conflict` when the version
        is another, `LeaseLost` when the lease is no longer this one; then nothing was written.
        """
        ...

    def history(self, stream: StreamId, *, limit: int | None = None) -> list[Event]:
        """Newest last; `limit` keeps the newest."""
        ...

    def set_aside(self, stream: StreamId) -> str:
        """Move a damaged record out of the way, never deleting it, and say where it lies now."""
        ...

    def close(self) -> None: ...
