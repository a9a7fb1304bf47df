"""Marks looked at and moved by hand.

Every change goes through the same transitions as a sync's, under the stream's lease: it is in the history
with its reason, and refused while a run holds the stream. What belongs to one act is held together first and
written afterwards, so that a stream that is held keeps the whole act from happening.

A run that stood still until its lease ended may wake up in the middle of a load. So before pending segments
are given up, the target is told to let no older lease load any more, and asked what it has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.core import transitions
from tidegate.core import watermark as watermarks
from tidegate.core.errors import DamagedRecord, UsageError
from tidegate.core.leases import Holder
from tidegate.core.positions import Position
from tidegate.core.receipts import Segment
from tidegate.core.transitions import starts_after
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.state.contract import Store, Stored
from tidegate.state.hold import HeldStream, hold
from tidegate.state.process import known_dead
from tidegate.sync.streams import NULL_CURSORS, RANGES, beside

if TYPE_CHECKING:
    from tidegate.staging.contract import Staging
    from tidegate.targets.contract import Target

BACKUP_FORMAT = 1


@dataclass(frozen=True)
class Reload:
    """What `reset --loaded-only` found: the segments that load again, and how many are gone from staging."""

    again: tuple[Segment, ...]
    gone: tuple[Segment, ...]


@dataclass(frozen=True)
class Forgotten:
    """What a reset found: streams that started over, and damaged records that were put aside."""

    streams: tuple[StreamId, ...]
    aside: Mapping[StreamId, str]


@dataclass(frozen=True)
class ByHand:
    """What a person needs to change marks: the store, a name for the history, the clock and fresh nonces."""

    store: Store
    open_target: Callable[[str], Target]
    """Opens a pipeline's target; called when there are pending segments."""
    holder: Holder
    clock: Callable[[], datetime]
    token: Callable[[], str]

    def move(
        self, stream: StreamId, position: Position | None, *, cursor: tuple[str, ...], reason: str
    ) -> Watermark:
        """Set `extracted`. A stream that has never run begins behind the position."""
        with self._held(stream) as held:
            now = self.clock()
            settled, past = self._settled(held)
            mark = settled or transitions.new(stream, cursor, now)
            if mark.cursor != cursor and mark.extracted.position is not None:
                raise UsageError(
                    "the mark was made with another cursor than the pipeline now names",
                    where=str(stream),
                    hint="begin again with `tidegate watermark reset`, then set the mark",
                )
            moved, events = transitions.move(replace(mark, cursor=cursor), position, reason=reason, now=now)
            held.commit(moved, past + events)
            return moved

    def reset(self, streams: Sequence[StreamId], *, reason: str) -> Forgotten:
        """Start these streams over. What cannot be understood is put aside, never deleted."""
        aside = self._set_damaged_aside(
            {
                found
                for stream in streams
                for found in (stream, beside(stream, RANGES), beside(stream, NULL_CURSORS))
            }
        )
        with self._all_held(streams) as all_held:
            found = [(held, *self._settled(held)) for held in all_held]
            known = [(held, mark, past) for held, mark, past in found if mark is not None]
            for held, mark, past in known:
                fresh, events = transitions.reset(mark, reason=reason, now=self.clock())
                held.commit(fresh, past + events)
        return Forgotten(tuple(held.stream for held, _, _ in known), aside)

    def reset_extracted(self, streams: Sequence[StreamId], *, reason: str) -> Forgotten:
        """Read the source again from the start; what is pending still loads."""
        with self._all_held(streams) as all_held:
            found = [(held, held.watermark) for held in all_held if held.watermark is not None]
            for held, mark in found:
                held.commit(*transitions.reset_extracted(mark, reason=reason, now=self.clock()))
            return Forgotten(tuple(held.stream for held, _ in found), {})

    def reset_loaded(
        self, stream: StreamId, staging: Staging, *, replaced: bool, reason: str
    ) -> Reload | None:
        """Load again what was loaded and still lies in staging; None if the stream has never run.

        `replaced`: each load takes the place of the whole table, so only the last one counts.
        """
        with self._held(stream) as held:
            mark, past = self._settled(held)
            if mark is None:
                return None
            events = [*self.store.history(stream), *past]
            before = loaded_segments(events)
            if replaced:
                before = _last_run(before, mark)
            reload = _still_there(before, staging)
            reopened, now = transitions.reset_loaded(
                mark, reload.again, loaded_schemas(events), reason=reason, now=self.clock()
            )
            held.commit(reopened, past + now)
            return reload

    def rollback(self, stream: StreamId, to: str, *, reason: str) -> Watermark:
        """Put the mark back to where it was after a run, or at a time."""
        with self._held(stream) as held:
            mark, past = self._settled(held)
            if mark is None:
                raise UsageError("the table has never run", where=str(stream))
            position = position_at(self.store.history(stream), to, str(stream))
            moved, events = transitions.move(mark, position, reason=reason, now=self.clock())
            held.commit(moved, past + events)
            return moved

    def restore(self, marks: Sequence[Watermark], *, reason: str) -> tuple[StreamId, ...]:
        """Put saved records back. Run numbers never go back, so nothing old can pass for new.

        Returns the streams that have run since: what those runs have read is read again.
        """
        self._set_damaged_aside([mark.stream for mark in marks])
        saved = {mark.stream: mark for mark in marks}
        with self._all_held(list(saved)) as all_held:
            found = [(held, *self._settled(held)) for held in all_held]
            for held, before, past in found:
                now, mark = self.clock(), saved[held.stream]
                runs = max(mark.runs, before.runs if before else 0)
                restored = replace(mark, runs=runs, manual=reason, updated_at=now)
                held.commit(restored, [*past, _restored(before, restored, reason, now)])
            return tuple(
                held.stream for held, before, _ in found if before and before.runs > saved[held.stream].runs
            )

    @contextmanager
    def taking_over(
        self, mark: Watermark, document: Mapping[str, Any], *, reason: str
    ) -> Iterator[Callable[[], None] | None]:
        """Hold a stream that is to begin where another tool has stopped, and hand out what does so.

        Of several, all are held and looked at before the first one begins. One that has begun there with the
        very same document, however far it has come since, is left as it is (None): that act was interrupted.
        """
        with self._held(mark.stream) as held:
            if self._has_taken_over(held, mark, document):
                yield None
                return
            _demand_unbegun(held)
            yield partial(self._take_over, held, mark, document, reason)

    def _take_over(self, held: HeldStream, mark: Watermark, document: Mapping[str, Any], reason: str) -> None:
        """What the other tool wrote is kept in the history."""
        before, now = held.watermark, self.clock()
        begun = replace(
            mark,
            runs=transitions.next_number(before.runs if before else 0, now),
            generation=before.generation if before else mark.generation,
            names=before.names if before else (),
            manual=reason,
            updated_at=now,
        )
        event = _restored(before, begun, reason, now)
        held.commit(begun, [replace(event, data={**event.data, "older": dict(document)})])

    def _has_taken_over(self, held: HeldStream, mark: Watermark, document: Mapping[str, Any]) -> bool:
        """Whether the last thing that was done by hand is this very act."""
        by_hand = [event.data for event in self.store.history(held.stream) if event.kind == "manual"]
        last = by_hand[-1] if held.watermark is not None and by_hand else {}
        return bool(last.get("older") == document and last["to"] == _position_json(mark))

    def _settled(self, held: HeldStream) -> tuple[Watermark | None, tuple[Event, ...]]:
        """The mark once it is certain which pending segments the target holds, and what that adds to the
        history: no older lease can load any of them from now on."""
        mark = held.watermark
        if mark is None or not mark.pending:
            return mark, ()
        with closing(self.open_target(mark.stream.pipeline)) as target:
            target.fence_off(mark.stream, held.lease.fence)
            known = target.loaded(mark.stream, mark.generation, [segment.key for segment in mark.pending])
        return transitions.loaded(mark, known, self.clock()) if known else (mark, ())

    def _set_damaged_aside(self, streams: Iterable[StreamId]) -> dict[StreamId, str]:
        aside = {}
        for stream in streams:
            try:
                self.store.read(stream)
                self.store.history(stream)
            except DamagedRecord:
                aside[stream] = self.store.set_aside(stream)
        return aside

    def _held(self, stream: StreamId) -> Any:
        return hold(self.store, stream, holder=self.holder, clock=self.clock, nonce=self.token())

    @contextmanager
    def _all_held(self, streams: Sequence[StreamId]) -> Iterator[list[HeldStream]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self._held(stream)) for stream in sorted(streams)]


