"""Ctrl-C and SIGTERM: both mean stop, and neither can hurt the state."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAP_SECONDS = 0.5


class Stop:
    """A wish to stop. The first signal is a request, the next one insists."""

    def __init__(self, *, gently: bool) -> None:
        self._gently = gently
        self._wanted = threading.Event()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until somebody wants to stop."""
        end = time.monotonic() + seconds
        # In short naps: a signal that another thread receives does not wake this one.
        while not self.wanted and (left := end - time.monotonic()) > 0:
            self._wanted.wait(min(left, _NAP_SECONDS))
        return self.wanted

    def check(self) -> None:
        """A safe point to stop at."""
        if self.wanted:
            raise KeyboardInterrupt

    def arm(self) -> None:
        """Listen to the signals. Needed again after Spark has started, which takes Ctrl-C for itself."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_signal)
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        first = not self.wanted
        self._wanted.set()
        if not (first and self._gently):
            raise KeyboardInterrupt


@contextmanager
def stopping(*, gently: bool) -> Iterator[Stop]:
    """Signals become a `Stop` while this lasts. `gently`: work goes on to the next safe point first."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = Stop(gently=gently)
    stop.arm()
    try:
        yield stop
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def end_on_sigterm() -> None:
    """Outside of a sync, SIGTERM ends a command as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
