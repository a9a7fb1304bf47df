"""The Parquet files of a Delta table: read, and written a bounded part at a time."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, PyFileSystem

from tidegate.core.errors import OutcomeUnknown, TargetError
from tidegate.targets.delta_types import fitted

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

BUFFER_BYTES = 64 * 2**20
"""Rows in memory at a time, in Arrow's size: what one file holds at most."""
_ROW_GROUP = 128 * 1024
_READ_ROWS = 32 * 1024
_READ_BYTES = 2**20
_INDEXED = 32
"""How many columns have statistics, as Delta has it."""
_LONGEST_BOUND = 32
_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only to count from


def files_of(table: DeltaTable, options: Mapping[str, str]) -> FileSystem:
    """What reads and writes files by their paths inside of the table."""
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(table.table_uri, dict(options)))


def arrow_schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def spelled(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Columns as the table spells them: somebody may have made it with names in another case."""
    there = {name.casefold(): name for name in schema.names}
    return [there.get(name.casefold(), name) for name in names]


def conformed(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, Any] | None = None
) -> pa.RecordBatch:
    """The rows with the table's columns, in their order: what they lack is a constant, or empty."""
    present = {name.casefold(): position for position, name in enumerate(batch.schema.names)}
    columns = []
    for column in schema:
        position = present.get(column.name.casefold())
        if constants and column.name in constants:
            scalar = pa.scalar(constants[column.name], column.type)
            columns.append(pa.repeat(scalar, batch.num_rows))
        elif position is None:
            columns.append(pa.nulls(batch.num_rows, column.type))
        else:
            columns.append(fitted(batch.column(position), column.type))
    return pa.record_batch(columns, schema=schema)


# --- Reading -----------------------------------------------------------------


@dataclass(frozen=True)
class DataFile:
    """A file of one version of a table, as the log describes it."""

    path: str
    size: int
    partition: Mapping[str, Any]
    """The values of the columns that the table is partitioned by: the file itself does not have them."""
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)

    def batches(
        self, files: FileSystem, schema: pa.Schema, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Its rows, a bounded part at a time, in the table's types."""
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with _understood(self.path), files.open_input_file(self.path) as source:
            # Spark writes moments in an older form that reaches further than nanoseconds do.
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_READ_BYTES)
            names = {column.name.casefold() for column in wanted}
            inside = [name for name in parquet.schema_arrow.names if name.casefold() in names]
            for batch in parquet.iter_batches(batch_size=_READ_ROWS, columns=inside):
                yield conformed(batch, wanted, self.partition)

    def removed(self) -> RemoveAction:
        from deltalake.transaction import RemoveAction

        partition = {name: partition_text(value) for name, value in self.partition.items()}
        return RemoveAction(
            self.path,
            data_change=True,
            deletion_timestamp=_now_ms(),
            size=self.size,
            partition_values=partition,
        )


@contextmanager
def _understood(path: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise TargetError(f"a file of the table cannot be understood: {error}", where=path) from error


def data_files(table: DeltaTable) -> list[DataFile]:
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        DataFile(
            row["path"],
            row["size_bytes"],
            _prefixed(row, "partition."),
            _prefixed(row, "min."),
            _prefixed(row, "max."),
        )
        for row in rows
    ]


