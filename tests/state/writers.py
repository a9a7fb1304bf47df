"""Work that tests do in other processes; light to import, since every process imports it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from tidegate.core.errors import LeaseHeld
from tidegate.core.leases import Lease
from tidegate.state.local import LocalStore
from tidegate.state.process import this_process
from tidegate.testing.stores import STREAM, TTL, event, mark


def write_for_ever(path: Path, seed: int) -> None:
    """Take the lease and count up, one version after another, until killed."""
    store = LocalStore(path)
    lease = taken(store, seed)
    version = store.read(STREAM).version
    while True:
        version += 1
        events = [event(2 * version - 1), event(2 * version)]
        store.write(mark(number=version), expected=version - 1, lease=lease, events=events)
        if version % 5 == 0:
            lease = store.renew(STREAM, lease, now=datetime.now(UTC), ttl=TTL)


def taken(store: LocalStore, seed: int) -> Lease:
    me = this_process("a writer")
    for attempt in count():
        try:
            return store.acquire(STREAM, me, now=datetime.now(UTC), ttl=TTL, nonce=f"{seed}-{attempt}")
        except LeaseHeld:  # whoever was killed is not quite gone yet
            time.sleep(0.001)
    raise AssertionError("unreachable")
