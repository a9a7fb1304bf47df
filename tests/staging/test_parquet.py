"""Segments as Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.arrow import arrow_schema
from tidegate.config.settings import Compression
from tidegate.core.types import Column, DataType, Kind
from tidegate.staging.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS, write_segment

NUMBERS = pa.schema([pa.field("n", pa.int64())])


def clock(text: str) -> datetime:
    """A reading of a wall clock."""
    return datetime.fromisoformat(text)


def written(
    schema: pa.Schema, *batches: pa.RecordBatch, compression: Compression = Compression.SNAPPY
) -> pq.ParquetFile:
    file = io.BytesIO()
    rows = write_segment(file, schema, iter(batches), compression=compression)
    assert rows == sum(batch.num_rows for batch in batches)
    return pq.ParquetFile(io.BytesIO(file.getvalue()))


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(start, start + count), pa.int64())], schema=NUMBERS)


VALUES: dict[DataType, list[Any]] = {
    DataType(Kind.BOOL): [True, False],
    DataType(Kind.INT8): [-128, 127],
    DataType(Kind.INT16): [-(2**15), 2**15 - 1],
    DataType(Kind.INT32): [-(2**31), 2**31 - 1],
    DataType(Kind.INT64): [-(2**63), 2**63 - 1],
    DataType(Kind.UINT8): [0, 255],
    DataType(Kind.UINT16): [0, 2**16 - 1],
    DataType(Kind.UINT32): [0, 2**32 - 1],
    DataType(Kind.UINT64): [0, 2**64 - 1],
    DataType(Kind.FLOAT32): [-1.5, float("inf")],
    DataType(Kind.FLOAT64): [5e-324, -1.7976931348623157e308],
    DataType(Kind.DECIMAL, 5, 2): [Decimal("-999.99"), Decimal("0.01")],
    DataType(Kind.DECIMAL, 38, 10): [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1e-10")],
    DataType(Kind.TEXT): ["", "😀é\0"],
    DataType(Kind.BYTES): [b"", b"\x00\xff"],
    DataType(Kind.DATE): [date(1, 1, 1), date(9999, 12, 31)],
    DataType(Kind.TIME): [time(0), time(23, 59, 59, 999999)],
    DataType(Kind.TIMESTAMP): [clock("0001-01-01 00:00:00.000001"), clock("9999-12-31 23:59:59.999999")],
    DataType(Kind.INSTANT): [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)],
    DataType(Kind.JSON): ['{"a": 1.10}', "null"],
    DataType(Kind.UUID): ["123e4567-e89b-12d3-a456-426614174000"] * 2,
}
COLUMNS = tuple(Column(f"c{number}", declared) for number, declared in enumerate(VALUES))
EVERY_KIND = pa.RecordBatch.from_arrays(
    [
        pa.array([*values, None], field.type)
        for values, field in zip(VALUES.values(), arrow_schema(COLUMNS), strict=True)
    ],
    schema=arrow_schema(COLUMNS),
)


@pytest.mark.parametrize("compression", Compression)
def test_every_kind_of_value_is_read_back_as_it_was(compression: Compression) -> None:
    file = written(EVERY_KIND.schema, EVERY_KIND, compression=compression)

    assert file.read().equals(pa.Table.from_batches([EVERY_KIND]))


def test_every_kind_of_value_is_known_to_the_test() -> None:
    assert {declared.kind for declared in VALUES} == set(Kind)


@pytest.mark.parametrize("compression", Compression)
def test_a_warehouse_reads_the_values_too(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "segment.parquet"
    with path.open("wb") as file:
        write_segment(file, EVERY_KIND.schema, iter([EVERY_KIND]), compression=compression)

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(f"FROM '{path}'").to_arrow_table()

    text = [pa.string() if field.type == pa.time64("us") else field.type for field in EVERY_KIND.schema]
    for name, wanted in zip(found.schema.names, text, strict=True):
        expected = EVERY_KIND.column(name).cast(wanted).to_pylist()
        assert found.column(name).cast(wanted).to_pylist() == expected, name


@pytest.mark.parametrize("compression", Compression)
def test_a_file_is_compressed_as_it_was_asked_for(compression: Compression) -> None:
    group = written(EVERY_KIND.schema, EVERY_KIND, compression=compression).metadata.row_group(0)

    used = {group.column(number).compression for number in range(len(COLUMNS))}
    assert used == {"UNCOMPRESSED" if compression is Compression.NONE else compression.value.upper()}


def test_a_file_holds_nothing_that_some_readers_do_not_know() -> None:
    noted = EVERY_KIND.schema.with_metadata({"pandas": "{}", "writer": "somebody"})
    file = written(noted, EVERY_KIND.replace_schema_metadata(noted.metadata))

    assert file.metadata.metadata is None
    # The format's own field, by which readers work around the mistakes of known writers: it stays.
    assert file.metadata.created_by.startswith("parquet-cpp-arrow")
    group = file.metadata.row_group(0)
    encodings = {name for number in range(len(COLUMNS)) for name in group.column(number).encodings}
    assert encodings <= {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def test_a_column_that_may_not_be_null_is_so_in_the_file() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=schema)

    assert written(schema, batch).schema_arrow.field("n").nullable is False

    with pytest.raises(pa.ArrowInvalid):
        written(schema, pa.RecordBatch.from_arrays([pa.array([1, None])], schema=schema))


def test_a_batch_of_another_schema_is_refused() -> None:
    other = pa.RecordBatch.from_pydict({"m": pa.array([1], pa.int64())})

    with pytest.raises(pa.ArrowInvalid):
        written(NUMBERS, numbers(0, 1), other)


def test_no_rows_make_a_file_with_columns_and_without_rows() -> None:
    for batches in ([], [numbers(0, 0)]):
        file = written(NUMBERS, *batches)
        assert file.metadata.num_rows == 0
        assert file.schema_arrow == NUMBERS


def test_small_batches_share_a_row_group() -> None:
    file = written(NUMBERS, *(numbers(start, 1000) for start in range(0, 100_000, 1000)))

    assert file.metadata.num_row_groups == 1
    assert file.read().column("n").to_pylist() == list(range(100_000))


def test_a_row_group_has_a_limit_of_rows() -> None:
    size = ROW_GROUP_ROWS // 4
    file = written(NUMBERS, *(numbers(start, size) for start in range(0, size * 9, size)))

    groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    assert groups == [size * 4, size * 4, size]


def test_memory_is_bounded_however_wide_the_rows_are() -> None:
    """Half a gigabyte in 500 columns goes through, and little more than one row group is held at a time."""
    schema = pa.schema([pa.field(f"c{number}", pa.string()) for number in range(500)])
    before = pa.total_allocated_bytes()
    peak = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for _ in range(50):
            text = pa.array(["x" * 96] * 200, pa.string())
            columns = [pa.concat_arrays([text[:100], text[100:]]) for _ in range(500)]
            peak = max(peak, pa.total_allocated_bytes() - before)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    with open("/dev/null", "wb") as file:  # noqa: PTH123 - nothing is kept
        rows = write_segment(file, schema, batches(), compression=Compression.SNAPPY)

    assert rows == 10_000
    assert ROW_GROUP_BYTES // 2 < peak < ROW_GROUP_BYTES * 2


def test_only_text_that_repeats_gets_a_dictionary() -> None:
    rows = 10_000
    table = pa.RecordBatch.from_pydict(
        {
            "status": pa.array(["new", "paid"] * (rows // 2)),
            "code": pa.array([f"code-{number}" for number in range(rows)]),
            "flag": pa.array([1, 2] * (rows // 2), pa.int32()),
        }
    )

    group = written(table.schema, table).metadata.row_group(0)

    assert [group.column(number).has_dictionary_page for number in range(3)] == [True, False, False]


def test_an_error_on_the_way_is_not_swallowed() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield numbers(0, ROW_GROUP_ROWS)
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError):
        write_segment(io.BytesIO(), NUMBERS, broken(), compression=Compression.SNAPPY)


class FullDisk(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ARG002 - the signature of a file
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_error_of_the_operating_system() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_segment(FullDisk(), NUMBERS, iter([numbers(0, 1000)]), compression=Compression.NONE)  # type: ignore[arg-type]
