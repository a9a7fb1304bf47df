"""Opening a window: whoever comes first plans and lists it, and the others find it.

One window is open at a time, late or not: two that overlap could each pack what neither had indexed yet. A
run that finds one of the other kind open waits for those who pack it. If they are dead, a window of the mark
is finished first, and one of late files is given up, since it can be had again at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.archive import listing as listings
from tidegate.archive.contract import Tools, Watching
from tidegate.archive.index import add_window, demand_index
from tidegate.archive.listing import Row
from tidegate.archive.mark import Mark
from tidegate.archive.records import Listing, Manifest, WindowFolder
from tidegate.archive.results import CycleResult
from tidegate.archive.streams import (
    AS_LONG_AS_IT_TAKES,
    archive_stream,
    behind,
    committed,
    demand_nobody_packs,
    demand_own_table,
    holding,
    is_open,
    late_stream,
    moment_of,
    open_run,
    stream_of,
)
from tidegate.core import transitions
from tidegate.core.errors import ArchiveError, Conflict
from tidegate.core.positions import Position
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import Extracted, Run, RunKind, StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.state.hold import HeldStream

CURSOR = ("created_at",)
SCHEMA: tuple[str, dict[str, Any]] = ("manifest-1", {"columns": [], "key": []})
_MICROSECOND = timedelta(microseconds=1)
_MOVED = "archived_until was changed outside of Tidegate"
_INTERRUPTED = "given up by a run that was interrupted there"


@dataclass(frozen=True)
class OpenWindow:
    """Its run, its folder and its frozen listing."""

    run: Run
    folder: WindowFolder
    listing: Listing
    held_back_seconds: float = 0.0

    @property
    def high(self) -> datetime:
        return moment_of(self.run.window.high)


class AnotherIsOpen(Exception):
    """A window of the mark was left open, and has to be finished before late files are looked for."""


@dataclass(frozen=True)
class Opening:
    tools: Tools
    watching: Watching
    late: bool
    """Pack what appeared behind the mark after it had passed; the mark stays."""

    @property
    def stream(self) -> StreamId:
        return stream_of(self.tools.config, late=self.late)

    def left_open(self) -> bool:
        return is_open(self.tools.store.read(self.stream).watermark)

    def opened(self) -> OpenWindow | CycleResult:
        """The open window; or what there is instead of one.

        Raises `AnotherIsOpen` where that one comes first.
        """
        with self._turn() as held:
            self._settle(held)
            run = held.watermark.open_run if held.watermark else None
            seconds = 0.0
            if run is None:
                planned = self._plan(held)
                if isinstance(planned, CycleResult):
                    return planned
                run, seconds = planned
            folder = WindowFolder.of(self.tools.place, run)
            listing = folder.listing()
            if listing is None:
                folder.forget_problems()
                listing = self._list(run, folder)
            held.check()
        return OpenWindow(run, folder, listing, seconds)

    # --- Whose turn it is

    @contextmanager
    def _turn(self) -> Iterator[HeldStream]:
        """Hold the archive, so that nobody opens a window beside this one; late files have their stream."""
        config = self.tools.config
        with self._holding(archive_stream(config)) as archive:
            demand_index(self.tools.place)
            if archive.watermark is None:
                demand_own_table(self.tools)
            if not self.late:
                self._give_up_late()
                yield archive
                return
            if is_open(archive.watermark):
                demand_nobody_packs(self.tools, archive.stream)
                raise AnotherIsOpen
            with self._holding(late_stream(config)) as held:
                yield held

    def _holding(self, stream: StreamId) -> Any:
        return holding(self.tools, self.watching, stream, AS_LONG_AS_IT_TAKES)

    def _give_up_late(self) -> None:
        """A window of late files that nobody packs any more must not be finished beside this one."""
        stream = late_stream(self.tools.config)
        if not is_open(self.tools.store.read(stream).watermark):
            return
        demand_nobody_packs(self.tools, stream)
        with self._holding(stream) as held:
            self._settle_late(held)
            if is_open(held.watermark):
                self.watching.note("a window of late files was left open: it is given up; run it again")
                give_up(self.tools, held, committed(held).extracted.position, "left open by a run that ended")

    # --- What an earlier run left

    def _settle(self, held: HeldStream) -> None:
        """Finish what an earlier run left between its manifest and its mark, and see who moved the mark."""
        if held.watermark is None:
            return
        if self.late:
            self._settle_late(held)
            return
        for segment in held.watermark.pending:
            move_mark(self.tools, self.watching, segment.window)
            held.commit(*transitions.loaded(committed(held), {segment.key}, self.tools.clock()))
        run = committed(held).open_run
        there = self._mark().archived_until
        if run is None:
            return
        if moment_of(run.window.low) != there:
            passed = self._passed_over(committed(held), self._mark())
            self.watching.note(f"{_MOVED}: the open window is given up, and planned anew from there{passed}")
            give_up(self.tools, held, Position.of(there), _MOVED)
        elif self._is_given_up(run):
            give_up(self.tools, held, Position.of(there), _INTERRUPTED)

    def _is_given_up(self, run: Run) -> bool:
        manifest = WindowFolder.of(self.tools.place, run).manifest()
        return manifest is not None and manifest.given_up

    def _settle_late(self, held: HeldStream) -> None:
        """Late files move no mark: a manifest that is written is the end of their window."""
        known = committed(held)
        if known.pending:
            pending = {segment.key for segment in known.pending}
            held.commit(*transitions.loaded(known, pending, self.tools.clock()))
        if known.open_run is not None and self._is_given_up(known.open_run):
            give_up(
                self.tools, held, known.extracted.position, "given up by a run that was interrupted there"
            )

    # --- The plan

    def _plan(self, held: HeldStream) -> tuple[Run, float] | CycleResult:
        """Freeze a window and persist it, before a row of it is read."""
        mark = self._mark()
        if self.late:
            window, seconds = self._late_window(mark), 0.0
        else:
            window, seconds = self._fresh_window(mark)
        if window.empty:
            return CycleResult(window, moved=False, held_back_seconds=seconds)
        now = self.tools.clock()
        known = self._seen_from_outside(held.watermark or self._fresh(mark, now), mark)
        planned, events = transitions.plan(
            known,
            run_id=self.tools.token(),
            kind=RunKind.INCREMENTAL,
            window=window,
            now=now,
            cursor=CURSOR,
            schema=SCHEMA,
        )
        held.commit(transitions.begin_round(planned, window, (), now), events)
        return open_run(held), seconds

    def _fresh(self, mark: Mark, now: datetime) -> Watermark:
        if self.late:
            return transitions.new(self.stream, CURSOR, now)
        fresh = begun(self.tools, mark, now)
        told = self.tools.config.watermark.default_archived_until
        if fresh.began is not None and mark.archived_until != told:  # or else it was said with the mark
            _say_left_out(self.tools, self.watching, fresh.began)
        return fresh

    def _seen_from_outside(self, known: Watermark, mark: Mark) -> Watermark:
        """Where the mark was moved by other hands, the stream goes on from there, and remembers it."""
        there = Position.of(mark.archived_until)
        if self.late or known.extracted.position in (None, there):
            return known
        self.watching.note(f"{_MOVED}: going on from {there}{self._passed_over(known, mark)}")
        return transitions.move(known, there, reason=_MOVED, now=self.tools.clock())[0]

    def _passed_over(self, known: Watermark, mark: Mark) -> str:
        """Whoever moved the mark may not know that files of this archive lie in between."""
        before = moment_of(known.extracted.position)
        passed = files_between(self.tools, before, mark.archived_until)
        return f"; {passed:,} files are passed over, and late from now on" if passed else ""

    def _fresh_window(self, mark: Mark) -> tuple[Window, float]:
        ceiling = self.tools.table.freeze(mark.lag)
        for warning in ceiling.warnings if mark.lag_days == 0 else ():
            self.watching.note(warning)
        if ceiling.held_back_by:
            seconds = ceiling.held_back_seconds
            self.watching.note(f"held back {seconds:.0f} s by {ceiling.held_back_by}")
        low = Position.of(mark.archived_until)
        high = ceiling.position
        assert high is not None
        if high.compare(low) == -1:
            high = low
        return Window(low, high), ceiling.held_back_seconds

    def _late_window(self, mark: Mark) -> Window:
        """Everything behind the mark that this archive has passed."""
        return behind(self.tools.store, archive_stream(self.tools.config), mark.archived_until)

    def _mark(self) -> Mark:
        return the_mark(self.tools, self.watching)

    def _list(self, run: Run, folder: WindowFolder) -> Listing:
        self._demand_uids(run.window)
        undated = self.tools.table.without_date()
        if undated:
            self.watching.note(f"{undated:,} rows without a date are in no window, and are never archived")
        n_bits = self.tools.config.packer.n_bits
        listing = listings.freeze(self._pages(run.window), folder, n_bits, self.tools.token())
        self.watching.planned(run.window, listing.rows, len(listing.parts))
        return listing

    def _pages(self, window: Window) -> Iterator[list[Row]]:
        """A billion rows take hours: who wants to stop need not wait for them."""
        for page in self.tools.table.pages(window):
            self.watching.check()
            yield page

    def _demand_uids(self, window: Window) -> None:
        unnamed = self.tools.table.without_uid(window)
        if not unnamed:
            return
        if self.tools.config.packer.on_problem.unreadable.value == "stop":
            raise ArchiveError(
                f"{unnamed:,} rows of the window have no uid, so nobody could ever ask for their files",
                where=self.tools.config.database.table_name,
                hint="give them one, or set packer.on_problem.unreadable to `skip`",
            )
        self.watching.note(f"{unnamed:,} rows without a uid are left out, as the configuration says")


# --- Marks --------------------------------------------------------------------------------------------


def begun(tools: Tools, mark: Mark, now: datetime) -> Watermark:
    """The state of an archive that has a mark and no window yet.

    It begins there, wherever the mark is put next: what lies between is late, and not forgotten. Where no
    row lies behind the mark, nothing is left out, and whatever turns up there is late as well.
    """
    there = Position.of(mark.archived_until)
    oldest = tools.table.oldest()
    left_out = oldest is not None and oldest <= mark.archived_until
    fresh = transitions.new(archive_stream(tools.config), CURSOR, now)
    return replace(fresh, extracted=Extracted(position=there), began=there if left_out else None)


def files_between(tools: Tools, before: datetime, after: datetime) -> int:
    """How many files a mark passes over when it is put forward."""
    if after <= before:
        return 0
    return tools.table.count(Window(Position.of(before), Position.of(after)))


def give_up(tools: Tools, held: HeldStream, to: Position | None, reason: str) -> None:
    """Give up the open window, if there is one, and go on from `to`."""
    known, packed = close_off(tools, committed(held))
    moved, by_hand = transitions.move(known, to, reason=reason, now=tools.clock())
    held.commit(moved, [*packed, *by_hand])


def close_off(tools: Tools, known: Watermark) -> transitions.Step:
    """See to it that nothing more of the open window will count than what counts already.

    A worker that sleeps must not wake up and make its shards count, so the window gets its manifest here,
    an empty one. If it has one, it is packed: then it is indexed and remembered, and only the mark goes
    elsewhere.
    """
    run = known.open_run
    if run is None:
        return known, ()
    folder = WindowFolder.of(tools.place, run)
    found = folder.keep_manifest(Manifest.of_none(run, tools.config.packer.n_bits))
    add_window(folder, [shard.key for shard in found.shards])
    folder.clean(manifest_too=False)
    if found.given_up:
        return known, ()
    now = tools.clock()
    receipt = proof_of(folder, run, found, "whoever gave it up")
    extracted, done = transitions.finish(transitions.advance(known, [receipt], now), now)
    loaded, remembered = transitions.loaded(extracted, {folder.manifest_key}, now)
    return loaded, (*done, *remembered)


def proof_of(folder: WindowFolder, run: Run, manifest: Manifest, by: str) -> Receipt:
    """That a window is packed: its manifest, which the mark still has to follow."""
    key = folder.manifest_key
    segment = Segment(
        key=key,
        rows=manifest.files,
        bytes=manifest.stored,
        etag="",
        checksum=hashlib.sha256(folder.place.get(key) or b"").hexdigest(),
        run=run.number,
        chunk=1,
        window=run.window,
        schema=SCHEMA[0],
    )
    return Receipt(run.id, 1, by, run.window, manifest.files, None, None, segment)


def move_mark(tools: Tools, watching: Watching, window: Window) -> bool:
    """The dangerous line: the mark moves over a window that is proved.

    False: somebody else has moved it. The shards are in a manifest and stay; where the archive goes on
    from is for others to say.
    """
    before, after = moment_of(window.low), moment_of(window.high)
    there = the_mark(tools, watching).archived_until
    if there == after:
        return True  # the answer to an earlier attempt was lost
    try:
        tools.mark.move(before, after)
    except Conflict as error:
        watching.note(error.message)
        return False
    return True


def the_mark(tools: Tools, watching: Watching) -> Mark:
    """Where the archive stands; it begins where there is none yet."""
    return tools.mark.read() or tools.mark.begin(first_mark(tools, watching))


def first_mark(tools: Tools, watching: Watching) -> Mark:
    """Where an archive begins that has no mark yet: where it is told to, or before its oldest file.

    But never past the cut-off, where older ones may still appear.
    """
    config = tools.config
    told = config.watermark.default_archived_until
    oldest = tools.table.oldest()
    if told is None:
        cutoff = tools.clock() - timedelta(days=config.database.lag_days)
        begin = cutoff if oldest is None else min(oldest - _MICROSECOND, cutoff)
        return Mark(begin, config.database.lag_days)
    if oldest is not None and oldest <= told:
        _say_left_out(tools, watching, Position.of(told), ", as default_archived_until says")
    return Mark(told, config.database.lag_days)


def _say_left_out(tools: Tools, watching: Watching, begin: Position, why: str = "") -> None:
    left_out = tools.table.count(Window(None, begin))
    watching.note(f"the archive begins after {begin}{why}: {left_out:,} older files are left out")
