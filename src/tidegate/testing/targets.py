"""The contract suite of targets.

For a target of your own, subclass `TargetContract` in a test module and give it a `target` fixture that
yields an empty target. A target can be pickled, and a copy in another process loads into the same place.
A target that is not an SQL database also overrides `read_rows`, `column_names` and `count_beside`.
"""

# ruff: noqa: PLR2004 - expected values are plain numbers

from __future__ import annotations

import hashlib
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.arrow import arrow_schema
from tidegate.core.errors import IncompatibleTable, LeaseLost, StagingError, TargetError
from tidegate.core.names import RUN_COLUMN
from tidegate.core.receipts import Segment
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.targets.contract import StagedSegment, Target, TargetTable
from tidegate.targets.ddl import TableName, quote
from tidegate.targets.sql import SqlTarget

TextRow = tuple[str | None, ...]


# --- What tests read and write ----------------------------------------------


def read_rows(target: Target, name: str, columns: Sequence[str] = ()) -> list[TextRow]:
    """All rows of a table in an SQL target, sorted, each value in the target's own words (times in UTC).

    Without `columns`, all of them in the table's order, except the one with the run's number.
    """
    sql = cast("SqlTarget", target)
    table = TableName.parse(name, sql.schema)
    with sql.database.reading() as session:
        session.change("SET TimeZone = 'UTC'")
        names = columns or [c.name for c in session.columns(table) if c.name != RUN_COLUMN]
        values = ", ".join(f"CAST({quote(column)} AS text)" for column in names)
        rows = session.rows(f"SELECT {values} FROM {session.relation(table)}")
    return sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])


def column_names(target: Target, name: str) -> list[str]:
    sql = cast("SqlTarget", target)
    with sql.database.reading() as session:
        return [column.name for column in session.columns(TableName.parse(name, sql.schema))]


@dataclass
class Stage:
    """Makes segments: real Parquet files in a folder."""

    folder: Path
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def segment(
        self, schema: Schema, rows: Sequence[Sequence[object]], *, run: int = 1, key: str | None = None
    ) -> StagedSegment:
        """Rows in the order of the schema's columns; dates and times may be given as Arrow's numbers."""
        number = next(self.numbers)
        path = self.folder / f"{number}.parquet"
        _write(path, arrow_schema(schema.columns), rows)
        segment = Segment(
            key=key or f"run-{run}/{number}.parquet",
            rows=len(rows),
            bytes=path.stat().st_size,
            etag=f"etag-{number}",
            checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
            run=run,
            chunk=number,
            window=Window(None, None),
            schema=schema.fingerprint,
        )
        return StagedSegment(segment, schema, path, partial(pa.OSFile, str(path)))


def _write(path: Path, schema: pa.Schema, rows: Sequence[Sequence[object]]) -> None:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [_array(values, kind.type) for values, kind in zip(columns, schema, strict=True)]
    with pq.ParquetWriter(path, schema, store_schema=False) as writer:
        writer.write_table(pa.table(arrays, schema=schema))


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind) and any(isinstance(value, int) for value in values):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


def remote(staged: StagedSegment) -> StagedSegment:
    """The same segment as if it did not lie in a local folder."""
    return replace(staged, path=None)


def schema_of(*key: str, **columns: DataType | Kind) -> Schema:
    made = tuple(
        Column(name, kind if isinstance(kind, DataType) else DataType(kind), nullable=name not in key)
        for name, kind in columns.items()
    )
    return Schema(made, key)


ORDERS = schema_of("id", id=Kind.INT64, at=Kind.INT64, note=Kind.TEXT)
"""A small table with a key and a cursor."""


STREAM = StreamId("shop", "orders")


def orders(mode: WriteMode = WriteMode.APPEND, name: str = "orders", **changes: Any) -> TargetTable:
    table = TargetTable(name, StreamId("shop", name), mode, key=("id",), cursor=("at",))
    return replace(table, **changes)


# --- Loading in other processes ----------------------------------------------

_LOADER = """
import pickle, sys
target, table, segments, options = pickle.load(sys.stdin.buffer)
print("ready", flush=True)
sys.stdin.buffer.readline()
print(target.load(table, segments, **options), flush=True)
"""


