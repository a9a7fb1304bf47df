"""Which shard holds which uid: Parquet files of fingerprints, sorted, that only name shards of a manifest.

A question about a part reads the row groups of its range, and no others; fingerprints are eight bytes, so
that all of a billion files take ten gigabytes, and those of one part a few megabytes. An answer is a hint:
two uids can share a fingerprint, so the shard itself is asked.

Each window adds a file. When there are many, the smallest are merged; a fingerprint that stands in two
files does no harm, so neither does a process that dies in between.
"""

from __future__ import annotations

import heapq
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.archive.listing import overlapping, parquet_file
from tidegate.archive.naming import fingerprint
from tidegate.archive.place import ArchivePlace, Listed
from tidegate.archive.records import WindowFolder
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError, DamagedShard

_FOLDER = "_tidegate/index"
_GROUP_ROWS = 65_536
_MOST_FILES = 64
_MERGED_AT_A_TIME = 48

ENTRIES = pa.schema(
    [
        pa.field("fingerprint", pa.uint64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
    ]
)

Pair = tuple[int, str]


@dataclass
class Index:
    """Footers are kept, so that many questions cost one look at them."""

    place: ArchivePlace
    _files: list[pq.ParquetFile] | None = field(default=None, repr=False)

    def shards(self, fingerprints: Collection[int], span: tuple[int, int]) -> dict[int, set[str]]:
        """For each of these fingerprints that is known, the shards that hold it."""
        found: dict[int, set[str]] = defaultdict(set)
        if not fingerprints:
            return found
        wanted = pa.array(sorted(fingerprints), pa.uint64())
        ends = wanted[0].as_py(), wanted[-1].as_py()
        narrow = max(span[0], ends[0]), min(span[1], ends[1])
        for mark, shard in self._search(wanted, narrow):
            found[mark].add(shard)
        return found

    def _search(self, wanted: pa.Array, span: tuple[int, int]) -> list[Pair]:
        try:
            return self._matches(wanted, span)
        except ArchiveError:
            self._files = None  # others may have merged files meanwhile
            return self._matches(wanted, span)

    def _matches(self, wanted: pa.Array, span: tuple[int, int]) -> list[Pair]:
        groups = [(file, group) for file in self._open() for group in overlapping(file.metadata, span)]
        return [pair for file, group in groups for pair in _matching(file, group, wanted)]

    @property
    def empty(self) -> bool:
        return not self._open()

    def _open(self) -> list[pq.ParquetFile]:
        if self._files is None:
            sources = (self.place.open(listed.key) for listed in index_files(self.place))
            self._files = [parquet_file(source) for source in sources if source is not None]
        return self._files


def _matching(file: pq.ParquetFile, group: int, wanted: pa.Array) -> Iterator[Pair]:
    marks = file.read_row_group(group, columns=["fingerprint"]).column(0)
    hits = pc.is_in(marks, value_set=wanted)
    if not pc.any(hits).as_py():
        return
    table = file.read_row_group(group).filter(hits)
    yield from zip(table.column("fingerprint").to_pylist(), table.column("shard").to_pylist(), strict=True)


def index_files(place: ArchivePlace) -> list[Listed]:
    return [listed for listed in place.list(_FOLDER) if listed.key.endswith(".parquet")]


def add_window(folder: WindowFolder, shards: Iterable[str]) -> None:
    """Add a file with all that the shards of a window hold. They follow each other, as their members do."""
    pairs = (pair for shard in shards for pair in _members(folder.place, shard))
    first = next(pairs, None)
    if first is not None:
        folder.place.put(f"{_FOLDER}/{folder.name}.parquet", _parquet(_chained(first, pairs)))


def _members(place: ArchivePlace, key: str) -> Iterator[Pair]:
    source = place.open(key)
    if source is None:
        raise DamagedShard("the shard is gone", where=place.where(key), hint="run it again")
    for uid in Shard(source).index().column("uid").to_pylist():
        yield fingerprint(uid), key


def merge_if_many(place: ArchivePlace, name: str) -> bool:
    """Merge the smallest files into one when there are too many."""
    files = index_files(place)
    if len(files) <= _MOST_FILES:
        return False
    small = sorted(files, key=lambda listed: (listed.bytes, listed.key))[:_MERGED_AT_A_TIME]
    runs = [_pairs(place, listed.key) for listed in small]
    place.put(f"{_FOLDER}/{name}.parquet", _parquet(_once(heapq.merge(*runs))))
    place.delete([listed.key for listed in small])
    return True


def _once(pairs: Iterator[Pair]) -> Iterator[Pair]:
    last = None
    for pair in pairs:
        if pair != last:
            yield pair
        last = pair


def _chained(first: Pair, rest: Iterator[Pair]) -> Iterator[Pair]:
    yield first
    yield from rest


def _pairs(place: ArchivePlace, key: str) -> Iterator[Pair]:
    source = place.open(key)
    if source is None:
        return
    with closing(parquet_file(source)) as file:
        for batch in file.iter_batches(_GROUP_ROWS, use_threads=False):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _parquet(pairs: Iterable[Pair]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, ENTRIES, compression="zstd", use_dictionary=["shard"]) as writer:
        for rows in _grouped(pairs):
            columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
            arrays = [pa.array(values, kind.type) for values, kind in zip(columns, ENTRIES, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=ENTRIES))
    return sink.getvalue()


def _grouped(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    rows: list[Pair] = []
    for pair in pairs:
        rows.append(pair)
        if len(rows) == _GROUP_ROWS:
            yield rows
            rows = []
    if rows:
        yield rows
