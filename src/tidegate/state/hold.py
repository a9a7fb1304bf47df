"""Holding a stream: the lease, its heartbeat, and commits that know how they ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

from tidegate.core.errors import (
    Conflict,
    ConnectError,
    InvariantBroken,
    LeaseLost,
    OutcomeUnknown,
    TidegateError,
)
from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import Event, StreamId, Watermark, to_json
from tidegate.state.contract import Store, Stored
from tidegate.state.rules import demand_lease, demand_turn

TTL = timedelta(seconds=60)

Clock = Callable[[], datetime]


@contextmanager
def hold(
    store: Store, stream: StreamId, *, holder: Holder, clock: Clock, nonce: str, ttl: timedelta = TTL
) -> Iterator[HeldStream]:
    """Take the lease, keep it alive, and give it back at the end.

    Raises `LeaseHeld` when somebody else has it. `nonce` is a text that no other call ever uses.
    """
    _LEFT_BEHIND.release(store, stream, clock())
    take = partial(store.acquire, stream, holder, ttl=ttl, nonce=nonce)
    lease = _twice(lambda: take(now=clock()))
    try:
        held = HeldStream(store, store.read(stream), lease, clock=clock, ttl=ttl)
    except BaseException:
        _let_go(store, stream, lease)
        raise
    try:
        with _heartbeat(held, ttl):
            yield held
    finally:
        _let_go(store, stream, held.lease)


def _twice(acquire: Callable[[], Lease]) -> Lease:
    """Ask again when the answer was lost: if the lease was granted, its nonce gives the same one again."""
    try:
        return acquire()
    except OutcomeUnknown:
        return acquire()


class HeldStream:
    """A stream whose lease this process holds. Only `commit` changes what the store has of it."""

    def __init__(self, store: Store, stored: Stored, lease: Lease, *, clock: Clock, ttl: timedelta) -> None:
        demand_lease(stored, lease)
        self.stream = stored.stream
        self._store = store
        self._version = stored.version
        self._watermark = stored.watermark
        self._lease = lease
        self._clock = clock
        self._ttl = ttl
        self._lost: LeaseLost | None = None
        self._turn = threading.RLock()
        """Heartbeat and commit take turns, so that each knows what the other has done."""

    @property
    def watermark(self) -> Watermark | None:
        """The committed state; None as long as nothing was ever committed."""
        return self._watermark

    @property
    def mark(self) -> Watermark:
        """The committed state, where there must be one by now."""
        if self._watermark is None:
            raise InvariantBroken("nothing was ever committed", where=str(self.stream))
        return self._watermark

    @property
    def lease(self) -> Lease:
        return self._lease

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is gone, as far as is known."""
        if self._lost is None and self._lease.expired(self._clock()):
            self.renew()
        self._demand_held()

    def commit(self, watermark: Watermark, events: Sequence[Event] = ()) -> None:
        """Make `watermark` the committed state, in one compare-and-set. If this raises, it is not.

        The exception is `OutcomeUnknown`, when the store could not be asked before the lease ended.
        """
        with self._turn:
            self._demand_held()
            self._version = self._land(watermark, tuple(events))
            self._watermark = watermark

    def renew(self) -> bool:
        """Prolong the lease. False: it could not be done, and may work later unless the lease is lost."""
        with self._turn:
            try:
                self._lease = self._store.renew(self.stream, self._lease, now=self._clock(), ttl=self._ttl)
            except LeaseLost as error:
                self._lost = error
                return False
            except Exception as error:  # noqa: BLE001 - no data can be lost: without renewal the lease ends
                self._give_up_if_expired(error)
                return False
            return True

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def _give_up_if_expired(self, error: Exception) -> None:
        if self._lease.expired(self._clock()):
            self._lost = LeaseLost(
                f"the lease expired before it could be renewed: {error}",
                where=str(self.stream),
                hint="run it again once the store can be reached",
            )
            self._lost.__cause__ = error

    def _demand_held(self) -> None:
        if self._lost is not None:
            raise LeaseLost(self._lost.message, where=self._lost.where, hint=self._lost.hint) from self._lost

    def _land(self, watermark: Watermark, events: tuple[Event, ...]) -> int:
        """Write, and if the answer is lost, find out what happened; at most one more attempt."""
        try:
            return self._write(watermark, events)
        except OutcomeUnknown as error:
            if self._landed(watermark, error):
                return self._version + 1
        try:
            return self._write(watermark, events)
        except (OutcomeUnknown, Conflict) as error:
            # The first attempt may have landed while we already looked elsewhere.
            if self._landed(watermark, error):
                return self._version + 1
            raise

    def _write(self, watermark: Watermark, events: tuple[Event, ...]) -> int:
        try:
            return self._store.write(watermark, expected=self._version, lease=self._lease, events=events)
        except LeaseLost as error:
            self._lost = error
            raise

    def _landed(self, watermark: Watermark, cause: TidegateError) -> bool:
        """Whether the store has what was last written, under this very lease."""
        stored = self._read_back(cause)
        demand_lease(stored, self._lease)
        if stored.version == self._version + 1 and _same(stored.watermark, watermark):
            return True
        demand_turn(stored, self._version, self._lease)
        return False

    def _read_back(self, cause: TidegateError) -> Stored:
        while True:
            try:
                return self._store.read(self.stream)
            except ConnectError as error:
                if not error.transient or self._lease.expired(self._clock()):
                    raise cause from error
            time.sleep(_retry_seconds(self._ttl))


def _same(stored: Watermark | None, written: Watermark) -> bool:
    return stored is not None and json.dumps(to_json(stored)) == json.dumps(to_json(written))


# --- Heartbeat ---------------------------------------------------------------


@contextmanager
def _heartbeat(held: HeldStream, ttl: timedelta) -> Iterator[None]:
    """Renew the lease in the background; more often while the store cannot be reached."""
    stop = threading.Event()

    def beat() -> None:
        pause = ttl.total_seconds() / 3
        while not stop.wait(pause) and not held.lost:
            pause = ttl.total_seconds() / 3 if held.renew() else _retry_seconds(ttl)

    thread = threading.Thread(target=beat, name=f"lease of {held.stream}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _retry_seconds(ttl: timedelta) -> float:
    return ttl.total_seconds() / 12


# --- Giving back -------------------------------------------------------------


class _LeftBehind:
    """Leases that this process gave up while the store could not be told.

    Nobody else may know that they are free, but this process does, and must not keep itself out.
    """

    def __init__(self) -> None:
        self._leases: dict[StreamId, list[Lease]] = {}
        self._guard = threading.Lock()

    def add(self, stream: StreamId, lease: Lease) -> None:
        with self._guard:
            self._leases.setdefault(stream, []).append(lease)

    def release(self, store: Store, stream: StreamId, now: datetime) -> None:
        with self._guard:
            leases = [lease for lease in self._leases.pop(stream, []) if not lease.expired(now)]
            if leases:
                self._leases[stream] = leases
        for lease in leases:
            store.release(stream, lease)


_LEFT_BEHIND = _LeftBehind()


def _let_go(store: Store, stream: StreamId, lease: Lease) -> None:
    try:
        store.release(stream, lease)
    except TidegateError:
        # Nothing can be lost: the lease ends by itself, and what was committed is committed.
        _LEFT_BEHIND.add(stream, lease)
