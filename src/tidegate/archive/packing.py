"""Packing one part of a window: its files, in the order of their fingerprints, into shards.

Runs wherever there is a core: in this process, or in a task on a Spark executor. Two who pack the same part
make the same shards under the same names, and the first receipt counts. A shard is read back, file by file,
before it has a name that anybody could find.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import BinaryIO

from tidegate.archive.compressing import WHOLE
from tidegate.archive.config import OnProblem
from tidegate.archive.files import Files, OpenFile, Unpackable
from tidegate.archive.index import Index
from tidegate.archive.listing import Row, fingerprints_of, rows_of
from tidegate.archive.naming import shard_key, span_of
from tidegate.archive.place import ArchivePlace, FileBytes, problems
from tidegate.archive.records import Listing, PartReceipt, Problem, ProblemKind, ShardRecord, WindowFolder
from tidegate.archive.shard import Packed, Shard, ShardWriter
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

    @property
    def place(self) -> ArchivePlace:
        return self.folder.place


def pack(work: Packing, part: str) -> PartReceipt | None:
    """Pack a part, unless it is packed; None if a file keeps it from being finished."""
    done = work.folder.receipt(part)
    if done is not None:
        return done
    # Whatever a file's own troubles are is said otherwise: here it is the archive that fails.
    with problems(work.place.where("_tidegate")), ExitStack() as stack:
        return _Part(work, part, stack).pack()


class _Part:
    def __init__(self, work: Packing, part: str, stack: ExitStack) -> None:
        self._work = work
        self._part = part
        span = span_of(int(part, 16), work.n_bits)
        self._rows = rows_of(work.place, work.listing, span)
        self._known = Known(work.place, partial(fingerprints_of, work.place, work.listing, span), span)
        self._output = _Output(work, part, stack)
        self._problems: list[Problem] = []
        self._stopped = False
        self._last: tuple[str, bytes] | None = None
        """The uid that was last packed or found, and the checksum of its file."""
        self._counts: Counter[str] = Counter()

    def pack(self) -> PartReceipt | None:
        for mark, row in self._rows:
            self._counts["listed"] += 1
            if self._stopped:
                self._look_at(row)
            else:
                self._add(mark, row)
        folder = self._work.folder
        folder.keep_problems(self._part, self._problems)
        if self._stopped:
            return None
        self._output.roll()
        receipt = self._receipt()
        if not receipt.whole or receipt.listed != self._work.listing.parts[self._part]:
            raise InvariantBroken(f"part {self._part} of the window does not add up: {receipt}")
        folder.keep_receipt(receipt)
        return folder.receipt(self._part)

    def _receipt(self) -> PartReceipt:
        output = self._output
        return PartReceipt(
            self._part, tuple(output.shards), packed=output.packed, bytes=output.read, **self._counts
        )

    # --- One file

    def _add(self, mark: int, row: Row) -> None:
        if self._work.late and self._known.checksum(mark, row.uid) is not None:
            self._counts["already"] += 1
            return
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._work.files.open(row.location) as file:
                    self._pack(mark, row, file)
            except Unpackable as error:
                if error.kind is ProblemKind.CHANGED and attempt < _ATTEMPTS:
                    continue
                self._problem(row, error)
            return

    def _pack(self, mark: int, row: Row, file: OpenFile) -> None:
        if file.size <= WHOLE:
            data = b"".join(file.content())
            if not self._is_here(mark, row, lambda: hashlib.sha256(data).digest()):
                packed = Packed.of(data, self._work.level)
                self._output.add(row, packed)
                self._last = row.uid, packed.sha256
        elif not self._is_here(mark, row, lambda: _sum_of(file)):
            self._last = row.uid, self._output.add_stream(row, file)

    def _is_here(self, mark: int, row: Row, checksum: Callable[[], bytes]) -> bool:
        """Whether the uid is in a shard with this content. With another content it cannot be packed."""
        if self._last is not None and self._last[0] == row.uid:
            known, counted = self._last[1], "repeated"
        else:
            found = self._known.checksum(mark, row.uid)
            if found is None:
                return False
            known, counted = found, "already"
        if checksum() != known:
            raise Unpackable(ProblemKind.DUPLICATE, "the uid has been packed with another content")
        self._counts[counted] += 1
        self._last = row.uid, known
        return True

    def _look_at(self, row: Row) -> None:
        """Something keeps the part from being finished: find out what else does, without packing."""
        try:
            with self._work.files.open(row.location):
                pass
        except Unpackable as error:
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

    def __init__(
        self, place: ArchivePlace, fingerprints: Callable[[], list[int]], span: tuple[int, int]
    ) -> None:
        index = Index(place)
        self._shards = {} if index.empty else index.shards(fingerprints(), span)
        self._checksums = lru_cache(maxsize=4)(lambda key: _checksums(place, key))

    def checksum(self, mark: int, uid: str) -> bytes | None:
        """That of the file which lies in a shard under this uid."""
        for shard in sorted(self._shards.get(mark, ())):
            found = self._checksums(shard).get(uid)
            if found is not None:
                return found
        return None


def _checksums(place: ArchivePlace, key: str) -> dict[str, bytes]:
    """By uid, for a whole shard. One that is gone or damaged holds nothing: what it held is packed again."""
    source = place.open(key)
    if source is None:
        return {}
    try:
        index = Shard(source).index()
    except DamagedShard:
        return {}
    return dict(zip(index.column("uid").to_pylist(), index.column("sha256").to_pylist(), strict=True))


# --- The shards of a part -----------------------------------------------------------------------------


@dataclass
class _Output:
    work: Packing
    part: str
    stack: ExitStack
    shards: list[ShardRecord] = field(default_factory=list)
    packed: int = 0
    read: int = 0
    _file: BinaryIO | None = None
    _writer: ShardWriter | None = None

    def add(self, row: Row, packed: Packed) -> None:
        self._room_for(len(packed.data)).add(row.origin, packed)
        self._count(packed.size)

    def add_stream(self, row: Row, file: OpenFile) -> bytes:
        sha256 = self._room_for(file.size).add_stream(row.origin, file.content())
        self._count(file.size)
        return sha256

    @property
    def _where(self) -> str:
        return self.work.place.where(f"part {self.part}")

    def _count(self, size: int) -> None:
        self.packed += 1
        self.read += size

    def _room_for(self, length: int) -> ShardWriter:
        """The shard that takes so many bytes more: a new one, if the last would become too large."""
        if self._writer is not None and self._writer.entries:
            too_large = self._writer.length + length > self.work.max_bytes
            if too_large or self._writer.entries >= MOST_ENTRIES:
                self.roll()
        if self._writer is None:
            self._file = self.stack.enter_context(self.work.place.scratch())
            self._writer = ShardWriter(self._file, max_bytes=self.work.max_bytes, level=self.work.level)
        return self._writer

    def roll(self) -> None:
        """Finish the open shard: write its end, read all of it back, and only then give it its name."""
        if self._writer is None or self._file is None:
            return
        if not self._writer.entries:  # its only file could not be read to its end
            self._forget()
            return
        self._writer.finish()
        self._file.flush()
        sha256 = Shard(FileBytes(self._file, self._where)).verify()
        size = self._file.seek(0, os.SEEK_END)
        key = shard_key(self.work.high, self.part, len(self.shards) + 1, sha256)
        if not self.work.place.publish(key, self._file):
            self._read_back(key, sha256)
        self.shards.append(ShardRecord(key, sha256, size, self._writer.entries))
        self._forget()

    def _forget(self) -> None:
        self._writer = self._file = None
        self.stack.close()

    def _read_back(self, key: str, sha256: str) -> None:
        found = self.work.place.open(key)
        where = self.work.place.where(key)
        if found is None or Shard(found).verify() != sha256:
            raise DamagedShard(
                "the shard that lies here is not the one that was written",
                where=where,
                hint="move it away and run this again: it is written anew",
            )
