"""Faults on purpose: a part that kills or stops its process at a chosen call.

Every part of a sync stands behind a contract, so a fault needs no hook in the product: wrap the part.
A wrapped staging travels to Spark's workers and kills those.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from threading import Lock
from typing import Any

from tidegate.core.watermark import Event


class Moment(StrEnum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Fault:
    """Die, or stand still, at the n-th call of a method, just before it or just after it."""

    method: str
    nth: int = 1
    moment: Moment = Moment.BEFORE
    event: str | None = None
    """Count only the calls that write this kind of event into a stream's history."""
    only_in_workers: bool = False
    """Spare the process that made the fault: die only where a copy of it has travelled."""
    home: int = field(default_factory=os.getpid)
    signal: int = signal.SIGKILL
    """What the process sends to itself."""

    def counts(self, events: Sequence[Event]) -> bool:
        return self.event is None or any(event.kind == self.event for event in events)

    def strike(self, calls: int, moment: Moment) -> None:
        spared = self.only_in_workers and os.getpid() == self.home
        if calls == self.nth and moment is self.moment and not spared:
            os.kill(os.getpid(), self.signal)


class Faulty:
    """Behaves like the part it wraps, until the fault strikes.

    Calls that count go one after the other, whichever threads make them: what had begun when the fault struck
    would be a matter of luck otherwise.
    """

    def __init__(self, part: Any, fault: Fault) -> None:
        self._part = part
        self._fault = fault
        self._calls = count(1)
        self._turn = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Faulty, (self._part, self._fault)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        return self._striking(value) if name == self._fault.method else value

    def _striking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._fault.counts(kwargs.get("events", ())):
                return method(*args, **kwargs)
            with self._turn:
                nth = next(self._calls)
                self._fault.strike(nth, Moment.BEFORE)
                result = method(*args, **kwargs)
                self._fault.strike(nth, Moment.AFTER)
            return result

        return call