# --- Reading the history -------------------------------------------------------


def loaded_segments(events: Iterable[Event]) -> list[Segment]:
    """The segments that were loaded since the stream last started over, each once, in their order."""
    found: dict[str, Segment] = {}
    for event in events:
        act = event.data.get("act") if event.kind == "manual" else None
        if act in ("reset", "reset extracted"):
            found.clear()
        elif act == "set" or (act == "import" and event.data["to"]):
            found = _behind(found, event.data["to"])
        elif event.kind == "loaded":
            for data in event.data["segments"]:
                segment = Segment.from_json(data)
                found.setdefault(segment.key, segment)
    return list(found.values())


def _behind(found: dict[str, Segment], to: list[Any] | None) -> dict[str, Segment]:
    """What lies behind a mark that was moved; what lies after it has been read again since."""
    position = Position.from_json(to) if to is not None else None
    return {key: segment for key, segment in found.items() if not starts_after(segment, position)}


def loaded_schemas(events: Iterable[Event]) -> dict[str, Any]:
    """The schemas of the segments that were loaded, by their fingerprints."""
    merged: dict[str, Any] = {}
    for event in events:
        if event.kind == "loaded":
            merged.update(event.data["schemas"])
    return merged


def _last_run(segments: list[Segment], mark: Watermark) -> list[Segment]:
    """The last complete picture of the table; none at all if a newer one is already pending."""
    if mark.pending or not segments:
        return []
    last = max(segment.run for segment in segments)
    return [segment for segment in segments if segment.run == last]


