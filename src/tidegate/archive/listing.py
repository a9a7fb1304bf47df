"""The listing: the rows of a window, read once by pages in key order, and kept sorted by fingerprint.

A window's listing is frozen before anything is packed. So packing can be taken up again by anybody, in any
number of processes, and finds the same rows; and each part of the archive is a contiguous range of it.
"""

from __future__ import annotations

import heapq
import io
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.archive import columns
from tidegate.archive.config import Database
from tidegate.archive.entries import Origin
from tidegate.archive.naming import FINGERPRINT_BITS, fingerprint, part_name, part_of
from tidegate.archive.place import ArchivePlace, LocalBytes
from tidegate.archive.records import Listing, WindowFolder
from tidegate.archive.shard import Bytes
from tidegate.core.ceiling import Ceiling, strictly_below, wall_clock
from tidegate.core.errors import ArchiveError, ConfigError, ConnectError
from tidegate.core.positions import Position
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.core.types import Column, Kind
from tidegate.core.windows import Window
from tidegate.sources.contract import Relation
from tidegate.sources.postgresql import PostgreSQL
from tidegate.sources.sql import SqlSource

RUN_ROWS = 100_000
"""Rows that are sorted at a time."""
MOST_RUNS = 64
"""Sorted files that are left as they are."""
GROUP_ROWS = 2_048
_FIRST, _LAST = "'0001-01-03'", "'9999-12-30'"
"""What lies before or after cannot be told in Python, whatever the zone, and is no date of a file."""
_BEGINNING = Position.of(datetime(1, 1, 3, tzinfo=UTC))
_NOWHERE = b""
"""Instead of a location that is missing: a path that nobody can have, and that sorts before all others."""

ROWS = pa.schema(
    [
        pa.field("fingerprint", pa.uint64(), nullable=False),
        pa.field("uid", pa.string(), nullable=False),
        pa.field("created_at", columns.MOMENT, nullable=False),
        pa.field("location", pa.binary(), nullable=False),
    ]
)


class Row(NamedTuple):
    """A row of the table; without a location where it has none."""

    uid: str
    created_at: datetime
    location: bytes | None

    def origin(self, fingerprint: int) -> Origin:
        return Origin(fingerprint, self.uid, self.created_at, self.location or b"")


# --- The table ----------------------------------------------------------------------------------------


