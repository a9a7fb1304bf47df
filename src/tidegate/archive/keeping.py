"""On the way to its place: what is packed is synced or sent while the next is packed.

A disk takes milliseconds to promise that something is kept, a bucket more, and neither takes a core for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import TypeVar

MOST = 4
"""Things on the way at once; each can be a shard that still lies in scratch space."""
_T = TypeVar("_T")


class Keeping:
    """Does one thing after the other, several at a time, each begun in the order in which it came.

    So a thing may wait for those that came before it.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="keeping")
        self._room = threading.BoundedSemaphore(MOST)

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        """Wait for what has begun. After an error nothing more begins: it would be done again anyway."""
        self._threads.shutdown(cancel_futures=kind is not None)

    def begin(self, act: Callable[[], _T], needs: ExitStack | None = None) -> Future[_T]:
        """Begin as soon as there is room; `needs` is closed when it is over, whatever became of it."""
        self._room.acquire()
        future = self._threads.submit(act)
        future.add_done_callback(lambda _: self._over(needs))
        return future

    def _over(self, needs: ExitStack | None) -> None:
        self._room.release()
        if needs is not None:
            needs.close()