def _still_there(segments: Sequence[Segment], staging: Staging) -> Reload:
    again: list[Segment] = []
    gone: list[Segment] = []
    there = staging.stat_all([segment.key for segment in segments])
    for segment in segments:
        found = there.get(segment.key)
        (again if found is not None and found.bytes == segment.bytes else gone).append(segment)
    return Reload(tuple(again), tuple(gone))


def position_at(events: Sequence[Event], to: str, where: str) -> Position | None:
    """Where `extracted` stood after the run, or at the time, that `to` names."""
    wanted = to.strip()
    runs = {event.run_id for event in events if event.kind in _FINISHED and event.run_id}
    named = [run for run in runs if run == wanted] or [run for run in runs if run.startswith(wanted)]
    if len(named) == 1:
        past = [event for event in events if event.kind in _FINISHED and event.run_id == named[0]]
    else:
        moment = _moment(wanted, where, sorted(runs))
        past = [event for event in events if event.at <= moment and _moves_mark(event)]
    if not past:
        raise UsageError(
            f"the history does not reach back to {wanted}",
            where=where,
            hint="`tidegate watermark history` tells how far it goes; `watermark set` moves it anywhere",
        )
    return _position_after(past[-1])


def _moves_mark(event: Event) -> bool:
    if event.kind == "manual":
        return event.data.get("act") in ("set", "reset", "reset extracted", "import")
    return event.kind in _FINISHED


_FINISHED = ("extracted", "completed")
"""What the history says when a window is done: staged, or worked on elsewhere."""


def _position_after(event: Event) -> Position | None:
    data = event.data.get("position") if event.kind == "extracted" else event.data.get("to")
    if event.kind == "completed":
        data = event.data["window"]["high"]
    return Position.from_json(data) if data else None


def _moment(text: str, where: str, runs: Sequence[str]) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        known = f"; the last runs are {', '.join(runs[-3:])}" if runs else ""
        raise UsageError(
            f"`{text}` is neither a finished run of this table nor a time",
            where=where,
            hint=f"write a run's id, or a time in UTC like 2025-08-01 12:30:00{known}",
        ) from None
    from datetime import UTC

    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _demand_unbegun(held: HeldStream) -> None:
    before = held.watermark
    if before is not None and (before.extracted.position or before.pending or before.open_run):
        raise UsageError(
            "the table has a mark of its own already",
            where=str(held.stream),
            hint="give it up first with `tidegate watermark reset`, if that is what you mean",
        )