class FileTable:
    """The table that lists the files. It is only ever read."""

    def __init__(self, config: Database, database: PostgreSQL) -> None:
        self._config = config
        self._database = database
        self._source = SqlSource(database)

    @cached_property
    def relation(self) -> Relation:
        return self._source.table(self._config.table_name)

    @cached_property
    def _uid(self) -> Column:
        return self._column(self._config.uid_column)

    @cached_property
    def _created_at(self) -> Column:
        column = self._column(self._config.created_at_column)
        if column.type.kind not in (Kind.INSTANT, Kind.TIMESTAMP):
            raise ConfigError(
                f"column `{column.name}` is {column.native}, not a timestamp",
                where=self._config.table_name,
                hint="database.created_at_column names a column of type timestamp with time zone",
            )
        return column

    @cached_property
    def _location(self) -> Column:
        return self._column(self._config.location_column)

    @property
    def uid_type(self) -> str:
        """As the database writes it."""
        return self._uid.native

    @property
    def uid_is_key(self) -> bool:
        return self.relation.schema.key == (self._uid.name,)

    def location_as_bytes(self, alias: str) -> str:
        """SQL for where a file lies, as `Row.location` has it."""
        name = f"{alias}.{self._quoted(self._location)}"
        if self._location.type.kind is Kind.BYTES:
            return name
        return f"convert_to({name}::text, '{self._location.charset or 'UTF8'}')"

    def created_at_as_instant(self, alias: str) -> str:
        """SQL for when a file was created, as `Row.created_at` has it."""
        name = f"{alias}.{self._quoted(self._created_at)}"
        if self._created_at.type.kind is Kind.INSTANT:
            return name
        return f"{name} AT TIME ZONE '{self._config.created_at_timezone}'"

    def _column(self, name: str) -> Column:
        return self._source.columns(self.relation, (name,))[0]

    def freeze(self, lag: timedelta) -> Ceiling:
        """The latest moment, at least `lag` ago, before which no row can appear any more."""
        ceiling = self._source.freeze(self.relation, Cursor(), CeilingSettings(lag=lag))
        if ceiling.position is None:
            raise ConnectError(
                f"a transaction without a known start keeps the window shut: {ceiling.held_back_by}",
                where=self._config.table_name,
                hint="commit it or roll it back, and run this again",
            )
        return replace(ceiling, position=Position.of(self._complete(ceiling.position)))

    def _complete(self, bound: Position) -> datetime:
        """The last moment before the bound that the column can show: what is at the bound may still come."""
        [moment] = bound.values
        assert isinstance(moment, datetime)
        digits = self._database.second_digits(self.relation, self._created_at)
        return strictly_below(moment, timedelta(microseconds=10 ** (6 - digits)))

    def count(self, window: Window) -> int:
        return self._source.count(self.relation, (self._created_at.name,), self._shown(window))

    def without_date(self) -> int:
        """Rows that are in no window, because they do not say when they were created."""
        name = self._quoted(self._created_at)
        [(count,)] = self._database.rows(
            f"SELECT COUNT(*) FROM {self.relation.sql} "
            f"WHERE {name} IS NULL OR {name} <= {_FIRST} OR {name} >= {_LAST}"  # as an index can answer it
        )
        return int(count)

    def without_uid(self, window: Window) -> int:
        """Rows of the window that nobody could ever ask for."""
        if not self._uid.nullable:
            return 0
        within = self._database.within(self.relation, (self._created_at,), self._shown(window))
        condition = f"{within} AND {self._quoted(self._uid)} IS NULL"
        [(count,)] = self._database.rows(f"SELECT COUNT(*) FROM {self.relation.sql} WHERE {condition}")
        return int(count)

    def oldest(self) -> datetime | None:
        name = self._quoted(self._created_at)
        [(moment,)] = self._database.rows(
            f"SELECT min({name}) FROM {self.relation.sql} WHERE {name} > {_FIRST} AND {name} < {_LAST}"
        )
        return self._instant(moment) if moment is not None else None

    def archived_until(self, flag: str) -> datetime | None:
        """The moment up to which every row has the flag set, for tables that were archived row by row."""
        self._column(flag)
        name, column = self._quoted(self._created_at), self._database.quote(flag)
        sql = (
            f"SELECT min({name}) FILTER (WHERE {column} IS NOT TRUE), max({name}) FROM {self.relation.sql} "
            f"WHERE {name} > {_FIRST} AND {name} < {_LAST}"
        )
        [(first_left, last)] = self._database.rows(sql)
        if first_left is not None:
            return self._instant(first_left) - timedelta(microseconds=1)
        return self._instant(last) if last is not None else None

    def pages(self, window: Window) -> Iterator[list[Row]]:
        """The rows of the window in the order of (created_at, uid). No transaction outlasts a page."""
        moment, uid = self._quoted(self._created_at), self._quoted(self._uid)
        key = self._database.expression(self._uid)
        # A database without an encoding has any bytes for text, and so have paths.
        location = (
            self.location_as_bytes("files")
            if self._location.charset
            else f"files.{self._quoted(self._location)}"
        )
        # Under its own name a converted value would also be what ORDER BY sorts by.
        values = f"{key} AS tidegate_key, {uid}::text AS tidegate_uid, {moment}, {location}"
        select = f"SELECT {values} FROM {self.relation.sql} AS files"
        part = self._shown(window)
        while True:
            condition = self._database.within(self.relation, (self._created_at, self._uid), part)
            rows = self._database.rows(
                f"{select} WHERE {condition} AND {uid} IS NOT NULL ORDER BY {moment}, {uid} "
                f"FETCH FIRST {self._config.page_size} ROWS WITH TIES"
            )
            if rows:
                yield [self._row(*row) for row in rows]
            if len(rows) < self._config.page_size:
                return
            last = rows[-1]
            reached = Position.of(_plain(last[2]), self._database.value(self._uid, last[0]))
            part = Window(reached, part.high)

    def _row(self, _: Any, uid: str, moment: datetime, location: Any) -> Row:
        return Row(uid, self._instant(moment), _as_bytes(location))

    def _shown(self, window: Window) -> Window:
        """The window as the column shows it: in its own zone, if it has none."""
        return Window(self._reading(window.low or _BEGINNING), self._reading(window.high))

    def _reading(self, position: Position | None) -> Position | None:
        if position is None or self._created_at.type.kind is Kind.INSTANT:
            return position
        [moment] = position.values
        assert isinstance(moment, datetime)
        return Position.of(wall_clock(moment, self._config.created_at_timezone))

    def _instant(self, moment: datetime) -> datetime:
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(self._config.created_at_timezone))
        return moment.astimezone(UTC)

    def quote(self, name: str) -> str:
        return self._database.quote(name)

    def _quoted(self, column: Column) -> str:
        return self.quote(column.name)

    def close(self) -> None:
        self._source.close()