@dataclass
class LoadProcess:
    """A process that loads when told, and not before."""

    process: subprocess.Popen[bytes]

    def wait_until_ready(self) -> None:
        assert self._line() == b"ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def result(self) -> int:
        return int(self._line())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def load_process(
    target: Target, table: TargetTable, segments: Sequence[StagedSegment], **options: Any
) -> Iterator[LoadProcess]:
    job = pickle.dumps((target, table, list(segments), options))
    with subprocess.Popen(
        [sys.executable, "-c", _LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(job)
            process.stdin.flush()
            yield LoadProcess(process)
        finally:
            process.kill()


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[list[object]]:
    """Do something over and over in a thread while the block runs; yields what it returned or raised."""
    seen: list[object] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                seen.append(work())
            except Exception as error:  # noqa: BLE001 - the test looks at what was seen, errors included
                seen.append(error)
                return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


# --- Values of every kind ------------------------------------------------------

_BC = -62_135_596_800_000_000 - 86_400_000_000 * 366  # 0001-01-01 BC: the year before the year 1
_SECOND = 1_000_000

EXTREMES: Mapping[DataType, Sequence[tuple[object, str]]] = {
    DataType(Kind.BOOL): [(True, "true"), (False, "false")],
    DataType(Kind.INT8): [(-128, "-128"), (127, "127")],
    DataType(Kind.INT16): [(-32768, "-32768"), (32767, "32767")],
    DataType(Kind.INT32): [(-(2**31), "-2147483648"), (2**31 - 1, "2147483647")],
    DataType(Kind.INT64): [(-(2**63), "-9223372036854775808"), (2**63 - 1, "9223372036854775807")],
    DataType(Kind.UINT8): [(0, "0"), (255, "255")],
    DataType(Kind.UINT16): [(0, "0"), (65535, "65535")],
    DataType(Kind.UINT32): [(0, "0"), (2**32 - 1, "4294967295")],
    DataType(Kind.UINT64): [(0, "0"), (2**63, "9223372036854775808"), (2**64 - 1, "18446744073709551615")],
    DataType(Kind.FLOAT32): [
        (0.1, "0.1"),
        (3.4028235e38, "3.4028235e+38"),
        (1e-45, "1e-45"),
        (-0.0, "-0"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
    DataType(Kind.FLOAT64): [
        (0.1, "0.1"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
        (-0.0, "-0"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
    ],
    DataType(Kind.DECIMAL, 38, 10): [
        (Decimal("9999999999999999999999999999.9999999999"), "9999999999999999999999999999.9999999999"),
        (Decimal("-0.0000000001"), "-0.0000000001"),
        (Decimal(0), "0.0000000000"),
    ],
    DataType(Kind.DECIMAL, 38, 0): [(Decimal("-" + "9" * 38), "-" + "9" * 38)],
    DataType(Kind.DECIMAL, 5, 5): [(Decimal("0.00001"), "0.00001")],
    DataType(Kind.TEXT): [
        (text, text)
        for text in (
            "",
            "NULL",
            "\\N",
            "\\.",
            "a\n\\.\nb",
            'say "no"',
            '"',
            "a,b\t;|",
            "\r\n",
            " x ",
            "Ünïcödé 🌊",
        )
    ],
    DataType(Kind.BYTES): [(b"", "\\x"), (b"\x00\xff\\\"'\n", "\\x00ff5c22270a")],
    DataType(Kind.DATE): [
        (-719_162, "0001-01-01"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "10000-01-01"),
        (-719_163, "0001-12-31 BC"),
        (-1, "1969-12-31"),
    ],
    DataType(Kind.TIME): [
        (0, "00:00:00"),
        (86_399 * _SECOND + 999_999, "23:59:59.999999"),
        (86_400 * _SECOND, "24:00:00"),
        (1, "00:00:00.000001"),
    ],
    DataType(Kind.TIMESTAMP): [
        (-62_135_596_800 * _SECOND, "0001-01-01 00:00:00"),
        (253_402_300_799 * _SECOND + 999_999, "9999-12-31 23:59:59.999999"),
        (253_402_300_800 * _SECOND, "10000-01-01 00:00:00"),
        (_BC, "0001-01-01 00:00:00 BC"),
        (-1, "1969-12-31 23:59:59.999999"),
    ],
    DataType(Kind.INSTANT): [
        (-62_135_596_800 * _SECOND, "0001-01-01 00:00:00+00"),
        (253_402_300_800 * _SECOND, "10000-01-01 00:00:00+00"),
        (1_743_296_400 * _SECOND, "2025-03-30 01:00:00+00"),
        (_BC + 1, "0001-01-01 00:00:00.000001+00 BC"),
    ],
    DataType(Kind.JSON): [
        (
            '{"b": 1,  "a": [1, 2.50, "\\"x\\""], "b": null}',
            '{"b": 1,  "a": [1, 2.50, "\\"x\\""], "b": null}',
        ),
        ("null", "null"),
    ],
    DataType(Kind.UUID): [
        ("ffffffff-ffff-ffff-ffff-ffffffffffff", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"),
    ],
}
"""Values of every declared kind, dates and times as Arrow's numbers, and the text PostgreSQL has for them."""

WIDENINGS = (
    (DataType(Kind.INT32), DataType(Kind.INT64), 2**40, str(2**40)),
    (DataType(Kind.INT16), DataType(Kind.UINT16), 65535, "65535"),
    (DataType(Kind.INT64), DataType(Kind.UINT64), 2**64 - 1, str(2**64 - 1)),
    (DataType(Kind.INT32), DataType(Kind.DECIMAL, 12, 2), Decimal("1.25"), "1.25"),
    (DataType(Kind.FLOAT32), DataType(Kind.FLOAT64), 0.1, "0.1"),
    (DataType(Kind.DECIMAL, 5, 2), DataType(Kind.DECIMAL, 9, 4), Decimal("1.2345"), "1.2345"),
    (DataType(Kind.DECIMAL, 5, 2), DataType(Kind.DECIMAL, 9, 1), Decimal("1.2"), "1.20"),
)
"""The type of a column, the type of rows that come later, one of their values, and its text."""

ODD_NAMES = (
    "select",
    "with space",
    'a "quoted" name',
    "naïve 表 🌊",
    "100 %s $1",
    "it's",
    "semi;colon",
    "-- x",
)

Version = tuple[int, int, int | None, int | None]
"""Two columns of a key and two of a cursor."""

_versions = st.tuples(
    st.integers(0, 2), st.integers(0, 1), st.none() | st.integers(0, 2), st.none() | st.integers(0, 2)
)
_runs = st.lists(
    st.lists(_versions, min_size=1, max_size=6, unique_by=lambda v: v[:2]), min_size=1, max_size=5
)


# --- The suite -----------------------------------------------------------------


class TargetContract:
    """What every target must do."""

    renderings: ClassVar[Mapping[str, str]] = {}
    """Where this target has another text for a value than `EXTREMES`."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError("give the suite an empty target")

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        folder = tmp_path / "stage"
        folder.mkdir()
        return Stage(folder)

    def read_rows(self, target: Target, name: str, columns: Sequence[str] = ()) -> list[TextRow]:
        return read_rows(target, name, columns)

    def column_names(self, target: Target, name: str) -> list[str]:
        return column_names(target, name)

    def count_beside(self, target: Target, name: str) -> int:
        """How many rows somebody else sees, at the same time, in a connection of their own."""
        return target.count(name)

    # --- creating and preparing

    def test_an_empty_target_knows_nothing(self, target: Target) -> None:
        stream = StreamId("shop", "orders")
        assert target.loaded(stream, 1, ["a"]) == frozenset()
        assert target.last_run(stream) == 0
        with pytest.raises(TargetError, match="no such table"):
            target.count("orders")

    def test_a_missing_table_is_created(self, target: Target) -> None:
        target.prepare(orders(), ORDERS)
        assert self.column_names(target, "orders") == ["id", "at", "note"]
        assert target.count("orders") == 0

    def test_a_merged_table_carries_the_run(self, target: Target) -> None:
        target.prepare(orders(WriteMode.MERGE), ORDERS)
        assert self.column_names(target, "orders") == ["id", "at", "note", RUN_COLUMN]

    def test_preparing_twice_changes_nothing(self, target: Target) -> None:
        for _ in range(2):
            target.prepare(orders(WriteMode.MERGE), ORDERS)
        assert target.action(orders(WriteMode.MERGE), ORDERS) == "merge by id into orders"

    def test_a_table_in_another_schema_is_created_with_it(self, target: Target, stage: Stage) -> None:
        table = orders(name="elsewhere.orders")
        target.prepare(table, ORDERS)
        target.load(table, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
        assert target.count("elsewhere.orders") == 1

    def test_new_columns_are_added(self, target: Target, stage: Stage) -> None:
        wider = Schema((*ORDERS.columns, Column("total", DataType(Kind.DECIMAL, 12, 2))), ("id",))
        target.prepare(orders(), ORDERS)
        target.load(orders(), [stage.segment(ORDERS, [(1, 1, "old")])], generation=1, fence=1)
        target.prepare(orders(), wider)
        target.load(orders(), [stage.segment(wider, [(2, 2, "new", Decimal("1.50"))])], generation=1, fence=1)
        assert self.read_rows(target, "orders") == [("1", "1", "old", None), ("2", "2", "new", "1.50")]

    def test_segments_of_an_older_schema_still_load(self, target: Target, stage: Stage) -> None:
        wider = Schema((*ORDERS.columns, Column("more", DataType(Kind.TEXT))), ("id",))
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, wider)
            segments = [
                stage.segment(ORDERS, [(1, 1, "old")]),
                stage.segment(wider, [(2, 2, "new", "x")]),
            ]
            assert target.load(table, segments, generation=1, fence=1) == 2
            assert self.read_rows(target, table.name) == [("1", "1", "old", None), ("2", "2", "new", "x")]

    def test_columns_are_matched_by_name_not_by_order(self, target: Target, stage: Stage) -> None:
        turned = Schema(tuple(reversed(ORDERS.columns)), ("id",))
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, ORDERS)
            target.prepare(table, turned)
            target.load(table, [stage.segment(turned, [("a", 2, 1)])], generation=1, fence=1)
            assert self.read_rows(target, table.name, ["id", "at", "note"]) == [("1", "2", "a")]

    def test_columns_that_the_rows_no_longer_have_stay_and_become_empty(
        self, target: Target, stage: Stage
    ) -> None:
        wider = Schema((*ORDERS.columns, Column("gone", DataType(Kind.TEXT))), ("id",))
        old, new = [(1, 1, "a", "x"), (2, 1, "b", "y")], [(1, 2, "a2"), (3, 2, "c")]
        kept = {
            WriteMode.APPEND: [("1", "1", "a", "x"), ("2", "1", "b", "y")],
            WriteMode.MERGE: [("2", "1", "b", "y")],
            WriteMode.REPLACE: [],
        }
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, wider)
            target.load(table, [stage.segment(wider, old)], generation=1, fence=1)
            target.prepare(table, ORDERS)
            target.load(table, [stage.segment(ORDERS, new, run=2)], generation=1, fence=1)
            expected = {*kept[mode], ("1", "2", "a2", None), ("3", "2", "c", None)}
            assert set(self.read_rows(target, table.name, ["id", "at", "note", "gone"])) == expected

    @pytest.mark.parametrize("widening", WIDENINGS, ids=lambda w: f"{w[0]} to {w[1]}")
    def test_columns_are_widened(
        self, target: Target, stage: Stage, widening: tuple[DataType, DataType, object, str]
    ) -> None:
        before, after, value, text = widening
        narrow, wide = schema_of(id=Kind.INT64, v=before), schema_of(id=Kind.INT64, v=after)
        target.prepare(orders(), narrow)
        target.load(orders(), [stage.segment(narrow, [(1, None)])], generation=1, fence=1)
        assert "widen v of orders" in target.action(orders(), wide)
        target.prepare(orders(), wide)
        target.load(orders(), [stage.segment(wide, [(2, value)])], generation=1, fence=1)
        assert self.read_rows(target, "orders") == [("1", None), ("2", text)]

    def test_narrower_rows_need_no_change(self, target: Target, stage: Stage) -> None:
        target.prepare(orders(), schema_of(id=Kind.INT64, v=Kind.FLOAT64))
        narrow = schema_of(id=Kind.INT32, v=Kind.FLOAT32)
        assert target.action(orders(), narrow) == "append to orders"
        target.load(orders(), [stage.segment(narrow, [(1, 0.5), (2, 0.1)])], generation=1, fence=1)
        assert self.read_rows(target, "orders") == [("1", "0.5"), ("2", "0.10000000149011612")]

    def test_an_incompatible_table_is_refused_and_left_alone(self, target: Target) -> None:
        target.prepare(orders(), ORDERS)
        other = schema_of(id=Kind.TEXT, at=Kind.INT64, note=Kind.INT32, extra=Kind.TEXT)
        with pytest.raises(IncompatibleTable) as caught:
            target.prepare(orders(), other)
        assert "column id: the rows bring text" in str(caught.value)
        assert "column note: the rows bring int32" in str(caught.value)
        assert self.column_names(target, "orders") == ["id", "at", "note"]
        with pytest.raises(IncompatibleTable):
            target.action(orders(), other)

    def test_rows_that_the_table_was_not_prepared_for_are_refused(self, target: Target, stage: Stage) -> None:
        target.prepare(orders(), ORDERS)
        wider = Schema((*ORDERS.columns, Column("more", DataType(Kind.TEXT))))
        with pytest.raises(IncompatibleTable, match="add column more"):
            target.load(orders(), [stage.segment(wider, [(1, 1, "a", "b")])], generation=1, fence=1)
        assert target.count("orders") == 0

    def test_a_dry_run_says_what_would_happen_and_does_nothing(self, target: Target) -> None:
        merged = orders(WriteMode.MERGE)
        assert target.action(merged, ORDERS) == "create table orders, then merge by id"
        with pytest.raises(TargetError, match="no such table"):
            target.count("orders")
        target.prepare(merged, ORDERS)
        wider = Schema((*ORDERS.columns, Column("more", DataType(Kind.TEXT))), ("id",))
        assert target.action(merged, wider) == "add column more to orders, then merge by id"
        assert target.action(merged, ORDERS) == "merge by id into orders"
        assert target.action(orders(WriteMode.REPLACE), ORDERS) == "replace all rows of orders"
        assert self.column_names(target, "orders") == ["id", "at", "note", RUN_COLUMN]

    def test_odd_names_are_only_names(self, target: Target, stage: Stage) -> None:
        columns = (Column("id", DataType(Kind.INT64)), *(Column(n, DataType(Kind.TEXT)) for n in ODD_NAMES))
        schema = Schema(columns, ("id", ODD_NAMES[0]))
        row = [1, *(f"value of {name}" for name in ODD_NAMES)]
        for mode, name in zip(WriteMode, ("order", 'the "best" table; -- %s', "表 🌊"), strict=True):
            stream = StreamId("it's a pipe;line", f'"{name}')
            table = TargetTable(name, stream, mode, ("id", ODD_NAMES[0]), (ODD_NAMES[2], ODD_NAMES[3]))
            target.prepare(table, schema)
            for run in (1, 2):
                target.load(table, [stage.segment(schema, [row], run=run)], generation=1, fence=1)
            expected = tuple(str(value) for value in row)
            assert self.read_rows(target, name) == [expected] * (2 if mode is WriteMode.APPEND else 1)
            assert target.last_run(stream) == 2

    def test_columns_may_be_called_otherwise_than_in_the_files(self, target: Target, stage: Stage) -> None:
        """Files carry the source's names; what they are here was decided elsewhere."""
        renamed = Schema(
            tuple(replace(c, name=f"{c.name} here") for c in reversed(ORDERS.columns)), ("id here",)
        )
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}", key=("id here",), cursor=("at here",))
            target.prepare(table, renamed)
            for run, make in ((1, remote), (2, lambda staged: staged)):
                staged = stage.segment(ORDERS, [(1, run, f"run {run}")], run=run)
                placed = replace(make(staged), schema=renamed, names=tuple(reversed(ORDERS.names)))
                assert target.load(table, [placed], generation=1, fence=1) == 1
            rows = self.read_rows(target, table.name, ["id here", "at here", "note here"])
            first = [("1", "1", "run 1")] if mode is WriteMode.APPEND else []
            assert rows == [*first, ("1", "2", "run 2")]
            assert set(target.columns(table.name)) - {RUN_COLUMN} == set(renamed.names)
        assert target.columns("nowhere") == ()

    def test_five_hundred_columns(self, target: Target, stage: Stage) -> None:
        names = [f"column {number}" for number in range(499)]
        schema = Schema(
            (Column("id", DataType(Kind.INT64)), *(Column(n, DataType(Kind.TEXT)) for n in names)), ("id",)
        )
        rows = [[number, *("x" for _ in names)] for number in range(20)]
        for mode in WriteMode:
            table = TargetTable(f"wide_{mode}", StreamId("shop", f"wide_{mode}"), mode, ("id",))
            target.prepare(table, schema)
            assert target.load(table, [stage.segment(schema, rows)], generation=1, fence=1) == 20
            assert target.count(table.name) == 20

    # --- values

    @pytest.mark.parametrize("kind", EXTREMES, ids=str)
    def test_values_of_every_kind_arrive_unchanged(
        self, target: Target, stage: Stage, kind: DataType
    ) -> None:
        schema = schema_of(place=Kind.TEXT, number=Kind.INT64, v=kind)
        values = [*EXTREMES[kind], (None, None)]
        file, distant = (
            stage.segment(schema, [(place, number, value) for number, (value, _) in enumerate(values)])
            for place in ("file", "remote")
        )
        target.prepare(orders(), schema)
        target.load(orders(), [file, remote(distant)], generation=1, fence=1)
        texts = [None if text is None else self.renderings.get(text, text) for _, text in values]
        expected = {(place, str(n), text) for place in ("file", "remote") for n, text in enumerate(texts)}
        assert set(self.read_rows(target, "orders")) == expected

    def test_rows_that_are_all_null_arrive(self, target: Target, stage: Stage) -> None:
        schema = schema_of(v=Kind.TEXT)
        target.prepare(orders(), schema)
        staged = stage.segment(schema, [(None,), ("",), (None,)])
        assert target.load(orders(), [staged], generation=1, fence=1) == 3
        assert self.read_rows(target, "orders") == [(None,), (None,), ("",)]

    # --- append and the ledger

    def test_appended_rows_arrive_once_however_often_they_are_loaded(
        self, target: Target, stage: Stage
    ) -> None:
        target.prepare(orders(), ORDERS)
        segments = [stage.segment(ORDERS, [(1, 1, "a")]), stage.segment(ORDERS, [(2, 2, "b")])]
        assert target.load(orders(), segments[:1], generation=1, fence=1) == 1
        assert target.load(orders(), segments, generation=1, fence=1) == 1
        assert target.load(orders(), [*segments, *segments], generation=1, fence=1) == 0
        assert self.read_rows(target, "orders") == [("1", "1", "a"), ("2", "2", "b")]

    def test_a_segment_given_twice_in_one_load_arrives_once(self, target: Target, stage: Stage) -> None:
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, ORDERS)
            staged = stage.segment(ORDERS, [(1, 1, "a")])
            assert target.load(table, [staged, staged], generation=1, fence=1) == 1
            assert target.count(table.name) == 1

    def test_loading_nothing_is_nothing(self, target: Target, stage: Stage) -> None:
        target.prepare(orders(), ORDERS)
        assert target.load(orders(), [], generation=1, fence=1) == 0
        assert target.load(orders(), [stage.segment(ORDERS, [])], generation=1, fence=1) == 0

    def test_a_raised_generation_loads_again(self, target: Target, stage: Stage) -> None:
        target.prepare(orders(), ORDERS)
        staged = [stage.segment(ORDERS, [(1, 1, "a")])]
        for generation in (1, 2, 2):
            target.load(orders(), staged, generation=generation, fence=1)
        assert target.count("orders") == 2

    def test_the_ledger_says_what_is_loaded(self, target: Target, stage: Stage) -> None:
        target.prepare(orders(), ORDERS)
        staged = [stage.segment(ORDERS, [(n, n, "a")], run=n) for n in (3, 7, 5)]
        keys = [item.segment.key for item in staged]
        target.load(orders(), staged[:2], generation=4, fence=1)
        stream = orders().stream
        assert target.loaded(stream, 4, keys) == frozenset(keys[:2])
        assert target.loaded(stream, 3, keys) == frozenset()
        assert target.loaded(StreamId("other", stream.name), 4, keys) == frozenset()
        assert target.loaded(stream, 4, []) == frozenset()
        assert target.last_run(stream) == 7
        assert target.last_run(StreamId("shop", "other")) == 0

    def test_two_streams_with_equal_segment_keys_do_not_disturb_each_other(
        self, target: Target, stage: Stage
    ) -> None:
        for name in ("one", "two"):
            table = orders(name=name)
            target.prepare(table, ORDERS)
            assert (
                target.load(table, [stage.segment(ORDERS, [(1, 1, name)], key="k")], generation=1, fence=1)
                == 1
            )

    def test_a_failing_segment_takes_the_whole_load_with_it(self, target: Target, stage: Stage) -> None:
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, ORDERS)
            good, bad = stage.segment(ORDERS, [(1, 1, "a")]), stage.segment(ORDERS, [(2, 2, "b")])
            assert bad.path is not None
            content = bad.path.read_bytes()
            bad.path.write_bytes(content[:-20])
            with pytest.raises(StagingError):
                target.load(table, [good, bad], generation=1, fence=1)
            assert target.count(table.name) == 0
            assert target.loaded(table.stream, 1, [good.segment.key]) == frozenset()
            bad.path.write_bytes(content)
            assert target.load(table, [good, bad], generation=1, fence=1) == 2

    def test_a_file_with_another_number_of_rows_than_its_receipt_is_refused(
        self, target: Target, stage: Stage
    ) -> None:
        target.prepare(orders(), ORDERS)
        staged = stage.segment(ORDERS, [(1, 1, "a")])
        wrong = replace(staged, segment=replace(staged.segment, rows=2))
        for item in (wrong, remote(wrong)):
            with pytest.raises(StagingError, match="1 rows, its receipt says 2"):
                target.load(orders(), [item], generation=1, fence=1)
        assert target.count("orders") == 0

    def test_a_segment_that_is_not_what_was_written_is_refused(self, target: Target, stage: Stage) -> None:
        """It reads well and has as many rows: only its digest tells that it is another."""
        target.prepare(orders(), ORDERS)
        good, other = stage.segment(ORDERS, [(1, 1, "a")]), stage.segment(ORDERS, [(1, 1, "b")])
        for exchanged in (replace(remote(good), open=other.open), replace(other, segment=good.segment)):
            with pytest.raises(StagingError, match="not what was written"):
                target.load(orders(), [exchanged], generation=1, fence=1)
            assert target.count("orders") == 0
        assert target.load(orders(), [remote(good)], generation=1, fence=1) == 1

    def test_a_load_that_was_fenced_off_is_refused_and_a_later_lease_loads(
        self, target: Target, stage: Stage
    ) -> None:
        """A run stands still, its lease ends, somebody moves the mark by hand, the run wakes up."""
        staged = [stage.segment(ORDERS, [(1, 1, "a")])]
        target.prepare(orders(), ORDERS)
        target.fence_off(STREAM, 7)
        for late in (1, 6):
            with pytest.raises(LeaseLost, match="moved by hand"):
                target.load(orders(), staged, generation=1, fence=late)
        assert target.loaded(STREAM, 1, [staged[0].segment.key]) == frozenset()
        assert target.load(orders(), staged, generation=1, fence=7) == 1

    def test_a_fence_is_never_lowered_and_holds_for_its_stream_alone(
        self, target: Target, stage: Stage
    ) -> None:
        other = orders(stream=StreamId("shop", "others"))
        target.fence_off(STREAM, 7)
        target.fence_off(STREAM, 3)
        target.prepare(orders(), ORDERS)
        with pytest.raises(LeaseLost):
            target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=5)
        assert target.load(other, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1

    def test_fencing_off_waits_for_a_load_that_is_under_way(self, target: Target, stage: Stage) -> None:
        """What it says afterwards is final: either the load is in the ledger, or it never will be."""
        segments = [stage.segment(ORDERS, [(n, 1, "x") for n in range(2_000)]) for _ in range(3)]
        target.prepare(orders(), ORDERS)
        with load_process(target, orders(), segments, generation=1, fence=1) as loading:
            loading.wait_until_ready()
            loading.go()
            target.fence_off(STREAM, 2)
            held = target.loaded(STREAM, 1, [item.segment.key for item in segments])
            loading.process.wait()
        assert target.loaded(STREAM, 1, [item.segment.key for item in segments]) == held
        assert len(held) in (0, len(segments))

    def test_rows_already_there_are_left_out_when_asked(self, target: Target, stage: Stage) -> None:
        table = orders(key=("id", "at"))
        target.prepare(table, ORDERS)
        target.load(table, [stage.segment(ORDERS, [(1, 1, "a"), (2, None, "b")])], generation=1, fence=1)
        overlapping = [
            stage.segment(ORDERS, [(1, 1, "again"), (1, 2, "next"), (2, None, "again")], run=2),
            stage.segment(ORDERS, [(1, 2, "next"), (3, 3, "c"), (3, None, "d")], run=2),
        ]
        assert target.load(table, overlapping, generation=1, fence=1, skip_existing=True) == 3
        assert target.load(table, overlapping, generation=1, fence=1, skip_existing=True) == 0
        assert self.read_rows(target, "orders") == [
            ("1", "1", "a"),
            ("1", "2", "next"),
            ("2", None, "b"),
            ("3", None, "d"),
            ("3", "3", "c"),
        ]

    # --- merge

    def test_rows_of_certain_keys_and_versions_are_counted(self, target: Target, stage: Stage) -> None:
        kinds = {"k": Kind.TEXT, "n": Kind.INT64, "t": Kind.TIMESTAMP, "i": Kind.INSTANT, "d": Kind.DATE}
        schema = schema_of(**kinds)
        moment = datetime(2025, 8, 1, 12, 30, 0, 123456)  # noqa: DTZ001 - a reading without a zone
        rows = [(f"it's {n}", n, moment, moment.replace(tzinfo=UTC), moment.date()) for n in range(3)]
        target.prepare(orders(), schema)
        target.load(orders(), [stage.segment(schema, rows)], generation=1, fence=1)
        other = ("it's 1", 1, moment.replace(microsecond=0), *rows[1][3:])
        assert target.present("orders", schema.names, [*rows[:2], other]) == 2
        assert target.present("orders", ["n"], [(0,), (2,), (7,)]) == 2
        assert target.present("orders", ["n"], []) == 0

    def test_rows_are_counted_by_keys_of_every_kind_and_in_any_number(
        self, target: Target, stage: Stage
    ) -> None:
        kinds: dict[str, DataType | Kind] = {"u": Kind.UUID, "big": Kind.UINT64, "x": Kind.BYTES}
        kinds["m"] = DataType(Kind.DECIMAL, 12, 2)
        schema = schema_of(**kinds)
        rows = [
            (f"00000000-0000-0000-0000-{n:012}", 2**64 - 1 - n, n.to_bytes(16, "big"), Decimal(n) / 4)
            for n in range(2_500)
        ]
        target.prepare(orders(), schema)
        target.load(orders(), [stage.segment(schema, rows)], generation=1, fence=1)
        for place, name in enumerate(schema.names):
            asked = [(row[place],) for row in rows[:3]]
            assert target.present("orders", [name], [*asked, asked[0]]) == 3, name
        assert target.present("orders", ["u", "big"], [row[:2] for row in rows]) == 2_500

    def test_merging_updates_and_inserts(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.MERGE)
        target.prepare(table, ORDERS)
        assert (
            target.load(table, [stage.segment(ORDERS, [(1, 1, "a"), (2, 1, "b")])], generation=1, fence=1)
            == 2
        )
        newer = stage.segment(ORDERS, [(2, 2, "b2"), (3, 2, "c")], run=2)
        assert target.load(table, [newer], generation=1, fence=1) == 2
        assert self.read_rows(target, "orders") == [("1", "1", "a"), ("2", "2", "b2"), ("3", "2", "c")]

    def test_an_older_version_that_arrives_late_loses(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.MERGE)
        target.prepare(table, ORDERS)
        new, old = (
            stage.segment(ORDERS, [(1, 9, "new")], run=2),
            stage.segment(ORDERS, [(1, 5, "old")], run=1),
        )
        target.load(table, [new], generation=1, fence=1)
        target.load(table, [old], generation=1, fence=1)
        assert self.read_rows(target, "orders") == [("1", "9", "new")]

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_of_equal_cursors_the_later_run_wins(
        self, target: Target, stage: Stage, order: tuple[int, int]
    ) -> None:
        table = orders(WriteMode.MERGE)
        target.prepare(table, ORDERS)
        staged = [stage.segment(ORDERS, [(1, 5, f"run {run}")], run=run) for run in (1, 2)]
        for position in order:
            target.load(table, [staged[position]], generation=1, fence=1)
        assert self.read_rows(target, "orders") == [("1", "5", "run 2")]

    def test_a_table_without_a_cursor_is_merged_by_run(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.MERGE, cursor=())
        target.prepare(table, ORDERS)
        for run in (2, 1):
            target.load(
                table, [stage.segment(ORDERS, [(1, None, f"run {run}")], run=run)], generation=1, fence=1
            )
        assert self.read_rows(target, "orders") == [("1", None, "run 2")]

    def test_rows_without_a_key_stop_a_merge(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.MERGE)
        target.prepare(table, ORDERS)
        nameless = Schema(tuple(replace(column, nullable=True) for column in ORDERS.columns))
        staged = stage.segment(nameless, [(None, 1, "a"), (None, 2, "b"), (1, 1, "c")])
        with pytest.raises(TargetError, match="2 rows have no value in id"):
            target.load(table, [staged], generation=1, fence=1)
        assert target.count("orders") == 0
        assert target.loaded(table.stream, 1, [staged.segment.key]) == frozenset()

    @given(runs=_runs, seed=st.integers(0, 1000))
    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    def test_the_newest_version_wins_in_any_order(
        self, target: Target, stage: Stage, runs: list[list[Version]], seed: int
    ) -> None:
        schema = schema_of("a", "b", a=Kind.INT32, b=Kind.INT32, c=Kind.INT32, d=Kind.INT32, v=Kind.TEXT)
        name = f"merged_{next(stage.numbers)}"
        table = TargetTable(name, StreamId("shop", name), WriteMode.MERGE, ("a", "b"), ("c", "d"))
        target.prepare(table, schema)
        for group in _shuffled(stage, schema, runs, random.Random(seed)):
            target.load(table, group, generation=1, fence=1)
        assert self.read_rows(target, name) == _newest_versions(runs)

    # --- replace

    def test_a_snapshot_replaces_all_rows(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        target.load(table, [stage.segment(ORDERS, [(1, 1, "a"), (2, 1, "b")])], generation=1, fence=1)
        parts = [stage.segment(ORDERS, [(n, 2, "c")], run=2) for n in (3, 4)]
        assert target.load(table, parts, generation=1, fence=1) == 2
        assert target.load(table, parts, generation=1, fence=1) == 0
        assert self.read_rows(target, "orders") == [("3", "2", "c"), ("4", "2", "c")]
        assert self.column_names(target, "orders") == ["id", "at", "note"]

    def test_an_older_snapshot_never_replaces_a_newer_one(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        old, new = (stage.segment(ORDERS, [(run, run, "x")], run=run) for run in (1, 2))
        target.load(table, [new], generation=1, fence=1)
        assert target.load(table, [old], generation=1, fence=1) == 0
        assert self.read_rows(target, "orders") == [("2", "2", "x")]
        assert target.loaded(table.stream, 1, [old.segment.key]) == {old.segment.key}

    def test_of_several_snapshots_only_the_newest_is_loaded(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        staged = [stage.segment(ORDERS, [(run, run, "x")], run=run) for run in (3, 5, 4)]
        assert target.load(table, staged, generation=1, fence=1) == 1
        assert self.read_rows(target, "orders") == [("5", "5", "x")]
        keys = [item.segment.key for item in staged]
        assert target.loaded(table.stream, 1, keys) == frozenset(keys)

    def test_an_older_snapshot_can_be_brought_back_under_a_new_generation(
        self, target: Target, stage: Stage
    ) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        staged = {run: stage.segment(ORDERS, [(run, run, "x")], run=run) for run in (1, 2, 3)}
        for run, generation in ((1, 1), (2, 1), (1, 2)):
            assert target.load(table, [staged[run]], generation=generation, fence=1) == 1
        assert self.read_rows(target, "orders") == [("1", "1", "x")]
        assert target.load(table, [staged[3]], generation=1, fence=1) == 1

    def test_an_empty_snapshot_empties_the_table(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        full, empty = stage.segment(ORDERS, [(1, 1, "a")], run=1), stage.segment(ORDERS, [], run=2)
        target.load(table, [full], generation=1, fence=1)
        assert target.load(table, [empty], generation=1, fence=1) == 0
        assert target.count("orders") == 0
        assert target.last_run(table.stream) == 2
        assert target.load(table, [full], generation=1, fence=1) == 0
        assert target.count("orders") == 0

    def test_readers_never_see_an_empty_or_missing_table(self, target: Target, stage: Stage) -> None:
        table = orders(WriteMode.REPLACE)
        target.prepare(table, ORDERS)
        size = 5_000
        snapshots = [
            stage.segment(ORDERS, [(n, run, "x") for n in range(size)], run=run) for run in range(1, 6)
        ]
        target.load(table, snapshots[:1], generation=1, fence=1)
        with beside(lambda: self.count_beside(target, "orders")) as seen:
            for snapshot in snapshots[1:]:
                target.load(table, [snapshot], generation=1, fence=1)
        assert set(seen) == {size}

    # --- several at once, and deaths

    def test_of_four_processes_that_load_the_same_exactly_one_does(
        self, target: Target, stage: Stage
    ) -> None:
        for mode in (WriteMode.APPEND, WriteMode.MERGE):
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, ORDERS)
            segments = [
                stage.segment(ORDERS, [(n, n, "x") for n in range(part * 1000, part * 1000 + 1000)])
                for part in range(4)
            ]
            assert race(target, table, segments, 4) == [0, 0, 0, 4000]
            assert target.count(table.name) == 4000

    def test_threads_can_load_different_tables(self, target: Target, stage: Stage) -> None:
        tables = [orders(name=f"t{number}") for number in range(3)]
        segments = [stage.segment(ORDERS, [(1, 1, "a")]) for _ in tables]

        def load(table: TargetTable, segment: StagedSegment) -> None:
            copy = pickle.loads(pickle.dumps(target))
            copy.prepare(table, ORDERS)
            copy.load(table, [segment], generation=1, fence=1)

        jobs = list(zip(tables, segments, strict=True))
        threads = [threading.Thread(target=load, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [target.count(table.name) for table in tables] == [1, 1, 1]

    @pytest.mark.parametrize("mode", WriteMode)
    def test_a_process_killed_while_it_loads_leaves_all_or_nothing(
        self, target: Target, stage: Stage, mode: WriteMode
    ) -> None:
        rows = 20_000
        whole = orders(mode, name="measured")
        segments = [
            stage.segment(ORDERS, [(n * 4 + part, n, "x" * 20) for n in range(rows // 4)])
            for part in range(4)
        ]
        target.prepare(whole, ORDERS)
        began = time.monotonic()
        target.load(whole, segments, generation=1, fence=1)
        duration = time.monotonic() - began
        chance = random.Random(mode)
        for number in range(3):
            table = orders(mode, name=f"killed_{number}")
            target.prepare(table, ORDERS)
            with load_process(target, table, segments, generation=1, fence=1) as loader:
                loader.wait_until_ready()
                loader.go()
                time.sleep(chance.uniform(0, 1.3 * duration))
                loader.kill()
            landed = target.load(table, segments, generation=1, fence=1)
            assert landed in (0, rows)
            assert target.count(table.name) == rows
            assert target.load(table, segments, generation=1, fence=1) == 0


def _shuffled(
    stage: Stage, schema: Schema, runs: list[list[Version]], chance: random.Random
) -> list[list[StagedSegment]]:
    """Segments of all runs in any order, in loads of any size."""
    segments = []
    for run, versions in enumerate(runs, start=1):
        rows = [(*version, f"run {run}") for version in versions]
        cut = chance.randint(0, len(rows))
        segments += [stage.segment(schema, part, run=run) for part in (rows[:cut], rows[cut:]) if part]
    chance.shuffle(segments)
    groups: list[list[StagedSegment]] = [[]]
    for segment in segments:
        if groups[-1] and chance.random() < 0.5:
            groups.append([])
        groups[-1].append(segment)
    return groups


def _newest_versions(runs: list[list[Version]]) -> list[TextRow]:
    """The model: of each key the version with the largest (cursor, run), where a missing cursor is least."""

    def age(entry: tuple[Version, int]) -> tuple[int, int, int]:
        (_, _, first, second), run = entry
        return (-1 if first is None else first, -1 if second is None else second, run)

    best: dict[tuple[int, int], tuple[Version, int]] = {}
    for run, versions in enumerate(runs, start=1):
        for version in versions:
            entry = (version, run)
            best[version[:2]] = max(best.get(version[:2], entry), entry, key=age)
    rows = [
        (*(None if value is None else str(value) for value in version), f"run {run}")
        for version, run in best.values()
    ]
    return sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])


def race(target: Target, table: TargetTable, segments: Sequence[StagedSegment], runners: int) -> list[int]:
    """What each of several processes says it loaded, when all start at the same moment."""
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(load_process(target, table, segments, generation=1, fence=1))
            for _ in range(runners)
        ]
        for loader in loaders:
            loader.wait_until_ready()
        for loader in loaders:
            loader.go()
        return sorted(loader.result() for loader in loaders)
