"""Delta tables as a target."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.servers import S3Server
from tidegate import delta_log
from tidegate.core.errors import IncompatibleTable, LeaseLost, OutcomeUnknown, TargetError, TidegateError
from tidegate.core.names import RUN_COLUMN
from tidegate.core.strategies import FileLayout, WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.core.watermark import StreamId
from tidegate.targets import delta_files, delta_loading
from tidegate.targets.contract import LEDGER, StagedSegment, Target
from tidegate.targets.ddl import quote
from tidegate.targets.delta import DeltaTarget
from tidegate.targets.delta_files import data_files
from tidegate.targets.delta_ledger import Entry
from tidegate.targets.opening import open_target
from tidegate.testing.targets import (
    ORDERS,
    STREAM,
    Stage,
    TargetContract,
    TextRow,
    orders,
    race,
    remote,
    schema_of,
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


@pytest.fixture
def target(lake: Path) -> DeltaTarget:
    return DeltaTarget(lake)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    folder = tmp_path / "stage"
    folder.mkdir()
    return Stage(folder)


def rows_of(target: Target, name: str) -> pa.Table:
    """What delta-rs reads, through its own engine."""
    assert isinstance(target, DeltaTarget)
    table = target.opened(name)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())


def text_rows(rows: pa.Table, columns: Sequence[str] = ()) -> list[TextRow]:
    """The rows in DuckDB's words."""
    names = columns or [name for name in rows.schema.names if name != RUN_COLUMN]
    values = ", ".join(f"CAST({quote(column)} AS text)" for column in names)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        found = connection.execute(f"SELECT {values} FROM rows").fetchall()
    return sorted(found, key=lambda row: [(value is not None, value or "") for value in row])


class TestContract(TargetContract):
    renderings: ClassVar[Mapping[str, str]] = {
        "-0": "-0.0",
        "0.00001": ".00001",
        "NaN": "nan",
        "Infinity": "inf",
        "-Infinity": "-inf",
        "\\x": "",
        "\\x00ff5c22270a": "\\x00\\xFF\\x5C\\x22\\x27\\x0A",
        "0001-12-31 BC": "0001-12-31 (BC)",
        "0001-01-01 00:00:00 BC": "0001-01-01 (BC) 00:00:00",
        "0001-01-01 00:00:00.000001+00 BC": "0001-01-01 (BC) 00:00:00.000001+00",
    }

    @pytest.fixture
    def target(self, lake: Path) -> Target:
        return DeltaTarget(lake)

    def read_rows(self, target: Target, name: str, columns: Sequence[str] = ()) -> list[TextRow]:
        return text_rows(rows_of(target, name), columns)

    def column_names(self, target: Target, name: str) -> list[str]:
        return list(target.columns(name))


# --- Exactly once --------------------------------------------------------------