def _plain(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


def _as_bytes(location: Any) -> bytes | None:
    """A path is bytes. As text it is UTF-8; a column of bytes can hold every path there is."""
    if location is None:
        return None
    return location.encode() if isinstance(location, str) else bytes(location)


# --- Frozen -------------------------------------------------------------------------------------------


def freeze(pages: Iterable[list[Row]], folder: WindowFolder, n_bits: int, attempt: str) -> Listing:
    """Read the window once and keep it, sorted, for those who pack it. No two attempts have one name."""
    counts: Counter[int] = Counter()
    runs = _Runs(folder, attempt)
    for page in pages:
        marks = [fingerprint(row.uid) for row in page]
        counts.update(part_of(mark, n_bits) for mark in marks)
        runs.add(_batch(page, marks))
    parts = {part_name(part, n_bits): count for part, count in counts.items()} | _packed(folder)
    ordered = dict(sorted(parts.items()))
    listing = Listing(sum(ordered.values()), ordered, runs.finished())
    folder.place.settle(listing.files)
    folder.seal_listing(listing)
    return listing


@dataclass
class _Runs:
    """Sorted files of rows. Where they become many they are merged, since whoever packs opens all of them."""

    folder: WindowFolder
    attempt: str
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _levels: list[list[tuple[str, int]]] = field(default_factory=list)
    """Files with their rows: those of a level were merged as often."""
    _made: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= RUN_ROWS:
            self._keep()

    def finished(self) -> tuple[str, ...]:
        if self._waiting:
            self._keep()
        return tuple(key for level in self._levels for key, _ in level)

    def _keep(self) -> None:
        self._enter(0, _written(self.folder.place, self._name(), [_sorted(self._waiting)]), self._rows)
        self._waiting, self._rows = [], 0

    def _enter(self, level: int, key: str, rows: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append((key, rows))
        if len(self._levels[level]) == MOST_RUNS:
            many, self._levels[level] = self._levels[level], []
            total = sum(rows for _, rows in many)
            keys = [key for key, _ in many]
            merged = _merged(self.folder.place, keys, -(-total // RUN_ROWS))
            self._enter(level + 1, _written(self.folder.place, self._name(), merged), total)
            self.folder.place.delete(keys)

    def _name(self) -> str:
        self._made += 1
        return self.folder.listing_file(self.attempt, self._made)


def _merged(place: ArchivePlace, keys: Sequence[str], slices: int) -> Iterator[pa.Table]:
    """Range after range of fingerprints from all of the files: evenly spread, so that each is small."""
    width = -(-(1 << FINGERPRINT_BITS) // slices)
    for begin in range(0, 1 << FINGERPRINT_BITS, width):
        span = begin, min(begin + width, 1 << FINGERPRINT_BITS) - 1
        yield _sorted([batch for key in keys for batch in _batches(place, key, span, ROWS.names)])


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches, ROWS)
    return table.sort_by([(name, "ascending") for name in ROWS.names])


def _written(place: ArchivePlace, key: str, tables: Iterable[pa.Table]) -> str:
    options: Any = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
    with place.scratch() as file:
        with pq.ParquetWriter(pa.PythonFile(file, mode="w"), ROWS, **options) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=GROUP_ROWS)
        place.publish(key, file)
    return key


def _packed(folder: WindowFolder) -> dict[str, int]:
    """Parts that are packed stay as they were when they were listed, even if the window is listed again."""
    receipts = [folder.receipt(part) for part in folder.receipts()]
    return {receipt.part: receipt.listed for receipt in receipts if receipt is not None}


def _batch(page: Sequence[Row], marks: list[int]) -> pa.RecordBatch:
    arrays = [
        columns.unsigned(marks),
        columns.texts(row.uid for row in page),
        columns.moments(row.created_at for row in page),
        columns.blobs([row.location or _NOWHERE for row in page]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


# --- Read again ---------------------------------------------------------------------------------------


class FrozenRows:
    """The rows of a frozen listing, for one part after the other: files stay open meanwhile."""

    def __init__(self, place: ArchivePlace, listing: Listing) -> None:
        self._runs = [_Run(place, key) for key in listing.files]

    def __enter__(self) -> FrozenRows:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs:
            run.close()

    def of(self, span: tuple[int, int]) -> Iterator[tuple[int, Row]]:
        """The rows of a part, in the order of their fingerprints. A few thousand of a file are in memory."""
        for mark, uid, created_at, location in heapq.merge(*(run.rows(span) for run in self._runs)):
            yield mark, Row(uid, created_at, location or None)


class _Run:
    """One file of a listing. The row group that was read last is kept: the next part begins in it."""

    def __init__(self, place: ArchivePlace, key: str) -> None:
        self._place = place
        self._key = key
        self._file: SortedFile | None = None
        self._group = -1
        self._marks: list[int] = []
        self._rows: list[tuple[int, str, datetime, bytes]] = []

    def rows(self, span: tuple[int, int]) -> Iterator[tuple[int, str, datetime, bytes]]:
        if self._file is None:
            self._file = _opened(self._place, self._key)
        for group in self._file.groups(span):
            self._read(self._file, group)
            begin, end = bisect_left(self._marks, span[0]), bisect_right(self._marks, span[1])
            yield from islice(self._rows, begin, end)

    def _read(self, file: SortedFile, group: int) -> None:
        if group == self._group:
            return
        table = file.parquet.read_row_group(group, columns=ROWS.names, use_threads=False)
        marks, uids, moments, locations = (column.combine_chunks() for column in table.columns)
        self._marks = marks.to_pylist()
        read = self._marks, uids.to_pylist(), columns.datetimes(moments), locations.to_pylist()
        self._rows = list(zip(*read, strict=True))
        self._group = group

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def fingerprints_of(place: ArchivePlace, listing: Listing, span: tuple[int, int]) -> list[int]:
    batches = (batch for key in listing.files for batch in _batches(place, key, span, ["fingerprint"]))
    return [mark for batch in batches for mark in batch.column(0).to_pylist()]


def _batches(
    place: ArchivePlace, key: str, span: tuple[int, int], names: list[str]
) -> Iterator[pa.RecordBatch]:
    with closing(_opened(place, key)) as file:
        yield from file.within(span, names)


def _opened(place: ArchivePlace, key: str) -> SortedFile:
    source = place.open(key)
    if source is None:
        raise ArchiveError("a file of the frozen listing is gone", where=place.where(key))
    return SortedFile(source)


class SortedFile:
    """A Parquet file that is sorted by its first column, the fingerprint."""

    def __init__(self, source: Bytes) -> None:
        self.parquet = parquet_file(source)
        metadata = self.parquet.metadata
        ends = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
        self._lows = [end.min for end in ends]
        self._highs = [end.max for end in ends]

    def groups(self, span: tuple[int, int]) -> range:
        """The row groups that can hold a fingerprint of the span."""
        low, high = span
        return range(bisect_left(self._highs, low), bisect_right(self._lows, high))

    def within(self, span: tuple[int, int], names: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows between two fingerprints, in batches of moderate size."""
        import pyarrow.compute as pc

        low, high = columns.unsigned(span)
        for group in self.groups(span):
            batches = self.parquet.iter_batches(
                GROUP_ROWS, row_groups=[group], columns=names, use_threads=False
            )
            for batch in batches:
                marks = batch.column("fingerprint")
                yield batch.filter(pc.and_(pc.greater_equal(marks, low), pc.less_equal(marks, high)))

    def close(self) -> None:
        self.parquet.close()


def parquet_file(source: Bytes) -> pq.ParquetFile:
    """An object as Arrow reads files: by itself where it is one, elsewhere with few, large reads."""
    if isinstance(source, LocalBytes):
        return pq.ParquetFile(source.path, pre_buffer=False, page_checksum_verification=True)
    reader = pa.PythonFile(io.BufferedReader(_Seekable(source), 64 << 10), mode="r")
    return pq.ParquetFile(reader, page_checksum_verification=True)


class _Seekable(io.RawIOBase):
    def __init__(self, source: Bytes) -> None:
        self._source = source
        self._size = source.size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        data = self._source.read(self._place, len(view))
        view[: len(data)] = data
        self._place += len(data)
        return len(data)
