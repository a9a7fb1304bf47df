"""Packing one part of a window: its files, in the order of their fingerprints, into shards.

Runs wherever there is a core: in this process, or in a task on a Spark executor. Two who pack the same part
make the same shards under the same names, and the first receipt counts. What is written to a shard is read
back before it has a name that anybody could find.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import BinaryIO, NamedTuple

from tidegate.archive import columns
from tidegate.archive.compressing import WHOLE
from tidegate.archive.config import OnProblem
from tidegate.archive.entries import Origin
from tidegate.archive.files import Files, OpenFile, Unpackable
from tidegate.archive.index import Index
from tidegate.archive.keeping import MOST, Keeping
from tidegate.archive.listing import FrozenRows, Row, fingerprints_of
from tidegate.archive.naming import shard_key, span_of
from tidegate.archive.place import ArchivePlace, FileBytes, problems
from tidegate.archive.records import Listing, PartReceipt, Problem, ProblemKind, ShardRecord, WindowFolder
from tidegate.archive.shard import Shard
from tidegate.archive.writing import Packed, ShardWriter
from tidegate.core.errors import DamagedShard, InvariantBroken

MOST_ENTRIES = 1_000_000
"""In one shard: what is known of them is held in memory until it is finished."""
_ATTEMPTS = 2
"""At a file that changes while it is read."""


@dataclass(frozen=True)
class Packing:
    """What all who pack a window need to know."""

    folder: WindowFolder
    listing: Listing
    high: datetime
    n_bits: int
    max_bytes: int
    level: int
    files: Files
    policies: dict[ProblemKind, OnProblem]
    late: bool = False
    """Only what no shard has yet: whatever has been packed is not even looked at."""
    uids_repeat: bool = False
    """Whether the table lets two rows have one uid, so that a row is known by its location as well."""

    @property
    def place(self) -> ArchivePlace:
        return self.folder.place


def pack(work: Packing, parts: Iterable[str]) -> Iterator[tuple[str, PartReceipt | None]]:
    """Pack these parts that are not packed yet; None for one that a file keeps from being finished.

    While one is on its way to its place, the next is packed.
    """
    with Keeping() as keeping, FrozenRows(work.place, work.listing) as rows:
        around = _Around(rows, Index(work.place), keeping)
        on_the_way: deque[tuple[str, Future[PartReceipt | None]]] = deque()
        for part in parts:
            on_the_way.append((part, _packed(work, part, around)))
            while len(on_the_way) > MOST or (on_the_way and on_the_way[0][1].done()):
                yield _arrived(on_the_way)
        while on_the_way:
            yield _arrived(on_the_way)


def _arrived(
    on_the_way: deque[tuple[str, Future[PartReceipt | None]]],
) -> tuple[str, PartReceipt | None]:
    part, receipt = on_the_way.popleft()
    return part, receipt.result()


@dataclass(frozen=True)
class _Around:
    """What parts that are packed one after the other share."""

    rows: FrozenRows
    index: Index
    keeping: Keeping


def _packed(work: Packing, part: str, around: _Around) -> Future[PartReceipt | None]:
    done = work.folder.receipt(part)
    if done is not None:
        return _known(done)
    # Whatever a file's own troubles are is said otherwise: here it is the archive that fails.
    with problems(work.place.where("_tidegate")), _cycles_left_alone(), ExitStack() as stack:
        return _Part(work, part, around, stack).pack()


def _known(receipt: PartReceipt | None) -> Future[PartReceipt | None]:
    future: Future[PartReceipt | None] = Future()
    future.set_result(receipt)
    return future


@contextmanager
def _cycles_left_alone() -> Iterator[None]:
    """Packing makes tuples by the thousand and no cycles: looking for some would be a tenth of its time."""
    looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looking:
            gc.enable()


class _Part:
    def __init__(self, work: Packing, part: str, around: _Around, stack: ExitStack) -> None:
        self._work = work
        self._part = part
        self._keeping = around.keeping
        span = span_of(int(part, 16), work.n_bits)
        self._rows = around.rows.of(span)
        self._known = Known(around.index, partial(fingerprints_of, work.place, work.listing, span), span)
        self._output = _Output(work, part, around.keeping, stack)
        self._problems: list[Problem] = []
        self._stopped = False
        self._last: tuple[str, bytes] | None = None
        """The uid that was last packed or found, and the checksum of its file."""
        self._counts: Counter[str] = Counter()

    def pack(self) -> Future[PartReceipt | None]:
        for mark, row in self._rows:
            self._counts["listed"] += 1
            if self._stopped:
                self._look_at(mark, row)
            else:
                self._add(mark, row)
        self._work.folder.keep_problems(self._part, self._problems)
        if self._stopped:
            return _known(None)
        return self._keeping.begin(self._kept, self._output.finish())

    def _kept(self) -> PartReceipt | None:
        """The receipt, once all shards lie in their places."""
        receipt = self._receipt()
        if not receipt.whole or receipt.listed != self._work.listing.parts[self._part]:
            raise InvariantBroken(f"part {self._part} of the window does not add up: {receipt}")
        return self._work.folder.keep_receipt(receipt)

    def _receipt(self) -> PartReceipt:
        output = self._output
        shards = tuple(output.published())
        return PartReceipt(self._part, shards, packed=output.packed, bytes=output.read, **self._counts)

    # --- One file

    def _add(self, mark: int, row: Row) -> None:
        if self._work.late and self._known.has(mark, row, uids_repeat=self._work.uids_repeat):
            self._counts["already"] += 1
            return
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._work.files.open(row.location) as file:
                    self._pack(mark, row, file)
            except Unpackable as error:
                if error.kind is ProblemKind.CHANGED and attempt < _ATTEMPTS:
                    continue
                self._not_packed(mark, row, error)
            return

    def _pack(self, mark: int, row: Row, file: OpenFile) -> None:
        if file.size <= WHOLE:
            data = file.whole()
            sha256 = hashlib.sha256(data).digest()
            if not self._is_here(mark, row, lambda: sha256):
                self._output.add(row.origin(mark), Packed.of(data, self._work.level, sha256))
                self._last = row.uid, sha256
        elif not self._is_here(mark, row, lambda: _sum_of(file)):
            self._last = row.uid, self._output.add_stream(row.origin(mark), file)

    def _is_here(self, mark: int, row: Row, checksum: Callable[[], bytes]) -> bool:
        """Whether the uid is in a shard with this content. With another content it cannot be packed."""
        if self._last is not None and self._last[0] == row.uid:
            known, counted = self._last[1], "repeated"
        else:
            found = self._known.entry(mark, row.uid)
            if found is None:
                return False
            known, counted = found.sha256, "already"
        if checksum() != known:
            raise Unpackable(ProblemKind.DUPLICATE, "the uid has been packed with another content")
        self._counts[counted] += 1
        self._last = row.uid, known
        return True

    def _look_at(self, mark: int, row: Row) -> None:
        """Something keeps the part from being finished: find out what else does, without packing."""
        try:
            with self._work.files.open(row.location):
                pass
        except Unpackable as error:
            self._not_packed(mark, row, error)

    def _not_packed(self, mark: int, row: Row, error: Unpackable) -> None:
        """A file that is gone and lies in a shard is where it should be; anything else is a problem."""
        if error.kind is ProblemKind.MISSING and self._known.has(
            mark, row, uids_repeat=self._work.uids_repeat
        ):
            self._counts["already"] += 1
        else:
            self._problem(row, error)

    def _problem(self, row: Row, error: Unpackable) -> None:
        skipped = self._work.policies[error.kind] is OnProblem.SKIP
        location = (row.location or b"").decode(errors="backslashreplace")
        self._problems.append(
            Problem(error.kind, row.uid, location, row.created_at.isoformat(), str(error), skipped)
        )
        if skipped:
            self._counts["skipped"] += 1
        else:
            self._stopped = True


def _sum_of(file: OpenFile) -> bytes:
    digest = hashlib.sha256()
    for piece in file.content():
        digest.update(piece)
    return digest.digest()


class Known:
    """What earlier windows have packed of a part."""

    def __init__(self, index: Index, fingerprints: Callable[[], list[int]], span: tuple[int, int]) -> None:
        place = index.place
        self._shards = {} if index.empty else index.shards(fingerprints(), span)
        self._entries = lru_cache(maxsize=4)(lambda key: _entries(place, key))

    def entry(self, mark: int, uid: str) -> Entry | None:
        """The file that lies in a shard under this uid."""
        if mark not in self._shards:
            return None
        for shard in sorted(self._shards[mark]):
            found = self._entries(shard).get(uid)
            if found is not None:
                return found
        return None

    def has(self, mark: int, row: Row, *, uids_repeat: bool) -> bool:
        """Whether a row's file is packed. A second row of its uid may name another file.

        So may the only one, if it has another date as well; a file that was merely moved kept that.
        """
        found = self.entry(mark, row.uid)
        if found is None:
            return False
        return found.location == (row.location or b"") or (
            not uids_repeat and found.created_at == row.created_at
        )


class Entry(NamedTuple):
    sha256: bytes
    location: bytes
    created_at: datetime


def _entries(place: ArchivePlace, key: str) -> dict[str, Entry]:
    """By uid, for a whole shard. One that is gone or damaged holds nothing: what it held is packed again."""
    source = place.open(key)
    if source is None:
        return {}
    try:
        index = Shard(source).index()
    except DamagedShard:
        return {}
    uids, sums, locations = (index.column(name).to_pylist() for name in ("uid", "sha256", "location"))
    moments = columns.datetimes(index.column("created_at").combine_chunks())
    return {uid: Entry(*entry) for uid, *entry in zip(uids, sums, locations, moments, strict=True)}


# --- The shards of a part -----------------------------------------------------------------------------


@dataclass
class _Output:
    work: Packing
    part: str
    keeping: Keeping
    stack: ExitStack
    packed: int = 0
    read: int = 0
    _shards: list[Future[ShardRecord]] = field(default_factory=list)
    _last: Callable[[], ShardRecord] | None = None
    """Publishes the last shard, which is most often the only one: together with the receipt."""
    _file: BinaryIO | None = None
    _writer: ShardWriter | None = None

    def add(self, origin: Origin, packed: Packed) -> None:
        self._room_for(len(packed.data)).add(origin, packed)
        self.packed += 1
        self.read += len(packed.content)

    def add_stream(self, origin: Origin, file: OpenFile) -> bytes:
        sha256 = self._room_for(file.size).add_stream(origin, file.content())
        self.packed += 1
        self.read += file.size
        return sha256

    @property
    def _where(self) -> str:
        return self.work.place.where(f"part {self.part}")

    def _room_for(self, length: int) -> ShardWriter:
        """The shard that takes so many bytes more: a new one, if the last would become too large."""
        writer = self._writer
        if writer is not None and writer.entries:
            too_large = writer.length + length > self.work.max_bytes
            if not too_large and writer.entries < MOST_ENTRIES:
                return writer
            self.roll()
        if self._writer is None:
            self._file = self.stack.enter_context(self.work.place.scratch())
            self._writer = ShardWriter(self._file, max_bytes=self.work.max_bytes, level=self.work.level)
        return self._writer

    def roll(self) -> None:
        """Finish the open shard, and let it be published while the next is packed."""
        publishing = self._finished()
        if publishing is not None:
            self._shards.append(self.keeping.begin(publishing, self.stack.pop_all()))
        self._forget()

    def finish(self) -> ExitStack:
        """Finish the last shard; `published` needs what is returned."""
        self._last = self._finished()
        return self.stack.pop_all()

    def published(self) -> Iterator[ShardRecord]:
        """All shards, as soon as they lie in their places."""
        yield from (shard.result() for shard in self._shards)
        if self._last is not None:
            yield self._last()

    def _finished(self) -> Callable[[], ShardRecord] | None:
        """What publishes the open shard: its end is written, and it was seen that it can be read."""
        if self._writer is None or self._file is None:
            return None
        if not self._writer.entries:  # its only file could not be read to its end
            return None
        written = self._writer.finish()
        if not Shard(FileBytes(self._file, self._where)).index().equals(written.index):
            raise DamagedShard("its index is not what was written", where=self._where)
        key = shard_key(self.work.high, self.part, len(self._shards) + 1, written.sha256)
        record = ShardRecord(key, written.sha256, written.bytes, written.index.num_rows)
        return partial(self._published, record, self._file)

    def _published(self, record: ShardRecord, file: BinaryIO) -> ShardRecord:
        if not self.work.place.publish(record.key, file):
            self._read_back(record)
        return record

    def _forget(self) -> None:
        self._writer = self._file = None
        self.stack.close()

    def _read_back(self, record: ShardRecord) -> None:
        found = self.work.place.open(record.key)
        try:
            same = found is not None and Shard(found).verify() == record.sha256
        except DamagedShard:
            same = False
        if not same:
            raise DamagedShard(
                "the shard that lies here is not the one that was written",
                where=self.work.place.where(record.key),
                hint="move it away and run this again: it is written anew",
            )
