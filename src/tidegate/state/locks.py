"""A lock on a file, for all processes that can lock files in its folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.core.errors import StateError

_LOCK_SECONDS = 30.0
_POLL_SECONDS = 0.002


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep everybody else out, threads of this process included; a dead process lets go by itself."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise StateError(
                f"another process has locked the record for {_LOCK_SECONDS:g} s",
                where=str(path),
                hint="a process that was stopped in mid-write, perhaps: end it or let it go on",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Somebody may have removed the file meanwhile: a lock on what has no name keeps nobody out.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
