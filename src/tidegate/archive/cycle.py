"""One cycle: read the mark, freeze a window, pack it, prove it, move the mark by one UPDATE.

The order is that of every job, and it is never bent:

1. Take the lease of one's share. Under the lease of the archive, read the mark, freeze the ceiling, and
   persist the planned window; then list it once, and keep the listing.
2. Pack the parts of the share. Each shard is read back before it has a name; each part leaves a receipt.
3. Take over the parts of shares whose worker is dead.
4. When every part has its receipt: write the manifest, with which the window's shards count; add the window
   to the index; commit `extracted`.
5. Move `archived_until`, if it still is where the window began. Commit `loaded`.
6. Clean up what only an open window needs.

Whoever dies between any two of these leaves a window that the next run finishes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from tidegate.archive import listing as listings
from tidegate.archive.config import ArchiveConfig
from tidegate.archive.files import Files
from tidegate.archive.index import add_window, merge_if_many
from tidegate.archive.listing import FileTable
from tidegate.archive.mark import Mark
from tidegate.archive.packing import Packing
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import (
    Listing,
    Manifest,
    PartReceipt,
    Problem,
    ProblemKind,
    WindowFolder,
    demand_spread,
)
from tidegate.core import transitions
from tidegate.core.errors import (
    ArchiveError,
    Conflict,
    InvariantBroken,
    LeaseHeld,
    StateError,
    TidegateError,
)
from tidegate.core.leases import Holder
from tidegate.core.positions import Position
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import Run, RunKind, StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.state.contract import Store
from tidegate.state.hold import TTL, HeldStream, hold

PIPELINE = "archive"
_CURSOR = ("created_at",)
_SCHEMA: tuple[str, dict[str, Any]] = ("manifest-1", {"columns": [], "key": []})
_POLL_SECONDS = 0.5
_TAKEN_OVER = TTL + TTL
"""How long a worker waits for its own share, which another may have taken over for a while."""
_AS_LONG_AS_IT_TAKES = timedelta(days=365)
"""The archive's own lease is held while a window is listed or closed, and given back by whoever lives."""
_MICROSECOND = timedelta(microseconds=1)

_log = logging.getLogger("tidegate.archive")


