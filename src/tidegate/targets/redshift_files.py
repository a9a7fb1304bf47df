"""Staged files as COPY takes them: those that fit go as they are, others as a copy beside them.

What is put beside a segment is there for one load. Its key carries the segment's run, so that what a killed
process leaves behind is an orphan of that run like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.errors import ConfigError, StagingError, TidegateError
from tidegate.core.types import Column, DataType, Kind
from tidegate.targets.contract import LOST_SEGMENT, StagedSegment, StagingArea
from tidegate.targets.redshift_types import copied, fits
from tidegate.targets.segments import at_hand, batches, check

_READ_CODECS = frozenset({"SNAPPY", "GZIP", "UNCOMPRESSED"})
"""Files that were staged for another target may have others."""


@dataclass(frozen=True, slots=True)
class File:
    """One file for COPY, and its columns in the order it has them."""

    url: str
    bytes: int
    columns: tuple[Column, ...]
    staged: StagedSegment


@dataclass
class Shelf:
    """What one load reads, and what it has put into staging for that."""

    nonce: str
    _beside: list[tuple[StagingArea, str]] = field(default_factory=list)

    def files(self, staged: Sequence[StagedSegment]) -> list[File]:
        """Those that have rows, each checked to be what its receipt says."""
        for item in staged:
            _demand_unchanged(item, _demand_area(item))
        found = [(item, check(item)) for item in staged]
        return [self._file(item, schema) for item, schema in found if item.segment.rows]

    def manifest(self, files: Sequence[File]) -> str:
        """The address of a list of these files, each of which must be there and of its size."""
        entries = [
            {"url": file.url, "mandatory": True, "meta": {"content_length": file.bytes}} for file in files
        ]
        first = files[0].staged
        area, key = _demand_area(first), self._key(first, "manifest")
        self._beside.append((area, key))
        area.put(key, json.dumps({"entries": entries}).encode())
        return area.url(key)

    def clear(self) -> None:
        for area, key in self._beside:
            # What stays is found by `staging clean`; the load is over, and nothing refers to it.
            with suppress(TidegateError):
                area.delete([key])

    def _file(self, item: StagedSegment, found: pq.FileMetaData) -> File:
        area, columns = _demand_area(item), _columns(item, found.schema.to_arrow_schema())
        if columns is not None and _codecs(found) <= _READ_CODECS:
            return File(area.url(item.segment.key), item.segment.bytes, columns, item)
        key = self._key(item, "parquet")
        self._beside.append((area, key))
        with area.create(key) as writer:
            _rewrite(item, writer.file)
        return File(area.url(key), writer.result.bytes, item.schema.columns, item)

    def _key(self, item: StagedSegment, kind: str) -> str:
        folder, slash, name = item.segment.key.rpartition("/")
        return f"{folder}{slash}_loads/{name.removesuffix('.parquet')}-{self.nonce}.{kind}"


@contextmanager
def shelf(nonce: str) -> Iterator[Shelf]:
    here = Shelf(nonce)
    try:
        yield here
    finally:
        here.clear()


def _demand_area(item: StagedSegment) -> StagingArea:
    if item.area is None:
        raise ConfigError(
            "Redshift reads staged files by itself, and these do not lie in S3",
            where=item.segment.key,
            hint="give the pipeline a `staging` of type s3",
        )
    return item.area


def _demand_unchanged(item: StagedSegment, area: StagingArea) -> None:
    """The object is the one that was written: the same version, or at least the same content."""
    key, segment = item.segment.key, item.segment
    found = area.stat(key)
    if found is None or found.bytes != segment.bytes:
        problem = "is gone from staging" if found is None else f"has {found.bytes} bytes, not {segment.bytes}"
        raise StagingError(
            f"a segment {problem}",
            where=area.url(key),
            hint=LOST_SEGMENT,
        )
    if found.etag != segment.etag:
        for _ in at_hand([item]):  # which compares digests
            pass


def _columns(item: StagedSegment, found: pa.Schema) -> tuple[Column, ...] | None:
    """The columns in the file's order, if COPY takes all of them as they are."""
    columns = dict(zip(item.stored, item.schema.columns, strict=True))
    if set(found.names) != set(columns) or len(found.names) != len(columns):
        return None
    ordered = tuple(columns[name] for name in found.names)
    alike = all(fits(column.type, part.type) for column, part in zip(ordered, found, strict=True))
    return ordered if alike else None


def _codecs(found: pq.FileMetaData) -> set[str]:
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    return {group.column(number).compression for group in groups for number in range(group.num_columns)}


def _rewrite(item: StagedSegment, out: object) -> None:
    types = [column.type for column in item.schema.columns]
    schema = pa.schema([pa.field(column.name, copied(column.type)) for column in item.schema.columns])
    with pq.ParquetWriter(out, schema, version="2.6", store_schema=False) as writer:
        for here in at_hand([item]):
            for batch in batches(here[0]):
                arrays = [_as_copied(*pair) for pair in zip(types, batch.columns, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))


def _as_copied(declared: DataType, values: pa.Array) -> pa.Array:
    return _clock_text(values) if declared.kind is Kind.TIME else values.cast(copied(declared))


def _clock_text(times: pa.Array) -> pa.Array:
    """`23:59:59.999999`; Arrow's own cast has no word for `24:00:00`."""
    micros = times.cast(pa.int64())
    parts = []
    for unit, digits in ((3_600_000_000, 2), (60_000_000, 2), (1_000_000, 2), (1, 6)):
        whole = pc.divide(micros, unit)
        micros = pc.subtract(micros, pc.multiply(whole, unit))
        parts.append(pc.utf8_lpad(whole.cast(pa.string()), digits, "0"))
    clock = pc.binary_join_element_wise(*parts[:3], ":")
    return pc.binary_join_element_wise(clock, parts[3], ".")