def _prefixed(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


# --- Writing -----------------------------------------------------------------


@dataclass
class FileWriter:
    """Writes rows into new files of a table, which nobody sees until a commit names them.

    Rows wait in memory until there are enough for a file; with many partitions the fullest goes first. Each
    file is sorted by `cluster_by`, so that who looks for some values can leave out most row groups and files.
    """

    files: FileSystem
    schema: pa.Schema
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    added: list[AddAction] = field(default_factory=list)
    rows: int = 0
    _waiting: dict[tuple[Any, ...], list[pa.RecordBatch]] = field(default_factory=dict)
    _bytes: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def write(self, batch: pa.RecordBatch) -> None:
        self._demand_values(batch)
        self.rows += batch.num_rows
        for values, part in self._parts(batch):
            self._waiting.setdefault(values, []).append(part)
            self._bytes[values] = self._bytes.get(values, 0) + part.nbytes
        while sum(self._bytes.values()) > BUFFER_BYTES:
            self._flush(max(self._bytes, key=lambda values: self._bytes[values]))

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self.write(batch)

    def finish(self) -> None:
        for values in list(self._waiting):
            self._flush(values)

    @contextmanager
    def kept_if_committed(self) -> Iterator[None]:
        """Remove the new files if the block fails, unless nobody knows whether a commit has named them."""
        try:
            yield
        except OutcomeUnknown:
            raise
        except BaseException:
            for action in self.added:
                with suppress(OSError):  # a file that nobody has named is in nobody's way
                    self.files.delete_file(action.path)
            raise

    def _demand_values(self, batch: pa.RecordBatch) -> None:
        for column in self.schema:
            if not column.nullable and batch.column(column.name).null_count:
                raise TargetError(f"rows have no value in {column.name}, which the table wants NOT NULL")

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if not self.partition_by:
            yield (), batch
            return
        keys = pa.table(batch.select(self.partition_by)).group_by(list(self.partition_by)).aggregate([])
        for values in keys.select(self.partition_by).to_pylist():
            found = tuple(values[name] for name in self.partition_by)
            yield found, batch.filter(self._belonging(batch, found))

    def _belonging(self, batch: pa.RecordBatch, values: tuple[Any, ...]) -> pa.Array:
        here = pa.repeat(pa.scalar(value=True), batch.num_rows)
        for name, value in zip(self.partition_by, values, strict=True):
            column = batch.column(name)
            same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            here = pc.and_(here, pc.fill_null(same, False))  # noqa: FBT003 - Arrow's value
        return here

    def _flush(self, values: tuple[Any, ...]) -> None:
        from deltalake.transaction import AddAction

        batches = self._waiting.pop(values)
        self._bytes.pop(values)
        rows = pa.Table.from_batches(batches).drop_columns(list(self.partition_by))
        if self.cluster_by:
            rows = rows.sort_by([(name, "ascending") for name in self.cluster_by])
        partition = {
            name: partition_text(value) for name, value in zip(self.partition_by, values, strict=True)
        }
        path = f"part-{len(self.added):05}-{uuid.uuid4()}.snappy.parquet"
        with self.files.open_output_stream(path) as file:
            pq.write_table(rows, file, row_group_size=_ROW_GROUP, store_schema=False)
            size = file.tell()
        statistics = json.dumps(_statistics(rows))
        self.added.append(AddAction(path, size, partition, _now_ms(), data_change=True, stats=statistics))


def partition_text(value: Any) -> str | None:
    """A partition's value as the log has it. An empty text would be read as NULL, so it cannot be one."""
    match value:
        case None:
            return None
        case "":
            raise TargetError(
                "a table cannot be partitioned by an empty text, which Delta reads as NULL",
                hint="choose other columns with `partition_by`",
            )
        case bool():
            return str(value).lower()
        case date() if not isinstance(value, datetime):
            return value.isoformat()
        case str() | int():
            return str(value)
        case _:
            raise TargetError(f"tables are not partitioned by {type(value).__name__} here")


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- Statistics --------------------------------------------------------------


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """What readers go by to leave out files: only bounds that every reader understands alike."""
    names = rows.schema.names[:_INDEXED]
    bounds = {name: _bounds(rows.column(name)) for name in names}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: low for name, (low, _) in bounds.items() if low is not None},
        "maxValues": {name: high for name, (_, high) in bounds.items() if high is not None},
        "nullCount": {name: rows.column(name).null_count for name in names},
    }


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if pa.types.is_integer(kind):
        return _ends(column)
    if pa.types.is_string(kind):
        low, high = _ends(column)
        short = high if high is not None and len(high) <= _LONGEST_BOUND else None
        return (None if low is None else low[:_LONGEST_BOUND]), short
    if pa.types.is_date(kind):
        return _moments(column.cast(pa.int32()), _DAY, lambda moment: moment.date().isoformat())
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return _moments(
            column.cast(pa.int64()), 1, lambda at: f"{at.isoformat(timespec='microseconds')}{zone}"
        )
    return None, None


def _ends(column: pa.ChunkedArray) -> tuple[Any, Any]:
    ends = pc.min_max(column).as_py()
    return ends["min"], ends["max"]


def _moments(
    column: pa.ChunkedArray, micros: int, written: Callable[[datetime], str]
) -> tuple[str | None, str | None]:
    """Bounds as text, within the years 1 to 9999: others are not read alike everywhere."""
    low, high = (_moment(end, micros) for end in _ends(column))
    return (written(low) if low else None), (written(high) if high else None)


def _moment(value: int | None, micros: int) -> datetime | None:
    try:
        return None if value is None else _EPOCH + timedelta(microseconds=value * micros)
    except OverflowError:
        return None