class Packer(Protocol):
    """Who packs the parts of a window: this process, or Spark."""

    def pack(self, work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
        """The receipts as they come, in any order; nothing for a part that a file keeps from ending."""
        ...


class Marks(Protocol):
    """Where the mark is kept."""

    def read(self) -> Mark | None: ...

    def begin(self, mark: Mark) -> Mark: ...

    def move(self, before: datetime, after: datetime) -> None: ...


class Watching(Protocol):
    """Somebody watches, and may want to stop."""

    def check(self) -> None:
        """A safe point: raises if the work shall end here."""
        ...

    def wait(self, seconds: float) -> bool:
        """Sleep; True if somebody wants to stop."""
        ...

    def note(self, text: str) -> None: ...

    def planned(self, window: Window, files: int, parts: int) -> None: ...

    def packed(self, receipt: PartReceipt) -> None: ...


@dataclass(frozen=True)
class Share:
    """The parts that one of several workers takes: every n-th. Parts do not depend on how many there are."""

    worker: int = 0
    workers: int = 1

    def takes(self, part: str) -> bool:
        return int(part, 16) % self.workers == self.worker

    @property
    def name(self) -> str:
        return f"share {self.worker} of {self.workers}"

    @property
    def others(self) -> list[Share]:
        return [replace(self, worker=worker) for worker in range(self.workers) if worker != self.worker]


@dataclass
class Tools:
    """What a cycle works with. The clock and randomness come from outside."""

    config: ArchiveConfig
    place: ArchivePlace
    store: Store
    table: FileTable
    mark: Marks
    packer: Packer
    holder: Holder
    clock: Callable[[], datetime]
    token: Callable[[], str]
    files: Files


@dataclass(frozen=True)
class CycleResult:
    """What a cycle did."""

    window: Window
    moved: bool
    """Whether the mark moved: not if there is no time between it and the cut-off."""
    files: int = 0
    bytes: int = 0
    stored: int = 0
    shards: int = 0
    already: int = 0
    repeated: int = 0
    skipped: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run_id: str | None = None
    late: bool = False
    held_back_seconds: float = 0.0
    problems: tuple[Problem, ...] = ()

    @property
    def duration_seconds(self) -> float:
        if self.started_at is None or self.finished_at is None:
            return 0.0
        return (self.finished_at - self.started_at).total_seconds()

    def followed_by(self, later: CycleResult) -> CycleResult:
        """Both together, where a window that was left open came before the fresh one."""
        counts = ("files", "bytes", "stored", "shards", "already", "repeated", "skipped")
        return replace(
            later,
            window=Window(self.window.low, later.window.high),
            moved=self.moved or later.moved,
            started_at=self.started_at or later.started_at,
            finished_at=later.finished_at or self.finished_at,
            problems=self.problems + later.problems,
            **{name: getattr(self, name) + getattr(later, name) for name in counts},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": "success" if self.moved or self.late else "nothing_new",
            "late": self.late,
            "window": {"low": _shown(self.window.low), "high": _shown(self.window.high)},
            "files": self.files,
            "bytes": self.bytes,
            "stored_bytes": self.stored,
            "shards": self.shards,
            "already_archived": self.already,
            "repeated": self.repeated,
            "skipped": self.skipped,
            "held_back_seconds": self.held_back_seconds,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "duration_seconds": self.duration_seconds,
        }


def _shown(position: Position | None) -> str | None:
    return str(position) if position else None


@dataclass(frozen=True)
class _Open:
    """An open window: its run, its folder and its frozen listing."""

    run: Run
    folder: WindowFolder
    listing: Listing
    held_back_seconds: float = 0.0

    @property
    def high(self) -> datetime:
        return _moment(self.run.window.high)


@dataclass
class Cycle:
    tools: Tools
    watching: Watching
    share: Share = field(default_factory=Share)
    late: bool = False
    """Pack what appeared behind the mark after it had passed; the mark stays."""

    def run(self) -> CycleResult:
        """One window from its plan to its end. If one was left open, that one first."""
        demand_spread(self.tools.place, self.tools.config.packer.n_bits, create=True)
        patience = _TAKEN_OVER if self.share.workers > 1 else None
        with self._held(self._share_stream(self.share), patience):
            left_open = self._left_open()
            result = self._one()
            return result.followed_by(self._one()) if left_open else result

    def _left_open(self) -> bool:
        mark = self.tools.store.read(self.stream).watermark
        return mark is not None and (mark.open_run is not None or bool(mark.pending))

    def _one(self) -> CycleResult:
        began = self.tools.clock()
        opened = self._opened()
        if not isinstance(opened, _Open):
            return opened
        try:
            self._pack(opened)
            result = self._close(opened)
        except TidegateError as error:
            self._failed(opened, error)
            raise
        return replace(
            result,
            started_at=began,
            finished_at=self.tools.clock(),
            held_back_seconds=opened.held_back_seconds,
            problems=tuple(opened.folder.problems()),
        )

    # --- The window

    @property
    def stream(self) -> StreamId:
        name = self.tools.config.database.table_name
        return StreamId(PIPELINE, f"{name}, late" if self.late else name)

    def _share_stream(self, share: Share) -> StreamId:
        return StreamId(PIPELINE, f"{self.stream.name}, {share.name}")

    def _opened(self) -> _Open | CycleResult:
        """The open window, planned and listed by whoever comes first; or what there is instead of one."""
        with self._held(self.stream, _AS_LONG_AS_IT_TAKES) as held:
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
        return _Open(run, folder, listing, seconds)

    def _settle(self, held: HeldStream) -> None:
        """Finish what an earlier run left between its manifest and its mark, and see who moved the mark."""
        mark = held.watermark
        if mark is None or self.late:
            return
        for segment in mark.pending:
            self._move(segment.window)
            held.commit(*transitions.loaded(_committed(held), {segment.key}, self.tools.clock()))
        run = _committed(held).open_run
        there = self._mark().archived_until
        if run is not None and _moment(run.window.low) != there:
            self._moved_by_others(held, there)

    def _moved_by_others(self, held: HeldStream, there: datetime) -> None:
        reason = "archived_until was changed outside of Tidegate"
        self.watching.note(f"{reason}: the open window is given up, and planned anew from there")
        held.commit(
            *transitions.move(_committed(held), Position.of(there), reason=reason, now=self.tools.clock())
        )

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
        known = held.watermark or transitions.new(held.stream, _CURSOR, now)
        known = self._seen_from_outside(known, mark)
        planned, events = transitions.plan(
            known,
            run_id=self.tools.token(),
            kind=RunKind.INCREMENTAL,
            window=window,
            now=now,
            cursor=_CURSOR,
            schema=_SCHEMA,
        )
        held.commit(transitions.begin_round(planned, window, (), now), events)
        return _open_run(held), seconds

    def _seen_from_outside(self, known: Watermark, mark: Mark) -> Watermark:
        """Where the mark was moved by other hands, the stream goes on from there, and remembers it."""
        there = Position.of(mark.archived_until)
        if self.late or known.extracted.position in (None, there):
            return known
        reason = "archived_until was changed outside of Tidegate"
        self.watching.note(f"{reason}: going on from {there}")
        return transitions.move(known, there, reason=reason, now=self.tools.clock())[0]

    def _fresh_window(self, mark: Mark) -> tuple[Window, float]:
        ceiling = self.tools.table.freeze(timedelta(days=mark.lag_days))
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
        return Window(began(self.tools.store, self.stream_of_marks), Position.of(mark.archived_until))

    @property
    def stream_of_marks(self) -> StreamId:
        return StreamId(PIPELINE, self.tools.config.database.table_name)

    def _mark(self) -> Mark:
        found = self.tools.mark.read()
        return found or self.tools.mark.begin(first_mark(self.tools, self.watching))

    def _list(self, run: Run, folder: WindowFolder) -> Listing:
        unnamed = self.tools.table.without_uid(run.window)
        if unnamed and self.tools.config.packer.on_problem.unreadable.value == "stop":
            raise ArchiveError(
                f"{unnamed:,} rows of the window have no uid, so nobody could ever ask for their files",
                where=self.tools.config.database.table_name,
                hint="give them one, or set packer.on_problem.unreadable to `skip`",
            )
        listing = listings.freeze(self.tools.table, run.window, folder, self.tools.config.packer.n_bits)
        self.watching.planned(run.window, listing.rows, len(listing.parts))
        return listing

    # --- Packing

    def _pack(self, opened: _Open) -> None:
        self._pack_share(opened, self.share)
        self._demand_no_problems(opened)
        while missing := self._missing(opened):
            if self.share.workers == 1:
                raise InvariantBroken(f"{len(missing)} parts were left out", where=str(self.stream))
            if not self._help(opened, missing):
                self.watching.wait(_POLL_SECONDS)
            self.watching.check()
            if self._is_over(opened):
                return

    def _missing(self, opened: _Open) -> list[str]:
        done = opened.folder.receipts()
        return [part for part in opened.listing.parts if part not in done]

    def _pack_share(self, opened: _Open, share: Share) -> None:
        parts = [part for part in self._missing(opened) if share.takes(part)]
        work = self._work(opened)
        for receipt in self.tools.packer.pack(work, parts):
            if receipt is not None:
                self.watching.packed(receipt)
            self.watching.check()

    def _help(self, opened: _Open, missing: Sequence[str]) -> bool:
        """Pack what is missing of the shares that nobody holds: their workers are dead, or never came."""
        helped = False
        for share in self.share.others:
            if not any(share.takes(part) for part in missing):
                continue
            try:
                with self._held(self._share_stream(share)):
                    self.watching.note(f"taking over {share.name}")
                    self._pack_share(opened, share)
            except LeaseHeld:
                continue
            self._demand_no_problems(opened)
            helped = True
        return helped

    def _is_over(self, opened: _Open) -> bool:
        """Whether another worker has closed the window meanwhile."""
        mark = self.tools.store.read(self.stream).watermark
        run = mark.open_run if mark else None
        return run is None or run.id != opened.run.id

    def _work(self, opened: _Open) -> Packing:
        packer = self.tools.config.packer
        return Packing(
            folder=opened.folder,
            listing=opened.listing,
            high=opened.high,
            n_bits=packer.n_bits,
            max_bytes=packer.max_shard_size,
            level=packer.compression_level,
            files=self.tools.files,
            policies={kind: getattr(packer.on_problem, kind.value) for kind in ProblemKind},
            late=self.late,
        )

    def _demand_no_problems(self, opened: _Open) -> None:
        """Stop before the mark if a file could not be packed and no policy says to leave it out."""
        open_problems = [problem for problem in opened.folder.problems() if not problem.skipped]
        if not open_problems:
            return
        opened.folder.forget_listing()
        first = open_problems[0]
        more = f", and {len(open_problems) - 1:,} more" if len(open_problems) > 1 else ""
        where = self.tools.place.where(f"{opened.folder.root}/problems")
        raise ArchiveError(
            f"`{first.uid}` cannot be archived: {first.kind}, {first.message} ({first.location}){more}",
            where=self.tools.config.database.table_name,
            hint=f"mend the files listed in {where}, or set packer.on_problem.{first.kind} to `skip`, "
            "and run this again: the mark has not moved",
        )

    # --- The end of a window

    def _close(self, opened: _Open) -> CycleResult:
        """Write the manifest and move the mark, unless another worker was quicker."""
        with self._held(self.stream, _AS_LONG_AS_IT_TAKES) as held:
            run = held.watermark.open_run if held.watermark else None
            if run is None or run.id != opened.run.id:
                return self._closed_by_another(opened)
            manifest = opened.folder.keep_manifest(self._manifest(opened))
            add_window(opened.folder, [shard.key for shard in manifest.shards])
            segment = self._extracted(held, opened, manifest)
            moved = not self.late and self._move(opened.run.window)
            held.commit(*transitions.loaded(_committed(held), {segment.key}, self.tools.clock()))
            self._clean(opened, held)
        return _result(manifest, moved=moved)

    def _closed_by_another(self, opened: _Open) -> CycleResult:
        manifest = opened.folder.manifest()
        if manifest is None and not opened.listing.rows:
            return CycleResult(opened.run.window, moved=not self.late)
        if manifest is None:
            raise Conflict(
                "the window was given up while it was packed",
                where=str(self.stream),
                hint="run it again: what was packed is found again",
            )
        return _result(manifest, moved=not self.late)

    def _manifest(self, opened: _Open) -> Manifest:
        receipts = [opened.folder.receipt(part) for part in opened.listing.parts]
        found = [receipt for receipt in receipts if receipt is not None]
        if len(found) != len(opened.listing.parts) or sum(r.listed for r in found) != opened.listing.rows:
            raise InvariantBroken("the receipts do not cover the window", where=str(self.stream))
        return Manifest(
            run=opened.run.id,
            number=opened.run.number,
            window=opened.run.window,
            late=self.late,
            n_bits=self.tools.config.packer.n_bits,
            shards=tuple(shard for receipt in found for shard in receipt.shards),
            files=sum(receipt.packed for receipt in found),
            bytes=sum(receipt.bytes for receipt in found),
            already=sum(receipt.already for receipt in found),
            repeated=sum(receipt.repeated for receipt in found),
            skipped=sum(receipt.skipped for receipt in found),
            written_at=self.tools.clock().isoformat(),
        )

    def _extracted(self, held: HeldStream, opened: _Open, manifest: Manifest) -> Segment:
        """Commit that the window is packed; its manifest is what the mark still has to follow."""
        now = self.tools.clock()
        key = opened.folder.manifest_key
        segment = Segment(
            key=key,
            rows=manifest.files,
            bytes=manifest.stored,
            etag="",
            checksum=hashlib.sha256(self.tools.place.get(key) or b"").hexdigest(),
            run=opened.run.number,
            chunk=1,
            window=opened.run.window,
            schema=_SCHEMA[0],
        )
        receipt = Receipt(
            opened.run.id, 1, self.share.name, opened.run.window, manifest.files, None, None, segment
        )
        held.commit(*transitions.finish(transitions.advance(_committed(held), [receipt], now), now))
        return segment

    def _move(self, window: Window) -> bool:
        """The dangerous line: the mark moves over a window that is proved.

        False: somebody else has moved it. The shards are in a manifest and stay; where the archive goes on
        from is for others to say.
        """
        before, after = _moment(window.low), _moment(window.high)
        there = self._mark().archived_until
        if there == after:
            return True  # the answer to an earlier attempt was lost
        try:
            self.tools.mark.move(before, after)
        except Conflict as error:
            self.watching.note(error.message)
            return False
        return True

    def _clean(self, opened: _Open, held: HeldStream) -> None:
        """What is left behind is only untidy: no record refers to it any more."""
        try:
            opened.folder.clean(manifest_too=not opened.listing.rows)
            merge_if_many(self.tools.place, f"{opened.folder.name}-merged")
            self.tools.place.sweep()
            held.check()
        except (ArchiveError, StateError) as error:
            _log.warning("cleaning up after the window failed: %s", error)

    def _failed(self, opened: _Open, error: TidegateError) -> None:
        """Write down why the window is still open. Not being able to hides nothing: the error goes on."""
        try:
            with self._held(self.stream) as held:
                run = held.watermark.open_run if held.watermark else None
                if run is not None and run.id == opened.run.id:
                    held.commit(*transitions.fail(_committed(held), str(error), self.tools.clock()))
        except TidegateError as second:
            _log.warning("the failure could not be recorded: %s", second)

    # --- Leases

    @contextmanager
    def _held(self, stream: StreamId, patience: timedelta | None = None) -> Iterator[HeldStream]:
        """Hold a stream; with patience, because others hold it and give it back."""
        deadline = self.tools.clock() + (patience or timedelta(0))
        with ExitStack() as stack:
            held = None
            while held is None:
                try:
                    held = stack.enter_context(self._holding(stream))
                except LeaseHeld:
                    if self.tools.clock() >= deadline:
                        raise
                    self.watching.wait(_POLL_SECONDS)
                    self.watching.check()
            yield held

    def _holding(self, stream: StreamId) -> AbstractContextManager[HeldStream]:
        tools = self.tools
        return hold(tools.store, stream, holder=tools.holder, clock=tools.clock, nonce=tools.token())


def first_mark(tools: Tools, watching: Watching) -> Mark:
    """Where an archive begins that has no mark yet: where it is told to, or before its oldest file."""
    config = tools.config
    told = config.watermark.default_archived_until
    oldest = tools.table.oldest()
    if told is None:
        begin = (
            oldest - _MICROSECOND
            if oldest is not None
            else tools.clock() - timedelta(days=config.database.lag_days)
        )
        return Mark(begin, config.database.lag_days)
    if oldest is not None and oldest <= told:
        left_out = tools.table.count(Window(None, Position.of(told)))
        watching.note(
            f"the archive begins after {Position.of(told)}, as default_archived_until says: "
            f"{left_out:,} older files are left out"
        )
    return Mark(told, config.database.lag_days)


def files_archived(store: Store, config: ArchiveConfig) -> int:
    """How many files this archive has packed, in all its windows."""
    table = config.database.table_name
    marks = [store.read(StreamId(PIPELINE, name)).watermark for name in (table, f"{table}, late")]
    return sum(mark.loaded.rows_total for mark in marks if mark is not None)


def began(store: Store, stream: StreamId) -> Position | None:
    """Where the archive's first window began."""
    mark = store.read(stream).watermark
    if mark is None:
        return None
    lows = [window.low for window in mark.covered]
    if None in lows:
        return None
    return min([low for low in (*lows, mark.began) if low is not None], default=None)


def _result(manifest: Manifest, *, moved: bool) -> CycleResult:
    return CycleResult(
        manifest.window,
        moved=moved,
        files=manifest.files,
        bytes=manifest.bytes,
        stored=manifest.stored,
        shards=len(manifest.shards),
        already=manifest.already,
        repeated=manifest.repeated,
        skipped=manifest.skipped,
        run_id=manifest.run,
        late=manifest.late,
    )


def _moment(position: Position | None) -> datetime:
    if position is None or not isinstance(position.values[0], datetime):
        raise InvariantBroken("the window has an end that is no moment")
    return position.values[0]


def _committed(held: HeldStream) -> Watermark:
    if held.watermark is None:
        raise InvariantBroken("the stream has no state yet", where=str(held.stream))
    return held.watermark


def _open_run(held: HeldStream) -> Run:
    run = _committed(held).open_run
    if run is None:
        raise InvariantBroken("no run is under way", where=str(held.stream))
    return run
