"""What lies in staging, and what of it may go.

Objects are listed first and the state is read afterwards: whatever a run stages in between is not in the
list, and what it has staged before is explained by the state. Only objects of runs that this project's
history knows are ever deleted, each under the lease of its stream and after a second look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.core.errors import LeaseHeld
from tidegate.core.leases import Holder
from tidegate.core.watermark import StreamId
from tidegate.staging.layout import RECEIPTS, run_of
from tidegate.state.contract import Store
from tidegate.state.hold import hold

if TYPE_CHECKING:
    from tidegate.staging.contract import StagedObject, Staging

_RECEIPT = re.compile(rf"(?:^|/){RECEIPTS}/[^/]+/[^/]+/(?P<run>[^/]+)/[^/]+\.json$")


class ObjectState(StrEnum):
    PENDING = "pending"
    """Waits to be loaded; never touched."""
    IN_FLIGHT = "in flight"
    """Belongs to a run that is not finished, and may still count; never touched."""
    LOADED = "loaded"
    ORPHANED = "orphaned"
    """Of a run of ours that is over, and nothing refers to it."""
    FOREIGN = "foreign"
    """Not of any run in this project's history; never touched."""


@dataclass(frozen=True)
class Listed:
    object: StagedObject
    state: ObjectState
    stream: StreamId | None
    store: Store | None


@dataclass
class _Known:
    """What the stores say about keys and runs."""

    pending: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    open_runs: set[str] = field(default_factory=set)
    runs: dict[str, tuple[StreamId, Store]] = field(default_factory=dict)

    def state(self, key: str) -> ObjectState:
        run = run_of_object(key)
        if key in self.pending:
            return ObjectState.PENDING
        if run is None or run not in self.runs:
            return ObjectState.FOREIGN
        if run in self.open_runs:
            return ObjectState.IN_FLIGHT
        return ObjectState.LOADED if key in self.loaded else ObjectState.ORPHANED


def run_of_object(key: str) -> str | None:
    """The run that a segment or a receipt belongs to."""
    found = _RECEIPT.search(key)
    return found["run"] if found else run_of(key)


def list_staged(staging: Staging, stores: Iterable[Store]) -> list[Listed]:
    """All objects with their state; `stores` are those of every pipeline that uses this staging area."""
    objects = list(staging.list())
    known = _known(stores)
    listed = []
    for item in objects:
        stream, store = known.runs.get(run_of_object(item.key) or "", (None, None))
        listed.append(Listed(item, known.state(item.key), stream, store))
    return listed


def _known(stores: Iterable[Store]) -> _Known:
    known = _Known()
    for store in stores:
        listing = store.streams()
        if listing.damaged:
            _refuse(listing.damaged[0].where)
        for stored in listing.streams:
            _learn(known, store, stored.stream)
    return known


def _learn(known: _Known, store: Store, stream: StreamId) -> None:
    """Read the history before the state: what becomes pending again in between is still seen as such."""
    for event in store.history(stream):
        if event.kind == "planned" and event.run_id:
            known.runs[event.run_id] = (stream, store)
        elif event.kind == "loaded":
            known.loaded.update(segment["key"] for segment in event.data["segments"])
    mark = store.read(stream).watermark
    if mark is None:
        return
    staged = mark.open_run.staged if mark.open_run else ()
    known.pending.update(segment.key for segment in (*mark.pending, *staged))
    if mark.open_run is not None:
        known.open_runs.add(mark.open_run.id)
    if mark.run is not None:
        known.runs.setdefault(mark.run.id, (stream, store))


def _refuse(where: str) -> None:
    from tidegate.core.errors import DamagedRecord

    raise DamagedRecord(
        "a state record cannot be understood, so nobody knows which staged files it refers to",
        where=where,
        hint="`tidegate watermark check` shows how to repair it",
    )


def choose(
    listed: Sequence[Listed],
    *,
    states: frozenset[ObjectState],
    tables: Callable[[StreamId], bool],
    before: datetime | None,
) -> list[Listed]:
    """Those that may go and are asked for."""
    may_go = states & {ObjectState.LOADED, ObjectState.ORPHANED}
    return [
        item
        for item in listed
        if item.state in may_go
        and item.stream is not None
        and tables(item.stream)
        and (before is None or item.object.modified < before)
    ]


@dataclass(frozen=True)
class Cleaning:
    deleted: tuple[Listed, ...]
    kept: tuple[Listed, ...]
    """Chosen, but by now referred to again, or of a table that a run holds."""


def delete(
    chosen: Sequence[Listed],
    staging: Staging,
    *,
    holder: Holder,
    clock: Callable[[], datetime],
    token: Callable[[], str],
) -> Cleaning:
    """Delete, stream by stream, under its lease: nobody can make a file pending again meanwhile."""
    deleted: list[Listed] = []
    kept: list[Listed] = []
    for (stream, store), items in _by_stream(chosen).items():
        try:
            with hold(store, stream, holder=holder, clock=clock, nonce=token()):
                known = _Known()
                _learn(known, store, stream)
                gone = [item for item in items if known.state(item.object.key) is item.state]
                staging.delete([item.object.key for item in gone])
        except LeaseHeld:
            gone = []
        deleted += gone
        kept += [item for item in items if item not in gone]
    return Cleaning(tuple(deleted), tuple(kept))


def _by_stream(chosen: Sequence[Listed]) -> dict[tuple[StreamId, Store], list[Listed]]:
    grouped: dict[tuple[StreamId, Store], list[Listed]] = {}
    for item in chosen:
        if item.stream is not None and item.store is not None:
            grouped.setdefault((item.stream, item.store), []).append(item)
    return grouped
