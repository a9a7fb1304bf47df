"""What every store decides alike: who gets a lease, who may write, and what a stream can be called."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from tidegate.core.errors import Conflict, LeaseHeld, LeaseLost, UsageError
from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import StreamId
from tidegate.state.contract import Stored

KnownDead = Callable[[Holder, Holder], bool]
"""Whether the first holder is known to be dead, as far as the second one can tell."""


def grant(
    stored: Stored,
    fence: int,
    holder: Holder,
    *,
    now: datetime,
    ttl: timedelta,
    nonce: str,
    known_dead: KnownDead,
) -> Lease:
    """The lease that follows `fence`, or `LeaseHeld`.

    Asking again with the same nonce gives the same lease: the answer to the first time was lost.
    """
    held = stored.lease
    if held is not None and (held.nonce, held.holder) == (nonce, holder):
        return held.renewed(now, ttl)
    if held is not None and not held.expired(now) and not known_dead(held.holder, holder):
        raise LeaseHeld(
            f"{stored.stream} is held by {held.holder} until {held.expires_at:%Y-%m-%d %H:%M:%S %Z}",
            hint="let it finish, and run this again",
        )
    number = next_fence(fence, now)
    return Lease(holder=holder, fence=number, nonce=nonce, acquired_at=now, expires_at=now + ttl)


def next_fence(fence: int, now: datetime) -> int:
    """Follows the clock, like run numbers: targets remember fences, and a store can be lost or restored."""
    return max(fence + 1, int(now.timestamp() * 1000))


def demand_lease(stored: Stored, lease: Lease) -> None:
    """Raise `LeaseLost` unless the stream is still held by this lease."""
    if lease.same(stored.lease):
        return
    taken = f"taken over by {stored.lease.holder}" if stored.lease else "given up or taken over"
    raise LeaseLost(
        f"the lease of {lease.holder} was {taken}; nothing was written",
        where=str(stored.stream),
        hint="run it again",
    )


def demand_turn(stored: Stored, expected: int, lease: Lease) -> None:
    """Raise unless the lease is still this one and nobody has written since version `expected`."""
    demand_lease(stored, lease)
    if stored.version != expected:
        raise Conflict(
            f"version {expected} was to be replaced, but {stored.version} is there; nothing was written",
            where=str(stored.stream),
            hint="run it again",
        )


def demand_name(stream: StreamId) -> None:
    """Any text may name a stream, as long as it can be written down everywhere."""
    for text in (stream.pipeline, stream.name):
        if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
            raise UsageError(f"{text!r} cannot name a stream: it holds a character no database can store")