def _restored(before: Watermark | None, mark: Watermark, reason: str, now: datetime) -> Event:
    return Event(
        "manual",
        now,
        None,
        {
            "act": "import",
            "reason": reason,
            "from": _position_json(before),
            "to": _position_json(mark),
            "replaced": watermarks.to_json(before) if before else None,
        },
    )


def _position_json(mark: Watermark | None) -> list[Any] | None:
    position = mark.extracted.position if mark else None
    return position.to_json() if position else None


# --- Backup --------------------------------------------------------------------


def backup(marks: Iterable[Watermark], now: datetime) -> dict[str, Any]:
    """Records as a document that `restore` takes back."""
    return {
        "tidegate_backup": BACKUP_FORMAT,
        "exported_at": now.isoformat(),
        "streams": [watermarks.to_json(mark) for mark in marks],
    }


def read_backup(data: Any, where: str) -> list[Watermark]:
    """The records of such a document; older state formats are brought up to date on the way."""
    if not isinstance(data, Mapping) or "tidegate_backup" not in data:
        hint = "give the file that `tidegate watermark export` has written"
        raise UsageError("this is not a backup of marks", where=where, hint=hint)
    if data["tidegate_backup"] != BACKUP_FORMAT or not isinstance(data.get("streams"), list):
        raise UsageError("this backup was written by another version", where=where)
    return [watermarks.from_json(item) for item in data["streams"]]


# --- As JSON, for other programs -----------------------------------------------


def describe_mark(
    stream: StreamId, version: int, mark: Watermark | None, *, held_by: str | None
) -> dict[str, Any]:
    """The state of a stream in the form that other programs rely on."""
    extracted = mark.extracted if mark else watermarks.Extracted()
    loaded = mark.loaded if mark else watermarks.Loaded()
    moment, ids = split_position(extracted.position)
    return {
        "table_name": stream.name,
        "pipeline": stream.pipeline,
        "version": version,
        "extracted": {
            "timestamp": moment,
            "id": ids,
            "rows_total": extracted.rows_total,
            "rows_last_run": extracted.rows_last_run,
            "at": _iso(extracted.at),
            "status": extracted_status(mark, held=held_by is not None),
            "lossy": dict(extracted.lossy),
        },
        "loaded": {
            "rows_total": loaded.rows_total,
            "at": _iso(loaded.at),
            "status": loaded_status(mark),
        },
        "pending_files": [segment.key for segment in mark.pending] if mark else [],
        "last_error": mark.last_error if mark else None,
        "manual": mark.manual if mark else None,
        "held_by": held_by,
        "created_at": _iso(mark.created_at) if mark else None,
        "updated_at": _iso(mark.updated_at) if mark else None,
    }


def split_position(position: Position | None) -> tuple[str | None, Any]:
    """A position's timestamp and its id, as JSON has them; a composite id is a list."""
    from datetime import date

    values = position.values if position else ()
    moments = [value.isoformat() for value in values[:1] if isinstance(value, date)]
    ids = [_plain(value) for value in values[len(moments) :]]
    return (moments[0] if moments else None), (ids[0] if len(ids) == 1 else ids or None)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if isinstance(value, int | str) else str(value)


def extracted_status(mark: Watermark | None, *, held: bool) -> str:
    if mark is None or mark.run is None:
        return "never"
    if not mark.run.state.open:
        return "success"
    if held:
        return "running"
    return "failed" if mark.run.state is watermarks.RunState.FAILED else "interrupted"


def loaded_status(mark: Watermark | None) -> str:
    if mark is not None and mark.pending:
        return "pending"
    return "success" if mark is not None and mark.loaded.at else "never"


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def live_holder(stored: Stored, me: Holder, now: datetime) -> Holder | None:
    """Who holds the stream, unless the lease has ended or its holder is known to be dead."""
    lease = stored.lease
    if lease is None or lease.expired(now) or known_dead(lease.holder, me):
        return None
    return lease.holder
