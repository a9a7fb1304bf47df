"""What would be archived, without archiving anything: the window, its files, how long it may take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.archive import listing as listings
from tidegate.archive.contract import Tools, Watching
from tidegate.archive.files import Unpackable
from tidegate.archive.index import Index
from tidegate.archive.listing import FrozenRows, Row, fingerprints_of
from tidegate.archive.naming import span_of
from tidegate.archive.opening import first_mark
from tidegate.archive.packing import Known
from tidegate.archive.place import LocalPlace
from tidegate.archive.records import WindowFolder
from tidegate.archive.streams import archive_stream, behind
from tidegate.core.positions import Position
from tidegate.core.watermark import Event
from tidegate.core.windows import Window

_SAMPLE = 500


@dataclass(frozen=True)
class Statistics:
    archived_until: datetime
    lag_days: int
    begun: bool
    """Whether the mark is in the database; if not, this is where it would begin."""
    target_cutoff: datetime
    files_pending: int
    bytes_pending: int | None
    """An estimate from a sample; None where no file of the sample could be looked at."""
    seconds_estimated: float | None
    """At the speed of the last window that had files."""
    files_without_date: int
    files_total: int
    bytes_stored_total: int

    @property
    def lag_seconds(self) -> float:
        """How far the mark is behind the cut-off."""
        return max(0.0, (self.target_cutoff - self.archived_until).total_seconds())

    def to_json(self) -> dict[str, Any]:
        return {
            "archived_until": self.archived_until.isoformat(),
            "lag_days": self.lag_days,
            "begun": self.begun,
            "target_cutoff": self.target_cutoff.isoformat(),
            "window": {"low": self.archived_until.isoformat(), "high": self.target_cutoff.isoformat()},
            "lag_seconds": self.lag_seconds,
            "files_pending": self.files_pending,
            "bytes_pending_estimated": self.bytes_pending,
            "seconds_estimated": self.seconds_estimated,
            "files_without_date": self.files_without_date,
            "files_archived_total": self.files_total,
            "bytes_stored_total": self.bytes_stored_total,
        }


def statistics(tools: Tools, watching: Watching) -> Statistics:
    """Look, and write nothing: not even the table of the mark."""
    found = tools.mark.read()
    mark = found or first_mark(tools, watching)
    ceiling = tools.table.freeze(mark.lag)
    assert ceiling.position is not None
    [cutoff] = ceiling.position.values
    assert isinstance(cutoff, datetime)
    window = Window(Position.of(mark.archived_until), Position.of(max(mark.archived_until, cutoff)))
    pending = tools.table.count(window)
    stream = archive_stream(tools.config)
    state = tools.store.read(stream).watermark
    return Statistics(
        archived_until=mark.archived_until,
        lag_days=mark.lag_days,
        begun=found is not None,
        target_cutoff=cutoff,
        files_pending=pending,
        bytes_pending=_bytes(tools, window, pending),
        seconds_estimated=_seconds(tools.store.history(stream, limit=200), pending),
        files_without_date=tools.table.without_date(),
        files_total=state.loaded.rows_total if state else 0,
        bytes_stored_total=_stored(tools.store.history(stream)),
    )


def pending(tools: Tools) -> tuple[int, float]:
    """How many files wait, and how many seconds the mark is behind the cut-off."""
    mark = tools.mark.read()
    if mark is None:
        return 0, 0.0
    cutoff = tools.clock() - mark.lag
    if cutoff <= mark.archived_until:
        return 0, 0.0
    window = Window(Position.of(mark.archived_until), Position.of(cutoff))
    return tools.table.count(window), (cutoff - mark.archived_until).total_seconds()


def _bytes(tools: Tools, window: Window, pending: int) -> int | None:
    sizes = [size for row in islice(_rows(tools, window), _SAMPLE) if (size := _size(tools, row)) is not None]
    return int(sum(sizes) / len(sizes) * pending) if sizes else (0 if not pending else None)


def _rows(tools: Tools, window: Window) -> Iterator[Row]:
    return (row for page in tools.table.pages(window) for row in page)


def _size(tools: Tools, row: Row) -> int | None:
    try:
        with tools.files.open(row.location) as file:
            return file.size
    except Unpackable:
        return None


def _seconds(history: list[Event], pending: int) -> float | None:
    """From when the last window with files was planned until it was packed."""
    planned = {event.run_id: event.at for event in history if event.kind == "planned"}
    for event in reversed(history):
        if event.kind == "extracted" and event.data["rows"] and event.run_id in planned:
            seconds = (event.at - planned[event.run_id]).total_seconds()
            return seconds / int(event.data["rows"]) * pending
    return None


def _stored(history: list[Event]) -> int:
    loaded = [event for event in history if event.kind == "loaded"]
    return sum(int(segment["bytes"]) for event in loaded for segment in event.data["segments"])


def left_out(tools: Tools) -> int:
    """Files that are older than the beginning of the archive, so that they are neither archived nor late."""
    mark = tools.mark.read()
    if mark is None:
        return 0
    window = behind(tools.store, archive_stream(tools.config), mark.archived_until)
    return tools.table.count(Window(None, window.low)) if window.low is not None else 0


def late_files(tools: Tools) -> Iterator[Row]:
    """Files behind the mark that no shard holds: they were inserted, or mended, after it had passed.

    The whole table behind the mark is listed, sorted beside it, and compared with the index. Where uids
    repeat, a row whose file is packed under another location is among them: who packs it will compare.
    """
    mark = tools.mark.read()
    if mark is None:
        return
    window = behind(tools.store, archive_stream(tools.config), mark.archived_until)
    n_bits = tools.config.packer.n_bits
    with tempfile.TemporaryDirectory(prefix="tidegate-late-") as scratch:
        beside = LocalPlace(Path(scratch))
        pages = tools.table.pages(window)
        listing = listings.freeze(pages, WindowFolder(beside, "late"), n_bits, "late")
        index = Index(tools.place)
        with FrozenRows(beside, listing) as rows:
            for part in listing.parts:
                span = span_of(int(part, 16), n_bits)
                known = Known(index, partial(fingerprints_of, beside, listing, span), span)
                for fingerprint, row in rows.of(span):
                    if not known.has(fingerprint, row, uids_repeat=not tools.table.uid_is_key):
                        yield row
