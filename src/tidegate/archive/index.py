"""Which shard holds which uid: Parquet files of fingerprints, sorted, that only name shards of a manifest.

A question about a part reads the row groups of its range, and no others; fingerprints are eight bytes, so
that all of a billion files take ten gigabytes, and those of one part a few megabytes. An answer is a hint:
two uids can share a fingerprint, so the shard itself is asked.

Each window adds a file. When there are many, the smallest are merged; a fingerprint that stands in two
files does no harm, so neither does a process that dies in between. All of it follows from the shards: where
the folder is gone, the next run writes it anew.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.archive import columns
from tidegate.archive.listing import SortedFile, parquet_file
from tidegate.archive.naming import fingerprint
from tidegate.archive.place import ArchivePlace, Listed
from tidegate.archive.records import WindowFolder, windows
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError, DamagedRecord, DamagedShard

_FOLDER = "_tidegate/index"
_UNFINISHED = f"{_FOLDER}/unfinished"
"""There as long as the index is written anew: until then it names too little, though it has files."""
GROUP_ROWS = 65_536
_MOST_FILES = 64
_MERGED_AT_A_TIME = 48
_LOOKS = 3
"""At files that others may be merging."""

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
    _files: list[SortedFile] | None = field(default=None, repr=False)

    def shards(self, fingerprints: Collection[int], span: tuple[int, int]) -> dict[int, set[str]]:
        """For each of these fingerprints that is known, the shards that hold it."""
        found: dict[int, set[str]] = defaultdict(set)
        if not fingerprints:
            return found
        wanted = columns.unsigned(sorted(fingerprints))
        ends = wanted[0].as_py(), wanted[-1].as_py()
        narrow = max(span[0], ends[0]), min(span[1], ends[1])
        for mark, shard in self._search(wanted, narrow):
            found[mark].add(shard)
        return found

    def _search(self, wanted: pa.Array, span: tuple[int, int]) -> list[Pair]:
        try:
            return self._matches(wanted, span)
        except (ArchiveError, DamagedRecord):
            self._files = None  # others may have merged files meanwhile
            return self._matches(wanted, span)

    def _matches(self, wanted: pa.Array, span: tuple[int, int]) -> list[Pair]:
        with _intact(self.place):
            groups = [(file, group) for file in self._open() for group in file.groups(span)]
            return [pair for file, group in groups for pair in _matching(file.parquet, group, wanted)]

    @property
    def empty(self) -> bool:
        with _intact(self.place):
            return not self._open()

    def _open(self) -> list[SortedFile]:
        """All files there are. One that is gone before it is opened was merged into another, listed anew."""
        for looks_left in reversed(range(_LOOKS)):
            if self._files is None:
                try:
                    self._files = [_sorted_file(self.place, file.key) for file in index_files(self.place)]
                except (FileNotFoundError, ArchiveError):
                    if not looks_left:
                        raise
        return self._files or []


def _sorted_file(place: ArchivePlace, key: str) -> SortedFile:
    source = place.open(key)
    if source is None:
        raise FileNotFoundError(f"{place.where(key)} is gone")
    return SortedFile(source)


@contextmanager
def _intact(place: ArchivePlace) -> Iterator[None]:
    """What Arrow says of damaged Parquet, as an error that names the way out."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DamagedRecord(
            f"the index of the archive is damaged: {error}",
            where=place.where(_FOLDER),
            hint="move this folder away, all of it: the next run writes it anew from the shards",
        ) from error


def demand_index(place: ArchivePlace) -> None:
    """Write the index anew from the shards if it is gone: without it all files would look new.

    Whoever dies meanwhile leaves a part of it, which must not pass for the whole. A shard that is damaged or
    gone holds nothing, as for those who look into it: what it held is packed again.
    """
    there = [listed.key for listed in place.list(_FOLDER)]
    if _UNFINISHED not in there and any(map(_is_index, there)):
        return
    folders = list(windows(place))
    if not folders:
        return
    place.put(_UNFINISHED, b"")
    for folder in folders:
        manifest = folder.manifest()
        if manifest is not None:
            _add(folder, _sound_members(place, [shard.key for shard in manifest.shards]))
    place.delete([_UNFINISHED])


