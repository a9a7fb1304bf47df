"""What lies in staging, and what of it may go.

The state is read first and the objects are listed as they come, so a listing says its first words at once
and needs no memory for its length. What is said of an object may be out of date by then, so nothing is
deleted on the strength of it: only objects of runs that this project's history knows ever go, each under
the lease of its stream and after a second look.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.core.errors import LeaseHeld
from tidegate.core.leases import Holder
from tidegate.core.watermark import StreamId
from tidegate.staging.contract import StagedObject, Unfinished
from tidegate.staging.layout import is_marker, run_of
from tidegate.staging.pages import pages
from tidegate.state.contract import Store
from tidegate.state.hold import hold
from tidegate.sync.quarantine import in_quarantine

if TYPE_CHECKING:
    from tidegate.staging.contract import Staging


class ObjectState(StrEnum):
    PENDING = "pending"
    """Waits to be loaded, or marks a run of which something does; never touched."""
    IN_FLIGHT = "in flight"
    """Belongs to a run that is not finished, and may still count; never touched."""
    QUARANTINED = "quarantined"
    """Put aside for people to decide about; never touched."""
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
    unfinished: Unfinished | None = None
    """The write that has not ended; then there is no object of that key yet, or another write's."""


@dataclass
class _Known:
    """What the stores say about keys and runs."""

    pending: set[str] = field(default_factory=set)
    pending_runs: set[str | None] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    open_runs: set[str] = field(default_factory=set)
    runs: dict[str, tuple[StreamId, Store]] = field(default_factory=dict)

    def judge(self, item: StagedObject | Unfinished) -> Listed:
        stream, store = self.runs.get(run_of(item.key) or "", (None, None))
        if isinstance(item, StagedObject):
            return Listed(item, self.state(item.key), stream, store)
        shown = StagedObject(item.key, 0, "", item.began)
        return Listed(shown, self.state_of_unfinished(item.key), stream, store, item)

    def state(self, key: str) -> ObjectState:
        if key in self.pending:
            return ObjectState.PENDING
        if key in self.quarantined:
            return ObjectState.QUARANTINED
        found = self.state_of_unfinished(key)
        if found is not ObjectState.ORPHANED:
            return found
        if is_marker(key):
            return ObjectState.PENDING if run_of(key) in self.pending_runs else ObjectState.LOADED
        return ObjectState.LOADED if key in self.loaded else found

    def state_of_unfinished(self, key: str) -> ObjectState:
        """What has no content yet can be in flight or a leftover, if it is ours; its run tells."""
        run = run_of(key)
        if run is None or run not in self.runs:
            return ObjectState.FOREIGN
        return ObjectState.IN_FLIGHT if run in self.open_runs else ObjectState.ORPHANED

    def still(self, item: Listed) -> bool:
        """Whether what was said of it holds."""
        key = item.object.key
        found = self.state(key) if item.unfinished is None else self.state_of_unfinished(key)
        return found is item.state


def list_staged(staging: Staging, stores: Iterable[Store]) -> Iterator[Listed]:
    """All objects, and writes that have not ended, with their state.

    `stores` are those of every pipeline that uses this staging area.
    """
    known = _known(stores)
    yield from map(known.judge, staging.unfinished())
    yield from map(known.judge, staging.list())


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
    history = store.history(stream)
    known.quarantined.update(segment.key for segment, _ in in_quarantine(history))
    for event in history:
        if event.kind == "planned" and event.run_id:
            known.runs[event.run_id] = (stream, store)
        elif event.kind == "loaded":
            known.loaded.update(segment["key"] for segment in event.data["segments"])
    mark = store.read(stream).watermark
    if mark is None:
        return
    staged = mark.open_run.staged if mark.open_run else ()
    known.pending.update(segment.key for segment in (*mark.pending, *staged))
    known.pending_runs.update(map(run_of, known.pending))
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


@dataclass(frozen=True)
class Wanted:
    """What somebody asks for: states, tables, age."""

    states: frozenset[ObjectState]
    tables: Callable[[StreamId | None], bool]
    before: datetime | None = None

    def asks_for(self, item: Listed) -> bool:
        return (
            item.state in self.states
            and self.tables(item.stream)
            and (self.before is None or item.object.modified < self.before)
        )

    def may_go(self, item: Listed) -> bool:
        """Asked for, and nothing that a run still needs or that is not ours."""
        return item.state in (ObjectState.LOADED, ObjectState.ORPHANED) and self.asks_for(item)


class Totals:
    """How many there are of each state, and how large they are together."""

    def __init__(self) -> None:
        self.states: Counter[ObjectState] = Counter()
        self.bytes = 0

    def add(self, item: Listed) -> None:
        self.states[item.state] += 1
        self.bytes += item.object.bytes

    @property
    def count(self) -> int:
        return self.states.total()


class Selection:
    """What was shown and chosen to go, in a temporary file: a million objects need no memory."""

    def __init__(self) -> None:
        self._streams: dict[tuple[StreamId, Store], int] = {}
        self._rows = sqlite3.connect("")  # a database without a name is a file that vanishes when closed
        self._rows.execute("CREATE TABLE chosen (stream INTEGER, marker INTEGER, item BLOB)")

    def add(self, item: Listed) -> None:
        if item.stream is None or item.store is None:
            return
        number = self._streams.setdefault((item.stream, item.store), len(self._streams))
        row = (number, is_marker(item.object.key), pickle.dumps((item.object, item.state, item.unfinished)))
        self._rows.execute("INSERT INTO chosen VALUES (?, ?, ?)", row)

    def streams(self) -> Iterator[tuple[StreamId, Store, Iterator[list[Listed]]]]:
        """The objects of each stream, in pages; markers first: none is left without its files."""
        for (stream, store), number in self._streams.items():
            rows = self._rows.execute(
                "SELECT item FROM chosen WHERE stream = ? ORDER BY marker DESC, rowid", (number,)
            )
            yield stream, store, pages(_read_back(stream, store, rows))

    def close(self) -> None:
        self._rows.close()


def _read_back(stream: StreamId, store: Store, rows: Iterable[tuple[bytes]]) -> Iterator[Listed]:
    for (item,) in rows:
        found, state, unfinished = pickle.loads(item)
        yield Listed(found, state, stream, store, unfinished)


@dataclass(frozen=True)
class Cleaning:
    """What became of a page of objects of one stream."""

    stream: StreamId
    deleted: list[Listed]
    kept: list[Listed]
    """Chosen, but by now referred to again, or of a table that a run holds."""


def delete(
    chosen: Selection,
    staging: Staging,
    *,
    holder: Holder,
    clock: Callable[[], datetime],
    token: Callable[[], str],
) -> Iterator[Cleaning]:
    """Delete, stream by stream, under its lease: nobody can make a file pending again meanwhile."""
    for stream, store, pages_of_it in chosen.streams():
        try:
            with hold(store, stream, holder=holder, clock=clock, nonce=token()) as held:
                known = _Known()
                _learn(known, store, stream)
                for page in pages_of_it:
                    held.check()
                    yield _delete(staging, stream, page, known)
        except LeaseHeld:
            for page in pages_of_it:
                yield Cleaning(stream, [], page)


def _delete(staging: Staging, stream: StreamId, page: list[Listed], known: _Known) -> Cleaning:
    gone = [item for item in page if known.still(item)]
    for item in gone:
        if item.unfinished is not None:
            staging.discard(item.unfinished)
    staging.delete([item.object.key for item in gone if item.unfinished is None])
    return Cleaning(stream, gone, [item for item in page if not known.still(item)])
