"""The streams of a pipeline's upstreams: read together, and changed one by one under the pipeline's lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import get_ident
from typing import TypeVar

from tidegate.core.leases import Holder
from tidegate.core.transitions import Step
from tidegate.core.watermark import Event, Watermark
from tidegate.delta.plan import PLANNING, stream_of
from tidegate.state.contract import Store
from tidegate.state.hold import HeldStream, hold

AT_ONCE = 16
"""Logs that are read at the same time."""
WRITERS = 250
"""Records that are written at the same time: a store of Delta tables puts those that wait into one commit."""

T = TypeVar("T")
R = TypeVar("R")

Change = Callable[[Watermark | None], Step | None]
"""From what there is of a stream to what it shall become; None if it shall stay as it is."""


@dataclass(frozen=True)
class Streams:
    """Those of one pipeline."""

    store: Store
    pipeline: str
    holder: Holder
    clock: Callable[[], datetime]
    token: Callable[[], str]
    ttl: timedelta
    _held: dict[int, HeldStream] = field(default_factory=dict, repr=False)
    """By the thread that holds it: another one is somebody else."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else plans or processes this pipeline meanwhile. Raises `LeaseHeld`, naming who does."""
        me = get_ident()
        if me in self._held:  # this very call is part of one that has it already
            yield
            return
        with self._hold(PLANNING) as held:
            self._held[me] = held
            try:
                yield
            finally:
                del self._held[me]

    def check(self) -> None:
        """Raise `LeaseLost` if somebody else has taken the pipeline over."""
        for held in list(self._held.values()):
            held.check()

    def marks(self) -> dict[str, Watermark]:
        """What the store has of every upstream that was ever planned."""
        listing = self.store.streams(self.pipeline)
        return {item.stream.name: item.watermark for item in listing.streams if item.watermark is not None}

    def change(self, changes: Mapping[str, Change]) -> dict[str, Watermark | None]:
        """Change several streams, each by one compare-and-set."""
        self.check()
        names = list(changes)
        done: dict[str, Watermark | None] = {}
        for start in range(0, len(names), WRITERS):
            done |= self._change_at_once({name: changes[name] for name in names[start : start + WRITERS]})
        return done

    def _change_at_once(self, changes: Mapping[str, Change]) -> dict[str, Watermark | None]:
        """First all leases, then all writes: so that writes do not wait for each other's leases."""
        with ExitStack() as stack:
            held = together(lambda name: self._taken(name, stack), list(changes))
            pairs = list(zip(held, changes.values(), strict=True))
            together(lambda pair: _changed(*pair), pairs, WRITERS)
            return {name: item.watermark for name, item in zip(changes, held, strict=True)}

    def history(self, upstream: str, limit: int | None) -> list[Event]:
        return self.store.history(stream_of(self.pipeline, upstream), limit=limit)

    def _taken(self, name: str, stack: ExitStack) -> HeldStream:
        return stack.enter_context(self._hold(name))

    @contextmanager
    def _hold(self, name: str) -> Iterator[HeldStream]:
        stream = stream_of(self.pipeline, name)
        with hold(
            self.store, stream, holder=self.holder, clock=self.clock, nonce=self.token(), ttl=self.ttl
        ) as held:
            yield held


def there(changed: Mapping[str, Watermark | None]) -> dict[str, Watermark]:
    return {name: mark for name, mark in changed.items() if mark is not None}


def _changed(held: HeldStream, change: Change) -> None:
    step = change(held.watermark)
    if step is not None:
        held.commit(*step)


def together(work: Callable[[T], R], items: Sequence[T], at_once: int = AT_ONCE) -> list[R]:
    """The results in the order of the items. If some raise, the rest is done first."""
    if len(items) <= 1 or at_once == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(at_once, len(items))) as pool:
        waiting = [pool.submit(work, item) for item in items]
    return [done.result() for done in waiting]