def _matching(file: pq.ParquetFile, group: int, wanted: pa.Array) -> Iterator[Pair]:
    import pyarrow.compute as pc  # an archive that is new has no need of it

    marks = file.read_row_group(group, columns=["fingerprint"]).column(0)
    hits = pc.is_in(marks, value_set=wanted)
    if not pc.any(hits).as_py():
        return
    table = file.read_row_group(group).filter(hits)
    yield from zip(table.column("fingerprint").to_pylist(), table.column("shard").to_pylist(), strict=True)


def index_files(place: ArchivePlace) -> list[Listed]:
    return [listed for listed in place.list(_FOLDER) if _is_index(listed.key)]


def _is_index(key: str) -> bool:
    return key.endswith(".parquet")


def add_window(folder: WindowFolder, shards: Iterable[str]) -> None:
    """Add a file with all that the shards of a window hold. They follow each other, as their members do."""
    _add(folder, (_members(folder.place, shard) for shard in shards))


def _add(folder: WindowFolder, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches, None)
    if first is not None:
        _keep(folder.place, f"{_FOLDER}/{folder.name}.parquet", chain([first], batches))


def _sound_members(place: ArchivePlace, keys: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for key in keys:
        try:
            members = _members(place, key)
        except DamagedShard:
            continue
        yield members


def _members(place: ArchivePlace, key: str) -> pa.RecordBatch:
    source = place.open(key)
    if source is None:
        raise DamagedShard("the shard is gone", where=place.where(key), hint="run it again")
    marks = [fingerprint(uid) for uid in Shard(source).uids()]
    return _batch(marks, [key] * len(marks))


def _batch(marks: Sequence[int], shards: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns.unsigned(marks), columns.texts(shards)], schema=ENTRIES)


def merge_if_many(place: ArchivePlace, name: str) -> bool:
    """Merge the smallest files into one when there are too many."""
    files = index_files(place)
    if len(files) <= _MOST_FILES:
        return False
    small = sorted(files, key=lambda listed: (listed.bytes, listed.key))[:_MERGED_AT_A_TIME]
    runs = [_pairs(place, listed.key) for listed in small]
    with _intact(place):
        _keep(place, f"{_FOLDER}/{name}.parquet", _once(heapq.merge(*runs)))
    place.delete([listed.key for listed in small])
    return True


def _once(pairs: Iterator[Pair]) -> Iterator[pa.RecordBatch]:
    """Pairs that follow each other, each of them once."""
    rows = (pair for pair, _ in groupby(pairs))
    while some := list(islice(rows, GROUP_ROWS)):
        marks, shards = zip(*some, strict=True)
        yield _batch(marks, shards)


def _pairs(place: ArchivePlace, key: str) -> Iterator[Pair]:
    source = place.open(key)
    if source is None:
        return
    with closing(parquet_file(source)) as file:
        for batch in file.iter_batches(GROUP_ROWS, use_threads=False):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _keep(place: ArchivePlace, key: str, batches: Iterable[pa.RecordBatch]) -> None:
    """One that is there was written from the same shards, and is the same."""
    with place.scratch() as file:
        _write(file, batches)
        place.publish(key, file)
    place.settle([key])


def _write(file: BinaryIO, batches: Iterable[pa.RecordBatch]) -> None:
    options: Any = {"compression": "zstd", "use_dictionary": ["shard"], "write_page_checksum": True}
    with pq.ParquetWriter(pa.PythonFile(file, mode="w"), ENTRIES, **options) as writer:
        for rows in _grouped(batches):
            writer.write_table(rows, row_group_size=GROUP_ROWS)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables that are row groups: all of one size but the last."""
    waiting = pa.Table.from_batches([], ENTRIES)
    for batch in batches:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
        while waiting.num_rows >= GROUP_ROWS:
            yield waiting.slice(0, GROUP_ROWS)
            waiting = waiting.slice(GROUP_ROWS)
    if waiting.num_rows:
        yield waiting