def transactions(lake: Path, table: str = "orders") -> list[tuple[str, int]]:
    """What the table's log has recorded of applications, in the order of its versions."""
    lines = [
        json.loads(line)
        for commit in sorted((lake / table / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    return [(line["txn"]["appId"], line["txn"]["version"]) for line in lines if "txn" in line]


def test_a_load_that_was_begun_and_never_committed_means_nothing(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    """The process died between the two: what it wrote down is not on the chain."""
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")], run=9)]
    target.ledger.begin(STREAM, "orders", 1, [Entry(staged[0], 1)], previous=0)
    assert target.loaded(STREAM, 1, [staged[0].segment.key]) == frozenset()
    assert target.last_run(STREAM) == 0
    assert target.load(orders(), staged, generation=1, fence=1) == 1
    target.ledger.begin(STREAM, "orders", 2, [Entry(staged[0], 1)], previous=transactions(lake)[-1][1])
    assert target.loaded(STREAM, 2, [staged[0].segment.key]) == frozenset()
    assert target.last_run(STREAM) == 9


VICTIM = """
import os, pickle, signal, sys
from tidegate.targets import delta_loading
from tidegate.targets.delta_ledger import Ledger

target, table, segments, moment = pickle.load(sys.stdin.buffer)
commit, begin = delta_loading.commit, Ledger.begin

def dying(step, work):
    def wrapped(*args, **options):
        if moment == f"before {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        found = work(*args, **options)
        if moment == f"after {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return wrapped

delta_loading.commit, Ledger.begin = dying("the commit", commit), dying("writing it down", begin)
target.load(table, segments, generation=1, fence=1)
"""


@pytest.mark.parametrize(
    ("moment", "mode"),
    [
        ("before writing it down", WriteMode.APPEND),
        ("before the commit", WriteMode.MERGE),
        ("before the commit", WriteMode.REPLACE),
        ("after the commit", WriteMode.APPEND),
        ("after the commit", WriteMode.MERGE),
        ("after the commit", WriteMode.REPLACE),
    ],
)
def test_a_process_killed_at_any_step_has_loaded_all_or_nothing_and_the_ledger_says_which(
    target: DeltaTarget, stage: Stage, moment: str, mode: WriteMode
) -> None:
    table, landed = orders(mode), moment == "after the commit"
    target.prepare(table, ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")]), stage.segment(ORDERS, [(2, 1, "b")])]
    keys = frozenset(item.segment.key for item in staged)
    job = pickle.dumps((target, table, staged, moment))
    died = subprocess.run([sys.executable, "-c", VICTIM], input=job, check=False)
    assert died.returncode == -signal.SIGKILL
    assert target.loaded(STREAM, 1, list(keys)) == (keys if landed else frozenset())
    assert target.load(table, staged, generation=1, fence=1) == (0 if landed else 2)
    assert text_rows(rows_of(target, "orders")) == [("1", "1", "a"), ("2", "1", "b")]


def test_a_commit_whose_answer_is_lost_is_found_in_the_log(
    target: DeltaTarget, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = delta_loading.commit

    def deaf(*args: Any, **options: Any) -> None:
        real(*args, **options)
        raise OSError("the line broke")

    monkeypatch.setattr(delta_loading, "commit", deaf)
    for mode in WriteMode:
        table = orders(mode, name=f"t_{mode}")
        target.prepare(table, ORDERS)
        staged = [stage.segment(ORDERS, [(1, 1, "a")])]
        assert target.load(table, staged, generation=1, fence=1) == 1
        assert target.load(table, staged, generation=1, fence=1) == 0
        assert target.count(table.name) == 1


def test_a_commit_that_may_still_land_is_an_unknown_outcome_and_keeps_its_files(
    target: DeltaTarget, stage: Stage, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")])]
    late: list[Callable[[], None]] = []

    def slow(*args: Any, **options: Any) -> None:
        late.append(partial(real, *args, **options))
        raise OSError("timed out")

    real = delta_loading.commit
    monkeypatch.setattr(delta_loading, "commit", slow)
    with pytest.raises(OutcomeUnknown):
        target.load(orders(), staged, generation=1, fence=1)
    monkeypatch.undo()
    assert target.loaded(STREAM, 1, [staged[0].segment.key]) == frozenset()
    late[0]()  # it was on its way all the time
    assert target.loaded(STREAM, 1, [staged[0].segment.key]) == {staged[0].segment.key}
    assert target.load(orders(), staged, generation=1, fence=1) == 0
    assert text_rows(rows_of(target, "orders")) == [("1", "1", "a")]


def test_the_log_of_a_table_remembers_one_number_for_each_stream(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    """However many segments there are: numbers for each of them would stay in every checkpoint for ever."""
    other = orders(stream=StreamId("shop", "others"))
    target.prepare(orders(), ORDERS)
    for number in range(6):
        staged = [stage.segment(ORDERS, [(number, n, "x")]) for n in range(3)]
        target.load(other if number % 2 else orders(), staged, generation=1, fence=1)
    found = transactions(lake)
    assert len(found) == 6
    assert len({name for name, _ in found}) == 2
    for stream in {name for name, _ in found}:
        numbers = [number for name, number in found if name == stream]
        assert numbers == sorted(set(numbers))


def test_the_ledger_stays_short_to_read_and_forgets_nothing(
    target: DeltaTarget, stage: Stage, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_MANY_FILES", 6)
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(number, 1, "x")]) for number in range(12)]
    for item in staged:
        target.load(orders(), [item], generation=1, fence=1)
    assert len(DeltaTable(lake / LEDGER).file_uris()) < 8
    keys = [item.segment.key for item in staged]
    assert target.loaded(STREAM, 1, keys) == frozenset(keys)
    assert target.load(orders(), staged, generation=1, fence=1) == 0


def test_a_stream_that_moves_to_another_table_still_knows_what_it_has_loaded(
    target: DeltaTarget, stage: Stage
) -> None:
    staged = [stage.segment(ORDERS, [(1, 1, "a")], run=4)]
    elsewhere = orders(name="orders_2", stream=STREAM)
    for table in (orders(), elsewhere):
        target.prepare(table, ORDERS)
    target.load(orders(), staged, generation=1, fence=1)
    assert target.load(elsewhere, staged, generation=1, fence=1) == 0
    assert target.last_run(STREAM) == 4


def test_a_table_whose_ledger_is_gone_is_not_loaded(target: DeltaTarget, stage: Stage, lake: Path) -> None:
    """It cannot be known what the table holds, and guessing would double rows."""
    target.prepare(orders(), ORDERS)
    target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    shutil.rmtree(lake / LEDGER)
    target.prepare(orders(), ORDERS)
    with pytest.raises(TargetError, match=f"`{LEDGER}` beside it knows nothing"):
        target.load(orders(), [stage.segment(ORDERS, [(2, 1, "b")])], generation=1, fence=1)
    assert target.count("orders") == 1


def test_a_damaged_file_of_a_table_is_an_error_in_words(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    [file] = (lake / "orders").glob("*.parquet")
    content = file.read_bytes()
    newer = [stage.segment(ORDERS, [(1, 2, "b")], run=2)]
    file.write_bytes(content[:100])
    with pytest.raises(TargetError, match="a file of the table cannot be understood"):
        target.load(table, newer, generation=1, fence=1)
    file.unlink()
    with pytest.raises(TargetError, match="files of the table cannot be read or written"):
        target.load(table, newer, generation=1, fence=1)
    file.write_bytes(content)
    assert target.load(table, newer, generation=1, fence=1) == 1


def test_digits_in_a_path_are_not_taken_for_the_answer_of_a_server(tmp_path: Path, stage: Stage) -> None:
    target, table = DeltaTarget(tmp_path / "4403-403"), orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    [file] = (tmp_path / "4403-403" / "orders").glob("*.parquet")
    file.unlink()
    with pytest.raises(TargetError, match="files of the table cannot be read or written"):
        target.load(table, [stage.segment(ORDERS, [(1, 2, "b")], run=2)], generation=1, fence=1)


def test_nothing_of_a_load_that_failed_stays_behind(target: DeltaTarget, stage: Stage, lake: Path) -> None:
    target.prepare(orders(), ORDERS)
    target.fence_off(STREAM, 7)
    with pytest.raises(LeaseLost):
        target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=6)
    assert list((lake / "orders").glob("*.parquet")) == []


# --- Files ---------------------------------------------------------------------


def test_rows_are_laid_out_by_partition_and_sorted_within_files(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    schema = schema_of("id", id=Kind.INT64, day=Kind.DATE, land=Kind.TEXT, at=Kind.INT64)
    table = orders(WriteMode.MERGE, files=FileLayout(("day", "land"), ("at",)))
    target.prepare(table, schema)
    rows = [(n, n % 2, None if n % 3 else "ü/ =%", 100 - n) for n in range(12)]
    target.load(table, [stage.segment(schema, rows)], generation=1, fence=1)
    assert DeltaTable(lake / "orders").metadata().partition_columns == ["day", "land"]
    files = data_files(DeltaTable(lake / "orders"))
    assert sorted((str(f.partition["day"]), f.partition["land"] or "") for f in files) == [
        ("1970-01-01", ""),
        ("1970-01-01", "ü/ =%"),
        ("1970-01-02", ""),
        ("1970-01-02", "ü/ =%"),
    ]
    for file in files:
        assert (ats := pq.read_table(lake / "orders" / file.path)["at"].to_pylist()) == sorted(ats)
    target.load(table, [stage.segment(schema, [(0, 1, "else", 500)], run=2)], generation=1, fence=1)
    assert [row for row in text_rows(rows_of(target, "orders")) if row[0] == "0"] == [
        ("0", "1970-01-02", "else", "500")
    ]
    assert target.count("orders") == 12


def test_another_partitioning_than_the_tables_is_refused(target: DeltaTarget, stage: Stage) -> None:
    target.prepare(orders(files=FileLayout(("note",))), ORDERS)
    with pytest.raises(IncompatibleTable, match="partitioned by note, not by at"):
        target.prepare(orders(files=FileLayout(("at",))), ORDERS)
    target.prepare(orders(), ORDERS)
    with pytest.raises(TargetError, match="empty text"):
        target.load(orders(), [stage.segment(ORDERS, [(1, 1, "")])], generation=1, fence=1)
    assert target.count("orders") == 0


def test_a_column_that_no_table_is_partitioned_by_is_refused_before_there_is_one(
    target: DeltaTarget,
) -> None:
    schema = schema_of("id", id=Kind.UINT64, at=Kind.TIMESTAMP)
    for name, kind in {"id": "decimal(20,0)", "at": "timestamp_ntz"}.items():
        table = orders(files=FileLayout(partition_by=(name,)))
        with pytest.raises(IncompatibleTable, match=re.escape(f"column {name} is {kind} there")):
            target.action(table, schema)
        with pytest.raises(IncompatibleTable):
            target.prepare(table, schema)
    assert not target.exists("orders")


def test_a_merge_writes_only_files_again_that_hold_what_has_changed(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    for part in range(3):
        rows = [(n, 1, "x") for n in range(part * 10, part * 10 + 10)]
        target.load(table, [stage.segment(ORDERS, rows)], generation=1, fence=1)
    before = {file.path for file in data_files(DeltaTable(lake / "orders"))}
    target.load(table, [stage.segment(ORDERS, [(15, 2, "y"), (40, 2, "z")], run=2)], generation=1, fence=1)
    after = {file.path for file in data_files(DeltaTable(lake / "orders"))}
    assert (len(before & after), len(after)) == (2, 3)
    assert target.count("orders") == 31


def test_a_merge_finds_keys_that_no_calendar_of_python_has(target: DeltaTarget, stage: Stage) -> None:
    schema = schema_of("day", day=Kind.DATE, note=Kind.TEXT)
    table = replace(orders(WriteMode.MERGE), key=("day",), cursor=())
    target.prepare(table, schema)
    ancient, ordinary, far = -1_000_000, 0, 2_145_042_905
    for run, note in ((1, "old"), (2, "new")):
        rows = [(ancient, note), (ordinary, note), (far, note)]
        target.load(table, [stage.segment(schema, rows, run=run)], generation=1, fence=1)
    assert target.count("orders") == 3


def test_keys_are_found_however_a_table_that_somebody_made_spells_them(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    there = {"ID": pa.array([1, 9], pa.int64()), "At": pa.array([1, 1], pa.int64()), "NOTE": ["old", "nine"]}
    write_deltalake(lake / "orders", pa.table(there))
    table = orders(WriteMode.MERGE, files=FileLayout(cluster_by=("note",)))
    target.prepare(table, ORDERS)

    target.load(table, [stage.segment(ORDERS, [(1, 2, "new"), (2, 1, "two")])], generation=1, fence=1)
    again = [stage.segment(ORDERS, [(2, 1, "two"), (3, 1, "three")], run=2)]
    target.load(orders(), again, generation=1, fence=2, skip_existing=True)

    assert text_rows(rows_of(target, "orders")) == [
        ("1", "2", "new"),
        ("2", "1", "two"),
        ("3", "1", "three"),
        ("9", "1", "nine"),
    ]
    assert target.present("orders", ["id"], [(1,), (4,)]) == 1


def test_a_merge_holds_neither_the_table_nor_the_rows_in_memory(
    target: DeltaTarget, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured in Arrow's memory, with a buffer that is small beside both."""
    monkeypatch.setattr(delta_files, "BUFFER_BYTES", 2 * 2**20)
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    chance = random.Random(1)

    def segments(run: int) -> list[StagedSegment]:
        """32 MB of rows."""
        starts = range(0, 16_000, 1_000)
        return [
            stage.segment(
                ORDERS, [(n, run, chance.randbytes(1_000).hex()) for n in range(s, s + 1_000)], run=run
            )
            for s in starts
        ]

    target.load(table, segments(1), generation=1, fence=1)
    newer = segments(2)
    default = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(default)
    pa.set_memory_pool(watched)
    try:
        assert target.load(table, newer, generation=1, fence=1) == 16_000
    finally:
        pa.set_memory_pool(default)
    assert watched.max_memory() < 16 * 2**20


# --- Tables that others have made ------------------------------------------------


def test_a_table_that_wants_more_of_its_writers_is_refused(target: DeltaTarget, lake: Path) -> None:
    made = {"delta.enableDeletionVectors": "true"}
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("note", pa.string())])
    DeltaTable.create(lake / "orders", schema=schema, configuration=made)
    with pytest.raises(IncompatibleTable, match="deletionVectors"):
        target.prepare(orders(), ORDERS)


def test_a_column_that_must_have_a_value_refuses_rows_without(
    target: DeltaTarget, stage: Stage, lake: Path
) -> None:
    fields = [("id", pa.int64()), ("at", pa.int64()), pa.field("note", pa.string(), nullable=False)]
    DeltaTable.create(lake / "orders", schema=pa.schema(fields))
    target.prepare(orders(), ORDERS)
    with pytest.raises(TargetError, match="no value in note"):
        target.load(orders(), [stage.segment(ORDERS, [(1, 1, None)])], generation=1, fence=1)
    assert target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1


# --- In a bucket -----------------------------------------------------------------


def in_bucket(server: S3Server) -> DeltaTarget:
    access = {name: value for name, value in server.config.items() if name not in ("type", "bucket")}
    found = open_target(type="delta", path=f"s3://{server.bucket}/the lake", **access)
    assert isinstance(found, DeltaTarget)
    return found


def test_tables_in_a_bucket_are_appended_to_merged_and_replaced(fresh_bucket: S3Server, stage: Stage) -> None:
    target = in_bucket(fresh_bucket)
    wider = Schema((*ORDERS.columns, Column("more", DataType(Kind.TEXT))), ("id",))
    for mode in WriteMode:
        table = orders(mode, name=f"t_{mode}")
        target.prepare(table, ORDERS)
        target.load(table, [stage.segment(ORDERS, [(1, 1, "a"), (2, 1, "b")])], generation=1, fence=1)
        target.prepare(table, wider)
        newer = [remote(stage.segment(wider, [(2, 2, "c", "d")], run=2))]
        assert target.load(table, newer, generation=1, fence=1) == 1
        assert target.load(table, newer, generation=1, fence=1) == 0
        kept = {WriteMode.APPEND: 3, WriteMode.MERGE: 2, WriteMode.REPLACE: 1}[mode]
        assert target.count(table.name) == kept
        assert ("2", "2", "c", "d") in text_rows(rows_of(target, table.name))
    assert {key.split("/")[0] for key in fresh_bucket.keys("")} == {"the lake"}
    target.fence_off(StreamId("shop", "t_append"), 5)
    with pytest.raises(LeaseLost):
        target.load(orders(name="t_append"), [stage.segment(ORDERS, [(3, 3, "x")])], generation=1, fence=4)


def test_of_two_processes_that_load_the_same_into_a_bucket_exactly_one_does(
    fresh_bucket: S3Server, stage: Stage
) -> None:
    target = in_bucket(fresh_bucket)
    target.prepare(orders(WriteMode.MERGE), ORDERS)
    segments = [stage.segment(ORDERS, [(n, n, "x") for n in range(100)])]
    assert race(target, orders(WriteMode.MERGE), segments, 2) == [0, 100]
    assert target.count("orders") == 100


def test_keys_that_are_not_let_in_are_an_error_in_words(fresh_bucket: S3Server) -> None:
    stranger = in_bucket(fresh_bucket.logged_in_as("nobody", "wrong"))
    with pytest.raises(TidegateError, match="may not be read or written"):
        stranger.prepare(orders(), ORDERS)
